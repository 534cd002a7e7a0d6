"""Both engines on a cluster in memory: one cache, a clock that stands still, seeded randomness.

Used by recordings, replays and what-if. Nothing outside this process changes; decisions take effect immediately.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType

import numpy as np
from msgspec.structs import replace

from bayplan.app.batch import build_batch_engine
from bayplan.app.configuration import (
    batch_configured,
    configured,
    filled_cache,
    known_actions,
    known_batch_plugins,
    known_plugins,
)
from bayplan.batch.apply_outcome import OutcomeApplier
from bayplan.batch.cluster_state import DEFAULT_SCHEDULER
from bayplan.batch.handle import NetworkUnavailable
from bayplan.batch.session.outcome import SessionResult as SessionOutcome
from bayplan.clock import ManualClock
from bayplan.errors import UsageError
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.objects.volcano.types import DEFAULT_QUEUE, PodGroup, Queue, QueueSpec, QueueStatus
from bayplan.scheduler.cycle.schedule_result import SchedulingDecision
from bayplan.scheduler.engine import PodEngine
from bayplan.sim.offline.pod_placement import PlacementOutcome, place_pod
from bayplan.sim.recordings.recording_file import BATCH_ENGINE, POD_ENGINE, RecordedDecision, RecordingHeader
from bayplan.snapshot import NodeColumns, RowVector

MAX_ROUNDS = 20
"""Limit for rounds of both engines; gangs that preempt each other would otherwise never become stable."""
ENDED_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """Configuration of the schedulers of a cluster."""

    configuration: str | None = None
    batch_configuration: str | None = None
    batch_schedulers: tuple[str, ...] = (DEFAULT_SCHEDULER,)
    default_queue: str = DEFAULT_QUEUE
    plugin_folders: tuple[Path, ...] = ()
    trust_writable: bool = False

    @classmethod
    def from_header(
        cls, header: RecordingHeader, folders: Sequence[Path] = (), *, trust_writable: bool = False
    ) -> EngineSetup:
        """The setup of a recording; a recording does not contain custom plugins."""
        return cls(
            configuration=header.configuration,
            batch_configuration=header.batch_configuration,
            batch_schedulers=header.batch_schedulers,
            default_queue=header.default_queue,
            plugin_folders=tuple(folders),
            trust_writable=trust_writable,
        )

    def scheduler_names(self) -> frozenset[str]:
        profiles = configured(self.configuration, self.registry()).profiles
        return frozenset(profile.scheduler_name for profile in profiles).union(self.batch_schedulers)

    def registry(self) -> Registry:
        return known_plugins(self.plugin_folders, trust_writable=self.trust_writable)


class _NoHttpService:
    """HTTP client that refuses every request: offline decisions must not depend on services."""

    def post(self, url: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:  # noqa: ARG002
        raise NetworkUnavailable(f"POST {url} needs a network, and a cluster in memory has none")

    def close(self) -> None: ...


@dataclass(slots=True)
class StableState:
    """Result of running the engines until nothing changes."""

    decisions: list[RecordedDecision] = field(default_factory=list)
    """In the order in which they were made; a pod that was retried has several."""
    evicted: list[Pod] = field(default_factory=list)

    def latest_decisions(self) -> dict[str, RecordedDecision]:
        return {decision.pod: decision for decision in self.decisions}


class OfflineCluster:
    """A cluster in memory with both engines."""

    def __init__(self, objects: Iterable[KubeObject], setup: EngineSetup, *, now: datetime, seed: int = 0) -> None:
        known = list(objects)
        if not any(isinstance(item, Queue) and item.name == setup.default_queue for item in known):
            known.append(_default_queue(setup.default_queue))  # a live engine creates it as well
        registry = setup.registry()
        clock = ManualClock(now)
        chance = random.Random(seed)
        cache = filled_cache(known)
        self.preferred_nodes: dict[str, str] = {}
        """By pod: the node to choose among equally good ones."""
        self._preferred_node = ""
        self._permit_waiting: dict[str, Pod] = {}  # by uid: pods that Permit holds, as they were before
        self._chance = chance
        self.pods = PodEngine(
            configured(setup.configuration, registry),
            registry,
            cache,
            clock=clock,
            chance=chance,
            tie_break=self._tie_break,
        )
        actions = known_actions(setup.plugin_folders, trust_writable=setup.trust_writable)
        self.batch = build_batch_engine(
            batch_configured(setup.batch_configuration, actions),
            cache,
            plugins=known_batch_plugins(setup.plugin_folders, trust_writable=setup.trust_writable),
            actions=actions,
            framework_plugins=registry,
            clock=clock,
            chance=random.Random(seed),
            nominations=self.pods.nominator,
            outside=_NoHttpService(),
            scheduler_names=setup.batch_schedulers,
            default_queue=setup.default_queue,
        )
        self.batch.handle.preferred_nodes = self.preferred_nodes
        self.batch_schedulers = frozenset(setup.batch_schedulers)
        if shared_names := sorted(self.batch_schedulers.intersection(self.pods.scheduler_names)):
            raise UsageError(f"both engines would serve {', '.join(shared_names)}; give one of them another name")
        self.cluster = OutcomeApplier(self.batch)
        self.sessions = 0
        for item in known:
            if not isinstance(item, Pod) or item.spec.node_name or item.status.phase in ENDED_PHASES:
                self.cluster.note_object(item)

    def __enter__(self) -> OfflineCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pods.close()
        self.batch.close()

    def is_batch(self, pod: Pod) -> bool:
        return pod.scheduler_name in self.batch_schedulers

    def serves(self, pod: Pod) -> bool:
        return self.is_batch(pod) or self.pods.serves(pod)

    # Single decisions

    def place(self, pod: Pod, evicted: list[Pod]) -> PlacementOutcome:
        """Place a pod with the pod engine and count it on its node; victims are appended to `evicted`."""

        def evict(victim: Pod) -> None:
            evicted.append(self.cluster.pods.get(victim.key, victim))
            self.cluster.remove([victim])

        self._preferred_node = self.preferred_nodes.get(pod.key, "")
        outcome = place_pod(self.pods, pod, evict)
        if outcome.node is not None:
            self.cluster.note_object(pod.bound_to(outcome.node))
        return outcome

    def dry_run(self, pod: Pod) -> SchedulingDecision:
        self._preferred_node = self.preferred_nodes.get(pod.key, "")
        return self.pods.try_pod(pod)

    def best_nodes(self, pod: Pod) -> frozenset[str]:
        """The best nodes for the pod, if several are equally good; empty if none fits."""
        decision = self.dry_run(pod)
        if decision.node is None:
            return frozenset()
        if decision.scores is None or decision.nodes is None:
            return frozenset((decision.node,))
        names, total = decision.nodes.names, decision.scores.total
        return frozenset(names[place] for place in np.flatnonzero(total == total.max()).tolist())

    def run_session(self) -> SessionOutcome:
        """Run one session of the batch engine over all pods it knows."""
        self.sessions += 1
        return self.batch.run_session()

    def _tie_break(self, columns: NodeColumns, rows: RowVector | Sequence[int]) -> int:
        preferred = np.flatnonzero(np.asarray(rows) == columns.index.get(self._preferred_node, -1))
        return int(preferred[0]) if len(preferred) else self._chance.randrange(len(rows))

    # All pods

    def run_until_stable(self, waiting: Iterable[Pod]) -> StableState:
        """Decide about all waiting pods, again as long as anything changes.

        Each round runs the pod engine over its pods in queue order, and then one session. An evicted pod is created
        again once, as its controller would do, and waits with the remaining pods.
        """
        result = StableState()
        pending = {pod.key: pod for pod in waiting}
        self.cluster.add(pod for pod in pending.values() if self.is_batch(pod))
        recreated: set[str] = set()
        for _ in range(MAX_ROUNDS):
            evicted: list[Pod] = []
            changed = self._round(pending, result, evicted)
            result.evicted += evicted
            for pod in evicted:
                if pod.key not in recreated:
                    recreated.add(pod.key)
                    pending[pod.key] = recreated_pod = without_node(pod)
                    if self.is_batch(recreated_pod):
                        self.cluster.add([recreated_pod])
            if not changed and not evicted:
                break
        return result

    def _round(self, pending: dict[str, Pod], result: StableState, evicted: list[Pod]) -> bool:
        """Run both engines once. True if that changed anything."""
        latest, changed = result.latest_decisions(), False
        pod_engine_pods = self.pods.in_queue_order([pod for pod in pending.values() if not self.is_batch(pod)])
        self.pods.pending.update({pod.uid: pod for pod in pod_engine_pods})
        for pod in pod_engine_pods:
            outcome = self.place(pod, evicted)
            self.pods.pending.pop(pod.uid, None)
            if outcome.waits_for:
                self._permit_waiting[pod.uid] = pending.pop(pod.key)
            changed |= self._note(recorded_decision(outcome), latest, pending, result)
            changed |= self._finish_permit_waits(latest, pending, result)
        if any(self.is_batch(pod) for pod in pending.values()):
            session = self.run_session()
            evicted += [self.cluster.pods[key] for key in session.evicts]
            for decision in self.session_decisions(session):
                changed |= self._note(decision, latest, pending, result)
            changed |= bool(session.evicts) or self._has_new_group_phase(session)
            self.cluster.apply(session)
        return changed

    def _finish_permit_waits(
        self, latest: dict[str, RecordedDecision], pending: dict[str, Pod], result: StableState
    ) -> bool:
        """Finish pods whose wait at Permit is over; a rejected pod waits for a node again."""
        changed = False
        for pod, status in self.pods.settle_waiting_pods():
            original = self._permit_waiting.pop(pod.uid)
            if not status.ok:
                self.cluster.remove([pod])
                pending[pod.key] = original
            node = pod.spec.node_name if status.ok else ""
            changed |= self._note(RecordedDecision(pod=pod.key, node=node, why=status.message), latest, pending, result)
        return changed

    def _has_new_group_phase(self, outcome: SessionOutcome) -> bool:
        """Whether the phase of a group changed, so that the next session may continue with it."""
        groups = self.batch.cache.catalog.table(PodGroup)
        return any(groups[key].status.phase != group.status.phase for key, group in outcome.groups.items())

    def _note(
        self,
        decision: RecordedDecision,
        latest: dict[str, RecordedDecision],
        pending: dict[str, Pod],
        result: StableState,
    ) -> bool:
        """Record a decision unless it equals the previous one. True if the pod got a node or a nomination."""
        previous = latest.get(decision.pod)
        if previous is not None and is_same_decision(previous, decision):
            return False
        result.decisions.append(decision)
        if decision.node:
            pending.pop(decision.pod, None)
        return bool(decision.node or decision.nominated)

    def session_decisions(self, outcome: SessionOutcome) -> list[RecordedDecision]:
        """The decisions of a session about each pod with a result, sorted by name."""
        found = {
            key: RecordedDecision(
                pod=key,
                engine=BATCH_ENGINE,
                why=message.message,
                nominated=message.nominated_node,
                session=self.sessions,
            )
            for key, message in outcome.messages.items()
        }
        for key, node in outcome.pipelined.items():
            found[key] = replace(
                found.get(key, RecordedDecision(pod=key, engine=BATCH_ENGINE, session=self.sessions)), nominated=node
            )
        for key, node in outcome.binds.items():
            found[key] = RecordedDecision(pod=key, engine=BATCH_ENGINE, node=node, session=self.sessions)
        evicted = tuple(sorted(outcome.evicts))
        decisions = [found[key] for key in sorted(found)]
        if decisions and evicted:  # a session does not report for which pod it evicts
            decisions[0] = replace(decisions[0], evicted=evicted)
        return decisions


def _default_queue(name: str) -> Queue:
    meta = ObjectMeta(name=name, uid=f"queues//{name}")
    return Queue(metadata=meta, spec=QueueSpec(weight=1), status=QueueStatus(state="Open"))


def recorded_decision(outcome: PlacementOutcome) -> RecordedDecision:
    """Convert the result of a placement to a recorded decision."""
    record = outcome.record
    if outcome.waits_for:
        return RecordedDecision(pod=outcome.pod.key, why=f"waiting at Permit for {' and '.join(outcome.waits_for)}")
    return RecordedDecision(
        pod=outcome.pod.key,
        engine=POD_ENGINE,
        node=outcome.node or "",
        why=outcome.why,
        evicted=outcome.evicted,
        nominated=record.nominated if record is not None and outcome.node is None else "",
    )


def is_same_decision(recorded: RecordedDecision, now: RecordedDecision) -> bool:
    """Whether two decisions are equal: node, victims and, for a waiting pod, reason and nomination.

    The reason is ignored for a pod with a node, and if the recorded decision has none, as observed ones have.
    """
    if (recorded.node, recorded.evicted) != (now.node, now.evicted):
        return False
    if recorded.node:
        return True
    if not recorded.why:
        return True
    return (recorded.why, recorded.nominated) == (now.why, now.nominated)


def without_node(pod: Pod) -> Pod:
    """The pod as it was before it was bound."""
    return replace(
        pod,
        spec=replace(pod.spec, node_name=""),
        status=PodStatus(
            phase="Pending",
            resource_claim_statuses=pod.status.resource_claim_statuses,
            extended_resource_claim_status=pod.status.extended_resource_claim_status,
        ),
        metadata=replace(pod.metadata, deletion_timestamp=None),
    )


def pending_pods(objects: Iterable[KubeObject], offline: OfflineCluster) -> list[Pod]:
    """The pods that wait for one of the engines."""
    return [
        item
        for item in objects
        if isinstance(item, Pod)
        and not item.spec.node_name
        and not item.terminating
        and item.status.phase not in ENDED_PHASES
        and offline.serves(item)
    ]
