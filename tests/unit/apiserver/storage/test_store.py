"""The store: one version counter, sorted lists, listeners."""

from __future__ import annotations

import pytest

from bayplan.apiserver.storage.store import CommittedObjects, GroupResource, Store
from bayplan.apiserver.storage.watch_cache import WatchCacheEvent

PODS: GroupResource = ("", "pods")


def tree(name: str, namespace: str = "default", **labels: str) -> dict[str, object]:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": namespace, "uid": f"u-{name}", "labels": labels}}


def names(objects: CommittedObjects, namespace: str = "", after: str = "") -> list[str]:
    return [entry.key for entry in objects.entries(namespace, after=after)]


def test_one_counter_numbers_the_writes_of_all_kinds() -> None:
    store = Store()
    first = store.put(PODS, tree("a"))
    second = store.put(("", "nodes"), tree("n", ""))
    assert (first.version, second.version, store.version) == (1, 2, 2)
    assert first.tree()["metadata"]["resourceVersion"] == "1"


def test_stored_objects_have_no_kind() -> None:
    store = Store()
    entry = store.put(PODS, {**tree("a"), "apiVersion": "v1", "spec": {"x": 1}})
    assert set(entry.tree()) == {"metadata", "spec"}


def test_lists_are_sorted_by_key_and_filtered_by_namespace() -> None:
    store = Store()
    objects = store.committed_objects(PODS)
    for namespace, name in [("b", "z"), ("a", "y"), ("a-b", "x"), ("a", "c")]:
        store.put(PODS, tree(name, namespace))
    assert names(objects) == ["a-b/x", "a/c", "a/y", "b/z"]
    assert names(objects, "a") == ["a/c", "a/y"]
    assert names(objects, "a", after="a/c") == ["a/y"]
    assert names(objects, "a", after="a/d") == ["a/y"]  # the key of the last page may be deleted
    assert names(objects, after="b/z") == []


def test_each_decoded_tree_is_private() -> None:
    store = Store()
    entry = store.put(PODS, tree("a"))
    entry.tree()["metadata"]["name"] = "changed"
    assert entry.tree()["metadata"]["name"] == "a"


def test_a_deletion_has_a_version_and_the_last_state() -> None:
    store = Store()
    objects = store.committed_objects(PODS)
    entry = store.put(PODS, tree("a", color="red"))
    last = store.delete(PODS, entry)
    assert last.version == 2
    assert last.tree()["metadata"]["resourceVersion"] == "2"
    assert last.labels == {"color": "red"}
    assert objects.get("default", "a") is None
    assert len(objects) == 0


def test_a_failing_listener_stops_neither_the_write_nor_the_watches(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    later: list[int] = []
    watched: list[int] = []

    def fail(_: CommittedObjects, change: WatchCacheEvent) -> None:
        raise ValueError(change.entry.name)

    store.add_commit_listener(fail)
    store.add_commit_listener(lambda _, change: later.append(change.version))
    store.committed_objects(PODS).watch_cache.add_listener(lambda change: watched.append(change.version))
    assert store.put(PODS, tree("a")).version == 1
    assert (store.version, later, watched) == (1, [1], [1])
    assert "a commit listener failed at version 1 of default/a" in caplog.text
