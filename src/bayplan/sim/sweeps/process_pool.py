"""Many runs, on as many processes as the machine has cores to spare; results in order, whoever is done first.

A run depends on its arguments alone, so where it runs is no matter: one process or ten, the results are the same.
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
    """How many processes can work at the same time here."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(work: Callable[[J], R], jobs: Sequence[J], processes: int) -> Iterator[tuple[int, R]]:
    """What came of each job, with its place in the list, as they are done."""
    if processes <= 1 or len(jobs) <= 1:
        for place, job in enumerate(jobs):
            yield place, work(job)
        return
    fresh = multiprocessing.get_context("spawn")  # a copy of this process would inherit whatever else it does
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=fresh, initializer=_end_with_parent) as pool:
        places: dict[Future[R], int] = {pool.submit(work, job): place for place, job in enumerate(jobs)}
        try:
            for done in as_completed(places):
                yield places[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A process of a sweep that was killed would wait for its next job for ever."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_jobs_in_order(
    work: Callable[[J], R], jobs: Sequence[J], processes: int, told: Callable[[int], None] = lambda _: None
) -> list[R]:
    """The results in the order of the jobs; `told` how many there are so far."""
    found: dict[int, R] = {}
    for place, result in run_jobs(work, jobs, processes):
        found[place] = result
        told(len(found))
    return [found[place] for place in range(len(jobs))]
