"""Group commit: writes are visible after their commit, and later writes see earlier ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.apiserver.storage.sqlite_backend import DataSync
from support.fakes.held_journal import CONFIG_MAPS, CORE, JSON, listed, post, run_held_cluster, watched
from support.harness.apiserver_store import config_map, pod
from support.harness.async_tests import async_test, wait_until
from support.harness.embedded_cluster import UNKNOWN_TOKEN

Tree = dict[str, Any]

MERGE = "application/merge-patch+json"
SYNCS: tuple[DataSync, ...] = ("full", "normal")


WRITES = {
    "create": ("POST", CONFIG_MAPS, config_map("new"), JSON, "ADDED"),
    "update": ("PUT", f"{CONFIG_MAPS}/old", config_map("old", labels={"a": "b"}), JSON, "MODIFIED"),
    "patch": ("PATCH", f"{CONFIG_MAPS}/old", {"data": {"x": "y"}}, MERGE, "MODIFIED"),
    "apply": (
        "PATCH",
        f"{CONFIG_MAPS}/new?fieldManager=tests",
        config_map("new"),
        "application/apply-patch+yaml",
        "ADDED",
    ),
    "delete": ("DELETE", f"{CONFIG_MAPS}/old", {}, JSON, "DELETED"),
    "delete all": ("DELETE", CONFIG_MAPS, {}, JSON, "DELETED"),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("sync", SYNCS)
def test_a_write_is_visible_after_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, sync: DataSync
) -> None:
    method, path, body, media, event = WRITES[write]

    @async_test
    async def run() -> None:
        async with run_held_cluster(tmp_path, monkeypatch, sync=sync) as (cluster, journal):
            await cluster.request("DELETE", CONFIG_MAPS)
            await cluster.create(CONFIG_MAPS, config_map("old"))
            before = await listed(cluster)
            stored = (await cluster.request("GET", f"{CONFIG_MAPS}/old")).json
            journal.hold()
            async with watched(cluster, CONFIG_MAPS, before[1]) as events:
                writing = asyncio.create_task(cluster.request(method, path, body, Content_Type=media))
                await journal.asked()
                assert (await cluster.request("GET", f"{CONFIG_MAPS}/old")).json == stored
                assert (await cluster.request("GET", f"{CONFIG_MAPS}/new")).code == 404
                assert await listed(cluster) == before
                newer = await cluster.request("GET", f"{CONFIG_MAPS}?resourceVersion={int(before[1]) + 1}")
                assert newer.code == 504, "an uncommitted version is unknown"
                assert (
                    await cluster.request("GET", f"{CONFIG_MAPS}/old?resourceVersion={int(before[1]) + 1}")
                ).code == 504
                assert not events
                assert not writing.done()
                await journal.commit_next()
                assert (await writing).code in (200, 201)
                after = await listed(cluster)
                assert int(after[1]) == int(before[1]) + 1
                assert after[0] != before[0]
                await wait_until(lambda: events)
                assert events[0][0] == event

    run()


@async_test
async def test_a_watch_that_starts_during_a_commit_gets_committed_objects_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        await cluster.request("DELETE", CONFIG_MAPS)
        await cluster.create(CONFIG_MAPS, config_map("old"))
        journal.hold()
        writing = post(cluster, CONFIG_MAPS, config_map("new"))
        await journal.asked()
        async with watched(cluster, CONFIG_MAPS, "0") as events:
            await wait_until(lambda: events)
            assert events == [("ADDED", "old")]
            await journal.commit_next()
            await writing
            await wait_until(lambda: len(events) == 2)
            assert events[1] == ("ADDED", "new")


@async_test
async def test_one_of_two_updates_of_a_version_conflicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        created = await cluster.create(CONFIG_MAPS, config_map("a"))
        journal.hold()
        first = asyncio.create_task(cluster.request("PUT", f"{CONFIG_MAPS}/a", {**created, "data": {"a": "first"}}))
        await journal.asked()
        second = await cluster.begin("PUT", f"{CONFIG_MAPS}/a", {**created, "data": {"a": "second"}})
        second_create = await cluster.begin("POST", CONFIG_MAPS, config_map("a"))
        assert not second.done(), "the response would reveal an uncommitted write"
        assert not second_create.done()
        await journal.commit_next()
        assert [(await each).code for each in (first, second, second_create)] == [200, 409, 409]
        assert (await cluster.request("GET", f"{CONFIG_MAPS}/a")).json["data"] == {"a": "first"}


@async_test
async def test_writes_that_arrive_during_a_commit_are_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        start = cluster.cluster.store.version
        journal.hold()
        writing = [post(cluster, CONFIG_MAPS, config_map("first"))]
        await journal.asked()
        writing += [post(cluster, CONFIG_MAPS, config_map(f"c-{number}")) for number in range(5)]
        await wait_until(lambda: cluster.cluster.store.newest_version == start + 6)
        await journal.commit_next()
        assert (await writing[0]).code == 201
        assert not any(each.done() for each in writing[1:])
        await journal.commit_next()
        assert [(await each).code for each in writing] == [201] * 6
        assert journal.groups == [[start + 1], [start + each for each in range(2, 7)]]


POD, PODS = pod("p"), f"{CORE}/pods"
SETS = "/apis/apps/v1/namespaces/default/replicasets"
APPLY = "application/apply-patch+yaml"
Request = tuple[str, str, Tree, str]


def _binding(node: str) -> Request:
    return "POST", f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}}, JSON


def _apply(**data: str) -> Request:
    return "PATCH", f"{CONFIG_MAPS}/a?fieldManager=x", {**config_map("a"), "data": data}, APPLY


PREDECESSORS: dict[str, tuple[list[Request], Request, int]] = {
    "create, create": (
        [("POST", CONFIG_MAPS, config_map("a"), JSON)],
        ("POST", CONFIG_MAPS, config_map("a"), JSON),
        409,
    ),
    "create, apply": ([("POST", CONFIG_MAPS, config_map("a"), JSON)], _apply(b="c"), 200),
    "apply, apply": ([_apply(b="c")], _apply(b="d"), 200),
    "create, delete": ([("POST", CONFIG_MAPS, config_map("a"), JSON)], ("DELETE", f"{CONFIG_MAPS}/a", {}, JSON), 200),
    "delete, delete all": ([("DELETE", f"{CONFIG_MAPS}/there", {}, JSON)], ("DELETE", CONFIG_MAPS, {}, JSON), 200),
    "create, bind": ([("POST", PODS, POD, JSON)], _binding("n"), 201),
    "bind, bind": ([("POST", PODS, POD, JSON), _binding("n")], _binding("m"), 409),
    "create, evict": (
        [("POST", PODS, POD, JSON)],
        ("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}, JSON),
        201,
    ),
}


@pytest.mark.parametrize("case", PREDECESSORS)
def test_a_write_sees_earlier_uncommitted_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    before, then, code = PREDECESSORS[case]

    @async_test
    async def run() -> None:
        async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
            await cluster.create(CONFIG_MAPS, config_map("there"))
            journal.hold()
            first = [await cluster.begin(*each) for each in before]
            second = await cluster.begin(*then)
            assert not second.done()
            journal.work_again()
            assert {(await each).code for each in first} <= {200, 201}
            assert (await second).code == code, (await second).text

    run()


@async_test
async def test_delete_collection_includes_uncommitted_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        journal.hold()
        await cluster.begin("POST", CONFIG_MAPS, config_map("a"))
        deleting = await cluster.begin("DELETE", CONFIG_MAPS, {})
        journal.work_again()
        assert '"name":"a"' in (await deleting).text
        assert (await listed(cluster))[0] == {}


@async_test
async def test_templates_see_uncommitted_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes from templates: a name is taken, and a pod is bound, before the commit."""
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):

        def bind(name: str, uid: str, node: str) -> Request:
            body = {"metadata": {"name": name, "uid": uid}, "target": {"kind": "Node", "name": node}}
            return "POST", f"{PODS}/{name}/binding", body, JSON

        for number in range(5):  # the fourth and later ones come from a template
            created = (await (await cluster.begin("POST", PODS, pod(f"p-{number}")))).json
            bound = await (await cluster.begin(*bind(f"p-{number}", created["metadata"]["uid"], "n")))
            assert bound.code == 201, bound.text
        created = (await (await cluster.begin("POST", PODS, pod("free")))).json
        journal.hold()
        sent = [await cluster.begin("POST", PODS, pod("new")) for _ in range(2)]
        sent += [await cluster.begin(*bind("free", created["metadata"]["uid"], node)) for node in ("n", "m")]
        journal.work_again()
        assert [(await each).code for each in sent] == [201, 409, 201, 409]
        assert (await cluster.request("GET", f"{PODS}/free")).json["spec"]["nodeName"] == "n"


