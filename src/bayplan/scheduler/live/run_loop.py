"""Run loop of the pod engine: takes pods from the queue, schedules them and starts their binding cycles.

One task owns all state. It handles watch events, does due work and runs attempts, in slices of a few milliseconds, so
that connections, watches and binding cycles can run in between. An attempt is synchronous code. Waits (Permit, PreBind,
Bind) run in a task of their own. A profile with extenders blocks the loop's next attempt while it calls them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayplan.api_writes.observer import ERROR, SCHEDULED, UNSCHEDULABLE, NoSchedulerObserver, SchedulerObserver
from bayplan.api_writes.pod_status_messages import PodEventRecorder, record_scheduled, record_skipped
from bayplan.api_writes.writes import ApiWrites
from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.clock import LoopClock
from bayplan.framework.api.status import Status, error
from bayplan.framework.runtime.profile import close_all
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.queue import QueuedPodInfo, SchedulingQueue
from bayplan.scheduler.binding.binding_cycle import BindingCycles
from bayplan.scheduler.binding.failure_handler import FailureHandler
from bayplan.scheduler.binding.preemption_executor import PreemptionExecutor
from bayplan.scheduler.cycle.scheduling_cycle import CallExtender
from bayplan.scheduler.engine import AssumedPod, NewProfiles, PodEngine, ScheduleResult
from bayplan.scheduler.live.event_handlers import EventHandlers
from bayplan.scheduler.live.queue_factory import queue_profiles
from bayplan.scheduler.pod_groups.group_cycle import PodGroupCycle
from bayplan.telemetry.logs import OUTCOME, ObjectRef, StructuredLog

log = logging.getLogger(__name__)
outcomes = StructuredLog(__name__)

SLICE_S = 0.004
_MAX_WRITES_IN_FLIGHT, _RESUME_WRITES_IN_FLIGHT = 1024, 512
"""Limit of bindings that wait to be written; more pods stay in the queue, where priority counts. At the limit no
attempt runs until the number has fallen to the second value: one attempt after each written binding costs half as much
again as hundreds in a row, and the writes keep the connection busy meanwhile."""
_MAX_EVENT_SLICES = 25
"""After this many slices of events one slice runs attempts, so that a flood of events does not block them."""
_EVENT_DELAY_PER_POD_S, _MAX_EVENT_DELAY_S = 0.001, 0.02
"""Delay of events for each pod at the binder, and in all. No binder binds a pod in a millisecond, so a new pod waits
for the binder's other pods longer than for this delay."""
_MAX_EVENT_DELAY_WRITING_S, _MAX_EVENT_DELAY_READING_S = 0.1, 0.25
"""The limit when every pod is bound by the binder: a new pod is behind those at the binder, so a longer delay changes
neither order nor latency. The second value applies when this process has no write in progress either: then all events
that can come are results of the binder."""
_NO_PLUGINS: frozenset[str] = frozenset()
EventHandler = Callable[[KubeObject | None, KubeObject | None], Iterator[int]]
"""Handles one watch event in slices."""


@dataclass(slots=True)
class RetiredPlugins:
    """Replaced plugins, and the assumed pods that still need them. The plugins are closed after the last such pod."""

    plugins: Sequence[Any]
    pods: set[AssumedPod]

    def release_pod(self, assumed: AssumedPod) -> bool:
        self.pods.discard(assumed)
        return self.close_if_idle()

    def close_if_idle(self) -> bool:
        if self.pods:
            return False
        close_all(self.plugins)
        self.plugins = ()
        return True


