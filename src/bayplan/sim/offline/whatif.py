"""What-if: compares the cluster after a change with the cluster without it, by letting both engines decide twice.

Without the change the run shows what would happen anyway. Pods of removed nodes and evicted pods are created again, as
their controllers would do. Pods of DaemonSets are deleted with their node. Nothing outside this process changes. Cost:
the decisions about all pods without a node, twice; with `afresh` about all pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.resources import accounted_requests, allocatable_amounts
from bayplan.sim.offline.offline_cluster import ENDED_PHASES, EngineSetup, OfflineCluster, pending_pods, without_node
from bayplan.sim.offline.whatif_file import Prices, WhatIfChange
from bayplan.sim.recordings.recording_file import RecordedDecision

_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class PodOutcomeChange:
    """Placement of one pod now, with and without the change."""

    pod: str
    now: str = ""
    """Its current node."""
    then: str = ""
    """Its node with the change; empty if it waits."""
    without: str = ""
    """Its final node without the change."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class ClusterCost:
    """Size, utilization and price of a cluster."""

    nodes: int
    requested: Mapping[str, float]
    """By resource: the requests of pods on nodes, as a share of allocatable."""
    per_hour: float | None
    """None if no prices are given."""
    unpriced: int = 0
    """Number of nodes without a known price."""


@dataclass(slots=True)
class WhatIfResult:
    lands: list[PodOutcomeChange] = field(default_factory=list)
    """Pods without a node that get one."""
    moves: list[PodOutcomeChange] = field(default_factory=list)
    """Pods that restart on another node."""
    waits: list[PodOutcomeChange] = field(default_factory=list)
    """Pods without a node at the end, including those that lose theirs."""
    gone: list[str] = field(default_factory=list)
    """DaemonSet and mirror pods that are deleted with their node."""
    now: ClusterCost = field(default_factory=lambda: ClusterCost(0, {}, None))
    then: ClusterCost = field(default_factory=lambda: ClusterCost(0, {}, None))

    @property
    def restarts(self) -> int:
        """Number of running pods that restart or stop."""
        return len(self.moves) + sum(bool(change.now) for change in self.waits)

    def as_data(self) -> dict[str, Any]:
        return {
            "lands": [asdict(change) for change in self.lands],
            "moves": [asdict(change) for change in self.moves],
            "waits": [asdict(change) for change in self.waits],
            "gone": self.gone,
            "cost": {"restarts": self.restarts, "now": asdict(self.now), "then": asdict(self.then)},
        }


def run_whatif(
    objects: Iterable[KubeObject], change: WhatIfChange, setup: EngineSetup, *, now: datetime, seed: int = 0
) -> WhatIfResult:
    """Run both engines with and without the change, and compare the results."""
    known = [item for item in objects if not (isinstance(item, Pod) and item.status.phase in ENDED_PHASES)]
    change.check_priorities([*known, *change.objects])
    without = _run_engines(known, setup, now, seed)
    changed = change.apply(known)
    nodes = {item.name for item in changed if isinstance(item, Node)}
    answer = WhatIfResult()
    released = _release_pods(changed, nodes, answer)
    then = _run_engines(released, apply_to_setup(setup, change), now, seed, afresh=change.reschedule_all)
    before = {item.key: item for item in known if isinstance(item, Pod)}
    for key in sorted(then.nodes.keys() | then.waiting.keys()):
        _classify_pod(answer, key, before.get(key), without, then)
    answer.now = _cluster_cost(known, {key: pod.spec.node_name for key, pod in before.items()}, change.prices)
    answer.then = _cluster_cost(released, then.nodes, change.prices)
    return answer


@dataclass(slots=True)
class _FinalPlacements:
    nodes: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    """Reason by pod."""
    decisions: dict[str, RecordedDecision] = field(default_factory=dict)


