"""The binder's rules and the scheduler's against the server's audit log: neither asks for what is the other's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from batch_corner import install
from binder_corner import BinderCorner
from cluster.api import Tree
from cluster.run import Cluster
from needs import bind_claim, claim, device_claim, devices, late_class, volume, with_claim
from scenario import quick
from scheduling import until

OVERLAY = Path(__file__).resolve().parents[2] / "deploy" / "kustomize" / "binder"
BINDER, SCHEDULER = "bayplan-binder", "bayplan"
ACCOUNTS = {name: f"system:serviceaccount:bayplan-system:{name}" for name in (BINDER, SCHEDULER)}
POLICY = f"""
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
  - {{level: Metadata, users: {json.dumps(list(ACCOUNTS.values()))}}}
  - {{level: None}}
"""
NOTING = """
class Noting:
    name = "noting"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        await ctx.annotate(pod, {"example.com/noted": "yes"})
"""
PROFILES = """
profiles:
- schedulerName: bayplan
  plugins:
    multiPoint:
      enabled: [{name: BindRequestBinder}]
      disabled: [{name: DefaultBinder}]
"""

Right = tuple[str, str, str]
SELDOM: set[Right] = {
    ("events.k8s.io", "events", "patch"),  # a series of an event is told where one version is spoken of twice
    ("resource.k8s.io", "resourceclaims/binding", "patch"),  # checked within other requests
}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that keeps account of what both ask, under exactly the rules that we hand out."""
    folder = tmp_path_factory.mktemp("audited")
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    flags = (
        f"--audit-policy-file={policy}",
        f"--audit-log-path={folder / 'audit.log'}",
        "--audit-log-mode=blocking-strict",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    )
    with Cluster(folder / "cluster", flags=flags, users=["limited"]) as cluster:
        cluster.kubectl("apply", "-k", str(OVERLAY))
        for name in ACCOUNTS:
            cluster.tokens[name] = cluster.kubectl("-n", "bayplan-system", "create", "token", name).strip()
        yield cluster


