"""The OpenB workloads for tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from bayplan.sim.sweeps.openb_experiment import OpenbWorkload
from bayplan.sim.traces.trace_files import read_nodes, read_openb_pods

FOLDER = Path(__file__).resolve().parents[2] / "data" / "openb"
WORKLOADS = ("default", "gpuspec33", "multigpu50", "gpushare100", "cpu200")


def pods_file(workload: str) -> Path:
    return FOLDER / f"openb_pod_list_{workload}.csv.gz"


@cache
def load_openb_workload(workload: str) -> OpenbWorkload:
    return OpenbWorkload(f"openb_pod_list_{workload}", read_nodes(), read_openb_pods(pods_file(workload)))
