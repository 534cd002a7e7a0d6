"""Deletions: immediate, with a grace period, and with finalizers."""

from __future__ import annotations

import json

import pytest

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.writes.deletion import DeleteOptions
from support.harness.apiserver_store import ApiserverStore, config_map, pod


def metadata(store: ApiserverStore, kind: str, name: str) -> Tree | None:
    entry = store.place(kind).get("default", name)
    return None if entry is None else entry.tree()["metadata"]


def test_most_kinds_are_removed_at_once() -> None:
    store = ApiserverStore()
    store.create(config_map("a"))
    assert store.delete("ConfigMap", "a").removed
    assert metadata(store, "ConfigMap", "a") is None


@pytest.mark.parametrize(
    ("node", "requested", "grace"),
    [
        pytest.param("n1", None, 30, id="of the pod"),
        pytest.param("n1", 5, 5, id="requested"),
        pytest.param("n1", 0, None, id="zero"),
        pytest.param("", None, None, id="not on a node"),
    ],
)
def test_the_grace_period_of_a_pod(node: str, requested: int | None, grace: int | None) -> None:
    store = ApiserverStore()
    store.create(pod("a", node=node))
    store.delete("Pod", "a", grace_s=requested)
    found = metadata(store, "Pod", "a")
    assert (found or {}).get("deletionGracePeriodSeconds") == grace
    if grace:
        assert found is not None
        assert found["deletionTimestamp"] == f"2026-01-01T00:00:{grace:02}Z"


def test_a_second_deletion_only_shortens_the_grace_period() -> None:
    store = ApiserverStore()
    store.create(pod("a", node="n1"))
    for requested, expected in ((20, 20), (25, 20), (None, 20), (4, 4)):
        store.delete("Pod", "a", grace_s=requested)
        found = metadata(store, "Pod", "a")
        assert found is not None
        assert (found["deletionGracePeriodSeconds"], found["deletionTimestamp"][-3:-1]) == (expected, f"{expected:02}")
    assert store.delete("Pod", "a", grace_s=0).removed


def test_an_object_is_removed_with_its_last_finalizer() -> None:
    store = ApiserverStore()
    store.create(config_map("a", finalizers=["ex.io/one", "ex.io/two"]))
    assert not store.delete("ConfigMap", "a").removed
    found = metadata(store, "ConfigMap", "a")
    assert found is not None
    assert (found["deletionTimestamp"], found["deletionGracePeriodSeconds"]) == ("2026-01-01T00:00:00Z", 0)

    for remaining, deleted in ((["ex.io/two"], False), ([], True)):
        written = store.update("ConfigMap", "a", lambda live, remaining=remaining: _set_finalizers(live, remaining))  # type: ignore[misc]
        assert written.removed is deleted
    assert metadata(store, "ConfigMap", "a") is None


def _set_finalizers(live: Tree, remaining: list[str]) -> Tree:
    live["metadata"].pop("finalizers")
    if remaining:
        live["metadata"]["finalizers"] = remaining
    return live


@pytest.mark.parametrize(
    ("preconditions", "text"),
    [
        pytest.param({"uid": "x"}, r"the UID in the precondition \(x\) does not match the UID in record", id="uid"),
        pytest.param({"version": "1"}, r"the ResourceVersion in the precondition \(1\) does not match", id="version"),
    ],
)
def test_preconditions(preconditions: dict[str, str], text: str) -> None:
    store = ApiserverStore()
    store.create(config_map("a"))
    with pytest.raises(StatusError, match=text) as caught:
        store.delete("ConfigMap", "a", **preconditions)
    assert caught.value.code == 409
    assert 'on ConfigMap "a"' in caught.value.message


@pytest.mark.parametrize(
    ("body", "query", "expected"),
    [
        pytest.param({"gracePeriodSeconds": 5}, {"gracePeriodSeconds": "9"}, DeleteOptions(grace_s=5), id="the body"),
        pytest.param({}, {"dryRun": "All"}, DeleteOptions(), id="an empty body and a parameter"),
        pytest.param(None, {"dryRun": "All"}, DeleteOptions(dry_run=True), id="parameters alone"),
        pytest.param({"orphanDependents": True}, {}, DeleteOptions(policy="Orphan"), id="orphanDependents"),
        pytest.param(
            {"preconditions": {"uid": "u", "resourceVersion": "3"}},
            {},
            DeleteOptions(uid="u", version="3"),
            id="preconditions",
        ),
    ],
)
def test_delete_options_come_from_the_body_or_else_the_query(
    body: Tree | None, query: dict[str, str], expected: DeleteOptions
) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    assert DeleteOptions.of_request(content, query) == expected


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param({"propagationPolicy": "Foo"}, 422, id="unknown policy"),
        pytest.param({"dryRun": ["Some"]}, 422, id="unknown dry run"),
        pytest.param({"gracePeriodSeconds": "5"}, 400, id="a string for a number"),
    ],
)
def test_invalid_delete_options_are_refused(body: Tree, code: int) -> None:
    with pytest.raises(StatusError) as caught:
        DeleteOptions.of_request(json.dumps(body).encode(), {})
    assert caught.value.code == code
