"""The batch engine's rules against the server's audit log: nothing that it asks is denied, and no rule is idle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.api import Tree
from cluster.run import Cluster, free_ports
from support.e2e.audit_log import (
    Deployed,
    Right,
    denied,
    used,
)
from support.e2e.batch_harness import BatchCorner, install
from support.e2e.scheduler_process import Endpoint, until
from support.e2e.volumes_and_devices import (
    bind_claim,
    claim,
    device_claim,
    devices,
    late_class,
    volume,
    with_claim,
)
from support.fakes.fault_proxy import (
    Ask,
    Fault,
    FaultProxy,
    faulty,
    refusal,
)
from support.harness.health_server import get

DEPLOYED = Deployed("batch", "volcano-system", "bayplan-batch")
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
ASKED_BY_THE_SERVER_ITSELF: set[Right] = {
    ("resource.k8s.io", "resourceclaims/binding", "patch"),
}
"""Checked within other requests, so that no request of its own shows in the log."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with DEPLOYED.audited(tmp_path_factory.mktemp("audited")) as cluster:
        yield cluster


def log(cluster: Cluster) -> list[Tree]:
    return DEPLOYED.log(cluster)


def test_nothing_is_denied_and_no_rule_is_idle(audited: Cluster, tmp_path: Path) -> None:
    audited.kubectl("create", "namespace", "work")
    corner = BatchCorner(audited, "work", tmp_path)
    install(audited, corner.api)
    shard = {"apiVersion": "shard.volcano.sh/v1alpha1", "kind": "NodeShard", "metadata": {"name": "ours"}}
    corner.api.create({**shard, "spec": {"nodesDesired": corner.add_nodes(2, cpu="4")}})
    (given,) = [tree for tree in DEPLOYED.objects() if tree["kind"] == "ConfigMap"]
    conf = given["data"]["volcano-scheduler.conf"] + "  - name: notes\n"
    plugins = tmp_path / "plugins"
    plugins.mkdir(mode=0o755)
    (plugins / "notes.py").write_text(ANNOTATING)
    with faulty(audited, tmp_path) as proxy:
        flags = (
            "--leader-elect=true",
            f"--kubeconfig={proxy.kubeconfig(NAME)}",
            f"--plugins-dir={plugins}",
            "--scheduler-sharding-mode=hard",
            "--scheduler-sharding-name=ours",
            "--ignored-provisioners=kubernetes.io/no-provisioner,example.com/maker",
        )
        (port,) = free_ports(1)
        with corner.scheduling(*flags, f"--secure-port={port}", "--bind-address=127.0.0.1", conf=conf):
            places_and_preempts(corner)
            says_why(corner, port)
            binds_volumes(corner)
            allocates_devices(corner, proxy)
            loses_an_answer(corner, proxy)
            until(lambda: ("coordination.k8s.io", "leases", "update") in used(log(audited)), "the lease is renewed")
        proxy.add(Fault(lambda ask: "sendInitialEvents=true" in ask.path, refuse=refusal(422, "Invalid")))
        with corner.scheduling(*flags, conf=conf):
            corner.bound(corner.gang("last", 1, cpu="100m"))
    entries = log(audited)
    assert denied(entries) == []
    assert DEPLOYED.rights() - used(entries) - SELDOM == ASKED_BY_THE_SERVER_ITSELF
    assert used(entries) - DEPLOYED.rights() == {("", "configmaps", "get")}, "which the API server's own role allows"


def says_why(corner: BatchCorner, port: int) -> None:
    names = corner.gang("told", 1, cpu="100m")
    corner.bound(names)
    headers = {"Authorization": f"Bearer {corner.cluster.tokens[NAME]}"}
    path = f"/why/{corner.namespace}/{names[0]}"
    until(lambda: asyncio.run(get(Endpoint(port), path, headers=headers)).status == 200, "it says why")


def places_and_preempts(corner: BatchCorner) -> None:
    strong = corner.priority("strong", 1000)
    weak = corner.gang("weak", 6, minimum=1)
    corner.bound(weak)
    corner.start(*weak)
    names = corner.gang("strong", 3, priorityClassName=strong, group={"priorityClassName": strong})
    corner.bound(names)
    corner.api.delete_all("Pod", [*weak, *names])
    corner.api.delete_all("PodGroup", ["weak", "strong"])


def in_group(corner: BatchCorner, pod: Tree) -> Tree:
    name = pod["metadata"]["name"]
    corner.group(name, 1)
    pod["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": name}
    pod["spec"]["schedulerName"] = "volcano"
    return pod


def binds_volumes(corner: BatchCorner) -> None:
    kind = late_class(corner, "local", "kubernetes.io/no-provisioner")
    made = volume(corner, "v", corner.nodes[1], kind)
    name = made["metadata"]["name"]
    corner.api.create(made, claim("data", kind))
    corner.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    corner.api.create(in_group(corner, with_claim(corner, "local", "data")))
    until(lambda: "claimRef" in corner.api.get("PersistentVolume", name)["spec"], "the volume is promised")
    bind_claim(corner, "data", name)
    corner.bound(["local"])
    corner.api.create(claim("made", late_class(corner, "made", "example.com/maker")))
    corner.api.create(in_group(corner, with_claim(corner, "made", "made")))
    until(lambda: "selected-node" in json.dumps(corner.api.get("PersistentVolumeClaim", "made")), "a node is named")


def allocates_devices(corner: BatchCorner, proxy: FaultProxy) -> None:
    kind = f"{corner.label[:40]}-gpu"
    corner.api.create(*devices(corner, corner.nodes[1], kind, count=4))
    corner.api.create(device_claim("mine", kind))

    def allocating(ask: Ask) -> bool:
        return ask.method == "PATCH" and "/resourceclaims/mine/status" in ask.path

    proxy.add(Fault(allocating, times=1, refuse=refusal(409, "Conflict")))
    user = in_group(corner, corner.pod("mine", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]))
    user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    corner.api.create(user)
    corner.bound(["mine"])


def loses_an_answer(corner: BatchCorner, proxy: FaultProxy) -> None:
    proxy.add(Fault(lambda ask: ask.is_binding, times=1, refuse=refusal(500, "InternalError")))
    corner.bound(corner.gang("doubtful", 1, cpu="100m"))
