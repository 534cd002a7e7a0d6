"""Timings of plugins and extension points, and their reset."""

from __future__ import annotations

import pytest

from bayplan.telemetry.plugin_timings import (
    CLASS_LOOKUP_BUCKETS,
    PLUGIN_BUCKETS,
    POINT_BUCKETS,
    CallStats,
    PluginTimings,
)

SECOND = POINT_BUCKETS[1]


def test_the_stats_of_a_plugin() -> None:
    timings = PluginTimings()
    for seconds in (0.5, 2.0, 1.0):
        timings.observe("Fit", "Filter", seconds)
    timings.observe("Fit", "Filter", 0.25, "Unschedulable")
    timings.count_slow("Fit", "Filter")
    timings.count_failed("Fit", "Filter")
    timings.count_failed("Fit", "Filter")
    stats = timings.of("Fit", "Filter")
    assert (stats.calls, stats.seconds, stats.max_s, stats.slow, stats.failed) == (4, 3.75, 2.0, 1, 2)
    assert [(*key, spread.count, spread.total) for *key, spread in timings.spreads()] == [
        ("Fit", "Filter", "Success", 3, 3.5),
        ("Fit", "Filter", "Unschedulable", 1, 0.25),
    ]
    assert [(plugin, point) for plugin, point, _ in timings.rows()] == [("Fit", "Filter")]
    assert timings.of("Fit", "Score") == CallStats()


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (SECOND, 1), (SECOND * 1.01, 2), (POINT_BUCKETS[-1], 11), (POINT_BUCKETS[-1] * 2, 12)],
)
def test_a_duration_is_counted_in_its_bucket(seconds: float, bucket: int) -> None:
    points = PluginTimings().points("default")
    points.observe("Filter", seconds)
    points.observe("Filter", seconds)
    points.observe("Filter", 1.0, "Error")
    (point, status, spread), (_, failed, _) = points.spreads()
    assert (point, status, failed) == ("Filter", "Success", "Error")
    assert [place for place, count in enumerate(spread.counts) if count] == [bucket]
    assert (spread.counts[bucket], spread.total) == (2, 2 * seconds)


def test_a_skipped_point_counts_with_no_duration() -> None:
    points = PluginTimings().points("default")
    points.observe_skipped("Permit")
    points.observe_skipped("Permit")
    ((point, status, spread),) = points.spreads()
    assert (point, status, spread.counts[0], spread.total) == ("Permit", "Success", 2, 0.0)


def test_class_lookups_are_counted_by_result() -> None:
    points = PluginTimings().points("default")
    points.observe_class_lookup(CLASS_LOOKUP_BUCKETS[0], found=True)
    points.observe_class_lookup(CLASS_LOOKUP_BUCKETS[0] * 2, found=True)
    points.observe_class_lookup(1.0, found=False)
    found, missed = (points.class_lookups(found=each) for each in (True, False))
    assert (found.counts[0], found.counts[1], found.total) == (1, 1, CLASS_LOOKUP_BUCKETS[0] * 3)
    assert (missed.counts[-1] + sum(missed.counts[:-1]), missed.total) == (1, 1.0)


def test_a_profile_keeps_its_points_and_a_reset_clears_them() -> None:
    timings = PluginTimings()
    points = timings.points("default")
    assert timings.points("default") is points
    points.count("Fit", "Filter")
    points.count("Fit", "Filter", 3)
    assert points.call_counts == {("Fit", "Filter"): 4}
    points.observe("Filter", 1.0)
    points.observe_class_lookup(1.0, found=True)
    timings.observe("Fit", "Filter", PLUGIN_BUCKETS[0])
    timings.reset()
    assert list(timings.rows()) == []
    assert [name for name, _ in timings.profiles()] == ["default"]
    assert (list(points.spreads()), points.class_lookups(found=True).count) == ([], 0)
    assert points.call_counts == {("Fit", "Filter"): 0}
