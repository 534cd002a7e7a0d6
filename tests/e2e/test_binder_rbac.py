"""The RBAC rules of binder and scheduler against the server's audit log: neither has rights of the other's."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Tree
from cluster.run import Cluster, ClusterError
from docs.fences import ROOT
from support.e2e.audit_log import (
    KUSTOMIZE,
    AccessRight,
    DeployedFolder,
    denied_requests,
    run_audited_cluster,
    used_rights,
)
from support.e2e.batch_harness import install_volcano_crds
from support.e2e.bind_watcher import DEVICE, RESERVATIONS
from support.e2e.binder_harness import BinderHarness
from support.e2e.scheduler_harness import short_backoff_config
from support.e2e.scheduler_process import node_name, run_process, wait_until
from support.e2e.volumes_and_devices import (
    bind_claim,
    claim,
    device_claim,
    devices,
    pod_with_claim,
    volume,
    wait_for_first_consumer_class,
)

OVERLAY = KUSTOMIZE / "binder-gpu-sharing"
BATCH_OVERLAY = KUSTOMIZE / "batch-binder"
BATCH = DeployedFolder("batch", "volcano-system", "bayplan-batch")
BINDER, SCHEDULER = (DeployedFolder("binder", "bayplan-system", name) for name in ("bayplan-binder", "bayplan"))
ADMISSION = DeployedFolder("gpu-admission", "bayplan-system", "bayplan-gpu-admission")
RESERVATION = DeployedFolder("binder-gpu-sharing", RESERVATIONS, RESERVATIONS)
NOTING = """
class Noting:
    name = "noting"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        await ctx.annotate(pod, {"example.com/noted": "yes"})
        if "noting.kai.scheduler/fail" in bind_request.metadata.annotations:
            raise RuntimeError("as the request says")
"""
PROFILES = """
profiles:
- schedulerName: bayplan
  plugins:
    multiPoint:
      enabled: [{name: BindRequestBinder}]
      disabled: [{name: DefaultBinder}]
"""

SELDOM: set[AccessRight] = {
    ("scheduling.run.ai", "bindrequests", "get"),  # after a conflict of the status: whether the request exists
    ("", "events", "patch"),  # when an event is repeated
    ("resource.k8s.io", "resourceclaims/binding", "patch"),  # checked within other requests
}


@pytest.fixture(scope="module")
def cluster_of_rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with an audit log of both, under exactly the RBAC rules of `deploy/`."""
    accounts = (BINDER, SCHEDULER, ADMISSION, RESERVATION)
    with run_audited_cluster(tmp_path_factory.mktemp("audited"), OVERLAY, *accounts) as cluster:
        yield cluster


