"""The fake kubelet on a real API server: nodes that are Ready, pods that run and end, and the number of requests."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import LEASES, PODS, Client
from bayplan.clock import SystemClock
from bayplan.controllers import RUNS_FOR, FakeKubelet, NodeTemplate, PodBehavior
from bayplan.controllers.kubelet.fake_nodes import NODES
from bayplan.errors import NotFound
from cluster.run import Cluster
from support.harness.async_tests import async_test

Requests = Counter[tuple[str, int]]


@asynccontextmanager
async def kubelet_on(
    cluster: Cluster, prefix: str, *, count: int = 2, habits: PodBehavior | None = None
) -> AsyncIterator[tuple[Client, FakeKubelet, Requests]]:
    """A running fake kubelet; its requests are counted by method and status."""
    asked: Requests = Counter()

    def observe(method: str, status: int, _: float) -> None:
        asked[method, status] += 1

    more: Any = {"clock": SystemClock(), "chance": random.Random(0), "qps": -1.0, "observer": observe}
    async with Client(cluster.target(), **more) as client:
        template = NodeTemplate({"metadata": {"name": prefix, "labels": {"for": prefix}}})
        kubelet = FakeKubelet(client, count=count, template=template, habits=habits or PodBehavior())
        running = asyncio.create_task(kubelet.run())
        try:
            await kubelet.ready()
            yield client, kubelet, asked
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await kubelet.nodes.remove()


def pod(name: str, **annotations: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}}
    spec = {
        "containers": [{"name": "c", "image": "none", "resources": resources}],
        "initContainers": [{"name": "i", "image": "none"}, {"name": "s", "image": "none", "restartPolicy": "Always"}],
        "restartPolicy": "Never",
        "schedulerName": "nobody",
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


async def bound(client: Client, namespace: str, node: str, body: dict[str, Any]) -> str:
    name: str = body["metadata"]["name"]
    await client.create(PODS, body, namespace=namespace)
    await client.bind(namespace, name, node)
    return name


async def pod_when(client: Client, namespace: str, name: str, so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    while True:
        found = await client.get_raw(PODS, namespace, name)
        if so(found):
            return found
        await asyncio.sleep(0.02)


async def gone(client: Client, namespace: str, name: str) -> None:
    with pytest.raises(NotFound):
        await pod_when(client, namespace, name, lambda _: False)


@async_test
async def test_nodes_are_ready_and_their_leases_are_held(cluster: Cluster) -> None:
    async with kubelet_on(cluster, "kubelet-ready", count=3) as (client, _, _):
        table = cluster.kubectl("get", "nodes", "-l", "for=kubelet-ready", "--no-headers")
        assert [line.split()[:2] for line in table.splitlines()] == [
            [f"kubelet-ready-{index}", "Ready"] for index in range(3)
        ]
        for index in range(3):
            lease = await lease_of(client, f"kubelet-ready-{index}")
            assert lease["spec"]["holderIdentity"] == f"kubelet-ready-{index}"
            assert lease["metadata"]["ownerReferences"][0]["kind"] == "Node"


async def lease_of(client: Client, name: str) -> dict[str, Any]:
    while True:
        try:
            return await client.get_raw(LEASES, "kube-node-lease", name)
        except NotFound:
            await asyncio.sleep(0.05)


@async_test
async def test_a_pod_runs_and_succeeds(cluster: Cluster, namespace: str) -> None:
    async with kubelet_on(cluster, "kubelet-runs") as (client, _, _):
        lasting = await bound(client, namespace, "kubelet-runs-0", pod("lasting"))
        ending = await bound(client, namespace, "kubelet-runs-1", pod("ending", **{RUNS_FOR: "1s"}))
        found = await pod_when(client, namespace, lasting, lambda p: p["status"]["phase"] == "Running")
        conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
        assert conditions == dict.fromkeys(
            ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"), "True"
        )
        assert (found["status"]["podIP"][:3], found["status"]["hostIP"]) == ("10.", "127.0.0.1")
        (container,) = found["status"]["containerStatuses"]
        assert (container["ready"], list(container["state"])) == (True, ["running"])
        assert container["allocatedResources"] == {"cpu": "100m", "memory": "64Mi"}
        states = {each["name"]: list(each["state"]) for each in found["status"]["initContainerStatuses"]}
        assert states == {"i": ["terminated"], "s": ["running"]}
        ended = await pod_when(client, namespace, ending, lambda p: p["status"]["phase"] == "Succeeded")
        assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
        assert [each["status"] for each in ended["status"]["conditions"] if each["type"] == "Ready"] == ["False"]
        line = cluster.kubectl("-n", namespace, "get", "pods", "--no-headers").splitlines()
        assert [each.split()[:3] for each in line] == [["ending", "0/2", "Completed"], ["lasting", "2/2", "Running"]]


@async_test
async def test_deletion_is_honoured(cluster: Cluster, namespace: str) -> None:
    async with kubelet_on(cluster, "kubelet-deletes", habits=PodBehavior(stops_after_s=0.5)) as (client, _, _):
        name = await bound(client, namespace, "kubelet-deletes-0", pod("p"))
        await pod_when(client, namespace, name, lambda p: p["status"]["phase"] == "Running")
        await client.delete(PODS, namespace=namespace, name=name)
        assert "deletionTimestamp" in (await client.get_raw(PODS, namespace, name))["metadata"]
        await gone(client, namespace, name)


@async_test
async def test_a_deleted_pod_with_a_finalizer_reports_its_end(cluster: Cluster, namespace: str) -> None:
    async with kubelet_on(cluster, "kubelet-keeps") as (client, _, _):
        body = pod("p")
        body["metadata"]["finalizers"] = ["bayplan.dev/test"]
        name = await bound(client, namespace, "kubelet-keeps-0", body)
        await pod_when(client, namespace, name, lambda p: p["status"]["phase"] == "Running")
        await client.delete(PODS, namespace=namespace, name=name)
        found = await pod_when(client, namespace, name, lambda p: p["metadata"].get("deletionGracePeriodSeconds") == 0)
        assert found["status"]["phase"] == "Failed"
        await client.patch(PODS, {"metadata": {"finalizers": None}}, namespace=namespace, name=name)
        await gone(client, namespace, name)


@async_test
async def test_a_resize_is_done(cluster: Cluster, namespace: str) -> None:
    async with kubelet_on(cluster, "kubelet-resizes") as (client, _, _):
        name = await bound(client, namespace, "kubelet-resizes-0", pod("p"))
        await pod_when(client, namespace, name, lambda p: p["status"]["phase"] == "Running")
        asked = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "300m"}}}]}}
        await client.patch(PODS, asked, namespace=namespace, name=name, subresource="resize")

        def done(found: dict[str, Any]) -> bool:
            (container,) = found["status"]["containerStatuses"]
            return bool(container["allocatedResources"]["cpu"] == "300m")

        found = await pod_when(client, namespace, name, done)
        assert found["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"] == "300m"
        assert found["status"]["observedGeneration"] == found["metadata"]["generation"] == 2


@async_test
async def test_a_deleted_node_stays_deleted_and_a_not_ready_one_recovers(cluster: Cluster) -> None:
    async with kubelet_on(cluster, "kubelet-ill") as (client, kubelet, _):
        await client.delete(NODES, name="kubelet-ill-0")
        while "kubelet-ill-0" in kubelet.nodes:
            await asyncio.sleep(0.02)
        ill = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
        await client.patch(NODES, ill, name="kubelet-ill-1", subresource="status")
        while True:
            found = await client.get_raw(NODES, "", "kubelet-ill-1")
            if {each["type"]: each["status"] for each in found["status"]["conditions"]}["Ready"] == "True":
                break
        with pytest.raises(NotFound):
            await client.get_raw(NODES, "", "kubelet-ill-0")


@async_test
async def test_a_thousand_nodes_renew_their_leases_within_bounds(cluster: Cluster) -> None:
    async with kubelet_on(cluster, "kubelet-many", count=1000) as (client, _, asked):
        assert asked["POST", 201] >= 1000, "registered by one request each"
        while asked["POST", 201] < 2000:  # each lease is created once
            await asyncio.sleep(0.1)
        asked.clear()
        began_s = client.clock.monotonic_s()
        while asked["PATCH", 200] < 400:
            await asyncio.sleep(0.1)
        # Fifty a second take eight seconds; a delayed worker may catch up, but not for all at once.
        assert client.clock.monotonic_s() - began_s > 2
        assert sum(asked.values()) - asked["PATCH", 200] <= 20, "next to nothing else"


def test_the_command_runs_nodes_until_it_is_stopped(cluster: Cluster, tmp_path: Path) -> None:
    template = tmp_path / "node.yaml"
    template.write_text('metadata: {name: "cli-{index}"}\nstatus: {capacity: {cpu: "3", memory: 1Gi, pods: "5"}}\n')
    command = [Path(sys.executable).with_name("bayplan"), "kubelet", "--nodes=2", f"--node-template={template}"]
    with subprocess.Popen(
        [*command, f"--kubeconfig={cluster.kubeconfig()}", "--remove-nodes"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"2 node(s) are ready on {cluster.url}: cli-0 to cli-1\n"
            nodes = json.loads(cluster.kubectl("get", "node", "cli-0", "cli-1", "-o", "json"))["items"]
            assert [each["status"]["allocatable"]["cpu"] for each in nodes] == ["3", "3"]
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "stopped\n"
    assert process.returncode == 0
    assert cluster.kubectl("get", "nodes", "--ignore-not-found", "cli-0", "cli-1") == ""
