"""Hierarchical dominant resource fairness: compares queues that are leaves of a weighted tree. Used by drf.

The annotations of queues define the tree: inner nodes are path components with a weight, and jobs hang below them. The
share of a node is the dominant resource of what its children hold. Children that are not saturated count no more than
the poorest of them; saturated children count in full.

A change of a job only marks its ancestors as stale; a comparison recomputes their shares. Cost of a comparison after a
change: the children of the nodes on the path to the job. When a resource of the cluster becomes exhausted or free, all
jobs are recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress

from bayplan.batch.model.amounts import Amounts

DemandingResources = frozenset[str]
ShareOf = Callable[[Amounts], float]


class HierarchyJob:
    """A job, as a leaf of the tree."""

    __slots__ = ("_saturated_by_demand", "allocated", "parent", "request", "saturated", "share")

    def __init__(self, parent: HierarchyNode, request: Amounts) -> None:
        self.parent = parent
        self.request = request
        self.allocated = Amounts()
        self.share = 0.0
        self.saturated = False
        self._saturated_by_demand: dict[DemandingResources, bool] = {}

    def set(self, allocated: Amounts, share: float) -> None:
        self.allocated, self.share = allocated, share
        self._saturated_by_demand.clear()
        self.parent.mark_stale()

    def update_saturation(self, demanding: DemandingResources) -> None:
        saturated = self._saturated_by_demand.get(demanding)
        if saturated is None:
            saturated = self._saturated_by_demand[demanding] = is_saturated(self.allocated, self.request, demanding)
        self.saturated = saturated


class HierarchyNode:
    """An inner node of the tree."""

    __slots__ = ("allocated", "branches", "leaves", "parent", "saturated", "share", "stale", "weight")

    def __init__(self, parent: HierarchyNode | None, weight: float) -> None:
        self.parent = parent
        self.weight = weight
        self.branches: dict[str, HierarchyNode] = {}
        self.leaves: dict[str, HierarchyJob] = {}
        self.allocated = Amounts()
        self.share = 0.0
        self.saturated = False
        self.stale = True

    def mark_stale(self) -> None:
        """Mark this node and its ancestors as stale."""
        node: HierarchyNode | None = self
        while node is not None and not node.stale:
            node.stale = True
            node = node.parent

    def mark_all_stale(self) -> None:
        self.stale = True
        for branch in self.branches.values():
            branch.mark_all_stale()

    def update(self, demanding: DemandingResources, share_of: ShareOf) -> None:
        """Recompute the stale nodes of this subtree."""
        if not self.stale:
            return
        for branch in self.branches.values():
            branch.update(demanding, share_of)
        for leaf in self.leaves.values():
            leaf.update_saturation(demanding)
        self._sum_children(share_of)
        self.stale = False

    def _sum_children(self, share_of: ShareOf) -> None:
        children: list[HierarchyJob | HierarchyNode] = [*self.branches.values(), *self.leaves.values()]
        holders = [child for child in children if child.share != 0]
        poorest = min([1.0, *(share_of(child.allocated) for child in holders if not child.saturated)])
        total = Amounts()
        for child in holders:
            if child.saturated:
                total.add(child.allocated)
            else:
                total.add(child.allocated.clone().multi(poorest / child.share))
        self.allocated = total
        self.share = share_of(total)
        self.saturated = all(child.saturated for child in children)


class ShareTree:
    """The tree of all queues with jobs, and their jobs."""

    def __init__(self, total: Amounts, share_of: ShareOf) -> None:
        self._total = total
        self._share_of = share_of
        self._allocated = Amounts()
        self._demanding: DemandingResources = frozenset()
        self._root = HierarchyNode(None, 1.0)
        self._leaves: dict[str, HierarchyJob] = {}

    def add_job(self, uid: str, hierarchy: str, weights: str, request: Amounts) -> str:
        """Add a job below the path of its queue. Return an error text if the weights are invalid, else an empty one."""
        node, fault = self._root, ""
        components, given = hierarchy.split("/"), weights.split("/")
        for depth, component in enumerate(components[1:], start=1):
            child = node.branches.get(component)
            if child is None:
                if depth >= len(given):
                    fault = f'hierarchy weights "{weights}" are fewer than the parts of "{hierarchy}"; 1 is used'
                elif not _is_weight(given[depth]):
                    fault = f'"{given[depth]}" in hierarchy weights "{weights}" is not a number above 0; 1 is used'
                weight = _parse_weight(given[depth]) if depth < len(given) else 1.0
                child = node.branches[component] = HierarchyNode(node, weight)
            node = child
        self._leaves[uid] = node.leaves[uid] = HierarchyJob(node, request)
        node.mark_stale()
        return fault

    def set_job(self, uid: str, allocated: Amounts, share: float) -> None:
        """Set what a job holds."""
        leaf = self._leaves[uid]
        self._allocated.sub_unchecked(leaf.allocated).add(allocated)
        leaf.set(allocated, share)

    def compare(self, left: str, right: str) -> float:
        """Negative if the queue at the left path is served first; 0 if a path is unknown."""
        self._update()
        left_node, right_node = self._root, self._root
        lefts, rights = left.split("/"), right.split("/")
        depth = min(len(lefts), len(rights))
        for level in range(depth):
            if left_node.saturated != right_node.saturated:
                return 1.0 if left_node.saturated else -1.0
            gap = left_node.share / left_node.weight - right_node.share / right_node.weight
            if gap != 0:
                return gap
            if level + 1 < depth:
                left_child, right_child = (
                    left_node.branches.get(lefts[level + 1]),
                    right_node.branches.get(rights[level + 1]),
                )
                if left_child is None or right_child is None:
                    return 0.0
                left_node, right_node = left_child, right_child
        return 0.0

    def _update(self) -> None:
        total, allocated = self._total, self._allocated
        demanding = frozenset(name for name in total.names() if allocated.get(name) < total.get(name))
        if demanding != self._demanding:
            self._demanding = demanding
            self._root.mark_all_stale()
        self._root.update(demanding, self._share_of)

    def shares(self) -> Mapping[str, float]:
        """The share of every inner node by its path."""
        self._update()
        found: dict[str, float] = {}

        def walk(path: str, node: HierarchyNode) -> None:
            found[path] = node.share
            for name, child in node.branches.items():
                walk(f"{path}/{name}", child)

        walk("root", self._root)
        return found


def is_saturated(allocated: Amounts, request: Amounts, demanding: DemandingResources) -> bool:
    """Whether a job has all it requests of a resource, or requests a resource that the cluster has exhausted."""
    for name in allocated.names():
        wanted = request.get(name)
        if wanted != 0 and (allocated.get(name) >= wanted or name not in demanding):
            return True
    return False


def _parse_number(text: str) -> float:
    """The number in the text; 0 if it is not a number."""
    number = 0.0
    if "_" not in text and text == text.strip():
        with suppress(ValueError):
            number = float(text)
    return 0.0 if math.isnan(number) else number


def _is_weight(text: str) -> bool:
    return _parse_number(text) > 0


def _parse_weight(text: str) -> float:
    """The weight, at least 1; 1 if the text is not a number."""
    return max(1.0, _parse_number(text))
