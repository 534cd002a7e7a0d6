"""Tasks of the binding cycles, one for each assumed pod, and the plugins that these pods need.

The run loop starts them. A pod that the binder has needs no task: `finish_results` ends its cycle in a slice of the run
loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayplan.framework.runtime.profile import close_all
from bayplan.queue import QueuedPodInfo
from bayplan.scheduler.binding.binding_cycle import BindingCycle, BindingResult
from bayplan.scheduler.cycle.schedule_result import AssumedPod, ScheduleResult

log = logging.getLogger(__name__)


@dataclass(slots=True)
class BindingTasks:
    """Runs the binding cycles of all assumed pods."""

    cycle: BindingCycle
    assumed_pods: set[AssumedPod] = field(default_factory=set)
    """Pods in a binding cycle."""
    tasks: dict[asyncio.Task[None], AssumedPod] = field(default_factory=dict)
    _retired: list[tuple[Sequence[Any], set[AssumedPod]]] = field(default_factory=list)
    """Replaced plugins, and the pods that were assumed then."""

    def start(self, queued: QueuedPodInfo, placed: ScheduleResult) -> None:
        assert placed.assumed is not None
        self.assumed_pods.add(placed.assumed)
        self.cycle.activate(placed.assumed)
        self.start_task(placed.assumed, self._run(queued, placed, placed.assumed))

    def start_task(self, assumed: AssumedPod, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks[task] = assumed
        task.add_done_callback(self._on_task_done)

    async def _run(self, queued: QueuedPodInfo, placed: ScheduleResult, assumed: AssumedPod) -> None:
        is_finished = True
        try:
            is_finished = await self.cycle.run(queued, placed)
        finally:
            if is_finished:
                self._release(assumed)

    async def _run_post_bind(self, assumed: AssumedPod) -> None:
        try:
            await self.cycle.post_bind(assumed)
        finally:
            self._release(assumed)

    def finish_results(self, slice_s: float) -> bool:
        """Finish pods with a result of the binder. False if the slice ended before all were finished."""
        results, now_s = self.cycle.binder_results, self.cycle.clock.monotonic_s
        ends_s = now_s() + slice_s if results else 0.0
        while results:
            uid, status = results.popleft()
            if uid in self.cycle.at_binder:  # else tracking has stopped
                self._finish(*self.cycle.at_binder.pop(uid), BindingResult(status))
            if now_s() > ends_s:
                return not results
        return True

    def _finish(self, queued: QueuedPodInfo, assumed: AssumedPod, result: BindingResult) -> None:
        try:
            if self.cycle.finish(queued, assumed, result):
                self.start_task(assumed, self._run_post_bind(assumed))
                return
        except Exception:  # a bug with one pod must not block the next results
            log.exception("cannot finish the binding of pod %s", queued.key)
        self._release(assumed)

    def _release(self, assumed: AssumedPod) -> None:
        """The binding cycle of a pod is over: it is bound with PostBind done, or it was unreserved."""
        self.assumed_pods.discard(assumed)
        self._close_retired()
        cycle = self.cycle
        # attempts that waited for this pod
        if cycle.engine.pods_to_activate or (cycle.queue.has_ready and not cycle.write_limit_reached):
            cycle.wake.set()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        assumed = self.tasks.pop(task)
        if task.cancelled():
            self._release(assumed)  # it may have been cancelled before its first step ran
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("a binding cycle failed", exc_info=fault)

    def retire(self, plugins: Sequence[Any]) -> None:
        """Close replaced plugins when no pod that is assumed now needs them."""
        self._retired.append((plugins, set(self.assumed_pods)))
        self._close_retired()

    def _close_retired(self) -> None:
        for retired in [each for each in self._retired if each[1].isdisjoint(self.assumed_pods)]:
            self._retired.remove(retired)
            close_all(retired[0])

    async def drain(self, slice_s: float) -> None:
        """Wait for all binding cycles. Pods at Permit are rejected."""
        for waiting in self.cycle.engine.waiting_pods.all():
            waiting.preempt("", "the scheduler stops")
        while not self.finish_results(slice_s):
            await asyncio.sleep(0)
        self._stop_tracking()
        await self._wait_for_tasks()

    async def abandon(self) -> None:
        self._stop_tracking()
        for task in self.tasks:
            task.cancel()
        await self._wait_for_tasks()

    async def _wait_for_tasks(self) -> None:
        while self.tasks:
            await asyncio.wait(self.tasks)  # cancelling this wait cancels no binding

    def _stop_tracking(self) -> None:
        """Stop waiting for pods that the binder has: it binds them without the scheduler."""
        if self.cycle.bind_requests is not None:
            self.cycle.bind_requests.stop_tracking()
        for _, assumed in self.cycle.at_binder.values():
            self._release(assumed)
        self.cycle.at_binder.clear()
