"""Who looks at the page, and what does each of them not know yet?

Every viewer has a stream of server-sent events: all rows first, then what has changed, once a tick. What changes while
a viewer's connection is slow is kept once a name, so a viewer costs memory for the cluster at most, however slow.
Rows are made when they are sent, in pieces that hold the loop for a few milliseconds. While nobody looks, a change
costs one question.

    event: hello       once: who serves, what the places of rows mean
    event: rows        {"pods": [...], "nodes": [...], "gone": {"pods": [...]}}
    event: whole       everything that there was at the beginning has been told
    event: numbers     counts of attempts and waiting pods, once a second
    event: queues      what the queues came to in the last session
    event: decisions   the newest ones
    event: again       what may be seen has changed: everything is told anew
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
"""How often it is asked whether a viewer may still see what they see."""
ROWS_PER_EVENT = 250
MAX_VIEWERS = 32


@dataclass(frozen=True, slots=True)
class NamespaceVisibility:
    """Which namespaces somebody may read."""

    all_namespaces: bool = False
    namespaces: frozenset[str] = frozenset()

    def includes(self, key: str) -> bool:
        """Whether an object called `namespace/name` may be seen."""
        return self.all_namespaces or key.partition("/")[0] in self.namespaces


EVERYTHING = NamespaceVisibility(all_namespaces=True)
NOTHING = NamespaceVisibility()
VisibilityCheck = Callable[[], Awaitable[NamespaceVisibility | None]]
"""What may be seen now; None: nothing any more, not even the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageViews:
    """What the page may show: functions that are called when somebody looks."""

    objects: Callable[[str], Iterable[KubeObject]]
    """What is known of a resource, by its plural; nothing before the process has begun."""
    numbers: Callable[[], FeedCounters]
    queues: Callable[[], Mapping[str, Mapping[str, float]]]
    decisions: Callable[[], Sequence[DecisionSource]]
    about: Callable[[], Mapping[str, Any]]
    """Who serves: version, when it began, whether it leads."""


class PageStreams:
    """Everybody who looks, and whatever they are still to be told."""

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
        """The API server told of a change: a handler of informers."""
        if not self._open:
            return
        item = new if new is not None else old
        if item is not None and (table := table_of(item)):
            for viewer in self._open:
                viewer.pending[table][item.key] = new

    async def stream(self, look: VisibilityCheck, user: str = "") -> AsyncGenerator[bytes, None]:
        """Everything for one viewer, from now on, until they go or may see nothing any more."""
        viewer = _PageStream(self._views)
        self._open.add(viewer)
        try:
            yield b"retry: 1000\n\n"
            yield _event("hello", {**self._views.about(), "user": user, "fields": FIELDS})
            looked_s = counted_s = float("-inf")
            while True:
                now_s = self._clock.monotonic_s()
                if now_s - looked_s >= RECHECK_S:
                    looked_s, sight = now_s, await look()
                    if sight is None:
                        return
                    for piece in viewer.set_visibility(sight):
                        yield piece
                for piece in viewer.rows():
                    yield piece
                if now_s - counted_s >= NUMBERS_S:
                    counted_s = now_s
                    for piece in viewer.numbers():
                        yield piece
                for piece in viewer.decisions():
                    yield piece
                await self._clock.sleep(self._tick_s)
        finally:
            self._open.discard(viewer)


@dataclass(slots=True, eq=False)
class _PageStream:
    """One of them."""

    views: PageViews
    sight: NamespaceVisibility | None = None
    pending: dict[str, dict[str, KubeObject | None]] = field(default_factory=lambda: {name: {} for name in TABLES})
    """What has changed since it was last told, by table and key; None: it is gone."""
    decisions_sent: dict[int, int] = field(default_factory=dict)
    """How many decisions were told, of each source."""
    _queues: object = None
    _first: Iterator[tuple[str, KubeObject]] | None = None

    def set_visibility(self, sight: NamespaceVisibility) -> Iterator[bytes]:
        """May see this from now on; everything is told anew where that is not what it was."""
        if sight == self.sight:
            return
        if self.sight is not None:
            yield _event("again", {})
        self.sight = sight
        for changes in self.pending.values():
            changes.clear()
        self._first = self._everything()

    def _everything(self) -> Iterator[tuple[str, KubeObject]]:
        for table, plural in zip(TABLES, ("queues", "podgroups", "nodes", "pods"), strict=True):
            for item in self.views.objects(plural):
                if table_of(item) == table:
                    yield table, item

    def rows(self) -> Iterator[bytes]:
        """Pieces of what is not told yet. What comes first may be old by then: its change is told after it."""
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
        assert self.sight is not None
        rows: dict[str, list[Row]] = {}
        gone: dict[str, list[str]] = {}
        for table, key, item in changes:
            if table in (PODS, GROUPS) and not self.sight.includes(key):
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
        assert self.sight is not None
        new: list[FeedEntry] = []
        for place, source in enumerate(self.views.decisions()):
            self.decisions_sent[place], told = source.since(self.decisions_sent.get(place, 0))
            new += [each for each in told if all(map(self.sight.includes, (each.pod, *each.related)))]
        if new:
            yield _event("decisions", sorted(new, key=lambda each: each.at))


def _readable_row(item: KubeObject) -> Row | None:
    try:
        return row_of(item)
    except (BayplanError, ValueError) as fault:  # an amount that nobody can read, in a kind that nobody validates
        log.debug("the page leaves out %s: %s", item.key, fault)
        return None


def _event(name: str, data: object) -> bytes:
    """JSON has no line breaks, so one line of data is enough whatever names have in them."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
