"""Which of two queues is further below its part, when queues are leaves of a tree of weights?

Hierarchical dominant resource fairness, asked by drf. The tree comes from the queues' annotations: inner nodes are
path components with a weight, below them hang jobs. A node's share is its dominant resource of what its children hold,
where children that still want more count no more than the poorest of them, and those that cannot take more, in full.

Changes of a job only mark the nodes above it; shares are worked out when somebody compares. Cost of a comparison
after a change: the children of the nodes on the path to the job, and all jobs when a resource of the cluster becomes
exhausted or free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress

from bayplan.batch.model.amounts import Amounts

DemandingResources = frozenset[str]
ShareOf = Callable[[Amounts], float]


class HierarchyJob:
    """A job in the tree."""

    __slots__ = ("_saturated_by_demand", "allocated", "parent", "request", "saturated", "share")

    def __init__(self, above: HierarchyNode, request: Amounts) -> None:
        self.parent = above
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
        verdict = self._saturated_by_demand.get(demanding)
        if verdict is None:
            verdict = self._saturated_by_demand[demanding] = is_saturated(self.allocated, self.request, demanding)
        self.saturated = verdict


class HierarchyNode:
    """An inner node."""

    __slots__ = ("allocated", "branches", "leaves", "parent", "saturated", "share", "stale", "weight")

    def __init__(self, above: HierarchyNode | None, weight: float) -> None:
        self.parent = above
        self.weight = weight
        self.branches: dict[str, HierarchyNode] = {}
        self.leaves: dict[str, HierarchyJob] = {}
        self.allocated = Amounts()
        self.share = 0.0
        self.saturated = False
        self.stale = True

    def mark_stale(self) -> None:
        """Something below has changed."""
        node: HierarchyNode | None = self
        while node is not None and not node.stale:
            node.stale = True
            node = node.parent

    def mark_all_stale(self) -> None:
        self.stale = True
        for branch in self.branches.values():
            branch.mark_all_stale()

    def update(self, demanding: DemandingResources, share_of: ShareOf) -> None:
        """Work out what is stale here and below."""
        if not self.stale:
            return
        for branch in self.branches.values():
            branch.update(demanding, share_of)
        for leaf in self.leaves.values():
            leaf.update_saturation(demanding)
        self._add_up(share_of)
        self.stale = False

    def _add_up(self, share_of: ShareOf) -> None:
        children: list[HierarchyJob | HierarchyNode] = [*self.branches.values(), *self.leaves.values()]
        holding = [child for child in children if child.share != 0]
        poorest = min([1.0, *(share_of(child.allocated) for child in holding if not child.saturated)])
        total = Amounts()
        for child in holding:
            if child.saturated:
                total.add(child.allocated)
            else:
                total.add(child.allocated.clone().multi(poorest / child.share))
        self.allocated = total
        self.share = share_of(total)
        self.saturated = all(child.saturated for child in children)


class ShareTree:
    """All queues that have jobs, and their jobs."""

    def __init__(self, total: Amounts, share_of: ShareOf) -> None:
        self._total = total
        self._share_of = share_of
        self._allocated = Amounts()
        self._demanding: DemandingResources = frozenset()
        self._root = HierarchyNode(None, 1.0)
        self._leaves: dict[str, HierarchyJob] = {}

    def add_job(self, uid: str, hierarchy: str, weights: str, request: Amounts) -> str:
        """Hang a job below its queue's path; a sentence where the weights do not go with the path, or are none."""
        node, fault = self._root, ""
        components, given = hierarchy.split("/"), weights.split("/")
        for depth, component in enumerate(components[1:], start=1):
            below = node.branches.get(component)
            if below is None:
                if depth >= len(given):
                    fault = f'hierarchy weights "{weights}" are fewer than the parts of "{hierarchy}"; 1 is used'
                elif not _is_weight(given[depth]):
                    fault = f'"{given[depth]}" in hierarchy weights "{weights}" is not a number above 0; 1 is used'
                weight = _parse_weight(given[depth]) if depth < len(given) else 1.0
                below = node.branches[component] = HierarchyNode(node, weight)
            node = below
        self._leaves[uid] = node.leaves[uid] = HierarchyJob(node, request)
        node.mark_stale()
        return fault

    def set_job(self, uid: str, allocated: Amounts, share: float) -> None:
        """A job holds this much now."""
        leaf = self._leaves[uid]
        self._allocated.sub_unchecked(leaf.allocated).add(allocated)
        leaf.set(allocated, share)

    def compare(self, left: str, right: str) -> float:
        """Negative when the queue at the left path is to be served first; 0 for one of which nothing is known."""
        self._update()
        mine, theirs = self._root, self._root
        lefts, rights = left.split("/"), right.split("/")
        depth = min(len(lefts), len(rights))
        for level in range(depth):
            if mine.saturated != theirs.saturated:
                return 1.0 if mine.saturated else -1.0
            gap = mine.share / mine.weight - theirs.share / theirs.weight
            if gap != 0:
                return gap
            if level + 1 < depth:
                below_mine, below_theirs = mine.branches.get(lefts[level + 1]), theirs.branches.get(rights[level + 1])
                if below_mine is None or below_theirs is None:
                    return 0.0
                mine, theirs = below_mine, below_theirs
        return 0.0

    def _update(self) -> None:
        total, allocated = self._total, self._allocated
        demanding = frozenset(name for name in total.names() if allocated.get(name) < total.get(name))
        if demanding != self._demanding:
            self._demanding = demanding
            self._root.mark_all_stale()
        self._root.update(demanding, self._share_of)

    def shares(self) -> Mapping[str, float]:
        """The share of every inner node by its path, for those who look in from outside."""
        self._update()
        found: dict[str, float] = {}

        def walk(path: str, node: HierarchyNode) -> None:
            found[path] = node.share
            for name, below in node.branches.items():
                walk(f"{path}/{name}", below)

        walk("root", self._root)
        return found


def is_saturated(allocated: Amounts, request: Amounts, demanding: DemandingResources) -> bool:
    """Whether a job has all it wants of something, or wants something that the cluster has no more of."""
    for name in allocated.names():
        wanted = request.get(name)
        if wanted != 0 and (allocated.get(name) >= wanted or name not in demanding):
            return True
    return False


def _parse_number(text: str) -> float:
    """0 for what is no number."""
    number = 0.0
    if "_" not in text and text == text.strip():
        with suppress(ValueError):
            number = float(text)
    return 0.0 if math.isnan(number) else number


def _is_weight(text: str) -> bool:
    return _parse_number(text) > 0


def _parse_weight(text: str) -> float:
    """At least 1, also for what is no number."""
    return max(1.0, _parse_number(text))
