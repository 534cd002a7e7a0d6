"""What would land, move, wait and cost if something were different? The cluster decided about twice, and compared.

Once as it is, for what would happen anyway, and once with the change. Pods of nodes that go, and those that others
evict, are made again as their controllers would do it; those of DaemonSets go with their node. Nothing outside this
process is touched. Costs the decisions about pods that have to be placed, twice; with `afresh` about all of them.
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
from bayplan.sim.offline.offline_cluster import (
    ENDED_PHASES,
    EngineSetup,
    OfflineCluster,
    pending_pods,
    without_node,
)
from bayplan.sim.offline.whatif_file import Prices, WhatIfChange
from bayplan.sim.recordings.recording_file import RecordedDecision

_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class PodOutcomeChange:
    """What becomes of one pod."""

    pod: str
    now: str = ""
    """Its node at this moment."""
    then: str = ""
    """Its node with the change; nothing: it waits."""
    without: str = ""
    """Its node after a while without the change."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class ClusterCost:
    """What a cluster is, and what it costs."""

    nodes: int
    requested: Mapping[str, float]
    """By resource: how much of all that there is the pods on nodes ask for."""
    per_hour: float | None
    """None: no price is known."""
    unpriced: int = 0
    """Nodes whose price is not known."""


@dataclass(slots=True)
class WhatIfResult:
    """The answer."""

    lands: list[PodOutcomeChange] = field(default_factory=list)
    """Pods without a node that get one."""
    moves: list[PodOutcomeChange] = field(default_factory=list)
    """Pods that have to start again on another node."""
    waits: list[PodOutcomeChange] = field(default_factory=list)
    """Pods that have no node in the end, those that lose theirs among them."""
    gone: list[str] = field(default_factory=list)
    """Pods of DaemonSets and nodes' own, which go with their node."""
    now: ClusterCost = field(default_factory=lambda: ClusterCost(0, {}, None))
    then: ClusterCost = field(default_factory=lambda: ClusterCost(0, {}, None))

    @property
    def restarts(self) -> int:
        """Pods that run now and have to start anew, or stop."""
        return len(self.moves) + sum(bool(fate.now) for fate in self.waits)

    def as_data(self) -> dict[str, Any]:
        return {
            "lands": [asdict(fate) for fate in self.lands],
            "moves": [asdict(fate) for fate in self.moves],
            "waits": [asdict(fate) for fate in self.waits],
            "gone": self.gone,
            "cost": {"restarts": self.restarts, "now": asdict(self.now), "then": asdict(self.then)},
        }


def run_whatif(
    objects: Iterable[KubeObject], change: WhatIfChange, setup: EngineSetup, *, now: datetime, seed: int = 0
) -> WhatIfResult:
    """The cluster with the change, beside the cluster as it is."""
    known = [item for item in objects if not (isinstance(item, Pod) and item.status.phase in ENDED_PHASES)]
    change.check_priorities([*known, *change.objects])
    without = _run_engines(known, setup, now, seed)
    changed = change.apply(known)
    nodes = {item.name for item in changed if isinstance(item, Node)}
    answer = WhatIfResult()
    homeless = _release_pods(changed, nodes, answer)
    then = _run_engines(homeless, apply_to_setup(setup, change), now, seed, afresh=change.reschedule_all)
    before = {item.key: item for item in known if isinstance(item, Pod)}
    for key in sorted(then.nodes.keys() | then.waiting.keys()):
        _classify_pod(answer, key, before.get(key), without, then)
    answer.now = _cluster_cost(known, {key: pod.spec.node_name for key, pod in before.items()}, change.prices)
    answer.then = _cluster_cost(homeless, then.nodes, change.prices)
    return answer


@dataclass(slots=True)
class _FinalPlacements:
    """Where pods are in the end."""

    nodes: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    """By pod why."""
    verdicts: dict[str, RecordedDecision] = field(default_factory=dict)


def apply_to_setup(setup: EngineSetup, change: WhatIfChange) -> EngineSetup:
    """How the schedulers would be set up."""
    return replace(
        setup,
        configuration=setup.configuration if change.configuration is None else change.configuration,
        batch_configuration=(
            setup.batch_configuration if change.batch_configuration is None else change.batch_configuration
        ),
    )


def _release_pods(objects: list[KubeObject], nodes: set[str], answer: WhatIfResult) -> list[KubeObject]:
    """The objects with the pods of nodes that are gone taken off them."""
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
    """Let both engines decide about all pods that wait; `afresh`: about all that they serve."""
    if afresh:
        names = setup.scheduler_names()
        objects = [without_node(item) if isinstance(item, Pod) and _may_move(item, names) else item for item in objects]
    end = _FinalPlacements(
        {item.key: item.spec.node_name for item in objects if isinstance(item, Pod) and item.spec.node_name}
    )
    with OfflineCluster(objects, setup, now=now, seed=seed) as still:
        waiting = pending_pods(objects, still)
        rest = still.run_until_stable(waiting)
    end.verdicts = rest.latest_decisions()
    for pod in [*waiting, *rest.evicted]:
        verdict = end.verdicts.get(pod.key)
        if verdict is not None and verdict.node:
            end.nodes[pod.key] = verdict.node
            end.waiting.pop(pod.key, None)
        else:
            end.nodes.pop(pod.key, None)
            end.waiting[pod.key] = verdict.why if verdict is not None else ""
    return end


def _classify_pod(
    answer: WhatIfResult, key: str, before: Pod | None, without: _FinalPlacements, then: _FinalPlacements
) -> None:
    now = before.spec.node_name if before is not None else ""
    fate = PodOutcomeChange(key, now, then.nodes.get(key, ""), without.nodes.get(key, ""), _why(key, then))
    if not fate.then:
        answer.waits.append(fate)
    elif not now:
        answer.lands.append(fate)
    elif fate.then != now:
        answer.moves.append(fate)


def _why(key: str, end: _FinalPlacements) -> str:
    verdict = end.verdicts.get(key)
    return verdict.why if verdict is not None else end.waiting.get(key, "")


def _cluster_cost(objects: Iterable[KubeObject], places: Mapping[str, str], prices: Prices) -> ClusterCost:
    nodes = {item.name: item for item in objects if isinstance(item, Node)}
    room: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for node in nodes.values():
        room.update(allocatable_amounts(node.status.allocatable))
    for item in objects:
        if isinstance(item, Pod) and places.get(item.key) in nodes:
            used.update(accounted_requests(item))
            used["pods"] += 1
    shares = {name: round(used[name] / room[name], 4) for name in sorted(used) if room[name] > 0}
    known = [prices.per_hour.get(node.labels.get(prices.label, "")) for node in nodes.values()]
    priced = [price for price in known if price is not None]
    return ClusterCost(
        nodes=len(nodes),
        requested=shares,
        per_hour=round(sum(priced), 6) if prices.per_hour else None,
        unpriced=len(known) - len(priced) if prices.per_hour else 0,
    )
