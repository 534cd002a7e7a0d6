"""A cluster whose scheduler shares GPUs: two pods with fractions share a device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bayplan.apiserver.embedded import credentials_for
from bayplan.app.cluster import ClusterOptions, InProcessCluster, SchedulerSetup
from bayplan.client import Client, GroupVersionResource, Selection
from bayplan.controllers import NodePool, PodBehavior, nodes_of
from bayplan.controllers.core.api_types import CONFIG_MAPS, NAMESPACES, PODS, SERVICE_ACCOUNTS
from bayplan.errors import ApiError, NotFound
from support.harness.async_tests import async_test

Tree = dict[str, Any]
SHARING = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: sharing
  plugins:
    multiPoint:
      enabled: [{name: GpuSharing}, {name: BindRequestBinder}]
      disabled: [{name: DefaultBinder}]
"""
NAMESPACE = "kai-resource-reservation"
WEBHOOK_CONFIGURATIONS = GroupVersionResource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", namespaced=False
)


@asynccontextmanager
async def sharing_cluster(
    folder: Path, config: str | None = SHARING, data: Path | None = None
) -> AsyncIterator[Client]:
    """A cluster of one node with two GPUs, and a client of it."""
    nodes = nodes_of([NodePool.parse("1:nvidia.com/gpu=2")], 0)
    nodes[0]["metadata"]["labels"]["nvidia.com/gpu.memory"] = "16000"
    plan = ClusterOptions(
        credentials=credentials_for(folder, "127.0.0.1"),
        nodes=nodes,
        pod_lifecycle=PodBehavior(starts_after_s=0.0, stops_after_s=0.0),
        scheduler=SchedulerSetup.from_text(config),
        data=data,
    )
    async with asyncio.timeout(60), InProcessCluster(plan) as cluster, cluster.client() as client:
        await cluster.ready()
        yield client


def pod_with_fraction(name: str, scheduler: str = "sharing", fraction: str = "0.5") -> Tree:
    return {
        "metadata": {"name": name, "annotations": {"gpu-fraction": fraction}},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "main", "image": "main"}]},
    }


async def wait_running(client: Client, name: str) -> Tree:
    while (pod := await client.get_raw(PODS, "default", name))["status"].get("phase") != "Running":
        await asyncio.sleep(0.01)
    return pod


async def reservations(client: Client) -> list[Any]:
    return list((await client.list(PODS, Selection(namespace=NAMESPACE))).items)


async def environment(client: Client, pod: Tree) -> dict[str, str]:
    """The environment that a kubelet sets in the first container."""
    (container, *_), found = pod["spec"]["containers"], {}
    for source in container["envFrom"]:
        found |= (await client.get_raw(CONFIG_MAPS, "default", source["configMapRef"]["name"]))["data"]
    for each in container["env"]:
        named = each["valueFrom"]["configMapKeyRef"]
        found[each["name"]] = (await client.get_raw(CONFIG_MAPS, "default", named["name"]))["data"][named["key"]]
    return found


@async_test
async def test_two_halves_share_a_device_and_free_it_when_they_are_deleted(tmp_path: Path) -> None:
    async with sharing_cluster(tmp_path) as client:
        for name in ("one", "two"):
            await client.create(PODS, pod_with_fraction(name), namespace="default")
        pods = [await wait_running(client, name) for name in ("one", "two")]
        (held,) = await reservations(client)
        device = held.metadata.annotations["run.ai/reserve_for_gpu_index"]
        assert device == f"GPU-{held.metadata.uid}"
        expected = {"NVIDIA_VISIBLE_DEVICES": device, "GPU_PORTION": "0.50", "RUNAI_NUM_OF_GPUS": "0.50"}
        assert [await environment(client, pod) for pod in pods] == [expected, expected]
        for name in ("one", "two"):
            await client.delete(PODS, namespace="default", name=name)
        while await reservations(client):
            await asyncio.sleep(0.01)


@async_test
async def test_pods_of_other_schedulers_are_not_changed(tmp_path: Path) -> None:
    async with sharing_cluster(tmp_path) as client:
        await client.create(PODS, pod_with_fraction("other", "default-scheduler", fraction="2"), namespace="default")
        pod = await wait_running(client, "other")
        assert pod["metadata"]["annotations"] == {"gpu-fraction": "2"}
        with pytest.raises(ApiError, match="it must be between 0 and 1"):
            await client.create(PODS, pod_with_fraction("bad", fraction="2"), namespace="default")


@async_test
async def test_a_cluster_with_a_data_file_shares_gpus_after_a_restart(tmp_path: Path) -> None:
    """The second start has another scheduler name, which the webhook configurations must have too."""
    data = tmp_path / "cluster.db"
    async with sharing_cluster(tmp_path, data=data) as client:
        assert await client.get_raw(SERVICE_ACCOUNTS, NAMESPACE, NAMESPACE)
    renamed = SHARING.replace("schedulerName: sharing", "schedulerName: renamed")
    async with sharing_cluster(tmp_path, renamed, data) as client:
        await client.create(PODS, pod_with_fraction("one", "renamed"), namespace="default")
        assert (await environment(client, await wait_running(client, "one")))["GPU_PORTION"] == "0.50"


@async_test
async def test_without_gpu_sharing_there_are_no_webhooks(tmp_path: Path) -> None:
    async with sharing_cluster(tmp_path, None) as client:
        for resource, name in ((WEBHOOK_CONFIGURATIONS, "bayplan-gpus-mutate"), (NAMESPACES, NAMESPACE)):
            with pytest.raises(NotFound):
                await client.get_raw(resource, "", name)