@dataclass(slots=True)
class LiveScheduler:
    """Runs one pod engine. `handle_event` is the handler of every informer; `run` runs until it is cancelled."""

    engine: PodEngine
    queue: SchedulingQueue
    event_handlers: EventHandlers
    binding_cycles: BindingCycles
    failure_handler: FailureHandler
    preemption_executor: PreemptionExecutor
    writes: ApiWrites
    events: PodEventRecorder
    clock: LoopClock
    call_extender: CallExtender | None = None
    pod_group_cycle: PodGroupCycle | None = None
    """Schedules pods of groups; None: they are scheduled one by one."""
    observer: SchedulerObserver = field(default_factory=NoSchedulerObserver)
    slice_s: float = SLICE_S
    all_by_binder: bool = False
    """Whether all profiles let the binder bind their pods."""
    _events: deque[tuple[EventHandler, KubeObject | None, KubeObject | None]] = field(default_factory=deque)
    _current_handler: Iterator[int] | None = None
    _flushing: Iterator[int] | None = None
    _event_slices: int = 0
    _wake_event: asyncio.Event = field(default_factory=asyncio.Event)
    _assumed_pods: set[AssumedPod] = field(default_factory=set)
    _binding_tasks: dict[asyncio.Task[None], AssumedPod] = field(default_factory=dict)
    _deciding: bool = True
    _write_limit_reached: bool = False
    _slice_ends_s: float = 0.0
    _new_profiles: NewProfiles | None = None
    _retired: list[RetiredPlugins] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.binding_cycles.on_write_finished = self._on_write_finished
        self.binding_cycles.on_assigned, self.binding_cycles.on_finished, self.binding_cycles.wake_loop = (
            self._on_assigned,
            self._on_pod_finished,
            self.wake,
        )

    @property
    def bind_requests(self) -> BindRequestTracker | None:
        """Tracker of bind requests of this scheduler's pods, if there may be some."""
        return self.event_handlers.bind_requests

    # events

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Queue a watch event."""
        self._events.append((self.event_handlers.handle_in_slices, old, new))
        self._wake_event.set()

    def handle_own_write(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Queue a change that this process has written, before the watch delivers it."""
        self._events.append((self.event_handlers.handle_own_write, old, new))
        self._wake_event.set()

    def wake(self) -> None:
        self._wake_event.set()

    def replace_profiles(self, rebuilt: NewProfiles) -> None:
        """Install new profiles when no attempt is running and all queued events are handled."""
        if self._new_profiles is not None:
            self.engine.discard_profiles(self._new_profiles)
        self._new_profiles = rebuilt
        self._wake_event.set()

    def stop_scheduling(self) -> None:
        """Start no further attempt. Binding cycles go on."""
        self._deciding = False

    async def drain(self) -> None:
        """Wait for binding cycles and writes. Pods at Permit are rejected."""
        for waiting in self.engine.waiting_pods.all():
            waiting.preempt("", "the scheduler stops")
        while not self._finish_bindings_slice():
            await asyncio.sleep(0)
        self.binding_cycles.stop_tracking()
        while self._binding_tasks:
            await asyncio.wait(self._binding_tasks)  # cancelling this wait cancels no binding
        await self.writes.drain()

    async def abandon(self) -> None:
        """Cancel all binding cycles and writes. The next process finds out how far they came."""
        self.binding_cycles.stop_tracking()
        for task in self._binding_tasks:
            task.cancel()
        while self._binding_tasks:
            await asyncio.wait(self._binding_tasks)  # cancelling this wait cancels no binding
        await self.writes.abandon()

    @property
    def pods_in_binding(self) -> int:
        """Number of pods in a binding cycle."""
        return len(self._assumed_pods)

    @property
    def has_open_writes(self) -> bool:
        """Whether a write may still take effect, including a binding by an extender."""
        return self.binding_cycles.writes_in_flight > 0 or self.writes.has_open_writes

    @property
    def is_writing(self) -> bool:
        """Whether bindings, evictions or status writes are in progress."""
        return self.binding_cycles.writes_in_flight > 0 or self.writes.busy

    @property
    def pods_at_binder(self) -> int:
        """Number of pods that were handed to the binder and are not known to be bound."""
        return 0 if self.bind_requests is None else self.bind_requests.waiting

    @property
    def is_idle(self) -> bool:
        """Whether all events are handled, no binding cycle runs, and no pod is in the active queue."""
        is_working = self._events or self._new_profiles or self._current_handler or self._assumed_pods
        return not (is_working or self.queue.counts()["active"])

    def max_event_delay_s(self) -> float:
        """How long events may be delayed: not at all, unless all assumed pods are at the binder or on their way there.

        Then the events are results of the binder, for pods that already count on their nodes.
        """
        waiting = self.pods_at_binder
        is_all = self.pods_in_binding == self.binding_cycles.writes_in_flight + waiting
        if not is_all or self.call_extender is not None or self.writes.busy:
            return 0.0
        max_s = _MAX_EVENT_DELAY_S
        if self.all_by_binder:
            max_s = _MAX_EVENT_DELAY_WRITING_S if self.binding_cycles.writes_in_flight else _MAX_EVENT_DELAY_READING_S
        return min(waiting * _EVENT_DELAY_PER_POD_S, max_s)

    # loop

    async def run(self) -> None:
        await self.handle_pending_events()  # no attempt runs before the cache is complete
        for _ in self.engine.refresh_in_slices():
            await asyncio.sleep(0)
        while True:
            self._wake_event.clear()
            if await self._run_slice():
                await asyncio.sleep(0)
                continue
            await self._wait_for_work()

    async def handle_pending_events(self) -> None:
        """Handle all events that are queued."""
        while not self._handle_events_slice():
            await asyncio.sleep(0)

    async def handle_events(self) -> None:
        """Handle events without scheduling: for a process that waits for the leader lease."""
        while True:
            self._wake_event.clear()
            if self._handle_events_slice():
                await self._wake_event.wait()
            else:
                await asyncio.sleep(0)

    async def _run_slice(self) -> bool:
        """Run one slice of work. False if there is no more work."""
        events_done = self._handle_events_slice()
        if not self._finish_bindings_slice():
            return True
        if not events_done:
            self._event_slices += 1
            if self._event_slices < _MAX_EVENT_SLICES:
                return True
            self._slice_ends_s = self.clock.monotonic_s() + self.slice_s
        self._event_slices = 0
        if not self._run_due_work():
            return True
        while self._deciding and self._can_start_write():
            queued = self.queue.pop()
            if queued is None:
                return bool(self._events)
            await self._attempt(queued)
            if self._events or self.clock.monotonic_s() > self._slice_ends_s:
                return True
        return bool(self._events)

    def _can_start_write(self) -> bool:
        self._write_limit_reached = self.binding_cycles.writes_in_flight >= (
            _RESUME_WRITES_IN_FLIGHT if self._write_limit_reached else _MAX_WRITES_IN_FLIGHT
        )
        return not self._write_limit_reached

    def _handle_events_slice(self) -> bool:
        """Handle queued events. False if the slice ended before all were handled."""
        self._slice_ends_s = self.clock.monotonic_s() + self.slice_s
        while self._current_handler is not None or self._events or self._new_profiles is not None:
            if self._current_handler is None:
                self._current_handler = (
                    self._handle_event_in_slices(*self._events.popleft()) if self._events else self._install()
                )
            for _ in self._current_handler:
                if self.clock.monotonic_s() > self._slice_ends_s:
                    return False
            self._current_handler = None
            if self.clock.monotonic_s() > self._slice_ends_s:  # an event that wakes no pod yields no slice
                return not (self._events or self._new_profiles)
        return True

    def _install(self) -> Iterator[int]:
        """Install the new profiles and wake the pods that changed plugins rejected. Assumed pods keep their plugins."""
        rebuilt, self._new_profiles = self._new_profiles, None
        assert rebuilt is not None
        plugins = self.engine.install_profiles(rebuilt)
        retired = RetiredPlugins(plugins, set(self._assumed_pods))
        if not retired.close_if_idle():
            self._retired.append(retired)
        return self.queue.install_profiles(queue_profiles(self.engine), rebuilt.changed)

    def _handle_event_in_slices(
        self, handler: EventHandler, old: KubeObject | None, new: KubeObject | None
    ) -> Iterator[int]:
        took_s, now_s = 0.0, self.clock.monotonic_s
        start_s = now_s()
        try:
            for woken in handler(old, new):
                took_s += now_s() - start_s
                yield woken
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
        """Wait until something happens or is due."""
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
            await self._wake_event.wait()
            return
        pause_s = max(0.0, min(due) - self.clock.monotonic_s())
        waking = asyncio.ensure_future(self._wake_event.wait())
        resting = asyncio.ensure_future(self.clock.sleep(pause_s))
        try:
            await asyncio.wait((waking, resting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
            resting.cancel()

    # attempts

    async def _attempt(self, queued: QueuedPodInfo) -> None:
        pod = queued.pod
        in_group = self.pod_group_cycle is not None and pod.spec.scheduling_group is not None
        if not in_group and self.skip(queued):
            return
        try:
            if self.pod_group_cycle is not None and in_group:
                await self.pod_group_cycle.attempt(queued)
            else:
                await self._schedule_one(queued)
        except Exception as fault:  # a bug costs the pod one attempt, and never stops the process
            log.exception("a scheduling attempt for pod %s failed", pod.key)
            self._observe_failure(queued, broken := error(f"{type(fault).__name__}: {fault}"))
            self.failure_handler.handle(queued, broken, "")

    def skip(self, queued: QueuedPodInfo) -> bool:
        """Whether a pod need not be tried: it is terminating or already assumed."""
        pod = queued.pod
        if pod.terminating:
            record_skipped(self.events, pod)
        elif self.engine.cache.pod(pod.uid) is None:
            return False
        self.queue.done(queued.uid)
        return True

    async def _schedule_one(self, queued: QueuedPodInfo) -> None:
        queued.attempt_started_s = self.clock.monotonic_s()
        placed = await self._place(queued)
        self.observer.observe_decision(self.clock.monotonic_s() - queued.attempt_started_s)
        if placed.assumed is None:
            self._handle_failure(queued, placed)
            return
        self.start_binding(queued, placed)

    async def _place(self, queued: QueuedPodInfo) -> ScheduleResult:
        if self.call_extender is None:
            return self.engine.place(queued.info)
        return await self.engine.place_with_extenders(queued.info, self.call_extender)

    def _handle_failure(self, queued: QueuedPodInfo, placed: ScheduleResult) -> None:
        decision = placed.decision
        self._observe_failure(queued, placed.status)
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

    def start_binding(self, queued: QueuedPodInfo, placed: ScheduleResult) -> None:
        """Start the binding cycle of an assumed pod."""
        assert placed.assumed is not None
        self._assumed_pods.add(placed.assumed)
        self.binding_cycles.activate(placed.assumed)
        self._start_task(placed.assumed, self.binding_cycles.run_binding_cycle(queued, placed))

    def _start_task(self, assumed: AssumedPod, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._binding_tasks[task] = assumed
        task.add_done_callback(self._on_task_done)

    def _finish_bindings_slice(self) -> bool:
        """Finish pods with a result of the binder. False if the slice ended before all were finished."""
        ends_s = self.clock.monotonic_s() + self.slice_s if self.binding_cycles.has_binder_results else 0.0
        while self.binding_cycles.has_binder_results:
            if (post_bind := self.binding_cycles.finish_next_binder_result()) is not None:
                self._start_task(*post_bind)
            if self.clock.monotonic_s() > ends_s:
                return not self.binding_cycles.has_binder_results
        return True

    def _on_write_finished(self) -> None:
        """Wake the loop when new bindings may be written again. The binder may have bound none of the pods yet."""
        if self._write_limit_reached and self.binding_cycles.writes_in_flight < _RESUME_WRITES_IN_FLIGHT:
            self._wake_event.set()

    def _on_pod_finished(self, assumed: AssumedPod) -> None:
        self._assumed_pods.discard(assumed)
        if self._retired:
            self._retired = [each for each in self._retired if not each.release_pod(assumed)]
        if self.engine.pods_to_activate or (
            self.queue.has_ready and not self._write_limit_reached
        ):  # attempts that waited for this pod
            self._wake_event.set()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        assumed = self._binding_tasks.pop(task)
        if task.cancelled():
            self._on_pod_finished(assumed)  # it may have been cancelled before its first step ran
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("a binding cycle failed", exc_info=fault)

    # outcomes

    def _on_assigned(self, queued: QueuedPodInfo, assumed: AssumedPod) -> None:
        """The API server has accepted the binding of a pod or its bind request."""
        record_scheduled(self.events, queued.pod, assumed.pod.spec.node_name)

    def on_bound(self, queued: QueuedPodInfo, assumed: AssumedPod) -> None:
        """Record that a pod is bound."""
        now_s = self.clock.monotonic_s()
        self.engine.cache.finish_binding(queued.uid, now_s)
        self.observer.observe_attempt(SCHEDULED, queued.pod.scheduler_name, now_s - queued.attempt_started_s)
        self.observer.observe_scheduled(queued.attempts, self.queue.waited_s(queued), after_flush=queued.is_flushed)
        if outcomes.enabled(OUTCOME):
            outcomes.info(
                "Successfully bound pod to node", v=OUTCOME, pod=ObjectRef(queued.key), node=assumed.pod.spec.node_name
            )

    def on_binding_failed(self, queued: QueuedPodInfo, status: Status, rejectors: frozenset[str] = _NO_PLUGINS) -> None:
        """Requeue a pod whose binding cycle failed."""
        self._observe_failure(queued, status)
        self.failure_handler.handle(queued, status, "", rejectors)
        self._wake_event.set()

    def _observe_failure(self, queued: QueuedPodInfo, status: Status) -> None:
        result = UNSCHEDULABLE if status.rejected else ERROR
        self.observer.observe_attempt(
            result, queued.pod.scheduler_name, self.clock.monotonic_s() - queued.attempt_started_s
        )

    def activate(self, pod: Pod) -> None:
        """Activate a pod: it is tried at once."""
        self.queue.activate([pod])
        self._wake_event.set()

    def retry(self, pod: Pod) -> None:
        """Requeue a pod with its backoff."""
        self.queue.retry([pod])
        self._wake_event.set()
