"""Temporarily removed pods are not counted, and restoring them restores the former state."""

from __future__ import annotations

import pytest

from bayplan.cache import Cache
from bayplan.objects.core import Pod
from bayplan.snapshot import PodInfo
from support.builders.framework import make_node, make_pod, replace_fields

PODS = [
    make_pod(name, node="n", requests={"cpu": "1"}, labels={"of": name}, host_ports=(80 + at,))
    for at, name in enumerate("abcd")
]
UIDS = [pod.uid for pod in PODS]


@pytest.fixture
def cache() -> Cache:
    cache = Cache()
    cache.add_node(make_node("m"))
    cache.add_node(make_node("n"))
    for pod in PODS:
        cache.add_pod(pod)
    return cache


def shown(cache: Cache, node: str = "n") -> tuple[list[str], int, int]:
    """Return the pods on the node in order, their requests, and the number of used ports."""
    nodes = cache.snapshot().nodes
    row = nodes.index[node]
    return [info.pod.name for info in nodes.pods[row]], int(nodes.requested[0, row]), len(nodes.ports[row])


def test_a_removed_pod_is_not_counted_and_still_known(cache: Cache) -> None:
    before, snapshot = shown(cache), cache.snapshot()
    cache.remove_temporarily([UIDS[0], UIDS[2], "unknown"])
    cache.refresh(snapshot)
    names, requested, ports = shown(cache)
    assert (sorted(names), requested, ports) == (["b", "d"], before[1] // 2, 2)
    assert sorted(info.pod.name for info in snapshot.nodes.pods[snapshot.nodes.index["n"]]) == ["b", "d"]
    assert sorted(pod.name for pod in cache.pods()) == ["a", "b", "c", "d"]


def test_all_pods_are_restored_in_their_order(cache: Cache) -> None:
    before, snapshot = shown(cache), cache.snapshot()
    cache.remove_temporarily(UIDS[:3])
    cache.refresh(snapshot)
    cache.restore_removed(UIDS[1:2])
    cache.refresh(snapshot)
    cache.remove_temporarily(UIDS[1:2])
    cache.restore_removed(UIDS)
    cache.refresh(snapshot)
    assert shown(cache) == before
    assert [info.pod.name for info in snapshot.nodes.pods[snapshot.nodes.index["n"]]] == ["a", "b", "c", "d"]
    cache.restore_removed(UIDS)  # no pod is removed anymore
    assert shown(cache) == before


def test_a_snapshot_before_the_last_restored_pod_gets_the_order(cache: Cache) -> None:
    snapshot = cache.snapshot()
    cache.remove_temporarily(UIDS[:1])
    cache.refresh(snapshot)
    cache.restore_removed(UIDS[:1])
    cache.refresh(snapshot)
    assert [info.pod.name for info in snapshot.nodes.pods[snapshot.nodes.index["n"]]] == ["a", "b", "c", "d"]


def test_a_pod_deleted_meanwhile_is_not_restored(cache: Cache) -> None:
    cache.remove_temporarily(UIDS)
    cache.remove_pod(PODS[0])
    cache.restore_removed(UIDS)
    assert shown(cache)[0] == ["b", "c", "d"]
    assert cache.pod(UIDS[0]) is None


def test_a_pod_updated_meanwhile_is_counted_once(cache: Cache) -> None:
    cache.remove_temporarily(UIDS)
    cache.update_pod(replace_fields(PODS[0], metadata={"labels": {"of": "another"}}))
    assert shown(cache)[0] == ["a"]
    cache.restore_removed(UIDS)
    assert shown(cache)[0] == ["a", "b", "c", "d"]


def test_a_pod_added_meanwhile_is_last(cache: Cache) -> None:
    cache.remove_temporarily(UIDS)
    cache.assume(PodInfo(late := make_pod("late", node="n")))
    cache.restore_removed(UIDS)
    assert shown(cache)[0] == ["a", "b", "c", "d", "late"]
    cache.forget(late)


@pytest.mark.parametrize("returns", ["before", "after"])
def test_a_node_removed_meanwhile(cache: Cache, returns: str) -> None:
    cache.remove_temporarily(UIDS[:2])
    cache.remove_node("n")
    if returns == "before":
        cache.add_node(make_node("n"))
    cache.restore_removed(UIDS)
    if returns == "after":
        cache.remove_temporarily(UIDS)  # on an unknown node they are not counted anyway
        cache.add_node(make_node("n"))
    assert sorted(shown(cache)[0]) == ["a", "b", "c", "d"]
    for pod in PODS:
        cache.remove_pod(pod)
    assert shown(cache) == ([], 0, 0)


def test_a_removed_assumed_pod_can_be_forgotten(cache: Cache) -> None:
    assumed: Pod = make_pod("assumed", node="n")
    cache.assume(PodInfo(assumed))
    cache.remove_temporarily([assumed.uid])
    cache.forget(assumed)
    cache.restore_removed([assumed.uid])
    assert cache.assumed_count == 0
    assert shown(cache)[0] == ["a", "b", "c", "d"]
