"""Durations and failures of plugins and of whole extension points: plain counters that the loop owns.

Every call is counted and nothing is rendered here. A report reads `rows()`, a scrape `spreads()` and `profiles()`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from bayplan.telemetry.metrics import HistogramValue, exponential_buckets

PLUGIN_BUCKETS = exponential_buckets(0.00001, 1.5, 20)
"""Seconds, from ten microseconds to some twenty milliseconds in small steps: plugin calls are short."""

POINT_BUCKETS = exponential_buckets(0.0001, 2, 12)
CLASS_LOOKUP_BUCKETS = exponential_buckets(0.00001, 2, 12)
_SUCCESS = "Success"


@dataclass(slots=True)
class CallStats:
    """The calls of one plugin at one point."""

    calls: int = 0
    seconds: float = 0.0
    max_s: float = 0.0
    slow: int = 0
    failed: int = 0
    spread: dict[str, HistogramValue] = field(default_factory=dict)
    """Histograms of the durations, by the status that the call returned."""


class PointTimings:
    """The extension points of one profile, each as a whole. Points and statuses have the names that metrics use."""

    __slots__ = ("_look_ups", "_spreads", "call_counts")

    def __init__(self) -> None:
        self._spreads: dict[tuple[str, str], HistogramValue] = {}
        self._look_ups = {True: HistogramValue(CLASS_LOOKUP_BUCKETS), False: HistogramValue(CLASS_LOOKUP_BUCKETS)}
        self.call_counts: dict[tuple[str, str], int] = {}
        """Number of calls by plugin and point; a point that answers for nodes counts each node."""

    def observe(self, point: str, seconds: float, status: str = _SUCCESS) -> None:
        """Record the duration of all plugins of a point together, and the resulting status."""
        spread = self._spreads.get((point, status))
        if spread is None:
            spread = self._spreads[point, status] = HistogramValue(POINT_BUCKETS)
        spread.counts[bisect_left(POINT_BUCKETS, seconds)] += 1  # inlined `observe`: called several times a decision
        spread.total += seconds

    def observe_skipped(self, point: str) -> None:
        """Record that a point had no plugins to run."""
        spread = self._spreads.get((point, _SUCCESS))
        if spread is None:
            spread = self._spreads[point, _SUCCESS] = HistogramValue(POINT_BUCKETS)
        spread.counts[0] += 1

    def observe_class_lookup(self, seconds: float, *, found: bool) -> None:
        """Record the duration of a look-up of the pod's equivalence class, and whether it found a node."""
        spread = self._look_ups[found]
        spread.counts[bisect_left(CLASS_LOOKUP_BUCKETS, seconds)] += 1
        spread.total += seconds

    def count(self, plugin: str, point: str, times: int = 1) -> None:
        key = (plugin, point)
        self.call_counts[key] = self.call_counts.get(key, 0) + times

    def spreads(self) -> Iterator[tuple[str, str, HistogramValue]]:
        """Point, status and durations."""
        for (point, status), spread in self._spreads.items():
            yield point, status, spread

    def class_lookups(self, *, found: bool) -> HistogramValue:
        return self._look_ups[found]

    def reset(self) -> None:
        self._spreads.clear()
        self._look_ups = {True: HistogramValue(CLASS_LOOKUP_BUCKETS), False: HistogramValue(CLASS_LOOKUP_BUCKETS)}
        self.call_counts = dict.fromkeys(self.call_counts, 0)


class PluginTimings:
    """Counters by plugin and point, and the points of each profile."""

    __slots__ = ("_profiles", "_stats")

    def __init__(self) -> None:
        self._stats: dict[tuple[str, str], CallStats] = {}
        self._profiles: dict[str, PointTimings] = {}

    def points(self, profile: str) -> PointTimings:
        """The points of a profile; they survive when the profile is rebuilt."""
        found = self._profiles.get(profile)
        if found is None:
            found = self._profiles[profile] = PointTimings()
        return found

    def profiles(self) -> Iterator[tuple[str, PointTimings]]:
        yield from self._profiles.items()

    def observe(self, plugin: str, point: str, seconds: float, status: str = "Success") -> None:
        stats = self._get(plugin, point)
        stats.calls += 1
        stats.seconds += seconds
        if seconds > stats.max_s:
            stats.max_s = seconds
        spread = stats.spread.get(status)
        if spread is None:
            spread = stats.spread[status] = HistogramValue(PLUGIN_BUCKETS)
        spread.observe(seconds)

    def count_slow(self, plugin: str, point: str) -> None:
        self._get(plugin, point).slow += 1

    def count_failed(self, plugin: str, point: str) -> None:
        self._get(plugin, point).failed += 1

    def of(self, plugin: str, point: str) -> CallStats:
        return self._stats.get((plugin, point), CallStats())

    def rows(self) -> Iterator[tuple[str, str, CallStats]]:
        for (plugin, point), stats in self._stats.items():
            yield plugin, point, stats

    def spreads(self) -> Iterator[tuple[str, str, str, HistogramValue]]:
        """Plugin, point, status and durations."""
        for (plugin, point), stats in self._stats.items():
            for status, spread in stats.spread.items():
                yield plugin, point, status, spread

    def reset(self) -> None:
        self._stats.clear()
        for points in self._profiles.values():
            points.reset()

    def _get(self, plugin: str, point: str) -> CallStats:
        stats = self._stats.get((plugin, point))
        if stats is None:
            stats = self._stats[plugin, point] = CallStats()
        return stats
