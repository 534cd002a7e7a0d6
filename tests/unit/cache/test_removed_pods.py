"""Pods that are set aside for a while: nobody counts them, and afterwards all is as it was, whatever happened."""

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
    """Who is on the node, in order, what they want of it, and how many hold a port there."""
    nodes = cache.snapshot().nodes
    row = nodes.index[node]
    return [info.pod.name for info in nodes.pods[row]], int(nodes.requested[0, row]), len(nodes.ports[row])


def test_who_is_aside_is_not_counted_and_still_known(cache: Cache) -> None:
    before, snapshot = shown(cache), cache.snapshot()
    cache.remove_temporarily([UIDS[0], UIDS[2], "unknown"])
    cache.refresh(snapshot)
    names, wanted, ports = shown(cache)
    assert (sorted(names), wanted, ports) == (["b", "d"], before[1] // 2, 2)
    assert sorted(info.pod.name for info in snapshot.nodes.pods[snapshot.nodes.index["n"]]) == ["b", "d"]
    assert sorted(pod.name for pod in cache.pods()) == ["a", "b", "c", "d"]


def test_all_come_back_to_where_they_were(cache: Cache) -> None:
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
    cache.restore_removed(UIDS)  # nobody is aside any more
    assert shown(cache) == before


def test_a_snapshot_that_saw_all_but_the_last_come_back_has_their_order(cache: Cache) -> None:
    snapshot = cache.snapshot()
    cache.remove_temporarily(UIDS[:1])
    cache.refresh(snapshot)
    cache.restore_removed(UIDS[:1])
    cache.refresh(snapshot)
    assert [info.pod.name for info in snapshot.nodes.pods[snapshot.nodes.index["n"]]] == ["a", "b", "c", "d"]


def test_who_goes_meanwhile_does_not_come_back(cache: Cache) -> None:
    cache.remove_temporarily(UIDS)
    cache.remove_pod(PODS[0])
    cache.restore_removed(UIDS)
    assert shown(cache)[0] == ["b", "c", "d"]
    assert cache.pod(UIDS[0]) is None


def test_who_changes_meanwhile_is_counted_at_once_and_once(cache: Cache) -> None:
    cache.remove_temporarily(UIDS)
    cache.update_pod(replace_fields(PODS[0], metadata={"labels": {"of": "another"}}))
    assert shown(cache)[0] == ["a"]
    cache.restore_removed(UIDS)
    assert shown(cache)[0] == ["a", "b", "c", "d"]


def test_who_comes_meanwhile_comes_last(cache: Cache) -> None:
    cache.remove_temporarily(UIDS)
    cache.assume(PodInfo(late := make_pod("late", node="n")))
    cache.restore_removed(UIDS)
    assert shown(cache)[0] == ["a", "b", "c", "d", "late"]
    cache.forget(late)


@pytest.mark.parametrize("returns", ["before", "after"])
def test_a_node_that_goes_meanwhile(cache: Cache, returns: str) -> None:
    cache.remove_temporarily(UIDS[:2])
    cache.remove_node("n")
    if returns == "before":
        cache.add_node(make_node("n"))
    cache.restore_removed(UIDS)
    if returns == "after":
        cache.remove_temporarily(UIDS)  # on an unknown node nobody counts them anyway
        cache.add_node(make_node("n"))
    assert sorted(shown(cache)[0]) == ["a", "b", "c", "d"]
    for pod in PODS:
        cache.remove_pod(pod)
    assert shown(cache) == ([], 0, 0)


def test_an_assumption_that_is_aside_can_be_taken_back(cache: Cache) -> None:
    assumed: Pod = make_pod("assumed", node="n")
    cache.assume(PodInfo(assumed))
    cache.remove_temporarily([assumed.uid])
    cache.forget(assumed)
    cache.restore_removed([assumed.uid])
    assert cache.assumed_count == 0
    assert shown(cache)[0] == ["a", "b", "c", "d"]
