"""Collector of measured node usage, which runs beside the engine.

Start `run` as a task, or await `collect_once` before a session. Each round uses the current configuration, so a changed
file takes effect in the next round. A failed round keeps the readings; every session reports the failure until a round
succeeds. Cost: one or two requests per node and round.
"""

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
    """Updates the engine's view of measured node usage."""

    def __init__(self, engine: BatchEngine, fetch: Fetch, clock: LoopClock) -> None:
        self._engine = engine
        self._fetch = fetch
        self._clock = clock
        self._view = UsageView(engine.handle.clock)
        engine.set_usage(self._view)

    async def run(self) -> None:
        while True:
            await self.collect_once()
            await self._clock.sleep(interval_s(self._engine.load_configuration().metrics or {}))

    async def collect_once(self) -> bool:
        """Run one round. False: no new readings, because none are configured or the round failed."""
        try:
            source = metrics_source(self._engine.load_configuration().metrics or {})
            if source is None:
                self._set_fault("")
                return False
            nodes = self._engine.cache.node_names()
            readings = await collect(source, nodes, self._with_deadline(), self._engine.handle.clock.now())
        except BayplanError as fault:
            self._set_fault(f"metrics: {fault}; earlier readings stay in use while they are recent")
            return False
        self._view.replace_samples(readings)
        self._set_fault("")
        return True

    def _with_deadline(self) -> Fetch:
        """A `fetch` that limits the duration of the round; the last request gets the remaining time."""
        end_s = self._clock.monotonic_s() + ROUND_TIMEOUT_S

        async def fetch(request: MetricsRequest, timeout_s: float) -> HttpReply:
            left_s = end_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise MetricsError(f"{ROUND_TIMEOUT_S:g} s were not enough to query all nodes")
            return await self._fetch(request, min(timeout_s, left_s))

        return fetch

    def _set_fault(self, fault: str) -> None:
        if fault and fault != self._engine.handle.usage_fault:
            log.warning("%s", fault)
        self._engine.handle.usage_fault = fault
