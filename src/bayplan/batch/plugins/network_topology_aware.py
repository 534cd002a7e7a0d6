"""The `network-topology-aware` plugin: restricts jobs to hypernodes and scores hypernodes and nodes.

Hypernodes are tried closest first; the fullest one that fits is best. Tasks of a running job prefer nodes near its
other tasks. Pods without a topology are packed into few hypernodes, so that complete ones stay free.
Cost: some column operations per task. A gradient walks the part of the tree that the job may use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.evaluation.node_points import same_for_all
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.hypernode_accounts import HyperNodeAccounts
from bayplan.batch.model.hypernodes import HyperNode, HyperNodeTree
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.registration import SearchPurpose
from bayplan.batch.session.session import Session
from bayplan.objects.resources import CPU, MEMORY

MAX_SCORE = 100.0
RESOURCES = "hypernode.binpack.resources"
_MAX_TIERS = 4096
"""Up to this many tiers are summed one by one, which equals upstream to the last digit; more use a closed formula."""

Gradient = list[list[HyperNode]]


class NetworkTopologyAwarePlugin:
    """Keeps jobs close together in the network and avoids fragments of hypernodes."""

    name = "network-topology-aware"
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument("weight", int, 1),
        Argument("hypernode.binpack.cpu", int, 1),
        Argument("hypernode.binpack.memory", int, 1),
        Argument(RESOURCES, str, ""),
        Argument(f"{RESOURCES}.<resource>", int, 1, listed_in=RESOURCES),
        Argument("hypernode.binpack.normal-pod.enable", bool, True),
        Argument("hypernode.binpack.normal-pod.fading", float, 0.8),
        Argument("hypernode.gradient.evict.max-hypernodes", int, 8),
    )

    def __init__(self, arguments: Arguments) -> None:
        self._scale = MAX_SCORE * _weight(arguments, "weight")
        self._weights = _resource_weights(arguments)
        self._packs_normal_pods = arguments.get_bool("hypernode.binpack.normal-pod.enable", True)
        fading = arguments.get_float("hypernode.binpack.normal-pod.fading", 0.8)
        self._fading = 0.8 if fading < 0 else fading
        max_domains = arguments.get_int("hypernode.gradient.evict.max-hypernodes", 8)
        self._max_eviction_domains = 8 if max_domains <= 0 else max_domains

    def on_session_open(self, session: Session) -> None:
        self._session = session
        self._tree: HyperNodeTree = session.hyper_nodes
        self._lowest, self._highest = self._tree.tiers[0], self._tree.tiers[-1]
        self._tier_weights = TierWeights(self._fading, self._tree.tiers)
        self._accounts = accounts = HyperNodeAccounts(session.nodes, self._tree, self._weights)
        self._requests: dict[str, dict[str, float]] = {}  # by sub-job
        session.add_hyper_node_order_fn(self.name, self._score_hyper_nodes)
        session.add_batch_node_order_nodes_fn(self.name, self._score_nodes, signature=same_for_all)
        session.add_hyper_node_gradient_for_job_fn(self.name, self._gradient)
        session.add_hyper_node_gradient_for_sub_job_fn(self.name, self._gradient)
        session.add_event_handler(
            self.name,
            allocate=lambda task: accounts.update_usage(task, 1.0),
            deallocate=lambda task: accounts.update_usage(task, -1.0),
        )

    # Gradients

    def _gradient(self, owner: Job | SubJob, start: HyperNode, purpose: SearchPurpose) -> Gradient:
        """Hypernodes grouped by tier: the lowest tier first for allocation, the highest first for eviction."""
        highest = owner.hard_tier
        if highest is None:
            return [[start]]
        root = self._search_root(start, highest, owner.allocated_hyper_node)
        if root is None:
            return []
        minimum = None if owner.allocated_hyper_node else owner.min_resources()
        by_tier: dict[int, list[HyperNode]] = {}
        for hyper_node in self._below(root):
            if hyper_node.tier <= highest and (minimum is None or self._is_big_enough(hyper_node, minimum, purpose)):
                by_tier.setdefault(hyper_node.tier, []).append(hyper_node)
        found = [by_tier[tier] for tier in sorted(by_tier)]
        return found if purpose is SearchPurpose.ALLOCATE else self._widest_first(found)

    def _is_big_enough(self, hyper_node: HyperNode, minimum: Amounts, purpose: SearchPurpose) -> bool:
        if purpose is SearchPurpose.EVICT:
            return self._accounts.fits_allocatable(hyper_node.name, minimum)
        return self._accounts.fitted_at_open(hyper_node.name, minimum)

    def _search_root(self, start: HyperNode, highest: int, allocated: str) -> HyperNode | None:
        """The intersection of `start` with the part of the tree to which an allocated job may spread; None if empty."""
        if not allocated:
            return start
        allowed = ""
        for name in self._tree.ancestors(allocated):
            if self._tree[name].tier > highest:
                break
            allowed = name
        common = self._tree.lowest_common(start.name, allowed) if allowed else ""
        if not common:
            return None
        if common == allowed:
            return start
        return self._tree[allowed] if common == start.name else None

    def _below(self, root: HyperNode) -> list[HyperNode]:
        found, seen = [root], {root.name}
        for hyper_node in found:
            for child in sorted(hyper_node.children):
                if child not in seen:
                    seen.add(child)
                    found.append(self._tree[child])
        return found

    def _widest_first(self, gradient: Gradient) -> Gradient:
        """Order for eviction: widest hypernodes first, because they offer most victims; at most a configured number."""
        remaining = self._max_eviction_domains
        found: Gradient = []
        for hyper_nodes in reversed(gradient):
            if not remaining:
                break
            found.append(hyper_nodes[-remaining:])
            remaining -= len(found[-1])
        return found

    # Hypernode scores

    def _score_hyper_nodes(self, sub_job: SubJob, candidates: Mapping[str, Nodes]) -> dict[str, float]:
        """Score by utilization; ties are broken by the share of the sub-job's tasks that the hypernode already has."""
        accounts = self._accounts
        request = self._requests.get(sub_job.uid)
        if request is None:
            request = self._requests[sub_job.uid] = accounts.request_of(list(sub_job.tasks.values()))
        fullness = accounts.utilization(request)
        scores = {name: accounts.utilization_of(name, fullness) for name in candidates}
        best = max(scores.values(), default=0.0)
        tied = [name for name, score in scores.items() if score == best]
        if len(tied) > 1:
            for name in tied:
                scores[name] += self._share_in(name, sub_job)
        return {name: self._scale * score for name, score in scores.items()}

    def _share_in(self, name: str, sub_job: SubJob) -> float:
        """The share of the sub-job's tasks that is in a hypernode."""
        if not name or not sub_job.tasks:
            return 0.0
        inside = self._tree[name].nodes
        return sum(task.node_name in inside for task in sub_job.tasks.values()) / len(sub_job.tasks)

    # Node scores

    def _score_nodes(self, task: Task, nodes: Nodes) -> FloatVector:
        job = self._session.jobs.get(task.job)
        sub_job = None if job is None else job.sub_job_of(task)
        if sub_job is None:
            return np.zeros(len(nodes))
        if sub_job.network_topology is None:
            return self._scale * self._packing_scores(task, nodes)
        return self._scale * self._topology_scores(task, sub_job, nodes)

    def _packing_scores(self, task: Task, nodes: Nodes) -> FloatVector:
        """Weighted utilization of the hypernodes above a node; a higher tier has a lower weight.

        A node outside of every hypernode scores highest.
        """
        weights = self._tier_weights
        if not self._packs_normal_pods or weights.whole <= 0:
            return np.zeros(len(nodes))
        accounts, rows = self._accounts, None if nodes.is_whole else nodes.rows
        fullness = np.append(accounts.utilization(accounts.request_of([task])), 1.0)  # last entry: no hypernode
        total = np.full(len(nodes), weights.empty)
        for tier in self._tree.tiers:
            numbers = accounts.hypernode_at_tier(tier)
            total += weights.of[tier] * fullness[numbers if rows is None else numbers[rows]]
        with np.errstate(invalid="ignore"):
            scores: FloatVector = total / weights.whole
        return scores

    def _topology_scores(self, task: Task, sub_job: SubJob, nodes: Nodes) -> FloatVector:
        """Closeness to the job's hypernode; ties are broken by the share of the sub-job's tasks in the leaf."""
        scores = np.zeros(len(nodes))
        if not task.job_allocated_hyper_node or not len(nodes):
            return scores
        leaves = self._accounts.hypernode_at_tier(self._lowest)[nodes.rows]
        for number in np.unique(leaves).tolist():
            scores[leaves == number] = self._closeness_of(self._leaf(number), task.job_allocated_hyper_node)
        best = scores == scores.max()
        if np.count_nonzero(best) > 1:
            for number in np.unique(leaves[best]).tolist():
                scores[best & (leaves == number)] += self._share_in(self._leaf(number), sub_job)
        return scores

    def _leaf(self, number: int) -> str:
        return self._accounts.names[number] if number >= 0 else ""

    def _closeness_of(self, leaf: str, allocated: str) -> float:
        if not leaf:
            return 0.0
        if leaf == allocated:
            return 1.0
        common = self._tree.lowest_common(leaf, allocated)
        if common not in self._tree:
            return 0.0
        tier = self._tree[common].tier
        if self._lowest == self._highest:
            return 1.0
        if not self._lowest <= tier <= self._highest:
            return 0.0
        return (self._highest - tier) / (self._highest - self._lowest)


