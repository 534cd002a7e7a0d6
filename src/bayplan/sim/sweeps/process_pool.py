"""Runs jobs on several processes and returns results in order.

A run depends on its arguments only, so the results do not depend on the number of processes.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")


def available_cores() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(work: Callable[[J], R], jobs: Sequence[J], processes: int) -> Iterator[tuple[int, R]]:
    """Yield the result of each job with its index, in order of completion."""
    if processes <= 1 or len(jobs) <= 1:
        for index, job in enumerate(jobs):
            yield index, work(job)
        return
    context = multiprocessing.get_context("spawn")  # a forked process would inherit threads and locks
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=context, initializer=_end_with_parent) as pool:
        indexes: dict[Future[R], int] = {pool.submit(work, job): index for index, job in enumerate(jobs)}
        try:
            for done in as_completed(indexes):
                yield indexes[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this worker when its parent process ends; a worker of a killed sweep would wait forever."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_jobs_in_order(
    work: Callable[[J], R], jobs: Sequence[J], processes: int, on_progress: Callable[[int], None] = lambda _: None
) -> list[R]:
    """Return the results in the order of the jobs; `on_progress` receives the number of finished jobs."""
    found: dict[int, R] = {}
    for index, result in run_jobs(work, jobs, processes):
        found[index] = result
        on_progress(len(found))
    return [found[index] for index in range(len(jobs))]
