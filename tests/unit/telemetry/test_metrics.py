"""Counters, gauges and histograms in Prometheus' text format."""

from __future__ import annotations

import pytest

from bayplan.errors import UsageError
from bayplan.telemetry.metrics import (
    CHUNK_LINES,
    Counter,
    Gauge,
    Histogram,
    HistogramValue,
    MetricsRegistry,
    Stability,
    exponential_buckets,
    number_text,
)

REGISTRY_METRICS = ("registered_metrics_total", "disabled_metrics_total", "hidden_metrics_total")


def text(*families: Counter | Gauge | Histogram, disabled: tuple[str, ...] = ()) -> str:
    registry = MetricsRegistry(disabled=(*disabled, *REGISTRY_METRICS))
    registry.add(*families)
    return b"".join(registry.render()).decode()


def test_a_counter_without_labels_exists_from_the_start() -> None:
    assert text(Counter("hits_total", "Hits.", stability=Stability.STABLE)) == (
        "# HELP hits_total [STABLE] Hits.\n# TYPE hits_total counter\nhits_total 0\n"
    )


def test_labels_are_sorted_by_name_then_value() -> None:
    hits = Counter("hits_total", "Hits.", ("zone", "code"), stability=Stability.NONE)
    hits.labels("b", "200").inc()
    hits.labels("a", "500").inc(2.5)
    hits.labels("a", "200").inc()
    assert text(hits).splitlines() == [
        "# HELP hits_total Hits.",
        "# TYPE hits_total counter",
        'hits_total{code="200",zone="a"} 1',
        'hits_total{code="200",zone="b"} 1',
        'hits_total{code="500",zone="a"} 2.5',
    ]


def test_a_family_with_labels_shows_only_used_values() -> None:
    assert text(Gauge("depth", "Depth.", ("queue",))) == ""


def test_a_gauge_increases_and_decreases() -> None:
    depth = Gauge("depth", "Depth.", ("queue",))
    value = depth.labels("active")
    value.inc(3)
    value.dec()
    assert 'depth{queue="active"} 2' in text(depth)
    value.set(7)
    assert depth.labels("active") is value
    assert 'depth{queue="active"} 7' in text(depth)


def test_a_histogram_counts_observations_up_to_each_bound() -> None:
    seconds = Histogram("took_seconds", "Took.", ("op",), buckets=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3):
        seconds.labels("x").observe(value)
    assert text(seconds).splitlines()[2:] == [
        'took_seconds_bucket{op="x",le="0.1"} 2',
        'took_seconds_bucket{op="x",le="1"} 3',
        'took_seconds_bucket{op="x",le="+Inf"} 4',
        'took_seconds_sum{op="x"} 3.65',
        'took_seconds_count{op="x"} 4',
    ]


def test_a_histogram_without_labels() -> None:
    seconds = Histogram("took_seconds", "Took.", buckets=(1.0,))
    seconds.observe(2)
    assert text(seconds).splitlines()[2:] == [
        'took_seconds_bucket{le="1"} 0',
        'took_seconds_bucket{le="+Inf"} 1',
        "took_seconds_sum 2",
        "took_seconds_count 1",
    ]
    assert HistogramValue((1.0,)).count == 0


def test_special_characters_in_labels_and_help_are_escaped() -> None:
    hits = Counter("hits_total", "A \\ and\na line.", ("path",))
    hits.labels('a"b\\c\nd').inc()
    assert text(hits).splitlines() == [
        "# HELP hits_total [ALPHA] A \\\\ and\\na line.",
        "# TYPE hits_total counter",
        'hits_total{path="a\\"b\\\\c\\nd"} 1',
    ]


def test_the_deprecation_follows_the_stability() -> None:
    old = Counter("old_total", "Old.", deprecated="1.35.0")
    assert text(old).startswith("# HELP old_total [ALPHA] (Deprecated since 1.35.0) Old.\n")


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0, "0"),
        (7, "7"),
        (999_999, "999999"),
        (1_000_000, "1e+06"),
        (1.0, "1"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (1073741824, "1.073741824e+09"),
        (float("inf"), "+Inf"),
        (1.2, "1.2"),
        (0.00010618699999999999, "0.00010618699999999999"),
        (2**64, "1.8446744073709552e+19"),
        (-3, "-3"),
    ],
)
def test_numbers_are_written_as_go_does(number: float, written: str) -> None:
    assert number_text(number) == written


