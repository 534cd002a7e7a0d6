"""How long plugins take, and how often they fail: plain counters owned by the loop.

Every call is counted; nothing is rendered here. A report reads `rows()`, a scrape `spreads()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bayplan.telemetry.metrics import HistogramValue, exponential_buckets

PLUGIN_BUCKETS = exponential_buckets(0.00001, 1.5, 20)
"""Seconds, from ten microseconds to some twenty milliseconds in small steps: plugins are short."""


@dataclass(slots=True)
class CallStats:
    """The calls of one plugin at one point."""

    calls: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0
    slow: int = 0
    failed: int = 0
    spread: dict[str, HistogramValue] = field(default_factory=dict)
    """How the times are spread, by the answer that the call ended with."""


class PluginTimings:
    """Counters by plugin and point."""

    __slots__ = ("_stats",)

    def __init__(self) -> None:
        self._stats: dict[tuple[str, str], CallStats] = {}

    def took(self, plugin: str, point: str, seconds: float, status: str = "Success") -> None:
        """A call lasted so long and answered with a status of this label."""
        stats = self._get(plugin, point)
        stats.calls += 1
        stats.seconds += seconds
        if seconds > stats.longest_s:
            stats.longest_s = seconds
        spread = stats.spread.get(status)
        if spread is None:
            spread = stats.spread[status] = HistogramValue(PLUGIN_BUCKETS)
        spread.observe(seconds)

    def slow(self, plugin: str, point: str) -> None:
        self._get(plugin, point).slow += 1

    def failed(self, plugin: str, point: str) -> None:
        self._get(plugin, point).failed += 1

    def of(self, plugin: str, point: str) -> CallStats:
        return self._stats.get((plugin, point), CallStats())

    def rows(self) -> Iterator[tuple[str, str, CallStats]]:
        for (plugin, point), stats in self._stats.items():
            yield plugin, point, stats

    def spreads(self) -> Iterator[tuple[str, str, str, HistogramValue]]:
        """Plugin, point, status, and how long such calls took."""
        for (plugin, point), stats in self._stats.items():
            for status, spread in stats.spread.items():
                yield plugin, point, status, spread

    def reset(self) -> None:
        """Start anew."""
        self._stats.clear()

    def _get(self, plugin: str, point: str) -> CallStats:
        stats = self._stats.get((plugin, point))
        if stats is None:
            stats = self._stats[plugin, point] = CallStats()
        return stats