class TierWeights:
    """Weight of each tier from the lowest to the highest, including tiers without hypernodes.

    Cost: proportional to the existing tiers plus a bounded number of tiers between them.
    """

    def __init__(self, fading: float, tiers: Sequence[int]) -> None:
        weights = _fading_weights(fading, tiers)
        self.of = dict(zip(tiers, weights.tolist(), strict=True))
        lowest, highest = tiers[0], tiers[-1]
        if highest - lowest < _MAX_TIERS:
            dense = _fading_weights(fading, range(lowest, highest + 1))
            empty = np.isin(np.arange(len(dense)), [tier - lowest for tier in tiers], invert=True)
            self.whole = float(dense.sum())
            self.empty = float(dense[empty].sum())  # a tier without hypernodes counts as a full one
            return
        gaps = [(low + 1, high - low - 1) for low, high in pairwise(tiers)]
        self.empty = sum(_sum_of_weights(fading, first, count) for first, count in gaps)
        self.whole = self.empty + float(weights.sum())


def _fading_weights(fading: float, tiers: Sequence[int]) -> FloatVector:
    with np.errstate(divide="ignore", over="ignore"):
        weights: FloatVector = np.power(float(fading), np.array(tiers, dtype=np.float64) - 1.0)
    return weights


def _sum_of_weights(fading: float, first: int, count: int) -> float:
    """Sum of the weights of `count` consecutive tiers: a geometric series."""
    if not count:
        return 0.0
    start = float(_fading_weights(fading, [first])[0])
    if fading in (0.0, 1.0) or not 0.0 < start < math.inf:
        return start * count if fading else start
    with np.errstate(over="ignore"):
        return start * float(np.expm1(count * np.log(fading)) / (fading - 1.0))


def _weight(arguments: Arguments, key: str) -> int:
    weight = arguments.get_int(key, 1)
    return 1 if weight < 0 else weight


def _resource_weights(arguments: Arguments) -> dict[str, int]:
    weights = {CPU: _weight(arguments, "hypernode.binpack.cpu"), MEMORY: _weight(arguments, "hypernode.binpack.memory")}
    for name in _parse_names(arguments):
        weights.setdefault(name, _weight(arguments, f"{RESOURCES}.{name}"))
    return weights


def _parse_names(arguments: Arguments) -> Sequence[str]:
    names = [name.strip() for name in arguments.get_str(RESOURCES).split(",")]
    return [name for name in names if name]
