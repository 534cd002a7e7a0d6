"""Watch: initial objects, later changes, selectors, bookmarks and the overflow."""

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


def start_watch(
    store: ApiserverStore, kind: str = "ConfigMap", *, version: int = 0, labels: str = "", fields: str = ""
) -> Watch:
    resource = store.kind(kind)
    watch = Watch(
        store.place(kind), ObjectFormat(resource), parse_selectors(resource, "default", labels, fields), resource
    )
    watch.start(version, current=store.store.version, initial=not version)
    return watch


async def events(watch: Watch) -> list[Tree]:
    """All buffered events."""
    found: list[Tree] = []
    while (lines := await watch.next_lines(0.0)) is not None:
        found += [json.loads(line) for line in lines.splitlines()]
    return found


def types_and_names(found: list[Tree]) -> list[tuple[str, str]]:
    return [(each["type"], each["object"]["metadata"]["name"]) for each in found]


def set_labels(store: ApiserverStore, name: str, **labels: str) -> None:
    store.update("ConfigMap", name, lambda live: {**live, "metadata": {**live["metadata"], "labels": labels}})


@async_test
async def test_initial_objects_come_first() -> None:
    store = ApiserverStore()
    store.create(config_map("b"))
    store.create(config_map("a"))
    watch = start_watch(store)
    store.create(config_map("c"))
    found = await events(watch)
    assert types_and_names(found) == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]
    assert found[0]["object"]["kind"] == "ConfigMap"


@async_test
async def test_a_watch_from_a_version_gets_the_changes_after_it() -> None:
    store = ApiserverStore()
    first = store.create(config_map("a"))
    assert first.entry is not None
    store.create(config_map("b"))
    store.delete("ConfigMap", "a")
    assert types_and_names(await events(start_watch(store, version=first.entry.version))) == [
        ("ADDED", "b"),
        ("DELETED", "a"),
    ]


@async_test
async def test_objects_that_start_or_stop_matching_are_added_or_deleted() -> None:
    store = ApiserverStore()
    store.create(config_map("a", labels={"color": "blue"}))
    watch = start_watch(store, labels="color=red")
    assert await events(watch) == []
    set_labels(store, "a", color="red")
    set_labels(store, "a", color="red", size="2")
    set_labels(store, "a", color="green")
    found = await events(watch)
    assert types_and_names(found) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    deleted = found[2]["object"]["metadata"]
    assert deleted["labels"] == {"color": "red", "size": "2"}  # the old content
    assert deleted["resourceVersion"] == str(store.store.version)  # the new version


@async_test
async def test_a_watch_with_a_field_selector() -> None:
    store = ApiserverStore()
    watch = start_watch(store, "Pod", fields="spec.nodeName=n1")
    store.create(pod("a"))
    store.create(pod("b", node="n1"))
    assert types_and_names(await events(watch)) == [("ADDED", "b")]


@async_test
async def test_a_watch_from_a_compacted_version_gets_an_error_and_ends() -> None:
    store = ApiserverStore()
    store.create(config_map("a"))
    store.store.compact()
    watch = start_watch(store, version=1)
    (error,) = await events(watch)
    assert error["type"] == "ERROR"
    assert (error["object"]["code"], error["object"]["reason"]) == (410, "Expired")
    assert error["object"]["message"] == f"too old resource version: 1 ({store.store.version + 1})"
    assert watch.overflowed


@pytest.mark.parametrize("bookmarks", [True, False])
def test_a_watch_that_matches_nothing_gets_a_bookmark_before_its_end(
    monkeypatch: pytest.MonkeyPatch, *, bookmarks: bool
) -> None:
    """The next watch starts from it; otherwise its version would become too old while other objects change."""
    monkeypatch.setattr(server, "FINAL_BOOKMARK_S", 0.02)

    @async_test
    async def run() -> None:
        store = ApiserverStore()
        sent: list[Tree] = []
        watch = start_watch(store, labels="color=red")
        store.create(config_map("a", labels={"color": "blue"}))

        async def write(lines: bytes) -> None:
            sent.extend(json.loads(line) for line in lines.splitlines())

        await server.send_watch(
            WatchResponse(watch, timeout_s=0.05, bookmarks=bookmarks), write, lambda: store.store.version
        )
        versions = {(each["type"], each["object"]["metadata"]["resourceVersion"]) for each in sent}
        assert versions == ({("BOOKMARK", str(store.store.version))} if bookmarks else set())

    run()


@pytest.mark.parametrize("names", [pytest.param([], id="nothing there"), pytest.param(["a", "b"], id="two objects")])
def test_the_end_of_the_initial_objects_is_a_bookmark(names: list[str]) -> None:
    @async_test
    async def run() -> None:
        store = ApiserverStore()
        for name in names:
            store.create(config_map(name))
        watch = start_watch(store)
        watch.queue_initial_events_end(store.store.version)
        store.create(config_map("later"))
        found = await events(watch)
        assert [each["type"] for each in found] == [*["ADDED"] * len(names), "BOOKMARK", "ADDED"]
        bookmark: dict[str, Any] = found[len(names)]["object"]
        assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert (bookmark["kind"], bookmark["apiVersion"]) == ("ConfigMap", "v1")

    run()


@async_test
async def test_a_watch_with_a_full_buffer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_stream, "MAX_BUFFERED_BYTES", 2000)
    store = ApiserverStore()
    watch = start_watch(store)
    for number in range(50):
        store.create(config_map(f"c{number}"))
    assert watch.overflowed
    assert await watch.next_lines(0.0) is None
    before = len(store.place("ConfigMap").watch_cache._listeners)
    assert before == 0  # the watch is no longer a listener
