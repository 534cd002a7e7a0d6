"""Many runs of the experiment: every workload with every policy and every seed, each once, however often one begins.

What is done is written down line by line beside the results, so that a sweep that was stopped goes on where it was. A
line is good only for the very files that it came from: each carries a fingerprint of its nodes and pods.
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
from bayplan.sim.sweeps.openb_experiment import (
    LOADS,
    OpenbRun,
    OpenbWorkload,
    run_experiment,
)
from bayplan.sim.traces.csv_table import (
    CsvColumn,
    TraceError,
    float_column,
    integer_column,
    read_rows,
    text_column,
)
from bayplan.sim.traces.trace_files import (
    TraceNode,
    gpu_capacity,
    read_nodes,
    read_openb_pods,
)

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
    """One run of a workload, which every process reads by itself."""

    pods: Path
    nodes: Path | None
    policy: str
    seed: int

    @property
    def workload(self) -> str:
        return workload_name(self.pods)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What came of one job, and of what files."""

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
    """What results call the workload of a file."""
    return path.name.removesuffix(".gz").removesuffix(".csv")


def load_nodes(path: Path | None) -> list[TraceNode]:
    """The nodes of a file, or those of OpenB. Without a GPU among them there is nothing to measure."""
    nodes = read_nodes(path)
    if not gpu_capacity(nodes):
        raise UsageError(f"{path}: no node has a GPU, so there is nothing to allocate; give other --nodes")
    return nodes


def load_workload(pods: Path, nodes: Path | None) -> OpenbWorkload:
    """A workload from its files; a process that runs it again need not read it again, unless they changed."""
    return _load_cached(pods, nodes, tuple(path.stat().st_mtime_ns for path in (pods, nodes) if path is not None))


@lru_cache(maxsize=4)
def _load_cached(pods: Path, nodes: Path | None, changed_ns: tuple[int, ...]) -> OpenbWorkload:
    del changed_ns
    return OpenbWorkload(workload_name(pods), read_nodes(nodes), read_openb_pods(pods))


def run_job(job: SweepJob) -> OpenbRun:
    """One run: what every process of a sweep does, here or elsewhere."""
    return run_experiment(load_workload(job.pods, job.nodes), job.policy, job.seed)


def fingerprint(pods: Path, nodes: Path | None) -> str:
    """Changes with the files, and with the version that reads them."""
    digest = hashlib.sha256(__version__.encode())
    for path in (pods, nodes):
        digest.update(path.read_bytes() if path is not None else b"shipped nodes")
    return digest.hexdigest()[:16]


def build_jobs(pods: Iterable[Path], nodes: Path | None, policies: Iterable[str], seeds: range) -> list[SweepJob]:
    """Every combination. Two files of one name could not be told apart in the results."""
    files = list(pods)
    names = [workload_name(path) for path in files]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two files are called {name}, so their results could not be told apart; rename one")
    listed = list(policies)
    for policy in listed:
        if listed.count(policy) > 1:
            raise UsageError(f"--policy {policy} is there twice, and would give the same results twice; leave one out")
    return [SweepJob(path, nodes, policy, seed) for path in files for policy in listed for seed in seeds]


class SweepJournal:
    """What a sweep has done so far."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Iterator[SweepResult]:
        """The lines that are whole: a sweep may have been stopped while it wrote one."""
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

    def begin(self, kept: Sequence[SweepResult]) -> None:
        """Start the file anew with what is still good."""
        write_csv(self.path, kept)

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
    spread: Callable[[Sequence[SweepJob]], Iterable[tuple[int, OpenbRun]]],
    *,
    told: Callable[[int], None],
) -> list[SweepResult]:
    """The results of all jobs, in their order. `spread` runs jobs somewhere; `told` how many are done."""
    files = {paths: fingerprint(*paths) for paths in {(job.pods, job.nodes) for job in jobs}}
    prints = {job: files[job.pods, job.nodes] for job in jobs}
    keys = {(job.workload, job.policy, job.seed, prints[job]): job for job in jobs}
    done = {keys[result.key]: result for result in journal.read() if result.key in keys}
    journal.begin(list(done.values()))
    told(len(done))
    missing = [job for job in jobs if job not in done]
    for place, outcome in spread(missing):
        job = missing[place]
        done[job] = SweepResult(outcome, prints[job])
        journal.add(done[job])
        told(len(done))
    return [done[job] for job in jobs]
