"""The way of a pod from its node's choice to its binding: Permit's waits, PreBind, Bind, PostBind.

One coroutine a pod, started when it is assumed. Whatever goes wrong takes everything back: what plugins reserved, what
the cache counted, and the pod returns to the queue with the reason on it. The order of steps is kube-scheduler's. Pods
may wait at Permit and in PreBind for minutes, so nothing that is scarce is held there; bindings on the wire are few.
Where the binder binds, a pod that was handed over is an entry in a table until its end is told: thousands may be there.
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
"""Asks the extenders that bind; None where none of them is interested."""

NO_PLUGINS: frozenset[str] = frozenset()


@dataclass(slots=True)
class PreBindTasks:
    """Pods in PreBind, which preemption may still cancel. A write that is under way is finished before: the pod keeps
    its node and its devices until the outcome is known."""

    _cancellations: dict[str, Cancellation] = field(default_factory=dict)
    _causes: dict[str, str] = field(default_factory=dict)

    def __contains__(self, uid: str) -> bool:
        return uid in self._cancellations

    def cancel(self, uid: str, cause: str) -> bool:
        """Whether there was something to cancel: then the pod is not bound, even if PreBind has just ended."""
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
    """How a binding ended. `rejectors`: the plugins that the pod then waits for; only Permit still makes it wait."""

    status: Status
    rejectors: frozenset[str] = NO_PLUGINS


_BOUND = BindingResult(SUCCESS)


@dataclass(slots=True)
class BindingCycles:
    """Carries out placements. `on_failed` is the failure handler; `on_bound` is told of every pod that was bound."""

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
    """Where pods are bound by the binder: who knows what became of it."""
    writes_in_flight: int = 0
    """Pods whose binding is being written, or waits for others to be: not those at Permit or in PreBind."""
    on_write_finished: Callable[[], None] = lambda: None
    """Told whenever these have become fewer. The pod may be on its way for minutes more, by the binder."""
    on_assigned: Callable[[QueuedPodInfo, AssumedPod], None] = lambda *_: None
    """Told of every pod whose binding, or the request for it, the API server has taken."""
    on_finished: Callable[[AssumedPod], None] = lambda _: None
    """Told of every pod that is on its way no longer: it is bound and all is done, or it was taken back."""
    wake_loop: Callable[[], None] = lambda: None
    """Somebody is to call `finish_next_binder_result`."""
    _semaphore: FifoSemaphore = field(init=False)
    _with_binder: dict[str, tuple[QueuedPodInfo, AssumedPod]] = field(default_factory=dict)  # by the uid of the pod
    _binder_results: deque[tuple[str, Status]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._semaphore = FifoSemaphore(self.max_concurrent)

    def limit_concurrency(self, at_once: int) -> None:
        """Have no more written at once than this, before the first is: who waits for more than one thing pays twice."""
        self.max_concurrent = min(self.max_concurrent, at_once)
        self._semaphore = FifoSemaphore(self.max_concurrent)

    async def run_binding_cycle(self, queued: QueuedPodInfo, placed: ScheduleResult) -> None:
        held = placed.assumed
        assert held is not None
        outcome: BindingResult | None = _BOUND
        try:
            outcome = await self._run_until_assigned(queued, held, waits=placed.waiting)
            if outcome is not None and self._finish(queued, held, outcome):
                await self._run_post_bind(held)
        finally:
            if outcome is not None:
                self.on_finished(held)

    async def _run_until_assigned(
        self, queued: QueuedPodInfo, held: AssumedPod, *, waits: bool
    ) -> BindingResult | None:
        """How a pod stands whose binding was written, or was not; None: the binder has it, and may take minutes."""
        uid = queued.uid
        try:
            outcome = await self._run_until_written(queued, held, waits=waits)
            if not outcome.status.ok:
                return outcome
            self.on_assigned(queued, held)
            if self.bind_requests is None:
                return outcome
            status = self.bind_requests.track(held.cycle.pod, partial(self._queue_binder_result, uid))
        except Exception as fault:  # a bug of ours costs the pod one attempt, and never leaves it counted on its node
            log.exception("the binding of pod %s broke", queued.key)
            return BindingResult(error(f"{type(fault).__name__}: {fault}"))
        if status is not None:
            return BindingResult(status)
        self._with_binder[uid] = queued, held
        return None

    def _queue_binder_result(self, uid: str, status: Status) -> None:
        self._binder_results.append((uid, status))
        self.wake_loop()

    @property
    def has_binder_results(self) -> bool:
        """Whether the binder has done with a pod that is not brought to its end yet."""
        return bool(self._binder_results)

    def finish_next_binder_result(self) -> tuple[AssumedPod, Coroutine[Any, Any, None]] | None:
        """Bring a pod to its end that the binder has done with; what of that may take a while is given out."""
        uid, status = self._binder_results.popleft()
        if uid not in self._with_binder:
            return None  # we have let go of it
        queued, held = self._with_binder.pop(uid)
        try:
            if self._finish(queued, held, BindingResult(status)):
                return held, self._finish_after_post_bind(held)
        except Exception:  # a bug of ours with one pod must not keep others from their end
            log.exception("the end of the binding of pod %s broke", queued.key)
        self.on_finished(held)
        return None

    async def _finish_after_post_bind(self, held: AssumedPod) -> None:
        try:
            await self._run_post_bind(held)
        finally:
            self.on_finished(held)

    def stop_tracking(self) -> None:
        """Wait for no pod any more that the binder has: it goes on without us."""
        if self.bind_requests is not None:
            self.bind_requests.stop_tracking()
        for _, held in self._with_binder.values():
            self.on_finished(held)
        self._with_binder.clear()

    def _finish(self, queued: QueuedPodInfo, held: AssumedPod, outcome: BindingResult) -> bool:
        """A pod is bound, or taken back; whether plugins have something to do after binding, which may take a while."""
        if not outcome.status.ok:
            self._handle_failure(queued, held, outcome)
            return False
        self.on_bound(queued, held)
        if not held.framework.binding_points.has_no_post_bind_plugins():
            return True
        self.activate(held)
        return False

    async def _run_post_bind(self, held: AssumedPod) -> None:
        await held.framework.binding_points.post_bind(held.cycle, held.pod.spec.node_name)
        self.activate(held)

    async def _run_until_written(self, queued: QueuedPodInfo, held: AssumedPod, *, waits: bool) -> BindingResult:
        """Every step until the API server has the binding; whatever a step says other than success ends it."""
        committing, cycle, node_name = held.framework.binding_points, held.cycle, held.pod.spec.node_name
        plan = committing.plan_pre_bind(cycle, node_name)
        if not plan.status.ok:
            return BindingResult(plan.status)
        if plan.has_work or waits:
            await self.statuses.nominate(cycle.pod, node_name)
        if waits:
            outcome = await self._wait_on_permit(held)
            if not outcome.status.ok:
                return outcome
        self.queue.done(queued.uid)  # from here on a failure is an error, whatever happened in the cluster meanwhile
        if plan.has_work:
            work = committing.pre_bind(cycle, node_name, plan, _gather_until_failure)
            status = await self.pre_binds.run(queued.uid, work)
            if not status.ok:
                return BindingResult(status)
        self.writes_in_flight += 1
        try:
            if (saying := self.statuses.pending_write(queued.uid)) is not None:
                await asyncio.wait([saying])  # else the reason of an earlier attempt could be written to a bound pod
            await self._semaphore.acquire()
            worker_slot.set(self._slot_released)
            try:
                status = await self._bind(held)
            finally:
                self._semaphore.release()
        finally:
            self.writes_in_flight -= 1
            self.on_write_finished()
        return BindingResult(status)

    @asynccontextmanager
    async def _slot_released(self) -> AsyncIterator[None]:
        """Leave the slot to other bindings while this one only waits to learn its outcome."""
        self._semaphore.release()
        self.writes_in_flight -= 1
        self.on_write_finished()
        try:
            yield
        finally:
            self.writes_in_flight += 1
            await self._semaphore.acquire()

    async def _bind(self, held: AssumedPod) -> Status:
        cycle, node_name = held.cycle, held.pod.spec.node_name
        if self.extender_bind is not None:
            answer = await self.extender_bind(cycle.pod, node_name)
            if answer is not None:
                return answer
        return await held.framework.binding_points.bind(cycle, node_name)

    async def _wait_on_permit(self, held: AssumedPod) -> BindingResult:
        """Wait for the plugins that Permit waits for."""
        waiting = self.engine.waiting_pods.get(held.pod.uid)
        if waiting is None:
            return _BOUND
        outcome: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

        def settled(status: Status) -> None:
            if not outcome.done():
                outcome.set_result(status)

        start_s = held.framework.plugin_caller.now_s()
        waiting.on_outcome = settled
        if waiting.outcome is not None:
            settled(waiting.outcome)
        try:
            status = await outcome
        finally:
            self.engine.stop_waiting(held.pod.uid)
        self.observer.observe_permit_wait(status.code.label, held.framework.plugin_caller.now_s() - start_s)
        if status.rejected:
            return BindingResult(single_node_status(status), frozenset({status.plugin}))
        return BindingResult(
            status if status.ok else error(f"waiting on permit for pod: {status.message}").by(status.plugin)
        )

    def _handle_failure(self, queued: QueuedPodInfo, held: AssumedPod, outcome: BindingResult) -> None:
        """A pod that was rejected must not be woken by its own going: it would be tried again without a reason."""
        gone = self.engine.unreserve_and_forget(held)
        if gone and not outcome.status.rejected:
            self.queue.move_all_on_event(ASSIGNED_POD_DELETE, held.pod, None)
        self.on_failed(queued, outcome.status, outcome.rejectors)
        if gone and outcome.status.rejected:
            self.queue.move_all_on_event(ASSIGNED_POD_DELETE, held.pod, None, spare_own=True)

    def activate(self, held: AssumedPod) -> None:
        """Pods that plugins asked for during this pod's way are tried now."""
        pods = held.cycle.pods_to_activate
        if pods:
            self.queue.activate(list(pods.values()))
            pods.clear()


async def _gather_until_failure(work: Sequence[Coroutine[Any, Any, Status]]) -> Sequence[Status]:
    """The first failure ends the waits of the others. It is returned when their writes are finished."""
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
