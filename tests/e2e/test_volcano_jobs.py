"""Volcano jobs from their first pod to their end, on both API servers: policies, retries, commands, refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bayplan.client import MERGE_PATCH
from bayplan.controllers.core.api_types import CONFIG_MAPS, PODS, SERVICES
from bayplan.controllers.volcano.resources import COMMANDS, POD_GROUPS, QUEUES, VC_JOBS
from bayplan.errors import NotFound
from cluster.run import Cluster
from support.builders.volcano_manifests import job, task
from support.harness.volcano_controllers import VolcanoControllersHarness, async_test, phase_of, run_controllers

Tree = dict[str, Any]


def policy(action: str, **when: Any) -> list[Tree]:
    return [{"action": action, **(when or {"event": "PodFailed"})}]


async def started(here: VolcanoControllersHarness, tree: Tree) -> tuple[Tree, list[str]]:
    """A running job, and its pods."""
    name = tree["metadata"]["name"]
    await here.make(VC_JOBS, tree)
    names = [f"{name}-{each['name']}-{i}" for each in tree["spec"]["tasks"] for i in range(each["replicas"])]
    await here.running(*names)
    return await here.job(name, "Running"), names


@async_test
async def test_a_job_runs_to_its_end(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        found, pods = await started(
            here, job("train", task("ps", 1), task("worker", 2), plugins={"svc": [], "env": []})
        )
        assert found["status"]["taskStatusCount"] == {
            "ps": {"phase": {"Running": 1}},
            "worker": {"phase": {"Running": 2}},
        }
        assert found["status"]["minAvailable"] == 3
        (group,) = await here.list(POD_GROUPS)
        assert group["metadata"]["name"] == f"train-{found['metadata']['uid']}"
        assert group["spec"]["minTaskMember"] == {"ps": 1, "worker": 2}
        assert group["spec"]["minResources"]["cpu"] == "300m"
        hosts = (await here.get(CONFIG_MAPS, "train-svc"))["data"]
        assert hosts["VC_WORKER_HOSTS"] == "train-worker-0.train,train-worker-1.train"
        assert (await here.get(SERVICES, "train"))["spec"]["clusterIP"] == "None"
        pod = await here.get(PODS, "train-worker-1")
        assert pod["spec"]["hostname"] == "train-worker-1"
        assert {"name": "VC_TASK_INDEX", "value": "1"} in pod["spec"]["containers"][0]["env"]
        for name in pods:
            await here.end(name)
        done = await here.job("train", "Completed")
        assert done["status"]["succeeded"] == 3
        assert [each["status"] for each in done["status"]["conditions"]] == ["Pending", "Running", "Completed"]
        await here.gone(POD_GROUPS, group["metadata"]["name"])
        await here.gone(SERVICES, "train")


@async_test
async def test_a_job_whose_pods_fail_fails(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        _, pods = await started(here, job("train", task("worker", 2)))
        await here.end(pods[0], exit_code=1)
        await here.end(pods[1])
        failed = await here.job("train", "Failed")
        assert (failed["status"]["succeeded"], failed["status"]["failed"]) == (1, 1)


@async_test
async def test_enough_successes_complete_a_job(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        _, pods = await started(here, job("train", task("worker", 3), minSuccess=1))
        await here.end(pods[2])
        done = await here.job("train", "Completed")
        assert done["status"]["succeeded"] == 1
        left = await here.pods(lambda left: set(left) == {pods[2]})
        assert left[pods[2]]["status"]["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("action", "phase"), [("AbortJob", "Aborted"), ("TerminateJob", "Terminated"), ("CompleteJob", "Completed")]
)
@async_test
async def test_a_failed_pod_ends_the_job_as_the_policy_says(
    cluster: Cluster, namespace: str, action: str, phase: str
) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        _, pods = await started(here, job("train", task("worker", 2), policies=policy(action)))
        await here.end(pods[0], exit_code=3)
        ended = await here.job("train", phase)
        assert ended["status"]["version"] == 1
        await here.pods(lambda left: set(left) == {pods[0]})  # ended pods stay, for their logs
        notes = await here.events("train", "ExecuteAction")
        assert notes == [f"Start to execute action {action} "]


@pytest.mark.parametrize(
    ("action", "anew"),
    [
        ("RestartJob", {"train-ps-0", "train-worker-0", "train-worker-1"}),
        ("RestartTask", {"train-worker-0", "train-worker-1"}),
        ("RestartPod", {"train-worker-1"}),
    ],
)
@async_test
async def test_a_failed_pod_restarts_the_target_of_the_policy(
    cluster: Cluster, namespace: str, action: str, anew: set[str]
) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        _, pods = await started(here, job("train", task("ps"), task("worker", 2), policies=policy(action)))
        before = {name: pod["metadata"]["uid"] for name, pod in (await here.running(*pods)).items()}
        await here.end("train-worker-1", exit_code=1)
        again = await here.until(
            VC_JOBS, "train", lambda j: phase_of(j) == "Running" and j["status"].get("retryCount") == 1
        )
        after = {name: pod["metadata"]["uid"] for name, pod in (await here.running(*pods)).items()}
        assert {name for name in pods if before[name] != after[name]} == anew
        assert again["status"].get("version", 0) == (1 if action == "RestartJob" else 0)


@async_test
async def test_a_partition_is_restarted_as_one(cluster: Cluster, namespace: str) -> None:
    split = {"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1}
    async with run_controllers(cluster.target(), namespace) as here:
        tree = job("train", task("worker", 4, partitionPolicy=split), policies=policy("RestartPartition"))
        _, pods = await started(here, tree)
        before = {name: pod["metadata"]["uid"] for name, pod in (await here.running(*pods)).items()}
        await here.end("train-worker-3", exit_code=1)
        await here.until(VC_JOBS, "train", lambda j: phase_of(j) == "Running" and j["status"].get("retryCount") == 1)
        after = {name: pod["metadata"]["uid"] for name, pod in (await here.running(*pods)).items()}
        assert {name for name in pods if before[name] != after[name]} == {"train-worker-2", "train-worker-3"}
        (group,) = await here.list(POD_GROUPS)
        assert group["spec"]["subGroupPolicy"][0]["subGroupSize"] == 2


@async_test
async def test_a_job_has_a_maximum_of_retries(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        tree = job("train", task("worker", 1), policies=policy("RestartJob"), maxRetry=2)
        _, (pod,) = await started(here, tree)
        first = (await here.get(PODS, pod))["metadata"]["uid"]
        await here.end(pod, exit_code=1)
        await here.pods(
            lambda p: pod in p and p[pod]["metadata"]["uid"] != first and p[pod]["status"]["phase"] == "Running"
        )
        await here.job("train", "Running")
        await here.end(pod, exit_code=1)
        failed = await here.job("train", "Failed")
        assert failed["status"]["retryCount"] == 2


@async_test
async def test_exit_codes_and_lost_pods_have_policies_too(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        by_code = [*policy("CompleteJob", exitCode=7), *policy("AbortJob", exitCode=8)]
        _, (pod,) = await started(here, job("coded", task("worker"), policies=by_code))
        await here.end(pod, exit_code=7)
        coded = await here.job("coded", "Completed")
        assert phase_of(coded) == "Completed"
        _, (pod,) = await started(
            here, job("lost", task("worker"), policies=policy("TerminateJob", event="PodEvicted"))
        )
        await here.client.delete(PODS, namespace=namespace, name=pod)
        lost = await here.job("lost", "Terminated")
        assert phase_of(lost) == "Terminated"
        _, (pod,) = await started(here, job("plain", task("worker")))
        before = await here.get(PODS, pod)
        await here.client.delete(PODS, namespace=namespace, name=pod)
        again = await here.pods(
            lambda pods: (
                pods.get(pod, {}).get("status", {}).get("phase") == "Running"
                and pods[pod]["metadata"]["uid"] != before["metadata"]["uid"]
            )
        )
        assert again[pod]["spec"]["nodeName"]  # without a policy the controller replaces it


@async_test
async def test_a_task_that_completes_may_complete_the_job(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        leading = task("chief", policies=policy("CompleteJob", event="TaskCompleted"))
        await started(here, job("train", leading, task("worker", 2)))
        await here.end("train-chief-0")
        done = await here.job("train", "Completed")
        assert done["status"]["taskStatusCount"]["chief"] == {"phase": {"Succeeded": 1}}
        left = await here.pods(lambda left: set(left) == {"train-chief-0"})
        assert left["train-chief-0"]["status"]["phase"] == "Succeeded"


@async_test
async def test_a_task_waits_for_another(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        later = task("worker", 2, dependsOn={"name": ["ps"]})
        await here.make(VC_JOBS, job("train", task("ps", 1), later))
        await here.running("train-ps-0", "train-worker-0", "train-worker-1")
        pods = await here.pods(lambda p: len(p) == 3)
        begun = next(c for c in pods["train-ps-0"]["status"]["conditions"] if c["type"] == "Ready")[
            "lastTransitionTime"
        ]
        assert all(pods[f"train-worker-{i}"]["metadata"]["creationTimestamp"] >= begun for i in range(2))


@async_test
async def test_a_job_grows_and_shrinks(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        tree, _ = await started(here, job("train", task("worker", 1), minAvailable=1, plugins={"svc": []}))
        for count in (3, 1):
            tasks = [{**tree["spec"]["tasks"][0], "replicas": count, "minAvailable": 1}]
            await here.client.patch(
                VC_JOBS, {"spec": {"tasks": tasks}}, namespace=namespace, name="train", kind=MERGE_PATCH
            )
            wanted = {f"train-worker-{i}" for i in range(count)}
            await here.pods(lambda pods, wanted=wanted: set(pods) == wanted)
            hosts = await here.until(CONFIG_MAPS, "train-svc", lambda c, n=count: c["data"]["VC_WORKER_NUM"] == str(n))
            assert hosts["data"]["VC_WORKER_HOSTS"].count(",") == count - 1


async def command(here: VolcanoControllersHarness, action: str, name: str) -> None:
    found = await here.get(VC_JOBS, name)
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": name, "uid": found["metadata"]["uid"]}
    await here.make(COMMANDS, {"metadata": {"generateName": "c-"}, "action": action, "target": target})


@async_test
async def test_a_job_is_suspended_and_resumed_by_command(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        _, pods = await started(here, job("train", task("worker", 2)))
        await command(here, "AbortJob", "train")
        await here.job("train", "Aborted")
        await here.pods(lambda left: not left)
        assert await here.list(COMMANDS) == []
        await command(here, "ResumeJob", "train")
        again = await here.job("train", "Running")
        assert again["status"]["retryCount"] == 1
        await here.running(*pods)


@async_test
async def test_a_finished_job_is_deleted_after_its_ttl(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        _, (pod,) = await started(here, job("train", task("worker"), ttlSecondsAfterFinished=0))
        await here.end(pod)
        await here.gone(VC_JOBS, "train")
        left = [each for each in await here.list(VC_JOBS) if not each["metadata"].get("deletionTimestamp")]
        assert left == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"minAvailable": 9}, "job 'minAvailable' should not be greater than total replicas in tasks;", id="too-many"
        ),
        pytest.param({"plugins": {"ray": []}}, "job twice doesn't have head task head", id="headless"),
    ],
)
@async_test
async def test_an_invalid_job_is_reported(cluster: Cluster, namespace: str, spec: Tree, message: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        await here.make(VC_JOBS, job("twice", task("a"), task("b"), **spec))
        found = await here.until(VC_JOBS, "twice", lambda j: (j.get("status") or {}).get("state", {}).get("message"))
        assert found["status"]["state"]["message"] == message
        assert await here.list(PODS) == []
        assert await here.events("twice", "JobStatusError") == [message]
        assert await here.list(PODS) == []


@async_test
async def test_a_foreign_pod_with_a_name_of_the_job_is_reported(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        container = {"name": "main", "image": "busybox"}
        await here.make(PODS, {"metadata": {"name": "train-worker-1"}, "spec": {"containers": [container]}})
        await here.make(VC_JOBS, job("train", task("worker", 2)))
        (said,) = await here.events("train", "FailedCreatePod")
        assert said == 'Error creating pods: pods "train-worker-1" already exists'
        await here.client.delete(PODS, namespace=namespace, name="train-worker-1", grace_s=0)
        await here.job("train", "Running")


@async_test
async def test_a_job_waits_for_its_queue(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        await here.make(VC_JOBS, job("train", task("worker"), queue=f"{namespace}-q"))
        sentence = f"queue {namespace}-q does not exist; the job starts when it does"
        assert await here.events("train", "JobStatusError") == [sentence]
        await here.make(QUEUES, {"metadata": {"name": f"{namespace}-q"}, "spec": {}})
        await here.job("train", "Running")
        # Deleting a queue leaves its jobs as they are.
        await here.client.delete(QUEUES, name=f"{namespace}-q")
        await here.end("train-worker-0")
        await here.job("train", "Completed")


@async_test
async def test_a_deleted_job_is_left_alone(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        await started(here, job("train", task("worker")))
        await here.client.delete(VC_JOBS, namespace=namespace, name="train", propagation="Background")
        with pytest.raises(NotFound):
            await here.get(VC_JOBS, "train")
        await started(here, job("other", task("worker")))  # the controllers continue
        await asyncio.sleep(0)
