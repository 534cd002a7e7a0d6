"""Streams of the page: all rows once, then changes, and only of readable namespaces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayplan.clock import ManualClock
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroup, Queue
from bayplan.server.web.page_streams import (
    EVERYTHING,
    MAX_VIEWERS,
    RECHECK_S,
    ROWS_PER_EVENT,
    NamespaceVisibility,
    PageStreams,
    PageViews,
)
from bayplan.telemetry.page_feed import DecisionSource, FeedCounters, FeedEntry
from bayplan.testing import make_pod
from support.builders.framework import from_api, make_node, replace_fields
from support.harness.async_tests import async_test

Tree = dict[str, Any]
Event = tuple[str, Any]


@dataclass
class FakeDecisions:
    """Decisions of a test."""

    events: list[FeedEntry] = field(default_factory=list)

    def since(self, count: int) -> tuple[int, Sequence[FeedEntry]]:
        return len(self.events), self.events[count:]


@dataclass
class PageHarness:
    """A fake cluster and its page streams."""

    items: dict[str, list[KubeObject]] = field(default_factory=dict)
    feed: FakeDecisions = field(default_factory=FakeDecisions)
    queues: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    visibility: NamespaceVisibility | None = EVERYTHING
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        views = PageViews(
            objects=lambda plural: self.items.get(plural, []),
            numbers=lambda: FeedCounters(scheduled=3),
            queues=lambda: self.queues,
            decisions=self._decisions,
            about=lambda: {"version": "0", "began": 1.0},
        )
        self.viewers = PageStreams(views, self.clock)

    def _decisions(self) -> Sequence[DecisionSource]:
        return [self.feed]

    async def check_visibility(self) -> NamespaceVisibility | None:
        return self.visibility

    def open(self) -> PageReader:
        return PageReader(self, self.viewers.stream(self.check_visibility, "jane"))


@dataclass
class PageReader:
    """One open page that reads its stream."""

    harness: PageHarness
    stream: AsyncGenerator[bytes, None]
    _next: asyncio.Task[bytes] | None = None

    async def read(self) -> list[Event]:
        """All events until the stream waits."""
        events: list[Event] = []
        while True:
            self._next = self._next or asyncio.ensure_future(anext(self.stream))
            for _ in range(10):
                await asyncio.sleep(0)
            if not self._next.done():
                return events
            try:
                events += _parse_events(self._next.result())
            except StopAsyncIteration:
                return [*events, ("over", None)]
            self._next = None

    async def later(self, seconds: float = 0.25) -> list[Event]:
        self.harness.clock.advance(seconds)
        return await self.read()

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self.stream.aclose()


def _parse_events(data: bytes) -> list[Event]:
    found = []
    for block in data.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def rows(events: list[Event], table: str) -> list[str]:
    return [row[0] for name, data in events if name == "rows" for row in data.get(table, [])]


def gone(events: list[Event], table: str = "pods") -> list[str]:
    return [key for name, data in events if name == "rows" for key in data["gone"].get(table, [])]


def event_names(events: list[Event]) -> list[str]:
    return [name for name, _ in events]


def pod(name: str, namespace: str = "default", **fields: Any) -> Pod:
    return make_pod(name, namespace=namespace, **fields)


@async_test
async def test_all_rows_are_sent_once_and_then_changes() -> None:
    web = pod("web")
    harness = PageHarness({"nodes": [make_node("a")], "pods": [web]})
    viewer = harness.open()
    events = await viewer.read()
    assert event_names(events) == ["hello", "rows", "whole", "numbers", "queues"]
    assert events[0][1]["user"] == "jane"
    assert (rows(events, "nodes"), rows(events, "pods")) == (["a"], ["default/web"])
    assert await viewer.later() == []
    harness.viewers.on_change(web, replace_fields(web, spec={"node_name": "a"}))
    harness.viewers.on_change(None, pod("new"))
    harness.viewers.on_change(pod("old"), None)
    events = await viewer.later()
    assert (rows(events, "pods"), gone(events)) == (["default/web", "default/new"], ["default/old"])
    await viewer.close()


@async_test
async def test_a_completed_pod_is_removed() -> None:
    harness = PageHarness()
    viewer = harness.open()
    await viewer.read()
    harness.viewers.on_change(pod("job"), replace_fields(pod("job"), status={"phase": "Succeeded"}))
    assert gone(await viewer.later()) == ["default/job"]
    await viewer.close()


@async_test
async def test_many_changes_of_one_pod_are_sent_once() -> None:
    harness = PageHarness()
    viewer = harness.open()
    await viewer.read()
    for _ in range(1000):
        harness.viewers.on_change(pod("busy"), pod("busy"))
    assert rows(await viewer.later(), "pods") == ["default/busy"]
    await viewer.close()


@async_test
async def test_a_change_during_the_initial_rows_is_sent_after_them() -> None:
    first = [pod(f"p{number}") for number in range(3 * ROWS_PER_EVENT)]
    harness = PageHarness({"pods": list(first)})
    viewer = harness.open()
    stream = viewer.stream
    events = [event for _ in range(3) for event in _parse_events(await anext(stream))]
    harness.viewers.on_change(first[-1], None)
    events += await viewer.read()
    assert len(rows(events, "pods")) == 3 * ROWS_PER_EVENT
    assert gone(events) == [first[-1].key]
    assert event_names(events).index("whole") < max(
        place for place, name in enumerate(event_names(events)) if name == "rows"
    )
    await viewer.close()


@async_test
async def test_pods_of_unreadable_namespaces_are_never_sent() -> None:
    hidden_pod, visible_pod = pod("hidden", "secret"), pod("visible", "team")
    groups: list[KubeObject] = [
        from_api(PodGroup, {"metadata": {"name": "g", "namespace": where}}) for where in ("secret", "team")
    ]
    harness = PageHarness(
        {"pods": [hidden_pod, visible_pod], "podgroups": groups},
        visibility=NamespaceVisibility(namespaces=frozenset({"team"})),
    )
    harness.feed.events = [
        FeedEntry(1.0, "secret/hidden", "scheduled", "a", ""),
        FeedEntry(2.0, "team/visible", "scheduled", "a", ""),
        FeedEntry(3.0, "team/visible", "unschedulable", "", "it fits a once secret/hidden is gone", ("secret/hidden",)),
    ]
    viewer = harness.open()
    events = await viewer.read()
    harness.viewers.on_change(hidden_pod, replace_fields(hidden_pod, spec={"node_name": "a"}))
    harness.viewers.on_change(hidden_pod, None)
    events += await viewer.later()
    assert "secret" not in json.dumps(events)
    assert (rows(events, "pods"), rows(events, "groups")) == (["team/visible"], ["team/g"])
    assert [each["at"] for name, data in events if name == "decisions" for each in data] == [2.0]
    await viewer.close()


@async_test
async def test_changed_permissions_resend_all_rows() -> None:
    harness = PageHarness(
        {"pods": [pod("a", "one"), pod("b", "two")]}, visibility=NamespaceVisibility(namespaces=frozenset({"one"}))
    )
    viewer = harness.open()
    assert rows(await viewer.read(), "pods") == ["one/a"]
    harness.visibility = NamespaceVisibility(namespaces=frozenset({"two"}))
    events = await viewer.later(RECHECK_S)
    assert event_names(events)[0] == "again"
    assert rows(events, "pods") == ["two/b"]
    harness.visibility = None
    assert await viewer.later(RECHECK_S) == [("over", None)]
    assert len(harness.viewers) == 0


@async_test
async def test_numbers_are_sent_every_second_and_queues_on_change() -> None:
    harness = PageHarness()
    viewer = harness.open()
    await viewer.read()
    assert event_names(await viewer.later(0.5)) == []
    assert event_names(await viewer.later(0.5)) == ["numbers"]
    harness.queues = {"gold": {"share": 0.5}}
    assert (await viewer.later(1.0))[1] == ("queues", {"gold": {"share": 0.5}})
    await viewer.close()


@async_test
async def test_an_object_with_an_invalid_quantity_is_omitted() -> None:
    queues: list[KubeObject] = [
        from_api(Queue, {"metadata": {"name": name}, "spec": {"capability": {"cpu": cpu}}})
        for name, cpu in (("bad", "a lot"), ("good", "4"))
    ]
    viewer = PageHarness({"queues": queues}).open()
    assert rows(await viewer.read(), "queues") == ["good"]
    await viewer.close()


@async_test
async def test_names_with_markup_are_data() -> None:
    nasty = "<img src=x onerror=alert(1)>\n\nevent: rows"
    viewer = PageHarness({"pods": [pod(nasty)]}).open()
    events = await viewer.read()
    assert rows(events, "pods") == [f"default/{nasty}"]
    await viewer.close()


@async_test
async def test_without_open_pages_changes_are_not_recorded() -> None:
    harness = PageHarness()
    viewer = harness.open()
    await viewer.read()
    await viewer.close()
    assert len(harness.viewers) == 0
    harness.viewers.on_change(None, pod("unseen"))
    viewer = harness.open()
    assert rows(await viewer.read(), "pods") == []
    await viewer.close()


@async_test
async def test_the_number_of_open_pages_is_limited() -> None:
    harness = PageHarness()
    viewers = [harness.open() for _ in range(MAX_VIEWERS)]
    for viewer in viewers[1:]:
        await viewer.read()
    assert not harness.viewers.full
    await viewers[0].read()
    assert harness.viewers.full
    for viewer in viewers:
        await viewer.close()
