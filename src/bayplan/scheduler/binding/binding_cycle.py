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

from bayplan.api_writes.observer import NoObserver, Observer
from bayplan.api_writes.pod_statuses import PodStatuses
from bayplan.bind_requests.tracker import BindRequests
from bayplan.client import worker_slot
from bayplan.client.cancellation import Cancellation, start_cancellable
from bayplan.framework.api.status import SUCCESS, Status, error
from bayplan.framework.runtime.object_changes import ASSIGNED_POD_DELETE
from bayplan.objects.core import Pod
from bayplan.queue import QueuedPod, SchedulingQueue
from bayplan.scheduler.binding.semaphore import Turns
from bayplan.scheduler.engine import Held, Placed, PodEngine, refusal

log = logging.getLogger(__name__)

ExtenderBind = Callable[[Pod, str], Awaitable[Status | None]]
"""Asks the extenders that bind; None where none of them is interested."""

NOBODY: frozenset[str] = frozenset()


@dataclass(slots=True)
class PreBinds:
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
class Outcome:
    """How a binding ended. `rejectors`: the plugins that the pod then waits for; only Permit still makes it wait."""

    status: Status
    rejectors: frozenset[str] = NOBODY


_BOUND = Outcome(SUCCESS)


@dataclass(slots=True)
class Bindings:
    """Carries out placements. `failed` is the failure handler; `bound` is told of every pod that was bound."""

    engine: PodEngine
    queue: SchedulingQueue
    bound: Callable[[QueuedPod, Held], None]
    failed: Callable[[QueuedPod, Status, frozenset[str]], None]
    statuses: PodStatuses
    at_once: int = 64
    extender_bind: ExtenderBind | None = None
    pre_binds: PreBinds = field(default_factory=PreBinds)
    observer: Observer = field(default_factory=NoObserver)
    requests: BindRequests | None = None
    """Where pods are bound by the binder: who knows what became of it."""
    on_the_wire: int = 0
    """Pods whose binding is being written, or waits for others to be: not those at Permit or in PreBind."""
    left_the_wire: Callable[[], None] = lambda: None
    """Told whenever these have become fewer. The pod may be on its way for minutes more, by the binder."""
    assigned: Callable[[QueuedPod, Held], None] = lambda *_: None
    """Told of every pod whose binding, or the request for it, the API server has taken."""
    arrived: Callable[[Held], None] = lambda _: None
    """Told of every pod that is on its way no longer: it is bound and all is done, or it was taken back."""
    wake: Callable[[], None] = lambda: None
    """Somebody is to call `finish_next`."""
    _room: Turns = field(init=False)
    _with_binder: dict[str, tuple[QueuedPod, Held]] = field(default_factory=dict)  # by the uid of the pod
    _ended: deque[tuple[str, Status]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._room = Turns(self.at_once)

    def narrow(self, at_once: int) -> None:
        """Have no more written at once than this, before the first is: who waits for more than one thing pays twice."""
        self.at_once = min(self.at_once, at_once)
        self._room = Turns(self.at_once)

    async def carry_out(self, queued: QueuedPod, placed: Placed) -> None:
        held = placed.held
        assert held is not None
        outcome: Outcome | None = _BOUND
        try:
            outcome = await self._followed_up(queued, held, waits=placed.waiting)
            if outcome is not None and self._concluded(queued, held, outcome):
                await self._after_binding(held)
        finally:
            if outcome is not None:
                self.arrived(held)

    async def _followed_up(self, queued: QueuedPod, held: Held, *, waits: bool) -> Outcome | None:
        """How a pod stands whose binding was written, or was not; None: the binder has it, and may take minutes."""
        uid = queued.uid
        try:
            outcome = await self._outcome(queued, held, waits=waits)
            if not outcome.status.ok:
                return outcome
            self.assigned(queued, held)
            if self.requests is None:
                return outcome
            status = self.requests.follow_up(held.cycle.pod, partial(self._end, uid))
        except Exception as fault:  # a bug of ours costs the pod one attempt, and never leaves it counted on its node
            log.exception("the binding of pod %s broke", queued.key)
            return Outcome(error(f"{type(fault).__name__}: {fault}"))
        if status is not None:
            return Outcome(status)
        self._with_binder[uid] = queued, held
        return None

    def _end(self, uid: str, status: Status) -> None:
        self._ended.append((uid, status))
        self.wake()

    @property
    def has_ended(self) -> bool:
        """Whether the binder has done with a pod that is not brought to its end yet."""
        return bool(self._ended)

    def finish_next(self) -> tuple[Held, Coroutine[Any, Any, None]] | None:
        """Bring a pod to its end that the binder has done with; what of that may take a while is given out."""
        uid, status = self._ended.popleft()
        if uid not in self._with_binder:
            return None  # we have let go of it
        queued, held = self._with_binder.pop(uid)
        try:
            if self._concluded(queued, held, Outcome(status)):
                return held, self._arriving(held)
        except Exception:  # a bug of ours with one pod must not keep others from their end
            log.exception("the end of the binding of pod %s broke", queued.key)
        self.arrived(held)
        return None

    async def _arriving(self, held: Held) -> None:
        try:
            await self._after_binding(held)
        finally:
            self.arrived(held)

    def let_go(self) -> None:
        """Wait for no pod any more that the binder has: it goes on without us."""
        if self.requests is not None:
            self.requests.let_go()
        for _, held in self._with_binder.values():
            self.arrived(held)
        self._with_binder.clear()

    def _concluded(self, queued: QueuedPod, held: Held, outcome: Outcome) -> bool:
        """A pod is bound, or taken back; whether plugins have something to do after binding, which may take a while."""
        if not outcome.status.ok:
            self._take_back(queued, held, outcome)
            return False
        self.bound(queued, held)
        if not held.framework.committing.nobody_after_binding():
            return True
        self.activate(held)
        return False

    async def _after_binding(self, held: Held) -> None:
        await held.framework.committing.post_bind(held.cycle, held.pod.spec.node_name)
        self.activate(held)

    async def _outcome(self, queued: QueuedPod, held: Held, *, waits: bool) -> Outcome:
        """Every step until the API server has the binding; whatever a step says other than success ends it."""
        committing, cycle, node_name = held.framework.committing, held.cycle, held.pod.spec.node_name
        plan = committing.plan_pre_bind(cycle, node_name)
        if not plan.status.ok:
            return Outcome(plan.status)
        if plan.has_work or waits:
            await self.statuses.nominate(cycle.pod, node_name)
        if waits:
            outcome = await self._permitted(held)
            if not outcome.status.ok:
                return outcome
        self.queue.done(queued.uid)  # from here on a failure is an error, whatever happened in the cluster meanwhile
        if plan.has_work:
            work = committing.pre_bind(cycle, node_name, plan, _together)
            status = await self.pre_binds.run(queued.uid, work)
            if not status.ok:
                return Outcome(status)
        self.on_the_wire += 1
        try:
            if (saying := self.statuses.being_written(queued.uid)) is not None:
                await asyncio.wait([saying])  # else the reason of an earlier attempt could be written to a bound pod
            await self._room.take()
            worker_slot.set(self._without_slot)
            try:
                status = await self._written(held)
            finally:
                self._room.give()
        finally:
            self.on_the_wire -= 1
            self.left_the_wire()
        return Outcome(status)

    @asynccontextmanager
    async def _without_slot(self) -> AsyncIterator[None]:
        """Leave the slot to other bindings while this one only waits to learn its outcome."""
        self._room.give()
        self.on_the_wire -= 1
        self.left_the_wire()
        try:
            yield
        finally:
            self.on_the_wire += 1
            await self._room.take()

    async def _written(self, held: Held) -> Status:
        cycle, node_name = held.cycle, held.pod.spec.node_name
        if self.extender_bind is not None:
            answer = await self.extender_bind(cycle.pod, node_name)
            if answer is not None:
                return answer
        return await held.framework.committing.bind(cycle, node_name)

    async def _permitted(self, held: Held) -> Outcome:
        """Wait for the plugins that Permit waits for."""
        waiting = self.engine.waiting.get(held.pod.uid)
        if waiting is None:
            return _BOUND
        outcome: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

        def settled(status: Status) -> None:
            if not outcome.done():
                outcome.set_result(status)

        start_s = held.framework.boundary.now_s()
        waiting.on_settled = settled
        if waiting.outcome is not None:
            settled(waiting.outcome)
        try:
            status = await outcome
        finally:
            self.engine.stop_waiting(held.pod.uid)
        self.observer.waited_on_permit(status.code.label, held.framework.boundary.now_s() - start_s)
        if status.rejected:
            return Outcome(refusal(status), frozenset({status.plugin}))
        return Outcome(status if status.ok else error(f"waiting on permit for pod: {status.message}").by(status.plugin))

    def _take_back(self, queued: QueuedPod, held: Held, outcome: Outcome) -> None:
        """A pod that was rejected must not be woken by its own going: it would be tried again without a reason."""
        gone = self.engine.take_back(held)
        if gone and not outcome.status.rejected:
            self.queue.move_all(ASSIGNED_POD_DELETE, held.pod, None)
        self.failed(queued, outcome.status, outcome.rejectors)
        if gone and outcome.status.rejected:
            self.queue.move_all(ASSIGNED_POD_DELETE, held.pod, None, spare_own=True)

    def activate(self, held: Held) -> None:
        """Pods that plugins asked for during this pod's way are tried now."""
        pods = held.cycle.pods_to_activate
        if pods:
            self.queue.activate(list(pods.values()))
            pods.clear()


async def _together(work: Sequence[Coroutine[Any, Any, Status]]) -> Sequence[Status]:
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
