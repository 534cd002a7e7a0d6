"""Runs of a sweep on a Ray cluster: workloads travel there once, results come back as they are done.

The machines of the cluster need Bayplan installed, and none of the files.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from bayplan.errors import BayplanError
from bayplan.sim.sweeps.openb_experiment import OpenbRun, run_experiment
from bayplan.sim.sweeps.optional_imports import import_optional
from bayplan.sim.sweeps.sweep import SweepJob, load_workload

_LOCAL_ADDRESS = "local"
_CONNECT_TIMEOUT_S = 10.0


class RayError(BayplanError):
    """The Ray cluster cannot be reached, or a run on it broke."""


def run_jobs_on_ray(jobs: Sequence[SweepJob], address: str) -> Iterator[tuple[int, OpenbRun]]:
    """What came of each job, with its place in the list, as they are done. `local` starts a cluster on this machine."""
    if not jobs:
        return
    ray = import_optional("ray", wanted_for="--ray", extra="ray")
    faults = import_optional("ray.exceptions", wanted_for="--ray", extra="ray")
    _check_reachable(address)
    own: dict[str, Any] = {"include_dashboard": False} if address == _LOCAL_ADDRESS else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as fault:
        raise RayError(f"the Ray cluster at {address} cannot be reached: {_first_line(fault)}") from fault
    try:
        yield from _results(ray, jobs)
    except faults.RayError as fault:
        raise RayError(f"a run on the Ray cluster broke: {_first_line(fault)}") from fault
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Whether somebody is there at all: Ray itself asks for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as fault:
        raise RayError(f"the Ray cluster at {address} cannot be reached: {fault}") from None


def _results(ray: Any, jobs: Sequence[SweepJob]) -> Iterator[tuple[int, OpenbRun]]:
    remote = ray.remote(num_cpus=1)(run_experiment)
    stored: dict[tuple[object, ...], Any] = {}
    waiting: dict[Any, int] = {}
    for place, job in enumerate(jobs):
        files = (job.pods, job.nodes)
        if files not in stored:
            stored[files] = ray.put(load_workload(job.pods, job.nodes))
        waiting[remote.remote(stored[files], job.policy, job.seed)] = place
    while waiting:
        (done, *_), _ = ray.wait(list(waiting), num_returns=1)
        yield waiting.pop(done), ray.get(done)


def _first_line(fault: Exception) -> str:
    return (str(fault).strip().splitlines() or [type(fault).__name__])[0]