def rights(cluster: Cluster, account: DeployedFolder, overlay: Path = OVERLAY) -> set[AccessRight]:
    """The rights of the roles of an account."""
    trees = [tree for tree in yaml.safe_load_all(cluster.kubectl("kustomize", str(overlay))) if tree]
    roles = {(each["kind"], each["metadata"]["name"]): each for each in trees if "Role" in each["kind"]}
    bound = [
        (each["roleRef"]["kind"], each["roleRef"]["name"])
        for (kind, _), each in roles.items()
        if kind.endswith("Binding") and any(subject["name"] == account.name for subject in each["subjects"])
    ]
    return {
        right
        for key in bound
        if key in roles  # other roles are the cluster's own
        for rule in roles[key]["rules"]
        for right in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def test_each_has_exactly_the_rights_that_it_uses(cluster_of_rules: Cluster, tmp_path: Path) -> None:
    cluster = cluster_of_rules
    cluster.kubectl("create", "namespace", "work")
    harness = BinderHarness(cluster, "work", tmp_path)
    install_volcano_crds(cluster, harness.api)
    harness.add_nodes(2, cpu="4")
    plugins = tmp_path / "plugins"
    plugins.mkdir(mode=0o755)
    (plugins / "noting.py").write_text(NOTING)
    shutil.copy(ROOT / "examples" / "binder" / "node_state.py", plugins)
    (plugins / "node_state.py").chmod(0o600)
    binder = (
        f"--kubeconfig={cluster.kubeconfig(BINDER.name)}",
        f"--plugins-dir={plugins}",
        "--leader-elect",
        "--leader-elect-resource-namespace=bayplan-system",
    )
    scheduler: dict[str, Any] = {
        "config": short_backoff_config(PROFILES),
        "kubeconfig": cluster.kubeconfig(SCHEDULER.name),
    }
    with harness.run_scheduler(**scheduler), harness.binder(*binder):
        harness.api.create(harness.pod("web", schedulerName="bayplan"))
        harness.wait_bound(["web"])
        binds_a_volume(harness)
        looks_at_a_node_again(harness)
        reserves_a_device(harness)
        makes_a_claim(harness)
        shares_a_device(harness)
        harness.pod_with_request("gone", harness.nodes[0], podName="missing")
        harness.wait_for_end("gone", "Failed")
        wait_until(
            lambda: ("coordination.k8s.io", "leases", "update") in used_rights(BINDER.log(cluster)),
            "the lease is renewed",
        )
    for account in (BINDER, SCHEDULER, RESERVATION):
        entries = account.log(cluster)
        assert denied_requests(entries) == []
        assert used_rights(entries) - rights(cluster, account) == set()
    assert used_rights(RESERVATION.log(cluster)) == rights(cluster, RESERVATION)
    idle = rights(cluster, BINDER) - used_rights(BINDER.log(cluster)) - SELDOM
    assert {right for right in idle if right[2] != "list"} == set()  # a watch that starts with a list needs no version
    assert not may(cluster, SCHEDULER, "create", "pods/binding")
    assert not may(cluster, BINDER, "create", "bindrequests.scheduling.run.ai")
    assert may(cluster, BINDER, "create", "pods/binding")
    assert may(cluster, SCHEDULER, "create", "bindrequests.scheduling.run.ai")


def may(cluster: Cluster, account: DeployedFolder, verb: str, resource: str) -> bool:
    given = [right for right in rights(cluster, account) if right[2] == verb]
    plural, _, group = resource.partition(".")
    return any(right[:2] == (group, plural) for right in given)


def binds_a_volume(harness: BinderHarness) -> None:
    """A pod of no scheduler, so that the binder's own plugin handles all of it."""
    kind = wait_for_first_consumer_class(harness, "local", "kubernetes.io/no-provisioner")
    made = volume(harness, "v", harness.nodes[1], kind)
    name = made["metadata"]["name"]
    harness.api.create(made, claim("data", kind))
    harness.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    waiting = pod_with_claim(harness, "local", "data")
    waiting["spec"]["schedulerName"] = "other-scheduler"
    (pod,) = harness.api.create(waiting)
    harness.api.create(harness.request(pod, harness.nodes[1]))
    wait_until(lambda: "claimRef" in harness.api.get("PersistentVolume", name)["spec"], "the volume is promised")
    bind_claim(harness, "data", name)
    harness.wait_bound(["local"])
    harness.api.create(claim("made", wait_for_first_consumer_class(harness, "made", "example.com/maker")))
    waiting = pod_with_claim(harness, "made", "made")
    waiting["spec"]["schedulerName"] = "other-scheduler"
    (pod,) = harness.api.create(waiting)
    harness.api.create(harness.request(pod, harness.nodes[1]))
    wait_until(
        lambda: "selected-node" in json.dumps(harness.api.get("PersistentVolumeClaim", "made")), "a node is named"
    )


def looks_at_a_node_again(harness: BinderHarness) -> None:
    """As the shipped example does if the scheduler saw a later version of the node."""
    later = {"nodestate.kai.scheduler/handler": "nodestate", "nodestate.kai.scheduler/resource-version": str(10**15)}
    harness.pod_with_request("early", harness.nodes[0], annotations=later)
    assert "is known in a version before" in harness.wait_for_end("early", "Failed")["status"]["reason"]


def reserves_a_device(harness: BinderHarness) -> None:
    kind = f"{harness.label[:40]}-gpu"
    harness.api.create(*devices(harness, harness.nodes[0], kind, count=3))
    harness.api.create(device_claim("mine", kind))
    user = harness.pod(
        "mine", schedulerName="other-scheduler", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]
    )
    user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    (pod,) = harness.api.create(user)
    given = [{"name": "gpu", "allocation": device(harness, 0)}]
    harness.api.create(harness.request(pod, harness.nodes[0], resourceClaimAllocations=given))
    harness.wait_bound(["mine"])
    (reserved,) = harness.api.get("ResourceClaim", "mine")["status"]["reservedFor"]
    assert reserved["uid"] == pod["metadata"]["uid"]


