"""The state machine of a pod in the cache: each transition, and the error of each invalid one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bayplan.cache import Cache
from bayplan.errors import CacheError
from bayplan.objects.core import Pod
from bayplan.objects.meta import Condition
from bayplan.snapshot import PodInfo
from support.builders.framework import make_node, make_pod, replace_fields

POD = make_pod("web", uid="u1", node="a", requests={"cpu": "1"})
ELSEWHERE = make_pod("web", uid="u1", node="b", requests={"cpu": "2"})
NOWHERE = make_pod("web", uid="u1", node="")

Event = Callable[[Cache, Pod], None]


def assume(cache: Cache, pod: Pod) -> None:
    cache.assume(PodInfo(pod))


def absent() -> Cache:
    cache = Cache()
    cache.add_node(make_node("a"))
    cache.add_node(make_node("b"))
    return cache


def assumed() -> Cache:
    cache = absent()
    assume(cache, POD)
    return cache


def confirmed() -> Cache:
    cache = absent()
    cache.add_pod(POD)
    return cache


def where(cache: Cache) -> str:
    """The state of the pod and its node in the cache."""
    rows = {node.name: len(node.pods) for node in cache.snapshot().table}
    on = [name for name, count in rows.items() if count]
    pod = cache.pod("u1")
    if pod is None:
        assert on == []
        return "absent"
    assert on == [pod.spec.node_name]
    return f"{'assumed' if cache.is_assumed('u1') else 'confirmed'} on {pod.spec.node_name}"


@pytest.mark.parametrize(
    ("start", "event", "pod", "end"),
    [
        pytest.param(absent, assume, POD, "assumed on a", id="absent-assume"),
        pytest.param(absent, Cache.add_pod, POD, "confirmed on a", id="absent-add"),
        pytest.param(absent, Cache.forget, POD, "absent", id="absent-forget-is-fine"),
        pytest.param(assumed, Cache.forget, POD, "absent", id="assumed-forget"),
        pytest.param(assumed, Cache.forget, NOWHERE, "absent", id="assumed-forget-by-uid-alone"),
        pytest.param(assumed, Cache.add_pod, POD, "confirmed on a", id="assumed-add-confirms"),
        pytest.param(assumed, Cache.add_pod, ELSEWHERE, "confirmed on b", id="assumed-add-elsewhere-is-believed"),
        pytest.param(assumed, Cache.remove_pod, POD, "absent", id="assumed-remove"),
        pytest.param(confirmed, Cache.update_pod, POD, "confirmed on a", id="confirmed-update"),
        pytest.param(confirmed, Cache.remove_pod, POD, "absent", id="confirmed-remove"),
        pytest.param(confirmed, Cache.remove_pod, NOWHERE, "absent", id="confirmed-remove-by-a-last-known-state"),
        pytest.param(absent, Cache.upsert, POD, "confirmed on a", id="absent-upsert"),
        pytest.param(absent, Cache.upsert, NOWHERE, "absent", id="absent-upsert-without-node"),
        pytest.param(assumed, Cache.upsert, POD, "confirmed on a", id="assumed-upsert-confirms"),
        pytest.param(assumed, Cache.upsert, NOWHERE, "assumed on a", id="assumed-upsert-without-node"),
        pytest.param(confirmed, Cache.upsert, POD, "confirmed on a", id="confirmed-upsert"),
        pytest.param(absent, Cache.delete, POD, "absent", id="absent-delete-is-fine"),
        pytest.param(assumed, Cache.delete, POD, "absent", id="assumed-delete"),
        pytest.param(confirmed, Cache.delete, NOWHERE, "absent", id="confirmed-delete"),
    ],
)
def test_transitions(start: Callable[[], Cache], event: Event, pod: Pod, end: str) -> None:
    cache = start()
    event(cache, pod)
    assert where(cache) == end


@pytest.mark.parametrize(
    ("start", "event", "pod", "text"),
    [
        pytest.param(
            assumed, assume, POD, "pod default/web (u1) is in the cache, so can't be assumed", id="assumed-assume"
        ),
        pytest.param(
            confirmed, assume, POD, "pod default/web (u1) is in the cache, so can't be assumed", id="confirmed-assume"
        ),
        pytest.param(
            confirmed, Cache.add_pod, POD, "pod default/web (u1) was already in added state", id="confirmed-add"
        ),
        pytest.param(
            confirmed,
            Cache.forget,
            POD,
            "pod default/web (u1) wasn't assumed so cannot be forgotten",
            id="confirmed-forget",
        ),
        pytest.param(
            assumed,
            Cache.forget,
            ELSEWHERE,
            "pod default/web (u1) was assumed on a but assigned to b",
            id="assumed-forget-elsewhere",
        ),
        pytest.param(
            assumed,
            Cache.update_pod,
            POD,
            "pod default/web (u1) is not added to the cache, so cannot be updated",
            id="assumed-update",
        ),
        pytest.param(
            absent,
            Cache.update_pod,
            POD,
            "pod default/web (u1) is not added to the cache, so cannot be updated",
            id="absent-update",
        ),
        pytest.param(
            confirmed,
            Cache.update_pod,
            ELSEWHERE,
            "pod default/web (u1) moved from a to b, which no API server allows: the cache can no longer be trusted, "
            "restart the scheduler",
            id="confirmed-update-elsewhere",
        ),
        pytest.param(
            absent,
            Cache.remove_pod,
            POD,
            "pod default/web (u1) is not found in the cache, so cannot be removed from it",
            id="absent-remove",
        ),
        pytest.param(
            absent,
            Cache.add_pod,
            make_pod("web", uid="", node="a"),
            "pod default/web has no uid; the API server gives every pod one",
            id="no-uid",
        ),
        pytest.param(
            absent, assume, NOWHERE, "pod default/web is on no node, so it cannot be counted", id="assume-nowhere"
        ),
    ],
)
def test_an_invalid_transition_changes_nothing(start: Callable[[], Cache], event: Event, pod: Pod, text: str) -> None:
    cache = start()
    before = where(cache)
    with pytest.raises(CacheError) as refusal:
        event(cache, pod)
    assert str(refusal.value) == text
    assert where(cache) == before


def test_an_update_replaces_the_counted_amounts() -> None:
    cache = confirmed()
    cache.update_pod(make_pod("web", uid="u1", node="a", requests={"cpu": "250m"}, labels={"app": "web"}))
    (node,) = [node for node in cache.snapshot().table if node.name == "a"]
    assert node.requested("cpu") == 250
    assert [info.pod.labels for info in node.pods] == [{"app": "web"}]


def test_pods_are_counted_when_their_node_appears() -> None:
    cache = Cache()
    cache.add_pod(make_pod("early", node="late", requests={"cpu": "1"}))
    assert cache.pod_count == 1
    assert len(cache.snapshot()) == 0
    cache.add_node(make_node("late"))
    assert cache.snapshot().table[0].requested("cpu") == 1000


def test_pods_of_a_removed_node_wait_for_it() -> None:
    cache = confirmed()
    cache.remove_node("a")
    assert cache.pod_count == 1
    assert cache.snapshot().table.names == ["b"]
    cache.update_pod(make_pod("web", uid="u1", node="a", requests={"cpu": "3"}))
    cache.add_node(make_node("a"))
    assert {node.name: node.requested("cpu") for node in cache.snapshot().table} == {"b": 0, "a": 3000}


def test_a_pod_of_a_removed_node_can_be_removed() -> None:
    cache = confirmed()
    cache.remove_node("a")
    cache.remove_pod(POD)
    assert cache.pod_count == 0
    cache.add_node(make_node("a"))
    assert where(cache) == "absent"


def test_assumptions_expire_with_a_ttl() -> None:
    cache = Cache(assumed_ttl_s=30.0)
    cache.add_node(make_node("a"))
    assume(cache, POD)
    assert cache.expire(1e9) == []  # the binding is still being written
    cache.finish_binding("u1", now_s=100.0)
    assert cache.expire(129.9) == []
    assert cache.expire(130.0) == [POD]
    assert cache.pod_count == 0


def test_without_a_ttl_assumptions_stay() -> None:
    cache = assumed()
    cache.finish_binding("u1", now_s=0.0)
    assert cache.expire(1e12) == []
    assert where(cache) == "assumed on a"


def test_a_version_with_equal_labels_changes_no_pod_count() -> None:
    cache = confirmed()
    snapshot = cache.snapshot()
    before = snapshot.pods.version
    expected = make_pod("web", uid="u1", node="a", requests={"cpu": "1"})
    cache.update_pod(expected)
    cache.refresh(snapshot)
    assert snapshot.pods.version == before
    assert [info.pod for info in snapshot.pods.infos if info is not None] == [expected]
    cache.update_pod(make_pod("web", uid="u1", node="a", labels={"app": "other"}))
    cache.refresh(snapshot)
    assert snapshot.pods.version > before


def _others(cache: Cache, *names: str) -> None:
    for name in names:
        cache.add_pod(make_pod(name, node="a"))


def _order(cache: Cache) -> list[str]:
    (node,) = (node for node in cache.snapshot().table if node.name == "a")
    return [info.pod.name for info in node.pods]


CONFIRMED = replace_fields(
    POD, metadata={"resource_version": "2"}, status={"conditions": (Condition(type="PodScheduled"),)}
)


def test_a_confirmation_without_changes_touches_no_row() -> None:
    cache = absent()
    _others(cache, "first")
    assume(cache, POD)
    before = cache.generation
    cache.add_pod(CONFIRMED)
    assert cache.generation == before
    assert cache.pod("u1") is CONFIRMED
    assert not cache.is_assumed("u1")


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(replace_fields(CONFIRMED, metadata={"labels": {"app": "new"}}), id="labels"),
        pytest.param(replace_fields(CONFIRMED, spec={"priority": 7}), id="spec"),
        pytest.param(replace_fields(CONFIRMED, status={"phase": "Unknown"}), id="phase"),
    ],
)
def test_a_confirmation_with_changes_replaces_the_pod(pod: Pod) -> None:
    cache = assumed()
    before = cache.generation
    cache.add_pod(pod)
    assert cache.generation != before


def test_a_confirmation_puts_the_pod_last_on_its_node() -> None:
    cache = absent()
    _others(cache, "first")
    assume(cache, POD)
    _others(cache, "second", "third")
    cache.add_pod(CONFIRMED)
    assert _order(cache) == ["first", "third", "second", "web"]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"metadata": {"annotations": {"a": "b"}}}, id="nothing-that-columns-show"),
        pytest.param({"metadata": {"labels": {"a": "b"}}}, id="labels"),
    ],
)
@pytest.mark.parametrize("event", [Cache.add_pod, Cache.update_pod])
def test_a_new_version_is_last_on_its_node_and_among_all_pods(event: Event, fields: dict[str, Any]) -> None:
    cache = absent()
    _others(cache, "first")
    assume(cache, POD)
    if event is Cache.update_pod:
        cache.add_pod(POD)
    _others(cache, "second", "third")
    results = replace_fields(POD, **fields)
    event(cache, results)
    assert _order(cache) == ["first", "third", "second", "web"]
    assert [pod.name for pod in cache.pods()] == ["first", "second", "third", "web"]
    assert cache.pod("u1") is results
    assert cache.assumed_count == 0


def test_a_new_version_shares_column_values_and_no_plugin_values() -> None:
    cache = confirmed()
    (before,) = (info for info in cache.snapshot().pods.infos if info is not None)
    before.cached(_annotations)
    cache.update_pod(replace_fields(POD, metadata={"annotations": {"a": "b"}}))
    (after,) = (info for info in cache.snapshot().pods.infos if info is not None)
    assert after is not before
    assert after.row_amounts(cache.vocabulary) is before.row_amounts(cache.vocabulary)
    assert after.cached(_annotations) == {"a": "b"}


def _annotations(pod: Pod) -> dict[str, str]:
    return pod.metadata.annotations


def test_a_confirmation_updates_the_images_of_the_node() -> None:
    cache = Cache()
    cache.add_node(make_node("a", images={"app:1": 1000}))
    assume(cache, POD)
    snapshot = cache.snapshot()
    cache.add_node(make_node("b", images={"app:1": 1000}))
    cache.refresh(snapshot)
    cache.add_pod(CONFIRMED)
    cache.refresh(snapshot)
    row = snapshot.nodes.index["a"]
    assert {state.node_count for state in snapshot.nodes.images[row].values()} == {2}


def test_assumptions_are_counted_until_confirmed_or_forgotten() -> None:
    cache = Cache()
    cache.add_node(make_node("n"))
    pods = [make_pod(name, node="n") for name in ("told", "told-otherwise", "taken-back")]
    for pod in pods:
        cache.assume(PodInfo(pod))
    assert cache.assumed_count == 3
    cache.add_pod(pods[0])
    cache.add_pod(replace_fields(pods[1], metadata={"labels": {"a": "b"}}))
    assert cache.assumed_count == 1
    cache.forget(pods[2])
    cache.add_pod(make_pod("stranger", node="n"))
    assert cache.assumed_count == 0
