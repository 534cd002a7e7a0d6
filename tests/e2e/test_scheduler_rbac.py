"""The RBAC rules of `deploy/` against the server's audit log: no request is denied, no rule is unused."""

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
"""Checked within other requests, so the log has no request of its own."""


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
    """The scheduler with the shipped configuration, and a plugin, through a proxy.

    `lists`: the server behaves like one without streaming lists.
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


# the tasks of a scheduler in a cluster, one after another


def places_and_preempts(harness: SchedulerHarness) -> None:
    strong = harness.priority("strong", 1000)
    harness.api.create(ours(harness.pod("first", cpu="3")), ours(harness.pod("second", cpu="3")))
    harness.wait_bound(["first", "second"])
    harness.api.create(ours(harness.pod("strong", cpu="3", priorityClassName=strong)))
    harness.wait_bound(["strong"])


def keeps_telling(harness: SchedulerHarness) -> None:
    """Two reasons in turn become two event series."""
    harness.api.create(ours(harness.pod("stubborn", labels={"stubborn": "yes"})))
    number = itertools.count()

    def is_series() -> bool:
        harness.api.patch("Node", harness.nodes[0], {"metadata": {"labels": {"touched": str(next(number))}}})
        events = [each for each in harness.api.list("Event") if each["regarding"]["name"] == "stubborn"]
        return any(each.get("series") for each in events)

    wait_until(is_series, "there is an event series")


def binds_volumes(harness: SchedulerHarness) -> None:
    kind = wait_for_first_consumer_class(harness, "local", "kubernetes.io/no-provisioner")
    made = volume(harness, "v", harness.nodes[1], kind)
    name = made["metadata"]["name"]
    harness.api.create(made, claim("data", kind))
    harness.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    harness.api.create(ours(pod_with_claim(harness, "local", "data")))
    wait_until(lambda: "claimRef" in harness.api.get("PersistentVolume", name)["spec"], "the volume is promised")
    bind_claim(harness, "data", name)
    harness.wait_bound(["local"])
    harness.api.create(claim("made", wait_for_first_consumer_class(harness, "made", "example.com/maker")))
    harness.api.create(ours(pod_with_claim(harness, "made", "made")))
    wait_until(
        lambda: "selected-node" in json.dumps(harness.api.get("PersistentVolumeClaim", "made")), "a node is named"
    )


def allocates_devices(harness: SchedulerHarness, proxy: FaultProxy) -> None:
    """A claim with a conflicting write is read again; one generated for a pod that is not bound is deleted."""
    kind = f"{harness.label[:40]}-gpu"
    harness.api.create(*devices(harness, harness.nodes[1], kind, count=4, extendedResourceName="example.com/gpu"))
    harness.api.create(device_claim("mine", kind))

    def allocating(ask: ProxiedRequest) -> bool:
        return ask.method == "PATCH" and "/resourceclaims/mine/status" in ask.path

    proxy.add(ProxyFault(allocating, times=1, refuse=refusal(409, "Conflict")))
    user = ours(harness.pod("mine", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]))
    user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    harness.api.create(user)
    harness.wait_bound(["mine"])
    proxy.add(
        ProxyFault(lambda ask: ask.is_binding and "/extended/" in ask.path, times=1, refuse=refusal(409, "Conflict"))
    )
    harness.api.create(extended(harness, "extended"))
    harness.wait_bound(["extended"])


def extended(harness: SchedulerHarness, name: str) -> Tree:
    pod = ours(harness.pod(name))
    pod["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
    return pod


def loses_an_answer(harness: SchedulerHarness, proxy: FaultProxy) -> None:
    proxy.add(ProxyFault(lambda ask: ask.is_binding, times=1, refuse=refusal(500, "InternalError")))
    harness.api.create(ours(harness.pod("doubtful")))
    harness.wait_bound(["doubtful"])


def ours(pod: Tree) -> Tree:
    pod["spec"]["schedulerName"] = NAME
    return pod


def asked(cluster: Cluster, port: int, user: str) -> int:
    headers = {"Authorization": f"Bearer {cluster.tokens[user]}"}
    return asyncio.run(get(Endpoint(port), "/metrics", headers=headers)).status


def test_no_request_is_denied_and_no_rule_is_unused(audited: Cluster, tmp_path: Path) -> None:
    audited.kubectl("create", "namespace", "work")
    harness = SchedulerHarness(audited, "work", tmp_path)
    harness.add_nodes(2)
    (port,) = free_ports(1)
    with running(audited, tmp_path, port) as proxy:
        places_and_preempts(harness)
        keeps_telling(harness)
        binds_volumes(harness)
        allocates_devices(harness, proxy)
        loses_an_answer(harness, proxy)
        assert (asked(audited, port, "admin"), asked(audited, port, "limited")) == (200, 403)
        wait_until(
            lambda: ("coordination.k8s.io", "leases", "update") in used_rights(log(audited)), "the lease is renewed"
        )
    with running(audited, tmp_path, port, lists=True):
        harness.api.create(ours(harness.pod("last")))
        harness.wait_bound(["last"])
    entries = log(audited)
    assert denied_requests(entries) == []
    idle = DEPLOYED.rights() - used_rights(entries)
    assert idle == set(ASKED_BY_THE_SERVER_ITSELF)
    assert used_rights(entries) - DEPLOYED.rights() == {("", "configmaps", "get")}, (
        "which the API server's own role allows"
    )


def test_rights_that_the_server_checks_by_itself_are_necessary(audited: Cluster, tmp_path: Path) -> None:
    """Without these two rules a claim is neither allocated nor created."""
    (role,) = [tree for tree in DEPLOYED.objects() if tree["kind"] == "ClusterRole"]
    without = {resource for _, resource, _ in ASKED_BY_THE_SERVER_ITSELF}
    for rule in role["rules"]:
        rule["resources"] = [each for each in rule["resources"] if each not in without]
    role["rules"] = [rule for rule in role["rules"] if rule["resources"]]
    audited.apply(role)
    audited.kubectl("create", "namespace", "without")
    harness = SchedulerHarness(audited, "without", tmp_path)
    harness.add_nodes(2)
    kind = f"{harness.label[:40]}-gpu"
    harness.api.create(*devices(harness, harness.nodes[1], kind, count=4, extendedResourceName="example.com/other"))
    harness.api.create(device_claim("mine", kind))
    (port,) = free_ports(1)
    with running(audited, tmp_path, port):
        user = ours(harness.pod("mine", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]))
        user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        special = extended(harness, "special")
        special["spec"]["containers"][0]["resources"] = {"limits": {"example.com/other": "1"}}
        harness.api.create(user, special)
        wait_until(lambda: "forbidden" in condition_message(harness, "mine"), "a claim is not allocated")
        wait_until(lambda: "forbidden" in condition_message(harness, "special"), "a claim is not made")
    assert not any(node_name(each) for each in harness.api.pods().values())


def condition_message(harness: SchedulerHarness, name: str) -> str:
    return str(condition(harness.api.pod(name)).get("message", ""))
