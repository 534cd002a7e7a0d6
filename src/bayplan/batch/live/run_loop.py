"""Run loop of the batch engine on a cluster: runs sessions and handles events of the API server in between.

One event loop owns everything. A session is synchronous code that yields. After each slice of a few milliseconds the
event loop runs, so that connections, watches, bindings and probes are served during a session of any size. Commits of
the session so far start their writes at once.

Sessions run at a fixed period, as in Volcano. A relevant event triggers an early session: it makes decisions, but
leaves messages about waiting pods to the next regular session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
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
from bayplan.client import BlockingHttpService
from bayplan.client.informer.event_queue import EventQueue
from bayplan.clock import LoopClock
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.telemetry.logs import StructuredLog

log = logging.getLogger(__name__)
details = StructuredLog(__name__)

SLICE_S = 0.004
PERIOD_S = 1.0
MIN_PAUSE_S = 0.05
"""Minimum time between two sessions: events seldom come alone, and a gang is placed better when more of it exists."""
_PAUSE_FACTOR = 3
"""The pause before an early session, in multiples of the last session's duration, which is left to other work."""
_END_OF_SESSION = object()


async def _nothing_to_prepare() -> None: ...


@dataclass(slots=True)
class BatchRunLoop:
    """Runs one batch engine. `handle_event` is the handler of every informer; `run` continues until it is cancelled."""

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
    http: BlockingHttpService | None = None
    """The service by which the engine posts; the event loop runs while it waits for a response."""
    prepare: Callable[[], Awaitable[None]] = _nothing_to_prepare
    """Run before the first session, by the leader only."""
    between_sessions: list[Callable[[], None]] = field(default_factory=list)
    """Called before each session, for changes that need a closed session."""
    after_session: list[Callable[[SessionResult], None]] = field(default_factory=list)
    """Called with the result of each session."""
    session_count: int = 0
    """Number of finished sessions."""
    last_outcome: SessionResult = field(default_factory=SessionResult)
    """The result of the last session."""
    last_session_ended_at: datetime | None = None
    """The end of the last session."""
    failed_sessions: dict[str, int] = field(default_factory=dict)
    """By key: number of sessions in which a pending pod found no node."""
    event_queue: EventQueue = field(init=False)
    _session_requested: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by an event that triggers an early session."""
    _runs_sessions: bool = True
    _slice_ends_s: float = 0.0
    _jobs: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.event_queue = EventQueue(self.clock, self.slice_s)

    # Events

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Queue an event of the API server."""
        if (
            isinstance(new, Pod)
            and old is None
            and not new.spec.node_name
            and self.event_handlers.is_responsible_for(new)
        ):
            self.observer.task_stage("Watched", new)
        self.event_queue.add(partial(self._handle_event, old, new))

    async def handle_events(self) -> None:
        """Handle events in slices, until cancelled."""
        await self.event_queue.handle_forever()

    async def handle_pending_events(self) -> None:
        await self.event_queue.handle_pending()

    def _handle_event(self, old: KubeObject | None, new: KubeObject | None) -> Iterator[None]:
        try:
            self.event_handlers.handle_event(old, new)
        except Exception:  # a failing event must not stop the handling of the rest
            item = new if new is not None else old
            log.exception("cannot handle an event of %s %s", type(item).__name__, item.key if item else "")
        if not self._session_requested.is_set() and triggers_session(old, new, self.event_handlers):
            self._session_requested.set()
        return iter(())

    # Sessions

    async def run(self) -> None:
        """Run sessions and event handling, as long as the process leads."""
        event_handling = asyncio.ensure_future(self.handle_events())
        sessions = asyncio.ensure_future(self._run_sessions())
        try:
            done, _ = await asyncio.wait((event_handling, sessions), return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in (event_handling, sessions):
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await each

    async def _run_sessions(self) -> None:
        await self.prepare()
        await self.handle_pending_events()  # the first session needs the complete state
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
        await asyncio.Event().wait()  # until `run` is cancelled

    async def _pause(self, took_s: float, due_s: float) -> None:
        """Wait until the next session is due, or triggered after the minimum pause."""
        remaining_s = due_s - self.clock.monotonic_s()
        await self.clock.sleep(min(remaining_s, max(MIN_PAUSE_S, _PAUSE_FACTOR * took_s)))
        remaining_s = due_s - self.clock.monotonic_s()
        if remaining_s <= 0 or self._session_requested.is_set():
            return
        both = (
            asyncio.ensure_future(self._session_requested.wait()),
            asyncio.ensure_future(self.clock.sleep(remaining_s)),
        )
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()

    async def run_session(self, *, early: bool = False) -> SessionResult:
        """Run one session from opening to closing; the event loop runs after each slice.

        `early`: a session before its period, which writes the phases of groups and leaves other messages to the next.
        """
        for change in self.between_sessions:
            change()
        self.evictions.end_pauses()
        outcome, started_writes = SessionResult(), _StartedWrites()
        start_s = open_s = self.clock.monotonic_s()
        self._slice_ends_s = start_s + self.slice_s
        details.info("Start scheduling ...", v=TRACE)
        steps = self.engine.run_session_steps(outcome)
        try:
            async for _ in self._iterate_session(steps):
                if not outcome.session:
                    open_s = self.clock.monotonic_s()
                if self.clock.monotonic_s() > self._slice_ends_s:
                    self._start_writes(outcome, started_writes)
                    await self._yield_to_loop()
        except asyncio.CancelledError:
            steps.close()
            # committed changes are assumed in the cache, so their writes must start
            self._start_writes(outcome, started_writes)
            raise
        except Exception:  # a bug costs one session
            log.exception("a session was aborted; its commits are executed, and sessions continue")
        self._start_writes(outcome, started_writes)
        await self._run_in_slices(self.status_updater.update_statuses(outcome, early=early))
        if details.enabled(TRACE):
            await self._run_in_slices(_log_lines(cache_lines(self.engine)))
        self.session_count += 1
        self.last_outcome, self.last_session_ended_at = outcome, self.clock.now()
        self.failed_sessions = {key: self.failed_sessions.get(key, 0) + 1 for key in outcome.waiting}
        self._report_session(outcome, self.clock.monotonic_s() - start_s, open_s - start_s)
        return outcome

    async def _iterate_session(self, steps: Iterator[None]) -> AsyncIterator[None]:
        """Iterate over a session. One that may post runs in a thread, so that the event loop is not blocked."""
        if self.http is None or not self.engine.calls_http:
            for _ in steps:
                yield
            return
        while await self.http.run_step(lambda: next(steps, _END_OF_SESSION)) is not _END_OF_SESSION:
            yield

    def _report_session(self, outcome: SessionResult, seconds: float, open_s: float) -> None:
        self.observer.observe_session(outcome, seconds, open_s)
        for callback in self.after_session:
            callback(outcome)
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

    def _start_writes(self, outcome: SessionResult, started_writes: _StartedWrites) -> None:
        """Start the writes of the commits since the last call."""
        pods = self.event_handlers.pods
        for key, reason in _items_added_since(outcome.evicts, started_writes.evictions):
            if (victim := pods.get(key)) is not None:
                self.evictions.start(victim, reason)
        started_writes.evictions = len(outcome.evicts)
        for key, uid in _items_added_since(outcome.admitted, started_writes.admissions):
            pod = pods.get(key)
            if pod is not None and pod.uid == uid:
                self.admissions.start(pod)
        started_writes.admissions = len(outcome.admitted)
        for key, node_name in _items_added_since(outcome.binds, started_writes.binds):
            pod = pods.get(key)
            if pod is not None:
                needs, annotations = outcome.pre_binds.get(pod.uid), outcome.annotations.get(key)
                self.binds.start(pod, node_name, needs, annotations, outcome.request_annotations.get(key))
        started_writes.binds = len(outcome.binds)

    # Stop

    def stop_scheduling(self) -> None:
        """Start no more sessions; the current one continues."""
        self._runs_sessions = False

    async def drain(self) -> None:
        await self.binds.drain()
        await self.writes.drain()

    @property
    def has_open_writes(self) -> bool:
        return self.writes.has_open_writes

    async def abandon(self) -> None:
        """Cancel all writes in progress; the next leader finds out which took effect."""
        await self.binds.abandon()
        await self.writes.abandon()

    def dump(self) -> Iterable[str]:
        return dump_lines(self.engine)


def _log_lines(lines: Iterable[str]) -> Iterator[None]:
    for line in lines:
        details.info(line, v=TRACE)
        yield


def _items_added_since(decisions: dict[str, str], known: int) -> list[tuple[str, str]]:
    """The entries added since there were `known` ones, in order. Searches from the end, as few are added at a time."""
    return list(islice(reversed(decisions.items()), len(decisions) - known))[::-1]


@dataclass(slots=True)
class _StartedWrites:
    """Number of entries of a session result whose writes were started."""

    binds: int = 0
    evictions: int = 0
    admissions: int = 0
