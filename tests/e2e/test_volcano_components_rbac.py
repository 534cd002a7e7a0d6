"""The RBAC rules of Volcano's controllers and webhooks against the server's audit log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bayplan.client import MERGE_PATCH, GroupVersionResource
from bayplan.controllers import RUNS_FOR
from bayplan.controllers.core.api_types import (
    CONFIG_MAPS,
    DAEMON_SETS,
    JOBS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
)
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
from cluster.run import Cluster
from support.builders.volcano_manifests import job, task
from support.e2e.audit_log import AccessRight, DeployedFolder, denied_requests, used_rights
from support.e2e.scheduler_process import wait_until
from support.fakes.fault_proxy import ProxyFault, refusal, run_fault_proxy
from support.harness.volcano_controllers import VolcanoControllersHarness, async_test, phase_of, run_controllers

Tree = dict[str, Any]
CONTROLLERS = DeployedFolder("batch-controllers", "volcano-system", "bayplan-batch-controllers")
ADMISSION = DeployedFolder("batch-admission", "volcano-system", "bayplan-batch-admission")
QUICKLY = {RUNS_FOR: "100ms"}
RACES: set[AccessRight] = {("apps", "replicasets", "get"), ("apps", "statefulsets", "get"), ("", "events", "patch")}
"""Used when a pod is seen before its owner, and when an event repeats: rarely, and not reproducibly."""
CHECKED_WITHIN: set[AccessRight] = {
    ("batch.volcano.sh", "jobs/finalizers", "update"),
    ("batch.volcano.sh", "cronjobs/finalizers", "update"),
    ("flow.volcano.sh", "jobflows/finalizers", "update"),
    ("", "pods/finalizers", "update"),
    ("apps", "replicasets/finalizers", "update"),
    ("apps", "statefulsets/finalizers", "update"),
    ("apps", "daemonsets/finalizers", "update"),
    ("batch", "jobs/finalizers", "update"),
}
"""Checked by the server itself when an object with an owner is created: without them the creation is refused."""


@contextmanager
def running(deployed: DeployedFolder, kubeconfig: Path, folder: Path, *more: str) -> Iterator[None]:
    """The container's own command, under the account of its pod."""
    (found,) = [tree for tree in deployed.objects() if tree["kind"] == "Deployment"]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    command = [sys.executable, "-m", "bayplan", *container["args"], *more]
    with (folder / "process.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--kubeconfig={kubeconfig}"],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            yield
            assert process.poll() is None, (folder / "process.log").read_text()
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                process.kill()


