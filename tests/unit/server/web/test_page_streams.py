"""What viewers are told: everything once, then what changes, and only of namespaces that they may read."""

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
class Feed:
    """Decisions that a test makes up."""

    told: list[FeedEntry] = field(default_factory=list)

    def since(self, count: int) -> tuple[int, Sequence[FeedEntry]]:
        return len(self.told), self.told[count:]


@dataclass
class World:
    """What there is, and who looks at it."""

    items: dict[str, list[KubeObject]] = field(default_factory=dict)
    feed: Feed = field(default_factory=Feed)
    queues: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sight: NamespaceVisibility | None = EVERYTHING
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

    async def look(self) -> NamespaceVisibility | None:
        return self.sight

    def open(self) -> Looking:
        return Looking(self, self.viewers.stream(self.look, "jane"))


@dataclass
class Looking:
    """One viewer, who reads."""

    world: World
    stream: AsyncGenerator[bytes, None]
    _next: asyncio.Task[bytes] | None = None

    async def read(self) -> list[Event]:
        """All that is told until the stream rests."""
        told: list[Event] = []
        while True:
            self._next = self._next or asyncio.ensure_future(anext(self.stream))
            for _ in range(10):
                await asyncio.sleep(0)
            if not self._next.done():
                return told
            try:
                told += _parsed(self._next.result())
            except StopAsyncIteration:
                return [*told, ("over", None)]
            self._next = None

    async def later(self, seconds: float = 0.25) -> list[Event]:
        self.world.clock.advance(seconds)
        return await self.read()

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self.stream.aclose()


def _parsed(data: bytes) -> list[Event]:
    found = []
    for block in data.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def rows(told: list[Event], table: str) -> list[str]:
    return [row[0] for name, data in told if name == "rows" for row in data.get(table, [])]


def gone(told: list[Event], table: str = "pods") -> list[str]:
    return [key for name, data in told if name == "rows" for key in data["gone"].get(table, [])]


def names(told: list[Event]) -> list[str]:
    return [name for name, _ in told]


def pod(name: str, namespace: str = "default", **fields: Any) -> Pod:
    return make_pod(name, namespace=namespace, **fields)


@async_test
async def test_everything_is_told_once_and_then_what_changes() -> None:
    web = pod("web")
    world = World({"nodes": [make_node("a")], "pods": [web]})
    viewer = world.open()
    told = await viewer.read()
    assert names(told) == ["hello", "rows", "whole", "numbers", "queues"]
    assert told[0][1]["user"] == "jane"
    assert (rows(told, "nodes"), rows(told, "pods")) == (["a"], ["default/web"])
    assert await viewer.later() == []
    world.viewers.on_change(web, replace_fields(web, spec={"node_name": "a"}))
    world.viewers.on_change(None, pod("new"))
    world.viewers.on_change(pod("old"), None)
    told = await viewer.later()
    assert (rows(told, "pods"), gone(told)) == (["default/web", "default/new"], ["default/old"])
    await viewer.close()


@async_test
async def test_a_pod_that_ends_goes() -> None:
    world = World()
    viewer = world.open()
    await viewer.read()
    world.viewers.on_change(pod("job"), replace_fields(pod("job"), status={"phase": "Succeeded"}))
    assert gone(await viewer.later()) == ["default/job"]
    await viewer.close()


@async_test
async def test_many_changes_of_one_pod_are_told_once() -> None:
    world = World()
    viewer = world.open()
    await viewer.read()
    for _ in range(1000):
        world.viewers.on_change(pod("busy"), pod("busy"))
    assert rows(await viewer.later(), "pods") == ["default/busy"]
    await viewer.close()


@async_test
async def test_a_change_that_comes_while_everything_is_told_comes_last() -> None:
    first = [pod(f"p{number}") for number in range(3 * ROWS_PER_EVENT)]
    world = World({"pods": list(first)})
    viewer = world.open()
    stream = viewer.stream
    told = [event for _ in range(3) for event in _parsed(await anext(stream))]
    world.viewers.on_change(first[-1], None)
    told += await viewer.read()
    assert len(rows(told, "pods")) == 3 * ROWS_PER_EVENT
    assert gone(told) == [first[-1].key]
    assert names(told).index("whole") < max(place for place, name in enumerate(names(told)) if name == "rows")
    await viewer.close()


