"""What waits for ten minutes writes nothing: `bayplan run --binder`, the controllers and nodes on virtual time."""

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
    """A Volcano Job of which all pods must run."""
    template = {"spec": {"restartPolicy": "Never", "containers": [container(cpu)], **spec.pop("pod", {})}}
    return job(name, {"name": "w", "replicas": size, "template": template}, **{"minAvailable": size, **spec})


def single_pods() -> Iterable[Tree]:
    """Pods of the pod engine that wait for all sorts of reasons."""
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
    """Gangs that wait for all sorts of reasons, beside some that run."""
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
    """Objects of other controllers whose pods wait."""
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
"""The binder cannot carry it out, and gives it up after three attempts."""


async def fill(world: VirtualCluster) -> None:
    """Create everything, the batch objects first: what the pod engine finds depends on them."""
    for resource, tree in batch_objects():
        await world.create(resource, tree)
        if tree["metadata"]["name"] == "borrowing":
            await world.sleep(5)
    target = {"apiVersion": QUEUES.api_version, "kind": "Queue", "name": "shut"}
    target["uid"] = (await world.get(QUEUES, "shut"))["metadata"]["uid"]
    close = {"metadata": {"name": "close"}, "action": "CloseQueue", "target": target}
    await world.create(COMMANDS, close)
    await world.sleep(10)
    for resource, tree in workloads():
        await world.create(resource, tree)
    for tree in single_pods():
        await world.create(PODS, tree)
    await world.create(REQUESTS, REFUSED_REQUEST)


def attempts(world: VirtualCluster) -> dict[str, int]:
    """How often the pod engine tried each of its pods that wait."""
    names = [tree["metadata"]["name"] for tree in single_pods()]
    queued = [world.pods.queue.get(f"default/{name}") for name in names]
    return {name: 0 if each is None else each.attempts for name, each in zip(names, queued, strict=True)}


def condition(tree: Tree) -> Tree:
    found: list[Tree] = tree["status"].get("conditions", [])
    return next((each for each in found if each["type"] in ("PodScheduled", "Unschedulable")), {})


@pytest.mark.parametrize(
    ("conf", "period_s"), [pytest.param(ADMITTING, 1.0, id="admitting"), pytest.param(EVICTING, 5.0, id="evicting")]
)
def test_what_waits_writes_nothing_until_its_reason_changes(conf: str, period_s: float, tmp_path: Path) -> None:
    @virtual_time_test
    async def run() -> None:
        async with virtual_cluster(tmp_path, nodes=NODES, conf=conf, period_s=period_s) as world:
            await fill(world)
            await world.sleep(SETTLED_S)
            settled_s, tried, sessions = world.now_s, attempts(world), world.batch.session_count
            check_waiting(*[await world.list(each) for each in (PODS, POD_GROUPS, QUEUES)])
            await world.sleep(QUIET_S)
            assert [str(each) for each in world.writes_since(settled_s)] == []
            assert len(world.lease_renewals_since(settled_s)) > QUIET_S / 2, "the processes were alive"
            assert world.batch.session_count >= sessions + QUIET_S / period_s - 1
            again = attempts(world)
            assert [name for name in tried if again[name] < tried[name] + 2] == ["gated", "missing-device"]
            await changes_are_told(world)

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
    of_group: Tree = {"schedulingGroup": {"podGroupName": "strong"}} if grouped else {}
    request, tries, allowed = Transport.request, list[str](), list[str]()

    async def refuse_deletions(self: Transport, method: str, path: str, *args: Any, **more: Any) -> Any:
        if method == "DELETE" and "/pods/" in path and not allowed:
            tries.append(path)
            raise Forbidden("a webhook denied the request", code=403, reason="Forbidden")
        return await request(self, method, path, *args, **more)

    @virtual_time_test
    async def run() -> None:
        async with virtual_cluster(tmp_path, nodes=NODES, gates=gates) as world:
            for number in range(4 * int(3.5 // (3 if size == "3" else 1.7))):
                await world.create(PODS, pod(f"low-{number}", size))
            await world.sleep(5)
            assert all(each["spec"].get("nodeName") for each in await world.list(PODS))
            monkeypatch.setattr(Transport, "request", refuse_deletions)
            if grouped:
                strong = {"schedulingPolicy": {"gang": {"minCount": 2}}, "priority": 2_000_000_000}
                await world.create(WORKLOAD_GROUPS, {"metadata": {"name": "strong"}, "spec": strong})
            for name in ("high", "higher"):
                await world.create(PODS, pod(name, "3", priorityClassName=CRITICAL, **of_group))
            await world.sleep(2 * SETTLED_S)
            settled_s, tried = world.now_s, len(tries)
            await world.sleep(QUIET_S)
            assert [str(each) for each in world.writes_since(settled_s)] == []
            assert len(tries) > tried, "it may be allowed at any time"
            waiting = await world.get(PODS, "high")
            assert "nominatedNodeName" not in waiting["status"]
            assert grouped or "preemption: 0/4 nodes are available" in condition(waiting)["message"]
            allowed.append("from now on")
            await world.sleep(660)
            placed = [each["metadata"]["name"] for each in await world.list(PODS) if each["spec"].get("nodeName")]
            assert {"high", "higher"} <= {*placed}
            assert [each for each in await world.list(EVENTS) if each["reason"] == "Preempted"]

    run()


def check_waiting(pods: list[Tree], groups: list[Tree], queues: list[Tree]) -> None:
    """The scenario is what it is meant to be: else silence would prove nothing."""
    waiting = {each["metadata"]["name"]: condition(each) for each in pods if not each["spec"].get("nodeName")}
    assert {tree["metadata"]["name"] for tree in single_pods()} < waiting.keys()
    assert {"without-claim-w-0", "few-0", "no-group", "alone"} < waiting.keys()
    names = [each["metadata"]["name"] for each in groups if each["status"]["phase"] in ("Pending", "Inqueue")]
    for gang in ("too-large-", "preempting-", "over-quota-", "of-shut-queue-", "by-topology-", "flow-step-", "few"):
        assert any(name.startswith(gang) for name in names), names
    assert any("can possibly be assigned to node-" in each.get("message", "") for each in waiting.values())
    told = {each["metadata"]["name"]: each["status"] for each in queues}
    assert told["lent"]["allocated"]["cpu"] == "6"
    assert told["shut"]["state"] == "Closed"


async def changes_are_told(world: VirtualCluster) -> None:
    """A node that comes is in the reasons of pods and gangs, by condition and event; then it is quiet again."""
    since_s = world.now_s
    await world.create(NODE_OBJECTS, {**NODES[0], "metadata": {"name": "late"}, "spec": {"unschedulable": True}})
    await world.sleep(400)
    for name in ("too-large", "nowhere", "web"):
        pods = [each for each in await world.list(PODS) if each["metadata"].get("labels", {}).get("app") == name]
        assert [condition(each)["message"].startswith("0/5 nodes") for each in pods] == [True] * len(pods)
    (gang,) = [each for each in await world.list(POD_GROUPS) if each["metadata"]["name"].startswith("without-claim")]
    assert "0/5 nodes are unavailable" in condition(gang)["message"]
    failed = [each for each in await world.list(EVENTS) if each["reason"] == "FailedScheduling"]
    for name in ("too-large", "without-claim-w-0"):
        notes = [each["message"] for each in failed if each["involvedObject"]["name"] == name]
        assert any("0/5 nodes" in note for note in notes), notes
    assert world.writes_since(since_s)
    again_s = world.now_s
    await world.sleep(SETTLED_S)
    assert [str(each) for each in world.writes_since(again_s)] == []
