"""Server-sent event streams of the page: one per open page, with only the changes that it lacks.

A stream sends all rows first, then changes, once a tick. Changes on a slow connection are kept once per object, so a
page costs at most the memory of the cluster, however slow it is. Rows are built when they are sent, in pieces that hold
the loop for a few milliseconds. Without open pages a change costs one test.

    event: hello       once: version of the server, columns of rows
    event: rows        {"pods": [...], "nodes": [...], "gone": {"pods": [...]}}
    event: whole       all initial rows have been sent
    event: numbers     counts of attempts and pending pods, once a second
    event: queues      gauges of the queues in the last session
    event: decisions   the newest decisions
    event: again       the permissions have changed: all rows are sent again
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from bayplan.clock import LoopClock
from bayplan.errors import BayplanError
from bayplan.objects.meta import KubeObject
from bayplan.telemetry.page_feed import DecisionSource, FeedCounters, FeedEntry
from bayplan.telemetry.page_rows import FIELDS, GROUPS, PODS, TABLES, Row, row_of, table_of

log = logging.getLogger(__name__)

TICK_S = 0.25
NUMBERS_S = 1.0
RECHECK_S = 10.0
"""Interval of permission checks for an open page."""
ROWS_PER_EVENT = 250
MAX_VIEWERS = 32


@dataclass(frozen=True, slots=True)
class NamespaceVisibility:
    all_namespaces: bool = False
    namespaces: frozenset[str] = frozenset()

    def includes(self, key: str) -> bool:
        """Whether the object `namespace/name` may be shown."""
        return self.all_namespaces or key.partition("/")[0] in self.namespaces


EVERYTHING = NamespaceVisibility(all_namespaces=True)
NOTHING = NamespaceVisibility()
VisibilityCheck = Callable[[], Awaitable[NamespaceVisibility | None]]
"""Returns the current permissions; None if the user may no longer read the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageViews:
    """The data of the page: functions that are called while a page is open."""

    objects: Callable[[str], Iterable[KubeObject]]
    """The known objects of a resource, by its plural; empty before the process has started."""
    numbers: Callable[[], FeedCounters]
    queues: Callable[[], Mapping[str, Mapping[str, float]]]
    decisions: Callable[[], Sequence[DecisionSource]]
    about: Callable[[], Mapping[str, Any]]
    """Version, start time, leadership and engines of the process."""


class PageStreams:
    """All open pages and their unsent changes."""

    def __init__(self, views: PageViews, clock: LoopClock, *, tick_s: float = TICK_S) -> None:
        self._views = views
        self._clock = clock
        self._tick_s = tick_s
        self._open: set[_PageStream] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= MAX_VIEWERS

    def namespaces(self) -> list[str]:
        return [each.name for each in self._views.objects("namespaces")]

    def on_change(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Record a change of an object: a handler of informers."""
        if not self._open:
            return
        item = new if new is not None else old
        if item is not None and (table := table_of(item)):
            for viewer in self._open:
                viewer.pending[table][item.key] = new

    async def stream(self, check_visibility: VisibilityCheck, user: str = "") -> AsyncGenerator[bytes, None]:
        """The events of one page, until it is closed or the user loses the permission."""
        viewer = _PageStream(self._views)
        self._open.add(viewer)
        try:
            yield b"retry: 1000\n\n"
            yield _event("hello", {**self._views.about(), "user": user, "fields": FIELDS})
            checked_s = numbers_sent_s = float("-inf")
            while True:
                now_s = self._clock.monotonic_s()
                if now_s - checked_s >= RECHECK_S:
                    checked_s, visibility = now_s, await check_visibility()
                    if visibility is None:
                        return
                    for piece in viewer.set_visibility(visibility):
                        yield piece
                for piece in viewer.rows():
                    yield piece
                if now_s - numbers_sent_s >= NUMBERS_S:
                    numbers_sent_s = now_s
                    for piece in viewer.numbers():
                        yield piece
                for piece in viewer.decisions():
                    yield piece
                await self._clock.sleep(self._tick_s)
        finally:
            self._open.discard(viewer)


@dataclass(slots=True, eq=False)
class _PageStream:
    views: PageViews
    visibility: NamespaceVisibility | None = None
    pending: dict[str, dict[str, KubeObject | None]] = field(default_factory=lambda: {name: {} for name in TABLES})
    """Unsent changes by table and key; None means that the object was deleted."""
    decisions_sent: dict[int, int] = field(default_factory=dict)
    """The number of decisions sent, by source."""
    _queues: object = None
    _first: Iterator[tuple[str, KubeObject]] | None = None

    def set_visibility(self, visibility: NamespaceVisibility) -> Iterator[bytes]:
        """Set the permissions. If they have changed, all rows are sent again."""
        if visibility == self.visibility:
            return
        if self.visibility is not None:
            yield _event("again", {})
        self.visibility = visibility
        for changes in self.pending.values():
            changes.clear()
        self._first = self._everything()

    def _everything(self) -> Iterator[tuple[str, KubeObject]]:
        for table, plural in zip(TABLES, ("queues", "podgroups", "nodes", "pods"), strict=True):
            for item in self.views.objects(plural):
                if table_of(item) == table:
                    yield table, item

    def rows(self) -> Iterator[bytes]:
        """Pieces of unsent rows. An initial row may be outdated; its change follows after it."""
        first = self._first
        while first is not None:
            piece = list(islice(first, ROWS_PER_EVENT))
            if not piece:
                self._first = None
                yield _event("whole", {})
                break
            yield from self._piece((table, item.key, item) for table, item in piece)
        for table, changes in self.pending.items():
            while changes:
                keys = list(islice(changes, ROWS_PER_EVENT))
                yield from self._piece((table, key, changes.pop(key)) for key in keys)

    def _piece(self, changes: Iterable[tuple[str, str, KubeObject | None]]) -> Iterator[bytes]:
        assert self.visibility is not None
        rows: dict[str, list[Row]] = {}
        gone: dict[str, list[str]] = {}
        for table, key, item in changes:
            if table in (PODS, GROUPS) and not self.visibility.includes(key):
                continue
            row = _readable_row(item) if item is not None else None
            if row is None:
                gone.setdefault(table, []).append(key)
            else:
                rows.setdefault(table, []).append(row)
        if rows or gone:
            yield _event("rows", {**rows, "gone": gone})

    def numbers(self) -> Iterator[bytes]:
        yield _event("numbers", self.views.numbers())
        queues = self.views.queues()
        if queues is not self._queues:
            self._queues = queues
            yield _event("queues", queues)

    def decisions(self) -> Iterator[bytes]:
        assert self.visibility is not None
        new: list[FeedEntry] = []
        for place, source in enumerate(self.views.decisions()):
            self.decisions_sent[place], entries = source.since(self.decisions_sent.get(place, 0))
            new += [each for each in entries if all(map(self.visibility.includes, (each.pod, *each.related)))]
        if new:
            yield _event("decisions", sorted(new, key=lambda each: each.at))


def _readable_row(item: KubeObject) -> Row | None:
    try:
        return row_of(item)
    except (BayplanError, ValueError) as fault:  # an invalid quantity, in a kind without validation
        log.debug("the page omits %s: %s", item.key, fault)
        return None


def _event(name: str, data: object) -> bytes:
    """An event. JSON has no line breaks, so one data line is enough for any name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
