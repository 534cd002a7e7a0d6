"""The scheduling queue: which pod is next, and when is a pod that failed worth another try?

Pods ready to be tried are active; pods that failed back off for a while; pods that were rejected, or are not let in,
are parked until an event may cure them, and for five minutes at most. What a pod misses while it is being tried is
replayed when it comes back. A plain data structure with kube-scheduler's rules: nothing here waits, starts a timer or
does I/O. One owner calls it: whoever pops, the routing of watch events, and `flush_in_slices` when `next_wakeup_s` says
so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from bayplan.clock import Clock
from bayplan.framework.api.events import ActionType, ClusterEvent, EventResource
from bayplan.framework.api.status import Status
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.object_changes import UNSCHEDULED_POD_ADD, UNSCHEDULED_POD_UPDATE, pod_update_events
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.queue.backoff import PodBackoff
from bayplan.queue.heap import SortKey
from bayplan.queue.hints import HintTable, ObservedEvent, QueueingStrategy
from bayplan.queue.in_flight_events import InFlightPods
from bayplan.queue.pools import QueuePools
from bayplan.queue.queue_profile import QueueProfile
from bayplan.queue.queued_pod import QueuedPodInfo, SubQueue
from bayplan.queue.recorder import QueueCounters, QueueRecorder
from bayplan.queue.settings import QueueSettings
from bayplan.queue.unschedulable_pods import CLASSES_PER_SLICE, REQUEUE_COST
from bayplan.snapshot import PodInfo

log = logging.getLogger(__name__)

FORCE_ACTIVATE = ClusterEvent(EventResource.ANY, ActionType.ALL, "ForceActivate")
UNSCHEDULABLE_TIMEOUT = ClusterEvent(EventResource.ANY, ActionType.ALL, "UnschedulableTimeout")
SCHEDULE_ATTEMPT_FAILURE = "ScheduleAttemptFailure"
BACKOFF_COMPLETE = "BackoffComplete"
POP_FROM_BACKOFF = "PopFromBackoffQ"
_ADDED, _UPDATED = UNSCHEDULED_POD_ADD.name, UNSCHEDULED_POD_UPDATE.name
_FLUSH_EVERY = timedelta(seconds=30)


class SchedulingQueue:
    """Every pod that waits to be placed by one of the profiles.

    `pods` are the pods that wait, by uid, in their newest version; the queue reads it when a pod comes back from an
    attempt or is nominated, and whoever routes watch events keeps it, before telling the queue. `prepare` makes the
    info of a pod, with whatever is worth computing before its turn.
    """

    def __init__(
        self,
        profiles: Mapping[str, QueueProfile],
        order: SortKey,
        *,
        clock: Clock,
        pods: Mapping[str, Pod],
        nominations: Nominator,
        settings: QueueSettings | None = None,
        prepare: Callable[[Pod], PodInfo] = PodInfo,
        recorder: QueueRecorder | None = None,
    ) -> None:
        self._settings = settings = settings or QueueSettings()
        self._clock = clock
        self._started, self._started_s = clock.now(), clock.monotonic_s()
        self._pods = pods
        self._nominations = nominations
        self._prepare = prepare
        self._recorder: QueueRecorder = recorder or QueueCounters()
        self._rule = PodBackoff(settings.initial_backoff_s, settings.max_backoff_s, windowed=settings.pop_from_backoff)
        self._profiles = profiles
        self._hints = self._hint_table(profiles)
        self._pools = QueuePools(order, self._rule, self._hints, self._recorder)
        self._in_flight = InFlightPods(self._recorder)
        self._untold: dict[str, tuple[QueuedPodInfo, Status]] = {}  # by uid
        self._next_flush = self._started + _FLUSH_EVERY

    # what is where ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._pools)

    def get(self, key: str) -> QueuedPodInfo | None:
        """The pod called `namespace/name`, unless it is in flight or unknown."""
        return self._pools.get(key)

    def counts(self) -> dict[str, int]:
        """Pods by pool, as `pending_pods` tells them."""
        return self._pools.counts()

    def pods_in(self, pool: SubQueue) -> list[QueuedPodInfo]:
        """The pods of a pool in its order: for people and tests."""
        return self._pools.pods_in(pool)

    def in_flight(self) -> list[Pod]:
        """Pods that were popped and are not done, in order of popping, as they were then."""
        return list(self._in_flight.pods())

    def waited_s(self, queued: QueuedPodInfo) -> float | None:
        """How long ago a pod could first be tried; None: it never could."""
        first = queued.first_attempt
        return None if first is None else (self._now() - first).total_seconds()

    def backoff_expires_at(self, queued: QueuedPodInfo) -> datetime:
        return self._rule.expires_at(queued)

    @property
    def has_ready(self) -> bool:
        """Whether `pop` may have a pod to give."""
        pools = self._pools
        return bool(pools.active) or (self._settings.pop_from_backoff and bool(pools.backoff))

    @property
    def has_gate_failures(self) -> bool:
        """Whether pods wait to be told that a gate broke."""
        return bool(self._untold)

    def pop_gate_failure(self) -> tuple[QueuedPodInfo, Status] | None:
        """A pod that is kept out by a PreEnqueue plugin that broke, or only refuses since, and its answer.

        No attempt will tell it. Each is here once for every other answer, until somebody takes it: whoever follows
        without deciding has no right to speak.
        """
        return self._untold.pop(next(iter(self._untold))) if self._untold else None

    @property
    def hints(self) -> HintTable:
        """What the plugins have registered for."""
        return self._hints

    # pods come and go -------------------------------------------------------------------------------------------

    def add(self, pod: Pod) -> None:
        """A pod that is to be placed appeared."""
        self._to_active(QueuedPodInfo(self._prepare(pod), self._now()), _ADDED)

    def update(self, old: Pod, new: Pod) -> None:
        """A waiting pod changed. One that is being tried will be held against the change when it comes back."""
        events = pod_update_events(old, new)
        if new.uid in self._in_flight:
            for event in events:
                self._in_flight.add_event(event, old, new)
            return
        queued = self._pools.get(new.key)
        if queued is None:
            self._to_active(QueuedPodInfo(self._prepare(new), self._now()), _UPDATED)
        else:
            self._pools.update(queued, self._prepare(new))
            self._renominate(old, queued.info)
            if queued.pool is SubQueue.UNSCHEDULABLE:
                self._requeue_on_own_update(queued, events, old, new)

    def _requeue_on_own_update(self, queued: QueuedPodInfo, events: list[ClusterEvent], old: Pod, new: Pod) -> None:
        """A parked pod changed, which may be what it needed."""
        for event in events:
            strategy = self._hints.strategy(queued, ObservedEvent(event, old, new))
            if strategy and self._requeue_by_strategy(queued, strategy, event.name) is not SubQueue.UNSCHEDULABLE:
                return

    def delete(self, pod: Pod) -> None:
        """A pod is gone, or has a node. One in flight stays so until its attempt ends."""
        self._nominations.delete_nomination(pod.uid)
        self._untold.pop(pod.uid, None)
        queued = self._pools.get(pod.key)
        if queued is not None:
            self._pools.count_rejectors(queued, -1)
            self._pools.remove(queued)

    # attempts ---------------------------------------------------------------------------------------------------

    def pop(self) -> QueuedPodInfo | None:
        """The next pod to be tried, in flight from now on: it ends with `requeue` or `done`. None: nobody is ready."""
        while True:
            queued = self._pools.active.peek()
            if queued is None and self._settings.pop_from_backoff:
                queued = self._pools.backoff.peek()
                if queued is not None:
                    self._recorder.incoming(SubQueue.ACTIVE.label, POP_FROM_BACKOFF)
            if queued is None or self._take_from_pools(queued):
                return queued

    def pop_pod(self, pod: Pod) -> QueuedPodInfo | None:
        """This pod, wherever it waits, as if it were next. None: it is not here, or not let in."""
        self._activate(pod)
        queued = self._pools.get(pod.key)
        if queued is None or queued.pool is not SubQueue.ACTIVE or not self._take_from_pools(queued):
            return None
        return queued

    def requeue(
        self, queued: QueuedPodInfo, unschedulable: Iterable[str] = (), pending: Iterable[str] = ()
    ) -> SubQueue | None:
        """A pod comes back from its attempt, rejected by these plugins; by none: something went wrong.

        It comes back in its newest version, and is done with in any case. Returns where it went; None: nowhere, since
        it is gone or has a node.
        """
        try:
            newest = self._pods.get(queued.uid)
            if newest is None or newest.spec.node_name:
                return None
            if self._pools.get(newest.key) is not None:
                log.warning("pod %s came back from an attempt and is in the queue already", newest.key)
                return None
            self._note_failure(queued, newest, frozenset(unschedulable), frozenset(pending))
            return self._requeue_by_strategy(queued, self._strategy_of_missed_events(queued), SCHEDULE_ATTEMPT_FAILURE)
        finally:
            self.done(queued.uid)

    def done(self, uid: str) -> None:
        """The attempt is over, or far enough that what happens in the cluster no longer matters to it."""
        self._in_flight.done(uid)

    def _take_from_pools(self, queued: QueuedPodInfo) -> bool:
        self._pools.remove(queued)
        queued.attempts += 1
        if queued.uid in self._in_flight:
            log.error("pod %s is being tried and was queued a second time; the second is dropped", queued.key)
            return False
        self._in_flight.add(queued.pod)
        self._pools.count_rejectors(queued, -1)
        return True

    def _note_failure(
        self, queued: QueuedPodInfo, newest: Pod, unschedulable: frozenset[str], pending: frozenset[str]
    ) -> None:
        if newest is not queued.pod:
            queued.update(self._prepare(newest))
        queued.unschedulable_plugins, queued.pending_plugins, queued.gated_by = unschedulable, pending, ""
        if queued.rejectors:
            queued.unschedulable_count += 1
            queued.consecutive_errors = 0
        else:
            queued.consecutive_errors += 1
        queued.timestamp, queued.backoff_until = self._now(), None
        queued.is_flushed, queued.flushed_at = False, None
        self._pools.count_rejectors(queued, 1)

    def _strategy_of_missed_events(self, queued: QueuedPodInfo) -> QueueingStrategy:
        """What the events that came during the attempt mean for the pod."""
        events = self._in_flight.events_since(queued.uid)
        if not queued.rejectors or self._in_group(queued) or events is None:
            return QueueingStrategy.AFTER_BACKOFF
        best = QueueingStrategy.IMMEDIATELY if queued.pending_plugins else QueueingStrategy.AFTER_BACKOFF
        strategy = QueueingStrategy.SKIP
        for missed in events:
            strategy = max(strategy, self._hints.strategy(queued, ObservedEvent(missed.event, missed.old, missed.new)))
            if strategy >= best:
                break
        return strategy

    # events -----------------------------------------------------------------------------------------------------

    def move_all_on_event(
        self,
        event: ClusterEvent,
        old: KubeObject | None = None,
        new: KubeObject | None = None,
        *,
        at_most: int | None = None,
        spare_own: bool = False,
    ) -> int:
        """Something happened: wake the parked pods that it may help. Returns how many moved."""
        return sum(self.move_in_slices(event, old, new, at_most=at_most, spare_own=spare_own))

    def move_in_slices(
        self,
        event: ClusterEvent,
        old: KubeObject | None = None,
        new: KubeObject | None = None,
        *,
        at_most: int | None = None,
        spare_own: bool = False,
    ) -> Iterator[int]:
        """The same in slices, each the number of pods that it moved: between two of them the queue may be used.

        The event counts from this call on, whenever the slices are taken. `at_most`: only for pods of this priority or
        less; pods in flight replay the event whatever theirs. `spare_own`: the pod that it is about stays where it is.
        """
        if not self._hints.has_registrations(event):
            return iter(())
        self._in_flight.add_event(event, old, new)
        if not self._pools.parked:
            return iter(())  # as it is most of the time, and nobody has to be asked what the event means to them
        occasion = ObservedEvent(event, old, new)
        about = new if isinstance(new, Pod) else old if isinstance(old, Pod) else None
        own = None if about is None else self._pools.get(about.key)
        if own is not None and (own.pool is not SubQueue.UNSCHEDULABLE or not occasion.is_about(own.pod)):
            own = None
        woken = self._pools.parked.pods_to_requeue(occasion, at_most=at_most, own=own, spare_own=spare_own)
        return self._requeue(woken, event.name)

    def _requeue(self, woken: Iterable[tuple[QueuedPodInfo, QueueingStrategy] | None], event: str) -> Iterator[int]:
        moved = 0
        for found in woken:
            if found is None:
                yield moved
                moved = 0
                continue
            queued, strategy = found
            self._pools.remove(queued)
            moved += self._requeue_by_strategy(queued, strategy, event) is not SubQueue.UNSCHEDULABLE
        yield moved

    def activate(self, pods: Iterable[Pod]) -> None:
        """A plugin wants these pods tried now, backing off or not. One in flight is tried again if it fails."""
        for pod in pods:
            if not self._activate(pod) and pod.uid in self._in_flight:
                self._in_flight.add_event(FORCE_ACTIVATE, None, pod)

    def _activate(self, pod: Pod) -> bool:
        queued = self._pools.get(pod.key)
        if queued is None or queued.pool is SubQueue.ACTIVE:
            return False
        backing_off = queued.pool is not SubQueue.UNSCHEDULABLE
        if backing_off:
            self._pools.remove(queued)
        return self._to_active(queued, FORCE_ACTIVATE.name, from_backoff=backing_off)

    def retry(self, pods: Iterable[Pod]) -> None:
        """A write for these parked pods failed: have them tried again after their backoff, and not before, even where
        nothing else is to do. One in flight is tried again if it fails."""
        for pod in pods:
            queued = self._pools.get(pod.key)
            if queued is None:
                if pod.uid in self._in_flight:
                    self._in_flight.add_event(FORCE_ACTIVATE, None, pod)
            elif queued.pool is SubQueue.UNSCHEDULABLE:
                self._pools.remove(queued)
                if not self._rule.is_backing_off(queued, self._now()):
                    self._to_active(queued, SCHEDULE_ATTEMPT_FAILURE)
                elif not self._settings.pop_from_backoff or self._passes_gates(queued, SCHEDULE_ATTEMPT_FAILURE):
                    self._pools.add(queued, SubQueue.ERROR_BACKOFF, SCHEDULE_ATTEMPT_FAILURE)

    # time -------------------------------------------------------------------------------------------------------

    def next_wakeup_s(self) -> float | None:
        """When `flush` is worth calling next, on the clock's `monotonic_s`; None: not before something happens."""
        heads = (self._pools.backoff.peek(), self._pools.error_backoff.peek())
        due = [self._rule.ready_at(head) for head in heads if head is not None]
        if len(self._pools.parked):
            due.append(self._next_flush)
        return self._started_s + (min(due) - self._started).total_seconds() if due else None

    def flush(self) -> int:
        """Do what time demands by now. Returns how many pods moved."""
        return sum(self.flush_in_slices())

    def flush_in_slices(self) -> Iterator[int]:
        """The same in slices, each the number of pods that it moved."""
        yield from self.flush_backoff()
        if self._now() >= self._next_flush:
            self._next_flush = self._now() + _FLUSH_EVERY
            yield from self.flush_unschedulable()

    def flush_backoff(self) -> Iterator[int]:
        """Pods whose backoff is over become active."""
        moved = 0
        for heap in (self._pools.backoff, self._pools.error_backoff):
            while (queued := heap.peek()) is not None and not self._rule.is_backing_off(queued, self._now()):
                self._pools.remove(queued)
                moved += self._to_active(queued, BACKOFF_COMPLETE, from_backoff=True)
                if moved >= CLASSES_PER_SLICE // REQUEUE_COST:
                    yield moved
                    moved = 0
        yield moved

    def flush_unschedulable(self) -> Iterator[int]:
        """Pods that were parked for too long are tried again: a hint may be wrong, and nothing waits for ever."""
        now = self._now()
        return self._requeue(self._expired_pods(list(self._pools.parked), now), UNSCHEDULABLE_TIMEOUT.name)

    def _expired_pods(
        self, pods: Sequence[QueuedPodInfo], now: datetime
    ) -> Iterator[tuple[QueuedPodInfo, QueueingStrategy] | None]:
        """Those of the pods that were parked for too long by then, and still are; None: a slice is over."""
        before, steps, found = now - timedelta(seconds=self._settings.max_unschedulable_s), 0, False
        for queued in pods:
            steps += 1
            if queued.pool is SubQueue.UNSCHEDULABLE and queued.last_attempt_at < before:
                if not found:  # an event like others for pods in flight, where there is anything to tell
                    self._in_flight.add_event(UNSCHEDULABLE_TIMEOUT, None, None)
                found = queued.is_flushed = True
                queued.flushed_at = now
                yield queued, QueueingStrategy.AFTER_BACKOFF
                steps += REQUEUE_COST
            if steps >= CLASSES_PER_SLICE:
                steps = 0
                yield None

    def _now(self) -> datetime:
        """The wall clock as it was at the start, carried on by the one that never jumps: a wall clock that is set
        anew neither holds pods back nor lets them go."""
        return self._started + timedelta(seconds=self._clock.monotonic_s() - self._started_s)

    # nominations ------------------------------------------------------------------------------------------------

    def nominate(self, info: PodInfo, node_name: str | None = None) -> None:
        """Keep room on a node for a pod; None: on the one that its status names, "": on none.

        A pod that is gone, or has a node, is not nominated.
        """
        self._nominations.delete_nomination(info.uid)
        wanted = info.pod.status.nominated_node_name if node_name is None else node_name
        known = self._pods.get(info.uid)
        if wanted and known is not None and not known.spec.node_name:
            self._nominations.nominate(info, wanted)

    def _renominate(self, old: Pod, info: PodInfo) -> None:
        """A pod changed. What only we know stays: the API server may not have been told of the nomination yet."""
        silent = not old.status.nominated_node_name and not info.pod.status.nominated_node_name
        self.nominate(info, self._nominations.node_of(old.uid) if silent else None)

    # profiles ---------------------------------------------------------------------------------------------------

    def install_profiles(self, profiles: Mapping[str, QueueProfile], changed: Iterable[str] = ()) -> Iterator[int]:
        """Go on with other profiles, from this call on. In slices, parked pods are told apart by what their hints look
        at, and those that the `changed` plugins rejected or hold back are woken."""
        plugins = frozenset(changed)
        self._profiles = profiles
        self._hints = self._hint_table(profiles)
        if plugins:  # pods in flight may yet be rejected by one that is no longer there
            self._in_flight.add_event(FORCE_ACTIVATE, None, None)
        return self._regroup(self._pools.parked.regroup(self._hints), plugins)

    def _regroup(self, regrouped: Iterator[QueuedPodInfo], plugins: frozenset[str]) -> Iterator[int]:
        """Have parked pods told apart anew, then wake those whom these plugins rejected."""
        hit = []
        for number, queued in enumerate(regrouped, 1):
            if plugins & queued.rejectors:
                hit.append(queued)
            if number % (CLASSES_PER_SLICE // REQUEUE_COST) == 0:
                yield 0
        yield from self._requeue(
            _still_waiting(hit, lambda queued: queued.pool is SubQueue.UNSCHEDULABLE), FORCE_ACTIVATE.name
        )

    def _hint_table(self, profiles: Mapping[str, QueueProfile]) -> HintTable:
        cures = {name: profile.registered_events for name, profile in profiles.items()}
        return HintTable(cures, self._recorder, self._clock.monotonic_s)

    def close(self) -> None:
        """Nobody is tried any more."""
        for pod in self.in_flight():
            self.done(pod.uid)

    # inside -----------------------------------------------------------------------------------------------------

    def _requeue_by_strategy(self, queued: QueuedPodInfo, strategy: QueueingStrategy, event: str) -> SubQueue:
        """Put a pod where a strategy wants it, unless a gate keeps it out. Returns where it went."""
        if strategy is QueueingStrategy.SKIP:
            self._pools.add(queued, SubQueue.UNSCHEDULABLE, event)
        elif strategy is QueueingStrategy.AFTER_BACKOFF and self._rule.is_backing_off(queued, self._now()):
            self._to_backoff(queued, event)
        else:
            self._to_active(queued, event)
        assert queued.pool is not None
        return queued.pool

    def _to_active(self, queued: QueuedPodInfo, event: str, *, from_backoff: bool = False) -> bool:
        """Make a pod ready, unless a gate keeps it out: then it is parked. Says whether it is ready."""
        if not (from_backoff and self._settings.pop_from_backoff) and not self._passes_gates(queued, event):
            return False
        if queued.first_attempt is None:
            queued.first_attempt = self._now()
        self._pools.add(queued, SubQueue.ACTIVE, event)
        if event in (_ADDED, _UPDATED):
            self.nominate(queued.info)
        return True

    def _to_backoff(self, queued: QueuedPodInfo, event: str) -> None:
        """Let a pod back off. Where it can be popped from there, the gates are asked now.

        Nothing but time brings a pod of a group back, so it is not tried early: it would be tried without end.
        """
        if not self._settings.pop_from_backoff or self._passes_gates(queued, event):
            early = queued.rejectors and not self._in_group(queued)
            self._pools.add(queued, SubQueue.BACKOFF if early else SubQueue.ERROR_BACKOFF, event)

    def _in_group(self, queued: QueuedPodInfo) -> bool:
        return self._settings.pod_groups and queued.pod.spec.scheduling_group is not None

    def _passes_gates(self, queued: QueuedPodInfo, event: str) -> bool:
        """Ask PreEnqueue. A pod that is refused is parked, and the plugin counts among those who rejected it."""
        profile = self._profiles.get(queued.pod.scheduler_name)
        refusal = None if profile is None else profile.pre_enqueue(queued.pod, queued.gated_by)
        if refusal is None or refusal.ok:
            queued.gated_by = ""
            if queued.gate_error:
                queued.gate_error = ""
                self._untold.pop(queued.uid, None)
            return True
        self._note_gate_error(queued, refusal)
        plugin = queued.gated_by = refusal.plugin
        if plugin not in queued.rejectors:
            queued.unschedulable_plugins |= {plugin}
            self._recorder.rejected(plugin, queued.pod.scheduler_name, 1)
        queued.is_flushed = False
        present = self._pools.get(queued.key)
        if (
            present is None or present.pool is SubQueue.UNSCHEDULABLE
        ):  # else an older entry of that name is further already
            self._pools.add(queued, SubQueue.UNSCHEDULABLE, event)
        return False

    def _note_gate_error(self, queued: QueuedPodInfo, refusal: Status) -> None:
        """Have a pod told that a gate broke, and that it no longer does, unless it was told so before."""
        text = "" if refusal.rejected else refusal.message
        if text != queued.gate_error:
            queued.gate_error = text
            self._untold[queued.uid] = queued, refusal


def _still_waiting(
    pods: Iterable[QueuedPodInfo], still_waits: Callable[[QueuedPodInfo], bool]
) -> Iterator[tuple[QueuedPodInfo, QueueingStrategy] | None]:
    """Pods that are to be woken, in slices; what happens between two of them may have taken some away."""
    for number, queued in enumerate(pods, 1):
        if still_waits(queued):
            yield queued, QueueingStrategy.AFTER_BACKOFF
        if number % (CLASSES_PER_SLICE // REQUEUE_COST) == 0:
            yield None
