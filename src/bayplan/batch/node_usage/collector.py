"""Who keeps the view of real usage up to date? A collector beside the engine, round by round.

`run` it as a task beside the sessions, or ask for a `collect_once` before one. What is asked, and how often, is what
the configuration of the moment says, so that a changed file counts from the next round on. A round that fails leaves
the readings as they are, and every session says so until one succeeds. Cost: one or two requests a node and round."""

from __future__ import annotations

import logging

from bayplan.batch.engine import BatchEngine
from bayplan.batch.handle import HttpReply
from bayplan.batch.node_usage.metrics_sources import (
    ROUND_TIMEOUT_S,
    Fetch,
    MetricsError,
    MetricsRequest,
    UsageView,
    collect,
    interval_s,
    metrics_source,
)
from bayplan.clock import LoopClock
from bayplan.errors import BayplanError

log = logging.getLogger(__name__)


class UsageCollector:
    """Fills the engine's view of how busy nodes are."""

    def __init__(self, engine: BatchEngine, fetch: Fetch, clock: LoopClock) -> None:
        self._engine = engine
        self._fetch = fetch
        self._clock = clock
        self._view = UsageView(engine.handle.clock)
        engine.set_usage(self._view)

    async def run(self) -> None:
        """Collect for ever."""
        while True:
            await self.collect_once()
            await self._clock.sleep(interval_s(self._engine.load_configuration().metrics or {}))

    async def collect_once(self) -> bool:
        """Collect once. False: nothing new, because nothing is asked for or because it cannot be had."""
        try:
            source = metrics_source(self._engine.load_configuration().metrics or {})
            if source is None:
                self._set_fault("")
                return False
            nodes = self._engine.cache.node_names()
            readings = await collect(source, nodes, self._with_deadline(), self._engine.handle.clock.now())
        except BayplanError as fault:
            self._set_fault(f"metrics: {fault}; the readings of before count as long as they are fresh")
            return False
        self._view.replace_samples(readings)
        self._set_fault("")
        return True

    def _with_deadline(self) -> Fetch:
        """Fetches as long as the round has not taken too long; the last request gets the time that is left."""
        end_s = self._clock.monotonic_s() + ROUND_TIMEOUT_S

        async def fetch(request: MetricsRequest, timeout_s: float) -> HttpReply:
            left_s = end_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise MetricsError(f"{ROUND_TIMEOUT_S:g} s were not enough to ask about all nodes")
            return await self._fetch(request, min(timeout_s, left_s))

        return fetch

    def _set_fault(self, fault: str) -> None:
        if fault and fault != self._engine.handle.usage_fault:
            log.warning("%s", fault)
        self._engine.handle.usage_fault = fault
