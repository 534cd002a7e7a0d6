"""What a watch sends: what there is, what comes, what goes out of sight, and when it is cut off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan.apiserver.http import server, watch_stream
from bayplan.apiserver.http.responses import WatchResponse
from bayplan.apiserver.http.watch_stream import ObjectFormat, Watch
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.storage.selection_predicate import parse_selectors
from support.harness.apiserver_store import ApiserverStore, config_map, pod
from support.harness.async_tests import async_test


def started(
    world: ApiserverStore, kind: str = "ConfigMap", *, version: int = 0, labels: str = "", fields: str = ""
) -> Watch:
    resource = world.kind(kind)
    watch = Watch(
        world.place(kind), ObjectFormat(resource), parse_selectors(resource, "default", labels, fields), resource
    )
    watch.start(version, current=world.store.version, initial=not version)
    return watch


async def events(watch: Watch) -> list[Tree]:
    """All that has gathered."""
    found: list[Tree] = []
    while (lines := await watch.next_lines(0.0)) is not None:
        found += [json.loads(line) for line in lines.splitlines()]
    return found


def told(found: list[Tree]) -> list[tuple[str, str]]:
    return [(each["type"], each["object"]["metadata"]["name"]) for each in found]


def labelled(world: ApiserverStore, name: str, **labels: str) -> None:
    world.update("ConfigMap", name, lambda live: {**live, "metadata": {**live["metadata"], "labels": labels}})


@async_test
async def test_what_is_there_comes_first() -> None:
    world = ApiserverStore()
    world.create(config_map("b"))
    world.create(config_map("a"))
    watch = started(world)
    world.create(config_map("c"))
    found = await events(watch)
    assert told(found) == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]
    assert found[0]["object"]["kind"] == "ConfigMap"


@async_test
async def test_a_watch_goes_on_where_a_list_ended() -> None:
    world = ApiserverStore()
    first = world.create(config_map("a"))
    assert first.entry is not None
    world.create(config_map("b"))
    world.delete("ConfigMap", "a")
    assert told(await events(started(world, version=first.entry.version))) == [("ADDED", "b"), ("DELETED", "a")]


@async_test
async def test_an_object_comes_into_sight_and_goes_out_of_it() -> None:
    world = ApiserverStore()
    world.create(config_map("a", labels={"color": "blue"}))
    watch = started(world, labels="color=red")
    assert await events(watch) == []
    labelled(world, "a", color="red")
    labelled(world, "a", color="red", size="2")
    labelled(world, "a", color="green")
    found = await events(watch)
    assert told(found) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    gone = found[2]["object"]["metadata"]
    assert gone["labels"] == {"color": "red", "size": "2"}  # its old content
    assert gone["resourceVersion"] == str(world.store.version)  # under the new version


@async_test
async def test_fields_are_watched_too() -> None:
    world = ApiserverStore()
    watch = started(world, "Pod", fields="spec.nodeName=n1")
    world.create(pod("a"))
    world.create(pod("b", node="n1"))
    assert told(await events(watch)) == [("ADDED", "b")]


@async_test
async def test_a_version_that_is_forgotten_is_an_error_and_the_end() -> None:
    world = ApiserverStore()
    world.create(config_map("a"))
    world.store.compact()
    watch = started(world, version=1)
    (error,) = await events(watch)
    assert error["type"] == "ERROR"
    assert (error["object"]["code"], error["object"]["reason"]) == (410, "Expired")
    assert error["object"]["message"] == f"too old resource version: 1 ({world.store.version + 1})"
    assert watch.overflowed


@pytest.mark.parametrize("bookmarks", [True, False])
def test_a_watch_that_matches_nothing_gets_a_bookmark_before_its_end(
    monkeypatch: pytest.MonkeyPatch, *, bookmarks: bool
) -> None:
    """The next watch starts from it: without it the version would grow old while other objects of the kind change."""
    monkeypatch.setattr(server, "FINAL_BOOKMARK_S", 0.02)

    @async_test
    async def run() -> None:
        world = ApiserverStore()
        sent: list[Tree] = []
        watch = started(world, labels="color=red")
        world.create(config_map("a", labels={"color": "blue"}))

        async def write(lines: bytes) -> None:
            sent.extend(json.loads(line) for line in lines.splitlines())

        await server.send_watch(
            WatchResponse(watch, timeout_s=0.05, bookmarks=bookmarks), write, lambda: world.store.version
        )
        versions = {(each["type"], each["object"]["metadata"]["resourceVersion"]) for each in sent}
        assert versions == ({("BOOKMARK", str(world.store.version))} if bookmarks else set())

    run()


@pytest.mark.parametrize("names", [pytest.param([], id="nothing there"), pytest.param(["a", "b"], id="two objects")])
def test_the_end_of_what_was_there_is_told(names: list[str]) -> None:
    @async_test
    async def run() -> None:
        world = ApiserverStore()
        for name in names:
            world.create(config_map(name))
        watch = started(world)
        watch.queue_initial_events_end(world.store.version)
        world.create(config_map("later"))
        found = await events(watch)
        assert [each["type"] for each in found] == [*["ADDED"] * len(names), "BOOKMARK", "ADDED"]
        mark: dict[str, Any] = found[len(names)]["object"]
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert (mark["kind"], mark["apiVersion"]) == ("ConfigMap", "v1")

    run()


@async_test
async def test_who_reads_too_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_stream, "MAX_BUFFERED_BYTES", 2000)
    world = ApiserverStore()
    watch = started(world)
    for number in range(50):
        world.create(config_map(f"c{number}"))
    assert watch.overflowed
    assert await watch.next_lines(0.0) is None
    before = len(world.place("ConfigMap").watch_cache._listeners)
    assert before == 0  # the store does not talk to it any more
