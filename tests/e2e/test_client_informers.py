"""Informers on a real API server: existing objects, changes, and recovery after a gap."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bayplan.client import Client, ConnectionConfig, Informer, Selection, resource_of
from bayplan.clock import SystemClock
from bayplan.errors import Gone
from bayplan.objects.core import Namespace, Pod
from bayplan.objects.kinds import KINDS, kind_of
from bayplan.objects.meta import KubeObject
from cluster.run import Cluster
from support.fakes.tcp_proxy import TcpProxy
from support.harness.async_tests import async_test, wait_until

NAMESPACES = resource_of(kind_of(Namespace))
PODS = resource_of(kind_of(Pod))


def client_of(target: ConnectionConfig, *, qps: float = 50.0) -> Client:
    return Client(target, clock=SystemClock(), chance=random.Random(0), user_agent="bayplan/test", qps=qps)


def pod(name: str, **more: object) -> dict[str, object]:
    spec = {"containers": [{"name": "c", "image": "none"}], "schedulerName": "nobody", **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Heard:
    """The handler calls of an informer, newest state by name."""

    def __init__(self) -> None:
        self.verbs: list[tuple[str, str]] = []

    def __call__(self, old: KubeObject | None, new: KubeObject | None) -> None:
        about = new or old
        assert about is not None
        self.verbs.append(("add" if old is None else "delete" if new is None else "update", about.name))


@asynccontextmanager
async def running(informer: Informer) -> AsyncIterator[None]:
    task = asyncio.create_task(informer.run())
    try:
        await informer.wait_synced()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@async_test
async def test_the_server_offers_every_kind_of_kubernetes(cluster: Cluster) -> None:
    async with client_of(cluster.target()) as client:
        offered = await client.discover()
        assert offered.server_version == "v1.36.4"
        # Volcano's and KAI's are custom resources, and Kubernetes' own PodGroup needs a feature gate.
        custom = ("volcano.sh", "run.ai")
        absent = {kind.name for kind in KINDS if kind.group.endswith(custom)} | {"PodGroup"}
        assert {kind.name for kind in offered.missing} == absent
        assert {key: found.version for key, found in offered.resources.items() if key[0] == "resource.k8s.io"} == {
            ("resource.k8s.io", "ResourceClaim"): "v1",
            ("resource.k8s.io", "ResourceSlice"): "v1",
            ("resource.k8s.io", "DeviceClass"): "v1",
        }


@async_test
async def test_every_kind_can_be_listed_and_watched(cluster: Cluster) -> None:
    async with client_of(cluster.target()) as client:
        offered = await client.discover()
        informers = [client.informer(each, Heard()) for each in offered.resources.values()]
        tasks = [asyncio.create_task(each.run()) for each in informers]
        await asyncio.gather(*(each.wait_synced() for each in informers))
        assert [each.resource for each in informers if not each._streaming] == []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "paged"])
@async_test
async def test_existing_objects_and_changes_are_delivered(cluster: Cluster, namespace: str, streaming: bool) -> None:
    for number in range(3):
        cluster.kubectl("-n", namespace, "create", "configmap", f"c{number}")  # other kinds are not delivered
    heard = Heard()
    async with client_of(cluster.target()) as client:
        for number in range(3):
            await client.create(PODS, pod(f"p{number}"), namespace=namespace)
        informer = client.informer(PODS, heard, selection=Selection(namespace=namespace), streaming=streaming)
        async with running(informer):
            await wait_until(lambda: len(informer.store) == 3)  # a first list may be slightly old, the watch catches up
            assert sorted(heard.verbs) == [("add", "p0"), ("add", "p1"), ("add", "p2")]
            heard.verbs.clear()
            await client.patch(PODS, {"metadata": {"labels": {"a": "b"}}}, namespace=namespace, name="p0")
            await client.delete(PODS, namespace=namespace, name="p1", grace_s=0)
            await client.create(PODS, pod("p3"), namespace=namespace)
            await wait_until(lambda: len(heard.verbs) == 4)
            # A pod without a grace period is marked first and then deleted.
            assert heard.verbs == [("update", "p0"), ("update", "p1"), ("delete", "p1"), ("add", "p3")]
            assert {name for _, name in informer.store} == {"p0", "p2", "p3"}
            assert informer.store[namespace, "p0"].metadata.labels == {"a": "b"}


@async_test
async def test_a_pod_that_leaves_the_selection_is_deleted(cluster: Cluster, namespace: str) -> None:
    heard = Heard()
    chosen = Selection(namespace=namespace, field_selector="status.phase!=Succeeded,status.phase!=Failed")
    async with client_of(cluster.target()) as client:
        await client.create(PODS, pod("done"), namespace=namespace)
        async with running(client.informer(PODS, heard, selection=chosen)):
            await wait_until(lambda: heard.verbs)
            patch = {"status": {"phase": "Succeeded"}}
            await client.patch(PODS, patch, namespace=namespace, name="done", subresource="status")
            await wait_until(lambda: len(heard.verbs) == 2)
            assert heard.verbs == [("add", "done"), ("delete", "done")]


@async_test
async def test_a_watch_that_matches_nothing_keeps_its_version_fresh(cluster: Cluster, namespace: str) -> None:
    """Without bookmarks the history of the kind would be compacted before a resume, and a list would follow: the watch
    is resumed after each silent period, and bookmarks, sent once a minute, would never arrive.
    """
    heard = Heard()
    async with client_of(cluster.target()) as client:
        chosen = Selection(namespace=namespace, label_selector="of=nothing")
        informer = client.informer(PODS, heard, selection=chosen, streaming=False)
        async with running(informer):
            seen = {informer.resource_version}
            while len(seen) < 3:  # two watches have ended with a bookmark
                await client.create(PODS, pod("p"), namespace=namespace)
                await client.delete(PODS, namespace=namespace, name="p", grace_s=0)
                seen.add(informer.resource_version)
            assert heard.verbs == []


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "paged"])
@async_test
async def test_a_gap_with_compacted_history(cluster: Cluster, namespace: str, streaming: bool) -> None:
    """The client loses its server; meanwhile objects change, etcd compacts and the API server restarts: 410."""
    heard = Heard()
    port = cluster.target().url.port
    assert port is not None
    async with TcpProxy(port) as pipe, client_of(cluster.target()) as direct:
        for name in ("stays", "changes", "goes", "comes-again"):
            await direct.create(PODS, pod(name), namespace=namespace)
        cut_off = replace(cluster.target(), server=f"https://127.0.0.1:{pipe.port}")
        async with client_of(cut_off) as client:
            informer = client.informer(PODS, heard, selection=Selection(namespace=namespace), streaming=streaming)
            async with running(informer):
                await wait_until(lambda: len(informer.store) == 4)
                heard.verbs.clear()
                before = informer.resource_version
                await pipe.cut()
                await direct.patch(PODS, {"metadata": {"labels": {"a": "b"}}}, namespace=namespace, name="changes")
                await direct.delete(PODS, namespace=namespace, name="goes", grace_s=0)
                await direct.delete(PODS, namespace=namespace, name="comes-again", grace_s=0)
                await direct.create(PODS, pod("comes-again"), namespace=namespace)
                await direct.create(PODS, pod("new"), namespace=namespace)
                await asyncio.to_thread(cluster.compact)
                await asyncio.to_thread(cluster.end, "kube-apiserver")
                await asyncio.to_thread(cluster.start_api_server)
                await pipe.open()
                await wait_until(lambda: len(heard.verbs) >= 5)
                assert sorted(heard.verbs) == [
                    ("add", "comes-again"),
                    ("add", "new"),
                    ("delete", "comes-again"),
                    ("delete", "goes"),
                    ("update", "changes"),
                ]
                assert int(informer.resource_version) > int(before)
                fresh = await direct.list(PODS, Selection(namespace=namespace))
                assert {
                    (item.namespace, item.name): item for item in fresh.items if isinstance(item, KubeObject)
                } == dict(informer.store)


@async_test
async def test_a_short_absence_of_the_server_is_resumed_without_a_list(cluster: Cluster, namespace: str) -> None:
    heard = Heard()
    asked: list[str] = []
    port = cluster.target().url.port
    assert port is not None
    async with TcpProxy(port) as pipe, client_of(cluster.target()) as direct:
        cut_off = replace(cluster.target(), server=f"https://127.0.0.1:{pipe.port}")
        async with Client(
            cut_off, clock=SystemClock(), chance=random.Random(0), observer=lambda method, *_: asked.append(method)
        ) as client:
            informer = client.informer(PODS, heard, selection=Selection(namespace=namespace), streaming=False)
            async with running(informer):
                await wait_until(lambda: asked == ["GET", "WATCH"])
                await pipe.cut()
                await direct.create(PODS, pod("meanwhile"), namespace=namespace)
                await pipe.open()
                await wait_until(lambda: heard.verbs)
                assert heard.verbs == [("add", "meanwhile")]
                assert asked.count("GET") == 1


@async_test
async def test_pages_of_a_compacted_version_are_gone(cluster: Cluster, namespace: str) -> None:
    async with client_of(cluster.target()) as client:
        for number in range(4):
            await client.create(PODS, pod(f"p{number}"), namespace=namespace)
        path = PODS.path(namespace)
        first = (await client.transport.request("GET", f"{path}?limit=2")).body
        following = first.partition(b'"continue":"')[2].partition(b'"')[0].decode()
        assert following
        await client.create(PODS, pod("more"), namespace=namespace)
        await asyncio.to_thread(cluster.compact)
        await asyncio.to_thread(cluster.end, "kube-apiserver")
        await asyncio.to_thread(cluster.start_api_server)
        with pytest.raises(Gone):
            await client.transport.request("GET", f"{path}?limit=2&continue={following}")
        assert len((await client.list(PODS, Selection(namespace=namespace))).items) == 5


@async_test
async def test_a_store_survives_a_bad_connection(cluster: Cluster, namespace: str) -> None:
    """Pods are created, changed and deleted while the connection is cut: in the end the store is complete."""
    chance = random.Random(7)
    port = cluster.target().url.port
    assert port is not None
    async with TcpProxy(port) as pipe, client_of(cluster.target(), qps=-1.0) as direct:
        cut_off = replace(cluster.target(), server=f"https://127.0.0.1:{pipe.port}")
        async with client_of(cut_off) as client:
            informer = client.informer(PODS, Heard(), selection=Selection(namespace=namespace))
            async with running(informer):
                alive: set[str] = set()
                for number in range(200):
                    if chance.random() < 0.03:
                        await pipe.cut()
                        await pipe.open()
                    name = f"p{chance.randrange(30)}"
                    if name not in alive:
                        await direct.create(PODS, pod(name), namespace=namespace)
                        alive.add(name)
                    elif chance.random() < 0.5:
                        patch = {"metadata": {"labels": {"n": str(number)}}}
                        await direct.patch(PODS, patch, namespace=namespace, name=name)
                    else:
                        await direct.delete(PODS, namespace=namespace, name=name, grace_s=0)
                        alive.discard(name)
                fresh = await direct.list(PODS, Selection(namespace=namespace))
                expected = {(item.namespace, item.name): item for item in fresh.items if isinstance(item, KubeObject)}
                assert {name for _, name in expected} == alive
                await wait_until(lambda: dict(informer.store) == expected)
