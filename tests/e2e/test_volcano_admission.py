"""Defaults and refusals of Volcano's webhooks: built into the embedded API server; a real one calls `bayplan
admission`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bayplan.admission.webhooks import WEBHOOKS
from bayplan.client import MERGE_PATCH
from bayplan.controllers.core.api_types import PODS
from bayplan.controllers.volcano.queues import QueueController
from bayplan.controllers.volcano.resources import POD_GROUPS, QUEUES, VC_JOBS
from bayplan.errors import ApiError, Invalid
from cluster.embedded import Embedded
from cluster.run import Cluster, ClusterError
from support.builders.volcano_manifests import job, task
from support.e2e.scheduler_process import wait_until
from support.e2e.webhooks import run_webhooks
from support.harness.volcano_controllers import VolcanoControllersHarness, async_test, run_controllers

Tree = dict[str, Any]
ALL = ",".join(door.path for door in WEBHOOKS)


async def refused(here: VolcanoControllersHarness, resource: Any, tree: Tree) -> str:
    """The message of a refused object."""
    with pytest.raises(ApiError) as fault:
        await here.make(resource, tree)
    return fault.value.details


def told(webhook: str, sentence: str) -> str:
    return f'admission webhook "{webhook}.volcano.sh" denied the request: {sentence}'


@async_test
async def judged(cluster: Cluster, namespace: str) -> list[str]:
    """Messages of refused objects that are whole sentences of a webhook."""
    said: list[str] = []
    async with run_controllers(cluster.target(), namespace, only=[QueueController.name], stand_in=False) as here:
        # A registration takes effect a moment after it was written.
        for _ in range(600):
            made = await here.make(QUEUES, {"metadata": {"generateName": "probe-"}, "spec": {}})
            await here.client.delete(QUEUES, name=made["metadata"]["name"])
            if made["spec"].get("weight") == 1:
                break
        found = await here.make(VC_JOBS, job("filled", task("worker", 2), plugins={"pytorch": []}))
        spec = found["spec"]
        assert (spec["queue"], spec["schedulerName"], spec["minAvailable"], spec["maxRetry"]) == (
            "default",
            "volcano",
            2,
            3,
        )
        assert spec["plugins"] == {"pytorch": [], "svc": []}
        said.append(await refused(here, VC_JOBS, job("bad", task("a"), task("a"))))
        said.append(await refused(here, VC_JOBS, job("lost", queue="nowhere")))
        patch = {"spec": {"queue": "root"}}
        with pytest.raises(ApiError, match="job updates may not change fields other than"):
            await here.client.patch(VC_JOBS, patch, namespace=namespace, name="filled", kind=MERGE_PATCH)
        more = {"spec": {"minAvailable": 1}}
        await here.client.patch(VC_JOBS, more, namespace=namespace, name="filled", kind=MERGE_PATCH)
        said.append(await refused(here, QUEUES, {"metadata": {"name": "self"}, "spec": {"parent": "self"}}))
        with pytest.raises(ApiError, match="`default` queue can not be deleted"):
            await here.client.delete(QUEUES, name="default")
        said.append(await refused(here, POD_GROUPS, {"metadata": {"name": "g"}, "spec": {"queue": "nowhere"}}))
        annotations = {"volcano.sh/jdb-min-available": "0"}
        container = {"name": "main", "image": "busybox"}
        body = {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [container]}}
        body["spec"]["schedulerName"] = "volcano"
        with pytest.raises(ApiError, match="it must be a positive integer"):
            await here.make(PODS, body)
        body["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-allocation-gate": "true"}
        held = (await here.make(PODS, body))["spec"].get("schedulingGates", [])
        # The embedded webhooks have their defaults: the gate is only for those that are registered.
        chosen = [] if isinstance(cluster, Embedded) else [{"name": "scheduling.volcano.sh/queue-allocation-gate"}]
        assert held == chosen
    return said


def _serves(cluster: Cluster, plural: str) -> bool:
    try:
        cluster.kubectl("get", plural)
    except ClusterError:
        return False
    return True


def test_objects_are_defaulted_and_validated(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    text = subprocess.run(
        [sys.executable, "-m", "bayplan", "crds", "--all"], capture_output=True, text=True, check=True
    ).stdout
    cluster.kubectl("apply", "-f", "-", stdin=text)
    wait_until(lambda: _serves(cluster, "queues.scheduling.volcano.sh"), "queues are served")
    missing = 'queue.scheduling.volcano.sh "nowhere" not found'
    gates = "--feature-gates=SchedulingGatesQueueAdmission=true"
    with run_webhooks(cluster, tmp_path, ALL, gates):
        assert judged(cluster, namespace) == [
            told("validatejob", "duplicated task name a;"),
            told("validatejob", f"unable to find job queue: {missing};"),
            told("validatequeue", "queue self cannot use itself as parent"),
            told("validatepodgroup", f"unable to find queue: {missing}"),
        ]


def test_a_malformed_object_is_refused_by_its_schema(cluster: Cluster, namespace: str) -> None:
    @async_test
    async def run() -> None:
        async with run_controllers(cluster.target(), namespace, only=[QueueController.name], stand_in=False) as here:
            with pytest.raises(Invalid, match=r"spec\.tasks"):
                await here.make(VC_JOBS, {"metadata": {"name": "bad"}, "spec": {"tasks": "none"}})

    run()
