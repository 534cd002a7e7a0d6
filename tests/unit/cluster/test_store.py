"""Objects in their places: one counter, sorted lists, changes told once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bayplan.cluster.ring import Change
from bayplan.cluster.store import Place, PlaceName, Store
from wire_server import on_loop

PODS: PlaceName = ("", "pods")


def tree(name: str, namespace: str = "default", **labels: str) -> dict[str, object]:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": namespace, "uid": f"u-{name}", "labels": labels}}


def names(place: Place, namespace: str = "", after: str = "") -> list[str]:
    return [entry.key for entry in place.entries(namespace, after=after)]


def test_one_counter_numbers_the_writes_of_all_kinds() -> None:
    store = Store()
    first = store.put(store.place(PODS), tree("a"))
    second = store.put(store.place(("", "nodes")), tree("n", ""))
    assert (first.version, second.version, store.version) == (1, 2, 2)
    assert first.tree()["metadata"]["resourceVersion"] == "1"


def test_what_is_kept_has_no_kind() -> None:
    store = Store()
    entry = store.put(store.place(PODS), {**tree("a"), "apiVersion": "v1", "spec": {"x": 1}})
    assert set(entry.tree()) == {"metadata", "spec"}


def test_lists_are_sorted_by_key_and_cut_by_namespace() -> None:
    store = Store()
    place = store.place(PODS)
    for namespace, name in [("b", "z"), ("a", "y"), ("a-b", "x"), ("a", "c")]:
        store.put(place, tree(name, namespace))
    assert names(place) == ["a-b/x", "a/c", "a/y", "b/z"]
    assert names(place, "a") == ["a/c", "a/y"]
    assert names(place, "a", after="a/c") == ["a/y"]
    assert names(place, "a", after="a/d") == ["a/y"]  # the key of the last page may be gone by now
    assert names(place, after="b/z") == []


def test_a_tree_belongs_to_whoever_asked_for_it() -> None:
    store = Store()
    entry = store.put(store.place(PODS), tree("a"))
    entry.tree()["metadata"]["name"] = "changed"
    assert entry.tree()["metadata"]["name"] == "a"


def test_a_deletion_has_a_version_and_the_last_state() -> None:
    store = Store()
    place = store.place(PODS)
    entry = store.put(place, tree("a", color="red"))
    last = store.delete(place, entry)
    assert last.version == 2
    assert last.tree()["metadata"]["resourceVersion"] == "2"
    assert last.labels == {"color": "red"}
    assert place.get("default", "a") is None
    assert place.bytes == 0


class SlowJournal:
    """Commits when it is told to."""

    def __init__(self) -> None:
        self.told: Callable[[int], None] = lambda _: None
        self.failed: Callable[[Exception], None] = lambda _: None
        self.recorded: list[tuple[PlaceName, int]] = []

    def record(self, place: PlaceName, change: Change) -> None:
        self.recorded.append((place, change.version))

    def on_commit(self, told: Callable[[int], None]) -> None:
        self.told = told

    def on_failure(self, told: Callable[[Exception], None]) -> None:
        self.failed = told


@on_loop
async def test_watches_and_writers_wait_for_the_journal() -> None:
    journal = SlowJournal()
    store = Store(journal)
    place = store.place(PODS)
    heard: list[int] = []
    place.ring.listen(lambda change: heard.append(change.version))
    store.put(place, tree("a"))
    store.put(place, tree("b"))
    waiting = asyncio.ensure_future(store.settled())
    await asyncio.sleep(0)
    assert (heard, store.told, waiting.done()) == ([], 0, False)
    journal.told(1)
    await asyncio.sleep(0)
    assert (heard, store.told, waiting.done()) == ([1], 1, False)
    journal.told(2)
    await waiting
    assert (heard, store.told) == ([1, 2], 2)


@on_loop
async def test_nothing_is_acknowledged_once_the_journal_has_failed() -> None:
    journal = SlowJournal()
    store = Store(journal)
    store.put(store.place(PODS), tree("a"))
    waiting = asyncio.ensure_future(store.settled())
    await asyncio.sleep(0)
    journal.failed(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        await waiting
    with pytest.raises(OSError, match="disk full"):
        await store.settled()
