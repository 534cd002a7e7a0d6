"""Results of a sweep as Parquet, for notebooks and data frames."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bayplan.errors import UsageError
from bayplan.sim.openb import LOADS
from bayplan.sim.sweeping import FIELDS, Result


def write_parquet(path: Path, results: Iterable[Result]) -> None:
    """One row a run; the columns are those of the CSV."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "Parquet needs pyarrow; install it with: pip install 'bayplan[sweep]', or name a .csv"
        ) from None
    columns: dict[str, list[Any]] = {name: [] for name in FIELDS}
    for result in results:
        run = result.run
        values = (run.workload, run.policy, run.seed, run.arrived, run.failed, run.allocated_milli)
        row = (*values, *(run.allocation.get(load) for load in LOADS), result.fingerprint)
        for name, value in zip(FIELDS, row, strict=True):
            columns[name].append(value)
    parquet.write_table(pyarrow.table(columns), path)
