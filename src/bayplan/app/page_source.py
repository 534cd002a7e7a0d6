"""Data of a process for the web page, with any engines; and the page's server on loopback."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bayplan import __version__
from bayplan.app.process_lifecycle import SchedulerProcess
from bayplan.batch.live.run_loop import BatchRunLoop
from bayplan.clock import LoopClock
from bayplan.objects.meta import KubeObject
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.server import ExplainFunction, LoopbackPageServer, PageStreams, PageViews
from bayplan.telemetry.batch_metrics import BatchMetrics
from bayplan.telemetry.page_feed import DecisionSource, FeedCounters, RecordedDecisions, SessionDecisions, feed_counters
from bayplan.telemetry.scheduler_metrics import SchedulerMetrics

log = logging.getLogger(__name__)

EventHandler = Callable[[KubeObject | None, KubeObject | None], None]


class PageSource:
    """The page's view of one process, before and while it runs."""

    def __init__(self, clock: LoopClock, why: ExplainFunction) -> None:
        self.why = why
        self._began = clock.now().timestamp()
        self._process: SchedulerProcess | None = None
        self._pods: LiveScheduler | None = None
        self._counts: tuple[SchedulerMetrics | None, BatchMetrics | None] = None, None
        self._sessions = SessionDecisions(clock.now)
        self._decisions: list[DecisionSource] = []
        views = PageViews(
            objects=self._objects,
            numbers=self._numbers,
            queues=lambda: self._sessions.queues,
            decisions=lambda: self._decisions,
            about=self._about,
        )
        self.viewers = PageStreams(views, clock)

    def attach_scheduler(self, live: LiveScheduler, metrics: SchedulerMetrics) -> None:
        self._pods, self._counts = live, (metrics, self._counts[1])
        self._decisions.append(RecordedDecisions(live.engine.records))

    def attach_batch(self, live: BatchRunLoop, metrics: BatchMetrics) -> None:
        self._counts = self._counts[0], metrics
        self._sessions.records = live.engine.records
        self._decisions.append(self._sessions)
        live.after_session.append(self._sessions.add_session)

    def attach_process(self, process: SchedulerProcess) -> None:
        self._process = process

    def with_page_updates(self, handler: EventHandler) -> EventHandler:
        """A handler for informers that also updates open pages."""
        changed = self.viewers.on_change

        def both(old: KubeObject | None, new: KubeObject | None) -> None:
            handler(old, new)
            changed(old, new)

        return both

    def _objects(self, plural: str) -> Iterable[KubeObject]:
        return self._process.informers.objects(plural) if self._process is not None else ()

    def _numbers(self) -> FeedCounters:
        waiting: Mapping[str, int] = self._pods.queue.counts() if self._pods is not None else {}
        return feed_counters(*self._counts, waiting)

    def _about(self) -> Mapping[str, Any]:
        leads = self._process is not None and self._process.is_leading
        engines: Sequence[str] = [
            name for name, there in zip(("pods", "batch"), self._counts, strict=True) if there is not None
        ]
        return {"version": __version__, "began": self._began, "leads": leads, "engines": engines, "why": True}


@asynccontextmanager
async def serve_page(address: str, source: PageSource, clock: LoopClock) -> AsyncIterator[str]:
    """Serve the page on loopback and yield its URL; empty without an address."""
    if not address:
        yield ""
        return
    server = LoopbackPageServer(address, source.viewers, why=source.why, clock=clock)
    await server.start()
    log.info("the page is at %s", server.url)
    try:
        yield server.url
    finally:
        await server.close()
