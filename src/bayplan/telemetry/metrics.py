"""Prometheus metrics: counters, gauges and histograms in the text format.

Callers keep a value (`family.labels(...)`) and add to it: an observation costs about a third of a microsecond, an
increment less. Values are rendered only at a scrape: `MetricsRegistry.render` yields chunks of some hundred lines, so
that the loop can run other tasks in between. One thread owns all metrics, so there are no locks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import ClassVar, Generic, TypeVar

from bayplan.codec.go_text import go_value
from bayplan.errors import UsageError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
CHUNK_LINES = 500
"""Lines in one chunk: less than a millisecond of work."""

UNEXPECTED_LABEL = "unexpected"
"""The label value that replaces a value outside the allowed ones."""

_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_PLAIN_BELOW = 1_000_000  # larger integers are written with an exponent


class Stability(StrEnum):
    """Upstream's stability level of a metric, printed in front of its help. Metrics of the process have none."""

    NONE = ""
    ALPHA = "ALPHA"
    BETA = "BETA"
    STABLE = "STABLE"


class CounterValue:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, by: float = 1) -> None:
        self.value += by


class GaugeValue(CounterValue):
    __slots__ = ()

    def dec(self, by: float = 1) -> None:
        self.value -= by

    def set(self, value: float) -> None:
        self.value = value


class HistogramValue:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def set_from(self, other: HistogramValue) -> None:
        """Share the counts of another histogram, from now on."""
        self.counts, self.total = other.counts, other.total

    @property
    def count(self) -> int:
        return sum(self.counts)


V = TypeVar("V", CounterValue, GaugeValue, HistogramValue)


class Family(Generic[V]):
    """One metric: its name, and a value for each combination of labels in use."""

    kind: ClassVar[str]

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        *,
        stability: Stability = Stability.ALPHA,
        deprecated: str = "",
    ) -> None:
        self.name = name
        self.help_text = help_text
        self.label_names = tuple(labels)
        self.stability = stability
        self.deprecated = deprecated
        """The version since which the metric is deprecated; empty if it is not."""
        self._order = sorted(range(len(labels)), key=labels.__getitem__)
        self._allowed: dict[int, Collection[str]] = {}
        self._values: dict[tuple[str, ...], V] = {}
        self.reset()

    def _new(self) -> V:
        raise NotImplementedError

    def labels(self, *values: str) -> V:
        """The value for these labels, in the order of the family's label names."""
        found = self._values.get(values)
        if found is None:
            found = self._make_value(values)
        return found

    def _make_value(self, values: tuple[str, ...]) -> V:
        if len(values) != len(self.label_names):
            raise ValueError(
                f"{self.name} has the labels {self.label_names}, got {len(values)} values; give one for each label"
            )
        if self._allowed:
            values = tuple(map(self._allowed_value, range(len(values)), values))
        return self._values.setdefault(values, self._new())

    def _allowed_value(self, place: int, value: str) -> str:
        allowed = self._allowed.get(place)
        return value if allowed is None or value in allowed else UNEXPECTED_LABEL

    def allow(self, label: str, values: Collection[str]) -> None:
        """Count values of this label that are not in `values` as `unexpected` from now on."""
        if label in self.label_names:
            self._allowed[self.label_names.index(label)] = frozenset(values)

    def forget(self, *values: str) -> None:
        """Remove the value for these labels, if there is one."""
        self._values.pop(values, None)

    def reset(self) -> None:
        """Remove all values. A metric without labels exists from the start, at zero."""
        self._values.clear()
        if not self.label_names:
            self._values[()] = self._new()

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> Iterable[tuple[tuple[str, ...], V]]:
        """Labels and current values."""
        return self._values.items()

    def head(self) -> list[str]:
        """The HELP and TYPE lines."""
        words: list[str] = [f"[{self.stability}]"] if self.stability else []
        words += [f"(Deprecated since {self.deprecated})"] if self.deprecated else []
        text = " ".join([*words, self.help_text.translate(_HELP_ESCAPES)])
        return [f"# HELP {self.name} {text}", f"# TYPE {self.name} {self.kind}"]

    def lines(self) -> Iterator[str]:
        """HELP, TYPE and values, sorted by label names and values; no lines without values."""
        if not self._values:
            return
        yield from self.head()
        names = [self.label_names[place] for place in self._order]
        ordered = [(tuple(labels[place] for place in self._order), value) for labels, value in self._values.items()]
        for labels, value in sorted(ordered, key=lambda each: each[0]):
            yield from self._value_lines(label_text(names, labels), value)

    def _value_lines(self, labels: str, value: V) -> list[str]:
        """All lines of one value in one list: increments during rendering must not come between them."""
        raise NotImplementedError


class Counter(Family[CounterValue]):
    kind = "counter"

    def _new(self) -> CounterValue:
        return CounterValue()

    def inc(self, by: float = 1) -> None:
        """Increase a counter without labels."""
        self._values[()].value += by

    def _value_lines(self, labels: str, value: CounterValue) -> list[str]:
        return [sample_line(self.name, labels, value.value)]


class Gauge(Family[GaugeValue]):
    kind = "gauge"

    def _new(self) -> GaugeValue:
        return GaugeValue()

    def set(self, value: float) -> None:
        """Set a gauge without labels."""
        self._values[()].value = value

    def _value_lines(self, labels: str, value: GaugeValue) -> list[str]:
        return [sample_line(self.name, labels, value.value)]


