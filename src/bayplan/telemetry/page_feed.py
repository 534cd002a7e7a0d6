"""Recent decisions and counters for the web page, as frozen values.

Decisions of the pod engine are read from its ring of records, only when a page is open. The batch engine reports each
session once, at its end. Of pending pods only new messages are kept, since a session repeats the rest every second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Protocol

import msgspec

from bayplan.telemetry.batch_metrics import BatchMetrics, SessionOutcome
from bayplan.telemetry.decision_text import decision_sentence
from bayplan.telemetry.decisions import DecisionRecord, DecisionRing
from bayplan.telemetry.metrics import HistogramValue
from bayplan.telemetry.scheduler_metrics import ERROR, SCHEDULED, UNSCHEDULABLE, SchedulerMetrics

MAX_KEPT = 500
"""Decisions of sessions that are kept for pages that are opened later."""
MAX_RETURNED = 100
"""Maximum number of decisions in one update: a person reads no more in a second."""


class FeedEntry(msgspec.Struct, frozen=True):
    """One decision, for people."""

    at: float
    """Seconds since 1970."""
    pod: str
    outcome: str
    """scheduled, unschedulable, error or evicted."""
    node: str
    text: str
    related: tuple[str, ...] = ()
    """Other pods that the text names. A user who may not read them may not read the text."""


class FeedCounters(msgspec.Struct, frozen=True):
    """Counts since the process began; rates are differences of two values."""

    scheduled: float = 0
    unschedulable: float = 0
    errors: float = 0
    bounds: tuple[float, ...] = ()
    """Upper bounds of the buckets of `counts` in seconds; `counts` has one more."""
    counts: tuple[int, ...] = ()
    """Numbers of attempts that ended in a binding, by duration."""
    waiting: Mapping[str, int] = {}
    """Pending pods by sub-queue."""


class DecisionSource(Protocol):
    """A source of decisions that is read from a position on."""

    def since(self, count: int) -> tuple[int, Sequence[FeedEntry]]:
        """The number of decisions so far, and the decisions after the first `count`, the oldest first."""
        ...


class RecordedDecisions:
    """The decisions of the pod engine, from its ring."""

    def __init__(self, ring: DecisionRing) -> None:
        self._ring = ring

    def since(self, count: int) -> tuple[int, Sequence[FeedEntry]]:
        added = self._ring.added
        records = self._ring.newest(min(MAX_RETURNED, max(0, added - count)))
        return added, [feed_entry(record) for record in records]


def feed_entry(record: DecisionRecord) -> FeedEntry:
    return FeedEntry(
        record.at.timestamp(), record.pod, record.outcome, record.node or "", decision_sentence(record), record.victims
    )


class SessionDecisions:
    """The decisions of the batch engine and the gauges of its queues. `add_session` is called after each session."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._entries: deque[FeedEntry | DecisionRecord] = deque(maxlen=MAX_KEPT)
        self._count = 0
        self._messages: dict[str, str] = {}
        self.queues: Mapping[str, Mapping[str, float]] = {}
        self.records = DecisionRing()
        """Why pods were placed on their nodes."""

    def add_session(self, outcome: SessionOutcome) -> None:
        at = self._now().timestamp()
        for pod, reason in outcome.evicts.items():
            self._add(FeedEntry(at, pod, "evicted", "", f"evicted by {reason}"))
        bound = self.records.newest(min(MAX_KEPT, len(outcome.binds)))
        known = {record.pod: record for record in bound}
        for pod, node in outcome.binds.items():
            self._add(known.get(pod) or FeedEntry(at, pod, SCHEDULED, node, "placed by a session"))
        messages = {pod: each.message for pod, each in outcome.messages.items()}
        for pod, message in messages.items():
            if self._messages.get(pod) != message:
                self._add(FeedEntry(at, pod, UNSCHEDULABLE, "", message))
        self._messages = messages
        self.queues = outcome.final_gauges

    def _add(self, entry: FeedEntry | DecisionRecord) -> None:
        self._entries.append(entry)
        self._count += 1

    def since(self, count: int) -> tuple[int, Sequence[FeedEntry]]:
        new = min(MAX_RETURNED, max(0, self._count - count), len(self._entries))
        newest = islice(self._entries, len(self._entries) - new, None)
        return self._count, [feed_entry(each) if isinstance(each, DecisionRecord) else each for each in newest]


def feed_counters(
    pods: SchedulerMetrics | None, batch: BatchMetrics | None, waiting: Mapping[str, int]
) -> FeedCounters:
    """The sums of the metrics of one or both engines."""
    results = dict.fromkeys((SCHEDULED, UNSCHEDULABLE, ERROR), 0.0)
    spreads: list[HistogramValue] = []
    for family in (pods.attempts if pods else None, batch.attempts if batch else None):
        for labels, value in family.items() if family is not None else ():
            results[labels[0]] = results.get(labels[0], 0.0) + value.value
    if pods is not None:
        spreads += [spread for labels, spread in pods.attempt_seconds.items() if labels[0] == SCHEDULED]
    bounds = tuple(spreads[0].bounds) if spreads else ()
    counts = tuple(map(sum, zip(*(spread.counts for spread in spreads), strict=True))) if spreads else ()
    if not any(counts) and batch is not None:
        bounds, counts = _sessions(batch.e2e.items())
    return FeedCounters(results[SCHEDULED], results[UNSCHEDULABLE], results[ERROR], bounds, counts, dict(waiting))


def _sessions(spreads: Iterable[tuple[tuple[str, ...], HistogramValue]]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The durations of sessions, for processes without a pod engine."""
    for _, spread in spreads:
        return tuple(bound / 1e3 for bound in spread.bounds), tuple(spread.counts)
    return (), ()
