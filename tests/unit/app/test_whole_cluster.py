"""A whole cluster with both engines in one process: gangs are scheduled beside single pods."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bayplan.app.batch import BatchSettings
from bayplan.app.whole_cluster import ClusterPlan, SchedulerSetup, WholeCluster
from bayplan.cluster.embedded import credentials_for
from bayplan.controllers import NodePool, PodHabits, nodes_of
from bayplan.controllers.batch.kinds import VC_JOBS
from bayplan.controllers.seen import PODS
from bayplan.errors import NotFound
from wire_server import on_loop

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
POD: Tree = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "single"}, "spec": POD_SPEC}


@on_loop
async def test_a_gang_and_a_single_pod_run(tmp_path: Path) -> None:
    plan = ClusterPlan(
        credentials=credentials_for(tmp_path, "127.0.0.1"),
        nodes=nodes_of([NodePool.parse("2:cpu=4")], 0),
        habits=PodHabits(starts_after_s=0.0),
        scheduler=SchedulerSetup.of(batch=BatchSettings()),
    )
    async with WholeCluster(plan) as cluster, cluster.client() as client:
        await cluster.ready()
        await client.create(VC_JOBS, JOB, namespace="default")
        await client.create(PODS, POD, namespace="default")
        waiting = {"single", "train-w-0", "train-w-1"}
        while waiting:
            for name in sorted(waiting):
                try:
                    pod = await client.get_raw(PODS, "default", name)
                except NotFound:
                    continue
                if pod["status"].get("phase") == "Running":
                    assert pod["spec"]["schedulerName"] == ("volcano" if name != "single" else "default-scheduler")
                    waiting.discard(name)
            await asyncio.sleep(0.01)
