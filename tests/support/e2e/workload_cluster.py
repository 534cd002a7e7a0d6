"""A cluster with controllers, fake nodes and a scheduler, each started on the command line, and kubectl."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cluster.build import program
from cluster.run import Cluster
from support.e2e.scheduler_process import run_process, run_scheduler, wait_until
from support.harness.deadlines import DEADLINE_S

Tree = dict[str, Any]
WAIT_FLAG = f"--timeout={DEADLINE_S - 5:.0f}s"
NODE_LABEL = "for=workload_cluster"


@contextmanager
def running_command(folder: Path, *arguments: str, says: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Bayplan command that runs until the end of the block; the block starts when it has printed `says`."""
    path = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
    with run_process([sys.executable, "-m", "bayplan", *arguments], path) as process:
        wait_until(
            lambda: says in path.read_text(errors="replace") or process.poll() is not None,
            f"{arguments[0]} says {says!r}",
        )
        assert process.poll() is None
        yield process
        assert process.poll() is None


def nodes(cluster: Cluster, folder: Path, name: str, *arguments: str) -> Any:
    """Fake nodes of this name until the end of the block."""
    template = folder / f"{name}.yaml"
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"for": "workload_cluster"}}}
    template.write_text(json.dumps(body))
    way = ("--kubeconfig", str(cluster.kubeconfig()), "--node-template", str(template), "--remove-nodes")
    return running_command(folder, "kubelet", *way, *arguments, says="are ready on")


def controllers(folder: Path, kubeconfig: Path, *arguments: str) -> Any:
    """The controllers until the end of the block."""
    return running_command(folder, "controllers", "--kubeconfig", str(kubeconfig), *arguments, says="are running on")


@contextmanager
def run_cluster(cluster: Cluster, folder: Path, *, kubeconfig: Path | None = None) -> Iterator[None]:
    """The whole cluster; `kubeconfig`: that of the controllers, if not the cluster's own."""
    with ExitStack() as stack:
        way = kubeconfig or cluster.kubeconfig()
        stack.enter_context(controllers(folder, way, "--default-storage-class"))
        stack.enter_context(nodes(cluster, folder, "alive", "--nodes", "3"))
        stack.enter_context(run_scheduler(cluster, folder))
        yield


class NamespaceKubectl:
    """kubectl in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def expect_error(self, *arguments: str) -> str:
        """The error output of a kubectl command, which must fail."""
        command = [str(program("kubectl")), f"--kubeconfig={self.cluster.kubeconfig()}", "-n", self.namespace]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode, done.stdout
        return done.stderr

    def apply(self, *items: Tree) -> None:
        self("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))

    def get(self, *what: str) -> Tree:
        found: Tree = json.loads(self("get", *what, "-o", "json"))
        return found

    def items(self, *what: str) -> list[Tree]:
        found: list[Tree] = self.get(*what)["items"]
        return found

    def names(self, *what: str) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.items(*what))

    def until(self, so: Callable[[], Any], what: str) -> None:
        wait_until(lambda: bool(so()), what, why=lambda: self("get", "all,pvc,events", "-o", "wide")[-4000:])


def template(
    labels: dict[str, str], *, image: str = "one", annotations: dict[str, str] | None = None, **spec: Any
) -> Tree:
    """A pod template for the nodes of this module."""
    containers = [{"name": "main", "image": image}]
    grace = {"terminationGracePeriodSeconds": 1, "nodeSelector": {"for": "workload_cluster"}}
    return {
        "metadata": {"labels": labels, "annotations": annotations or {}},
        "spec": {"containers": containers, **grace, **spec},
    }


def workload(kind: str, name: str, *, pod: Tree | None = None, api: str = "apps/v1", **spec: Any) -> Tree:
    labels = {"app": name}
    body = {"selector": {"matchLabels": labels}, "template": pod or template(labels), **spec}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": body}


def column(table: str, number: int) -> Sequence[str]:
    """One column of a table that kubectl printed, without its heading."""
    return [line.split()[number] for line in table.splitlines()[1:] if line.strip()]