def apply_to_setup(setup: EngineSetup, change: WhatIfChange) -> EngineSetup:
    """The configuration of the schedulers with the change."""
    return replace(
        setup,
        configuration=setup.configuration if change.configuration is None else change.configuration,
        batch_configuration=(
            setup.batch_configuration if change.batch_configuration is None else change.batch_configuration
        ),
    )


def _release_pods(objects: list[KubeObject], nodes: set[str], answer: WhatIfResult) -> list[KubeObject]:
    """Remove the pods of deleted nodes from their nodes."""
    found: list[KubeObject] = []
    for item in objects:
        if not isinstance(item, Pod) or not item.spec.node_name or item.spec.node_name in nodes:
            found.append(item)
        elif _is_bound_to_node(item):
            answer.gone.append(item.key)
        else:
            found.append(without_node(item))
    return found


def _is_bound_to_node(pod: Pod) -> bool:
    owner = pod.metadata.controller
    return _MIRROR_ANNOTATION in pod.metadata.annotations or (owner is not None and owner.kind in ("DaemonSet", "Node"))


def _may_move(pod: Pod, names: Container[str]) -> bool:
    return bool(pod.spec.node_name) and pod.scheduler_name in names and not _is_bound_to_node(pod)


def _run_engines(
    objects: list[KubeObject], setup: EngineSetup, now: datetime, seed: int, *, afresh: bool = False
) -> _FinalPlacements:
    """Let both engines decide about all waiting pods; with `afresh`, about all pods that they serve."""
    if afresh:
        names = setup.scheduler_names()
        objects = [without_node(item) if isinstance(item, Pod) and _may_move(item, names) else item for item in objects]
    placements = _FinalPlacements(
        {item.key: item.spec.node_name for item in objects if isinstance(item, Pod) and item.spec.node_name}
    )
    with OfflineCluster(objects, setup, now=now, seed=seed) as offline:
        waiting = pending_pods(objects, offline)
        stable = offline.run_until_stable(waiting)
    placements.decisions = stable.latest_decisions()
    for pod in [*waiting, *stable.evicted]:
        decision = placements.decisions.get(pod.key)
        if decision is not None and decision.node:
            placements.nodes[pod.key] = decision.node
            placements.waiting.pop(pod.key, None)
        else:
            placements.nodes.pop(pod.key, None)
            placements.waiting[pod.key] = decision.why if decision is not None else ""
    return placements


def _classify_pod(
    answer: WhatIfResult, key: str, before: Pod | None, without: _FinalPlacements, then: _FinalPlacements
) -> None:
    now = before.spec.node_name if before is not None else ""
    change = PodOutcomeChange(key, now, then.nodes.get(key, ""), without.nodes.get(key, ""), _why(key, then))
    if not change.then:
        answer.waits.append(change)
    elif not now:
        answer.lands.append(change)
    elif change.then != now:
        answer.moves.append(change)


def _why(key: str, placements: _FinalPlacements) -> str:
    decision = placements.decisions.get(key)
    return decision.why if decision is not None else placements.waiting.get(key, "")


def _cluster_cost(objects: Iterable[KubeObject], places: Mapping[str, str], prices: Prices) -> ClusterCost:
    nodes = {item.name: item for item in objects if isinstance(item, Node)}
    allocatable: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for node in nodes.values():
        allocatable.update(allocatable_amounts(node.status.allocatable))
    for item in objects:
        if isinstance(item, Pod) and places.get(item.key) in nodes:
            used.update(accounted_requests(item))
            used["pods"] += 1
    shares = {name: round(used[name] / allocatable[name], 4) for name in sorted(used) if allocatable[name] > 0}
    known = [prices.per_hour.get(node.labels.get(prices.label, "")) for node in nodes.values()]
    priced = [price for price in known if price is not None]
    return ClusterCost(
        nodes=len(nodes),
        requested=shares,
        per_hour=round(sum(priced), 6) if prices.per_hour else None,
        unpriced=len(known) - len(priced) if prices.per_hour else 0,
    )
