"""Pairs of processes whose leader is killed again and again: the other process takes over in time, each time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.run import Cluster
from support.e2e.batch_harness import BatchSchedulerHarness
from support.e2e.scheduler_process import run_process, wait_until

LEASE_S = 15.0
RETRY_S = 1.0
BOUND_S = 1.2 * LEASE_S
"""From the kill until the other process holds the leases: 18 s.

The killed process sent its last renewal before the kill. The other one reads the lease every RETRY_S, stretched by up
to a fifth, so it sees that renewal at most 1.2 s after it was written and takes the lease 15 s later: 16.2 s after the
kill at the latest. The other 1.8 s, 0.12 lease durations, are for two requests and a busy machine. The bound has no
allowance beyond that.
"""
TIMINGS = (
    f"--leader-elect-lease-duration={LEASE_S:g}s",
    "--leader-elect-renew-deadline=10s",
    f"--leader-elect-retry-period={RETRY_S:g}s",
)
SCHEDULER, VOLCANO = "kube-scheduler", "volcano"
NOT_HELD = {""}


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def holders(harness: BatchSchedulerHarness, leases: Iterable[str]) -> set[str]:
    """The identities that hold the leases; a process has one for each. Empty if a lease is free."""
    found = {each["metadata"]["name"]: each["spec"].get("holderIdentity") or "" for each in harness.api.list("Lease")}
    return {found.get(name, "") for name in leases}


def leaders(logs: Iterable[Path], leases: Collection[str]) -> list[Path]:
    """The logs of the processes that hold all leases."""
    return [each for each in logs if each.read_text().count("successfully acquired lease") == len(leases)]


@pytest.mark.parametrize(
    ("command", "leases", "kills"),
    [
        pytest.param(["run"], [SCHEDULER, VOLCANO], 3, id="run"),
        pytest.param(["scheduler"], [SCHEDULER], 2, id="scheduler"),
        pytest.param(["batch", "run"], [VOLCANO], 2, id="batch-run"),
    ],
)
def test_each_takeover_takes_at_most_1_2_lease_durations(
    harness: BatchSchedulerHarness, tmp_path: Path, command: list[str], leases: list[str], kills: int
) -> None:
    """Kill each process as soon as it leads, and start another one in its place."""
    harness.add_nodes(1, cpu="4")
    flags = ["--leader-elect=true", f"--leader-elect-resource-namespace={harness.namespace}", *TIMINGS]
    if command == ["run"]:
        flags.append(f"--lock-object-namespace={harness.namespace}")
    took_s = []
    with ExitStack() as stack:

        def start(number: int) -> tuple[Path, subprocess.Popen[bytes]]:
            log = tmp_path / f"{command[0]}-{number}.log"
            whole = [sys.executable, "-m", "bayplan", *command, *flags, "--secure-port=0"]
            whole.append(f"--kubeconfig={harness.cluster.kubeconfig()}")
            return log, stack.enter_context(run_process(whole, log))

        processes = dict(start(number) for number in range(2))
        wait_until(lambda: not holders(harness, leases) & NOT_HELD, "one of the two leads")
        for turn in range(kills):
            dead = holders(harness, leases)
            wait_until(lambda: bool(leaders(processes, leases)), "its log says so")
            process = processes.pop(*leaders(processes, leases))
            killed_s = time.monotonic()
            process.kill()
            process.wait()
            processes.update([start(2 + turn)])
            others = dead | NOT_HELD
            wait_until(lambda others=others: not holders(harness, leases) & others, "the other one leads")  # type: ignore[misc]
            took_s.append(time.monotonic() - killed_s)
        if SCHEDULER in leases:
            harness.api.create(harness.pod("alone", cpu="1"))
            harness.wait_bound(["alone"])
        if VOLCANO in leases:
            harness.wait_bound(harness.gang("gang", 1))
    assert max(took_s) <= BOUND_S, took_s
