"""The rules of `deploy/` against the server's audit log: nothing that the scheduler asks is denied, no rule is idle."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Tree
from cluster.run import Cluster, free_ports
from support.e2e.audit_log import AccessRight, DeployedFolder, denied_requests, used_rights
from support.e2e.scheduler_harness import SchedulerHarness
from support.e2e.scheduler_process import Endpoint, condition, node_name, run_scheduler, wait_until
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

DEPLOYED = DeployedFolder("base", "bayplan-system", "bayplan")
NAME = DEPLOYED.name

STUBBORN = '''
class Stubborn:
    """Refuses pods with its label, for one of two reasons: which one depends on a label of the node."""

    name = "Stubborn"

    def filter(self, cycle, node):
        from bayplan.framework import unschedulable

        odd = int(node.labels.get("touched", "0")) % 2
        return unschedulable("never" if odd else "not today") if "stubborn" in cycle.pod.labels else None
'''

ASKED_BY_THE_SERVER_ITSELF: dict[AccessRight, str] = {
    ("resource.k8s.io", "resourceclaims/binding", "patch"): "who allocates by a patch of the status needs it",
    ("", "pods/finalizers", "update"): "who makes a claim that its pod owns needs it, where owners are enforced",
}
"""Checked within other requests, so that no request of its own shows in the log."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with DEPLOYED.audited(tmp_path_factory.mktemp("audited")) as cluster:
        yield cluster


def log(cluster: Cluster) -> list[Tree]:
    return DEPLOYED.log(cluster)


def streaming(ask: ProxiedRequest) -> bool:
    return "sendInitialEvents=true" in ask.path


@contextmanager
def running(cluster: Cluster, folder: Path, port: int, *, lists: bool = False) -> Iterator[FaultProxy]:
    """The scheduler with the configuration that we hand out, and a plugin, by way of a proxy.

    `lists`: the server seems to be of those that do not stream what exists.
    """
    (given,) = [tree for tree in DEPLOYED.objects() if tree["kind"] == "ConfigMap"]
    config: dict[str, Any] = yaml.safe_load(given["data"]["config.yaml"])
    config |= {
        "clientConnection": {"kubeconfig": "KUBECONFIG"},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
    }
    config["profiles"][0]["plugins"] = {"multiPoint": {"enabled": [{"name": "Stubborn"}]}}
    plugins = folder / "plugins"
    plugins.mkdir(mode=0o755, exist_ok=True)
    (plugins / "stubborn.py").write_text(STUBBORN)
    flags = (f"--secure-port={port}", "--bind-address=127.0.0.1", f"--plugins-dir={plugins}")
    with run_fault_proxy(cluster, folder) as proxy:
        if lists:
            proxy.add(ProxyFault(streaming, refuse=refusal(422, "Invalid")))
        way = proxy.kubeconfig(NAME)
        with run_scheduler(cluster, folder, *flags, config=yaml.safe_dump(config), kubeconfig=way) as process:
            yield proxy
            assert process.poll() is None


# What a cluster asks of a scheduler, one after another


def places_and_preempts(corner: SchedulerHarness) -> None:
    strong = corner.priority("strong", 1000)
    corner.api.create(ours(corner.pod("first", cpu="3")), ours(corner.pod("second", cpu="3")))
    corner.wait_bound(["first", "second"])
    corner.api.create(ours(corner.pod("strong", cpu="3", priorityClassName=strong)))
    corner.wait_bound(["strong"])


def keeps_telling(corner: SchedulerHarness) -> None:
    """Two reasons in turn become two series."""
    corner.api.create(ours(corner.pod("stubborn", labels={"stubborn": "yes"})))
    number = itertools.count()

    def is_series() -> bool:
        corner.api.patch("Node", corner.nodes[0], {"metadata": {"labels": {"touched": str(next(number))}}})
        told = [each for each in corner.api.list("Event") if each["regarding"]["name"] == "stubborn"]
        return any(each.get("series") for each in told)

    wait_until(is_series, "a series is told")


def binds_volumes(corner: SchedulerHarness) -> None:
    kind = wait_for_first_consumer_class(corner, "local", "kubernetes.io/no-provisioner")
    made = volume(corner, "v", corner.nodes[1], kind)
    name = made["metadata"]["name"]
    corner.api.create(made, claim("data", kind))
    corner.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    corner.api.create(ours(pod_with_claim(corner, "local", "data")))
    wait_until(lambda: "claimRef" in corner.api.get("PersistentVolume", name)["spec"], "the volume is promised")
    bind_claim(corner, "data", name)
    corner.wait_bound(["local"])
    corner.api.create(claim("made", wait_for_first_consumer_class(corner, "made", "example.com/maker")))
    corner.api.create(ours(pod_with_claim(corner, "made", "made")))
    wait_until(
        lambda: "selected-node" in json.dumps(corner.api.get("PersistentVolumeClaim", "made")), "a node is named"
    )


