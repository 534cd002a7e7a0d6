"""Runs a sweep on a Ray cluster. Each workload is sent once; results are yielded as they complete.

The machines of the cluster need Bayplan, but not the files.
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
    """The Ray cluster is unreachable, or a run on it failed."""


def run_jobs_on_ray(jobs: Sequence[SweepJob], address: str) -> Iterator[tuple[int, OpenbRun]]:
    """Yield the result of each job with its index, in order of completion. `local` starts a local Ray cluster."""
    if not jobs:
        return
    ray = import_optional("ray", wanted_for="--ray", extra="ray")
    faults = import_optional("ray.exceptions", wanted_for="--ray", extra="ray")
    _check_reachable(address)
    options: dict[str, Any] = {"include_dashboard": False} if address == _LOCAL_ADDRESS else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as fault:
        raise RayError(f"the Ray cluster at {address} cannot be reached: {_first_line(fault)}; check --ray") from fault
    try:
        yield from _results(ray, jobs)
    except faults.RayError as fault:
        raise RayError(f"a run on the Ray cluster failed: {_first_line(fault)}") from fault
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Check that the address accepts connections, because Ray itself retries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as fault:
        raise RayError(f"the Ray cluster at {address} cannot be reached: {fault}; check --ray") from None


def _results(ray: Any, jobs: Sequence[SweepJob]) -> Iterator[tuple[int, OpenbRun]]:
    remote = ray.remote(num_cpus=1)(run_experiment)
    workload_refs: dict[tuple[object, ...], Any] = {}
    pending: dict[Any, int] = {}
    for index, job in enumerate(jobs):
        files = (job.pods, job.nodes)
        if files not in workload_refs:
            workload_refs[files] = ray.put(load_workload(job.pods, job.nodes))
        pending[remote.remote(workload_refs[files], job.policy, job.seed)] = index
    while pending:
        (finished, *_), _ = ray.wait(list(pending), num_returns=1)
        yield pending.pop(finished), ray.get(finished)


def _first_line(fault: Exception) -> str:
    return (str(fault).strip().splitlines() or [type(fault).__name__])[0]
