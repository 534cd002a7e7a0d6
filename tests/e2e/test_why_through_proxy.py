"""`bayplan why` from outside the cluster: to the leader through a real API server's proxy, with the caller's token."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.api import Api, Tree
from cluster.run import Cluster, free_ports
from support.e2e.batch_harness import BatchSchedulerHarness
from support.e2e.scheduler_harness import short_backoff_config
from support.e2e.scheduler_process import condition, node, pod, run_scheduler, wait_until
from support.fakes.egress_proxy import run_egress_proxy
from support.harness.deadlines import DEADLINE_S

SPACE, SYSTEM, LEADER = "team", "kube-system", "bayplan-0"
READER, STRANGER, OUTSIDER = "reader", "stranger", "outsider"
"""One user may reach the leader and get the pods; one may reach it only; one has no rights."""
RULES = "rbac.authorization.k8s.io"
POD_ADDRESS = "10.9.8.7"


def allowed(user: str, namespace: str, resource: str, group: str = "") -> list[Tree]:
    """The right to get a resource in a namespace."""
    name = f"{user}-{resource.replace('/', '-')}"
    meta = {"name": name, "namespace": namespace}
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": ["get"]}]
    return [
        {"apiVersion": f"{RULES}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{RULES}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "subjects": [{"kind": "User", "name": user, "apiGroup": RULES}],
            "roleRef": {"apiGroup": RULES, "kind": "Role", "name": name},
        },
    ]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real API server that can connect to pods; the scheduler runs in one of its pods."""
    folder = tmp_path_factory.mktemp("proxied")
    with run_egress_proxy() as flag, Cluster(folder, flags=[flag], users=[READER, STRANGER, OUTSIDER]) as running:
        running.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        system = Api(running, SYSTEM)
        system.create(node("worker", cpu="2"), {**pod(LEADER, SYSTEM, nodeName="worker")})
        system.patch("Pod", LEADER, {"status": {"phase": "Running", "podIP": POD_ADDRESS}}, sub="status")
        rights = [*allowed(READER, SPACE, "pods")]
        for user in (READER, STRANGER):
            rights += allowed(user, SYSTEM, "leases", "coordination.k8s.io") + allowed(user, SYSTEM, "pods/proxy")
        running.apply(*rights)
        yield running


@pytest.fixture
def leader_api(real: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """A scheduler that leads, as a pod of the API server, and an unschedulable pod."""
    monkeypatch.setenv("POD_NAMESPACE", SYSTEM)
    monkeypatch.setenv("POD_NAME", LEADER)
    (port,) = free_ports(1)
    config = short_backoff_config().replace("leaderElect: false", "leaderElect: true")
    api = Api(real, SPACE)
    with run_scheduler(real, tmp_path, f"--secure-port={port}", "--bind-address=127.0.0.1", config=config):
        api.create(pod("large", SPACE, cpu="2500m"))
        wait_until(lambda: condition(api.pod("large")).get("message"), "it has a reason")
        yield api
        api.delete("Pod", "large", now=True)


def why(real: Cluster, user: str, *arguments: str, pod: str = "large") -> subprocess.CompletedProcess[str]:
    command = ["why", pod, "-n", SPACE, "--kubeconfig", str(real.kubeconfig(user)), "-o", "json", *arguments]
    return subprocess.run(
        [sys.executable, "-m", "bayplan", *command], capture_output=True, text=True, timeout=DEADLINE_S
    )


def test_the_leader_answers_users_who_may_get_the_pod(real: Cluster, leader_api: Api) -> None:
    lease = Api(real, SYSTEM).get("Lease", "kube-scheduler")
    mark = json.loads(lease["metadata"]["annotations"]["bayplan.io/leader"])
    assert (mark["namespace"], mark["pod"]) == (SYSTEM, LEADER)
    assert mark["identity"] == lease["spec"]["holderIdentity"]

    told = why(real, READER)
    assert told.returncode == 0, told.stderr
    answer = json.loads(told.stdout)
    assert (answer["pod"], answer["state"], answer["source"]) == (f"{SPACE}/large", "pending", "record")
    assert [reason["text"] for reason in answer["reasons"]] == ["Insufficient cpu"]
    assert answer["uid"] == leader_api.pod("large")["metadata"]["uid"]
    afresh = why(real, READER, "--now")
    assert json.loads(afresh.stdout)["source"] == "now", afresh.stderr

    refused = why(real, STRANGER)  # may reach the leader, but not get the pod
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "forbidden" in refused.stderr.lower()
    assert STRANGER in refused.stderr
    kept_out = why(real, OUTSIDER)  # may not reach the leader
    assert (kept_out.returncode, kept_out.stdout) == (1, "")
    assert 'cannot get resource "leases"' in kept_out.stderr


def test_the_leader_of_a_batch_engine_answers(real: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", SYSTEM)
    monkeypatch.setenv("POD_NAME", LEADER)
    harness = BatchSchedulerHarness(real, SPACE, tmp_path)
    (port,) = free_ports(1)
    flags = (
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        "--leader-elect=true",
        f"--leader-elect-resource-namespace={SYSTEM}",
    )
    with harness.run_batch(*flags):
        (large,) = harness.gang("elsewhere", 1, cpu="100m", nodeSelector={"disk": "fast"})
        wait_until(lambda: condition(harness.api.pod(large)).get("message"), "it has a reason")
        told = why(real, READER, "--lease", f"{SYSTEM}/volcano", pod=large)
        assert told.returncode == 0, told.stderr
        answer = json.loads(told.stdout)
        assert (answer["pod"], answer["engine"], answer["state"]) == (f"{SPACE}/{large}", "batch", "pending")
        assert any("node(s) didn't match" in reason["text"] for reason in answer["reasons"]), told.stdout
        refused = why(real, STRANGER, "--lease", f"{SYSTEM}/volcano", pod=large)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "forbidden" in refused.stderr.lower()


def test_without_a_leader(real: Cluster) -> None:
    """A lease that another program holds, without the address of its server."""
    api = Api(real, SYSTEM)
    api.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "other"}, "spec": {}})
    told = why(real, READER, "--lease", f"{SYSTEM}/other")
    assert (told.returncode, told.stdout) == (2, "")
    assert "no scheduler leads" in told.stderr
    api.patch("Lease", "other", {"spec": {"holderIdentity": "kube-scheduler_1"}})
    told = why(real, READER, "--lease", f"{SYSTEM}/other")
    assert "name its address with --url" in told.stderr
