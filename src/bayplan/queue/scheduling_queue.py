"""Scheduling queue: selects the next pod, and decides when a failed pod is retried.

Ready pods are active. Failed pods back off for a while. Rejected and gated pods are unschedulable until a registered
event, and for five minutes at most. Events during an attempt are replayed when the pod returns. The queue is a plain
data structure with kube-scheduler's rules: it does not wait, starts no timer and does no I/O. One owner calls it: the
scheduling loop that pops pods, the event handlers, and `flush_in_slices` at the time of `next_wakeup_s`.
"""

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
    """Every pod that waits to be scheduled by one of the profiles.

    `pods` maps the uids of the waiting pods to their latest versions. The event handlers update it before they call the
    queue. The queue reads it when a pod returns from an attempt or is nominated. `prepare` builds the info of a pod,
    with everything that is worth computing before its attempt.
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
        self._backoff_rule = PodBackoff(
            settings.initial_backoff_s, settings.max_backoff_s, windowed=settings.pop_from_backoff
        )
        self._profiles = profiles
        self._hints = self._hint_table(profiles)
        self._pools = QueuePools(order, self._backoff_rule, self._hints, self._recorder)
        self._in_flight = InFlightPods(self._recorder)
        self._gate_failures: dict[str, tuple[QueuedPodInfo, Status]] = {}  # by uid
        self._next_flush = self._started + _FLUSH_EVERY

    def __len__(self) -> int:
        return len(self._pools)

    def get(self, key: str) -> QueuedPodInfo | None:
        """Return the pod with this `namespace/name`, unless it is in flight or unknown."""
        return self._pools.get(key)

    def counts(self) -> dict[str, int]:
        """Return the number of pods by sub-queue, as in the metric `pending_pods`."""
        return self._pools.counts()

    def pods_in(self, pool: SubQueue) -> list[QueuedPodInfo]:
        """Return the pods of a sub-queue in order, for output and tests."""
        return self._pools.pods_in(pool)

    def in_flight(self) -> list[Pod]:
        """Return the pods in flight in order of popping, in their version at that time."""
        return list(self._in_flight.pods())

    def waited_s(self, queued: QueuedPodInfo) -> float | None:
        """Return the time since the pod was first ready; None if it never was."""
        first = queued.first_attempt
        return None if first is None else (self._now() - first).total_seconds()

    def backoff_expires_at(self, queued: QueuedPodInfo) -> datetime:
        return self._backoff_rule.expires_at(queued)

    @property
    def has_ready(self) -> bool:
        """Whether `pop` may return a pod."""
        pools = self._pools
        return bool(pools.active) or (self._settings.pop_from_backoff and bool(pools.backoff))

    @property
    def has_gate_failures(self) -> bool:
        """Whether `pop_gate_failure` may return a pod."""
        return bool(self._gate_failures)

    def pop_gate_failure(self) -> tuple[QueuedPodInfo, Status] | None:
        """Return a pod whose PreEnqueue plugin failed, or rejects it again after a failure, with the status.

        No attempt reports this. A pod is stored once for each changed status until the caller takes it: a standby
        scheduler must not write statuses.
        """
        return self._gate_failures.pop(next(iter(self._gate_failures))) if self._gate_failures else None

    @property
    def hints(self) -> HintTable:
        """The registered events of all plugins."""
        return self._hints

    def add(self, pod: Pod) -> None:
        self._to_active(QueuedPodInfo(self._prepare(pod), self._now()), _ADDED)

    def update(self, old: Pod, new: Pod) -> None:
        """Store a new version of a waiting pod. A pod in flight replays the change when it returns."""
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
        """Requeue an unschedulable pod if its own change may make it schedulable."""
        for event in events:
            strategy = self._hints.strategy(queued, ObservedEvent(event, old, new))
            if strategy and self._requeue_by_strategy(queued, strategy, event.name) is not SubQueue.UNSCHEDULABLE:
                return

    def delete(self, pod: Pod) -> None:
        """Remove a deleted or scheduled pod. A pod in flight stays in flight until its attempt ends."""
        self._nominations.delete_nomination(pod.uid)
        self._gate_failures.pop(pod.uid, None)
        queued = self._pools.get(pod.key)
        if queued is not None:
            self._pools.count_rejectors(queued, -1)
            self._pools.remove(queued)

    def pop(self) -> QueuedPodInfo | None:
        """Return the next pod, which is in flight until `requeue` or `done`. None: no pod is ready."""
        while True:
            queued = self._pools.active.peek()
            if queued is None and self._settings.pop_from_backoff:
                queued = self._pools.backoff.peek()
                if queued is not None:
                    self._recorder.incoming(SubQueue.ACTIVE.label, POP_FROM_BACKOFF)
            if queued is None or self._take_from_pools(queued):
                return queued

    def pop_pod(self, pod: Pod) -> QueuedPodInfo | None:
        """Pop this pod from any sub-queue. None: it is not in the queue, or it is gated."""
        self._activate(pod)
        queued = self._pools.get(pod.key)
        if queued is None or queued.pool is not SubQueue.ACTIVE or not self._take_from_pools(queued):
            return None
        return queued

    def requeue(
        self, queued: QueuedPodInfo, unschedulable: Iterable[str] = (), pending: Iterable[str] = ()
    ) -> SubQueue | None:
        """Return a pod from its attempt, rejected by these plugins. Without plugins the attempt ended with an error.

        The pod returns in its latest version, and its attempt is done in any case. Returns its sub-queue; None if the
        pod is deleted or has a node.
        """
        try:
            newest = self._pods.get(queued.uid)
            if newest is None or newest.spec.node_name:
                return None
            if self._pools.get(newest.key) is not None:
                log.warning("pod %s came back from an attempt and is in the queue already", newest.key)
                return None
            self._record_failure(queued, newest, frozenset(unschedulable), frozenset(pending))
            return self._requeue_by_strategy(queued, self._missed_events_strategy(queued), SCHEDULE_ATTEMPT_FAILURE)
        finally:
            self.done(queued.uid)

    def done(self, uid: str) -> None:
        """End the attempt, or its part that cluster events can affect."""
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

    def _record_failure(
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

    def _missed_events_strategy(self, queued: QueuedPodInfo) -> QueueingStrategy:
        """Return the strongest strategy of the events during the attempt."""
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

    def move_all_on_event(
        self,
        event: ClusterEvent,
        old: KubeObject | None = None,
        new: KubeObject | None = None,
        *,
        at_most: int | None = None,
        skip_self: bool = False,
    ) -> int:
        """Move the unschedulable pods that the event may help. Returns how many moved."""
        return sum(self.move_in_slices(event, old, new, at_most=at_most, skip_self=skip_self))

    def move_in_slices(
        self,
        event: ClusterEvent,
        old: KubeObject | None = None,
        new: KubeObject | None = None,
        *,
        at_most: int | None = None,
        skip_self: bool = False,
    ) -> Iterator[int]:
        """Like `move_all_on_event`, in slices: yields the number of moved pods. The queue may be used between slices.

        The event counts from this call on, whenever the slices are run. `at_most`: only pods of this priority or less
        move; pods in flight replay the event with any priority. `skip_self`: the pod of the event stays where it is.
        """
        if not self._hints.has_registrations(event):
            return iter(())
        self._in_flight.add_event(event, old, new)
        if not self._pools.unschedulable:
            return iter(())  # the usual case; no hint needs to run
        observed = ObservedEvent(event, old, new)
        event_pod = new if isinstance(new, Pod) else old if isinstance(old, Pod) else None
        own = None if event_pod is None else self._pools.get(event_pod.key)
        if own is not None and (own.pool is not SubQueue.UNSCHEDULABLE or not observed.is_about(own.pod)):
            own = None
        candidates = self._pools.unschedulable.pods_to_requeue(observed, at_most=at_most, own=own, skip_self=skip_self)
        return self._requeue_candidates(candidates, event.name)

    def _requeue_candidates(
        self, candidates: Iterable[tuple[QueuedPodInfo, QueueingStrategy] | None], event: str
    ) -> Iterator[int]:
        moved = 0
        for candidate in candidates:
            if candidate is None:
                yield moved
                moved = 0
                continue
            queued, strategy = candidate
            self._pools.remove(queued)
            moved += self._requeue_by_strategy(queued, strategy, event) is not SubQueue.UNSCHEDULABLE
        yield moved

    def activate(self, pods: Iterable[Pod]) -> None:
        """Activate pods for a plugin, even if they are in backoff. A pod in flight is retried if it fails."""
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
        """Requeue unschedulable pods for which a write failed.

        They return after their backoff, and not earlier even if no other pod is ready. A pod in flight is retried if it
        fails.
        """
        for pod in pods:
            queued = self._pools.get(pod.key)
            if queued is None:
                if pod.uid in self._in_flight:
                    self._in_flight.add_event(FORCE_ACTIVATE, None, pod)
            elif queued.pool is SubQueue.UNSCHEDULABLE:
                self._pools.remove(queued)
                if not self._backoff_rule.is_backing_off(queued, self._now()):
                    self._to_active(queued, SCHEDULE_ATTEMPT_FAILURE)
                elif not self._settings.pop_from_backoff or self._passes_gates(queued, SCHEDULE_ATTEMPT_FAILURE):
                    self._pools.add(queued, SubQueue.ERROR_BACKOFF, SCHEDULE_ATTEMPT_FAILURE)

    def next_wakeup_s(self) -> float | None:
        """Return the time at which `flush` must be called next, on `monotonic_s`. None: not before the next event."""
        heads = (self._pools.backoff.peek(), self._pools.error_backoff.peek())
        due = [self._backoff_rule.ready_at(head) for head in heads if head is not None]
        if len(self._pools.unschedulable):
            due.append(self._next_flush)
        return self._started_s + (min(due) - self._started).total_seconds() if due else None

    def flush(self) -> int:
        """Move the pods whose time has come. Returns how many moved."""
        return sum(self.flush_in_slices())

    def flush_in_slices(self) -> Iterator[int]:
        """Like `flush`, in slices: yields the number of moved pods."""
        yield from self.flush_backoff()
        if self._now() >= self._next_flush:
            self._next_flush = self._now() + _FLUSH_EVERY
            yield from self.flush_unschedulable()

    def flush_backoff(self) -> Iterator[int]:
        moved = 0
        for heap in (self._pools.backoff, self._pools.error_backoff):
            while (queued := heap.peek()) is not None and not self._backoff_rule.is_backing_off(queued, self._now()):
                self._pools.remove(queued)
                moved += self._to_active(queued, BACKOFF_COMPLETE, from_backoff=True)
                if moved >= CLASSES_PER_SLICE // REQUEUE_COST:
                    yield moved
                    moved = 0
        yield moved

    def flush_unschedulable(self) -> Iterator[int]:
        """Retry pods that were unschedulable for too long: a hint may be wrong, and no pod waits forever."""
        now = self._now()
        return self._requeue_candidates(
            self._expired_pods(list(self._pools.unschedulable), now), UNSCHEDULABLE_TIMEOUT.name
        )

    def _expired_pods(
        self, pods: Sequence[QueuedPodInfo], now: datetime
    ) -> Iterator[tuple[QueuedPodInfo, QueueingStrategy] | None]:
        """Yield the given pods that have been unschedulable for too long and still are; None at the end of a slice."""
        deadline, steps, any_expired = now - timedelta(seconds=self._settings.max_unschedulable_s), 0, False
        for queued in pods:
            steps += 1
            if queued.pool is SubQueue.UNSCHEDULABLE and queued.last_attempt_at < deadline:
                if not any_expired:  # record the event for pods in flight, once
                    self._in_flight.add_event(UNSCHEDULABLE_TIMEOUT, None, None)
                any_expired = queued.is_flushed = True
                queued.flushed_at = now
                yield queued, QueueingStrategy.AFTER_BACKOFF
                steps += REQUEUE_COST
            if steps >= CLASSES_PER_SLICE:
                steps = 0
                yield None

    def _now(self) -> datetime:
        """Return the wall clock of the start plus the monotonic time since then.

        Changes of the wall clock have no effect.
        """
        return self._started + timedelta(seconds=self._clock.monotonic_s() - self._started_s)

    def nominate(self, info: PodInfo, node_name: str | None = None) -> None:
        """Nominate a pod to a node. None: the node in its status, "": no node.

        A deleted or scheduled pod is not nominated.
        """
        self._nominations.delete_nomination(info.uid)
        target_node = info.pod.status.nominated_node_name if node_name is None else node_name
        latest_pod = self._pods.get(info.uid)
        if target_node and latest_pod is not None and not latest_pod.spec.node_name:
            self._nominations.nominate(info, target_node)

    def _renominate(self, old: Pod, info: PodInfo) -> None:
        """Update the nomination of a changed pod. A nomination that is not yet in the pod's status stays."""
        has_no_status = not old.status.nominated_node_name and not info.pod.status.nominated_node_name
        self.nominate(info, self._nominations.node_of(old.uid) if has_no_status else None)

    def install_profiles(self, profiles: Mapping[str, QueueProfile], changed: Iterable[str] = ()) -> Iterator[int]:
        """Replace the profiles from this call on.

        In slices, unschedulable pods are regrouped by the new hint keys, and pods that the `changed` plugins rejected
        or gate are requeued.
        """
        plugins = frozenset(changed)
        self._profiles = profiles
        self._hints = self._hint_table(profiles)
        if plugins:  # a pod in flight may still be rejected by a removed plugin
            self._in_flight.add_event(FORCE_ACTIVATE, None, None)
        return self._regroup(self._pools.unschedulable.regroup(self._hints), plugins)

    def _regroup(self, regrouped: Iterator[QueuedPodInfo], plugins: frozenset[str]) -> Iterator[int]:
        """Regroup the unschedulable pods, then requeue the pods that these plugins rejected."""
        rejected = []
        for number, queued in enumerate(regrouped, 1):
            if plugins & queued.rejectors:
                rejected.append(queued)
            if number % (CLASSES_PER_SLICE // REQUEUE_COST) == 0:
                yield 0
        yield from self._requeue_candidates(
            _filter_waiting(rejected, lambda queued: queued.pool is SubQueue.UNSCHEDULABLE), FORCE_ACTIVATE.name
        )

    def _hint_table(self, profiles: Mapping[str, QueueProfile]) -> HintTable:
        registrations = {name: profile.registered_events for name, profile in profiles.items()}
        return HintTable(registrations, self._recorder, self._clock.monotonic_s)

    def close(self) -> None:
        """End all attempts."""
        for pod in self.in_flight():
            self.done(pod.uid)

    def _requeue_by_strategy(self, queued: QueuedPodInfo, strategy: QueueingStrategy, event: str) -> SubQueue:
        """Add a pod to the sub-queue of a strategy, unless it is gated. Returns its sub-queue."""
        if strategy is QueueingStrategy.SKIP:
            self._pools.add(queued, SubQueue.UNSCHEDULABLE, event)
        elif strategy is QueueingStrategy.AFTER_BACKOFF and self._backoff_rule.is_backing_off(queued, self._now()):
            self._to_backoff(queued, event)
        else:
            self._to_active(queued, event)
        assert queued.pool is not None
        return queued.pool

    def _to_active(self, queued: QueuedPodInfo, event: str, *, from_backoff: bool = False) -> bool:
        """Activate a pod, or add it to the unschedulable pods if it is gated. Returns whether it is active."""
        if not (from_backoff and self._settings.pop_from_backoff) and not self._passes_gates(queued, event):
            return False
        if queued.first_attempt is None:
            queued.first_attempt = self._now()
        self._pools.add(queued, SubQueue.ACTIVE, event)
        if event in (_ADDED, _UPDATED):
            self.nominate(queued.info)
        return True

    def _to_backoff(self, queued: QueuedPodInfo, event: str) -> None:
        """Add a pod to a backoff queue. If it can be popped from there, PreEnqueue runs now.

        A pod of a group is never popped early: only time brings it back, so it would be retried without end.
        """
        if not self._settings.pop_from_backoff or self._passes_gates(queued, event):
            early = queued.rejectors and not self._in_group(queued)
            self._pools.add(queued, SubQueue.BACKOFF if early else SubQueue.ERROR_BACKOFF, event)

    def _in_group(self, queued: QueuedPodInfo) -> bool:
        return self._settings.pod_groups and queued.pod.spec.scheduling_group is not None

    def _passes_gates(self, queued: QueuedPodInfo, event: str) -> bool:
        """Run PreEnqueue. A rejected pod becomes unschedulable, and the plugin becomes one of its rejectors."""
        profile = self._profiles.get(queued.pod.scheduler_name)
        status = None if profile is None else profile.pre_enqueue(queued.pod, queued.gated_by)
        if status is None or status.ok:
            queued.gated_by = ""
            if queued.gate_error:
                queued.gate_error = ""
                self._gate_failures.pop(queued.uid, None)
            return True
        self._record_gate_error(queued, status)
        plugin = queued.gated_by = status.plugin
        if plugin not in queued.rejectors:
            queued.unschedulable_plugins |= {plugin}
            self._recorder.add_rejected(plugin, queued.pod.scheduler_name, 1)
        queued.is_flushed = False
        present = self._pools.get(queued.key)
        # otherwise an older pod of that name is already further
        if present is None or present.pool is SubQueue.UNSCHEDULABLE:
            self._pools.add(queued, SubQueue.UNSCHEDULABLE, event)
        return False

    def _record_gate_error(self, queued: QueuedPodInfo, status: Status) -> None:
        """Store a changed PreEnqueue failure of a pod for `pop_gate_failure`, also its end."""
        text = "" if status.rejected else status.message
        if text != queued.gate_error:
            queued.gate_error = text
            self._gate_failures[queued.uid] = queued, status


def _filter_waiting(
    pods: Iterable[QueuedPodInfo], is_waiting: Callable[[QueuedPodInfo], bool]
) -> Iterator[tuple[QueuedPodInfo, QueueingStrategy] | None]:
    """Yield the pods that still wait, in slices: pods may be removed between two slices."""
    for number, queued in enumerate(pods, 1):
        if is_waiting(queued):
            yield queued, QueueingStrategy.AFTER_BACKOFF
        if number % (CLASSES_PER_SLICE // REQUEUE_COST) == 0:
            yield None
