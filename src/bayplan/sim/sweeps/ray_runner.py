"""Runs of a sweep on a Ray cluster: workloads travel there once, results come back as they are done.

The machines of the cluster need Bayplan installed, and none of the files.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from bayplan.errors import BayplanError
from bayplan.sim.sweeps.openb_experiment import Run, run
from bayplan.sim.sweeps.optional_imports import optional
from bayplan.sim.sweeps.sweep import Job, load_workload

_LOCAL = "local"
_PATIENCE_S = 10.0


class RayFault(BayplanError):
    """The Ray cluster cannot be reached, or a run on it broke."""


def spread_on_ray(jobs: Sequence[Job], address: str) -> Iterator[tuple[int, Run]]:
    """What came of each job, with its place in the list, as they are done. `local` starts a cluster on this machine."""
    if not jobs:
        return
    ray = optional("ray", wanted_for="--ray", extra="ray")
    faults = optional("ray.exceptions", wanted_for="--ray", extra="ray")
    _knock(address)
    own: dict[str, Any] = {"include_dashboard": False} if address == _LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as fault:
        raise RayFault(f"the Ray cluster at {address} cannot be reached: {_first_line(fault)}") from fault
    try:
        yield from _results(ray, jobs)
    except faults.RayError as fault:
        raise RayFault(f"a run on the Ray cluster broke: {_first_line(fault)}") from fault
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Whether somebody is there at all: Ray itself asks for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
    except (OSError, OverflowError) as fault:
        raise RayFault(f"the Ray cluster at {address} cannot be reached: {fault}") from None


def _results(ray: Any, jobs: Sequence[Job]) -> Iterator[tuple[int, Run]]:
    remote = ray.remote(num_cpus=1)(run)
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