def rights(cluster: Cluster, name: str) -> set[Right]:
    """What the roles of an account allow."""
    trees = [tree for tree in yaml.safe_load_all(cluster.kubectl("kustomize", str(OVERLAY))) if tree]
    roles = {(each["kind"], each["metadata"]["name"]): each for each in trees if "Role" in each["kind"]}
    bound = [
        (each["roleRef"]["kind"], each["roleRef"]["name"])
        for (kind, _), each in roles.items()
        if kind.endswith("Binding") and any(subject["name"] == name for subject in each["subjects"])
    ]
    return {
        right
        for key in bound
        if key in roles  # others are the cluster's own
        for rule in roles[key]["rules"]
        for right in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def log(cluster: Cluster, name: str) -> list[Tree]:
    text = (cluster.folder.parent / "audit.log").read_text()
    return [tree for tree in map(json.loads, text.splitlines()) if tree["user"]["username"] == ACCOUNTS[name]]


def used(entries: list[Tree]) -> set[Right]:
    found = set()
    for entry in entries:
        if "objectRef" in entry:
            about = entry["objectRef"]
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            found.add((about.get("apiGroup", ""), resource, entry["verb"]))
    return found


def denied(entries: list[Tree]) -> list[str]:
    return [
        f"{each['verb']} {each['requestURI']}" for each in entries if each.get("responseStatus", {}).get("code") == 403
    ]


def test_each_asks_for_its_own_and_nothing_is_denied(audited: Cluster, tmp_path: Path) -> None:
    audited.kubectl("create", "namespace", "work")
    corner = BinderCorner(audited, "work", tmp_path)
    install(audited, corner.api)
    corner.add_nodes(2, cpu="4")
    plugins = tmp_path / "plugins"
    plugins.mkdir(mode=0o755)
    (plugins / "noting.py").write_text(NOTING)
    binder = (
        f"--kubeconfig={audited.kubeconfig(BINDER)}",
        f"--plugins-dir={plugins}",
        "--leader-elect",
        "--leader-elect-resource-namespace=bayplan-system",
    )
    scheduler: dict[str, Any] = {"config": quick(PROFILES), "kubeconfig": audited.kubeconfig(SCHEDULER)}
    with corner.running(**scheduler), corner.binder(*binder):
        corner.api.create(corner.pod("web", schedulerName="bayplan"))
        corner.bound(["web"])
        binds_a_volume(corner)
        reserves_a_device(corner)
        corner.requested("gone", corner.nodes[0], podName="nobody")
        corner.ends("gone", "Failed")
        until(lambda: ("coordination.k8s.io", "leases", "update") in used(log(audited, BINDER)), "the lease is renewed")
    for name in ACCOUNTS:
        entries = log(audited, name)
        assert denied(entries) == []
        assert used(entries) - rights(audited, name) == set()
    idle = rights(audited, BINDER) - used(log(audited, BINDER)) - SELDOM
    assert {right for right in idle if right[2] != "list"} == set()  # a watch that begins with a list needs none
    assert not may(audited, SCHEDULER, "create", "pods/binding")
    assert not may(audited, BINDER, "create", "bindrequests.scheduling.run.ai")
    assert may(audited, BINDER, "create", "pods/binding")
    assert may(audited, SCHEDULER, "create", "bindrequests.scheduling.run.ai")


def may(cluster: Cluster, name: str, verb: str, resource: str) -> bool:
    given = [right for right in rights(cluster, name) if right[2] == verb]
    plural, _, group = resource.partition(".")
    return any(right[:2] == (group, plural) for right in given)


def binds_a_volume(corner: BinderCorner) -> None:
    """A pod that nobody schedules, so that the binder's own plugin does all of it."""
    kind = late_class(corner, "local", "kubernetes.io/no-provisioner")
    made = volume(corner, "v", corner.nodes[1], kind)
    name = made["metadata"]["name"]
    corner.api.create(made, claim("data", kind))
    corner.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    waiting = with_claim(corner, "local", "data")
    waiting["spec"]["schedulerName"] = "nobody"
    (pod,) = corner.api.create(waiting)
    corner.api.create(corner.request(pod, corner.nodes[1]))
    until(lambda: "claimRef" in corner.api.get("PersistentVolume", name)["spec"], "the volume is promised")
    bind_claim(corner, "data", name)
    corner.bound(["local"])
    corner.api.create(claim("made", late_class(corner, "made", "example.com/maker")))
    waiting = with_claim(corner, "made", "made")
    waiting["spec"]["schedulerName"] = "nobody"
    (pod,) = corner.api.create(waiting)
    corner.api.create(corner.request(pod, corner.nodes[1]))
    until(lambda: "selected-node" in json.dumps(corner.api.get("PersistentVolumeClaim", "made")), "a node is named")


def reserves_a_device(corner: BinderCorner) -> None:
    kind = f"{corner.label[:40]}-gpu"
    made = devices(corner, corner.nodes[0], kind, count=1)
    corner.api.create(*made)
    slices = next(each for each in made if each["kind"] == "ResourceSlice")["spec"]
    corner.api.create(device_claim("mine", kind))
    user = corner.pod("mine", schedulerName="nobody", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])
    user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    (pod,) = corner.api.create(user)
    asked = corner.api.get("ResourceClaim", "mine")["spec"]["devices"]["requests"][0]["name"]
    result = {
        "request": asked,
        "driver": slices["driver"],
        "pool": slices["pool"]["name"],
        "device": slices["devices"][0]["name"],
    }
    given = [{"name": "gpu", "allocation": {"devices": {"results": [result]}}}]
    corner.api.create(corner.request(pod, corner.nodes[0], resourceClaimAllocations=given))
    corner.bound(["mine"])
    (reserved,) = corner.api.get("ResourceClaim", "mine")["status"]["reservedFor"]
    assert reserved["uid"] == pod["metadata"]["uid"]