def device(harness: BinderHarness, number: int) -> Tree:
    """A device of the node, allocated as by an engine."""
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": harness.nodes[0], "device": f"gpu-{number}"}
    return {"devices": {"results": [result]}}


def makes_a_claim(harness: BinderHarness) -> None:
    """For extended resources that are backed by devices; the claim is deleted again if a plugin fails."""
    wanted = {"deviceClassName": f"{harness.label[:40]}-gpu", "allocationMode": "ExactCount", "count": 1}
    for number, (name, phase) in enumerate((("extended", "Succeeded"), ("refused", "Failed")), start=1):
        given = {
            "allocation": device(harness, number),
            "deviceRequests": [{"name": "gpu", "exactly": wanted}],
            "containerMappings": [{"containerName": "main", "resourceName": "example.com/gpu", "requestName": "gpu"}],
        }
        asking = harness.pod(name, schedulerName="other-scheduler", asks={"example.com/gpu": "1"})
        (pod,) = harness.api.create(asking)
        fail = {"noting.kai.scheduler/fail": "yes"} if phase == "Failed" else {}
        more: Tree = {"extendedResourceClaimAllocation": given, "backoffLimit": 1}
        harness.api.create(harness.request(pod, harness.nodes[0], annotations=fail, **more))
        harness.wait_for_end(name, phase)
    claims = {each["metadata"]["name"] for each in harness.api.list("ResourceClaim")} - {"mine"}
    claim_name = harness.api.pod("extended")["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    assert claims == {claim_name}


def shares_a_device(harness: BinderHarness) -> None:
    """A shared device: reserved, in ConfigMaps, rolled back after a failure, freed after its last user."""
    harness.create_gpu_sharing_pod("first", "group-1", config_map=True)
    wait_until(lambda: bool(harness.reservations("group-1")), "the device is reserved")
    (held,) = harness.reservations("group-1")
    annotate = ("annotate", "pod", held["metadata"]["name"], f"--namespace={RESERVATIONS}", f"{DEVICE}=GPU-7")
    harness.cluster.kubectl(
        *annotate, user=RESERVATION.name
    )  # as the program of the reservation pod, under its account
    harness.wait_for_end("first", "Succeeded")
    harness.create_gpu_sharing_pod(
        "second", "group-1", backoffLimit=1, annotations={"noting.kai.scheduler/fail": "yes"}
    )
    harness.wait_for_end("second", "Failed")
    assert "runai-gpu-group" not in harness.api.pod("second")["metadata"].get("labels", {})
    for name in ("first", "second"):
        harness.api.delete("Pod", name, now=True)
    harness.api.delete_all("BindRequest", ["first", "second"])
    wait_until(lambda: not harness.reservations("group-1"), "the device is free again")


def test_the_webhooks_need_no_rights_except_their_registrations(cluster_of_rules: Cluster, tmp_path: Path) -> None:
    cluster = cluster_of_rules
    (found,) = [tree for tree in ADMISSION.objects() if tree["kind"] == "Deployment"]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    here = ("--listen-address=127.0.0.1", "--port=0", f"--kubeconfig={cluster.kubeconfig(ADMISSION.name)}")
    asked = "the API server now calls service bayplan-system/bayplan-gpu-admission"
    for number in range(2):  # the second finds the registrations of the first
        log = tmp_path / f"webhooks-{number}.log"
        command = [sys.executable, "-m", "bayplan", *container["args"], *here, f"--cert-dir={tmp_path / str(number)}"]
        with run_process(command, log):
            wait_until(lambda log=log: asked in log.read_text(), "the webhooks are registered")  # type: ignore[misc]
    entries = ADMISSION.log(cluster)
    assert denied_requests(entries) == []
    assert used_rights(entries) == ADMISSION.rights()
    kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
    registered = json.loads(cluster.kubectl("get", kinds, "-o", "json"))["items"]
    cluster.kubectl("delete", kinds, "--all")  # their service does not exist
    assert {tree["metadata"]["name"] for tree in registered} == {"bayplan-gpus-mutate", "bayplan-gpus-validate"}
    (conditions,) = {json.dumps(hook["matchConditions"]) for tree in registered for hook in tree["webhooks"]}
    assert "object.spec.schedulerName in ['bayplan']" in conditions


def test_neither_has_the_rights_of_the_other(cluster_of_rules: Cluster, tmp_path: Path) -> None:
    """Checked by SelfSubjectAccessReviews with the tokens of both."""
    cluster = cluster_of_rules
    cluster.kubectl("create", "namespace", "borders")
    harness = BinderHarness(cluster, "borders", tmp_path)
    install_volcano_crds(cluster, harness.api)
    harness.add_nodes(1)
    (pod,) = harness.api.create(harness.pod("web", schedulerName="other-scheduler"))
    target = {"kind": "Node", "name": harness.nodes[0]}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"}, "target": target}
    request = harness.request(pod, harness.nodes[0])
    for account, path, body in (
        (SCHEDULER, "/api/v1/namespaces/borders/pods/web/binding", binding),
        (BINDER, "/apis/scheduling.run.ai/v1alpha2/namespaces/borders/bindrequests", request),
    ):
        file = tmp_path / "body.json"
        file.write_text(json.dumps(body))
        with pytest.raises(ClusterError, match="Forbidden"):
            cluster.kubectl("create", "--raw", path, "-f", str(file), user=account.name)
    assert node_name(harness.api.pod("web")) == ""
    assert harness.find("BindRequest", "web") == {}
    harness.close()


REFUSING = """
from bayplan.binder.plugin import RejectBind


class Refusing:
    name = "refusing"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        if node.name == "BAD":
            raise RejectBind("not here")
"""


def test_the_batch_engine_creates_requests_and_binds_nothing(tmp_path: Path) -> None:
    """With the settings of `deploy/`; requests that fail on one node are deleted and created again."""
    with run_audited_cluster(tmp_path, BATCH_OVERLAY, BINDER, BATCH) as cluster:
        cluster.kubectl("create", "namespace", "work")
        harness = BinderHarness(cluster, "work", tmp_path)
        bad, good = harness.add_nodes(2, cpu="4")
        plugins = tmp_path / "plugins"
        plugins.mkdir(mode=0o755)
        (plugins / "refusing.py").write_text(REFUSING.replace("BAD", bad))
        given = yaml.safe_load((BATCH_OVERLAY / "settings.yaml").read_text())["data"]["settings.yaml"]
        engine = harness.run_batch_with_requests(f"--kubeconfig={cluster.kubeconfig(BATCH.name)}", settings=given)
        with engine, harness.binder(f"--kubeconfig={cluster.kubeconfig(BINDER.name)}", f"--plugins-dir={plugins}"):
            names = harness.gang("ring", 3)
            harness.wait_bound(names)
            for name in names:
                harness.wait_for_end(name, "Succeeded")
        assert harness.nodes_of(names) == [good] * 3
        for account in (BATCH, BINDER):
            entries = account.log(cluster)
            assert denied_requests(entries) == []
            assert used_rights(entries) - rights(cluster, account, BATCH_OVERLAY) == set()
        asked = {right[2] for right in used_rights(BATCH.log(cluster)) if right[1] == "bindrequests"}
        assert asked >= {"list", "watch", "create", "delete"}  # get: if an earlier pod's request has the name
        assert ("", "pods/binding", "create") not in rights(cluster, BATCH, BATCH_OVERLAY)
        harness.check_invariants()
        harness.close()
