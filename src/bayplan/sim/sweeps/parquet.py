"""Results of a sweep as Parquet, for notebooks and data frames."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bayplan.sim.sweeps.openb_experiment import LOADS
from bayplan.sim.sweeps.optional_imports import import_optional
from bayplan.sim.sweeps.sweep import RESULT_FIELDS, SweepResult


def write_parquet(path: Path, results: Iterable[SweepResult]) -> None:
    """Write one row per run, with the columns of the CSV. A load that was not reached is null."""
    pyarrow = import_optional("pyarrow", wanted_for="Parquet", extra="sweep")
    parquet = import_optional("pyarrow.parquet", wanted_for="Parquet", extra="sweep")
    columns: dict[str, list[Any]] = {name: [] for name in RESULT_FIELDS}
    for result in results:
        run = result.run
        values = (run.workload, run.policy, run.seed, run.arrived, run.failed, run.allocated_milli)
        row = (*values, *(run.allocation.get(load) for load in LOADS), result.fingerprint)
        for name, value in zip(RESULT_FIELDS, row, strict=True):
            columns[name].append(value)
    amounts = {name: pyarrow.float64() for name in RESULT_FIELDS if name.startswith("gpu_allocation_at_")}
    arrays = {name: pyarrow.array(values, amounts.get(name)) for name, values in columns.items()}
    parquet.write_table(pyarrow.table(arrays), path)
