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
from bayplan.batch.apply_outcome import Settling
from bayplan.batch.cluster_state import DEFAULT_SCHEDULER
from bayplan.batch.handle import NoNetwork
from bayplan.batch.session.outcome import Outcome as SessionOutcome
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
from bayplan.scheduler.cycle.scheduling_cycle import Decision
from bayplan.scheduler.engine import PodEngine
from bayplan.sim.offline.pod_placement import Outcome, place_one
from bayplan.sim.recordings.recording_file import (
    BATCH,
    PODS,
    Header,
    Verdict,
)
from bayplan.snapshot import NodeColumns, RowVector

MOST_ROUNDS = 20
"""So often the engines have their turn; gangs that push one another out would otherwise never come to rest."""
OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the schedulers of a cluster are set up."""

    configuration: str | None = None
    batch_configuration: str | None = None
    batch_schedulers: tuple[str, ...] = (DEFAULT_SCHEDULER,)
    default_queue: str = DEFAULT_QUEUE
    plugin_folders: tuple[Path, ...] = ()
    trust_writable: bool = False

    @classmethod
    def of(cls, header: Header, folders: Sequence[Path] = (), *, trust_writable: bool = False) -> Setup:
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


class _Nowhere:
    """A way to HTTP services that leads nowhere: what is decided here must not depend on them."""

    def post(self, url: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:  # noqa: ARG002
        raise NoNetwork(f"POST {url} needs a network, and a cluster in memory has none")

    def close(self) -> None: ...


@dataclass(slots=True)
class Rest:
    """What came of letting the engines work until nothing moves any more."""

    verdicts: list[Verdict] = field(default_factory=list)
    """In the order in which they were made; a pod that was tried again has several."""
    evicted: list[Pod] = field(default_factory=list)

    def last(self) -> dict[str, Verdict]:
        """By pod what was decided about it in the end."""
        return {verdict.pod: verdict for verdict in self.verdicts}


class StillCluster:
    """A cluster in memory with both engines."""

    def __init__(self, objects: Iterable[KubeObject], setup: Setup, *, now: datetime, seed: int = 0) -> None:
        known = list(objects)
        if not any(isinstance(item, Queue) and item.name == setup.default_queue for item in known):
            known.append(_first_queue(setup.default_queue))  # as a live engine makes sure that there is one
        registry = setup.registry()
        clock = ManualClock(now)
        chance = random.Random(seed)
        cache = filled_cache(known)
        self.favourites: dict[str, str] = {}
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
            nominations=self.pods.nominations,
            outside=_Nowhere(),
            scheduler_names=setup.batch_schedulers,
            default_queue=setup.default_queue,
        )
        self.batch.handle.favourites = self.favourites
        self.batch_schedulers = frozenset(setup.batch_schedulers)
        if twice := sorted(self.batch_schedulers.intersection(self.pods.scheduler_names)):
            raise UsageError(f"both engines would serve {', '.join(twice)}; give one of them another name")
        self.cluster = Settling(self.batch)
        self.sessions = 0
        for item in known:
            if not isinstance(item, Pod) or item.spec.node_name or item.status.phase in OVER:
                self.cluster.see(item)

    def __enter__(self) -> StillCluster:
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

    def place(self, pod: Pod, evicted: list[Pod]) -> Outcome:
        """Let the pod engine decide; the pod is counted on its node, `evicted` gets those that had to go for it."""

        def evict(victim: Pod) -> None:
            evicted.append(self.cluster.pods.get(victim.key, victim))
            self.cluster.remove([victim])

        self._wanted = self.favourites.get(pod.key, "")
        outcome = place_one(self.pods, pod, evict)
        if outcome.node is not None:
            self.cluster.see(pod.bound_to(outcome.node))
        return outcome

    def tried(self, pod: Pod) -> Decision:
        """What the pod engine would decide; nothing moves."""
        self._wanted = self.favourites.get(pod.key, "")
        return self.pods.try_pod(pod)

    def best_nodes(self, pod: Pod) -> frozenset[str]:
        """Where the pod engine might put the pod: equally good nodes, or none."""
        decision = self.tried(pod)
        if decision.node is None:
            return frozenset()
        if decision.scores is None or decision.nodes is None:
            return frozenset((decision.node,))
        names, total = decision.nodes.names, decision.scores.total
        return frozenset(names[place] for place in np.flatnonzero(total == total.max()).tolist())

    def session(self) -> SessionOutcome:
        """Let the batch engine decide about all it has been told of."""
        self.sessions += 1
        return self.batch.run_session()

    def _tie_break(self, columns: NodeColumns, rows: RowVector | Sequence[int]) -> int:
        wanted = np.flatnonzero(np.asarray(rows) == columns.index.get(self._wanted, -1))
        return int(wanted[0]) if len(wanted) else self._chance.randrange(len(rows))

    # all of them ------------------------------------------------------------------------------------------------

    def come_to_rest(self, waiting: Iterable[Pod]) -> Rest:
        """Decide about all pods that wait, again as long as somebody moves.

        Each round is the pod engine's pods in the order of a queue and then a session. A pod that was evicted is made
        again, once, as its controller would do it, and waits like others.
        """
        rest = Rest()
        left = {pod.key: pod for pod in waiting}
        self.cluster.add(pod for pod in left.values() if self.is_batch(pod))
        back: set[str] = set()
        for _ in range(MOST_ROUNDS):
            gone: list[Pod] = []
            moved = self._round(left, rest, gone)
            rest.evicted += gone
            for pod in gone:
                if pod.key not in back:
                    back.add(pod.key)
                    left[pod.key] = again = unplaced(pod)
                    if self.is_batch(again):
                        self.cluster.add([again])
            if not moved and not gone:
                break
        return rest

    def _round(self, left: dict[str, Pod], rest: Rest, gone: list[Pod]) -> bool:
        """Everybody's turn, once; whether that changed anything."""
        known, moved = rest.last(), False
        single = self.pods.in_queue_order([pod for pod in left.values() if not self.is_batch(pod)])
        self.pods.pending.update({pod.uid: pod for pod in single})
        for pod in single:
            outcome = self.place(pod, gone)
            self.pods.pending.pop(pod.uid, None)
            if outcome.waits_for:
                self._held[pod.uid] = left.pop(pod.key)
            moved |= self._note(verdict_of(outcome), known, left, rest)
            moved |= self._settled(known, left, rest)
        if any(self.is_batch(pod) for pod in left.values()):
            decided = self.session()
            gone += [self.cluster.pods[key] for key in decided.evicts]
            for verdict in self.session_verdicts(decided):
                moved |= self._note(verdict, known, left, rest)
            moved |= bool(decided.evicts) or self._has_entered(decided)
            self.cluster.settle(decided)
        return moved

    def _settled(self, known: dict[str, Verdict], left: dict[str, Pod], rest: Rest) -> bool:
        """Pods at Permit whose wait is over; one that was refused waits again."""
        moved = False
        for pod, status in self.pods.settle():
            waited = self._held.pop(pod.uid)
            if not status.ok:
                self.cluster.remove([pod])
                left[pod.key] = waited
            node = pod.spec.node_name if status.ok else ""
            moved |= self._note(Verdict(pod=pod.key, node=node, why=status.message), known, left, rest)
        return moved

    def _has_entered(self, outcome: SessionOutcome) -> bool:
        """Whether a group is in another phase than before: the next session may go on with it."""
        groups = self.batch.cache.catalog.table(PodGroup)
        return any(groups[key].status.phase != group.status.phase for key, group in outcome.groups.items())

    def _note(self, verdict: Verdict, known: dict[str, Verdict], left: dict[str, Pod], rest: Rest) -> bool:
        """A decision that says nothing new is passed over."""
        before = known.get(verdict.pod)
        if before is not None and same(before, verdict):
            return False
        rest.verdicts.append(verdict)
        if verdict.node:
            left.pop(verdict.pod, None)
        return bool(verdict.node or verdict.nominated)

    def session_verdicts(self, outcome: SessionOutcome) -> list[Verdict]:
        """What a session decided about each pod that it has an opinion of, by name."""
        found = {
            key: Verdict(
                pod=key, engine=BATCH, why=message.message, nominated=message.nominated_node, session=self.sessions
            )
            for key, message in outcome.messages.items()
        }
        for key, node in outcome.pipelined.items():
            found[key] = replace(found.get(key, Verdict(pod=key, engine=BATCH, session=self.sessions)), nominated=node)
        for key, node in outcome.binds.items():
            found[key] = Verdict(pod=key, engine=BATCH, node=node, session=self.sessions)
        evicted = tuple(sorted(outcome.evicts))
        verdicts = [found[key] for key in sorted(found)]
        if verdicts and evicted:  # for whom exactly, a session does not say
            verdicts[0] = replace(verdicts[0], evicted=evicted)
        return verdicts


def _first_queue(name: str) -> Queue:
    meta = ObjectMeta(name=name, uid=f"queues//{name}")
    return Queue(metadata=meta, spec=QueueSpec(weight=1), status=QueueStatus(state="Open"))


def verdict_of(outcome: Outcome) -> Verdict:
    """What became of a pod, as a recording has it."""
    record = outcome.record
    if outcome.waits_for:
        return Verdict(pod=outcome.pod.key, why=f"waiting at Permit for {' and '.join(outcome.waits_for)}")
    return Verdict(
        pod=outcome.pod.key,
        engine=PODS,
        node=outcome.node or "",
        why=outcome.why,
        evicted=outcome.evicted,
        nominated=record.nominated if record is not None and outcome.node is None else "",
    )


def same(recorded: Verdict, now: Verdict) -> bool:
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


def unplaced(pod: Pod) -> Pod:
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


def waiting_in(objects: Iterable[KubeObject], still: StillCluster) -> list[Pod]:
    """The pods that wait for one of the engines."""
    return [
        item
        for item in objects
        if isinstance(item, Pod)
        and not item.spec.node_name
        and not item.terminating
        and item.status.phase not in OVER
        and still.serves(item)
    ]
