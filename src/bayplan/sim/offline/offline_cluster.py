"""Both engines on a cluster that is held in memory: one cache, a clock that stands still, chance that repeats.

Asked by recordings, replays and what-if. Nothing outside this process is touched; what is decided comes true at once.
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
from bayplan.objects.volcano.types import (
    DEFAULT_QUEUE,
    PodGroup,
    Queue,
    QueueSpec,
    QueueStatus,
)
from bayplan.scheduler.cycle.scheduling_cycle import SchedulingDecision
from bayplan.scheduler.engine import PodEngine
from bayplan.sim.offline.pod_placement import PlacementOutcome, place_pod
from bayplan.sim.recordings.recording_file import (
    BATCH_ENGINE,
    POD_ENGINE,
    RecordedDecision,
    RecordingHeader,
)
from bayplan.snapshot import NodeColumns, RowVector

MAX_ROUNDS = 20
"""So often the engines have their turn; gangs that push one another out would otherwise never come to rest."""
ENDED_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """How the schedulers of a cluster are set up."""

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
        """As a recording says; plugins of your own are not in it."""
        return cls(
            configuration=header.configuration,
            batch_configuration=header.batch_configuration,
            batch_schedulers=header.batch_schedulers,
            default_queue=header.default_queue,
            plugin_folders=tuple(folders),
            trust_writable=trust_writable,
        )

    def scheduler_names(self) -> frozenset[str]:
        """Whose pods the two engines serve."""
        profiles = configured(self.configuration, self.registry()).profiles
        return frozenset(profile.scheduler_name for profile in profiles).union(self.batch_schedulers)

    def registry(self) -> Registry:
        return known_plugins(self.plugin_folders, trust_writable=self.trust_writable)


class _NoHttpService:
    """A way to HTTP services that leads nowhere: what is decided here must not depend on them."""

    def post(self, url: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:  # noqa: ARG002
        raise NetworkUnavailable(f"POST {url} needs a network, and a cluster in memory has none")

    def close(self) -> None: ...


@dataclass(slots=True)
class StableState:
    """What came of letting the engines work until nothing moves any more."""

    verdicts: list[RecordedDecision] = field(default_factory=list)
    """In the order in which they were made; a pod that was tried again has several."""
    evicted: list[Pod] = field(default_factory=list)

    def latest_decisions(self) -> dict[str, RecordedDecision]:
        """By pod what was decided about it in the end."""
        return {verdict.pod: verdict for verdict in self.verdicts}


class OfflineCluster:
    """A cluster in memory with both engines."""

    def __init__(self, objects: Iterable[KubeObject], setup: EngineSetup, *, now: datetime, seed: int = 0) -> None:
        known = list(objects)
        if not any(isinstance(item, Queue) and item.name == setup.default_queue for item in known):
            known.append(_default_queue(setup.default_queue))  # as a live engine makes sure that there is one
        registry = setup.registry()
        clock = ManualClock(now)
        chance = random.Random(seed)
        cache = filled_cache(known)
        self.preferred_nodes: dict[str, str] = {}
        """By pod: the node to take where several are equally good."""
        self._wanted = ""
        self._held: dict[str, Pod] = {}  # by uid: pods that Permit holds back, as they were before
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
        if twice := sorted(self.batch_schedulers.intersection(self.pods.scheduler_names)):
            raise UsageError(f"both engines would serve {', '.join(twice)}; give one of them another name")
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
        """Whether one of the engines decides about the pod."""
        return self.is_batch(pod) or self.pods.serves(pod)

    # one decision -----------------------------------------------------------------------------------------------

    def place(self, pod: Pod, evicted: list[Pod]) -> PlacementOutcome:
        """Let the pod engine decide; the pod is counted on its node, `evicted` gets those that had to go for it."""

        def evict(victim: Pod) -> None:
            evicted.append(self.cluster.pods.get(victim.key, victim))
            self.cluster.remove([victim])

        self._wanted = self.preferred_nodes.get(pod.key, "")
        outcome = place_pod(self.pods, pod, evict)
        if outcome.node is not None:
            self.cluster.note_object(pod.bound_to(outcome.node))
        return outcome

    def dry_run(self, pod: Pod) -> SchedulingDecision:
        """What the pod engine would decide; nothing moves."""
        self._wanted = self.preferred_nodes.get(pod.key, "")
        return self.pods.try_pod(pod)

    def best_nodes(self, pod: Pod) -> frozenset[str]:
        """Where the pod engine might put the pod: equally good nodes, or none."""
        decision = self.dry_run(pod)
        if decision.node is None:
            return frozenset()
        if decision.scores is None or decision.nodes is None:
            return frozenset((decision.node,))
        names, total = decision.nodes.names, decision.scores.total
        return frozenset(names[place] for place in np.flatnonzero(total == total.max()).tolist())

    def run_session(self) -> SessionOutcome:
        """Let the batch engine decide about all it has been told of."""
        self.sessions += 1
        return self.batch.run_session()

    def _tie_break(self, columns: NodeColumns, rows: RowVector | Sequence[int]) -> int:
        wanted = np.flatnonzero(np.asarray(rows) == columns.index.get(self._wanted, -1))
        return int(wanted[0]) if len(wanted) else self._chance.randrange(len(rows))

    # all of them ------------------------------------------------------------------------------------------------

    def run_until_stable(self, waiting: Iterable[Pod]) -> StableState:
        """Decide about all pods that wait, again as long as somebody moves.

        Each round is the pod engine's pods in the order of a queue and then a session. A pod that was evicted is made
        again, once, as its controller would do it, and waits like others.
        """
        rest = StableState()
        left = {pod.key: pod for pod in waiting}
        self.cluster.add(pod for pod in left.values() if self.is_batch(pod))
        back: set[str] = set()
        for _ in range(MAX_ROUNDS):
            gone: list[Pod] = []
            moved = self._round(left, rest, gone)
            rest.evicted += gone
            for pod in gone:
                if pod.key not in back:
                    back.add(pod.key)
                    left[pod.key] = again = without_node(pod)
                    if self.is_batch(again):
                        self.cluster.add([again])
            if not moved and not gone:
                break
        return rest

    def _round(self, left: dict[str, Pod], rest: StableState, gone: list[Pod]) -> bool:
        """Everybody's turn, once; whether that changed anything."""
        known, moved = rest.latest_decisions(), False
        single = self.pods.in_queue_order([pod for pod in left.values() if not self.is_batch(pod)])
        self.pods.pending.update({pod.uid: pod for pod in single})
        for pod in single:
            outcome = self.place(pod, gone)
            self.pods.pending.pop(pod.uid, None)
            if outcome.waits_for:
                self._held[pod.uid] = left.pop(pod.key)
            moved |= self._note(recorded_decision(outcome), known, left, rest)
            moved |= self._finish_permit_waits(known, left, rest)
        if any(self.is_batch(pod) for pod in left.values()):
            decided = self.run_session()
            gone += [self.cluster.pods[key] for key in decided.evicts]
            for verdict in self.session_decisions(decided):
                moved |= self._note(verdict, known, left, rest)
            moved |= bool(decided.evicts) or self._has_new_group_phase(decided)
            self.cluster.apply(decided)
        return moved

    def _finish_permit_waits(self, known: dict[str, RecordedDecision], left: dict[str, Pod], rest: StableState) -> bool:
        """Pods at Permit whose wait is over; one that was refused waits again."""
        moved = False
        for pod, status in self.pods.settle_waiting_pods():
            waited = self._held.pop(pod.uid)
            if not status.ok:
                self.cluster.remove([pod])
                left[pod.key] = waited
            node = pod.spec.node_name if status.ok else ""
            moved |= self._note(RecordedDecision(pod=pod.key, node=node, why=status.message), known, left, rest)
        return moved

    def _has_new_group_phase(self, outcome: SessionOutcome) -> bool:
        """Whether a group is in another phase than before: the next session may go on with it."""
        groups = self.batch.cache.catalog.table(PodGroup)
        return any(groups[key].status.phase != group.status.phase for key, group in outcome.groups.items())

    def _note(
        self, verdict: RecordedDecision, known: dict[str, RecordedDecision], left: dict[str, Pod], rest: StableState
    ) -> bool:
        """A decision that says nothing new is passed over."""
        before = known.get(verdict.pod)
        if before is not None and is_same_decision(before, verdict):
            return False
        rest.verdicts.append(verdict)
        if verdict.node:
            left.pop(verdict.pod, None)
        return bool(verdict.node or verdict.nominated)

    def session_decisions(self, outcome: SessionOutcome) -> list[RecordedDecision]:
        """What a session decided about each pod that it has an opinion of, by name."""
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
        verdicts = [found[key] for key in sorted(found)]
        if verdicts and evicted:  # for whom exactly, a session does not say
            verdicts[0] = replace(verdicts[0], evicted=evicted)
        return verdicts


def _default_queue(name: str) -> Queue:
    meta = ObjectMeta(name=name, uid=f"queues//{name}")
    return Queue(metadata=meta, spec=QueueSpec(weight=1), status=QueueStatus(state="Open"))


def recorded_decision(outcome: PlacementOutcome) -> RecordedDecision:
    """What became of a pod, as a recording has it."""
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
    """Whether two decisions are one: where the pod goes, who goes for it and, where it waits, for what.

    Why a pod that has a node has it is a matter of words; an observed decision has none for pods that wait, either.
    """
    if (recorded.node, recorded.evicted) != (now.node, now.evicted):
        return False
    if recorded.node:
        return True
    if not recorded.why:
        return True
    return (recorded.why, recorded.nominated) == (now.why, now.nominated)


def without_node(pod: Pod) -> Pod:
    """The pod as it was before it had a node."""
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


def pending_pods(objects: Iterable[KubeObject], still: OfflineCluster) -> list[Pod]:
    """The pods that wait for one of the engines."""
    return [
        item
        for item in objects
        if isinstance(item, Pod)
        and not item.spec.node_name
        and not item.terminating
        and item.status.phase not in ENDED_PHASES
        and still.serves(item)
    ]
