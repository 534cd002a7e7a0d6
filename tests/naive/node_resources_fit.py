"""Naive twin of NodeResourcesFit, one node at a time, in unbounded integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import strategies as st

from bayplan.objects.core import Node
from bayplan.objects.resource import DeviceClass
from bayplan.objects.resources import (
    accounted_nonzero,
    accounted_requests,
    allocatable_amounts,
    filter_requests,
    fit_score_requests,
    is_extended_resource_name,
    is_scalar_resource,
)
from bayplan.plugins.node_resources.fit import NodeResourcesFit
from bayplan.plugins.node_resources.fit_args import NodeResourcesFitArgs, RequestedToCapacityRatioParam, ScoringStrategy
from bayplan.plugins.node_resources.resource_specs import ResourceSpec, UtilizationShapePoint
from naive.twin import GPU, Case, Twin, cases
from support.builders.framework import FEASIBLE, FilterResult, rejected, unresolvable

BASIC = ("cpu", "memory", "ephemeral-storage")


def arguments(case: Case) -> NodeResourcesFitArgs:
    args: NodeResourcesFitArgs = NodeResourcesFit.ARGS.default() if case.args is None else case.args
    return args


def used(case: Case, node: Node, name: str) -> int:
    return sum(accounted_requests(pod).get(name, 0) for pod in case.cluster.pods_on(node))


def is_ignored(case: Case, name: str) -> bool:
    args = arguments(case)
    if not is_extended_resource_name(name):
        return False
    return name in args.ignored_resources or name.split("/")[0] in args.ignored_resource_groups


def left_to_devices(case: Case, name: str, offered: int) -> bool:
    return offered == 0 and any(name == each.spec.extended_resource_name for each in case.cluster.of(DeviceClass))


def judge(case: Case, node: Node) -> FilterResult:
    room = allocatable_amounts(node.status.allocatable)
    requests = filter_requests(case.pod)
    reasons, hopeless = [], False
    if len(case.cluster.pods_on(node)) + 1 > room.get("pods", 0):
        reasons.append("Too many pods")
    for name in (*BASIC, *sorted(requests.keys() - set(BASIC))):
        wanted, offered = requests.get(name, 0), room.get(name, 0)
        if wanted == 0 or is_ignored(case, name) or left_to_devices(case, name, offered):
            continue
        if wanted > offered - used(case, node, name):
            reasons.append(f"Insufficient {name}")
            hopeless = hopeless or wanted > offered
    if not reasons:
        return FEASIBLE
    return unresolvable(*reasons) if hopeless else rejected(*reasons)


def allocated(case: Case, node: Node, name: str) -> int:
    if name in ("cpu", "memory"):
        return sum(accounted_nonzero(pod)[name == "memory"] for pod in case.cluster.pods_on(node))
    return used(case, node, name)


def along(shape: Sequence[UtilizationShapePoint], utilization: int) -> int:
    for position, point in enumerate(shape):
        if utilization <= point.utilization:
            if position == 0:
                return 10 * point.score
            before = shape[position - 1]
            rise = 10 * (point.score - before.score) * (utilization - before.utilization)
            return 10 * before.score + math.trunc(rise / (point.utilization - before.utilization))
    return 10 * shape[-1].score


def share(strategy: ScoringStrategy, requested: int, capacity: int) -> int:
    if strategy.type == "LeastAllocated":
        return 0 if requested > capacity else (capacity - requested) * 100 // capacity
    if strategy.type == "MostAllocated":
        return min(requested, capacity) * 100 // capacity
    assert strategy.requested_to_capacity_ratio is not None
    utilization = 100 if requested > capacity else requested * 100 // capacity
    return along(strategy.requested_to_capacity_ratio.shape, utilization)


def score(case: Case, node: Node) -> int:
    strategy = arguments(case).strategy
    room, wanted = allocatable_amounts(node.status.allocatable), fit_score_requests(case.pod)
    parts: list[tuple[int, int]] = []
    for spec in strategy.resources:
        known = spec.name in BASIC or is_scalar_resource(spec.name)
        if (wanted.get(spec.name, 0) == 0 and is_scalar_resource(spec.name)) or not known or not room.get(spec.name, 0):
            continue
        requested = allocated(case, node, spec.name) + wanted.get(spec.name, 0)
        parts.append((share(strategy, requested, room[spec.name]), spec.weight))
    if strategy.type == "RequestedToCapacityRatio":
        parts = [(part, weight) for part, weight in parts if part > 0]
    total, weights = sum(part * weight for part, weight in parts), sum(weight for _, weight in parts)
    if not weights:
        return 0
    return math.floor(total / weights + 0.5) if strategy.type == "RequestedToCapacityRatio" else total // weights


def scores(case: Case, feasible: Sequence[Node]) -> dict[str, int]:
    return {node.name: score(case, node) for node in feasible}


NAMES = ("cpu", "memory", "ephemeral-storage", GPU, "hugepages-2Mi", "pods")
SPECS = st.lists(
    st.builds(ResourceSpec, st.sampled_from(NAMES), st.sampled_from((1, 3, 100))), min_size=1, max_size=4
).map(tuple)
SHAPES = st.lists(st.integers(0, 100), min_size=1, max_size=4, unique=True).flatmap(
    lambda points: st.tuples(
        *[st.builds(UtilizationShapePoint, st.just(at), st.integers(0, 10)) for at in sorted(points)]
    )
)
STRATEGIES = st.one_of(
    st.builds(ScoringStrategy, st.sampled_from(("LeastAllocated", "MostAllocated")), SPECS),
    st.builds(
        ScoringStrategy, st.just("RequestedToCapacityRatio"), SPECS, st.builds(RequestedToCapacityRatioParam, SHAPES)
    ),
)
ARGS = st.none() | st.builds(
    NodeResourcesFitArgs,
    ignored_resources=st.sampled_from(((), (GPU,), ("cpu",))),
    ignored_resource_groups=st.sampled_from(((), ("other.com",))),
    scoring_strategy=STRATEGIES,
)
TWIN = Twin(NodeResourcesFit, cases("allocatable requests overhead resources classes", ARGS), judge, scores)