def test_exponential_buckets_keep_the_last_digits_of_stepwise_multiplication() -> None:
    assert exponential_buckets(0.001, 2, 4) == (0.001, 0.002, 0.004, 0.008)
    assert exponential_buckets(0.00001, 1.5, 3)[2] == 0.00001 * 1.5 * 1.5


def test_families_are_sorted_by_name_and_disabled_ones_are_omitted() -> None:
    families = [Counter(name, "Hits.") for name in ("b_total", "c_total", "a_total")]
    shown = [line for line in text(*families, disabled=("c_total",)).splitlines() if line[0] != "#"]
    assert shown == ["a_total 0", "b_total 0"]


def test_the_registry_has_metrics_about_itself() -> None:
    registry = MetricsRegistry(disabled=("x_total",))
    registry.add(
        Counter("a_total", "A."), Counter("b_total", "B.", stability=Stability.STABLE), Counter("x_total", "X.")
    )
    lines = b"".join(registry.render()).decode().splitlines()
    assert 'registered_metrics_total{deprecated_version="",stability_level="ALPHA"} 2' in lines
    assert 'registered_metrics_total{deprecated_version="",stability_level="STABLE"} 1' in lines
    assert "disabled_metrics_total 1" in lines
    assert "hidden_metrics_total 0" in lines


def test_collectors_run_before_every_rendering() -> None:
    depth, calls = Gauge("depth", "Depth."), []
    registry = MetricsRegistry()
    registry.add(depth)
    registry.collect(lambda: depth.set(len(calls)) or calls.append(1))  # type: ignore[func-returns-value]
    list(registry.render())
    assert b"\ndepth 1\n" in b"".join(registry.render())


def test_a_large_family_is_rendered_in_chunks_with_consistent_values() -> None:
    seconds = Histogram("took_seconds", "Took.", ("op",), buckets=exponential_buckets(1, 2, 10))
    for number in range(200):
        seconds.labels(str(number)).observe(number)
    registry = MetricsRegistry(disabled=REGISTRY_METRICS)
    registry.add(seconds)
    found = []
    for piece in registry.render():
        found.append(piece)
        for number in range(200):
            seconds.labels(str(number)).observe(1)  # the loop goes on between two pieces
    assert [piece.count(b"\n") <= CHUNK_LINES for piece in found] == [True] * len(found)
    assert len(found) > 4
    lines = b"".join(found).decode().splitlines()
    infinite = [line.rpartition(" ")[2] for line in lines if 'le="+Inf"' in line]
    assert infinite == [line.rpartition(" ")[2] for line in lines if line.startswith("took_seconds_count")]


def test_a_reset_removes_labelled_values_and_zeroes_unlabelled_ones() -> None:
    hits, misses, resets = Counter("hits_total", "Hits.", ("code",)), Counter("misses_total", "Misses."), []
    hits.labels("200").inc()
    misses.inc()
    registry = MetricsRegistry(disabled=REGISTRY_METRICS)
    registry.add(hits, misses)
    registry.collect(lambda: None, reset=lambda: resets.append(1))
    registry.reset()
    assert b"".join(registry.render()).endswith(b"\nmisses_total 0\n")
    assert (len(hits), resets) == (0, [1])


def test_label_values_that_are_not_allowed_are_counted_as_unexpected() -> None:
    hits = Counter("hits_total", "Hits.", ("code", "verb"))
    registry = MetricsRegistry()
    registry.add(hits)
    registry.allow_labels({"hits_total,code": {"200", "404"}, "elsewhere_total,code": {"1"}})
    for code in ("200", "418", "500"):
        hits.labels(code, "GET").inc()
    assert hits.labels("200", "GET").value == 1
    assert hits.labels("unexpected", "GET").value == 2


def test_allowed_labels_need_a_label_name() -> None:
    with pytest.raises(UsageError, match="has no label"):
        MetricsRegistry().allow_labels({"hits_total": {"200"}})


def test_two_metrics_with_one_name_are_an_error() -> None:
    registry = MetricsRegistry()
    registry.add(Counter("a_total", "A."))
    with pytest.raises(ValueError, match="the metric a_total is registered twice"):
        registry.add(Counter("a_total", "A."))


def test_the_wrong_number_of_labels_is_an_error() -> None:
    with pytest.raises(ValueError, match="has the labels"):
        Counter("a_total", "A.", ("x",)).labels("1", "2")
