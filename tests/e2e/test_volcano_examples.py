"""Volcano's own example manifests, unedited: they run to their end, or the server reports what they lack."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from bayplan.client import JSON_PATCH, MERGE_PATCH, GroupVersionResource
from bayplan.controllers.core.api_types import DEPLOYMENTS, PODS, REPLICA_SETS
from bayplan.controllers.volcano.resources import JOB_FLOWS, QUEUES, VC_CRON_JOBS, VC_JOBS
from bayplan.errors import NotFound
from bayplan.objects.meta import format_time
from cluster.run import Cluster, ClusterError
from support.e2e import volcano_examples as examples
from support.e2e.batch_harness import BatchSchedulerHarness
from support.harness.deadlines import DEADLINE_S, TEST_TIMEOUT_S
from support.harness.volcano_controllers import VolcanoControllersHarness, phase_of, run_controllers

Tree = dict[str, Any]
NAMESPACES = GroupVersionResource("", "v1", "namespaces", namespaced=False)


def manifests(name: str) -> list[Tree]:
    return [each for each in yaml.safe_load_all((examples.examples_folder() / name).read_text()) if each]


async def applied(cluster: Cluster, here: VolcanoControllersHarness, *names: str) -> VolcanoControllersHarness:
    """A namespace with these files in it, unedited; their own namespace if they name one."""
    space = f"example-{names[-1]}".lower().translate(str.maketrans("/._", "---"))[:50].strip("-")
    await here.make(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
    own = {each["metadata"].get("namespace") for name in names for each in manifests(name)} - {None}
    for name in names:
        namespace = own.copy().pop() if own else space
        path = str(examples.examples_folder() / name)
        await asyncio.to_thread(cluster.kubectl, "apply", "-n", namespace, "-f", path)
    return VolcanoControllersHarness(here.client, own.pop() if own else space)


async def ends(there: VolcanoControllersHarness, name: str) -> Tree:
    """End the pods of a job one after the other as soon as they run."""
    seen: Tree = {}
    pods: list[Tree] = []
    try:
        async with asyncio.timeout(DEADLINE_S):
            while phase_of(seen) not in ("Completed", "Failed", "Terminated"):
                await asyncio.sleep(0.1)
                seen = await there.get(VC_JOBS, name)
                pods = [
                    each
                    for each in await there.list(PODS)
                    if (each["metadata"].get("labels") or {}).get("volcano.sh/job-name") == name
                ]
                if phase_of(seen) == "Running":
                    await end_whoever_runs(there, pods)
    except TimeoutError:
        told = [{**each["metadata"], "managedFields": None, "status": each["status"]} for each in pods]
        raise AssertionError(f"job {name} does not end: {seen.get('status')}; its pods: {told}") from None
    return seen


async def end_whoever_runs(there: VolcanoControllersHarness, pods: list[Tree]) -> None:
    for pod in pods:
        if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp"):
            with suppress(NotFound):  # another pod may have ended the job
                await there.end(pod["metadata"]["name"])


def scheduled(cluster: Cluster, namespace: str, folder: Path, work: Coroutine[Any, Any, None]) -> None:
    """Run the block while both engines schedule."""
    with BatchSchedulerHarness(cluster, namespace, folder).run_combined():
        asyncio.run(asyncio.wait_for(work, TEST_TIMEOUT_S))


def test_every_example_is_classified() -> None:
    found = {str(path.relative_to(examples.examples_folder())) for path in examples.examples_folder().rglob("*.yaml")}
    assert found == examples.classified_files()


def test_jobs_run_to_their_end(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with run_controllers(cluster.target(), namespace, nodes=4, stand_in=False) as here:

            async def one(name: str) -> None:
                there = await applied(cluster, here, name)
                (tree,) = manifests(name)
                job = await ends(there, tree["metadata"]["name"])
                assert phase_of(job) == "Completed", f"{name}: {job['status']}"

            for start in range(0, len(examples.JOBS), 6):
                await asyncio.gather(*(one(name) for name in examples.JOBS[start : start + 6]))

    scheduled(cluster, namespace, tmp_path, run())


def test_hierarchies_flows_and_schedules(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with run_controllers(cluster.target(), namespace, nodes=4, stand_in=False) as here:
            jobs, (whole, steps), started = await asyncio.gather(
                hierarchy(cluster, here), flow(cluster, here), schedule(cluster, here)
            )
        assert set(jobs.values()) == {"Completed"}, jobs
        assert (phase_of(whole), set(whole["status"]["completedJobs"])) == ("Succeed", steps)
        assert phase_of(started) == "Completed"

    scheduled(cluster, namespace, tmp_path, run())


async def hierarchy(cluster: Cluster, here: VolcanoControllersHarness) -> dict[str, str]:
    """The final phase of each job in the queues of a tree."""
    there = await applied(cluster, here, *examples.HIERARCHY)
    queues, jobs = (manifests(name) for name in examples.HIERARCHY)
    names = [tree["metadata"]["name"] for tree in jobs]
    ended = {name: phase_of(await ends(there, name)) for name in names}
    for tree in queues:
        await here.client.delete(QUEUES, name=tree["metadata"]["name"])
    return ended


async def flow(cluster: Cluster, here: VolcanoControllersHarness) -> tuple[Tree, set[str]]:
    """A flow when it has succeeded, and the jobs of its steps."""
    there = await applied(cluster, here, *examples.FLOW)
    (tree,) = manifests(examples.FLOW[1])
    name = tree["metadata"]["name"]
    for step in tree["spec"]["flows"]:
        made = f"{name}-{step['name']}"
        await there.until(VC_JOBS, made, bool)
        with suppress(NotFound):  # a flow that has succeeded deletes its jobs, maybe before the last one is read
            await ends(there, made)
    done = await there.until(JOB_FLOWS, name, lambda found: phase_of(found) == "Succeed")
    await there.client.delete(JOB_FLOWS, namespace=there.namespace, name=name)
    return done, {f"{name}-{step['name']}" for step in tree["spec"]["flows"]}


async def schedule(cluster: Cluster, here: VolcanoControllersHarness) -> Tree:
    """The job that a cron job has started, at its end."""
    there = await applied(cluster, here, *examples.CRON)
    (tree,) = manifests(examples.CRON[0])
    name = tree["metadata"]["name"]
    now = datetime.now(UTC)
    # Without a wait of five minutes: it is scheduled as if it had existed for ten, and may start that late.
    late = {"spec": {"startingDeadlineSeconds": 600}}
    await there.client.patch(VC_CRON_JOBS, late, namespace=there.namespace, name=name, kind=MERGE_PATCH)
    then = {"op": "add", "path": "/status", "value": {"lastScheduleTime": format_time(now - timedelta(minutes=10))}}
    await there.client.patch(
        VC_CRON_JOBS,
        msgspec.json.encode([then]),
        namespace=there.namespace,
        name=name,
        subresource="status",
        kind=JSON_PATCH,
    )
    found = await there.until(VC_CRON_JOBS, name, lambda cron: cron["status"].get("active"))
    return await ends(there, found["status"]["active"][0]["name"])


def test_workloads_run_in_groups(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    async def run() -> None:
        own = ("deployment-controller", "replicaset-controller")
        async with run_controllers(cluster.target(), namespace, nodes=4, stand_in=False, workloads=own) as here:
            there = await applied(cluster, here, *examples.DEPLOYMENT)
            ready = await there.until(
                DEPLOYMENTS, "deploy-with-volcano", lambda each: each.get("status", {}).get("readyReplicas") == 1
            )
            assert ready["spec"]["template"]["spec"]["schedulerName"] == "volcano"
            assert ready["status"]["availableReplicas"] == 1
            await asyncio.gather(*(replicas(cluster, here, name) for name in examples.REPLICA_SETS))
            await here.client.delete(QUEUES, name="test")

    scheduled(cluster, namespace, tmp_path, run())


async def replicas(cluster: Cluster, here: VolcanoControllersHarness, name: str) -> None:
    there = await applied(cluster, here, name)
    (tree,) = manifests(name)
    count = tree["spec"]["replicas"]
    await there.until(
        REPLICA_SETS, tree["metadata"]["name"], lambda each: each.get("status", {}).get("readyReplicas") == count
    )


@pytest.mark.parametrize("number", range(len(examples.REFUSED)))
def test_invalid_examples_are_refused_with_a_reason(cluster: Cluster, namespace: str, number: int) -> None:
    name, words = list(examples.REFUSED.items())[number]

    async def run() -> None:
        async with run_controllers(cluster.target(), namespace) as here:
            await asyncio.to_thread(
                cluster.kubectl, "apply", "-n", namespace, "-f", str(Path(examples.examples_folder()) / name)
            )
            (tree,) = manifests(name)
            found = await here.until(
                VC_JOBS, tree["metadata"]["name"], lambda job: (job.get("status") or {}).get("state", {}).get("message")
            )
            assert words in found["status"]["state"]["message"]
            assert await here.list(PODS) == []

    asyncio.run(asyncio.wait_for(run(), TEST_TIMEOUT_S))


def test_missing_kinds_are_reported_by_the_server(cluster: Cluster) -> None:
    said = {}
    for name in examples.SAID_BY_THE_SERVER:
        try:
            said[name] = cluster.kubectl("apply", "--dry-run=server", "-f", str(examples.examples_folder() / name))
        except ClusterError as fault:
            said[name] = str(fault)
    wanted = ("no matches for kind", "unknown field")
    assert {name: words for name, words in said.items() if not any(each in words for each in wanted)} == {}
