"""Pending pods cause no writes for ten minutes: `bayplan run --binder`, controllers and nodes on virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import CORE_EVENTS as EVENTS
from bayplan.client import GroupVersionResource, resource_of
from bayplan.client.http.transport import Transport
from bayplan.controllers import NodePool, nodes_of
from bayplan.controllers.core.api_types import (
    DEPLOYMENTS,
    JOBS,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_QUOTAS,
    SERVICES,
    STATEFUL_SETS,
)
from bayplan.controllers.core.api_types import NODES as NODE_OBJECTS
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
from bayplan.errors import Forbidden
from bayplan.objects.kai.bind_request import HANDLED_BY_BAYPLAN, HANDLED_BY_LABEL, BindRequest
from bayplan.objects.kinds import kind_of
from bayplan.objects.volcano.types import Numatopology
from bayplan.objects.workloads import PodGroup
from support.builders.volcano_manifests import container, job, queue
from support.harness.virtual_time import virtual_time_test
from support.harness.virtual_time_cluster import VirtualCluster, virtual_cluster

Tree = dict[str, Any]
NODES = nodes_of([NodePool.parse("4:cpu=4")], 0)
REQUESTS, TOPOLOGIES = resource_of(kind_of(BindRequest)), resource_of(kind_of(Numatopology))
WORKLOAD_GROUPS, CRITICAL = resource_of(kind_of(PodGroup)), "system-cluster-critical"
SETTLED_S, QUIET_S = 60.0, 600.0

ADMITTING = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
"""
EVICTING = """\
actions: "allocate, backfill, preempt, reclaim"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: drf
  - name: predicates
  - name: capacity
  - name: nodeorder
  - name: binpack
  - name: network-topology-aware
"""


def pod(name: str, cpu: str = "1", **spec: Any) -> Tree:
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": {"containers": [container(cpu)], **spec}}


def gang(name: str, size: int, cpu: str = "1", **spec: Any) -> Tree:
    """A Volcano Job whose pods must all run."""
    template = {"spec": {"restartPolicy": "Never", "containers": [container(cpu)], **spec.pop("pod", {})}}
    return job(name, {"name": "w", "replicas": size, "template": template}, **{"minAvailable": size, **spec})


def single_pods() -> Iterable[Tree]:
    """Pending pods of the pod engine, for various reasons."""
    yield pod("too-large", "99")
    yield pod("gated", schedulingGates=[{"name": "example.com/wait"}])
    missing = {"name": "v", "persistentVolumeClaim": {"claimName": "missing"}}
    yield pod("missing-claim", volumes=[missing])
    late = {"name": "v", "persistentVolumeClaim": {"claimName": "unbound"}}
    yield pod("unbound-claim", volumes=[late])
    yield pod("missing-device", resourceClaims=[{"name": "d", "resourceClaimName": "missing"}])
    yield pod("nowhere", nodeSelector={"there": "no"})
    spread = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    yield pod("spread", topologySpreadConstraints=[{**spread, "labelSelector": {"matchLabels": {"app": "spread"}}}])


