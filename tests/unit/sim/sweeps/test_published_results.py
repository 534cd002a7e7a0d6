"""Published results of OpenB: five workloads, six policies, three loads; and sweeps on a Ray cluster."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bayplan.sim.sweeps.openb_experiment import LOADS, OpenbRun, RunSummary
from bayplan.sim.sweeps.process_pool import available_cores, run_jobs_in_order
from bayplan.sim.sweeps.published_results import differences, published_cells, published_result
from bayplan.sim.sweeps.ray_runner import RayError, run_jobs_on_ray
from bayplan.sim.sweeps.sweep import SweepJob, run_job
from bayplan.sim.virtual_time.policies import POLICIES
from support.builders.openb_workloads import WORKLOADS, pods_file

SEEDS = range(10)
WITHIN = 1.0
DEADLINE_S = 240.0


@pytest.fixture
def small_jobs(tmp_path: Path) -> list[SweepJob]:
    pods, nodes = tmp_path / "pods.csv", tmp_path / "nodes.csv"
    lines = [f"{1000 * (n % 4)},512,1,{100 + 100 * (n % 10)}" for n in range(80)]
    pods.write_text("cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "\n".join(lines) + "\n")
    nodes.write_text("sn,cpu_milli,memory_mib,gpu\n" + "".join(f"n{n},32000,65536,4\n" for n in range(20)))
    return [SweepJob(pods, nodes, policy, seed) for policy in ("fgd", "random") for seed in range(2)]


def test_every_workload_and_policy_has_a_published_result() -> None:
    expected = {(f"openb_pod_list_{workload}", policy) for workload in WORKLOADS for policy in POLICIES}
    assert set(published_cells()) == expected
    known = published_result("openb_pod_list_default", "fgd")
    assert known is not None
    assert known.mean == {90: 89.98, 100: 95.23, 130: 95.39}
    assert published_result("openb_pod_list_default", "fgd:2+bestfit:1") is None


@pytest.mark.soak
@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("workload", WORKLOADS)
def test_means_are_within_one_point_of_the_published_ones(workload: str, policy: str) -> None:
    jobs = [SweepJob(pods_file(workload), None, policy, seed) for seed in SEEDS]
    found = differences(RunSummary.of(run_jobs_in_order(run_job, jobs, available_cores())))
    assert list(found) == list(LOADS)
    assert {load: by for load, by in found.items() if abs(by) > WITHIN} == {}


@pytest.mark.soak
def test_a_sweep_on_ray_gives_the_same_results(small_jobs: list[SweepJob]) -> None:
    results: dict[int, OpenbRun] = dict(run_jobs_on_ray(small_jobs, "local"))
    assert [results[index] for index in range(len(small_jobs))] == [run_job(job) for job in small_jobs]


def test_an_unreachable_ray_cluster_is_an_error(tmp_path: Path) -> None:
    job = SweepJob(tmp_path / "pods.csv", None, "fgd", 0)
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"):
        with pytest.raises(RayError, match=f"the Ray cluster at {re.escape(address)} cannot be reached"):
            list(run_jobs_on_ray([job], address))


@pytest.mark.soak
def test_a_sweep_uses_a_running_ray_cluster(small_jobs: list[SweepJob]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    port = f"--port={address.rpartition(':')[2]}"
    options = ["--node-ip-address=127.0.0.1", port, "--num-cpus=1", "--include-dashboard=false", "--block"]
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        results = dict(_results_when_ready(small_jobs, address))
    finally:
        head.terminate()
        head.wait(DEADLINE_S)
    assert [results[index] for index in range(len(small_jobs))] == [run_job(job) for job in small_jobs]


def _results_when_ready(jobs: list[SweepJob], address: str) -> list[tuple[int, OpenbRun]]:
    """The results, as soon as the cluster accepts jobs."""
    ends_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return list(run_jobs_on_ray(jobs, address))
        except RayError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(1.0)
