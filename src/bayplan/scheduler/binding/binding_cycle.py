"""Binding cycle: Permit waits, PreBind, Bind and PostBind of a pod whose node was chosen.

One coroutine for each pod, started when the pod is assumed. Any failure unreserves the pod, removes it from the cache
and returns it to the queue with the reason. The order of steps is kube-scheduler's. Pods may wait at Permit and in
PreBind for minutes, so they hold no semaphore there; the number of concurrent binding writes is limited. With the
binder, a pod that was handed over is one table entry until its outcome is known: there may be thousands.
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

from bayplan.api_writes.observer import NoSchedulerObserver, SchedulerObserver
from bayplan.api_writes.pod_statuses import PodStatuses
from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.client import worker_slot
from bayplan.client.cancellation import Cancellation, start_cancellable
from bayplan.framework.api.status import SUCCESS, Status, error
from bayplan.framework.runtime.object_changes import ASSIGNED_POD_DELETE
from bayplan.objects.core import Pod
from bayplan.queue import QueuedPodInfo, SchedulingQueue
from bayplan.scheduler.binding.semaphore import FifoSemaphore
from bayplan.scheduler.engine import AssumedPod, PodEngine, ScheduleResult, single_node_status

log = logging.getLogger(__name__)

ExtenderBindFunction = Callable[[Pod, str], Awaitable[Status | None]]
"""Calls the extenders that bind; returns None if none of them is interested in the pod."""

NO_PLUGINS: frozenset[str] = frozenset()


@dataclass(slots=True)
class PreBindTasks:
    """Pods in PreBind, which preemption can still cancel. A write in progress is finished first: the pod keeps its node
    and its devices until the outcome is known."""

    _cancellations: dict[str, Cancellation] = field(default_factory=dict)
    _causes: dict[str, str] = field(default_factory=dict)

    def __contains__(self, uid: str) -> bool:
        return uid in self._cancellations

    def cancel(self, uid: str, cause: str) -> bool:
        """Cancel PreBind of a pod. True: the pod will not be bound, even if PreBind has just ended."""
        cancellation = self._cancellations.get(uid)
        if cancellation is None:
            return False
        self._causes.setdefault(uid, cause)
        cancellation.cancel()
        return True

    async def run(self, uid: str, work: Coroutine[Any, Any, Status]) -> Status:
        task, self._cancellations[uid] = start_cancellable(work)
        try:
            status = await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if uid not in self._causes or current is None or current.cancelling():
                task.cancel()
                raise
            status = SUCCESS
        finally:
            self._cancellations.pop(uid, None)
            cause = self._causes.pop(uid, None)
        return status if cause is None else error(cause)


@dataclass(frozen=True, slots=True)
class BindingResult:
    """Outcome of a binding cycle. `rejectors`: the plugins whose events wake the pod; only Permit sets them."""

    status: Status
    rejectors: frozenset[str] = NO_PLUGINS


_BOUND = BindingResult(SUCCESS)


@dataclass(slots=True)
class BindingCycles:
    """Runs binding cycles. Failed pods go to `on_failed`, the failure handler; bound pods go to `on_bound`."""

    engine: PodEngine
    queue: SchedulingQueue
    on_bound: Callable[[QueuedPodInfo, AssumedPod], None]
    on_failed: Callable[[QueuedPodInfo, Status, frozenset[str]], None]
    statuses: PodStatuses
    max_concurrent: int = 64
    extender_bind: ExtenderBindFunction | None = None
    pre_binds: PreBindTasks = field(default_factory=PreBindTasks)
    observer: SchedulerObserver = field(default_factory=NoSchedulerObserver)
    bind_requests: BindRequestTracker | None = None
    """Tracks the outcome of bind requests; None if the scheduler binds pods itself."""
    writes_in_flight: int = 0
    """Pods whose binding is written or waits for the semaphore. Pods at Permit or in PreBind do not count."""
    on_write_finished: Callable[[], None] = lambda: None
    """Called each time `writes_in_flight` falls. With the binder, the pod may stay in its binding cycle for minutes."""
    on_assigned: Callable[[QueuedPodInfo, AssumedPod], None] = lambda *_: None
    """Called for every pod whose binding or bind request the API server accepted."""
    on_finished: Callable[[AssumedPod], None] = lambda _: None
    """Called for every pod whose binding cycle is over: it is bound with PostBind done, or it was unreserved."""
    wake_loop: Callable[[], None] = lambda: None
    """Called when a result of the binder is queued; the loop then calls `finish_next_binder_result`."""
    _semaphore: FifoSemaphore = field(init=False)
    _at_binder: dict[str, tuple[QueuedPodInfo, AssumedPod]] = field(default_factory=dict)  # by the uid of the pod
    _binder_results: deque[tuple[str, Status]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._semaphore = FifoSemaphore(self.max_concurrent)

    def limit_concurrency(self, at_once: int) -> None:
        """Lower the limit of concurrent writes, before the first write: a pod should wait for one limit only."""
        self.max_concurrent = min(self.max_concurrent, at_once)
        self._semaphore = FifoSemaphore(self.max_concurrent)

    async def run_binding_cycle(self, queued: QueuedPodInfo, placed: ScheduleResult) -> None:
        assumed = placed.assumed
        assert assumed is not None
        outcome: BindingResult | None = _BOUND
        try:
            outcome = await self._run_until_assigned(queued, assumed, waits=placed.waiting)
            if outcome is not None and self._finish(queued, assumed, outcome):
                await self._run_post_bind(assumed)
        finally:
            if outcome is not None:
                self.on_finished(assumed)

    async def _run_until_assigned(
        self, queued: QueuedPodInfo, assumed: AssumedPod, *, waits: bool
    ) -> BindingResult | None:
        """The outcome of a pod whose binding was written or failed; None: the binder has it, and may take minutes."""
        uid = queued.uid
        try:
            outcome = await self._run_until_written(queued, assumed, waits=waits)
            if not outcome.status.ok:
                return outcome
            self.on_assigned(queued, assumed)
            if self.bind_requests is None:
                return outcome
            status = self.bind_requests.track(assumed.cycle.pod, partial(self._queue_binder_result, uid))
        except Exception as fault:  # a bug costs the pod one attempt, and never leaves it counted on its node
            log.exception("the binding of pod %s failed", queued.key)
            return BindingResult(error(f"{type(fault).__name__}: {fault}"))
        if status is not None:
            return BindingResult(status)
        self._at_binder[uid] = queued, assumed
        return None

    def _queue_binder_result(self, uid: str, status: Status) -> None:
        self._binder_results.append((uid, status))
        self.wake_loop()

    @property
    def has_binder_results(self) -> bool:
        """Whether a result of the binder waits for `finish_next_binder_result`."""
        return bool(self._binder_results)

    def finish_next_binder_result(self) -> tuple[AssumedPod, Coroutine[Any, Any, None]] | None:
        """Finish a pod with its result of the binder. The coroutine that is returned runs PostBind."""
        uid, status = self._binder_results.popleft()
        if uid not in self._at_binder:
            return None  # tracking has stopped
        queued, assumed = self._at_binder.pop(uid)
        try:
            if self._finish(queued, assumed, BindingResult(status)):
                return assumed, self._finish_after_post_bind(assumed)
        except Exception:  # a bug with one pod must not block the next results
            log.exception("cannot finish the binding of pod %s", queued.key)
        self.on_finished(assumed)
        return None

    async def _finish_after_post_bind(self, assumed: AssumedPod) -> None:
        try:
            await self._run_post_bind(assumed)
        finally:
            self.on_finished(assumed)

    def stop_tracking(self) -> None:
        """Stop waiting for pods that the binder has: it binds them without the scheduler."""
        if self.bind_requests is not None:
            self.bind_requests.stop_tracking()
        for _, assumed in self._at_binder.values():
            self.on_finished(assumed)
        self._at_binder.clear()

    def _finish(self, queued: QueuedPodInfo, assumed: AssumedPod, outcome: BindingResult) -> bool:
        """Report a pod as bound, or unreserve it. True: PostBind plugins have to run."""
        if not outcome.status.ok:
            self._handle_failure(queued, assumed, outcome)
            return False
        self.on_bound(queued, assumed)
        if not assumed.framework.binding_points.has_no_post_bind_plugins():
            return True
        self.activate(assumed)
        return False

    async def _run_post_bind(self, assumed: AssumedPod) -> None:
        await assumed.framework.binding_points.post_bind(assumed.cycle, assumed.pod.spec.node_name)
        self.activate(assumed)

    async def _run_until_written(self, queued: QueuedPodInfo, assumed: AssumedPod, *, waits: bool) -> BindingResult:
        """Every step until the API server has the binding. Any status but success ends the cycle."""
        binding_points, cycle, node_name = assumed.framework.binding_points, assumed.cycle, assumed.pod.spec.node_name
        plan = binding_points.plan_pre_bind(cycle, node_name)
        if not plan.status.ok:
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
        self.writes_in_flight += 1
        try:
            if (status_write := self.statuses.pending_write(queued.uid)) is not None:
                await asyncio.wait(
                    [status_write]
                )  # else the reason of an earlier attempt could be written to a bound pod
            await self._semaphore.acquire()
            worker_slot.set(self._slot_released)
            try:
                status = await self._bind(assumed)
            finally:
                self._semaphore.release()
        finally:
            self.writes_in_flight -= 1
            self.on_write_finished()
        return BindingResult(status)

    @asynccontextmanager
    async def _slot_released(self) -> AsyncIterator[None]:
        """Release the slot to other bindings while this one only waits for its outcome."""
        self._semaphore.release()
        self.writes_in_flight -= 1
        self.on_write_finished()
        try:
            yield
        finally:
            self.writes_in_flight += 1
            await self._semaphore.acquire()

    async def _bind(self, assumed: AssumedPod) -> Status:
        cycle, node_name = assumed.cycle, assumed.pod.spec.node_name
        if self.extender_bind is not None:
            answer = await self.extender_bind(cycle.pod, node_name)
            if answer is not None:
                return answer
        return await assumed.framework.binding_points.bind(cycle, node_name)

    async def _wait_on_permit(self, assumed: AssumedPod) -> BindingResult:
        """Wait for the plugins that delay the pod at Permit."""
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

    def _handle_failure(self, queued: QueuedPodInfo, assumed: AssumedPod, outcome: BindingResult) -> None:
        """Requeue the pod. Unreserving a rejected pod must not wake it: it would be retried without a reason."""
        freed = self.engine.unreserve_and_forget(assumed)
        if freed and not outcome.status.rejected:
            self.queue.move_all_on_event(ASSIGNED_POD_DELETE, assumed.pod, None)
        self.on_failed(queued, outcome.status, outcome.rejectors)
        if freed and outcome.status.rejected:
            self.queue.move_all_on_event(ASSIGNED_POD_DELETE, assumed.pod, None, skip_self=True)

    def activate(self, assumed: AssumedPod) -> None:
        """Activate the pods that plugins asked for during this binding cycle."""
        pods = assumed.cycle.pods_to_activate
        if pods:
            self.queue.activate(list(pods.values()))
            pods.clear()


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
