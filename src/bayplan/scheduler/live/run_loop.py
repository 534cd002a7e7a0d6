"""Run loop of the pod engine: takes pods from the queue, schedules them and starts their binding cycles.

One task owns all state. It handles watch events, does due work and runs attempts, in slices of a few milliseconds, so
that connections, watches and binding cycles can run in between. An attempt is synchronous code. Waits (Permit, PreBind,
Bind) run in a task of their own. A profile with extenders blocks the loop's next attempt while it calls them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from bayplan.api_writes.observer import SchedulerObserver
from bayplan.api_writes.pod_status_messages import PodEventRecorder
from bayplan.api_writes.writes import ApiWrites
from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.client.informer.event_queue import EventQueue
from bayplan.clock import LoopClock
from bayplan.framework.api.status import error
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.queue import QueuedPodInfo, SchedulingQueue
from bayplan.scheduler.binding.binding_tasks import BindingTasks
from bayplan.scheduler.binding.failure_handler import FailureHandler
from bayplan.scheduler.binding.preemption_executor import PreemptionExecutor
from bayplan.scheduler.cycle.schedule_result import ScheduleResult
from bayplan.scheduler.cycle.scheduling_cycle import CallExtender
from bayplan.scheduler.engine import NewProfiles, PodEngine
from bayplan.scheduler.live.event_handlers import EventHandlers, PodMove
from bayplan.scheduler.live.queue_factory import queue_profiles
from bayplan.scheduler.pod_groups.group_cycle import PodGroupCycle

log = logging.getLogger(__name__)

SLICE_S = 0.004
_MAX_EVENT_SLICES = 25
"""After this many slices of events one slice runs attempts, so that a flood of events does not block them."""
_EVENT_DELAY_PER_POD_S, _MAX_EVENT_DELAY_S = 0.001, 0.02
"""Delay of events for each pod at the binder, and in all. No binder binds a pod in a millisecond, so a new pod waits
for the binder's other pods longer than for this delay."""
_MAX_EVENT_DELAY_WRITING_S, _MAX_EVENT_DELAY_READING_S = 0.1, 0.25
"""The limit when every pod is bound by the binder: a new pod is behind those at the binder, so a longer delay changes
neither order nor latency. The second value applies when this process has no write in progress either: then all events
that can come are results of the binder."""
MovesOfEvent = Callable[[KubeObject | None, KubeObject | None], Iterator[PodMove]]
"""Handles one change; yields the moves of pods in the queue."""


