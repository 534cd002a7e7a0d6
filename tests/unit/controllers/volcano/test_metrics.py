"""Volcano's controller metrics, from what an API server tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bayplan.client import MERGE_PATCH, Client, GroupVersionResource
from bayplan.controllers.core.api_types import PODS, Tree
from bayplan.controllers.volcano import VolcanoControllers
from bayplan.controllers.volcano.crds import create_crds, missing_crds
from bayplan.controllers.volcano.resources import (
    JOB_FLOWS,
    POD_GROUPS,
    QUEUES,
    VC_JOBS,
)
from bayplan.telemetry.metrics import MetricsRegistry
from support.harness.async_tests import async_test, wait_until
from support.harness.embedded_cluster import run_embedded_cluster
from support.harness.metrics_scrape import MetricFamily, parse_families

POD_SPEC = {"containers": [{"name": "main", "image": "main"}]}
TASKS = [{"name": "w", "replicas": 1, "template": {"spec": POD_SPEC}}]


class Counted:
    """What is counted while objects come and go."""

    def __init__(self, client: Client, registry: MetricsRegistry) -> None:
        self._client, self._registry = client, registry

    async def make(self, resource: GroupVersionResource, name: str, spec: Tree, **meta: Any) -> str:
        """Its uid."""
        assert resource.kind is not None
        kind = {"apiVersion": resource.api_version, "kind": resource.kind.name}
        namespace = "default" if resource.namespaced else ""
        await self._client.create(
            resource, {**kind, "metadata": {"name": name, **meta}, "spec": spec}, namespace=namespace
        )
        return str((await self._client.get_raw(resource, namespace, name))["metadata"]["uid"])

    async def becomes(self, resource: GroupVersionResource, name: str, status: Tree, sub: str = "status") -> None:
        body = {"status": status}
        await self._client.patch(resource, body, name=name, namespace="default", subresource=sub, kind=MERGE_PATCH)

    async def goes(self, resource: GroupVersionResource, name: str) -> None:
        await self._client.delete(resource, name=name, namespace="default")

    def family(self, name: str) -> MetricFamily:
        return parse_families(b"".join(self._registry.render()).decode()).get(f"volcano_{name}", MetricFamily([]))

    async def shows(self, name: str, value: float, **labels: str) -> None:
        await wait_until(lambda: self.family(name).value(**labels) == value)


@asynccontextmanager
async def counting(folder: Path) -> AsyncIterator[Counted]:
    """No controller at work but the one that counts."""
    registry = MetricsRegistry()
    async with run_embedded_cluster(folder) as cluster, cluster.client() as client:
        await create_crds(client, await missing_crds(client))
        controllers = VolcanoControllers(client, only=[], counted_in=registry)
        running = asyncio.create_task(controllers.run())
        try:
            await controllers.synced()
            yield Counted(client, registry)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@async_test
async def test_groups_by_queue_and_phase(tmp_path: Path) -> None:
    async with counting(tmp_path) as counted:
        await counted.make(QUEUES, "gold", {"weight": 1})
        await counted.make(POD_GROUPS, "a", {"minMember": 1, "queue": "gold"})
        await counted.make(POD_GROUPS, "b", {"minMember": 1, "queue": "gold"})
        await counted.becomes(POD_GROUPS, "b", {"phase": "Running"}, sub="")
        await counted.shows("queue_pod_group_running_count", 1, queue_name="gold")
        await counted.shows("queue_pod_group_pending_count", 1, queue_name="gold")
        await counted.becomes(POD_GROUPS, "a", {"phase": "Inqueue"}, sub="")
        await counted.shows("queue_pod_group_inqueue_count", 1, queue_name="gold")
        assert counted.family("queue_pod_group_pending_count").value(queue_name="gold") == 0


@async_test
async def test_jobs_flows_and_pods(tmp_path: Path) -> None:
    async with counting(tmp_path) as counted:
        uid = await counted.make(VC_JOBS, "train", {"queue": "gold", "tasks": TASKS})
        owner = {"apiVersion": VC_JOBS.api_version, "kind": "Job", "name": "train", "controller": True}
        await counted.make(PODS, "train-w-0", POD_SPEC, ownerReferences=[{**owner, "uid": uid}])
        await counted.becomes(VC_JOBS, "train", {"state": {"phase": "Running"}})
        await counted.becomes(VC_JOBS, "train", {"state": {"phase": "Completed"}})
        await counted.becomes(VC_JOBS, "train", {"succeeded": 1})  # and stays so
        await counted.shows("job_completed_phase_count", 1, job_name="default/train", queue_name="gold")
        await counted.shows("controller_job_to_pod_creation_latency_milliseconds", 1)
        await counted.make(JOB_FLOWS, "flow", {"flows": [], "jobRetainPolicy": "retain"})
        await counted.becomes(JOB_FLOWS, "flow", {"state": {"phase": "Failed"}})
        await counted.shows("jobflow_failed_phase_count", 1, jobflow_namespace="default")
        await counted.goes(VC_JOBS, "train")
        await wait_until(lambda: counted.family("job_completed_phase_count").values == {})
        assert counted.family("job_failed_phase_count").values == {}