def batch_objects() -> Iterable[tuple[GroupVersionResource, Tree]]:
    """Pending gangs for various reasons, and some that run."""
    yield QUEUES, queue("lent", weight=1, state="")
    yield QUEUES, queue("poor", weight=1, state="", reclaimable=False, capability={"cpu": "1"})
    yield QUEUES, queue("shut", weight=1, state="")
    yield QUEUES, queue("above", weight=1, state="", capability={"cpu": "4"})
    yield QUEUES, queue("below", weight=1, state="", parent="above", deserved={"cpu": "2"})
    yield VC_JOBS, gang("borrowing", 6, queue="lent")  # more than its share, while no other queue asks for it
    yield VC_JOBS, gang("too-large", 20)
    yield VC_JOBS, gang("preempting", 4, "3", queue="lent", priorityClassName="system-cluster-critical")
    yield VC_JOBS, gang("over-quota", 2, queue="poor")
    yield VC_JOBS, gang("of-shut-queue", 2, queue="shut")
    yield VC_JOBS, gang("of-no-queue", 2, queue="nowhere")
    yield (
        VC_JOBS,
        gang("without-claim", 2, pod={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "no"}}]}),
    )
    yield VC_JOBS, gang("below-others", 3, "2", queue="below")
    yield VC_JOBS, gang("by-topology", 3, "3", networkTopology={"mode": "hard", "highestTierAllowed": 1})
    yield POD_GROUPS, {"metadata": {"name": "few"}, "spec": {"minMember": 5, "queue": "default"}}
    named = {"scheduling.k8s.io/group-name": "few"}
    few = pod("few-0", schedulerName="volcano")
    yield PODS, {**few, "metadata": {"name": "few-0", "annotations": named}}
    yield PODS, {**few, "metadata": {"name": "no-group", "annotations": {"scheduling.k8s.io/group-name": "nothing"}}}
    yield PODS, pod("alone", "99", schedulerName="volcano")
    for number in range(4):
        member = {"type": "Node", "selector": {"exactMatch": {"name": f"node-{number}"}}}
        yield HYPER_NODES, {"metadata": {"name": f"s{number}"}, "spec": {"tier": 1, "members": [member]}}
    absent = {"type": "Node", "selector": {"exactMatch": {"name": "absent"}}}
    yield HYPER_NODES, {"metadata": {"name": "empty"}, "spec": {"tier": 1, "members": [absent]}}
    yield TOPOLOGIES, {"metadata": {"name": "node-0"}, "spec": {"policies": {"topologyPolicy": "none"}}}
    template = gang("step", 2, "99")["spec"]
    yield JOB_TEMPLATES, {"metadata": {"name": "step"}, "spec": template}
    yield JOB_TEMPLATES, {"metadata": {"name": "next"}, "spec": template}
    flows = [{"name": "step"}, {"name": "next", "dependsOn": {"targets": ["step"]}}]
    yield JOB_FLOWS, {"metadata": {"name": "flow"}, "spec": {"flows": flows, "jobRetainPolicy": "retain"}}
    often = {"schedule": "0 0 * * *", "jobTemplate": {"spec": template}}
    yield VC_CRON_JOBS, {"metadata": {"name": "nightly"}, "spec": often}


