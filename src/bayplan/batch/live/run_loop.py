"""The batch engine on a cluster: one session after another, and what the API server tells meanwhile.

One loop owns everything. A session is plain code that yields; whenever a slice of a few milliseconds is over the loop
has its turn, so that connections, watches, bindings and probes are served during a session of any size. What a session
has committed by then is sent on its way at once.

Sessions are a period apart, as Volcano's are. Where something has happened that a session could make use of, one comes
before its time: it decides, and leaves it to the next regular one to tell why others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from bayplan.batch.diagnostics.cache_dumper import cache_lines, lines_of
from bayplan.batch.engine import BatchEngine
from bayplan.batch.live.binding import Binds
from bayplan.batch.live.event_handlers import Following
from bayplan.batch.live.eviction import PodEvictions
from bayplan.batch.live.gate_removal import GateRemovals
from bayplan.batch.live.observer import BatchObserver, NoBatchObserver
from bayplan.batch.live.session_triggers import calls_for_session
from bayplan.batch.live.status_updater import Telling
from bayplan.batch.live.write_interfaces import Writer
from bayplan.batch.session.outcome import Outcome
from bayplan.batch.session.verbose_log import DECISIONS, STEPS
from bayplan.client.step_thread import Aside
from bayplan.clock import LoopClock
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.telemetry.logs import StructuredLog

log = logging.getLogger(__name__)
details = StructuredLog(__name__)

SLICE_S = 0.004
PERIOD_S = 1.0
SHORTEST_PAUSE_S = 0.05
"""Between two sessions: changes seldom come alone, and a gang is worth more when more of it is there."""
_OTHERS_SHARE = 3
"""So many times as long as the last session took is others' before the next comes before its time."""
_ENDED = object()


async def _nothing_to_prepare() -> None: ...