@async_test
async def test_pods_of_other_namespaces_are_never_told() -> None:
    theirs, ours = pod("theirs", "secret"), pod("ours", "team")
    groups: list[KubeObject] = [
        from_api(PodGroup, {"metadata": {"name": "g", "namespace": where}}) for where in ("secret", "team")
    ]
    world = World(
        {"pods": [theirs, ours], "podgroups": groups}, sight=NamespaceVisibility(namespaces=frozenset({"team"}))
    )
    world.feed.told = [
        FeedEntry(1.0, "secret/theirs", "scheduled", "a", ""),
        FeedEntry(2.0, "team/ours", "scheduled", "a", ""),
        FeedEntry(3.0, "team/ours", "unschedulable", "", "it fits a once secret/theirs is gone", ("secret/theirs",)),
    ]
    viewer = world.open()
    told = await viewer.read()
    world.viewers.on_change(theirs, replace_fields(theirs, spec={"node_name": "a"}))
    world.viewers.on_change(theirs, None)
    told += await viewer.later()
    assert "secret" not in json.dumps(told)
    assert (rows(told, "pods"), rows(told, "groups")) == (["team/ours"], ["team/g"])
    assert [each["at"] for name, data in told if name == "decisions" for each in data] == [2.0]
    await viewer.close()


@async_test
async def test_what_may_be_seen_is_asked_again_and_told_anew() -> None:
    world = World(
        {"pods": [pod("a", "one"), pod("b", "two")]}, sight=NamespaceVisibility(namespaces=frozenset({"one"}))
    )
    viewer = world.open()
    assert rows(await viewer.read(), "pods") == ["one/a"]
    world.sight = NamespaceVisibility(namespaces=frozenset({"two"}))
    told = await viewer.later(RECHECK_S)
    assert names(told)[0] == "again"
    assert rows(told, "pods") == ["two/b"]
    world.sight = None
    assert await viewer.later(RECHECK_S) == [("over", None)]
    assert len(world.viewers) == 0


@async_test
async def test_numbers_come_every_second_and_queues_when_they_change() -> None:
    world = World()
    viewer = world.open()
    await viewer.read()
    assert names(await viewer.later(0.5)) == []
    assert names(await viewer.later(0.5)) == ["numbers"]
    world.queues = {"gold": {"share": 0.5}}
    assert (await viewer.later(1.0))[1] == ("queues", {"gold": {"share": 0.5}})
    await viewer.close()


@async_test
async def test_an_amount_that_nobody_can_read_costs_its_row_local() -> None:
    queues: list[KubeObject] = [
        from_api(Queue, {"metadata": {"name": name}, "spec": {"capability": {"cpu": cpu}}})
        for name, cpu in (("bad", "a lot"), ("good", "4"))
    ]
    viewer = World({"queues": queues}).open()
    assert rows(await viewer.read(), "queues") == ["good"]
    await viewer.close()


@async_test
async def test_names_with_markup_are_data() -> None:
    nasty = "<img src=x onerror=alert(1)>\n\nevent: rows"
    viewer = World({"pods": [pod(nasty)]}).open()
    told = await viewer.read()
    assert rows(told, "pods") == [f"default/{nasty}"]
    await viewer.close()


@async_test
async def test_nobody_who_looks_costs_nothing() -> None:
    world = World()
    viewer = world.open()
    await viewer.read()
    await viewer.close()
    assert len(world.viewers) == 0
    world.viewers.on_change(None, pod("unseen"))
    viewer = world.open()
    assert rows(await viewer.read(), "pods") == []
    await viewer.close()


@async_test
async def test_viewers_are_counted() -> None:
    world = World()
    viewers = [world.open() for _ in range(MAX_VIEWERS)]
    for viewer in viewers[1:]:
        await viewer.read()
    assert not world.viewers.full
    await viewers[0].read()
    assert world.viewers.full
    for viewer in viewers:
        await viewer.close()
