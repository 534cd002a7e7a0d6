"""The batch engine's rules against the server's audit log: nothing that it asks is denied, and no rule is idle."""

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
"""An event is counted where it is repeated, which sessions avoid."""
ASKED_BY_THE_SERVER_ITSELF: set[AccessRight] = {("resource.k8s.io", "resourceclaims/binding", "patch")}
"""Checked within other requests, so that no request of its own shows in the log."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with DEPLOYED.audited(tmp_path_factory.mktemp("audited")) as cluster:
        yield cluster


def log(cluster: Cluster) -> list[Tree]:
    return DEPLOYED.log(cluster)


def test_nothing_is_denied_and_no_rule_is_idle(audited: Cluster, tmp_path: Path) -> None:
    audited.kubectl("create", "namespace", "work")
    corner = BatchSchedulerHarness(audited, "work", tmp_path)
    install_volcano_crds(audited, corner.api)
    shard = {"apiVersion": "shard.volcano.sh/v1alpha1", "kind": "NodeShard", "metadata": {"name": "ours"}}
    corner.api.create({**shard, "spec": {"nodesDesired": corner.add_nodes(2, cpu="4")}})
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
        with corner.run_batch(*flags, f"--secure-port={port}", "--bind-address=127.0.0.1", conf=conf):
            places_and_preempts(corner)
            says_why(corner, port)
            binds_volumes(corner)
            allocates_devices(corner, proxy)
            loses_an_answer(corner, proxy)
            wait_until(
                lambda: ("coordination.k8s.io", "leases", "update") in used_rights(log(audited)), "the lease is renewed"
            )
        proxy.add(ProxyFault(lambda ask: "sendInitialEvents=true" in ask.path, refuse=refusal(422, "Invalid")))
        with corner.run_batch(*flags, conf=conf):
            corner.wait_bound(corner.gang("last", 1, cpu="100m"))
    entries = log(audited)
    assert denied_requests(entries) == []
    assert DEPLOYED.rights() - used_rights(entries) - SELDOM == ASKED_BY_THE_SERVER_ITSELF
    assert used_rights(entries) - DEPLOYED.rights() == {("", "configmaps", "get")}, (
        "which the API server's own role allows"
    )


def says_why(corner: BatchSchedulerHarness, port: int) -> None:
    names = corner.gang("told", 1, cpu="100m")
    corner.wait_bound(names)
    headers = {"Authorization": f"Bearer {corner.cluster.tokens[NAME]}"}
    path = f"/why/{corner.namespace}/{names[0]}"
    wait_until(lambda: asyncio.run(get(Endpoint(port), path, headers=headers)).status == 200, "it says why")


def places_and_preempts(corner: BatchSchedulerHarness) -> None:
    strong = corner.priority("strong", 1000)
    weak = corner.gang("weak", 6, minimum=1)
    corner.wait_bound(weak)
    corner.start(*weak)
    names = corner.gang("strong", 3, priorityClassName=strong, group={"priorityClassName": strong})
    corner.wait_bound(names)
    corner.api.delete_all("Pod", [*weak, *names])
    corner.api.delete_all("PodGroup", ["weak", "strong"])


def in_group(corner: BatchSchedulerHarness, pod: Tree) -> Tree:
    name = pod["metadata"]["name"]
    corner.group(name, 1)
    pod["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": name}
    pod["spec"]["schedulerName"] = "volcano"
    return pod


def binds_volumes(corner: BatchSchedulerHarness) -> None:
    kind = wait_for_first_consumer_class(corner, "local", "kubernetes.io/no-provisioner")
    made = volume(corner, "v", corner.nodes[1], kind)
    name = made["metadata"]["name"]
    corner.api.create(made, claim("data", kind))
    corner.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    corner.api.create(in_group(corner, pod_with_claim(corner, "local", "data")))
    wait_until(lambda: "claimRef" in corner.api.get("PersistentVolume", name)["spec"], "the volume is promised")
    bind_claim(corner, "data", name)
    corner.wait_bound(["local"])
    corner.api.create(claim("made", wait_for_first_consumer_class(corner, "made", "example.com/maker")))
    corner.api.create(in_group(corner, pod_with_claim(corner, "made", "made")))
    wait_until(
        lambda: "selected-node" in json.dumps(corner.api.get("PersistentVolumeClaim", "made")), "a node is named"
    )


def allocates_devices(corner: BatchSchedulerHarness, proxy: FaultProxy) -> None:
    kind = f"{corner.label[:40]}-gpu"
    corner.api.create(*devices(corner, corner.nodes[1], kind, count=4))
    corner.api.create(device_claim("mine", kind))

    def allocating(ask: ProxiedRequest) -> bool:
        return ask.method == "PATCH" and "/resourceclaims/mine/status" in ask.path

    proxy.add(ProxyFault(allocating, times=1, refuse=refusal(409, "Conflict")))
    user = in_group(corner, corner.pod("mine", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]))
    user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    corner.api.create(user)
    corner.wait_bound(["mine"])


def loses_an_answer(corner: BatchSchedulerHarness, proxy: FaultProxy) -> None:
    proxy.add(ProxyFault(lambda ask: ask.is_binding, times=1, refuse=refusal(500, "InternalError")))
    corner.wait_bound(corner.gang("doubtful", 1, cpu="100m"))
