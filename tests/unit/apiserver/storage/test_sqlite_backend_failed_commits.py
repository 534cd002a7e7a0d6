"""Failed commits: they are rolled back, and the server refuses writes until a commit succeeds."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bayplan.apiserver.embedded import EmbeddedCluster, credentials_for
from bayplan.apiserver.storage import store as store_module
from bayplan.apiserver.storage.sqlite_backend import DataSync, SqliteBackend
from bayplan.apiserver.storage.store import CommitError
from bayplan.controllers import ControllerManager
from support.fakes.held_journal import (
    CONFIG_MAPS,
    CORE,
    DISK_FULL_ERROR,
    HeldCluster,
    listed,
    post,
    run_held_cluster,
    use_held_journal,
    watched,
)
from support.harness.apiserver_store import config_map, pod
from support.harness.async_tests import async_test, wait_until
from support.harness.embedded_cluster import UNKNOWN_TOKEN, ServerResponse, run_embedded_cluster

Tree = dict[str, Any]

REFUSED = f"the write was not committed: {DISK_FULL_ERROR}"
SYNCS: tuple[DataSync, ...] = ("full", "normal")


@pytest.mark.parametrize("sync", SYNCS)
def test_a_failed_commit_refuses_its_group_and_all_later_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: DataSync
) -> None:
    @async_test
    async def run() -> None:
        async with run_held_cluster(tmp_path, monkeypatch, sync=sync) as (cluster, journal):
            created = await cluster.create(CONFIG_MAPS, config_map("a"))
            before = await listed(cluster)
            journal.hold()
            async with watched(cluster, CONFIG_MAPS, before[1]) as events:
                writing = [
                    asyncio.create_task(cluster.request("PUT", f"{CONFIG_MAPS}/a", {**created, "data": {"a": "new"}}))
                ]
                await journal.asked()
                writing.append(asyncio.create_task(cluster.request("DELETE", f"{CONFIG_MAPS}/a")))
                writing.append(post(cluster, CONFIG_MAPS, config_map("b")))
                await wait_until(lambda: cluster.cluster.store.newest_version == int(before[1]) + 3)
                refusal = await cluster.begin("POST", CONFIG_MAPS, config_map("b"))  # 409 if "b" is committed
                await journal.fail_next()
                for each in (*writing, refusal):
                    answer = await each
                    assert (answer.code, answer.json["status"], answer.json["message"]) == (500, "Failure", REFUSED)
                    assert "reason" not in answer.json, "kube-apiserver returns errors of etcd so"
                assert await listed(cluster) == before
                assert (await cluster.request("GET", f"{CONFIG_MAPS}/a")).json == created
                journal.work_again()
                again = await cluster.request("PUT", f"{CONFIG_MAPS}/a", {**created, "data": {"a": "new"}})
                assert again.code == 200, "a rolled back write causes no conflict"
                await cluster.create(CONFIG_MAPS, config_map("b"))
                await wait_until(lambda: len(events) == 2)
                assert events == [("MODIFIED", "a"), ("ADDED", "b")]
                assert (await listed(cluster))[1] == str(int(before[1]) + 2), "no version is lost"
        backend = SqliteBackend(tmp_path / "objects.db")
        names = {
            json.loads(raw)["metadata"]["name"] for _, plural, _, raw in backend.objects() if plural == "configmaps"
        }
        assert {"a", "b"} <= names
        backend.close()

    run()


ALLOCATIONS: dict[str, tuple[str, Tree]] = {
    "name": (CONFIG_MAPS, config_map("a")),
    "cluster IP": (
        f"{CORE}/services",
        {"metadata": {"generateName": "s-"}, "spec": {"clusterIP": "10.0.0.7", "ports": [{"port": 80}]}},
    ),
    "node port": (
        f"{CORE}/services",
        {"metadata": {"generateName": "s-"}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30007}]}},
    ),
    "quota": (f"{CORE}/secrets", {"metadata": {"generateName": "s-"}}),
}


@pytest.mark.parametrize("what", ALLOCATIONS)
def test_a_failed_commit_releases_allocations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The second of two identical creates is refused if the first was committed, and passes if it was rolled back."""
    path, body = ALLOCATIONS[what]

    @async_test
    async def run() -> None:
        async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
            quota = {"metadata": {"name": "q"}, "spec": {"hard": {"secrets": "1"}}}
            await cluster.create(f"{CORE}/resourcequotas", quota)
            journal.fail_always()
            assert (await post(cluster, path, body)).code == 500
            assert (await post(cluster, path, body)).code == 500
            journal.work_again()
            assert (await post(cluster, path, body)).code == 201
            assert (await post(cluster, path, body)).code in (403, 409, 422)

    run()


