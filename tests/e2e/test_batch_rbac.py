"""The batch engine's RBAC rules against the server's audit log: no request is denied, and no rule is unused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.api import Tree
from cluster.run import Cluster, free_ports
from support.e2e.audit_log import AccessRight, DeployedFolder, denied_requests, used_rights
from support.e2e.batch_harness import BatchSchedulerHarness, install_volcano_crds
from support.e2e.scheduler_process import Endpoint, wait_until
from support.e2e.volumes_and_devices import (
    bind_claim,
    claim,
    device_claim,
    devices,
    pod_with_claim,
    volume,
    wait_for_first_consumer_class,
)
from support.fakes.fault_proxy import FaultProxy, ProxiedRequest, ProxyFault, refusal, run_fault_proxy
from support.harness.health_server import get

DEPLOYED = DeployedFolder("batch", "volcano-system", "bayplan-batch")
NAME = DEPLOYED.name

ANNOTATING = '''
class Notes:
    """Notes something on every pod that it sees."""

    name = "notes"

    def __init__(self, arguments):
        pass

    def on_session_open(self, session):
        for job in session.jobs.values():
            for task in job.pending.values():
                session.annotations[task.key] = {"example.com/noted": "yes"}
'''

SELDOM = {("", "events", "patch")}
"""An event is patched when it repeats, which sessions avoid."""
ASKED_BY_THE_SERVER_ITSELF: set[AccessRight] = {("resource.k8s.io", "resourceclaims/binding", "patch")}
"""Checked within other requests, so the log has no request of its own."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with DEPLOYED.audited(tmp_path_factory.mktemp("audited")) as cluster:
        yield cluster


def log(cluster: Cluster) -> list[Tree]:
    return DEPLOYED.log(cluster)


def test_no_request_is_denied_and_no_rule_is_unused(audited: Cluster, tmp_path: Path) -> None:
    audited.kubectl("create", "namespace", "work")
    harness = BatchSchedulerHarness(audited, "work", tmp_path)
    install_volcano_crds(audited, harness.api)
    shard = {"apiVersion": "shard.volcano.sh/v1alpha1", "kind": "NodeShard", "metadata": {"name": "ours"}}
    harness.api.create({**shard, "spec": {"nodesDesired": harness.add_nodes(2, cpu="4")}})
    (given,) = [tree for tree in DEPLOYED.objects() if tree["kind"] == "ConfigMap"]
    conf = given["data"]["volcano-scheduler.conf"] + "  - name: notes\n"
    plugins = tmp_path / "plugins"
    plugins.mkdir(mode=0o755)
    (plugins / "notes.py").write_text(ANNOTATING)
    with run_fault_proxy(audited, tmp_path) as proxy:
        flags = (
            "--leader-elect=true",
            f"--kubeconfig={proxy.kubeconfig(NAME)}",
            f"--plugins-dir={plugins}",
            "--scheduler-sharding-mode=hard",
            "--scheduler-sharding-name=ours",
            "--ignored-provisioners=kubernetes.io/no-provisioner,example.com/maker",
        )
        (port,) = free_ports(1)
        with harness.run_batch(*flags, f"--secure-port={port}", "--bind-address=127.0.0.1", conf=conf):
            places_and_preempts(harness)
            says_why(harness, port)
            binds_volumes(harness)
            allocates_devices(harness, proxy)
            loses_an_answer(harness, proxy)
            wait_until(
                lambda: ("coordination.k8s.io", "leases", "update") in used_rights(log(audited)), "the lease is renewed"
            )
        proxy.add(ProxyFault(lambda ask: "sendInitialEvents=true" in ask.path, refuse=refusal(422, "Invalid")))
        with harness.run_batch(*flags, conf=conf):
            harness.wait_bound(harness.gang("last", 1, cpu="100m"))
    entries = log(audited)
    assert denied_requests(entries) == []
    assert DEPLOYED.rights() - used_rights(entries) - SELDOM == ASKED_BY_THE_SERVER_ITSELF
    assert used_rights(entries) - DEPLOYED.rights() == {("", "configmaps", "get")}, (
        "which the API server's own role allows"
    )


def says_why(harness: BatchSchedulerHarness, port: int) -> None:
    names = harness.gang("waiting", 1, cpu="100m")
    harness.wait_bound(names)
    headers = {"Authorization": f"Bearer {harness.cluster.tokens[NAME]}"}
    path = f"/why/{harness.namespace}/{names[0]}"
    wait_until(lambda: asyncio.run(get(Endpoint(port), path, headers=headers)).status == 200, "it says why")


def places_and_preempts(harness: BatchSchedulerHarness) -> None:
    strong = harness.priority("strong", 1000)
    weak = harness.gang("weak", 6, minimum=1)
    harness.wait_bound(weak)
    harness.start(*weak)
    names = harness.gang("strong", 3, priorityClassName=strong, group={"priorityClassName": strong})
    harness.wait_bound(names)
    harness.api.delete_all("Pod", [*weak, *names])
    harness.api.delete_all("PodGroup", ["weak", "strong"])


def in_group(harness: BatchSchedulerHarness, pod: Tree) -> Tree:
    name = pod["metadata"]["name"]
    harness.group(name, 1)
    pod["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": name}
    pod["spec"]["schedulerName"] = "volcano"
    return pod


def binds_volumes(harness: BatchSchedulerHarness) -> None:
    kind = wait_for_first_consumer_class(harness, "local", "kubernetes.io/no-provisioner")
    made = volume(harness, "v", harness.nodes[1], kind)
    name = made["metadata"]["name"]
    harness.api.create(made, claim("data", kind))
    harness.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    harness.api.create(in_group(harness, pod_with_claim(harness, "local", "data")))
    wait_until(lambda: "claimRef" in harness.api.get("PersistentVolume", name)["spec"], "the volume is promised")
    bind_claim(harness, "data", name)
    harness.wait_bound(["local"])
    harness.api.create(claim("made", wait_for_first_consumer_class(harness, "made", "example.com/maker")))
    harness.api.create(in_group(harness, pod_with_claim(harness, "made", "made")))
    wait_until(
        lambda: "selected-node" in json.dumps(harness.api.get("PersistentVolumeClaim", "made")), "a node is named"
    )


def allocates_devices(harness: BatchSchedulerHarness, proxy: FaultProxy) -> None:
    kind = f"{harness.label[:40]}-gpu"
    harness.api.create(*devices(harness, harness.nodes[1], kind, count=4))
    harness.api.create(device_claim("mine", kind))

    def allocating(ask: ProxiedRequest) -> bool:
        return ask.method == "PATCH" and "/resourceclaims/mine/status" in ask.path

    proxy.add(ProxyFault(allocating, times=1, refuse=refusal(409, "Conflict")))
    user = in_group(harness, harness.pod("mine", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]))
    user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    harness.api.create(user)
    harness.wait_bound(["mine"])


def loses_an_answer(harness: BatchSchedulerHarness, proxy: FaultProxy) -> None:
    proxy.add(ProxyFault(lambda ask: ask.is_binding, times=1, refuse=refusal(500, "InternalError")))
    harness.wait_bound(harness.gang("doubtful", 1, cpu="100m"))
