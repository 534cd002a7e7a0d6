"""Deletions: at once, after a grace, after finalizers, and what the dependents have of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.cleanup import Cleanup
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.writes.deletion import DeleteOptions
from support.harness.apiserver_store import ApiserverStore, config_map, pod
from support.harness.async_tests import async_test, wait_until


def metadata(world: ApiserverStore, kind: str, name: str) -> Tree | None:
    entry = world.place(kind).get("default", name)
    return None if entry is None else entry.tree()["metadata"]


def test_most_kinds_go_at_once() -> None:
    world = ApiserverStore()
    world.create(config_map("a"))
    assert world.delete("ConfigMap", "a").removed
    assert metadata(world, "ConfigMap", "a") is None


@pytest.mark.parametrize(
    ("node", "asked", "grace"),
    [
        pytest.param("n1", None, 30, id="the pod's own"),
        pytest.param("n1", 5, 5, id="what was asked for"),
        pytest.param("n1", 0, None, id="none at all"),
        pytest.param("", None, None, id="not on a node"),
    ],
)
def test_the_grace_of_a_pod(node: str, asked: int | None, grace: int | None) -> None:
    world = ApiserverStore()
    world.create(pod("a", node=node))
    world.delete("Pod", "a", grace_s=asked)
    found = metadata(world, "Pod", "a")
    assert (found or {}).get("deletionGracePeriodSeconds") == grace
    if grace:
        assert found is not None
        assert found["deletionTimestamp"] == f"2026-01-01T00:00:{grace:02}Z"


def test_a_second_deletion_only_shortens_the_grace() -> None:
    world = ApiserverStore()
    world.create(pod("a", node="n1"))
    for asked, expected in ((20, 20), (25, 20), (None, 20), (4, 4)):
        world.delete("Pod", "a", grace_s=asked)
        found = metadata(world, "Pod", "a")
        assert found is not None
        assert (found["deletionGracePeriodSeconds"], found["deletionTimestamp"][-3:-1]) == (expected, f"{expected:02}")
    assert world.delete("Pod", "a", grace_s=0).removed


def test_finalizers_hold_an_object_until_the_last_is_gone() -> None:
    world = ApiserverStore()
    world.create(config_map("a", finalizers=["ex.io/one", "ex.io/two"]))
    assert not world.delete("ConfigMap", "a").removed
    found = metadata(world, "ConfigMap", "a")
    assert found is not None
    assert (found["deletionTimestamp"], found["deletionGracePeriodSeconds"]) == ("2026-01-01T00:00:00Z", 0)

    for left, gone in ((["ex.io/two"], False), ([], True)):
        written = world.update("ConfigMap", "a", lambda live, left=left: _finalized(live, left))  # type: ignore[misc]
        assert written.removed is gone
    assert metadata(world, "ConfigMap", "a") is None


def _finalized(live: Tree, left: list[str]) -> Tree:
    live["metadata"].pop("finalizers")
    if left:
        live["metadata"]["finalizers"] = left
    return live


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        pytest.param({"uid": "x"}, r"the UID in the precondition \(x\) does not match the UID in record", id="uid"),
        pytest.param({"version": "1"}, r"the ResourceVersion in the precondition \(1\) does not match", id="version"),
    ],
)
def test_preconditions(wanted: dict[str, str], text: str) -> None:
    world = ApiserverStore()
    world.create(config_map("a"))
    with pytest.raises(StatusError, match=text) as caught:
        world.delete("ConfigMap", "a", **wanted)
    assert caught.value.code == 409
    assert 'on ConfigMap "a"' in caught.value.message


@pytest.mark.parametrize(
    ("body", "query", "expected"),
    [
        pytest.param({"gracePeriodSeconds": 5}, {"gracePeriodSeconds": "9"}, DeleteOptions(grace_s=5), id="the body"),
        pytest.param({}, {"dryRun": "All"}, DeleteOptions(), id="a body without it, and a parameter"),
        pytest.param(None, {"dryRun": "All"}, DeleteOptions(dry_run=True), id="parameters alone"),
        pytest.param({"orphanDependents": True}, {}, DeleteOptions(policy="Orphan"), id="the old word for orphans"),
        pytest.param(
            {"preconditions": {"uid": "u", "resourceVersion": "3"}},
            {},
            DeleteOptions(uid="u", version="3"),
            id="preconditions",
        ),
    ],
)
def test_where_options_come_from(body: Tree | None, query: dict[str, str], expected: DeleteOptions) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    assert DeleteOptions.of_request(content, query) == expected


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param({"propagationPolicy": "Foo"}, 422, id="unknown policy"),
        pytest.param({"dryRun": ["Some"]}, 422, id="unknown dry run"),
        pytest.param({"gracePeriodSeconds": "5"}, 400, id="a text for a number"),
    ],
)
def test_options_that_make_no_sense(body: Tree, code: int) -> None:
    with pytest.raises(StatusError) as caught:
        DeleteOptions.of_request(json.dumps(body).encode(), {})
    assert caught.value.code == code


def owned(name: str, owner: Tree, *, blocks: bool = False) -> Tree:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"]}
    reference |= {"uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks}
    return config_map(name, ownerReferences=[reference])


def family(*, blocks: bool = False) -> ApiserverStore:
    world = ApiserverStore()
    parent = world.create(config_map("parent")).tree
    child = world.create(owned("child", parent, blocks=blocks)).tree
    world.create(owned("grandchild", child))
    return world


@async_test
async def test_dependents_follow_in_the_background() -> None:
    world = family()
    Cleanup(world.store, world.writer, world.resources)
    world.delete("ConfigMap", "parent", policy="Background")
    assert metadata(world, "ConfigMap", "parent") is None
    await wait_until(lambda: len(world.place("ConfigMap")) == 0)


@async_test
async def test_an_owner_waits_for_its_dependents_in_the_foreground() -> None:
    world = family(blocks=True)
    Cleanup(world.store, world.writer, world.resources)
    gone: list[str] = []
    world.store.add_commit_listener(
        lambda _, change: gone.append(change.entry.name) if change.type == "DELETED" else None
    )
    world.delete("ConfigMap", "parent", policy="Foreground")
    assert (metadata(world, "ConfigMap", "parent") or {})["finalizers"] == ["foregroundDeletion"]
    await wait_until(lambda: len(world.place("ConfigMap")) == 0)
    assert gone.index("child") < gone.index("parent")


@async_test
async def test_nothing_is_cleaned_up_after_the_end() -> None:
    world = family()
    cleanup = Cleanup(world.store, world.writer, world.resources)
    world.delete("ConfigMap", "parent", policy="Background")
    cleanup.stop()
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(world.place("ConfigMap")) == 2
    cleanup.wake()
    await asyncio.sleep(0)
    assert len(world.place("ConfigMap")) == 2


@async_test
async def test_orphans_stay_and_lose_their_owner() -> None:
    world = family()
    Cleanup(world.store, world.writer, world.resources)
    world.delete("ConfigMap", "parent", policy="Orphan")
    await wait_until(lambda: metadata(world, "ConfigMap", "parent") is None)
    assert "ownerReferences" not in (metadata(world, "ConfigMap", "child") or {})
    assert metadata(world, "ConfigMap", "grandchild") is not None


@async_test
async def test_an_owner_that_never_was_takes_its_dependents_along() -> None:
    world = ApiserverStore()
    Cleanup(world.store, world.writer, world.resources)
    parent = world.create(config_map("parent")).tree
    world.create(owned("kept", parent))
    world.create(owned("child", {"metadata": {"name": "nobody", "uid": "none"}}))
    await wait_until(lambda: metadata(world, "ConfigMap", "child") is None)
    assert metadata(world, "ConfigMap", "kept") is not None, "its owner is there"
    assert len(world.place("ConfigMap")) == 2


def inhabited(pause_s: float) -> ApiserverStore:
    """A namespace with something in it, that is being deleted."""
    world = ApiserverStore()
    Cleanup(world.store, world.writer, world.resources, pause_s=pause_s)
    world.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    world.writer.create(world.write("ConfigMap", namespace="team"), config_map("kept", namespace="team"))
    world.delete("Namespace", "team")
    return world


@async_test
async def test_a_namespace_keeps_what_is_in_it_until_its_pause_is_over() -> None:
    """So that who deletes it together with all that he put there finds all of it."""
    world = inhabited(pause_s=3600.0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.place("ConfigMap").get("team", "kept") is not None
    world.writer.delete(world.write("ConfigMap", namespace="team"), "kept", DeleteOptions())
    await wait_until(lambda: world.place("Namespace").get("", "team") is None)


@async_test
async def test_a_namespace_is_emptied_after_its_pause() -> None:
    world = inhabited(pause_s=0.0)
    await wait_until(lambda: world.place("Namespace").get("", "team") is None)
    assert world.place("ConfigMap").get("team", "kept") is None
