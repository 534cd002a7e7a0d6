"""Results of a benchmark run: JSON for programs, tables for people, and whether each budget is kept."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bayplan.framework.equivalence import class_evaluation
from benchmarks.calibration import REFERENCE_S
from benchmarks.decision_timing import Latencies
from benchmarks.growth import EXPONENT_AT_MOST, Growth
from benchmarks.memory import BUDGET_MIB, Memory
from benchmarks.one_node import Cost
from benchmarks.workloads import FULL_RATIO, ONE_NODE_US, Workload

_UNBOUNDED = 100_000
BUDGET_NODES = 5000
"""Budgets apply to clusters of this size; other sizes are not judged."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Result of one workload."""

    name: str
    workload: Workload
    nodes: int
    latencies: Latencies
    naive: Latencies | None = None
    full: Latencies | None = None
    cost: Cost | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.full is None else self.latencies.p50_us / self.full.p50_us

    def or_quieter(self, earlier: Row | None) -> Row:
        """This measurement or an earlier one of the same workload, the less disturbed one."""
        if earlier is None:
            return self
        quieter = self if self._disturbance < earlier._disturbance else earlier
        return replace(quieter, naive=self.naive or earlier.naive)

    @property
    def _disturbance(self) -> float:
        return self.latencies.p50_us if self.cost is None else self.cost.us_a_node

    @property
    def budget_us(self) -> float | None:
        """Maximum of the median on the machine that the budget was set on."""
        budget = self.workload.budget
        return None if budget is None else budget.value

    @property
    def calibration(self) -> float:
        """The machine's calibration during this measurement."""
        return self.latencies.pace

    @property
    def holds(self) -> bool | None:
        """Whether the workload keeps its budget; None if it has none, or the cluster has another size."""
        if self.nodes != BUDGET_NODES:
            return None
        if self.cost is not None:
            return self.cost.holds(self.calibration)
        if self.budget_us is not None:
            return self.latencies.p50_us <= self.budget_us * self.calibration
        return None if self.ratio is None else self.ratio <= FULL_RATIO

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "workload": self.name,
            "nodes": self.nodes,
            "pods": len(self.latencies.took_us),
            "decisions_per_s": round(self.latencies.per_s),
            "p50_us": round(self.latencies.p50_us, 1),
            "p99_us": round(self.latencies.p99_us, 1),
            "cpu_p50_us": _rounded(self.latencies.cpu_p50_us),
            "naive_p50_us": None if self.naive is None else round(self.naive.p50_us, 1),
            "calibration": round(self.calibration, 3),
            "budget_us": self.budget_us,
            "holds": self.holds,
        }
        if self.full is not None and self.ratio is not None:
            found |= {"full_p50_us": round(self.full.p50_us, 1), "full_ratio": round(self.ratio, 3)}
            found["budget_ratio"] = FULL_RATIO
        if self.cost is not None:
            found |= {"own_us": round(self.cost.own_us, 1), "us_a_node": round(self.cost.us_a_node, 3)}
            found["budget_us_a_node"] = ONE_NODE_US
        return found


