"""Memory of `bayplan simulate`: a trace of a year needs no more than one of a month."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

YEAR_S = 365 * 86_400
GROWTH_MIB = 16.0


def write_trace(path: Path, pods: int, seconds: int) -> None:
    chance = random.Random(1)
    with path.open("w") as file:
        file.write("arrival,duration,cpu_milli,memory_mib,num_gpu,gpu_milli,tenant\n")
        for number in range(pods):
            runs_s = chance.expovariate(pods / seconds / 20)
            cpu, milli = 100 * chance.randrange(1, 40), chance.choice((250, 500, 1000))
            file.write(f"{number * seconds / pods},{runs_s},{cpu},1024,1,{milli},{chance.choice('abc')}\n")


def max_memory_mib(*arguments: object) -> float:
    """Run a command and return its maximum resident memory."""
    process = subprocess.Popen([sys.executable, "-m", "bayplan", *map(str, arguments)], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    process.returncode = 0
    return used.ru_maxrss / 1024


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["", "fgd"])
def test_a_year_needs_no_more_memory_than_a_month(tmp_path: Path, policy: str) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{n},32000,65536,4,T4\n" for n in range(20)))
    month, year = tmp_path / "month.csv", tmp_path / "year.csv"
    write_trace(month, 3_600, YEAR_S // 12)
    write_trace(year, 43_200, YEAR_S)
    options = ["--trace", "csv", "--nodes", nodes, "--samples", tmp_path / "samples.csv", "--every", 86_400]
    options += ["--policy", policy] if policy else []
    peaks_mib = [max_memory_mib("simulate", *options, "--pods", path) for path in (month, year)]
    assert (tmp_path / "samples.csv").read_text().count("\n") > 365
    assert peaks_mib[1] - peaks_mib[0] < GROWTH_MIB, peaks_mib
