"""Reports of a sweep: the HTML page with plots, and the Parquet table."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyarrow import parquet

from bayplan.errors import UsageError
from bayplan.sim.sweeps.openb_experiment import OpenbRun
from bayplan.sim.sweeps.optional_imports import import_optional
from bayplan.sim.sweeps.parquet import write_parquet
from bayplan.sim.sweeps.report import render_report, summarise_runs
from bayplan.sim.sweeps.sweep import RESULT_FIELDS, SweepJournal, SweepResult, write_csv


def runs(workload: str = "openb_pod_list_default") -> list[OpenbRun]:
    return [
        OpenbRun(workload, policy, seed, 100, 3, 5_000_000, {90: 89.0 + seed, 100: base + seed, 130: base + 1.0})
        for policy, base in (("fgd", 94.0), ("bestfit<script>", 80.0))
        for seed in range(3)
    ]


class Balanced(HTMLParser):
    """Records the open tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.seen.append(tag)
        if tag not in ("meta", "path", "use", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()


def test_a_page_is_complete_and_loads_nothing() -> None:
    page = render_report([*runs(), *runs("mine")])
    reader = Balanced()
    reader.feed(page)
    assert reader.open == []
    assert (reader.seen.count("svg"), reader.seen.count("table"), reader.seen.count("script")) == (2, 2, 0)
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', re.sub(r"xmlns[^>]*", "", page)) == []
    assert "bestfit&lt;script&gt;" in page


def test_a_page_has_means_deviations_and_published_results() -> None:
    page = render_report(runs())
    assert "<td>95.00 ± 0.82</td><td>95.2" in page  # fgd at 100: 94, 95, 96
    assert '<td class="far">' not in page.split("bestfit")[0].split("<td>fgd</td>")[0]
    assert "12 runs" not in page
    assert "6 runs: 1 workloads, 2 policies" in page


def test_equal_results_give_equal_bytes() -> None:
    assert render_report(runs()) == render_report(runs())


def test_runs_are_summarised_by_workload_and_policy() -> None:
    found = summarise_runs([*runs(), *runs("mine")])
    assert [(each.workload, each.policy, each.seeds) for each in found] == [
        (workload, policy, (0, 1, 2))
        for workload in ("openb_pod_list_default", "mine")
        for policy in ("fgd", "bestfit<script>")
    ]


def test_parquet_has_the_columns_and_the_values_of_the_csv(tmp_path: Path) -> None:
    without_two_loads = OpenbRun("mine", "fgd", 7, 5, 0, 100, {90: 88.5})
    results = [SweepResult(run, "print") for run in [*runs("mine"), without_two_loads]]
    write_parquet(tmp_path / "results.parquet", results)
    table = parquet.read_table(tmp_path / "results.parquet")
    assert table.column_names == list(RESULT_FIELDS)
    assert table["gpu_allocation_at_100"].to_pylist()[-2:] == [82.0, None]
    write_csv(tmp_path / "results.csv", results)
    assert list(SweepJournal(tmp_path / "results.csv").read()) == results


def test_an_unreached_load_is_still_a_column_of_numbers(tmp_path: Path) -> None:
    """Tables of two sweeps can be concatenated, whatever loads they reached."""
    for name, allocation in (("none", {}), ("all", {90: 88.5, 100: 90.0, 130: 91.0})):
        write_parquet(
            tmp_path / f"{name}.parquet", [SweepResult(OpenbRun("mine", "fgd", 7, 5, 0, 100, allocation), "print")]
        )
    assert parquet.read_schema(tmp_path / "none.parquet") == parquet.read_schema(tmp_path / "all.parquet")


def test_a_missing_library_is_an_error_with_the_command_to_install_it() -> None:
    with pytest.raises(UsageError, match=r"a report needs nowhere; install it with: pip install 'bayplan\[sweep\]'"):
        import_optional("nowhere.to_be_found", wanted_for="a report", extra="sweep")
