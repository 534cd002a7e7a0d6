"""A sweep: runs every workload with every policy and seed, each combination once, also after a restart.

Finished runs are appended to a journal next to the results, so that a stopped sweep continues. A line is valid only for
the files that it came from: it contains a fingerprint of its nodes and pods.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bayplan import __version__
from bayplan.errors import UsageError
from bayplan.sim.sweeps.openb_experiment import LOADS, OpenbRun, OpenbWorkload, run_experiment
from bayplan.sim.traces.csv_table import CsvColumn, TraceError, float_column, integer_column, read_rows, text_column
from bayplan.sim.traces.trace_files import TraceNode, gpu_capacity, read_nodes, read_openb_pods

RESULT_FIELDS = (
    "workload",
    "policy",
    "seed",
    "arrived",
    "failed",
    "gpu_milli_allocated",
    *(f"gpu_allocation_at_{load}" for load in LOADS),
    "fingerprint",
)

_COLUMNS: tuple[CsvColumn[Any], ...] = (
    text_column("workload"),
    text_column("policy"),
    integer_column("seed"),
    integer_column("arrived"),
    integer_column("failed"),
    integer_column("gpu_milli_allocated"),
    *(float_column(f"gpu_allocation_at_{load}", absent=-1.0) for load in LOADS),
    text_column("fingerprint"),
)


@dataclass(frozen=True, slots=True)
class SweepJob:
    """One run of a workload; every process reads the files itself."""

    pods: Path
    nodes: Path | None
    policy: str
    seed: int

    @property
    def workload(self) -> str:
        return workload_name(self.pods)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of one job, with the fingerprint of its files."""

    run: OpenbRun
    fingerprint: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.run.workload, self.run.policy, self.run.seed, self.fingerprint

    def cells(self) -> list[str]:
        run = self.run
        values = [run.workload, run.policy, run.seed, run.arrived, run.failed, run.allocated_milli]
        loads = [repr(run.allocation[load]) if load in run.allocation else "" for load in LOADS]
        return [*map(str, values), *loads, self.fingerprint]


def workload_name(path: Path) -> str:
    """The name of a workload in results, from its file name."""
    return path.name.removesuffix(".gz").removesuffix(".csv")


def load_nodes(path: Path | None) -> list[TraceNode]:
    """Read the nodes of a file, or the OpenB nodes; raises an error if no node has a GPU."""
    nodes = read_nodes(path)
    if not gpu_capacity(nodes):
        raise UsageError(f"{path}: no node has a GPU, so there is nothing to allocate; give other --nodes")
    return nodes


def load_workload(pods: Path, nodes: Path | None) -> OpenbWorkload:
    """Read a workload. It is cached per process until a file changes."""
    return _load_cached(pods, nodes, tuple(path.stat().st_mtime_ns for path in (pods, nodes) if path is not None))


@lru_cache(maxsize=4)
def _load_cached(pods: Path, nodes: Path | None, changed_ns: tuple[int, ...]) -> OpenbWorkload:
    del changed_ns
    return OpenbWorkload(workload_name(pods), read_nodes(nodes), read_openb_pods(pods))


def run_job(job: SweepJob) -> OpenbRun:
    return run_experiment(load_workload(job.pods, job.nodes), job.policy, job.seed)


def fingerprint(pods: Path, nodes: Path | None) -> str:
    """Fingerprint of the files and of the version that reads them."""
    digest = hashlib.sha256(__version__.encode())
    for path in (pods, nodes):
        digest.update(path.read_bytes() if path is not None else b"shipped nodes")
    return digest.hexdigest()[:16]


def build_jobs(pods: Iterable[Path], nodes: Path | None, policies: Iterable[str], seeds: range) -> list[SweepJob]:
    """All combinations; raises an error for duplicate file names or policies."""
    files = list(pods)
    names = [workload_name(path) for path in files]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two files are called {name}, so their results would have the same name; rename one")
    policy_list = list(policies)
    for policy in policy_list:
        if policy_list.count(policy) > 1:
            raise UsageError(f"--policy {policy} is given twice and would give the same results twice; remove one")
    return [SweepJob(path, nodes, policy, seed) for path in files for policy in policy_list for seed in seeds]


class SweepJournal:
    """Journal of the finished runs of a sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Iterator[SweepResult]:
        """The complete lines; the last one may be truncated if the sweep was stopped."""
        if not self.path.exists():
            return
        found = read_rows(self.path, _COLUMNS)
        while True:
            try:
                row = next(found, None)
            except TraceError:
                return
            if row is None:
                return
            cells = {load: row[f"gpu_allocation_at_{load}"] for load in LOADS}
            allocation = {load: value for load, value in cells.items() if value >= 0}
            run = OpenbRun(
                row["workload"],
                row["policy"],
                row["seed"],
                row["arrived"],
                row["failed"],
                row["gpu_milli_allocated"],
                allocation,
            )
            yield SweepResult(run, row["fingerprint"])

    def begin(self, valid: Sequence[SweepResult]) -> None:
        """Rewrite the journal with the results that are still valid."""
        write_csv(self.path, valid)

    def add(self, result: SweepResult) -> None:
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(result.cells())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def write_csv(path: Path, results: Iterable[SweepResult]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(RESULT_FIELDS)
        writer.writerows(result.cells() for result in results)


def run_sweep(
    jobs: Sequence[SweepJob],
    journal: SweepJournal,
    run_jobs: Callable[[Sequence[SweepJob]], Iterable[tuple[int, OpenbRun]]],
    *,
    on_progress: Callable[[int], None],
) -> list[SweepResult]:
    """Return the results of all jobs, in their order. `on_progress` receives the number of finished jobs."""
    files = {paths: fingerprint(*paths) for paths in {(job.pods, job.nodes) for job in jobs}}
    fingerprints = {job: files[job.pods, job.nodes] for job in jobs}
    keys = {(job.workload, job.policy, job.seed, fingerprints[job]): job for job in jobs}
    done = {keys[result.key]: result for result in journal.read() if result.key in keys}
    journal.begin(list(done.values()))
    on_progress(len(done))
    missing = [job for job in jobs if job not in done]
    for index, outcome in run_jobs(missing):
        job = missing[index]
        done[job] = SweepResult(outcome, fingerprints[job])
        journal.add(done[job])
        on_progress(len(done))
    return [done[job] for job in jobs]