@dataclass(frozen=True, kw_only=True)
class Report:
    """All results of one run."""

    rows: Sequence[Row]
    growth: Sequence[Growth] = ()
    memory: Memory | None = None

    @property
    def calibration(self) -> float:
        """Median calibration of all workloads."""
        return statistics.median(row.calibration for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return {
            "workloads": [row.as_json() for row in self.rows],
            "machine": {"calibration": round(self.calibration, 3), **machine()},
            "growth": [
                {
                    "workload": each.workload,
                    "p50_us": {str(nodes): round(value, 1) for nodes, value in each.p50_us.items()},
                    "exponent": round(each.exponent, 3),
                    "holds": each.holds,
                }
                for each in self.growth
            ],
            "memory": None
            if self.memory is None
            else {**asdict(self.memory), "budget_mib": BUDGET_MIB, "holds": self.memory.holds},
        }

    @property
    def broken(self) -> list[str]:
        """Names of the results that exceed their budget."""
        names = [row.name for row in self.rows if row.holds is False]
        names += [f"growth of {each.workload}" for each in self.growth if not each.holds]
        return names + (["memory"] if self.memory is not None and not self.memory.holds else [])

    def print(self) -> None:
        """Print tables as wide as necessary; a terminal's width would cut figures off."""
        print_wide(self._decisions())
        if self.growth:
            print_wide(self._growth())
        if self.memory is not None:
            print_wide(_memory(self.memory))

    def _decisions(self) -> Table:
        kernel = "compiled" if kernel_in_use() else "plain Python"
        title = f"decisions, {kernel}; calibration {self.calibration:.2f} of the machine that the budgets were set on"
        table = Table(title=title, title_justify="left")
        table.add_column("workload")
        for name in ("nodes", "pods", "decisions/s", "p50 µs", "p99 µs", "naive p50 µs", "machine", "budget for p50"):
            table.add_column(name, justify="right")
        table.add_column("holds")
        for row in self.rows:
            found = row.latencies
            table.add_row(
                row.name,
                f"{row.nodes:,}",
                f"{len(found.took_us):,}",
                f"{found.per_s:,.0f}",
                f"{found.p50_us:,.0f}",
                f"{found.p99_us:,.0f}",
                "" if row.naive is None else f"{row.naive.p50_us:,.0f}",
                f"{row.calibration:.2f}",
                _budget(row),
                verdict(row.holds),
            )
        return table

    def _growth(self) -> Table:
        table = Table(title="growth: p50 in µs by the number of nodes", title_justify="left")
        table.add_column("workload")
        for nodes in self.growth[0].p50_us:
            table.add_column(f"{nodes:,}", justify="right")
        table.add_column("exponent", justify="right")
        table.add_column("holds")
        for each in self.growth:
            times = [f"{value:,.0f}" for value in each.p50_us.values()]
            limit = f"{each.exponent:.2f} (at most {EXPONENT_AT_MOST})"
            table.add_row(each.workload, *times, limit, verdict(each.holds))
        return table


def _budget(row: Row) -> str:
    if row.full is not None and row.ratio is not None:
        return f"{row.ratio:.2f} of {row.full.p50_us:,.0f} in full, at most {FULL_RATIO}"
    if row.cost is not None:
        return f"{row.cost.us_a_node:.2f} a node besides its own time, at most {ONE_NODE_US * row.calibration:.2f}"
    return "" if row.budget_us is None else f"{row.budget_us * row.calibration:,.0f}"


def _memory(memory: Memory) -> Table:
    table = Table(title="memory of a process that holds a cluster", title_justify="left")
    for name in ("nodes", "pods", "a pod's JSON", "resident", "peak", "budget"):
        table.add_column(name, justify="right")
    table.add_column("holds")
    table.add_row(
        f"{memory.nodes:,}",
        f"{memory.pods:,}",
        f"{memory.json_kib} KiB",
        f"{memory.resident_mib:,.0f} MiB",
        f"{memory.peak_mib:,.0f} MiB",
        f"{BUDGET_MIB:,.0f} MiB",
        verdict(memory.holds),
    )
    return table


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def print_wide(table: Table) -> None:
    console, endless = Console(), Console(width=_UNBOUNDED)
    console.width = max(console.width, Measurement.get(endless, endless.options, table).maximum)
    console.print(table)


def verdict(holds: bool | None) -> Text:
    if holds is None:
        return Text("")
    return Text("yes", style="green") if holds else Text("NO", style="bold red")


def machine() -> dict[str, Any]:
    """Description of the machine, for the JSON."""
    return {
        "calibration_reference_s": REFERENCE_S,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "architecture": platform.machine(),
        "system": platform.system(),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "kernel": kernel_in_use(),
    }


def kernel_in_use() -> bool:
    """Whether the modules of a decision are the compiled ones."""
    return Path(class_evaluation.__file__ or "").suffix != ".py"


def cpu() -> str:
    """Name of the processor, if the system reports it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()