@dataclass(slots=True)
class LiveScheduler:
    """Runs one pod engine. `handle_event` is the handler of every informer; `run` runs until it is cancelled."""

    engine: PodEngine
    queue: SchedulingQueue
    event_handlers: EventHandlers
    bindings: BindingTasks
    failure_handler: FailureHandler
    preemption_executor: PreemptionExecutor
    writes: ApiWrites
    events: PodEventRecorder
    observer: SchedulerObserver
    clock: LoopClock
    wake_event: asyncio.Event
    """Set by every component that makes work for the loop."""
    call_extender: CallExtender | None = None
    pod_group_cycle: PodGroupCycle | None = None
    """Schedules pods of groups; None: they are scheduled one by one."""
    slice_s: float = SLICE_S
    all_by_binder: bool = False
    """Whether all profiles let the binder bind their pods."""
    event_queue: EventQueue = field(init=False)
    _flushing: Iterator[object] | None = None
    _event_slices: int = 0
    _deciding: bool = True
    _slice_ends_s: float = 0.0
    _new_profiles: NewProfiles | None = None

    def __post_init__(self) -> None:
        self.event_queue = EventQueue(self.clock, self.slice_s, self.wake_event)

    @property
    def bind_requests(self) -> BindRequestTracker | None:
        """Tracker of bind requests of this scheduler's pods, if there may be some."""
        return self.event_handlers.bind_requests

    # events

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Queue a watch event."""
        self.event_queue.add(partial(self._handle_event_in_slices, self.event_handlers.moves, old, new))

    def handle_own_write(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Queue a change that this process has written, before the watch delivers it."""
        self.event_queue.add(partial(self._handle_event_in_slices, self.event_handlers.own_write_moves, old, new))

    def wake(self) -> None:
        self.wake_event.set()

    def replace_profiles(self, rebuilt: NewProfiles) -> None:
        """Install new profiles when no attempt is running and the events so far are handled."""
        if self._new_profiles is not None:
            self.engine.discard_profiles(self._new_profiles)
        else:
            self.event_queue.add(self._install)
        self._new_profiles = rebuilt

    def stop_scheduling(self) -> None:
        """Start no further attempt. Binding cycles go on."""
        self._deciding = False

    async def drain(self) -> None:
        """Wait for binding cycles and writes. Pods at Permit are rejected."""
        await self.bindings.drain(self.slice_s)
        await self.writes.drain()

    async def abandon(self) -> None:
        """Cancel all binding cycles and writes. The next process finds out how far they came."""
        await self.bindings.abandon()
        await self.writes.abandon()

    @property
    def pods_in_binding(self) -> int:
        return len(self.bindings.assumed_pods)

    @property
    def has_open_writes(self) -> bool:
        """Whether a write may still take effect, including a binding by an extender."""
        return self.bindings.cycle.writes_in_flight > 0 or self.writes.has_open_writes

    @property
    def is_writing(self) -> bool:
        """Whether bindings, evictions or status writes are in progress."""
        return self.bindings.cycle.writes_in_flight > 0 or self.writes.busy

    @property
    def pods_at_binder(self) -> int:
        """Number of pods that were handed to the binder and are not known to be bound."""
        return 0 if self.bind_requests is None else self.bind_requests.waiting

    @property
    def is_idle(self) -> bool:
        """Whether all events are handled, no binding cycle runs, and no pod is in the active queue."""
        is_working = not self.event_queue.is_empty or self.bindings.assumed_pods
        return not (is_working or self.queue.counts()["active"])

    def max_event_delay_s(self) -> float:
        """How long events may be delayed: not at all, unless all assumed pods are at the binder or on their way there.

        Then the events are results of the binder, for pods that already count on their nodes.
        """
        waiting = self.pods_at_binder
        is_all = self.pods_in_binding == self.bindings.cycle.writes_in_flight + waiting
        if not is_all or self.call_extender is not None or self.writes.busy:
            return 0.0
        max_s = _MAX_EVENT_DELAY_S
        if self.all_by_binder:
            max_s = _MAX_EVENT_DELAY_WRITING_S if self.bindings.cycle.writes_in_flight else _MAX_EVENT_DELAY_READING_S
        return min(waiting * _EVENT_DELAY_PER_POD_S, max_s)

    # loop

    async def run(self) -> None:
        await self.handle_pending_events()  # no attempt runs before the cache is complete
        for _ in self.engine.refresh_in_slices():
            await asyncio.sleep(0)
        while True:
            self.wake_event.clear()
            if await self._run_slice():
                await asyncio.sleep(0)
                continue
            await self._wait_for_work()

    async def handle_pending_events(self) -> None:
        await self.event_queue.handle_pending()

    async def handle_events(self) -> None:
        """Handle events without scheduling: for a process that waits for the leader lease."""
        await self.event_queue.handle_forever()

    async def _run_slice(self) -> bool:
        """Run one slice of work. False if there is no more work."""
        self._slice_ends_s = self.clock.monotonic_s() + self.slice_s
        events_done = self.event_queue.handle_until(self._slice_ends_s)
        if not self.bindings.finish_results(self.slice_s):
            return True
        if not events_done:
            self._event_slices += 1
            if self._event_slices < _MAX_EVENT_SLICES:
                return True
            self._slice_ends_s = self.clock.monotonic_s() + self.slice_s
        self._event_slices = 0
        if not self._run_due_work():
            return True
        while self._deciding and self.bindings.cycle.can_start_write():
            queued = self.queue.pop()
            if queued is None:
                return not self.event_queue.is_empty
            await self._schedule_one(queued)
            if self.event_queue.waiting or self.clock.monotonic_s() > self._slice_ends_s:
                return True
        return not self.event_queue.is_empty

    def _install(self) -> Iterator[object]:
        """Install the new profiles and wake the pods that changed plugins rejected. Assumed pods keep their plugins."""
        rebuilt, self._new_profiles = self._new_profiles, None
        assert rebuilt is not None
        self.bindings.retire(self.engine.install_profiles(rebuilt))
        return self.queue.install_profiles(queue_profiles(self.engine), rebuilt.changed)

    def _handle_event_in_slices(
        self, moves: MovesOfEvent, old: KubeObject | None, new: KubeObject | None
    ) -> Iterator[None]:
        took_s, now_s = 0.0, self.clock.monotonic_s
        start_s = now_s()
        try:
            for move in moves(old, new):
                for _ in move.start(self.queue):
                    took_s += now_s() - start_s
                    yield
                    start_s = now_s()
        except Exception:  # one event that cannot be handled must not stop the rest
            item = new if new is not None else old
            log.exception("cannot handle a change of %s %s", type(item).__name__, item.key if item else "")
        took_s += now_s() - start_s
        for event in self.event_handlers.last_events:
            self.observer.observe_event(event, took_s)

    def _run_due_work(self) -> bool:
        """Do the work that is due or that plugins asked for. False if the slice ended before all was done."""
        now_s = self.clock.monotonic_s()
        deadline_s = self.engine.waiting_pods.next_deadline_s()
        if deadline_s is not None and deadline_s <= now_s:
            for waiting in self.engine.waiting_pods.all():
                waiting.expire(now_s)
        self.preemption_executor.end_pauses()
        if self.pod_group_cycle is not None:
            self.pod_group_cycle.statuses.retry()
        if self.engine.pods_to_activate:
            pods = list(self.engine.pods_to_activate.values())
            self.engine.pods_to_activate.clear()
            self.queue.activate(pods)
        while self._deciding and (failure := self.queue.pop_gate_failure()) is not None:
            self.failure_handler.handle_gate_failure(*failure)
            if self.clock.monotonic_s() > self._slice_ends_s:
                return False
        wakeup_s = self.queue.next_wakeup_s()
        if self._flushing is None and wakeup_s is not None and wakeup_s <= now_s:
            self._flushing = self.queue.flush_in_slices()
        for _ in self._flushing or ():
            if self.clock.monotonic_s() > self._slice_ends_s:
                return False
        self._flushing = None
        return True

    async def _wait_for_work(self) -> None:
        moments = [
            self.queue.next_wakeup_s(),
            self.engine.waiting_pods.next_deadline_s(),
            self.preemption_executor.next_pause_end_s(),
        ]
        if self.pod_group_cycle is not None:
            moments.append(self.pod_group_cycle.statuses.next_retry_s())
        due = [at for at in moments if at is not None]
        if self.engine.pods_to_activate or (self._deciding and self.queue.has_gate_failures):
            due.append(self.clock.monotonic_s())
        if not due:
            await self.wake_event.wait()
            return
        pause_s = max(0.0, min(due) - self.clock.monotonic_s())
        waking = asyncio.ensure_future(self.wake_event.wait())
        resting = asyncio.ensure_future(self.clock.sleep(pause_s))
        try:
            await asyncio.wait((waking, resting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
            resting.cancel()

    # attempts

    async def _schedule_one(self, queued: QueuedPodInfo) -> None:
        """Try a popped pod, or with it the pods of its group."""
        pod = queued.pod
        in_group = self.pod_group_cycle is not None and pod.spec.scheduling_group is not None
        if not in_group and self.failure_handler.skip_pod(queued):
            return
        try:
            if self.pod_group_cycle is not None and in_group:
                await self.pod_group_cycle.attempt(queued)
            else:
                await self._schedule_one_pod(queued)
        except Exception as fault:  # a bug costs the pod one attempt, and never stops the process
            log.exception("a scheduling attempt for pod %s failed", pod.key)
            self.failure_handler.handle(queued, error(f"{type(fault).__name__}: {fault}"), "")

    async def _schedule_one_pod(self, queued: QueuedPodInfo) -> None:
        """Run the scheduling cycle. The pod then starts its binding cycle, or goes back to the queue."""
        queued.attempt_started_s = self.clock.monotonic_s()
        if self.call_extender is None:
            placed = self.engine.place(queued.info)
        else:
            placed = await self.engine.place_with_extenders(queued.info, self.call_extender)
        self.observer.observe_decision(self.clock.monotonic_s() - queued.attempt_started_s)
        if placed.assumed is None:
            self._handle_scheduling_failure(queued, placed)
        else:
            self.bindings.start(queued, placed)

    def _handle_scheduling_failure(self, queued: QueuedPodInfo, placed: ScheduleResult) -> None:
        decision = placed.decision
        was_refused = decision.node is not None  # by Reserve or Permit
        preemption = (
            self.preemption_executor.prepare(queued.pod, decision.writes)
            if decision.writes and not was_refused
            else None
        )
        nominate = "" if was_refused else decision.nominated_node_name
        status_write = self.failure_handler.handle(
            queued, placed.status, nominate, *placed.rejectors, preemption=preemption
        )
        if preemption is not None:
            self.preemption_executor.start(preemption, status_write)

    def activate(self, pod: Pod) -> None:
        """Activate a pod: it is tried at once."""
        self.queue.activate([pod])
        self.wake_event.set()
