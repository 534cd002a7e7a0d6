"""Binding cycle: PreBindPreFlight, WaitOnPermit, PreBind, Bind and PostBind of a pod whose node was chosen.

`run` has the steps in the order of kube-scheduler's `bindingCycle`. Any failure unreserves the pod, removes it from the
cache and returns it to the queue with the reason. Pods may wait at Permit and in PreBind for minutes, so they hold no
semaphore there; the number of concurrent binding writes is limited. With the binder, a pod that was handed over is one
table entry until its outcome is known: there may be thousands.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bayplan.api_writes.observer import SCHEDULED, SchedulerObserver
from bayplan.api_writes.pod_status_messages import PodEventRecorder, record_scheduled
from bayplan.api_writes.pod_statuses import PodStatuses
from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.client import worker_slot
from bayplan.client.cancellation import start_cancellable
from bayplan.clock import Clock
from bayplan.framework.api.status import SUCCESS, Status, error
from bayplan.framework.runtime.object_changes import ASSIGNED_POD_DELETE
from bayplan.objects.core import Pod
from bayplan.queue import QueuedPodInfo, SchedulingQueue
from bayplan.scheduler.binding.failure_handler import FailureHandler
from bayplan.scheduler.binding.pre_bind_tasks import PreBindTasks
from bayplan.scheduler.binding.semaphore import FifoSemaphore
from bayplan.scheduler.cycle.schedule_result import AssumedPod, ScheduleResult, single_node_status
from bayplan.scheduler.engine import PodEngine
from bayplan.telemetry.logs import OUTCOME, ObjectRef, StructuredLog

log = logging.getLogger(__name__)
outcomes = StructuredLog(__name__)

ExtenderBindFunction = Callable[[Pod, str], Awaitable[Status | None]]
"""Calls the extenders that bind; returns None if none of them is interested in the pod."""

NO_PLUGINS: frozenset[str] = frozenset()
_MAX_WRITES_IN_FLIGHT, _RESUME_WRITES_IN_FLIGHT = 1024, 512
"""Limit of bindings that wait to be written; more pods stay in the queue, where priority counts. At the limit no
attempt runs until the number has fallen to the second value: one attempt after each written binding costs half as much
again as hundreds in a row, and the writes keep the connection busy meanwhile."""


@dataclass(frozen=True, slots=True)
class BindingResult:
    """Outcome of a binding cycle. `rejectors`: the plugins whose events wake the pod; only Permit sets them."""

    status: Status
    rejectors: frozenset[str] = NO_PLUGINS


_BOUND = BindingResult(SUCCESS)


@dataclass(slots=True)
class BindingCycle:
    """The steps of a binding cycle, for every pod. `wake` wakes the run loop."""

    engine: PodEngine
    queue: SchedulingQueue
    statuses: PodStatuses
    failure_handler: FailureHandler
    events: PodEventRecorder
    observer: SchedulerObserver
    clock: Clock
    wake: asyncio.Event
    max_concurrent: int = 64
    extender_bind: ExtenderBindFunction | None = None
    pre_binds: PreBindTasks = field(default_factory=PreBindTasks)
    bind_requests: BindRequestTracker | None = None
    """Tracks the outcome of bind requests; None if the scheduler binds pods itself."""
    at_binder: dict[str, tuple[QueuedPodInfo, AssumedPod]] = field(default_factory=dict)
    """By uid: pods that were handed to the binder."""
    binder_results: deque[tuple[str, Status]] = field(default_factory=deque)
    """Results of the binder for pods in `at_binder`, which `finish` has to handle."""
    writes_in_flight: int = 0
    """Pods whose binding is written or waits for the semaphore. Pods at Permit or in PreBind do not count."""
    write_limit_reached: bool = False
    _semaphore: FifoSemaphore = field(init=False)

    def __post_init__(self) -> None:
        self._semaphore = FifoSemaphore(self.max_concurrent)

    def limit_concurrency(self, at_once: int) -> None:
        """Lower the limit of concurrent writes, before the first write: a pod should wait for one limit only."""
        self.max_concurrent = min(self.max_concurrent, at_once)
        self._semaphore = FifoSemaphore(self.max_concurrent)

    def can_start_write(self) -> bool:
        """Whether another pod may be scheduled, as the number of bindings in flight allows it."""
        limit = _RESUME_WRITES_IN_FLIGHT if self.write_limit_reached else _MAX_WRITES_IN_FLIGHT
        self.write_limit_reached = self.writes_in_flight >= limit
        return not self.write_limit_reached

    # steps

    async def run(self, queued: QueuedPodInfo, placed: ScheduleResult) -> bool:
        """Run the cycle of one pod. False: the binder has the pod, and `finish` is called with the binder's result."""
        assumed = placed.assumed
        assert assumed is not None
        try:
            result = await self._run_until_written(queued, assumed, waits=placed.waiting)
            if result.status.ok:
                record_scheduled(self.events, queued.pod, assumed.pod.spec.node_name)
                if self.bind_requests is not None:
                    status = self.bind_requests.track(assumed.cycle.pod, partial(self._queue_result, queued.uid))
                    if status is None:
                        self.at_binder[queued.uid] = queued, assumed
                        return False
                    result = BindingResult(status)
        except Exception as fault:  # a bug costs the pod one attempt, and never leaves it counted on its node
            log.exception("the binding of pod %s failed", queued.key)
            result = BindingResult(error(f"{type(fault).__name__}: {fault}"))
        if self.finish(queued, assumed, result):
            await self.post_bind(assumed)
        return True

    async def _run_until_written(self, queued: QueuedPodInfo, assumed: AssumedPod, *, waits: bool) -> BindingResult:
        """Every step until the API server has the binding. Any status but success ends the cycle."""
        binding_points, cycle, node_name = assumed.framework.binding_points, assumed.cycle, assumed.pod.spec.node_name
        plan = binding_points.plan_pre_bind(cycle, node_name)
        if not plan.status.ok:
            if waits:
                self.engine.stop_waiting(queued.uid)
            return BindingResult(plan.status)
        if plan.has_work or waits:
            await self.statuses.nominate(cycle.pod, node_name)
        if waits:
            outcome = await self._wait_on_permit(assumed)
            if not outcome.status.ok:
                return outcome
        self.queue.done(queued.uid)  # from here on a failure is an error, whatever events arrived meanwhile
        if plan.has_work:
            work = binding_points.pre_bind(cycle, node_name, plan, _gather_until_failure)
            status = await self.pre_binds.run(queued.uid, work)
            if not status.ok:
                return BindingResult(status)
        return BindingResult(await self._bind(queued, assumed))

    async def _wait_on_permit(self, assumed: AssumedPod) -> BindingResult:
        waiting = self.engine.waiting_pods.get(assumed.pod.uid)
        if waiting is None:
            return _BOUND
        outcome: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

        def set_outcome(status: Status) -> None:
            if not outcome.done():
                outcome.set_result(status)

        start_s = assumed.framework.plugin_caller.now_s()
        waiting.on_outcome = set_outcome
        if waiting.outcome is not None:
            set_outcome(waiting.outcome)
        try:
            status = await outcome
        finally:
            self.engine.stop_waiting(assumed.pod.uid)
        self.observer.observe_permit_wait(status.code.label, assumed.framework.plugin_caller.now_s() - start_s)
        if status.rejected:
            return BindingResult(single_node_status(status), frozenset({status.plugin}))
        return BindingResult(
            status if status.ok else error(f"waiting on permit for pod: {status.message}").by(status.plugin)
        )

    async def _bind(self, queued: QueuedPodInfo, assumed: AssumedPod) -> Status:
        """Wait for a slot, then let an extender or the Bind plugins write the binding."""
        cycle, node_name = assumed.cycle, assumed.pod.spec.node_name
        self.writes_in_flight += 1
        try:
            if (status_write := self.statuses.pending_write(queued.uid)) is not None:
                # else the reason of an earlier attempt could be written to a bound pod
                await asyncio.wait([status_write])
            await self._semaphore.acquire()
            slot = worker_slot.set(self._slot_released)
            try:
                status = await self.extender_bind(cycle.pod, node_name) if self.extender_bind is not None else None
                return status or await assumed.framework.binding_points.bind(cycle, node_name)
            finally:
                worker_slot.reset(slot)
                self._semaphore.release()
        finally:
            self._end_write()

    def finish(self, queued: QueuedPodInfo, assumed: AssumedPod, result: BindingResult) -> bool:
        """Report a pod as bound, or unreserve it. True: PostBind plugins have to run."""
        if not result.status.ok:
            self._handle_failure(queued, assumed, result)
            return False
        self._report_bound(queued, assumed)
        if not assumed.framework.binding_points.has_no_post_bind_plugins():
            return True
        self.activate(assumed)
        return False

    def _report_bound(self, queued: QueuedPodInfo, assumed: AssumedPod) -> None:
        took_s = self.clock.monotonic_s() - queued.attempt_started_s
        self.observer.observe_attempt(SCHEDULED, queued.pod.scheduler_name, took_s)
        self.observer.observe_scheduled(queued.attempts, self.queue.waited_s(queued), after_flush=queued.is_flushed)
        if outcomes.enabled(OUTCOME):
            outcomes.info(
                "Successfully bound pod to node", v=OUTCOME, pod=ObjectRef(queued.key), node=assumed.pod.spec.node_name
            )

    async def post_bind(self, assumed: AssumedPod) -> None:
        await assumed.framework.binding_points.post_bind(assumed.cycle, assumed.pod.spec.node_name)
        self.activate(assumed)

    def activate(self, assumed: AssumedPod) -> None:
        """Activate the pods that plugins asked for during this cycle."""
        pods = assumed.cycle.pods_to_activate
        if pods:
            self.queue.activate(list(pods.values()))
            pods.clear()

    def _handle_failure(self, queued: QueuedPodInfo, assumed: AssumedPod, result: BindingResult) -> None:
        """Requeue the pod. Unreserving a rejected pod must not wake it: it would be retried without a reason."""
        freed = assumed.unreserve_and_forget(self.engine.cache)
        if freed and not result.status.rejected:
            self.queue.move_all_on_event(ASSIGNED_POD_DELETE, assumed.pod, None)
        self.failure_handler.handle(queued, result.status, "", result.rejectors)
        self.wake.set()
        if freed and result.status.rejected:
            self.queue.move_all_on_event(ASSIGNED_POD_DELETE, assumed.pod, None, skip_self=True)

    # limits and results

    @asynccontextmanager
    async def _slot_released(self) -> AsyncIterator[None]:
        """Release the slot to other bindings while this one only waits for its outcome."""
        self._semaphore.release()
        self._end_write()
        try:
            yield
        finally:
            self.writes_in_flight += 1
            await self._semaphore.acquire()

    def _end_write(self) -> None:
        """Wake the run loop when new bindings may be written again. The binder may have bound none of the pods yet."""
        self.writes_in_flight -= 1
        if self.write_limit_reached and self.writes_in_flight < _RESUME_WRITES_IN_FLIGHT:
            self.wake.set()

    def _queue_result(self, uid: str, status: Status) -> None:
        self.binder_results.append((uid, status))
        self.wake.set()


async def _gather_until_failure(work: Sequence[Coroutine[Any, Any, Status]]) -> Sequence[Status]:
    """Wait for all. The first failure cancels the waits of the rest and is returned when their writes are finished."""
    if len(work) == 1:
        return [await work[0]]
    tasks, cancellations = zip(*map(start_cancellable, work), strict=True)
    try:
        for ended in asyncio.as_completed(tasks):
            status = await ended
            if not status.ok:
                return [status]
        return [task.result() for task in tasks]
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()  # no write is under way, or the process ends
        raise
    finally:
        for cancellation in cancellations:
            cancellation.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
