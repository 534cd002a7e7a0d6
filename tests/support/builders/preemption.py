"""Builders for tests of preemption: pods of low and high priority, and disruption budgets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from bayplan.objects.core import Node, Pod, PodStatus
from bayplan.objects.meta import Condition, LabelSelector, ObjectMeta
from bayplan.objects.workloads import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from bayplan.snapshot import Snapshot
from support.builders.framework import CREATED, make_node, make_pod, make_snapshot

NOW = CREATED + timedelta(hours=1)


def running_pod(
    name: str,
    *,
    node: str = "a",
    cpu: str = "1",
    priority: int | None = 0,
    started: int | None = None,
    told: Condition | None = None,
    **more: Any,
) -> Pod:
    """A pod on a node; `started`: seconds after `NOW`, None: not started yet."""
    start_time = None if started is None else CREATED + timedelta(seconds=started)
    status = PodStatus(phase="Running", start_time=start_time, conditions=(told,) if told else ())
    return make_pod(name, node=node, requests={"cpu": cpu}, priority=priority, status=status, **more)


def budget(
    name: str = "pdb", *, allowed: int = 0, selector: LabelSelector | None = None, disrupted: Sequence[str] = ()
) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=PodDisruptionBudgetSpec(selector=selector),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed, disrupted_pods=dict.fromkeys(disrupted, CREATED)),
    )


def app_selector(name: str) -> LabelSelector:
    return LabelSelector(match_labels={"app": name})


def high_priority_pod(cpu: str = "2", priority: int = 100, **more: Any) -> Pod:
    return make_pod("vip", requests={"cpu": cpu}, priority=priority, **more)


def node(name: str = "a", cpu: str = "4") -> Node:
    return make_node(name, allocatable={"cpu": cpu, "pods": "110"})


def nodes_with_pods(*loads: Pod | None) -> Snapshot:
    """Nodes a, b, c … each with one pod or none."""
    nodes = [node(letter, cpu="2") for letter in "abcdefgh"[: len(loads)]]
    return make_snapshot(nodes, [pod for pod in loads if pod is not None])
