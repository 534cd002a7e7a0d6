"""The fault campaign runs from its start to its report; `make chaos` and `make soak` run it for longer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.harness.deadlines import TEST_TIMEOUT_S

TESTS = Path(__file__).parents[1]


def test_a_short_campaign_completes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chaos", "--minutes", "0.2", "--configuration", "pods@embedded"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path), "-o", "json"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S,
    )
    found = json.loads(done.stdout)["configurations"]["pods@embedded"]
    assert found["violations"] == [], done.stderr
    assert done.returncode == 0, done.stderr
    assert found["done"]
    assert found["totals"]["bound"] > 0
    assert sum(each["ran"] for each in found["faults"].values()) > 0
    assert json.loads((tmp_path / "report.json").read_text())["configurations"] == {"pods@embedded": found}