@async_test
async def test_a_patch_of_a_scale_starts_from_the_uncommitted_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        await cluster.create(SETS, replica_set())
        journal.hold()
        await cluster.begin("PATCH", f"{SETS}/r/scale", {"spec": {"replicas": 5}}, MERGE)
        second = await cluster.begin("PATCH", f"{SETS}/r/scale", {}, MERGE)
        journal.work_again()
        assert (await second).json["spec"]["replicas"] == 5


def replica_set() -> Tree:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    return {"metadata": {"name": "r"}, "spec": spec}


# Other readers


@async_test
async def test_uncommitted_objects_grant_no_rights_tokens_or_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        other_user = {"Authorization": f"Bearer {UNKNOWN_TOKEN}"}
        rbac = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "stranger"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
        names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
        schema = {"openAPIV3Schema": {"type": "object"}}
        version = {"name": "v1", "served": True, "storage": True, "schema": schema}
        spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        token = f"{CORE}/serviceaccounts/robot/token"
        journal.hold()
        writing = [post(cluster, rbac, {"metadata": {"name": "x"}, "roleRef": role, "subjects": [subject]})]
        writing.append(post(cluster, f"{CORE}/serviceaccounts", {"metadata": {"name": "robot"}}))
        writing.append(post(cluster, definitions, {"metadata": {"name": "things.example.com"}, "spec": spec}))
        writing.append(post(cluster, PODS, pod("p", node="n")))
        start = cluster.cluster.store.version
        await wait_until(lambda: cluster.cluster.store.newest_version == start + 4)
        assert (await cluster.request("GET", f"{PODS}/p/log")).json["message"] == 'pods "p" not found'
        assert (await cluster.request("GET", CONFIG_MAPS, **other_user)).code == 403
        assert (await cluster.request("GET", "/apis/example.com/v1/things")).code == 404
        assert "example.com" not in (await cluster.request("GET", "/apis")).text
        token_request = await cluster.begin("POST", token, {"spec": {}})
        journal.work_again()
        assert {(await each).code for each in writing} == {201}
        assert (await token_request).code == 404
        assert (await cluster.request("GET", CONFIG_MAPS, **other_user)).code == 200
        assert (await cluster.request("GET", "/apis/example.com/v1/things")).code == 200
        assert (await post(cluster, token, {"spec": {}})).code == 201


@async_test
async def test_a_scale_shows_the_committed_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        await cluster.create(SETS, replica_set())
        journal.hold()
        patch = {"spec": {"replicas": 5}}
        writing = asyncio.create_task(cluster.request("PATCH", f"{SETS}/r/scale", patch, Content_Type=MERGE))
        await journal.asked()
        assert (await cluster.request("GET", f"{SETS}/r/scale")).json["spec"]["replicas"] == 1
        await journal.commit_next()
        assert (await writing).json["spec"]["replicas"] == 5
        assert (await cluster.request("GET", f"{SETS}/r/scale")).json["spec"]["replicas"] == 5
