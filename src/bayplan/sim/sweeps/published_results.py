"""Published results of OpenB, and the difference of a simulation from them.

The numbers are from Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC '23), namely from the results published with their simulator. They are percent of all GPUs that are
allocated when the arrived pods request a given percentage of them; mean and deviation over ten seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from typing import Any

from bayplan.sim.sweeps.openb_experiment import LOADS, RunSummary
from bayplan.sim.traces.csv_table import CsvColumn, float_column, read_rows, text_column
from bayplan.sim.traces.trace_files import TraceNode, read_nodes
from bayplan.sim.virtual_time.policies import PUBLISHED_NAMES

_COLUMNS: tuple[CsvColumn[Any], ...] = (
    text_column("workload"),
    text_column("policy"),
    *(float_column(f"alloc_at_{load}_{statistic}") for load in LOADS for statistic in ("mean", "sd")),
)


@dataclass(frozen=True, slots=True)
class PublishedResult:
    """Published mean and deviation of one workload and policy, by load."""

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
    """Whether these are the OpenB nodes; on other nodes the published numbers have no meaning."""
    return set(nodes) == set(read_nodes())


def published_result(workload: str, policy: str) -> PublishedResult | None:
    """The published result of a workload, by file name; None if there is none."""
    return _table().get((workload, PUBLISHED_NAMES.get(policy, "")))


def published_cells() -> list[tuple[str, str]]:
    """Every workload and policy with a published result."""
    short_names = {published: policy for policy, published in PUBLISHED_NAMES.items()}
    return [(workload, short_names[policy]) for workload, policy in _table()]


def differences(summary: RunSummary) -> dict[int, float]:
    """Difference of a summary from the published result in percentage points, by load; empty without one."""
    known = published_result(summary.workload, summary.policy)
    return {} if known is None else {load: mean - known.mean[load] for load, mean in summary.mean.items()}