def install(cluster: Cluster) -> None:
    """Install Volcano's CRDs."""
    command = [sys.executable, "-m", "bayplan", "crds", "--all"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cluster.kubectl("apply", "-f", "-", stdin=text)


@contextmanager
def older(cluster: Cluster, deployed: DeployedFolder, folder: Path) -> Iterator[Path]:
    """A proxy to the server without streaming lists, like servers before 1.32."""
    with run_fault_proxy(cluster, folder) as proxy:
        proxy.add(ProxyFault(lambda ask: "sendInitialEvents=true" in ask.path, refuse=refusal(422, "Invalid")))
        yield proxy.kubeconfig(deployed.name)


def lists(rights: set[AccessRight]) -> set[AccessRight]:
    return {right for right in rights if right[2] == "list"}


def test_no_request_of_the_controllers_is_denied_and_no_rule_is_unused(tmp_path: Path) -> None:
    anywhere = "--listen-address=127.0.0.1:0"
    with CONTROLLERS.audited(tmp_path) as cluster:
        install(cluster)
        with running(CONTROLLERS, cluster.kubeconfig(CONTROLLERS.name), tmp_path, anywhere):
            work(cluster)
            wait_until(
                lambda: ("coordination.k8s.io", "leases", "update") in used_rights(CONTROLLERS.log(cluster)),
                "the lease is renewed",
            )
        with older(cluster, CONTROLLERS, tmp_path) as way, running(CONTROLLERS, way, tmp_path, anywhere):
            wait_until(
                lambda: lists(CONTROLLERS.rights()) <= used_rights(CONTROLLERS.log(cluster)),
                "everything is listed",
                why=lambda: str(lists(CONTROLLERS.rights()) - used_rights(CONTROLLERS.log(cluster))),
            )
        entries = CONTROLLERS.log(cluster)
        assert denied_requests(entries) == []
        assert used_rights(entries) - CONTROLLERS.rights() == set()
        assert CONTROLLERS.rights() - used_rights(entries) - RACES == CHECKED_WITHIN


@async_test
async def work(cluster: Cluster) -> None:
    async with run_controllers(cluster.target(), "work", only=()) as here:
        await jobs(here)
        await jobs_by_others(here)
        await groups(here)
        await hyper_nodes(here)
        await here.make(QUEUES, {"metadata": {"name": "mine"}, "spec": {}})
        queue = await here.until(QUEUES, "mine", lambda found: found["spec"].get("parent"))
        assert queue["spec"]["parent"] == "root"


async def jobs(here: VolcanoControllersHarness) -> None:
    """A job with all features: it is scaled, restarted, aborted by a command, and deleted after its end."""
    await here.make(PERSISTENT_VOLUME_CLAIMS, claim("there"))
    volumes = [
        {"mountPath": "/there", "volumeClaimName": "there"},
        {"mountPath": "/made", "volumeClaim": claim("x")["spec"]},
    ]
    restart = [{"event": "PodFailed", "action": "RestartJob"}]
    spec = {"plugins": {"svc": [], "ssh": [], "env": []}, "policies": restart, "minAvailable": 1}
    tree = job("train", task("worker", 1), volumes=volumes, ttlSecondsAfterFinished=0, **spec)
    await here.make(VC_JOBS, tree)
    await here.running("train-worker-0")
    await here.job("train", "Running")  # a Pending job has its plugins' objects, and no TTL
    grown = [{**tree["spec"]["tasks"][0], "replicas": 2, "minAvailable": 2}]
    patch = {"spec": {"tasks": grown, "minAvailable": 2}}
    await here.client.patch(VC_JOBS, patch, namespace=here.namespace, name="train", kind=MERGE_PATCH)
    await here.running("train-worker-0", "train-worker-1")
    await here.end("train-worker-1", exit_code=1)
    await here.until(VC_JOBS, "train", lambda found: (found.get("status") or {}).get("retryCount") == 1)
    found = await here.job("train", "Running")
    target = {"apiVersion": VC_JOBS.api_version, "kind": "Job", "name": "train", "uid": found["metadata"]["uid"]}
    await here.make(COMMANDS, {"metadata": {"generateName": "c-"}, "action": "CompleteJob", "target": target})
    await here.gone(VC_JOBS, "train")


def claim(name: str) -> Tree:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


async def jobs_by_others(here: VolcanoControllersHarness) -> None:
    """A cron job and a flow."""
    template = {"spec": job("x", task("worker", annotations=QUICKLY))["spec"]}
    cron = {"schedule": "@every 1s", "jobTemplate": template, "successfulJobsHistoryLimit": 0}
    await here.make(VC_CRON_JOBS, {"metadata": {"name": "tick"}, "spec": cron})
    await here.events("tick", "SuccessfulDelete")
    suspend = {"spec": {"suspend": True}}
    await here.client.patch(VC_CRON_JOBS, suspend, namespace=here.namespace, name="tick", kind=MERGE_PATCH)
    await here.make(JOB_TEMPLATES, {"metadata": {"name": "step"}, **template})
    flow = {"flows": [{"name": "step"}], "jobRetainPolicy": "retain"}
    await here.make(JOB_FLOWS, {"metadata": {"name": "night"}, "spec": flow})
    await here.until(JOB_FLOWS, "night", lambda found: phase_of(found) == "Succeed")
    await here.until(JOB_TEMPLATES, "step", lambda found: (found.get("status") or {}).get("jobDependsOnList"))


async def groups(here: VolcanoControllersHarness) -> None:
    """Pod groups of a bare pod, and of the pods of each kind of workload."""
    await here.make(PODS, pod("alone"))
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pod("x")["spec"]}
    spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
    never = {"metadata": {}, "spec": {**pod("x")["spec"], "restartPolicy": "Never"}}
    owners: dict[GroupVersionResource, tuple[str, Tree]] = {
        REPLICA_SETS: ("ReplicaSet", {**spec, "replicas": 1}),
        STATEFUL_SETS: ("StatefulSet", {**spec, "replicas": 1, "serviceName": "x"}),
        DAEMON_SETS: ("DaemonSet", spec),
        JOBS: ("Job", {"template": never}),
    }
    for resource, (kind, body) in owners.items():
        made = await here.make(resource, {"metadata": {"name": "owner"}, "spec": body})
        owner = {"apiVersion": resource.api_version, "kind": kind, "name": "owner", "uid": made["metadata"]["uid"]}
        one = pod(kind.lower())
        one["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        await here.make(PODS, one)
    await here.running("alone", *(kind.lower() for kind, _ in owners.values()))
    (of_set,) = [each for each in await here.list(POD_GROUPS) if _owner(each) == "ReplicaSet"]
    (followed,) = [each for each in await here.list(POD_GROUPS) if _owner(each) == "StatefulSet"]
    name, elsewhere = followed["metadata"]["name"], {"spec": {"queue": "elsewhere"}}
    await here.client.patch(POD_GROUPS, elsewhere, namespace=here.namespace, name=name, kind=MERGE_PATCH)
    more = {"metadata": {"annotations": {"scheduling.volcano.sh/group-min-member": "2"}}}
    await here.client.patch(STATEFUL_SETS, more, namespace=here.namespace, name="owner", kind=MERGE_PATCH)
    await here.until(POD_GROUPS, name, lambda found: found["spec"]["queue"] == "default")
    nothing = {"spec": {"replicas": 0}}
    await here.client.patch(REPLICA_SETS, nothing, namespace=here.namespace, name="owner", kind=MERGE_PATCH)
    await here.gone(POD_GROUPS, of_set["metadata"]["name"])


def _owner(tree: Tree) -> str:
    return str(tree["metadata"].get("ownerReferences", [{}])[0].get("kind", ""))


def pod(name: str) -> Tree:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"schedulerName": "volcano", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def hyper_nodes(here: VolcanoControllersHarness) -> None:
    """Hypernodes found by a label, changed with the label of a node, and deleted with it."""
    types = {"net": [{"nodeLabel": "example.com/rack"}, {"nodeLabel": "kubernetes.io/hostname"}]}
    source = {"source": "label", "enabled": True, "config": {"networkTopologyTypes": types}}
    text = msgspec.json.encode({"networkTopologyDiscovery": [source]}).decode()
    system = VolcanoControllersHarness(here.client, NAMESPACE)
    await system.make(CONFIG_MAPS, {"metadata": {"name": CONFIG_NAME}, "data": {CONFIG_KEY: text}})
    nodes = [each["metadata"]["name"] for each in await here.list(NODES)]
    for count in (1, 2, 0):
        for number, name in enumerate(nodes):
            mark = "r" if number < count else None
            patch = {"metadata": {"labels": {"example.com/rack": mark}}}
            await here.client.patch(NODES, patch, name=name, kind=MERGE_PATCH)
        if count:
            (place,) = await places(here, 1)
            await here.until(
                HYPER_NODES, place["metadata"]["name"], lambda h, n=count: h.get("status", {}).get("nodeCount") == n
            )
    assert await places(here, 0) == []


async def places(here: VolcanoControllersHarness, count: int) -> list[Tree]:
    """The hypernodes once there are `count`."""
    for _ in range(3000):
        found = await here.list(HYPER_NODES)
        if len(found) == count:
            return found
        await here.client.clock.sleep(0.05)
    raise AssertionError(f"{len(found)} hypernodes, not {count}")


# webhooks


def test_no_request_of_the_webhooks_is_denied_and_no_rule_is_unused(tmp_path: Path) -> None:
    with ADMISSION.audited(tmp_path) as cluster, older(cluster, ADMISSION, tmp_path) as way:
        install(cluster)
        for number, kubeconfig in enumerate((cluster.kubeconfig(ADMISSION.name), way)):
            mine = ("--listen-address=127.0.0.1", "--port=0", f"--cert-dir={tmp_path / str(number)}")
            with running(ADMISSION, kubeconfig, tmp_path, *mine):  # the second finds the registrations of the first
                wait_until(
                    lambda: (
                        "the API server now calls service volcano-system/volcano-admission-service"
                        in (tmp_path / "process.log").read_text()
                    ),
                    "the webhooks are registered",
                )
        entries = ADMISSION.log(cluster)
        assert denied_requests(entries) == []
        assert used_rights(entries) == ADMISSION.rights()
        kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
        registered = msgspec.json.decode(cluster.kubectl("get", kinds, "-o", "json"))["items"]
        granted = {
            name
            for tree in ADMISSION.objects()
            if tree["kind"] == "ClusterRole"
            for rule in tree["rules"]
            for name in rule.get("resourceNames", ())
        }
        assert {tree["metadata"]["name"] for tree in registered} == granted
        (bundle,) = {hook["clientConfig"]["caBundle"] for tree in registered for hook in tree["webhooks"]}
        assert bundle
        spared = {
            value
            for tree in registered
            for hook in tree["webhooks"]
            for each in hook.get("namespaceSelector", {}).get("matchExpressions", ())
            for value in each["values"]
        }
        assert spared == {"kube-system", "volcano-system"}
