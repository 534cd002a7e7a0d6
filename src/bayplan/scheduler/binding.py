"""The way of a pod from its node's choice to its binding: Permit's waits, PreBind, Bind, PostBind.

One coroutine a pod, started when it is assumed. Whatever goes wrong takes everything back: what plugins reserved, what
the cache counted, and the pod returns to the queue with the reason on it. The order of steps is kube-scheduler's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bayplan.framework.changes import ASSIGNED_POD_DELETE
from bayplan.framework.status import SUCCESS, Status, error
from bayplan.objects.core import Pod
from bayplan.queueing import QueuedPod, SchedulingQueue
from bayplan.scheduler.engine import Held, Placed, PodEngine

log = logging.getLogger(__name__)

ExtenderBind = Callable[[Pod, str], Awaitable[Status | None]]
"""Asks the extenders that bind; None where none of them is interested."""


@dataclass(slots=True)
class PreBinds:
    """Pods in PreBind, which preemption may still cancel."""

    _tasks: dict[str, asyncio.Task[Status]] = field(default_factory=dict)
    _causes: dict[str, str] = field(default_factory=dict)

    def cancel(self, uid: str, cause: str) -> bool:
        """Whether there was something to cancel."""
        task = self._tasks.get(uid)
        if task is None:
            return False
        self._causes[uid] = cause
        task.cancel()
        return True

    async def run(self, uid: str, work: Awaitable[Status]) -> Status:
        task = self._tasks[uid] = asyncio.ensure_future(work)
        try:
            return await task
        except asyncio.CancelledError:
            cause = self._causes.get(uid)
            if cause is None or (current := asyncio.current_task()) is None or current.cancelling():
                task.cancel()
                raise
            return error(cause)
        finally:
            self._tasks.pop(uid, None)
            self._causes.pop(uid, None)


@dataclass(slots=True)
class Bindings:
    """Carries out placements. `failed` is the failure handler; `bound` is told of every pod that was bound."""

    engine: PodEngine
    queue: SchedulingQueue
    bound: Callable[[QueuedPod, Held], None]
    failed: Callable[[QueuedPod, Status], None]
    nominate: Callable[[Pod, str], Awaitable[None]]
    at_once: int = 64
    extender_bind: ExtenderBind | None = None
    pre_binds: PreBinds = field(default_factory=PreBinds)
    _room: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._room = asyncio.Semaphore(self.at_once)

    async def carry_out(self, queued: QueuedPod, placed: Placed) -> None:
        held = placed.held
        assert held is not None
        status = await self._bind(queued, held, waits=placed.waiting)
        if status.ok:
            self.bound(queued, held)
            await held.framework.committing.post_bind(held.cycle, held.pod.spec.node_name)
            self._activate(held)
            return
        self._take_back(queued, held, status)

    async def _bind(self, queued: QueuedPod, held: Held, *, waits: bool) -> Status:
        """Every step until the API server has the binding; whatever a step says other than success ends it."""
        committing, cycle, node_name = held.framework.committing, held.cycle, held.pod.spec.node_name
        plan = committing.plan_pre_bind(cycle, node_name)
        if not plan.status.ok:
            return plan.status
        if plan.has_work or waits:
            await self.nominate(cycle.pod, node_name)
        if waits:
            status = await self._permitted(held)
            if not status.ok:
                return status
        self.queue.done(queued.uid)  # from here on a failure is an error, whatever happened in the cluster meanwhile
        async with self._room:
            if plan.has_work:
                work = committing.pre_bind(cycle, node_name, plan, _together)
                status = await self.pre_binds.run(queued.uid, work)
                if not status.ok:
                    return status
            if self.extender_bind is not None:
                answer = await self.extender_bind(cycle.pod, node_name)
                if answer is not None:
                    return answer
            return await committing.bind(cycle, node_name)

    async def _permitted(self, held: Held) -> Status:
        """Wait for the plugins that Permit waits for."""
        waiting = self.engine.waiting.get(held.pod.uid)
        if waiting is None:
            return SUCCESS
        outcome: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

        def settled(status: Status) -> None:
            if not outcome.done():
                outcome.set_result(status)

        waiting.on_settled = settled
        if waiting.outcome is not None:
            settled(waiting.outcome)
        try:
            status = await outcome
        finally:
            self.engine.stop_waiting(held.pod.uid)
        if status.ok or status.rejected:
            return status
        return error(f"waiting on permit for pod: {status.message}").by(status.plugin)

    def _take_back(self, queued: QueuedPod, held: Held, status: Status) -> None:
        known = self.engine.cache.is_assumed(held.pod.uid)
        self.engine.take_back(held)
        if not status.rejected and known:
            self.queue.move_all(ASSIGNED_POD_DELETE, held.pod, None)
        self.failed(queued, status)
        if status.rejected and known:
            self.queue.move_all(ASSIGNED_POD_DELETE, held.pod, None)

    def _activate(self, held: Held) -> None:
        pods = held.cycle.pods_to_activate
        if pods:
            self.queue.activate(pods.values())


async def _together(work: Sequence[Awaitable[Status]]) -> Sequence[Status]:
    if len(work) == 1:
        return [await work[0]]
    return await asyncio.gather(*work)
