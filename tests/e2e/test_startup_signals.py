"""Signals during the start of a process: SIGUSR1 and SIGUSR2 never end it, SIGTERM ends it with exit code 0."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster.run import Cluster
from support.e2e.batch_harness import BatchApi, install_volcano_crds
from support.e2e.scheduler_process import run_process, wait_until

_SYNCED = "caches are synchronised"
_COMMANDS: Mapping[str, tuple[str, str]] = {
    "scheduler --no-leader-elect --secure-port=0": ("--kubeconfig", _SYNCED),
    "batch run --leader-elect=false": ("--kubeconfig", _SYNCED),
    "run --no-leader-elect --secure-port=0": ("--kubeconfig", _SYNCED),
    "binder --no-leader-elect": ("--kubeconfig", "the binder is running"),
    "controllers --controllers=deployment-controller": ("--kubeconfig", "are running on"),
    "kubelet --nodes 0": ("--kubeconfig", "are ready on"),
    "admission --port 0 --enabled-admission /gpus/mutate": ("--kubeconfig", "webhooks are served"),
    "cluster up --nodes 0 --no-scheduler --no-controllers": ("", "is up at"),
    "cluster up --nodes 1": ("", "is up at"),
}
"""By command: how it gets the kubeconfig, and the line that it prints when it is ready."""
_PAUSES_S = (0.0, 0.01, 0.05, 0.2)


@pytest.fixture
def arguments(cluster: Cluster, command: str, tmp_path: Path) -> list[str]:
    """The command line, on a cluster that has all kinds of objects."""
    install_volcano_crds(cluster, BatchApi(cluster, "default"))
    option, _ = _COMMANDS[command]
    given = [sys.executable, "-m", "bayplan", *command.split()]
    given += [option, str(cluster.kubeconfig())] if option else ["--name", f"signals-{time.monotonic_ns()}"]
    if "admission" in command:
        given += ["--cert-dir", str(tmp_path)]
    return given


def _await_handler(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Return as soon as the interpreter has run the first lines of the package, which set a handler."""
    status = Path(f"/proc/{process.pid}/status")
    while not _caught(status.read_text()) >> (number - 1) & 1:
        assert process.poll() is None


def _caught(status: str) -> int:
    line = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return int(line.split()[1], 16)


@pytest.mark.parametrize("command", _COMMANDS)
def test_dump_signals_during_the_start_do_not_end_a_command(arguments: list[str], command: str, tmp_path: Path) -> None:
    log, ready = tmp_path / "process.log", _COMMANDS[command][1]
    with run_process(arguments, log, env={"XDG_STATE_HOME": str(tmp_path)}) as process:
        _await_handler(process, signal.SIGUSR2)
        pauses = itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1]))

        def is_ready() -> bool:
            for number in (signal.SIGUSR2, signal.SIGUSR1):
                process.send_signal(number)
                time.sleep(next(pauses))
            assert process.poll() is None, "it has ended"
            return ready in log.read_text()

        wait_until(is_ready, f"{command} says {ready!r}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("command", _COMMANDS)
@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.4, 0.8])
def test_a_server_that_is_terminated_during_its_start_exits_silently_with_0(
    arguments: list[str], after_s: float, tmp_path: Path
) -> None:
    log = tmp_path / "process.log"
    with run_process(arguments, log, env={"XDG_STATE_HOME": str(tmp_path)}) as process:
        _await_handler(process, signal.SIGTERM)
        time.sleep(after_s)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0
    assert "Traceback" not in log.read_text()
