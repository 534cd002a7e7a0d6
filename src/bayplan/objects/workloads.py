"""Workload owners, disruption budgets, priority classes and pod groups."""

from __future__ import annotations

from datetime import datetime

from bayplan.objects.meta import Api, Condition, KubeObject, LabelSelector


class ReplicaSetSpec(Api):
    selector: LabelSelector | None = None


class ReplicaSet(KubeObject):
    spec: ReplicaSetSpec = ReplicaSetSpec()


class StatefulSetSpec(Api):
    selector: LabelSelector | None = None


class StatefulSet(KubeObject):
    spec: StatefulSetSpec = StatefulSetSpec()


class PodDisruptionBudgetSpec(Api):
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Api):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, datetime | None] = {}


class PodDisruptionBudget(KubeObject):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class PriorityClass(KubeObject):
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


class GangPolicy(Api):
    min_count: int = 0


class BasicPolicy(Api):
    pass


class PodGroupSchedulingPolicy(Api):
    basic: BasicPolicy | None = None
    gang: GangPolicy | None = None


class TopologyConstraint(Api):
    key: str = ""


class PodGroupSchedulingConstraints(Api):
    topology: tuple[TopologyConstraint, ...] = ()


class PodGroupSpec(Api):
    scheduling_policy: PodGroupSchedulingPolicy = PodGroupSchedulingPolicy()
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    disruption_mode: str | None = None
    priority: int | None = None


class PodGroupStatus(Api):
    conditions: tuple[Condition, ...] = ()


class PodGroup(KubeObject):
    """scheduling.k8s.io PodGroup: pods that start together or not at all."""

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()
