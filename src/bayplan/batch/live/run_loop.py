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

from bayplan.batch.diagnostics.cache_dumper import cache_lines, dump_lines
from bayplan.batch.engine import BatchEngine
from bayplan.batch.live.binding import BatchBinder
from bayplan.batch.live.event_handlers import BatchEventHandlers
from bayplan.batch.live.eviction import PodEvictor
from bayplan.batch.live.gate_removal import GateRemovals
from bayplan.batch.live.observer import BatchObserver, NoBatchObserver
from bayplan.batch.live.session_triggers import triggers_session
from bayplan.batch.live.status_updater import SessionStatusUpdater
from bayplan.batch.live.write_interfaces import IntentWriter
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.verbose_log import DECISIONS, TRACE
from bayplan.client.step_thread import StepThread
from bayplan.clock import LoopClock
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.telemetry.logs import StructuredLog

log = logging.getLogger(__name__)
details = StructuredLog(__name__)

SLICE_S = 0.004
PERIOD_S = 1.0
MIN_PAUSE_S = 0.05
"""Between two sessions: changes seldom come alone, and a gang is worth more when more of it is there."""
_PAUSE_FACTOR = 3
"""So many times as long as the last session took is others' before the next comes before its time."""
_END_OF_SESSION = object()


async def _nothing_to_prepare() -> None: ...