def allocates_devices(corner: SchedulerHarness, proxy: FaultProxy) -> None:
    """A claim that somebody else writes meanwhile is read again; one made for a pod that is not bound goes."""
    kind = f"{corner.label[:40]}-gpu"
    corner.api.create(*devices(corner, corner.nodes[1], kind, count=4, extendedResourceName="example.com/gpu"))
    corner.api.create(device_claim("mine", kind))

    def allocating(ask: ProxiedRequest) -> bool:
        return ask.method == "PATCH" and "/resourceclaims/mine/status" in ask.path

    proxy.add(ProxyFault(allocating, times=1, refuse=refusal(409, "Conflict")))
    user = ours(corner.pod("mine", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]))
    user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    corner.api.create(user)
    corner.wait_bound(["mine"])
    proxy.add(
        ProxyFault(lambda ask: ask.is_binding and "/extended/" in ask.path, times=1, refuse=refusal(409, "Conflict"))
    )
    corner.api.create(extended(corner, "extended"))
    corner.wait_bound(["extended"])


def extended(corner: SchedulerHarness, name: str) -> Tree:
    pod = ours(corner.pod(name))
    pod["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
    return pod


def loses_an_answer(corner: SchedulerHarness, proxy: FaultProxy) -> None:
    proxy.add(ProxyFault(lambda ask: ask.is_binding, times=1, refuse=refusal(500, "InternalError")))
    corner.api.create(ours(corner.pod("doubtful")))
    corner.wait_bound(["doubtful"])


def ours(pod: Tree) -> Tree:
    pod["spec"]["schedulerName"] = NAME
    return pod


def asked(cluster: Cluster, port: int, user: str) -> int:
    headers = {"Authorization": f"Bearer {cluster.tokens[user]}"}
    return asyncio.run(get(Endpoint(port), "/metrics", headers=headers)).status


def test_nothing_is_denied_and_no_rule_is_idle(audited: Cluster, tmp_path: Path) -> None:
    audited.kubectl("create", "namespace", "work")
    corner = SchedulerHarness(audited, "work", tmp_path)
    corner.add_nodes(2)
    (port,) = free_ports(1)
    with running(audited, tmp_path, port) as proxy:
        places_and_preempts(corner)
        keeps_telling(corner)
        binds_volumes(corner)
        allocates_devices(corner, proxy)
        loses_an_answer(corner, proxy)
        assert (asked(audited, port, "admin"), asked(audited, port, "limited")) == (200, 403)
        wait_until(
            lambda: ("coordination.k8s.io", "leases", "update") in used_rights(log(audited)), "the lease is renewed"
        )
    with running(audited, tmp_path, port, lists=True):
        corner.api.create(ours(corner.pod("last")))
        corner.wait_bound(["last"])
    entries = log(audited)
    assert denied_requests(entries) == []
    idle = DEPLOYED.rights() - used_rights(entries)
    assert idle == set(ASKED_BY_THE_SERVER_ITSELF)
    assert used_rights(entries) - DEPLOYED.rights() == {("", "configmaps", "get")}, (
        "which the API server's own role allows"
    )


def test_what_the_server_asks_by_itself_is_needed(audited: Cluster, tmp_path: Path) -> None:
    """Without these two rules a claim is neither allocated nor made."""
    (role,) = [tree for tree in DEPLOYED.objects() if tree["kind"] == "ClusterRole"]
    without = {resource for _, resource, _ in ASKED_BY_THE_SERVER_ITSELF}
    for rule in role["rules"]:
        rule["resources"] = [each for each in rule["resources"] if each not in without]
    role["rules"] = [rule for rule in role["rules"] if rule["resources"]]
    audited.apply(role)
    audited.kubectl("create", "namespace", "without")
    corner = SchedulerHarness(audited, "without", tmp_path)
    corner.add_nodes(2)
    kind = f"{corner.label[:40]}-gpu"
    corner.api.create(*devices(corner, corner.nodes[1], kind, count=4, extendedResourceName="example.com/other"))
    corner.api.create(device_claim("mine", kind))
    (port,) = free_ports(1)
    with running(audited, tmp_path, port):
        user = ours(corner.pod("mine", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]))
        user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        special = extended(corner, "special")
        special["spec"]["containers"][0]["resources"] = {"limits": {"example.com/other": "1"}}
        corner.api.create(user, special)
        wait_until(lambda: "forbidden" in told(corner, "mine"), "a claim is not allocated")
        wait_until(lambda: "forbidden" in told(corner, "special"), "a claim is not made")
    assert not any(node_name(each) for each in corner.api.pods().values())


def told(corner: SchedulerHarness, name: str) -> str:
    return str(condition(corner.api.pod(name)).get("message", ""))
