"""Volcano's controller metrics, with an API server."""

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
from bayplan.controllers.volcano.resources import JOB_FLOWS, POD_GROUPS, QUEUES, VC_JOBS
from bayplan.telemetry.metrics import MetricsRegistry
from support.harness.async_tests import async_test, wait_until
from support.harness.embedded_cluster import run_embedded_cluster
from support.harness.metrics_scrape import MetricFamily, parse_families

POD_SPEC = {"containers": [{"name": "main", "image": "main"}]}
TASKS = [{"name": "w", "replicas": 1, "template": {"spec": POD_SPEC}}]


class MetricsHarness:
    """Metrics of a cluster, and methods that change its objects."""

    def __init__(self, client: Client, registry: MetricsRegistry) -> None:
        self._client, self._registry = client, registry

    async def create(self, resource: GroupVersionResource, name: str, spec: Tree, **meta: Any) -> str:
        """Create an object. Returns its uid."""
        assert resource.kind is not None
        kind = {"apiVersion": resource.api_version, "kind": resource.kind.name}
        namespace = "default" if resource.namespaced else ""
        await self._client.create(
            resource, {**kind, "metadata": {"name": name, **meta}, "spec": spec}, namespace=namespace
        )
        return str((await self._client.get_raw(resource, namespace, name))["metadata"]["uid"])

    async def set_status(self, resource: GroupVersionResource, name: str, status: Tree, sub: str = "status") -> None:
        body = {"status": status}
        await self._client.patch(resource, body, name=name, namespace="default", subresource=sub, kind=MERGE_PATCH)

    async def delete(self, resource: GroupVersionResource, name: str) -> None:
        await self._client.delete(resource, name=name, namespace="default")

    def family(self, name: str) -> MetricFamily:
        return parse_families(b"".join(self._registry.render()).decode()).get(f"volcano_{name}", MetricFamily([]))

    async def expect(self, name: str, value: float, **labels: str) -> None:
        await wait_until(lambda: self.family(name).value(**labels) == value)


@asynccontextmanager
async def run_metrics(folder: Path) -> AsyncIterator[MetricsHarness]:
    """Run the metrics without any controller."""
    registry = MetricsRegistry()
    async with run_embedded_cluster(folder) as cluster, cluster.client() as client:
        await create_crds(client, await missing_crds(client))
        controllers = VolcanoControllers(client, only=[], counted_in=registry)
        running = asyncio.create_task(controllers.run())
        try:
            await controllers.wait_synced()
            yield MetricsHarness(client, registry)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@async_test
async def test_groups_by_queue_and_phase(tmp_path: Path) -> None:
    async with run_metrics(tmp_path) as harness:
        await harness.create(QUEUES, "gold", {"weight": 1})
        await harness.create(POD_GROUPS, "a", {"minMember": 1, "queue": "gold"})
        await harness.create(POD_GROUPS, "b", {"minMember": 1, "queue": "gold"})
        await harness.set_status(POD_GROUPS, "b", {"phase": "Running"}, sub="")
        await harness.expect("queue_pod_group_running_count", 1, queue_name="gold")
        await harness.expect("queue_pod_group_pending_count", 1, queue_name="gold")
        await harness.set_status(POD_GROUPS, "a", {"phase": "Inqueue"}, sub="")
        await harness.expect("queue_pod_group_inqueue_count", 1, queue_name="gold")
        assert harness.family("queue_pod_group_pending_count").value(queue_name="gold") == 0


@async_test
async def test_jobs_flows_and_pods(tmp_path: Path) -> None:
    async with run_metrics(tmp_path) as harness:
        uid = await harness.create(VC_JOBS, "train", {"queue": "gold", "tasks": TASKS})
        owner = {"apiVersion": VC_JOBS.api_version, "kind": "Job", "name": "train", "controller": True}
        await harness.create(PODS, "train-w-0", POD_SPEC, ownerReferences=[{**owner, "uid": uid}])
        await harness.set_status(VC_JOBS, "train", {"state": {"phase": "Running"}})
        await harness.set_status(VC_JOBS, "train", {"state": {"phase": "Completed"}})
        await harness.set_status(VC_JOBS, "train", {"succeeded": 1})  # the phase stays
        await harness.expect("job_completed_phase_count", 1, job_name="default/train", queue_name="gold")
        await harness.expect("controller_job_to_pod_creation_latency_milliseconds", 1)
        await harness.create(JOB_FLOWS, "flow", {"flows": [], "jobRetainPolicy": "retain"})
        await harness.set_status(JOB_FLOWS, "flow", {"state": {"phase": "Failed"}})
        await harness.expect("jobflow_failed_phase_count", 1, jobflow_namespace="default")
        await harness.delete(VC_JOBS, "train")
        await wait_until(lambda: harness.family("job_completed_phase_count").values == {})
        assert harness.family("job_failed_phase_count").values == {}
