"""The benchmark of the HTTPS server sends every request to both servers, and writes what it found."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.https_server import CASES, Spread, main
from click.testing import CliRunner


def test_a_spread_has_the_median_and_the_99th_percentile() -> None:
    assert Spread.of(range(100)) == Spread(49.5, 99)
    assert Spread.of([3]) == Spread(3, 3)


def test_a_run_writes_what_it_found(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = CliRunner().invoke(main, ["--quick", "--file", str(file)])
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert list(found["cases"]) == [case.name for case in CASES]
    for servers in found["cases"].values():
        assert set(servers) == {"own", "aiohttp"}
        assert all(each["ms"]["p99"] >= each["ms"]["p50"] > 0 for each in servers.values())
    assert found["aiohttp_import"]["mib"] > 0
