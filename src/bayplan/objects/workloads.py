"""Workload owners, disruption budgets, priority classes and pod groups."""

from __future__ import annotations

from datetime import datetime

from bayplan.objects.meta import Api, Condition, KubeObject, LabelSelector


class ReplicaSetSpec(Api, frozen=True):
    selector: LabelSelector | None = None


class ReplicaSet(KubeObject, frozen=True):
    spec: ReplicaSetSpec = ReplicaSetSpec()


class StatefulSetSpec(Api, frozen=True):
    selector: LabelSelector | None = None


class StatefulSet(KubeObject, frozen=True):
    spec: StatefulSetSpec = StatefulSetSpec()


class PodDisruptionBudgetSpec(Api, frozen=True):
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Api, frozen=True):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, datetime | None] = {}


class PodDisruptionBudget(KubeObject, frozen=True):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class PriorityClass(KubeObject, frozen=True):
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


class GangPolicy(Api, frozen=True):
    min_count: int = 0


class BasicPolicy(Api, frozen=True):
    pass


class PodGroupSchedulingPolicy(Api, frozen=True):
    basic: BasicPolicy | None = None
    gang: GangPolicy | None = None


class TopologyConstraint(Api, frozen=True):
    key: str = ""


class PodGroupSchedulingConstraints(Api, frozen=True):
    topology: tuple[TopologyConstraint, ...] = ()


class PodGroupSpec(Api, frozen=True):
    scheduling_policy: PodGroupSchedulingPolicy = PodGroupSchedulingPolicy()
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    disruption_mode: str | None = None
    priority: int | None = None


class PodGroupStatus(Api, frozen=True):
    conditions: tuple[Condition, ...] = ()


class PodGroup(KubeObject, frozen=True):
    """scheduling.k8s.io PodGroup: pods that start together or not at all."""

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()
