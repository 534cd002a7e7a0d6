"""Naive twin of NodeResourcesBalancedAllocation, one node at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import strategies as st

from bayplan.objects.core import Node
from bayplan.objects.resources import allocatable_amounts, balanced_requests, is_scalar_resource
from bayplan.plugins.node_resources.balanced_allocation import NodeResourcesBalancedAllocation
from bayplan.plugins.node_resources.balanced_allocation_args import NodeResourcesBalancedAllocationArgs
from bayplan.plugins.node_resources.resource_specs import ResourceSpec
from naive.node_resources_fit import BASIC, NAMES, used
from naive.twin import Case, Twin, cases


def names(case: Case) -> list[str]:
    args = NodeResourcesBalancedAllocation.ARGS.default() if case.args is None else case.args
    return [spec.name for spec in args.resources]


def balance(shares: list[float]) -> int:
    if len(shares) == 2:
        deviation = abs((shares[0] - shares[1]) / 2)
    elif len(shares) > 2:
        mean = 0.0
        for share in shares:
            mean += share
        mean /= len(shares)
        squares = 0.0
        for share in shares:
            squares += (share - mean) * (share - mean)
        deviation = math.sqrt(squares / len(shares))
    else:
        deviation = 0.0
    return int((1 - deviation) * 100)


def score(case: Case, node: Node) -> int:
    room, wanted = allocatable_amounts(node.status.allocatable), balanced_requests(case.pod)
    before, after = [], []
    for name in names(case):
        asked, offered = wanted.get(name, 0), room.get(name, 0)
        known = name in BASIC or (is_scalar_resource(name) and asked)
        if not known or not offered:
            continue
        taken = used(case, node, name)
        before.append(min(1.0, taken / offered))
        after.append(min(1.0, (taken + asked) / offered))
    return 50 + (50 + balance(after) - balance(before)) // 2


def scores(case: Case, feasible: Sequence[Node]) -> dict[str, int] | None:
    wanted = balanced_requests(case.pod)
    if not any(wanted.get(name, 0) for name in names(case)):
        return None
    return {node.name: score(case, node) for node in feasible}


ARGS = st.none() | st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True).map(
    lambda found: NodeResourcesBalancedAllocationArgs(tuple(ResourceSpec(name, 1) for name in found))
)
TWIN = Twin(NodeResourcesBalancedAllocation, cases("allocatable requests overhead resources", ARGS), scores=scores)
