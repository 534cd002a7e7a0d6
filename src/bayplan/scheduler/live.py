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

from bayplan.cache.bind_requests import BindRequests
from bayplan.clock import LoopClock
from bayplan.framework.profile import close_all
from bayplan.framework.status import Status, error
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.queueing import QueuedPod, SchedulingQueue
from bayplan.scheduler.binding import Bindings
from bayplan.scheduler.cycle import Ask
from bayplan.scheduler.engine import Held, Placed, PodEngine, Rebuilt
from bayplan.scheduler.evicting import Evictions
from bayplan.scheduler.failing import Failures
from bayplan.scheduler.group_cycle import GroupCycle
from bayplan.scheduler.intake import queue_profiles
from bayplan.scheduler.observing import ERROR, SCHEDULED, UNSCHEDULABLE, NoObserver, Observer
from bayplan.scheduler.routing import Routing
from bayplan.scheduler.telling import Events, scheduled, skipped
from bayplan.scheduler.writing import ApiWrites
from bayplan.telemetry.logs import OUTCOME, Ref, StructuredLog

log = logging.getLogger(__name__)
outcomes = StructuredLog(__name__)

SLICE_S = 0.004
_MOST_ON_THE_WIRE, _FEW_ON_THE_WIRE = 1024, 512
"""So many bindings may be waiting to be written; more pods wait in the queue, where priority still counts. Once there
are so many, nobody decides until they are few: one decision for each binding that was written costs half as much again
as hundreds in a row, and the wire has enough to do meanwhile."""
_MOST_FOLLOWING = 25
"""After so many slices of following a flood of changes one goes to attempts: nobody waits for the flood to end."""
_LEEWAY_S, _MOST_LEEWAY_S = 0.001, 0.02
"""For each pod that waits for the binder, and in all. No binder takes a pod a millisecond, so whoever comes new waits
for those longer than for us; and where the binder is not what they wait for, nobody notices so little."""
_MOST_WRITING_S, _MOST_READING_S = 0.1, 0.25
"""The same in all where every pod is bound by the binder: whoever comes new then is behind those that wait for it, so
that a longer rest costs nobody his place, nor any time. Still longer where nothing of ours is on its way to the server
either, and all there can be to hear is what the binder does."""
_NOBODY: frozenset[str] = frozenset()
Following = Callable[[KubeObject | None, KubeObject | None], Iterator[int]]
"""What a change means, in slices."""


@dataclass(slots=True)
class Retired:
    """Plugins that were replaced, and the pods under way that still need them. They are closed when the last is."""

    plugins: Sequence[Any]
    users: set[Held]

    def is_done_with(self, held: Held) -> bool:
        self.users.discard(held)
        return self.close_if_idle()

    def close_if_idle(self) -> bool:
        if self.users:
            return False
        close_all(self.plugins)
        self.plugins = ()
        return True