@dataclass(slots=True)
class BatchRunLoop:
    """Runs one batch engine. `handle_event` is the handler of every informer; `run` goes on until it is cancelled."""

    engine: BatchEngine
    event_handlers: BatchEventHandlers
    binds: BatchBinder
    evictions: PodEvictor
    admissions: GateRemovals
    status_updater: SessionStatusUpdater
    writes: IntentWriter
    clock: LoopClock
    period_s: float = PERIOD_S
    slice_s: float = SLICE_S
    observer: BatchObserver = field(default_factory=NoBatchObserver)
    blocking_thread: StepThread = field(default_factory=StepThread)
    """Where sessions wait for others."""
    prepare: Callable[[], Awaitable[None]] = _nothing_to_prepare
    """What must be there before the first session; only who leads does it."""
    between_sessions: list[Callable[[], None]] = field(default_factory=list)
    """Called before each session: what may change only while none is open."""
    after_session: list[Callable[[SessionResult], None]] = field(default_factory=list)
    """Told of what each session left."""
    session_count: int = 0
    """How many there were."""
    last_outcome: SessionResult = field(default_factory=SessionResult)
    """What the last session decided."""
    last_session_ended_at: datetime | None = None
    """When that was."""
    failed_sessions: dict[str, int] = field(default_factory=dict)
    """By key: in how many sessions a pod that waits found no node."""
    _pending_events: deque[tuple[KubeObject | None, KubeObject | None]] = field(default_factory=deque)
    _event_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _session_requested: asyncio.Event = field(default_factory=asyncio.Event)
    """Something has happened that a session could make use of."""
    _runs_sessions: bool = True
    _slice_ends_s: float = 0.0
    _jobs: set[str] = field(default_factory=set)

    # what is told -----------------------------------------------------------------------------------------------

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """The API server told of a change."""
        if (
            isinstance(new, Pod)
            and old is None
            and not new.spec.node_name
            and self.event_handlers.is_responsible_for(new)
        ):
            self.observer.task_stage("Watched", new)
        self._pending_events.append((old, new))
        self._event_arrived.set()

    async def handle_events(self) -> None:
        """Keep cache and engine true, in slices, until cancelled."""
        while True:
            self._event_arrived.clear()
            if self._handle_event_slice():
                await self._event_arrived.wait()
            else:
                await asyncio.sleep(0)

    async def handle_pending_events(self) -> None:
        """Follow all that was told so far."""
        while not self._handle_event_slice():
            await asyncio.sleep(0)

    def _handle_event_slice(self) -> bool:
        ends_s = self.clock.monotonic_s() + self.slice_s
        while self._pending_events:
            old, new = self._pending_events.popleft()
            try:
                self.event_handlers.handle_event(old, new)
            except Exception:  # one change that cannot be followed must not stop all others
                item = new if new is not None else old
                log.exception("cannot follow a change of %s %s", type(item).__name__, item.key if item else "")
            if not self._session_requested.is_set() and triggers_session(old, new, self.event_handlers):
                self._session_requested.set()
            if self.clock.monotonic_s() > ends_s:
                return not self._pending_events
        return True

    # the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sessions, as long as the process leads."""
        following = asyncio.ensure_future(self.handle_events())
        deciding = asyncio.ensure_future(self._run_sessions())
        try:
            done, _ = await asyncio.wait((following, deciding), return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in (following, deciding):
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await each

    async def _run_sessions(self) -> None:
        await self.prepare()
        await self.handle_pending_events()  # nobody decides on half a picture
        due_s = 0.0
        while self._runs_sessions:
            start_s = self.clock.monotonic_s()
            early = start_s < due_s
            self._session_requested.clear()
            await self.run_session(early=early)
            end_s = self.clock.monotonic_s()
            if not early:
                due_s = end_s + self.period_s
            await self._pause(end_s - start_s, due_s)
        await asyncio.Event().wait()  # whoever stopped us ends us, too

    async def _pause(self, took_s: float, due_s: float) -> None:
        """Until the next session is due, or called for and others had their share of the time."""
        left_s = due_s - self.clock.monotonic_s()
        await self.clock.sleep(min(left_s, max(MIN_PAUSE_S, _PAUSE_FACTOR * took_s)))
        left_s = due_s - self.clock.monotonic_s()
        if left_s <= 0 or self._session_requested.is_set():
            return
        both = asyncio.ensure_future(self._session_requested.wait()), asyncio.ensure_future(self.clock.sleep(left_s))
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()

    async def run_session(self, *, early: bool = False) -> SessionResult:
        """One session from opening to closing; the loop has its turn whenever a slice is over.

        `early`: one before its time, which tells groups how far they came, and leaves the rest to the next."""
        for change in self.between_sessions:
            change()
        self.evictions.end_pauses()
        outcome, sent = SessionResult(), _StartedWrites()
        start_s = open_s = self.clock.monotonic_s()
        self._slice_ends_s = start_s + self.slice_s
        details.info("Start scheduling ...", v=TRACE)
        turns = self.engine.run_session_steps(outcome)
        try:
            async for _ in self._iterate_session(turns):
                if not outcome.session:
                    open_s = self.clock.monotonic_s()
                if self.clock.monotonic_s() > self._slice_ends_s:
                    self._start_writes(outcome, sent)
                    await self._yield_to_loop()
        except asyncio.CancelledError:
            turns.close()
            self._start_writes(outcome, sent)  # what is committed is assumed: it must not be left behind
            raise
        except Exception:  # a bug of ours costs one session
            log.exception("a session broke off; what it had committed is carried out, and the next one begins anew")
        self._start_writes(outcome, sent)
        await self._run_in_slices(self.status_updater.update_statuses(outcome, early=early))
        if details.enabled(TRACE):
            await self._run_in_slices(_log_lines(cache_lines(self.engine)))
        self.session_count += 1
        self.last_outcome, self.last_session_ended_at = outcome, self.clock.now()
        self.failed_sessions = {key: self.failed_sessions.get(key, 0) + 1 for key in outcome.waiting}
        self._report_session(outcome, self.clock.monotonic_s() - start_s, open_s - start_s)
        return outcome

    async def _iterate_session(self, turns: Iterator[None]) -> AsyncIterator[None]:
        """Go through a session; one that may wait for others gives the loop its turn there, too."""
        if not self.engine.calls_http:
            for _ in turns:
                yield
            return
        while await self.blocking_thread.run_step(lambda: next(turns, _END_OF_SESSION)) is not _END_OF_SESSION:
            yield

    def _report_session(self, outcome: SessionResult, seconds: float, open_s: float) -> None:
        self.observer.observe_session(outcome, seconds, open_s)
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
        details.info("End scheduling ...", v=TRACE)

    async def _run_in_slices(self, work: Iterable[None]) -> None:
        for _ in work:
            if self.clock.monotonic_s() > self._slice_ends_s:
                await self._yield_to_loop()

    async def _yield_to_loop(self) -> None:
        await asyncio.sleep(0)
        self._slice_ends_s = self.clock.monotonic_s() + self.slice_s

    def _start_writes(self, outcome: SessionResult, sent: _StartedWrites) -> None:
        """Start the writes of what was committed since the last look."""
        pods = self.event_handlers.pods
        for key, reason in _items_added_since(outcome.evicts, sent.evictions):
            if (victim := pods.get(key)) is not None:
                self.evictions.start(victim, reason)
        sent.evictions = len(outcome.evicts)
        for key, uid in _items_added_since(outcome.admitted, sent.admissions):
            pod = pods.get(key)
            if pod is not None and pod.uid == uid:
                self.admissions.start(pod)
        sent.admissions = len(outcome.admitted)
        for key, node_name in _items_added_since(outcome.binds, sent.binds):
            pod = pods.get(key)
            if pod is not None:
                needs, annotations = outcome.pre_binds.get(pod.uid), outcome.annotations.get(key)
                self.binds.start(pod, node_name, needs, annotations, outcome.request_annotations.get(key))
        sent.binds = len(outcome.binds)

    # the end ----------------------------------------------------------------------------------------------------

    def stop_scheduling(self) -> None:
        """No session begins any more; what is under way goes on."""
        self._runs_sessions = False

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

    def dump(self) -> Iterable[str]:
        """What is known, for people."""
        return dump_lines(self.engine)


def _log_lines(lines: Iterable[str]) -> Iterator[None]:
    for line in lines:
        details.info(line, v=TRACE)
        yield


def _items_added_since(decided: dict[str, str], known: int) -> list[tuple[str, str]]:
    """What was added since so many were known, in its order; found from the end, since little is added at a time."""
    return list(islice(reversed(decided.items()), len(decided) - known))[::-1]


@dataclass(slots=True)
class _StartedWrites:
    """How much of an outcome is on its way."""

    binds: int = 0
    evictions: int = 0
    admissions: int = 0
