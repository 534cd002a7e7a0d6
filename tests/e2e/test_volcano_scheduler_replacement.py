"""The batch engine as replacement of Volcano's scheduler, with Volcano's CRDs, controllers and webhooks.

They are those of Volcano 1.14.1, the last whose module can be built from what Go downloads.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bayplan.app.webhook_manager import ensure_certificate
from cluster.build import program
from cluster.run import Cluster, ClusterError, die_with_parent, free_ports
from support.builders.volcano_manifests import Tree, job, task
from support.e2e.batch_harness import BatchSchedulerHarness
from support.e2e.scheduler_process import node_name, wait_until
from support.e2e.volcano_examples import module_folder
from support.harness.deadlines import DEADLINE_S

pytestmark = pytest.mark.soak
VERSION = "v1.14.1"
JOBS = "jobs.batch.volcano.sh"
JOB_NAME = "volcano.sh/job-name"
DOORS = "/jobs/mutate,/jobs/validate,/podgroups/mutate,/pods/mutate,/pods/validate,/queues/mutate,/queues/validate"


@contextmanager
def part(cluster: Cluster, folder: Path, name: str, *flags: str) -> Iterator[None]:
    """A Volcano program, ended by its own pid."""
    with (folder / f"{name}.log").open("wb") as log:
        command = [str(program("volcano")), name, f"--kubeconfig={cluster.kubeconfig()}", *flags]
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)
        try:
            yield
            assert process.poll() is None, (folder / f"{name}.log").read_text()[-4000:]
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def definitions(cluster: Cluster) -> dict[str, int]:
    """By name: generation of each CRD."""
    found = json.loads(cluster.kubectl("get", "customresourcedefinitions", "-o", "json"))["items"]
    return {each["metadata"]["name"]: each["metadata"]["generation"] for each in found}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Volcano without its scheduler."""
    folder = tmp_path_factory.mktemp("volcano")
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder / "cluster"))
        for file in sorted((module_folder(VERSION) / "config" / "crd" / "volcano" / "bases").glob("*.yaml")):
            cluster.kubectl("create", "-f", str(file))
        cluster.kubectl("create", "namespace", "volcano-system")
        (port,) = free_ports(1)
        certificate, key = ensure_certificate(folder, ["127.0.0.1"])
        tls = (f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}", f"--ca-cert-file={certificate}")
        where = ("--listen-address=127.0.0.1", f"--port={port}", f"--webhook-url=https://127.0.0.1:{port}")
        given = ("admission", "manifests", "--url", f"https://127.0.0.1:{port}", "--enabled-admission", DOORS)
        cluster.kubectl("create", "-f", "-", stdin=ours(*given))  # done by an installer; the names are Volcano's
        stack.enter_context(part(cluster, folder, "webhooks", *tls, *where))
        stack.enter_context(part(cluster, folder, "controllers", "--leader-elect=false"))
        wait_until(lambda: _answers(port), "the webhooks are served")
        yield cluster


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def ours(*arguments: str) -> str:
    """The output of a Bayplan command."""
    command = [sys.executable, "-m", "bayplan", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE_S).stdout


@pytest.fixture
def harness(installed: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    name = request.node.name.replace("_", "-")[5:55].strip("-")
    installed.kubectl("create", "namespace", name)
    mine = BatchSchedulerHarness(installed, name, tmp_path)
    yield mine
    mine.close()


def phase(harness: BatchSchedulerHarness, name: str) -> str:
    found: Tree = json.loads(harness.cluster.kubectl("get", JOBS, name, "-n", harness.namespace, "-o", "json"))
    return str(found.get("status", {}).get("state", {}).get("phase", ""))


def default_queue(harness: BatchSchedulerHarness) -> str:
    found = [each for each in harness.api.list("Queue") if each["metadata"]["name"] == "default"]
    return str(found[0].get("status", {}).get("state", "")) if found else ""


def of_job(harness: BatchSchedulerHarness, name: str) -> list[str]:
    """The pods that Volcano's controller has created."""
    return sorted(each for each, pod in harness.api.pods().items() if pod["metadata"]["labels"].get(JOB_NAME) == name)


def test_definitions_that_are_installed_are_left_alone(installed: Cluster) -> None:
    before = definitions(installed)
    assert "podgroups.scheduling.volcano.sh" in before
    ours("crds", "--install", "--kubeconfig", str(installed.kubeconfig()))
    after = definitions(installed)
    assert {name: after[name] for name in before} == before


def test_its_jobs_are_placed_run_and_end(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(2, cpu="4")
    small, large = task("worker", 3), task("worker", 9)
    large["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
    for each in (small, large):
        each["template"]["spec"]["nodeSelector"] = {"for": harness.label}
    with harness.run_batch(conf=None):
        wait_until(lambda: default_queue(harness) == "Open", "the queue that we make is opened by its controller")
        for each in (job("fits", small), job("large", large)):
            harness.cluster.kubectl("create", "-n", harness.namespace, "-f", "-", stdin=json.dumps(each))
        wait_until(
            lambda: len(of_job(harness, "fits")) == 3, "the controller has made the pods of a group that was let in"
        )
        names = of_job(harness, "fits")
        harness.wait_bound(names)
        harness.start(*names)
        wait_until(lambda: phase(harness, "fits") == "Running", "the job runs", why=lambda: phase(harness, "fits"))
        for name in names:
            harness.api.patch("Pod", name, {"status": {"phase": "Succeeded"}}, sub="status")
        wait_until(
            lambda: phase(harness, "fits") == "Completed", "the job has ended", why=lambda: phase(harness, "fits")
        )
        assert phase(harness, "large") == "Pending"
        assert not any(node_name(harness.api.pod(name)) for name in of_job(harness, "large"))


def test_its_webhooks_still_refuse_objects(harness: BatchSchedulerHarness) -> None:
    wrong = job("wrong", task("worker", 1), minAvailable=5)
    with pytest.raises(ClusterError, match="'minAvailable' should not be greater than total replicas"):
        harness.cluster.kubectl("create", "-n", harness.namespace, "-f", "-", stdin=json.dumps(wrong))


def test_a_bare_pod_gets_its_group_from_volcano_and_its_node_from_bayplan(harness: BatchSchedulerHarness) -> None:
    (only,) = harness.add_nodes(1)
    with harness.run_batch(conf=None):
        harness.api.create(harness.pod("alone", schedulerName="volcano"))
        harness.wait_bound(["alone"])
        assert node_name(harness.api.pod("alone")) == only
        (group,) = harness.api.list("PodGroup")
        assert group["metadata"]["ownerReferences"][0]["name"] == "alone"
        harness.start("alone")
        harness.wait_for_phase(group["metadata"]["name"], "Running")