@async_test
async def test_writes_from_templates_are_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Creates, bindings and status patches that reuse the bytes of earlier ones go through the same commit."""
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        pods = f"{CORE}/pods"

        async def create_and_bind(name: str) -> tuple[ServerResponse, ServerResponse]:
            created = await post(cluster, pods, pod(name))
            uid = created.json["metadata"].get("uid", "")
            binding = {"metadata": {"name": name, "uid": uid}, "target": {"kind": "Node", "name": "n"}}
            return created, await post(cluster, f"{pods}/{name}/binding", binding)

        for number in range(5):  # the fourth and later ones come from a template
            created, bound = await create_and_bind(f"p-{number}")
            assert (created.code, bound.code) == (201, 201)
        created = await post(cluster, pods, pod("free"))
        before = await listed(cluster, pods)
        journal.fail_always()
        binding = {"metadata": {"name": "free", "uid": created.json["metadata"]["uid"]}, "target": {"name": "n"}}
        assert (await post(cluster, f"{pods}/free/binding", binding)).code == 500
        assert (await post(cluster, pods, pod("lost"))).code == 500
        assert await listed(cluster, pods) == before
        assert "nodeName" not in (await cluster.request("GET", f"{pods}/free")).json["spec"]
        journal.work_again()
        assert (await post(cluster, f"{pods}/free/binding", binding)).code == 201
        created, bound = await create_and_bind("lost")
        assert (created.code, bound.code) == (201, 201)
        assert int(created.json["metadata"]["resourceVersion"]) == int(before[1]) + 2
        stored = (await cluster.request("GET", f"{pods}/lost")).json
        assert (stored["spec"]["nodeName"], stored["metadata"]["uid"]) == ("n", created.json["metadata"]["uid"])


@async_test
async def test_a_template_that_was_learned_from_a_rolled_back_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A priority class that was never committed must not be in pods that are created later."""
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        journal.hold()
        uncommitted = [post(cluster, classes, {"metadata": {"name": "high"}, "value": 7, "globalDefault": True})]
        await journal.asked()
        uncommitted += [post(cluster, f"{CORE}/pods", pod(f"p-{number}")) for number in range(5)]
        await wait_until(lambda: len([*cluster.cluster.store.uncommitted_objects(("", "pods")).entries()]) == 5)
        await journal.fail_next()
        assert {(await each).code for each in uncommitted} == {500}
        journal.work_again()
        for number in range(5):
            created = await cluster.create(f"{CORE}/pods", pod(f"p-{number}"))
            assert created["spec"]["priority"] == 0


# Health and recovery


@async_test
async def test_health_checks_fail_until_a_commit_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        other_user = {"Authorization": f"Bearer {UNKNOWN_TOKEN}"}
        assert (await cluster.request("GET", "/readyz")).text == "ok"
        journal.fail_always()
        for _ in range(3):
            assert (await post(cluster, CONFIG_MAPS, config_map("a"))).code == 500
        for name in ("healthz", "livez", "readyz"):
            answer = await cluster.request("GET", f"/{name}", Authorization="")
            assert answer.code == 500
            assert answer.text == f"[+]ping ok\n[-]etcd failed: reason withheld\n{name} check failed\n"
            assert (await cluster.request("GET", f"/{name}/ping")).text == "ok"
            single = await cluster.request("GET", f"/{name}/etcd")
            assert (single.code, single.text) == (500, f"internal server error: {REFUSED}\n")
            assert (await cluster.request("GET", f"/{name}/etcd", **other_user)).code == 403
        excluded = await cluster.request("GET", "/readyz?exclude=etcd&exclude=x&verbose")
        assert excluded.text == (
            "[+]ping ok\n[+]etcd excluded: ok\n"
            'warn: some health checks cannot be excluded: no matches for "x"\nreadyz check passed\n'
        )
        assert (await cluster.request("GET", CONFIG_MAPS)).code == 200, "reads still work"
        journal.work_again()
        while (await cluster.request("GET", "/readyz")).code != 200:
            pass  # no request writes: the store retries by itself
        messages = [each.getMessage() for each in caplog.records if each.name == store_module.LOG.name]
        assert messages == [
            f"commit failed: {DISK_FULL_ERROR}; writes are refused and /readyz fails until a commit succeeds",
            "a commit succeeded: writes are accepted again",
        ]


