"""Volcano's queues, groups, cron jobs, flows and hypernodes on both API servers, and with refused writes."""

from __future__ import annotations

import asyncio
import itertools
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bayplan.client import JSON_PATCH, MERGE_PATCH, GroupVersionResource, load_connection_config
from bayplan.controllers import RUNS_FOR
from bayplan.controllers.core.api_types import CONFIG_MAPS, NODES, PODS, REPLICA_SETS, STATEFUL_SETS
from bayplan.controllers.volcano.hyper_nodes import CONFIG_KEY, CONFIG_NAME, NAMESPACE
from bayplan.controllers.volcano.resources import (
    COMMANDS,
    HYPER_NODES,
    JOB_FLOWS,
    JOB_TEMPLATES,
    POD_GROUPS,
    QUEUES,
    VC_CRON_JOBS,
    VC_JOBS,
)
from bayplan.objects.meta import format_time
from cluster.run import Cluster
from support.builders.volcano_manifests import job, task
from support.fakes.fault_proxy import ProxiedRequest, ProxyFault, refusal, run_fault_proxy
from support.harness.volcano_controllers import VolcanoControllersHarness, async_test, phase_of, run_controllers

Tree = dict[str, Any]
NAMESPACES = GroupVersionResource("", "v1", "namespaces", namespaced=False)
QUICKLY = {RUNS_FOR: "100ms"}


def state_of(queue: Tree) -> str:
    return str((queue.get("status") or {}).get("state") or "")


async def new_queue(here: VolcanoControllersHarness, name: str, **spec: Any) -> Tree:
    await here.make(QUEUES, {"metadata": {"name": name}, "spec": spec})
    return await here.until(QUEUES, name, lambda queue: state_of(queue) == "Open" and queue["spec"].get("parent"))


async def order(here: VolcanoControllersHarness, action: str, queue: str) -> None:
    found = await here.get(QUEUES, queue)
    target = {"apiVersion": QUEUES.api_version, "kind": "Queue", "name": queue, "uid": found["metadata"]["uid"]}
    await here.make(COMMANDS, {"metadata": {"generateName": "c-"}, "action": action, "target": target})


# Queues.


@async_test
async def test_a_queue_is_closed_when_its_groups_are_gone(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        name = f"q-{namespace}"[:60]
        assert (await new_queue(here, name))["spec"]["parent"] == "root"
        await here.make(POD_GROUPS, {"metadata": {"name": "waiting"}, "spec": {"queue": name, "minMember": 1}})
        await here.until(POD_GROUPS, "waiting", lambda group: group.get("status", {}).get("phase") == "Inqueue")
        await order(here, "CloseQueue", name)
        await here.until(QUEUES, name, lambda queue: state_of(queue) == "Closing")
        await here.client.delete(POD_GROUPS, namespace=namespace, name="waiting")
        await here.until(QUEUES, name, lambda queue: state_of(queue) == "Closed")
        await order(here, "OpenQueue", name)
        await here.until(QUEUES, name, lambda queue: state_of(queue) == "Open")
        assert await here.list(COMMANDS) == []
        await here.client.delete(QUEUES, name=name)


@async_test
async def test_children_close_and_open_with_their_parent(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        top, child, own = (f"{kind}-{namespace}"[:60] for kind in ("top", "child", "own"))
        await new_queue(here, top)
        await new_queue(here, child, parent=top)
        await new_queue(here, own, parent=top)
        await order(here, "CloseQueue", own)
        await here.until(QUEUES, own, lambda queue: state_of(queue) == "Closed")
        await order(here, "CloseQueue", top)
        closed = await here.until(QUEUES, child, lambda queue: state_of(queue) == "Closed")
        assert closed["metadata"]["annotations"]["volcano.sh/closed-by-parent"] == "true"
        await order(here, "OpenQueue", child)
        await here.until(QUEUES, top, lambda queue: state_of(queue) == "Closed")
        await order(here, "OpenQueue", top)
        await here.until(QUEUES, child, lambda queue: state_of(queue) == "Open")
        assert state_of(await here.get(QUEUES, own)) == "Closed"  # that one was closed explicitly
        for name in (child, own, top):
            await here.client.delete(QUEUES, name=name)


@async_test
async def test_queues_in_a_cycle_block_no_other_queue(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        one, other = (f"{kind}-{namespace}"[:60] for kind in ("one", "other"))
        await new_queue(here, one, parent=other)
        await new_queue(here, other, parent=one)
        await order(here, "CloseQueue", one)
        await here.until(QUEUES, one, lambda queue: state_of(queue) == "Closed")
        assert state_of(await here.get(QUEUES, other)) == "Open"
        await here.make(VC_JOBS, job("train", task("worker"), queue=other))
        await here.job("train", "Running")
        for name in (one, other):
            await here.client.delete(QUEUES, name=name)


@async_test
async def test_queues_in_a_cycle_report_the_cycle(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        one, other, low, alone = (f"{kind}-{namespace}"[:60] for kind in ("one", "other", "low", "alone"))
        for name, parent in ((one, other), (other, one), (low, one), (alone, alone)):
            await new_queue(here, name, parent=parent)
        everywhere = VolcanoControllersHarness(here.client, "default")
        for name, words in (
            (other, f"is below itself: {other} > {one} > {other}"),
            (low, f"is below queues that are below themselves: {one} > {other} > {one}"),
            (alone, f"is below itself: {alone} > {alone}"),
        ):
            said = await everywhere.events(name, "InvalidHierarchy")
            assert said == [f"queue {name} {words}; give one of them another parent"]
        for name in (low, one, other, alone):
            await here.client.delete(QUEUES, name=name)


# Pod groups of bare pods.


def pod(name: str, **annotations: str) -> Tree:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "250m"}}}
    return {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"schedulerName": "volcano", "containers": [container]},
    }