@dataclass(slots=True)
class LiveScheduler:
    """Runs one pod engine. `hear` is the handler of every informer; `run` goes on until it is cancelled."""

    engine: PodEngine
    queue: SchedulingQueue
    routing: Routing
    bindings: Bindings
    failures: Failures
    evictions: Evictions
    writes: ApiWrites
    events: Events
    clock: LoopClock
    ask: Ask | None = None
    groups: GroupCycle | None = None
    """Who decides about pods of groups; nobody: they are pods like others."""
    observer: Observer = field(default_factory=NoObserver)
    slice_s: float = SLICE_S
    all_by_binder: bool = False
    """Whether every profile has its pods bound by the binder."""
    _heard: deque[tuple[Following, KubeObject | None, KubeObject | None]] = field(default_factory=deque)
    _following: Iterator[int] | None = None
    _flushing: Iterator[int] | None = None
    _slices_behind: int = 0
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _on_their_way: set[Held] = field(default_factory=set)
    _binding: dict[asyncio.Task[None], Held] = field(default_factory=dict)
    _deciding: bool = True
    _wire_is_full: bool = False
    _slice_ends_s: float = 0.0
    _rebuilt: Rebuilt | None = None
    _retired: list[Retired] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bindings.left_the_wire = self._left_the_wire
        self.bindings.assigned, self.bindings.arrived, self.bindings.wake = self._assigned, self._arrived, self.wake

    @property
    def requests(self) -> BindRequests | None:
        """Bind requests of our pods, where there may be some."""
        return self.routing.requests

    # what is told -----------------------------------------------------------------------------------------------

    def hear(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """The API server told of a change."""
        self._heard.append((self.routing.following, old, new))
        self._woken.set()

    def assumed(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """We wrote something, and need not wait to be told of it."""
        self._heard.append((self.routing.assumed, old, new))
        self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    def renew(self, rebuilt: Rebuilt) -> None:
        """Go on with other profiles as soon as no attempt is under way and all that was told is followed."""
        if self._rebuilt is not None:
            self.engine.discard(self._rebuilt)
        self._rebuilt = rebuilt
        self._woken.set()

    def stop_deciding(self) -> None:
        """No attempt begins any more; what is under way goes on."""
        self._deciding = False

    async def drain(self) -> None:
        """Wait for pods that are on their way to a node, and for what is being written. Nobody waits at Permit."""
        for waiting in self.engine.waiting.all():
            waiting.preempt("", "the scheduler stops")
        while not self._finish_a_slice():
            await asyncio.sleep(0)
        self.bindings.let_go()
        while self._binding:
            await asyncio.wait(self._binding)  # it cancels no binding when it is cancelled itself
        await self.writes.drain()

    async def abandon(self) -> None:
        """Leave everything that is under way as it is; who starts next finds out how far it came."""
        self.bindings.let_go()
        for task in self._binding:
            task.cancel()
        while self._binding:
            await asyncio.wait(self._binding)  # it cancels no binding when it is cancelled itself
        await self.writes.abandon()

    @property
    def under_way(self) -> int:
        """Pods that are on their way to a node."""
        return len(self._on_their_way)

    @property
    def has_open_writes(self) -> bool:
        """Whether a write may still take effect, also of an extender that was asked to bind a pod."""
        return self.bindings.on_the_wire > 0 or self.writes.has_open_writes

    @property
    def is_writing(self) -> bool:
        """Whether bindings, evictions or statuses are on their way to the API server."""
        return self.bindings.on_the_wire > 0 or self.writes.busy

    @property
    def with_the_binder(self) -> int:
        """Pods that were handed to the binder, and are not known to be bound."""
        return 0 if self.requests is None else self.requests.waiting

    @property
    def is_idle(self) -> bool:
        """Whether all that was told is followed, nothing is on its way, and nobody is ready to be tried."""
        under_way = self._heard or self._rebuilt or self._following or self._on_their_way
        return not (under_way or self.queue.counts()["active"])

    def leeway_s(self) -> float:
        """How long news may wait: not at all, unless all that is under way is with the binder, or on its way there.

        Then they are answers that nobody waits for, and pods that turn up on nodes where they are counted already.
        """
        waiting = self.with_the_binder
        is_all = self.under_way == self.bindings.on_the_wire + waiting
        if not is_all or self.ask is not None or self.writes.busy:
            return 0.0
        most_s = _MOST_LEEWAY_S
        if self.all_by_binder:
            most_s = _MOST_WRITING_S if self.bindings.on_the_wire else _MOST_READING_S
        return min(waiting * _LEEWAY_S, most_s)

    # the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        await self.catch_up()  # nobody decides on half a picture
        for _ in self.engine.looking():
            await asyncio.sleep(0)
        while True:
            self._woken.clear()
            if await self._turn():
                await asyncio.sleep(0)
                continue
            await self._rest()

    async def catch_up(self) -> None:
        """Follow all that was told so far."""
        while not self._follow_a_slice():
            await asyncio.sleep(0)

    async def follow(self) -> None:
        """What `run` does besides deciding: for a process that waits to be elected."""
        while True:
            self._woken.clear()
            if self._follow_a_slice():
                await self._woken.wait()
            else:
                await asyncio.sleep(0)

    async def _turn(self) -> bool:
        """One slice of work; false where there is none left."""
        followed = self._follow_a_slice()
        if not self._finish_a_slice():
            return True
        if not followed:
            self._slices_behind += 1
            if self._slices_behind < _MOST_FOLLOWING:
                return True
            self._slice_ends_s = self.clock.monotonic_s() + self.slice_s
        self._slices_behind = 0
        if not self._do_what_is_due():
            return True
        while self._deciding and self._has_room_on_the_wire():
            queued = self.queue.pop()
            if queued is None:
                return bool(self._heard)
            await self._attempt(queued)
            if self._heard or self.clock.monotonic_s() > self._slice_ends_s:
                return True
        return bool(self._heard)

    def _has_room_on_the_wire(self) -> bool:
        self._wire_is_full = self.bindings.on_the_wire >= (
            _FEW_ON_THE_WIRE if self._wire_is_full else _MOST_ON_THE_WIRE
        )
        return not self._wire_is_full

    def _follow_a_slice(self) -> bool:
        """Follow what was told; false where the slice ended before that was done."""
        self._slice_ends_s = self.clock.monotonic_s() + self.slice_s
        while self._following is not None or self._heard or self._rebuilt is not None:
            if self._following is None:
                self._following = self._routed(*self._heard.popleft()) if self._heard else self._install()
            for _ in self._following:
                if self.clock.monotonic_s() > self._slice_ends_s:
                    return False
            self._following = None
            if self.clock.monotonic_s() > self._slice_ends_s:  # a change that wakes nobody has no slices of its own
                return not (self._heard or self._rebuilt)
        return True

    def _install(self) -> Iterator[int]:
        """Swap profiles, and wake the pods that changed plugins had rejected. Pods under way keep what they have."""
        rebuilt, self._rebuilt = self._rebuilt, None
        assert rebuilt is not None
        plugins = self.engine.install(rebuilt)
        retired = Retired(plugins, set(self._on_their_way))
        if not retired.close_if_idle():
            self._retired.append(retired)
        return self.queue.install(queue_profiles(self.engine), rebuilt.changed)

    def _routed(self, following: Following, old: KubeObject | None, new: KubeObject | None) -> Iterator[int]:
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
        for event in self.routing.followed:
            self.observer.handled(event, took_s)

    def _do_what_is_due(self) -> bool:
        """What time and plugins ask for; false where the slice ended before that was done."""
        now_s = self.clock.monotonic_s()
        deadline_s = self.engine.waiting.next_deadline_s()
        if deadline_s is not None and deadline_s <= now_s:
            for waiting in self.engine.waiting.all():
                waiting.expire(now_s)
        self.evictions.end_pauses()
        if self.groups is not None:
            self.groups.statuses.retry()
        if self.engine.activated:
            pods = list(self.engine.activated.values())
            self.engine.activated.clear()
            self.queue.activate(pods)
        while self._deciding and (untold := self.queue.pop_untold()) is not None:
            self.failures.not_let_in(*untold)
            if self.clock.monotonic_s() > self._slice_ends_s:
                return False
        wakeup_s = self.queue.next_wakeup_s()
        if self._flushing is None and wakeup_s is not None and wakeup_s <= now_s:
            self._flushing = self.queue.flushing()
        for _ in self._flushing or ():
            if self.clock.monotonic_s() > self._slice_ends_s:
                return False
        self._flushing = None
        return True

    async def _rest(self) -> None:
        """Until something happens, or is due."""
        moments = [self.queue.next_wakeup_s(), self.engine.waiting.next_deadline_s(), self.evictions.next_pause_end_s()]
        if self.groups is not None:
            moments.append(self.groups.statuses.next_retry_s())
        due = [at for at in moments if at is not None]
        if self.engine.activated or (self._deciding and self.queue.has_untold):
            due.append(self.clock.monotonic_s())
        if not due:
            await self._woken.wait()
            return
        pause_s = max(0.0, min(due) - self.clock.monotonic_s())
        waking = asyncio.ensure_future(self._woken.wait())
        resting = asyncio.ensure_future(self.clock.sleep(pause_s))
        try:
            await asyncio.wait((waking, resting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
            resting.cancel()

    # attempts ---------------------------------------------------------------------------------------------------

    async def _attempt(self, queued: QueuedPod) -> None:
        pod = queued.pod
        in_group = self.groups is not None and pod.spec.scheduling_group is not None
        if not in_group and self.skip(queued):
            return
        try:
            if self.groups is not None and in_group:
                await self.groups.attempt(queued)
            else:
                await self._try(queued)
        except Exception as fault:  # a bug of ours costs the pod one attempt, never the process
            log.exception("an attempt to place pod %s broke", pod.key)
            self._observe_failure(queued, broken := error(f"{type(fault).__name__}: {fault}"))
            self.failures.handle(queued, broken, "")

    def skip(self, queued: QueuedPod) -> bool:
        """Whether a pod need not be tried: it goes, or is on its way already."""
        pod = queued.pod
        if pod.terminating:
            skipped(self.events, pod)
        elif self.engine.cache.pod(pod.uid) is None:
            return False
        self.queue.done(queued.uid)
        return True

    async def _try(self, queued: QueuedPod) -> None:
        queued.tried_s = self.clock.monotonic_s()
        placed = await self._placed(queued)
        self.observer.decided(self.clock.monotonic_s() - queued.tried_s)
        if placed.held is None:
            self._failed(queued, placed)
            return
        self.start_binding(queued, placed)

    async def _placed(self, queued: QueuedPod) -> Placed:
        if self.ask is None:
            return self.engine.place(queued.info)
        return await self.engine.place_asking(queued.info, self.ask)

    def _failed(self, queued: QueuedPod, placed: Placed) -> None:
        decision = placed.decision
        self._observe_failure(queued, placed.status)
        refused = decision.node is not None  # at Reserve or Permit
        room = self.evictions.prepare(queued.pod, decision.writes) if decision.writes and not refused else None
        nominate = "" if refused else decision.nominate
        told = self.failures.handle(queued, placed.status, nominate, *placed.rejectors, room=room)
        if room is not None:
            self.evictions.start(room, told)

    def start_binding(self, queued: QueuedPod, placed: Placed) -> None:
        """A pod has its node, and is sent on its way."""
        assert placed.held is not None
        self._on_their_way.add(placed.held)
        self.bindings.activate(placed.held)
        self._start(placed.held, self.bindings.carry_out(queued, placed))

    def _start(self, held: Held, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._binding[task] = held
        task.add_done_callback(self._binding_ended)

    def _finish_a_slice(self) -> bool:
        """Bring pods to their end that the binder has done with; false where the slice ended before all were."""
        ends_s = self.clock.monotonic_s() + self.slice_s if self.bindings.has_ended else 0.0
        while self.bindings.has_ended:
            if (rest := self.bindings.finish_next()) is not None:
                self._start(*rest)
            if self.clock.monotonic_s() > ends_s:
                return not self.bindings.has_ended
        return True

    def _left_the_wire(self) -> None:
        """There is room again, though the binder may not be done with a single pod."""
        if self._wire_is_full and self.bindings.on_the_wire < _FEW_ON_THE_WIRE:
            self._woken.set()

    def _arrived(self, held: Held) -> None:
        self._on_their_way.discard(held)
        if self._retired:
            self._retired = [each for each in self._retired if not each.is_done_with(held)]
        if self.engine.activated or (self.queue.has_ready and not self._wire_is_full):  # they waited for this very pod
            self._woken.set()

    def _binding_ended(self, task: asyncio.Task[None]) -> None:
        held = self._binding.pop(task)
        if task.cancelled():
            self._arrived(held)  # it may have been cancelled before its first step
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("a binding broke", exc_info=fault)

    # outcomes ---------------------------------------------------------------------------------------------------

    def _assigned(self, queued: QueuedPod, held: Held) -> None:
        """The API server has the binding of a pod, or the request for it: the binder tells of the rest."""
        scheduled(self.events, queued.pod, held.pod.spec.node_name)

    def bound(self, queued: QueuedPod, held: Held) -> None:
        """A pod is bound."""
        now_s = self.clock.monotonic_s()
        self.engine.cache.finish_binding(queued.uid, now_s)
        self.observer.attempt(SCHEDULED, queued.pod.scheduler_name, now_s - queued.tried_s)
        self.observer.scheduled(queued.attempts, self.queue.waited_s(queued), after_flush=queued.flushed)
        if outcomes.enabled(OUTCOME):
            outcomes.info(
                "Successfully bound pod to node", v=OUTCOME, pod=Ref(queued.key), node=held.pod.spec.node_name
            )

    def binding_failed(self, queued: QueuedPod, status: Status, rejectors: frozenset[str] = _NOBODY) -> None:
        """A pod that had a node does not get it, and no longer waits for it."""
        self._observe_failure(queued, status)
        self.failures.handle(queued, status, "", rejectors)
        self._woken.set()

    def _observe_failure(self, queued: QueuedPod, status: Status) -> None:
        result = UNSCHEDULABLE if status.rejected else ERROR
        self.observer.attempt(result, queued.pod.scheduler_name, self.clock.monotonic_s() - queued.tried_s)

    def activate(self, pod: Pod) -> None:
        """Have a pod tried again at once."""
        self.queue.activate([pod])
        self._woken.set()

    def retry(self, pod: Pod) -> None:
        """Have a pod tried again after its backoff."""
        self.queue.retry([pod])
        self._woken.set()
