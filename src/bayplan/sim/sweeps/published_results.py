"""What was published about OpenB, and how far a simulation is from it.

The numbers are those of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent" (USENIX ATC '23), from the results that came with their simulator: percent of all GPUs allocated when
pods for so many percent of them have come, mean and deviation over ten seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from typing import Any

from bayplan.sim.sweeps.openb_experiment import LOADS, RunSummary
from bayplan.sim.traces.csv_table import (
    CsvColumn,
    float_column,
    read_rows,
    text_column,
)
from bayplan.sim.traces.trace_files import TraceNode, read_nodes
from bayplan.sim.virtual_time.policies import PUBLISHED_NAMES

_COLUMNS: tuple[CsvColumn[Any], ...] = (
    text_column("workload"),
    text_column("policy"),
    *(float_column(f"alloc_at_{load}_{what}") for load in LOADS for what in ("mean", "sd")),
)


@dataclass(frozen=True, slots=True)
class PublishedResult:
    """One workload and policy, by load."""

    mean: dict[int, float]
    deviation: dict[int, float]


@cache
def _table() -> dict[tuple[str, str], PublishedResult]:
    with as_file(files("bayplan.sim") / "data" / "openb_published_gpu_allocation.csv") as path:
        return {
            (row["workload"], row["policy"]): PublishedResult(
                {load: row[f"alloc_at_{load}_mean"] for load in LOADS},
                {load: row[f"alloc_at_{load}_sd"] for load in LOADS},
            )
            for row in read_rows(path, _COLUMNS)
        }


def uses_published_nodes(nodes: Sequence[TraceNode]) -> bool:
    """Whether these are the nodes that the numbers are about; on others they mean nothing."""
    return set(nodes) == set(read_nodes())


def published_result(workload: str, policy: str) -> PublishedResult | None:
    """What was published about a workload, by the name of its file; None where nothing was."""
    return _table().get((workload, PUBLISHED_NAMES.get(policy, "")))


def published_cells() -> list[tuple[str, str]]:
    """Every workload and policy that there are numbers for."""
    short = {long: policy for policy, long in PUBLISHED_NAMES.items()}
    return [(workload, short[policy]) for workload, policy in _table()]


def differences(summary: RunSummary) -> dict[int, float]:
    """By load how many percentage points a summary is above what was published; nothing where nothing was."""
    known = published_result(summary.workload, summary.policy)
    return {} if known is None else {load: mean - known.mean[load] for load, mean in summary.mean.items()}
