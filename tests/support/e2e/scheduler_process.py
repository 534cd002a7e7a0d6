"""A `bayplan scheduler` process beside a cluster, and helpers to read pods and nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.run import Cluster, die_with_parent
from support.e2e import crash_launcher
from support.e2e.crash_launcher import ENVIRONMENT_VARIABLE
from support.harness.deadlines import DEADLINE_S

_DUMP_TIMEOUT_S = 10.0
_LOG_TAIL_CHARS = 12_000


@dataclass(frozen=True)
class Endpoint:
    """A port on loopback with a server."""

    port: int


@contextmanager
def crash_at(step: str) -> Iterator[None]:
    """Processes started in this block kill themselves at a crash point: `bound`, or `requested:2`."""
    os.environ[ENVIRONMENT_VARIABLE] = step
    try:
        yield
    finally:
        del os.environ[ENVIRONMENT_VARIABLE]


def bayplan_program() -> tuple[str, ...]:
    """Arguments of the interpreter that run `bayplan`: the package, or in a block of `crash_at` the crash launcher."""
    return ("-P", crash_launcher.__file__) if ENVIRONMENT_VARIABLE in os.environ else ("-m", "bayplan")


@contextmanager
def run_scheduler(
    cluster: Cluster,
    folder: Path,
    *arguments: str,
    config: str = "",
    kubeconfig: Path | None = None,
    program: Sequence[str] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """One process, ended by its own pid at the end of the block. Without `config` it has the default configuration.

    `program`: arguments of the interpreter, instead of those of `bayplan_program`.
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
    log = folder / f"scheduler-{time.monotonic_ns()}.log"
    with run_process([sys.executable, *(program or bayplan_program()), "scheduler", *given], log) as process:
        yield process


@contextmanager
def run_process(
    command: Sequence[str], log: Path, *, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its output in a file, ended by its own pid; an exception of the block gets its state as a note."""
    around = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **(env or {})}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=around, preexec_fn=die_with_parent)
    try:
        yield process
    except BaseException as fault:
        fault.add_note(_state_of(process, log))
        raise
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _state_of(process: subprocess.Popen[bytes], log: Path) -> str:
    """Whether it is running, its cache if it can dump it, and the end of its log."""
    ended = process.poll()
    if ended is None:
        said = log.stat().st_size
        process.send_signal(signal.SIGUSR2)
        end_s = time.monotonic() + _DUMP_TIMEOUT_S
        while log.stat().st_size == said and time.monotonic() < end_s:
            time.sleep(0.05)
        process.send_signal(signal.SIGABRT)  # the current stack
        with suppress(subprocess.TimeoutExpired):  # a stopped process cannot answer
            process.wait(_DUMP_TIMEOUT_S)
    how = "was running" if ended is None else f"had ended with {ended}"
    return f"the process {how}; the end of {log}:\n{log.read_text(errors='replace')[-_LOG_TAIL_CHARS:]}"


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


def node_name(found: dict[str, Any]) -> str:
    return str(found["spec"].get("nodeName", ""))


def condition(found: dict[str, Any], kind: str = "PodScheduled") -> dict[str, Any]:
    told: Sequence[dict[str, Any]] = found["status"].get("conditions", [])
    return next((each for each in told if each["type"] == kind), {})


def events(cluster: Cluster, namespace: str, reason: str) -> list[str]:
    """Notes of the events with a reason."""
    found = json.loads(cluster.kubectl("-n", namespace, "get", "events.events.k8s.io", "-o", "json"))
    return [each["note"] for each in found["items"] if each["reason"] == reason]


def wait_until(
    holds: Callable[[], bool], what: str, *, within_s: float = DEADLINE_S, why: Callable[[], str] = lambda: ""
) -> None:
    """Wait until a condition holds; with a deadline, not a pause. `why`: a further part of the message on failure."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"not within {within_s:.0f} s: {what} {why()}"
        time.sleep(0.05)