@dataclass(slots=True)
class LiveBatch:
    """Runs one batch engine. `hear` is the handler of every informer; `run` goes on until it is cancelled."""

    engine: BatchEngine
    following: Following
    binds: Binds
    evictions: PodEvictions
    admissions: GateRemovals
    telling: Telling
    writes: Writer
    clock: LoopClock
    period_s: float = PERIOD_S
    slice_s: float = SLICE_S
    observer: BatchObserver = field(default_factory=NoBatchObserver)
    aside: Aside = field(default_factory=Aside)
    """Where sessions wait for others."""
    prepare: Callable[[], Awaitable[None]] = _nothing_to_prepare
    """What must be there before the first session; only who leads does it."""
    between_sessions: list[Callable[[], None]] = field(default_factory=list)
    """Called before each session: what may change only while none is open."""
    after_session: list[Callable[[Outcome], None]] = field(default_factory=list)
    """Told of what each session left."""
    sessions: int = 0
    """How many there were."""
    latest: Outcome = field(default_factory=Outcome)
    """What the last session decided."""
    ended_at: datetime | None = None
    """When that was."""
    tries: dict[str, int] = field(default_factory=dict)
    """By key: in how many sessions a pod that waits found no node."""
    _heard: deque[tuple[KubeObject | None, KubeObject | None]] = field(default_factory=deque)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _called: asyncio.Event = field(default_factory=asyncio.Event)
    """Something has happened that a session could make use of."""
    _deciding: bool = True
    _slice_ends_s: float = 0.0
    _jobs: set[str] = field(default_factory=set)

    # what is told -----------------------------------------------------------------------------------------------

    def hear(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """The API server told of a change."""
        if isinstance(new, Pod) and old is None and not new.spec.node_name and self.following.serves(new):
            self.observer.task_stage("Watched", new)
        self._heard.append((old, new))
        self._woken.set()

    async def follow(self) -> None:
        """Keep cache and engine true, in slices, until cancelled."""
        while True:
            self._woken.clear()
            if self._follow_a_slice():
                await self._woken.wait()
            else:
                await asyncio.sleep(0)

    async def catch_up(self) -> None:
        """Follow all that was told so far."""
        while not self._follow_a_slice():
            await asyncio.sleep(0)

    def _follow_a_slice(self) -> bool:
        ends_s = self.clock.monotonic_s() + self.slice_s
        while self._heard:
            old, new = self._heard.popleft()
            try:
                self.following.follow(old, new)
            except Exception:  # one change that cannot be followed must not stop all others
                item = new if new is not None else old
                log.exception("cannot follow a change of %s %s", type(item).__name__, item.key if item else "")
            if not self._called.is_set() and calls_for_session(old, new, self.following):
                self._called.set()
            if self.clock.monotonic_s() > ends_s:
                return not self._heard
        return True

    # the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sessions, as long as the process leads."""
        following = asyncio.ensure_future(self.follow())
        deciding = asyncio.ensure_future(self._decide())
        try:
            done, _ = await asyncio.wait((following, deciding), return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in (following, deciding):
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await each

    async def _decide(self) -> None:
        await self.prepare()
        await self.catch_up()  # nobody decides on half a picture
        due_s = 0.0
        while self._deciding:
            start_s = self.clock.monotonic_s()
            early = start_s < due_s
            self._called.clear()
            await self.session(early=early)
            end_s = self.clock.monotonic_s()
            if not early:
                due_s = end_s + self.period_s
            await self._pause(end_s - start_s, due_s)
        await asyncio.Event().wait()  # whoever stopped us ends us, too

    async def _pause(self, took_s: float, due_s: float) -> None:
        """Until the next session is due, or called for and others had their share of the time."""
        left_s = due_s - self.clock.monotonic_s()
        await self.clock.sleep(min(left_s, max(SHORTEST_PAUSE_S, _OTHERS_SHARE * took_s)))
        left_s = due_s - self.clock.monotonic_s()
        if left_s <= 0 or self._called.is_set():
            return
        both = asyncio.ensure_future(self._called.wait()), asyncio.ensure_future(self.clock.sleep(left_s))
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()

    async def session(self, *, early: bool = False) -> Outcome:
        """One session from opening to closing; the loop has its turn whenever a slice is over.

        `early`: one before its time, which tells groups how far they came, and leaves the rest to the next."""
        for change in self.between_sessions:
            change()
        self.evictions.end_pauses()
        outcome, sent = Outcome(), _Sent()
        start_s = open_s = self.clock.monotonic_s()
        self._slice_ends_s = start_s + self.slice_s
        details.info("Start scheduling ...", v=STEPS)
        turns = self.engine.turns(outcome)
        try:
            async for _ in self._steps(turns):
                if not outcome.session:
                    open_s = self.clock.monotonic_s()
                if self.clock.monotonic_s() > self._slice_ends_s:
                    self._send(outcome, sent)
                    await self._give_turn()
        except asyncio.CancelledError:
            turns.close()
            self._send(outcome, sent)  # what is committed is assumed: it must not be left behind
            raise
        except Exception:  # a bug of ours costs one session
            log.exception("a session broke off; what it had committed is carried out, and the next one begins anew")
        self._send(outcome, sent)
        await self._sliced(self.telling.tell(outcome, early=early))
        if details.enabled(STEPS):
            await self._sliced(_told(cache_lines(self.engine)))
        self.sessions += 1
        self.latest, self.ended_at = outcome, self.clock.now()
        self.tries = {key: self.tries.get(key, 0) + 1 for key in outcome.waiting}
        self._observe(outcome, self.clock.monotonic_s() - start_s, open_s - start_s)
        return outcome

    async def _steps(self, turns: Iterator[None]) -> AsyncIterator[None]:
        """Go through a session; one that may wait for others gives the loop its turn there, too."""
        if not self.engine.asks_outside:
            for _ in turns:
                yield
            return
        while await self.aside.step(lambda: next(turns, _ENDED)) is not _ENDED:
            yield

    def _observe(self, outcome: Outcome, seconds: float, open_s: float) -> None:
        self.observer.session(outcome, seconds, open_s)
        for hear in self.after_session:
            hear(outcome)
        self.observer.forget(self._jobs - outcome.groups.keys())
        self._jobs = set(outcome.groups)
        if details.enabled(DECISIONS):
            details.info(
                "session",
                v=DECISIONS,
                uid=outcome.session,
                bound=len(outcome.binds),
                evicted=len(outcome.evicts),
                waiting=len(outcome.messages),
                milliseconds=round(seconds * 1e3, 1),
            )
        details.info("End scheduling ...", v=STEPS)

    async def _sliced(self, work: Iterable[None]) -> None:
        for _ in work:
            if self.clock.monotonic_s() > self._slice_ends_s:
                await self._give_turn()

    async def _give_turn(self) -> None:
        await asyncio.sleep(0)
        self._slice_ends_s = self.clock.monotonic_s() + self.slice_s

    def _send(self, outcome: Outcome, sent: _Sent) -> None:
        """Start the writes of what was committed since the last look."""
        pods = self.following.pods
        for key, reason in _newest(outcome.evicts, sent.evictions):
            if (victim := pods.get(key)) is not None:
                self.evictions.start(victim, reason)
        sent.evictions = len(outcome.evicts)
        for key, uid in _newest(outcome.admitted, sent.admissions):
            pod = pods.get(key)
            if pod is not None and pod.uid == uid:
                self.admissions.start(pod)
        sent.admissions = len(outcome.admitted)
        for key, node_name in _newest(outcome.binds, sent.binds):
            pod = pods.get(key)
            if pod is not None:
                needs, annotations = outcome.pre_binds.get(pod.uid), outcome.annotations.get(key)
                self.binds.start(pod, node_name, needs, annotations, outcome.request_annotations.get(key))
        sent.binds = len(outcome.binds)

    # the end ----------------------------------------------------------------------------------------------------

    def stop_deciding(self) -> None:
        """No session begins any more; what is under way goes on."""
        self._deciding = False

    async def drain(self) -> None:
        """Wait for what is being written."""
        await self.binds.drain()
        await self.writes.drain()

    @property
    def has_open_writes(self) -> bool:
        """Whether a write may still take effect."""
        return self.writes.has_open_writes

    async def abandon(self) -> None:
        """Leave everything that is under way as it is; who starts next finds out how far it came."""
        await self.binds.abandon()
        await self.writes.abandon()

    def described(self) -> Iterable[str]:
        """What is known, for people."""
        return lines_of(self.engine)


def _told(lines: Iterable[str]) -> Iterator[None]:
    for line in lines:
        details.info(line, v=STEPS)
        yield


def _newest(decided: dict[str, str], known: int) -> list[tuple[str, str]]:
    """What was added since so many were known, in its order; found from the end, since little is added at a time."""
    return list(islice(reversed(decided.items()), len(decided) - known))[::-1]


@dataclass(slots=True)
class _Sent:
    """How much of an outcome is on its way."""

    binds: int = 0
    evictions: int = 0
    admissions: int = 0
