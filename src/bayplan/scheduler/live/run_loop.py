"""The pod engine on a cluster: takes pods from the queue, decides, and sends decisions on their way.

One loop owns everything. It follows what the API server told, does what is due, and makes attempts, in slices of a few
milliseconds, so that connections, watches and bindings get their turn. An attempt is plain code; what has to wait
(Permit, PreBind, Bind) goes on in a coroutine of its own. A profile with extenders keeps the turn while it asks them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayplan.api_writes.observer import (
    ERROR,
    SCHEDULED,
    UNSCHEDULABLE,
    NoSchedulerObserver,
    SchedulerObserver,
)
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
"""So many bindings may be waiting to be written; more pods wait in the queue, where priority still counts. Once there
are so many, nobody decides until they are few: one decision for each binding that was written costs half as much again
as hundreds in a row, and the wire has enough to do meanwhile."""
_MAX_EVENT_SLICES = 25
"""After so many slices of following a flood of changes one goes to attempts: nobody waits for the flood to end."""
_EVENT_DELAY_PER_POD_S, _MAX_EVENT_DELAY_S = 0.001, 0.02
"""For each pod that waits for the binder, and in all. No binder takes a pod a millisecond, so whoever comes new waits
for those longer than for us; and where the binder is not what they wait for, nobody notices so little."""
_MAX_EVENT_DELAY_WRITING_S, _MAX_EVENT_DELAY_READING_S = 0.1, 0.25
"""The same in all where every pod is bound by the binder: whoever comes new then is behind those that wait for it, so
that a longer rest costs nobody his place, nor any time. Still longer where nothing of ours is on its way to the server
either, and all there can be to hear is what the binder does."""
_NO_PLUGINS: frozenset[str] = frozenset()
EventHandler = Callable[[KubeObject | None, KubeObject | None], Iterator[int]]
"""What a change means, in slices."""


@dataclass(slots=True)
class RetiredPlugins:
    """Plugins that were replaced, and the pods under way that still need them. They are closed when the last is."""

    plugins: Sequence[Any]
    pods: set[AssumedPod]

    def release_pod(self, held: AssumedPod) -> bool:
        self.pods.discard(held)
        return self.close_if_idle()

    def close_if_idle(self) -> bool:
        if self.pods:
            return False
        close_all(self.plugins)
        self.plugins = ()
        return True


@dataclass(slots=True)
class LiveScheduler:
    """Runs one pod engine. `handle_event` is the handler of every informer; `run` goes on until it is cancelled."""

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
    """Who decides about pods of groups; nobody: they are pods like others."""
    observer: SchedulerObserver = field(default_factory=NoSchedulerObserver)
    slice_s: float = SLICE_S
    all_by_binder: bool = False
    """Whether every profile has its pods bound by the binder."""
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
        """Bind requests of our pods, where there may be some."""
        return self.event_handlers.bind_requests

    # what is told -----------------------------------------------------------------------------------------------

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """The API server told of a change."""
        self._events.append((self.event_handlers.handle_in_slices, old, new))
        self._wake_event.set()

    def handle_own_write(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """We wrote something, and need not wait to be told of it."""
        self._events.append((self.event_handlers.handle_own_write, old, new))
        self._wake_event.set()

    def wake(self) -> None:
        self._wake_event.set()

    def replace_profiles(self, rebuilt: NewProfiles) -> None:
        """Go on with other profiles as soon as no attempt is under way and all that was told is followed."""
        if self._new_profiles is not None:
            self.engine.discard_profiles(self._new_profiles)
        self._new_profiles = rebuilt
        self._wake_event.set()

    def stop_scheduling(self) -> None:
        """No attempt begins any more; what is under way goes on."""
        self._deciding = False

    async def drain(self) -> None:
        """Wait for pods that are on their way to a node, and for what is being written. Nobody waits at Permit."""
        for waiting in self.engine.waiting_pods.all():
            waiting.preempt("", "the scheduler stops")
        while not self._finish_bindings_slice():
            await asyncio.sleep(0)
        self.binding_cycles.stop_tracking()
        while self._binding_tasks:
            await asyncio.wait(self._binding_tasks)  # it cancels no binding when it is cancelled itself
        await self.writes.drain()

    async def abandon(self) -> None:
        """Leave everything that is under way as it is; who starts next finds out how far it came."""
        self.binding_cycles.stop_tracking()
        for task in self._binding_tasks:
            task.cancel()
        while self._binding_tasks:
            await asyncio.wait(self._binding_tasks)  # it cancels no binding when it is cancelled itself
        await self.writes.abandon()

    @property
    def pods_in_binding(self) -> int:
        """Pods that are on their way to a node."""
        return len(self._assumed_pods)

    @property
    def has_open_writes(self) -> bool:
        """Whether a write may still take effect, also of an extender that was asked to bind a pod."""
        return self.binding_cycles.writes_in_flight > 0 or self.writes.has_open_writes

    @property
    def is_writing(self) -> bool:
        """Whether bindings, evictions or statuses are on their way to the API server."""
        return self.binding_cycles.writes_in_flight > 0 or self.writes.busy

    @property
    def pods_at_binder(self) -> int:
        """Pods that were handed to the binder, and are not known to be bound."""
        return 0 if self.bind_requests is None else self.bind_requests.waiting

    @property
    def is_idle(self) -> bool:
        """Whether all that was told is followed, nothing is on its way, and nobody is ready to be tried."""
        under_way = self._events or self._new_profiles or self._current_handler or self._assumed_pods
        return not (under_way or self.queue.counts()["active"])

    def max_event_delay_s(self) -> float:
        """How long news may wait: not at all, unless all that is under way is with the binder, or on its way there.

        Then they are answers that nobody waits for, and pods that turn up on nodes where they are counted already.
        """
        waiting = self.pods_at_binder
        is_all = self.pods_in_binding == self.binding_cycles.writes_in_flight + waiting
        if not is_all or self.call_extender is not None or self.writes.busy:
            return 0.0
        most_s = _MAX_EVENT_DELAY_S
        if self.all_by_binder:
            most_s = _MAX_EVENT_DELAY_WRITING_S if self.binding_cycles.writes_in_flight else _MAX_EVENT_DELAY_READING_S
        return min(waiting * _EVENT_DELAY_PER_POD_S, most_s)

    # the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        await self.handle_pending_events()  # nobody decides on half a picture
        for _ in self.engine.refresh_in_slices():
            await asyncio.sleep(0)
        while True:
            self._wake_event.clear()
            if await self._run_slice():
                await asyncio.sleep(0)
                continue
            await self._wait_for_work()

    async def handle_pending_events(self) -> None:
        """Follow all that was told so far."""
        while not self._handle_events_slice():
            await asyncio.sleep(0)

    async def handle_events(self) -> None:
        """What `run` does besides deciding: for a process that waits to be elected."""
        while True:
            self._wake_event.clear()
            if self._handle_events_slice():
                await self._wake_event.wait()
            else:
                await asyncio.sleep(0)

    async def _run_slice(self) -> bool:
        """One slice of work; false where there is none left."""
        followed = self._handle_events_slice()
        if not self._finish_bindings_slice():
            return True
        if not followed:
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
        """Follow what was told; false where the slice ended before that was done."""
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
            if self.clock.monotonic_s() > self._slice_ends_s:  # a change that wakes nobody has no slices of its own
                return not (self._events or self._new_profiles)
        return True

    def _install(self) -> Iterator[int]:
        """Swap profiles, and wake the pods that changed plugins had rejected. Pods under way keep what they have."""
        rebuilt, self._new_profiles = self._new_profiles, None
        assert rebuilt is not None
        plugins = self.engine.install_profiles(rebuilt)
        retired = RetiredPlugins(plugins, set(self._assumed_pods))
        if not retired.close_if_idle():
            self._retired.append(retired)
        return self.queue.install_profiles(queue_profiles(self.engine), rebuilt.changed)

    def _handle_event_in_slices(
        self, following: EventHandler, old: KubeObject | None, new: KubeObject | None
    ) -> Iterator[int]:
        took_s, now_s = 0.0, self.clock.monotonic_s
        start_s = now_s()
        try:
            for woken in following(old, new):
                took_s += now_s() - start_s
                yield woken
                start_s = now_s()
        except Exception:  # one change that cannot be followed must not stop all others
            item = new if new is not None else old
            log.exception("cannot follow a change of %s %s", type(item).__name__, item.key if item else "")
        took_s += now_s() - start_s
        for event in self.event_handlers.last_events:
            self.observer.observe_event(event, took_s)

    def _run_due_work(self) -> bool:
        """What time and plugins ask for; false where the slice ended before that was done."""
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
        while self._deciding and (untold := self.queue.pop_gate_failure()) is not None:
            self.failure_handler.handle_gate_failure(*untold)
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
        """Until something happens, or is due."""
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

    # attempts ---------------------------------------------------------------------------------------------------

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
        except Exception as fault:  # a bug of ours costs the pod one attempt, never the process
            log.exception("an attempt to place pod %s broke", pod.key)
            self._observe_failure(queued, broken := error(f"{type(fault).__name__}: {fault}"))
            self.failure_handler.handle(queued, broken, "")

    def skip(self, queued: QueuedPodInfo) -> bool:
        """Whether a pod need not be tried: it goes, or is on its way already."""
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
        refused = decision.node is not None  # at Reserve or Permit
        room = (
            self.preemption_executor.prepare(queued.pod, decision.writes) if decision.writes and not refused else None
        )
        nominate = "" if refused else decision.nominated_node_name
        told = self.failure_handler.handle(queued, placed.status, nominate, *placed.rejectors, room=room)
        if room is not None:
            self.preemption_executor.start(room, told)

    def start_binding(self, queued: QueuedPodInfo, placed: ScheduleResult) -> None:
        """A pod has its node, and is sent on its way."""
        assert placed.assumed is not None
        self._assumed_pods.add(placed.assumed)
        self.binding_cycles.activate(placed.assumed)
        self._start_task(placed.assumed, self.binding_cycles.run_binding_cycle(queued, placed))

    def _start_task(self, held: AssumedPod, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._binding_tasks[task] = held
        task.add_done_callback(self._on_task_done)

    def _finish_bindings_slice(self) -> bool:
        """Bring pods to their end that the binder has done with; false where the slice ended before all were."""
        ends_s = self.clock.monotonic_s() + self.slice_s if self.binding_cycles.has_binder_results else 0.0
        while self.binding_cycles.has_binder_results:
            if (rest := self.binding_cycles.finish_next_binder_result()) is not None:
                self._start_task(*rest)
            if self.clock.monotonic_s() > ends_s:
                return not self.binding_cycles.has_binder_results
        return True

    def _on_write_finished(self) -> None:
        """There is room again, though the binder may not be done with a single pod."""
        if self._write_limit_reached and self.binding_cycles.writes_in_flight < _RESUME_WRITES_IN_FLIGHT:
            self._wake_event.set()

    def _on_pod_finished(self, held: AssumedPod) -> None:
        self._assumed_pods.discard(held)
        if self._retired:
            self._retired = [each for each in self._retired if not each.release_pod(held)]
        if self.engine.pods_to_activate or (
            self.queue.has_ready and not self._write_limit_reached
        ):  # they waited for this very pod
            self._wake_event.set()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        held = self._binding_tasks.pop(task)
        if task.cancelled():
            self._on_pod_finished(held)  # it may have been cancelled before its first step
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("a binding broke", exc_info=fault)

    # outcomes ---------------------------------------------------------------------------------------------------

    def _on_assigned(self, queued: QueuedPodInfo, held: AssumedPod) -> None:
        """The API server has the binding of a pod, or the request for it: the binder tells of the rest."""
        record_scheduled(self.events, queued.pod, held.pod.spec.node_name)

    def on_bound(self, queued: QueuedPodInfo, held: AssumedPod) -> None:
        """A pod is bound."""
        now_s = self.clock.monotonic_s()
        self.engine.cache.finish_binding(queued.uid, now_s)
        self.observer.observe_attempt(SCHEDULED, queued.pod.scheduler_name, now_s - queued.attempt_started_s)
        self.observer.observe_scheduled(queued.attempts, self.queue.waited_s(queued), after_flush=queued.is_flushed)
        if outcomes.enabled(OUTCOME):
            outcomes.info(
                "Successfully bound pod to node", v=OUTCOME, pod=ObjectRef(queued.key), node=held.pod.spec.node_name
            )

    def on_binding_failed(self, queued: QueuedPodInfo, status: Status, rejectors: frozenset[str] = _NO_PLUGINS) -> None:
        """A pod that had a node does not get it, and no longer waits for it."""
        self._observe_failure(queued, status)
        self.failure_handler.handle(queued, status, "", rejectors)
        self._wake_event.set()

    def _observe_failure(self, queued: QueuedPodInfo, status: Status) -> None:
        result = UNSCHEDULABLE if status.rejected else ERROR
        self.observer.observe_attempt(
            result, queued.pod.scheduler_name, self.clock.monotonic_s() - queued.attempt_started_s
        )

    def activate(self, pod: Pod) -> None:
        """Have a pod tried again at once."""
        self.queue.activate([pod])
        self._wake_event.set()

    def retry(self, pod: Pod) -> None:
        """Have a pod tried again after its backoff."""
        self.queue.retry([pod])
        self._wake_event.set()