class Histogram(Family[HistogramValue]):
    kind = "histogram"

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        stability: Stability = Stability.ALPHA,
        deprecated: str = "",
    ) -> None:
        self.buckets = tuple(buckets)
        super().__init__(name, help_text, labels, stability=stability, deprecated=deprecated)
        self._bounds = [*map(number_text, self.buckets), "+Inf"]

    def _new(self) -> HistogramValue:
        return HistogramValue(self.buckets)

    def observe(self, value: float) -> None:
        """Observe a value of a histogram without labels."""
        self._values[()].observe(value)

    def _value_lines(self, labels: str, value: HistogramValue) -> list[str]:
        inner = f"{labels[1:-1]}," if labels else ""
        cumulative = list(accumulate(value.counts))
        lines = [
            f'{self.name}_bucket{{{inner}le="{bound}"}} {number_text(count)}'
            for bound, count in zip(self._bounds, cumulative, strict=True)
        ]
        return [
            *lines,
            sample_line(f"{self.name}_sum", labels, value.total),
            sample_line(f"{self.name}_count", labels, cumulative[-1]),
        ]


AnyFamily = Counter | Gauge | Histogram
Collector = Callable[[], None]
"""Called before every rendering to update gauges."""


class MetricsRegistry:
    """The metrics of a process, as a value."""

    def __init__(self, *, disabled: Collection[str] = ()) -> None:
        self._disabled = frozenset(disabled)
        self._families: dict[str, AnyFamily] = {}
        self._collectors: list[Collector] = []
        self._resets: list[Collector] = []

    def add(self, *families: AnyFamily) -> None:
        for family in families:
            if family.name in self._families:
                raise ValueError(f"the metric {family.name} is registered twice; use another name")
            self._families[family.name] = family

    def collect(self, collector: Collector, *, reset: Collector | None = None) -> None:
        """Call `collector` before each rendering. `reset` sets the collector's source to zero."""
        self._collectors.append(collector)
        self._resets += [reset] if reset is not None else []

    def allow_labels(self, allowed: Mapping[str, Collection[str]]) -> None:
        """`--allow-metric-labels`: the allowed values by `metric,label`."""
        for key, values in allowed.items():
            metric, comma, label = key.partition(",")
            if not comma or not metric or not label:
                raise UsageError(f"--allow-metric-labels: {key!r} has no label; use metric,label='value,value'")
            if metric in self._families:
                self._families[metric].allow(label, values)

    def reset(self) -> None:
        for reset in self._resets:
            reset()
        for family in self._families.values():
            family.reset()

    def __iter__(self) -> Iterator[AnyFamily]:
        return iter(self._families.values())

    def __getitem__(self, name: str) -> AnyFamily:
        return self._families[name]

    def render(self) -> Iterator[bytes]:
        """The text in chunks. Counting goes on between two chunks, but the lines of one value stay together."""
        for collector in self._collectors:
            collector()
        return in_chunks(self._lines())

    def _lines(self) -> Iterator[str]:
        families = [*self._families.values(), *self._registry_metrics()]
        for family in sorted(families, key=lambda each: each.name):
            if family.name not in self._disabled:
                yield from family.lines()

    def _registry_metrics(self) -> Iterator[AnyFamily]:
        registered = Counter(
            "registered_metrics_total",
            "The count of registered metrics broken by stability level and deprecation version.",
            ("stability_level", "deprecated_version"),
            stability=Stability.BETA,
        )
        kinds = Tally((family.stability, family.deprecated) for family in self if family.stability)
        for (stability, deprecated), count in kinds.items():
            registered.labels(stability, deprecated).inc(count)
        disabled = Counter("disabled_metrics_total", "The count of disabled metrics.", stability=Stability.BETA)
        disabled.inc(len(self._disabled))
        yield registered
        yield disabled
        yield Counter("hidden_metrics_total", "The count of hidden metrics.", stability=Stability.BETA)


def in_chunks(lines: Iterable[str]) -> Iterator[bytes]:
    waiting: list[str] = []
    for line in lines:
        waiting.append(line)
        if len(waiting) == CHUNK_LINES:
            yield _join_lines(waiting)
            waiting = []
    if waiting:
        yield _join_lines(waiting)


def _join_lines(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """Labels in the text format; empty without labels."""
    if not names:
        return ""
    inner = ",".join(f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in zip(names, values, strict=True))
    return f"{{{inner}}}"


def sample_line(name: str, labels: str, value: float) -> str:
    return f"{name}{labels} {number_text(value)}"


def number_text(value: float) -> str:
    """A number in Go's format."""
    if isinstance(value, int) and -_PLAIN_BELOW < value < _PLAIN_BELOW:
        return str(value)
    return go_value(float(value))


def exponential_range(first: float, last: float, count: int) -> tuple[float, ...]:
    """`count` bounds from the first to the last, each larger than the one before by the same factor."""
    factor = (last / first) ** (1.0 / (count - 1))
    return tuple(first * factor**step for step in range(count))


def exponential_buckets(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Bounds that grow by a factor, multiplied step by step as upstream does, because the last digits are visible."""
    bounds = [start]
    while len(bounds) < count:
        bounds.append(bounds[-1] * factor)
    return tuple(bounds)
