"""A `bayplan scheduler` process beside a cluster, and what tests say about pods and nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.run import Cluster
from patience import DEADLINE_S


@dataclass(frozen=True)
class Endpoint:
    """A port on loopback that somebody serves on."""

    port: int


@contextmanager
def scheduler(
    cluster: Cluster,
    folder: Path,
    *arguments: str,
    config: str = "",
    kubeconfig: Path | None = None,
    program: Sequence[str] = ("-m", "bayplan"),
) -> Iterator[subprocess.Popen[bytes]]:
    """One process, ended by its own id when the block is left. Without `config` it runs alone, on the default one.

    `program`: what the interpreter is to run, if not the package as it is.
    """
    given = [*arguments]
    if not any(each.startswith("--secure-port") for each in given):
        given.append("--secure-port=0")  # several processes share this machine
    way = str(kubeconfig or cluster.kubeconfig())
    if config:
        path = folder / "scheduler.yaml"
        path.write_text(config.replace("KUBECONFIG", way))
        given += ["--config", str(path)]
    else:
        given += ["--kubeconfig", way, "--kube-api-qps", "5000", "--kube-api-burst", "10000"]
    log = (folder / f"scheduler-{time.monotonic_ns()}.log").open("wb")
    command = [sys.executable, *program, "scheduler", *given]
    process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        log.close()


def node(name: str, *, cpu: str = "4", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        },
    }


def pod(name: str, namespace: str, *, cpu: str = "100m", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "example.com/main:1", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def pods(cluster: Cluster, namespace: str) -> dict[str, dict[str, Any]]:
    found = json.loads(cluster.kubectl("-n", namespace, "get", "pods", "-o", "json"))
    return {each["metadata"]["name"]: each for each in found["items"]}


def node_of(found: dict[str, Any]) -> str:
    return str(found["spec"].get("nodeName", ""))


def condition(found: dict[str, Any], kind: str = "PodScheduled") -> dict[str, Any]:
    told: Sequence[dict[str, Any]] = found["status"].get("conditions", [])
    return next((each for each in told if each["type"] == kind), {})


def events(cluster: Cluster, namespace: str, reason: str) -> list[str]:
    """What events with a reason say."""
    found = json.loads(cluster.kubectl("-n", namespace, "get", "events.events.k8s.io", "-o", "json"))
    return [each["note"] for each in found["items"] if each["reason"] == reason]


def until(
    holds: Callable[[], bool], what: str, *, within_s: float = DEADLINE_S, why: Callable[[], str] = lambda: ""
) -> None:
    """Wait for something to hold; a deadline, not a pause. `why`: what to say beyond, where it does not."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"not within {within_s:.0f} s: {what} {why()}"
        time.sleep(0.05)
