"""A cluster in one process: gangs and single pods run, and a binder binds pods."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bayplan.apiserver.embedded import credentials_for
from bayplan.app.batch import BatchSettings
from bayplan.app.cluster import ClusterOptions, InProcessCluster, SchedulerSetup
from bayplan.app.combined import CombinedEngines
from bayplan.batch.config.scheduler_conf import load_conf
from bayplan.binder.gpu.reservations import DEVICE_INDEX_ANNOTATION
from bayplan.client import MERGE_PATCH, Client, GroupVersionResource, Selection, resource_of
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.reservation_settings import ReservationSettings
from bayplan.controllers import NodePool, PodBehavior, nodes_of
from bayplan.controllers.core.api_types import PODS
from bayplan.controllers.volcano.resources import VC_JOBS
from bayplan.errors import AlreadyExists, NotFound
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import kind_of
from bayplan.testing import make_pod
from support.builders.batch_engines import GANGS
from support.builders.framework import replace_fields
from support.fakes.http_server import FakeHttpServer, Reply
from support.harness.async_tests import async_test

Tree = dict[str, Any]
POD_SPEC: Tree = {"containers": [{"name": "main", "image": "main", "resources": {"requests": {"cpu": "1"}}}]}
JOB: Tree = {
    "apiVersion": VC_JOBS.api_version,
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "schedulerName": "volcano",
        "minAvailable": 2,
        "tasks": [{"name": "w", "replicas": 2, "template": {"spec": POD_SPEC}}],
    },
}
BY_BINDER = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint:
      enabled: [{name: BindRequestBinder}]
      disabled: [{name: DefaultBinder}]
"""
REQUESTS = resource_of(kind_of(BindRequest))
POD: Tree = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "single"}, "spec": POD_SPEC}


def cluster_options(folder: Path, scheduler: SchedulerSetup) -> ClusterOptions:
    return ClusterOptions(
        credentials=credentials_for(folder, "127.0.0.1"),
        nodes=nodes_of([NodePool.parse("2:cpu=4")], 0),
        pod_lifecycle=PodBehavior(starts_after_s=0.0),
        scheduler=scheduler,
    )


async def wait_running(client: Client, *names: str) -> list[Tree]:
    """Wait until all pods with these names run, and return them."""
    found: dict[str, Tree] = {}
    while len(found) < len(names):
        for name in sorted({*names} - {*found}):
            try:
                pod = await client.get_raw(PODS, "default", name)
            except NotFound:
                continue
            if pod["status"].get("phase") == "Running":
                found[name] = pod
        await asyncio.sleep(0.01)
    return [found[name] for name in names]


@async_test
async def test_a_gang_and_a_single_pod_run(tmp_path: Path) -> None:
    plan = cluster_options(tmp_path, SchedulerSetup.from_text(batch=BatchSettings()))
    async with InProcessCluster(plan) as cluster, cluster.client() as client:
        await cluster.ready()
        assert cluster.binder is None
        await client.create(VC_JOBS, JOB, namespace="default")
        await client.create(PODS, POD, namespace="default")
        pods = await wait_running(client, "single", "train-w-0", "train-w-1")
        assert [pod["spec"]["schedulerName"] for pod in pods] == ["default-scheduler", "volcano", "volcano"]


@async_test
async def test_a_scheduler_with_bind_requests_gets_the_crd_and_a_binder(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(60),
        InProcessCluster(cluster_options(tmp_path, SchedulerSetup.from_text(BY_BINDER))) as cluster,
    ):
        await cluster.ready()
        async with cluster.client() as client:
            await client.create(PODS, POD, namespace="default")
            await wait_running(client, "single")
            request = await client.get_raw(REQUESTS, "default", "single")
            assert request["spec"]["podName"] == "single"


SHARING = BY_BINDER.replace("{name: BindRequestBinder}", "{name: GpuSharing}, {name: BindRequestBinder}")
RESERVATION_NAMESPACE = "gpu-holders"