@async_test
async def test_a_bare_pod_gets_a_group_of_its_own(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        made = await here.make(PODS, pod("alone", **{"scheduling.volcano.sh/queue-name": "default"}))
        await here.running("alone")
        group = await here.get(POD_GROUPS, f"podgroup-{made['metadata']['uid']}")
        assert (group["spec"]["minMember"], group["spec"]["queue"]) == (1, "default")
        assert group["spec"]["minResources"]["requests.cpu"] == "250m"
        assert group["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]


@async_test
async def test_a_pod_that_names_a_group_is_left_alone(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace, stand_in=False) as here:
        await here.make(PODS, pod("theirs", **{"scheduling.k8s.io/group-name": "elsewhere"}))
        other = await here.make(PODS, pod("ours"))
        await here.until(POD_GROUPS, f"podgroup-{other['metadata']['uid']}", bool)
        assert [each["metadata"]["name"] for each in await here.list(POD_GROUPS)] == [
            f"podgroup-{other['metadata']['uid']}"
        ]


@async_test
async def test_pods_of_a_replica_set_share_a_group(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        template = {**pod("x"), "metadata": {"labels": {"app": "web"}}}
        spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
        annotations = {"scheduling.volcano.sh/group-min-member": "2", "volcano.sh/sla-waiting-time": "1h"}
        made = await here.make(REPLICA_SETS, {"metadata": {"name": "web", "annotations": annotations}, "spec": spec})
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": made["metadata"]["uid"]}
        for name in ("web-a", "web-b"):
            one = pod(name)
            one["metadata"] |= {"labels": {"app": "web"}, "ownerReferences": [{**owner, "controller": True}]}
            await here.make(PODS, one)
        await here.running("web-a", "web-b")
        (group,) = await here.list(POD_GROUPS)
        assert group["metadata"]["name"] == f"podgroup-{made['metadata']['uid']}"
        assert group["spec"]["minMember"] == 2
        assert group["metadata"]["annotations"] == {"volcano.sh/sla-waiting-time": "1h"}
        more = {"metadata": {"annotations": {"scheduling.volcano.sh/group-min-member": "1"}}}
        await here.client.patch(REPLICA_SETS, more, namespace=namespace, name="web", kind=MERGE_PATCH)
        await here.until(POD_GROUPS, group["metadata"]["name"], lambda g: g["spec"]["minMember"] == 1)
        await here.client.delete(POD_GROUPS, namespace=namespace, name=group["metadata"]["name"])
        lost = group["metadata"]["uid"]
        await here.until(POD_GROUPS, group["metadata"]["name"], lambda g: g["metadata"]["uid"] != lost)
        nothing = {"spec": {"replicas": 0}}
        await here.client.patch(REPLICA_SETS, nothing, namespace=namespace, name="web", kind=MERGE_PATCH)
        await here.gone(POD_GROUPS, group["metadata"]["name"])


@async_test
async def test_a_rollout_takes_the_group_to_the_queue_of_the_new_pods(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace, workloads=("statefulset-controller",)) as here:
        annotations = {"scheduling.volcano.sh/queue-name": "qa", "volcano.sh/preemptable": "true"}
        template = {**pod("x"), "metadata": {"labels": {"app": "db"}, "annotations": annotations}}
        spec = {"serviceName": "db", "replicas": 2, "selector": {"matchLabels": {"app": "db"}}, "template": template}
        made = await here.make(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": spec})
        await here.running("db-0", "db-1")
        group = await here.get(POD_GROUPS, f"podgroup-{made['metadata']['uid']}")
        assert (group["spec"]["queue"], group["metadata"]["annotations"]) == ("qa", {"volcano.sh/preemptable": "true"})
        other = {"scheduling.volcano.sh/queue-name": "qb", "volcano.sh/preemptable": None}
        rollout = {"spec": {"template": {"metadata": {"annotations": other}}}}
        await here.client.patch(STATEFUL_SETS, rollout, namespace=namespace, name="db", kind=MERGE_PATCH)
        moved = await here.until(POD_GROUPS, group["metadata"]["name"], lambda g: g["spec"]["queue"] == "qb")
        assert (moved["metadata"]["uid"], moved["metadata"].get("annotations") or {}) == (group["metadata"]["uid"], {})
        assert moved["status"]["phase"] == group["status"]["phase"]


# Cron jobs.


def cron(name: str, **spec: Any) -> Tree:
    template = {"spec": job("x", task("worker", annotations=QUICKLY))["spec"]}
    return {"metadata": {"name": name}, "spec": {"schedule": "@every 1s", "jobTemplate": template, **spec}}


@async_test
async def test_a_cron_job_creates_jobs_and_deletes_old_ones(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        await here.make(VC_CRON_JOBS, cron("tick", schedule="* * * * *", successfulJobsHistoryLimit=1))
        found = []
        for minutes in (3, 2, 1):  # as if it had existed since then
            await back_dated(here, "tick", minutes)
            tick = await here.until(VC_CRON_JOBS, "tick", lambda c, n=minutes: served(c, n))
            found.append(tick["status"]["lastScheduleTime"])
        names = await jobs_of(here, "tick")
        (last,) = names
        assert found == sorted(found)
        assert (await here.job(last, "Completed"))["metadata"]["annotations"]["volcano.sh/cronjob-scheduled-timestamp"]
        tick = await here.until(VC_CRON_JOBS, "tick", lambda c: c["status"].get("lastSuccessfulTime"))
        assert not tick["status"].get("active")


async def back_dated(here: VolcanoControllersHarness, name: str, minutes: int) -> None:
    """Set the last schedule time of a cron job some minutes back."""
    then = format_time(datetime.now(UTC) - timedelta(minutes=minutes))
    await here.client.patch(
        VC_CRON_JOBS,
        msgspec.json.encode([{"op": "add", "path": "/status", "value": {"lastScheduleTime": then}}]),
        namespace=here.namespace,
        name=name,
        subresource="status",
        kind=JSON_PATCH,
    )


def served(found: Tree, minutes: int) -> bool:
    """Whether the schedule time of this minute was handled."""
    last = datetime.fromisoformat(found["status"]["lastScheduleTime"])
    return datetime.now(UTC) - last < timedelta(minutes=1) or minutes == 0


async def jobs_of(here: VolcanoControllersHarness, name: str) -> list[str]:
    """The ended jobs of a cron job, once all of its jobs have ended."""
    await here.until(VC_CRON_JOBS, name, lambda c: not c["status"].get("active"))
    while True:
        jobs = await here.list(VC_JOBS)
        if len(jobs) == 1 and all(phase_of(each) == "Completed" for each in jobs):
            return [each["metadata"]["name"] for each in jobs]
        await asyncio.sleep(0.05)


@async_test
async def test_a_cron_job_that_may_not_overlap_waits(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        lasting = {"spec": job("x", task("worker"))["spec"]}
        await here.make(VC_CRON_JOBS, cron("tick", concurrencyPolicy="Forbid", jobTemplate=lasting))
        tick = await here.until(VC_CRON_JOBS, "tick", lambda c: (c.get("status") or {}).get("active"))
        notes = await here.events("tick", "ForbidConcurrent")
        assert notes == ["Skipping job creation because another job is already running"]
        assert [each["name"] for each in tick["status"]["active"]] == [
            each["metadata"]["name"] for each in await here.list(VC_JOBS)
        ]
        await here.client.patch(
            VC_CRON_JOBS, {"spec": {"suspend": True}}, namespace=namespace, name="tick", kind=MERGE_PATCH
        )


@async_test
async def test_an_invalid_schedule_is_reported(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        await here.make(VC_CRON_JOBS, cron("never", schedule="every now and then"))
        notes = await here.events("never", "UnParseableCronJobSchedule")
        assert notes == ["unparseable schedule for cronjob: schedule is not a valid cron expression"]
        assert await here.list(VC_JOBS) == []


# Flows.


@async_test
async def test_a_flow_runs_its_steps_in_order(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        flows = [{"name": "a"}, {"name": "b", "dependsOn": {"targets": ["a"]}}]
        await here.make(
            JOB_FLOWS, {"metadata": {"name": "night"}, "spec": {"flows": flows, "jobRetainPolicy": "retain"}}
        )
        waits = await here.events("night", "TemplateNotFound")
        assert waits == [f"there is no JobTemplate a in namespace {namespace}; the step waits for it"]
        for name in "ab":
            spec = job("x", task("worker", annotations=QUICKLY))["spec"]
            await here.make(JOB_TEMPLATES, {"metadata": {"name": name}, "spec": spec})
        done = await here.until(JOB_FLOWS, "night", lambda flow: phase_of(flow) == "Succeed")
        assert done["status"]["completedJobs"] == ["night-a", "night-b"]
        first, second = [await here.job(f"night-{name}", "Completed") for name in "ab"]
        assert second["metadata"]["creationTimestamp"] >= first["status"]["state"]["lastTransitionTime"]
        assert second["metadata"]["labels"]["volcano.sh/createdByJobFlow"] == f"{namespace}.night"
        template = await here.until(JOB_TEMPLATES, "a", lambda t: t.get("status"))
        assert template["status"]["jobDependsOnList"] == ["night-a"]


@async_test
async def test_a_flow_whose_job_fails_fails(cluster: Cluster, namespace: str) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        await here.make(JOB_TEMPLATES, {"metadata": {"name": "a"}, "spec": job("x", task("worker"))["spec"]})
        flows = [{"name": "a"}, {"name": "b", "dependsOn": {"targets": ["a"]}}]
        await here.make(
            JOB_FLOWS, {"metadata": {"name": "night"}, "spec": {"flows": flows, "jobRetainPolicy": "retain"}}
        )
        await here.running("night-a-worker-0")
        await here.end("night-a-worker-0", exit_code=1)
        failed = await here.until(JOB_FLOWS, "night", lambda flow: phase_of(flow) == "Failed")
        assert failed["status"]["failedJobs"] == ["night-a"]


# Hypernodes.


@async_test
async def test_labels_of_nodes_become_hypernodes(cluster: Cluster, namespace: str) -> None:
    labels = ["zone", "rack"]
    keys = [f"{each}.{namespace}"[:60] for each in labels]
    types = {"net": [*({"nodeLabel": key} for key in keys), {"nodeLabel": "kubernetes.io/hostname"}]}
    source = {"source": "label", "enabled": True, "config": {"networkTopologyTypes": types}}
    text = msgspec.json.encode({"networkTopologyDiscovery": [source]}).decode()
    async with run_controllers(cluster.target(), namespace, nodes=4) as here:
        nodes = [f"{namespace[:40]}-node-{i}" for i in range(4)]
        for index, name in enumerate(nodes):
            marks = {keys[0]: "z", keys[1]: f"r{index // 2}"}
            await here.client.patch(NODES, {"metadata": {"labels": marks}}, name=name)
        system = VolcanoControllersHarness(here.client, NAMESPACE)
        if NAMESPACE not in {each["metadata"]["name"] for each in await here.list(NAMESPACES)}:
            await here.make(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        await system.make(CONFIG_MAPS, {"metadata": {"name": CONFIG_NAME}, "data": {CONFIG_KEY: text}})
        try:
            found = await mine(here, keys, 3, members=len(nodes))
            tiers = sorted((each["spec"]["tier"], each["spec"]["tierName"]) for each in found)
            assert tiers == [(1, keys[1]), (1, keys[1]), (2, keys[0])]
            racks = [each for each in found if each["spec"]["tier"] == 1]
            members = sorted(m["selector"]["exactMatch"]["name"] for each in racks for m in each["spec"]["members"])
            assert members == nodes
            counted = await here.until(HYPER_NODES, racks[0]["metadata"]["name"], lambda h: h.get("status"))
            assert counted["status"]["nodeCount"] == 2
            for name in nodes[2:]:
                await here.client.patch(NODES, {"metadata": {"labels": {keys[1]: "r0"}}}, name=name)
            await mine(here, keys, 2)
        finally:
            for name in nodes:
                gone = {"metadata": {"labels": dict.fromkeys(keys)}}
                await here.client.patch(NODES, gone, name=name, kind=MERGE_PATCH)
            await mine(here, keys, 0)
            await here.client.delete(CONFIG_MAPS, namespace=NAMESPACE, name=CONFIG_NAME)


async def mine(here: VolcanoControllersHarness, keys: list[str], count: int, *, members: int = 0) -> list[Tree]:
    """The hypernodes of these labels, once there are `count` with the expected nodes in the first tier: a watch may
    deliver the last nodes after the creation of the hypernodes.
    """
    while True:
        found = [each for each in await here.list(HYPER_NODES) if each["spec"].get("tierName") in keys]
        known = sum(len(each["spec"]["members"]) for each in found if each["spec"]["tier"] == 1)
        if len(found) == count and known >= members:
            return found
        await asyncio.sleep(0.05)


# A server that refuses writes.


@pytest.mark.parametrize("answer", [(500, "InternalError"), (409, "Conflict")], ids=["fails", "conflicts"])
@async_test
async def test_refused_writes_lose_nothing(
    cluster: Cluster, namespace: str, tmp_path: Path, answer: tuple[int, str]
) -> None:
    counter = itertools.count()

    def third(ask: ProxiedRequest) -> bool:
        return ask.method != "GET" and "/events" not in ask.path and next(counter) % 3 == 2

    with run_fault_proxy(cluster, tmp_path) as proxy:
        proxy.add(ProxyFault(third, refuse=refusal(*answer)))
        through = load_connection_config(proxy.kubeconfig(), env=os.environ)
        async with run_controllers(cluster.target(), namespace, through=through) as here:
            restart = [{"event": "PodFailed", "action": "RestartJob"}]
            tree = job("train", task("worker", 6), plugins={"svc": [], "ssh": [], "env": []}, policies=restart)
            await here.make(VC_JOBS, tree)
            pods = [f"train-worker-{i}" for i in range(6)]
            before = await here.running(*pods)
            await here.job("train", "Running")
            await here.end(pods[2], exit_code=1)
            await here.pods(
                lambda now: (
                    set(now) == set(pods)
                    and all(now[p]["metadata"]["uid"] != before[p]["metadata"]["uid"] for p in pods)
                    and all(now[p]["status"]["phase"] == "Running" for p in pods)
                )
            )
            again = await here.job("train", "Running")
            assert (again["status"]["retryCount"], again["status"]["version"]) == (1, 1), again["status"]
            for name in pods:
                await here.end(name)
            done = await here.job("train", "Completed")
            assert done["status"]["succeeded"] == 6
            await here.make(PODS, pod("alone"))
            await here.running("alone")