def workloads() -> Iterable[tuple[GroupVersionResource, Tree]]:
    """Objects of other controllers with pending pods."""
    labels = {"matchLabels": {"app": "web"}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container("99")]}}
    yield (
        DEPLOYMENTS,
        {
            "metadata": {"name": "web"},
            "spec": {"replicas": 2, "selector": labels, "template": template, "progressDeadlineSeconds": 3600},
        },
    )
    yield (
        STATEFUL_SETS,
        {
            "metadata": {"name": "db"},
            "spec": {"replicas": 2, "serviceName": "db", "selector": labels, "template": template},
        },
    )
    once = {"spec": {"containers": [container("99")], "restartPolicy": "Never"}}
    yield JOBS, {"metadata": {"name": "once"}, "spec": {"template": once}}
    yield POD_DISRUPTION_BUDGETS, {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": labels}}
    yield RESOURCE_QUOTAS, {"metadata": {"name": "all"}, "spec": {"hard": {"pods": "500"}}}
    yield SERVICES, {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    size = {"requests": {"storage": "1Gi"}}
    yield (
        PERSISTENT_VOLUME_CLAIMS,
        {
            "metadata": {"name": "unbound"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": size, "storageClassName": "none"},
        },
    )


REFUSED_REQUEST = {
    "metadata": {"name": "refused", "labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}},
    "spec": {"podName": "too-large", "selectedNode": "absent", "backoffLimit": 3},
}
"""The binder cannot carry it out, and reports a failure after three attempts."""


async def fill(cluster: VirtualCluster) -> None:
    """Create all objects, the batch objects first, because the decisions of the pod engine depend on them."""
    for resource, tree in batch_objects():
        await cluster.create(resource, tree)
        if tree["metadata"]["name"] == "borrowing":
            await cluster.sleep(5)
    target = {"apiVersion": QUEUES.api_version, "kind": "Queue", "name": "shut"}
    target["uid"] = (await cluster.get(QUEUES, "shut"))["metadata"]["uid"]
    close = {"metadata": {"name": "close"}, "action": "CloseQueue", "target": target}
    await cluster.create(COMMANDS, close)
    await cluster.sleep(10)
    for resource, tree in workloads():
        await cluster.create(resource, tree)
    for tree in single_pods():
        await cluster.create(PODS, tree)
    await cluster.create(REQUESTS, REFUSED_REQUEST)


def attempts(cluster: VirtualCluster) -> dict[str, int]:
    """Number of attempts of each pending pod of the pod engine."""
    names = [tree["metadata"]["name"] for tree in single_pods()]
    queued = [cluster.pods.queue.get(f"default/{name}") for name in names]
    return {name: 0 if each is None else each.attempts for name, each in zip(names, queued, strict=True)}


def condition(tree: Tree) -> Tree:
    found: list[Tree] = tree["status"].get("conditions", [])
    return next((each for each in found if each["type"] in ("PodScheduled", "Unschedulable")), {})


@pytest.mark.parametrize(
    ("conf", "period_s"), [pytest.param(ADMITTING, 1.0, id="admitting"), pytest.param(EVICTING, 5.0, id="evicting")]
)
def test_pending_objects_cause_no_writes_until_their_reason_changes(conf: str, period_s: float, tmp_path: Path) -> None:
    @virtual_time_test
    async def run() -> None:
        async with virtual_cluster(tmp_path, nodes=NODES, conf=conf, period_s=period_s) as cluster:
            await fill(cluster)
            await cluster.sleep(SETTLED_S)
            settled_s, tried, sessions = cluster.now_s, attempts(cluster), cluster.batch.session_count
            check_waiting(*[await cluster.list(each) for each in (PODS, POD_GROUPS, QUEUES)])
            await cluster.sleep(QUIET_S)
            assert [str(each) for each in cluster.writes_since(settled_s)] == []
            assert len(cluster.lease_renewals_since(settled_s)) > QUIET_S / 2, "the processes were alive"
            assert cluster.batch.session_count >= sessions + QUIET_S / period_s - 1
            again = attempts(cluster)
            assert [name for name in tried if again[name] < tried[name] + 2] == ["gated", "missing-device"]
            await check_changes_are_reported(cluster)

    run()


@pytest.mark.parametrize(
    ("size", "grouped"),
    [
        pytest.param("3", False, id="one-victim"),
        pytest.param("1700m", False, id="two-victims"),
        pytest.param("3", True, id="for-a-group"),
    ],
)
def test_a_preemptor_whose_victims_cannot_be_deleted_sends_only_deletions(
    size: str, grouped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = ("GenericWorkload", "GangScheduling", "WorkloadAwarePreemption") if grouped else ()
    group_spec: Tree = {"schedulingGroup": {"podGroupName": "strong"}} if grouped else {}
    request, tries, allowed = Transport.request, list[str](), list[str]()

    async def refuse_deletions(self: Transport, method: str, path: str, *args: Any, **more: Any) -> Any:
        if method == "DELETE" and "/pods/" in path and not allowed:
            tries.append(path)
            raise Forbidden("a webhook denied the request", code=403, reason="Forbidden")
        return await request(self, method, path, *args, **more)

    @virtual_time_test
    async def run() -> None:
        async with virtual_cluster(tmp_path, nodes=NODES, gates=gates) as cluster:
            for number in range(4 * int(3.5 // (3 if size == "3" else 1.7))):
                await cluster.create(PODS, pod(f"low-{number}", size))
            await cluster.sleep(5)
            assert all(each["spec"].get("nodeName") for each in await cluster.list(PODS))
            monkeypatch.setattr(Transport, "request", refuse_deletions)
            if grouped:
                strong = {"schedulingPolicy": {"gang": {"minCount": 2}}, "priority": 2_000_000_000}
                await cluster.create(WORKLOAD_GROUPS, {"metadata": {"name": "strong"}, "spec": strong})
            for name in ("high", "higher"):
                await cluster.create(PODS, pod(name, "3", priorityClassName=CRITICAL, **group_spec))
            await cluster.sleep(2 * SETTLED_S)
            settled_s, tried = cluster.now_s, len(tries)
            await cluster.sleep(QUIET_S)
            assert [str(each) for each in cluster.writes_since(settled_s)] == []
            assert len(tries) > tried, "deletions are retried"
            waiting = await cluster.get(PODS, "high")
            assert "nominatedNodeName" not in waiting["status"]
            assert grouped or "preemption: 0/4 nodes are available" in condition(waiting)["message"]
            allowed.append("from now on")
            await cluster.sleep(660)
            placed = [each["metadata"]["name"] for each in await cluster.list(PODS) if each["spec"].get("nodeName")]
            assert {"high", "higher"} <= {*placed}
            assert [each for each in await cluster.list(EVENTS) if each["reason"] == "Preempted"]

    run()


def check_waiting(pods: list[Tree], groups: list[Tree], queues: list[Tree]) -> None:
    """Check that the pending objects are as intended: otherwise the absence of writes proves nothing."""
    waiting = {each["metadata"]["name"]: condition(each) for each in pods if not each["spec"].get("nodeName")}
    assert {tree["metadata"]["name"] for tree in single_pods()} < waiting.keys()
    assert {"without-claim-w-0", "few-0", "no-group", "alone"} < waiting.keys()
    names = [each["metadata"]["name"] for each in groups if each["status"]["phase"] in ("Pending", "Inqueue")]
    for gang in ("too-large-", "preempting-", "over-quota-", "of-shut-queue-", "by-topology-", "flow-step-", "few"):
        assert any(name.startswith(gang) for name in names), names
    assert any("can possibly be assigned to node-" in each.get("message", "") for each in waiting.values())
    statuses = {each["metadata"]["name"]: each["status"] for each in queues}
    assert statuses["lent"]["allocated"]["cpu"] == "6"
    assert statuses["shut"]["state"] == "Closed"


async def check_changes_are_reported(cluster: VirtualCluster) -> None:
    """A new node appears in the conditions and events of pods and gangs; then there are no writes again."""
    since_s = cluster.now_s
    await cluster.create(NODE_OBJECTS, {**NODES[0], "metadata": {"name": "late"}, "spec": {"unschedulable": True}})
    await cluster.sleep(400)
    for name in ("too-large", "nowhere", "web"):
        pods = [each for each in await cluster.list(PODS) if each["metadata"].get("labels", {}).get("app") == name]
        assert [condition(each)["message"].startswith("0/5 nodes") for each in pods] == [True] * len(pods)
    (gang,) = [each for each in await cluster.list(POD_GROUPS) if each["metadata"]["name"].startswith("without-claim")]
    assert "0/5 nodes are unavailable" in condition(gang)["message"]
    failed = [each for each in await cluster.list(EVENTS) if each["reason"] == "FailedScheduling"]
    for name in ("too-large", "without-claim-w-0"):
        notes = [each["message"] for each in failed if each["involvedObject"]["name"] == name]
        assert any("0/5 nodes" in note for note in notes), notes
    assert cluster.writes_since(since_s)
    again_s = cluster.now_s
    await cluster.sleep(SETTLED_S)
    assert [str(each) for each in cluster.writes_since(again_s)] == []
