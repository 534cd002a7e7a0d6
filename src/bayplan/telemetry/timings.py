"""How long plugins take, and how often they fail: plain counters owned by the loop.

Every call is counted; nothing is rendered here. A scrape or a report reads `rows()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class CallStats:
    """The calls of one plugin at one point."""

    calls: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0
    slow: int = 0
    failed: int = 0


class PluginTimings:
    """Counters by plugin and point."""

    __slots__ = ("_stats",)

    def __init__(self) -> None:
        self._stats: dict[tuple[str, str], CallStats] = {}

    def took(self, plugin: str, point: str, seconds: float) -> None:
        stats = self._get(plugin, point)
        stats.calls += 1
        stats.seconds += seconds
        if seconds > stats.longest_s:
            stats.longest_s = seconds

    def slow(self, plugin: str, point: str) -> None:
        self._get(plugin, point).slow += 1

    def failed(self, plugin: str, point: str) -> None:
        self._get(plugin, point).failed += 1

    def of(self, plugin: str, point: str) -> CallStats:
        return self._stats.get((plugin, point), CallStats())

    def rows(self) -> Iterator[tuple[str, str, CallStats]]:
        for (plugin, point), stats in self._stats.items():
            yield plugin, point, stats

    def _get(self, plugin: str, point: str) -> CallStats:
        stats = self._stats.get((plugin, point))
        if stats is None:
            stats = self._stats[plugin, point] = CallStats()
        return stats