@async_test
async def test_binder_and_scheduler_use_the_reservation_namespace_of_the_settings(tmp_path: Path) -> None:
    own = BayplanSettings(resource_reservation=ReservationSettings(namespace=RESERVATION_NAMESPACE))
    (node,) = nodes_of([NodePool.parse("1:cpu=4,nvidia.com/gpu=2")], 0)
    node["metadata"]["labels"]["nvidia.com/gpu.memory"] = "16000"
    plan = replace(cluster_options(tmp_path, SchedulerSetup.from_text(SHARING, own=own)), nodes=[node])
    fraction = {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": "fraction-gpu"}
    gpu_resources = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    whole = {"containers": [{"name": "main", "image": "main", "resources": gpu_resources}]}
    async with asyncio.timeout(60), InProcessCluster(plan) as cluster, cluster.client() as client:
        await cluster.ready()
        with suppress(AlreadyExists):
            await client.create(
                GroupVersionResource("", "v1", "namespaces", namespaced=False),
                {"metadata": {"name": RESERVATION_NAMESPACE}},
            )
        await client.create(
            PODS, {**POD, "metadata": {"name": "fraction", "annotations": fraction}}, namespace="default"
        )
        while not (holders := (await client.list(PODS, Selection(namespace=RESERVATION_NAMESPACE))).items):
            await asyncio.sleep(0.01)
        annotation = {"metadata": {"annotations": {DEVICE_INDEX_ANNOTATION: "GPU-7"}}}
        name = holders[0].metadata.name  # type: ignore[union-attr]
        await client.patch(PODS, annotation, name=name, namespace=RESERVATION_NAMESPACE, kind=MERGE_PATCH)
        await wait_running(client, "fraction")
        # Without knowledge of the reservation, the scheduler would hold back one more device for the group.
        await client.create(PODS, {**POD, "metadata": {"name": "whole"}, "spec": whole}, namespace="default")
        (whole_pod,) = await wait_running(client, "whole")
        assert whole_pod["spec"]["nodeName"] == node["metadata"]["name"]


@async_test
async def test_sessions_with_bind_requests_get_a_binder(tmp_path: Path) -> None:
    batch = BatchSettings(bayplan_settings=BayplanSettings(bind_requests=True))
    async with (
        asyncio.timeout(60),
        InProcessCluster(cluster_options(tmp_path, SchedulerSetup.from_text(batch=batch))) as cluster,
    ):
        await cluster.ready()
        async with cluster.client() as client:
            await client.create(VC_JOBS, JOB, namespace="default")
            await wait_running(client, "train-w-0", "train-w-1")
            assert await client.get_raw(REQUESTS, "default", "train-w-0")


@async_test
async def test_sessions_call_an_extender_on_the_loop_of_the_process(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    async with asyncio.timeout(60), FakeHttpServer(lambda _: Reply(200, {"status": "", "code": 0})) as server:
        extender = f"""
- plugins:
  - name: extender
    arguments:
      extender.urlPrefix: {server.url}
      extender.httpTimeout: 60s
      extender.predicateVerb: predicate
"""
        setup = SchedulerSetup.from_text(batch=BatchSettings(conf=load_conf(GANGS + extender.lstrip("\n"))))
        async with InProcessCluster(cluster_options(tmp_path, setup)) as cluster:
            await cluster.ready()
            async with cluster.client() as client:
                await client.create(VC_JOBS, JOB, namespace="default")
                await wait_running(client, "train-w-0", "train-w-1")
            assert "session" in new_threads(threads)
            assert "blocking-posts" not in new_threads(threads)
        assert {each.path for each in server.requests} == {"/predicate"}
        assert "session" not in new_threads(threads)


def new_threads(known: set[threading.Thread]) -> set[str]:
    return {each.name for each in threading.enumerate() if each not in known}


@pytest.mark.parametrize("config", [None, BY_BINDER], ids=["sessions alone", "both engines"])
def test_one_of_two_engines_counts_foreign_requests_and_excludes_both_engines_pods(
    tmp_path: Path, config: str | None
) -> None:
    @async_test
    async def run() -> None:
        setup = SchedulerSetup.from_text(
            config, batch=BatchSettings(bayplan_settings=BayplanSettings(bind_requests=True))
        )
        async with asyncio.timeout(60), InProcessCluster(cluster_options(tmp_path, setup)) as cluster:
            await cluster.ready()
            assert cluster.scheduler is not None
            both = cluster.scheduler.engine_loop
            assert isinstance(both, CombinedEngines)
            counting = [
                each.foreign_requests
                for each in (both.pods.bind_requests, both.batch.event_handlers.requests)
                if each is not None
            ]
            (foreign,) = filter(None, counting)
            names = ("default-scheduler", "volcano", "kai-scheduler")
            pods = [replace_fields(make_pod("web"), spec={"scheduler_name": name}) for name in names]
            assert [foreign.is_own_pod(pod) for pod in pods] == [True, True, False]

    run()


@async_test
async def test_all_tasks_of_a_cluster_end_with_it(tmp_path: Path) -> None:
    parts = {"scheduler", "binder", "controllers", "nodes"}
    async with (
        asyncio.timeout(60),
        InProcessCluster(cluster_options(tmp_path, SchedulerSetup.from_text(BY_BINDER))) as cluster,
    ):
        await cluster.ready()
        running = [task for task in asyncio.all_tasks() if task.get_name() in parts]
        assert {task.get_name() for task in running} == parts
    assert [task.get_name() for task in running if not task.cancelled()] == []
