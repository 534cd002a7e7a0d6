"""Results of a batch benchmark run: JSON in the format of the pod engine's report, and tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.batch_workloads import BatchWorkload
from benchmarks.decision_timing import Latencies
from benchmarks.growth import Growth
from benchmarks.report import machine, print_wide, verdict


@dataclass(frozen=True, kw_only=True)
class BatchRow:
    """Result of one workload."""

    name: str
    workload: BatchWorkload
    nodes: int
    pods: int
    rounds: Latencies
    cold: Latencies | None = None
    naive_us: float | None = None
    """Time of a round when no result is shared or precomputed."""

    @property
    def per_s(self) -> float | None:
        """Pods a second in the median round, if the round decides about each pod."""
        return self.pods / self.rounds.p50_us * 1e6 if self.workload.counts else None

    @property
    def is_full_size(self) -> bool:
        """Budgets and Volcano's times apply to one size; other sizes are neither judged nor compared."""
        return (self.nodes, self.pods) == (self.workload.nodes, self.workload.pods)

    @property
    def budget_us(self) -> float | None:
        """Maximum of the median on the machine that the budget was set on."""
        return self.workload.budget_us if self.is_full_size else None

    @property
    def volcano_us(self) -> float | None:
        return self.workload.volcano_us if self.is_full_size else None

    @property
    def calibration(self) -> float:
        """The machine's calibration during this measurement."""
        return self.rounds.pace

    @property
    def holds(self) -> bool | None:
        """Whether the workload keeps its budget; None if the cluster has another size.

        Sessions only compute, so processor time counts: on an idle machine it equals the wall-clock time, and on a busy
        machine it excludes other processes.
        """
        if self.budget_us is None:
            return None
        return (self.rounds.cpu_p50_us or self.rounds.p50_us) <= self.budget_us * self.calibration

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.name,
            "nodes": self.nodes,
            "pods": self.pods,
            "rounds": len(self.rounds.took_us),
            "decisions_per_s": None if self.per_s is None else round(self.per_s),
            "p50_us": round(self.rounds.p50_us, 1),
            "p99_us": round(self.rounds.p99_us, 1),
            "cpu_p50_us": None if self.rounds.cpu_p50_us is None else round(self.rounds.cpu_p50_us, 1),
            "cold_us": None if self.cold is None else round(self.cold.p50_us, 1),
            "naive_p50_us": None if self.naive_us is None else round(self.naive_us, 1),
            "volcano_us": self.volcano_us,
            "calibration": round(self.calibration, 3),
            "budget_us": self.budget_us,
            "holds": self.holds,
        }


@dataclass(frozen=True)
class SessionGrowth:
    """The median session by the size of one axis."""

    found: Growth
    at_most: float | None
    """None: too small to judge."""

    @property
    def holds(self) -> bool | None:
        return None if self.at_most is None else self.found.exponent <= self.at_most

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.found.workload,
            "p50_us": {str(size): round(value, 1) for size, value in self.found.p50_us.items()},
            "exponent": round(self.found.exponent, 3),
            "at_most": self.at_most,
            "holds": self.holds,
        }


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """All results of one run."""

    rows: Sequence[BatchRow]
    growth: Sequence[SessionGrowth] = ()

    @property
    def calibration(self) -> float:
        """Median calibration of all workloads."""
        return statistics.median(row.calibration for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return {
            "workloads": [row.as_json() for row in self.rows],
            "machine": {"calibration": round(self.calibration, 3), **machine()},
            "growth": [each.as_json() for each in self.growth],
            "memory": None,
        }

    @property
    def broken(self) -> list[str]:
        """Names of the results that exceed their budget."""
        names = [row.name for row in self.rows if row.holds is False]
        return names + [f"growth {each.found.workload}" for each in self.growth if each.holds is False]

    def print(self) -> None:
        print_wide(self._rounds())
        for each in self.growth:
            print_wide(_growth(each))

    def _rounds(self) -> Table:
        title = f"sessions; calibration {self.calibration:.2f} of the machine that the budgets were set on"
        table = Table(title=title, title_justify="left")
        table.add_column("workload")
        for name in (
            "nodes",
            "pods",
            "pods/s",
            "p50 ms",
            "processor ms",
            "cold ms",
            "naive ms",
            "Volcano ms",
            "machine",
            "budget ms",
        ):
            table.add_column(name, justify="right")
        table.add_column("holds")
        for row in self.rows:
            table.add_row(
                row.name,
                f"{row.nodes:,}",
                f"{row.pods:,}",
                "" if row.per_s is None else f"{row.per_s:,.0f}",
                _ms(row.rounds.p50_us),
                _ms(row.rounds.cpu_p50_us),
                _ms(None if row.cold is None else row.cold.p50_us),
                _ms(row.naive_us),
                _ms(row.volcano_us),
                f"{row.calibration:.2f}",
                _ms(None if row.budget_us is None else row.budget_us * row.calibration),
                verdict(row.holds),
            )
        return table


def _growth(growth: SessionGrowth) -> Table:
    found = growth.found
    table = Table(title=f"growth {found.workload}: a session in ms", title_justify="left")
    for size in found.p50_us:
        table.add_column(f"{size:,}", justify="right")
    table.add_column("exponent", justify="right")
    table.add_column("holds")
    limit = "" if growth.at_most is None else f" (at most {growth.at_most})"
    times = [_ms(value) for value in found.p50_us.values()]
    table.add_row(*times, f"{found.exponent:.2f}{limit}", verdict(growth.holds))
    return table


def _ms(us: float | None) -> str:
    return "" if us is None else f"{us / 1000:,.1f}"