@async_test
async def test_the_store_retries_with_empty_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        journal.fail_always()
        await post(cluster, CONFIG_MAPS, config_map("a"))
        await wait_until(lambda: len(journal.groups) > 3)
        assert journal.groups[1:3] == [[], []]


@async_test
async def test_cleanup_that_was_rolled_back_is_repeated_after_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal), cluster.client() as client:
        controllers = ControllerManager(client, only=["garbage-collector-controller"])
        running = asyncio.create_task(controllers.run())
        await controllers.wait_synced()
        parent = await cluster.create(CONFIG_MAPS, config_map("parent"))
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "parent", "uid": parent["metadata"]["uid"]}
        await cluster.create(CONFIG_MAPS, config_map("child", ownerReferences=[owner]))
        journal.hold()
        deleting = asyncio.create_task(cluster.request("DELETE", f"{CONFIG_MAPS}/parent?propagationPolicy=Background"))
        await journal.commit_next()
        assert (await deleting).code == 200
        await journal.fail_next()  # the garbage collector's deletion of the child
        assert (await cluster.request("GET", f"{CONFIG_MAPS}/child")).code == 200
        journal.work_again()
        while (await cluster.request("GET", f"{CONFIG_MAPS}/child")).code != 404:
            pass
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


WIDGET: Tree = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.ex.io"},
    "spec": {
        "group": "ex.io",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


@async_test
async def test_a_definition_whose_finalizer_was_rolled_back_is_deleted_after_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions, widgets = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/ex.io/v1/widgets"
    async with run_held_cluster(tmp_path, monkeypatch) as (cluster, journal):
        await cluster.create(definitions, WIDGET)
        body = {"apiVersion": "ex.io/v1", "kind": "Widget", "metadata": {"name": "w"}}
        await cluster.create("/apis/ex.io/v1/namespaces/default/widgets", body)
        journal.hold()
        deleting = asyncio.create_task(cluster.request("DELETE", f"{definitions}/widgets.ex.io"))
        await journal.commit_next()
        assert (await deleting).code == 200
        await journal.fail_next()  # the deletion of the widget and the removal of the finalizer
        assert len((await cluster.request("GET", widgets)).json["items"]) == 1
        journal.work_again()
        while (await cluster.request("GET", f"{definitions}/widgets.ex.io")).code != 404:
            pass
        assert (await cluster.request("GET", widgets)).code == 404


@async_test
async def test_a_cluster_closes_after_the_running_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created = use_held_journal(monkeypatch)
    async with AsyncExitStack() as stack:
        cluster = HeldCluster(
            await stack.enter_async_context(run_embedded_cluster(tmp_path, data=tmp_path / "objects.db"))
        )
        created[0].hold()
        writing = await cluster.begin("POST", CONFIG_MAPS, config_map("last"))
        await created[0].asked()
        closing = asyncio.create_task(stack.aclose())
        await wait_until(lambda: cluster.cluster._crd_finalizer._stopped)
        assert not closing.done()
        created[0].work_again()
        await closing
    assert (await writing).code == 201
    async with run_embedded_cluster(tmp_path, data=tmp_path / "objects.db") as again:
        assert (await again.request("GET", f"{CONFIG_MAPS}/last")).code == 200


@async_test
async def test_bootstrap_objects_are_created_once(tmp_path: Path) -> None:
    cluster = EmbeddedCluster(credentials_for(tmp_path, "127.0.0.1"), data=tmp_path / "objects.db")
    cluster.create_initial_objects()
    written = cluster.store.newest_version
    cluster.create_initial_objects()  # before the first ones are committed
    assert cluster.store.newest_version == written
    async with cluster:
        pass


@async_test
async def test_a_cluster_that_cannot_commit_its_bootstrap_objects_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteBackend, "commit", lambda *_: _failed_commit())
    with pytest.raises(CommitError, match="database or disk is full"):
        async with run_embedded_cluster(tmp_path, data=tmp_path / "objects.db"):
            pass
    SqliteBackend(tmp_path / "objects.db").close()  # the file is closed


def _failed_commit() -> asyncio.Future[None]:
    commit_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    commit_done.set_exception(OSError(DISK_FULL_ERROR))
    return commit_done
