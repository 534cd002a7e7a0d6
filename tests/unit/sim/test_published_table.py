"""All of what was published about OpenB: five workloads, six policies, three loads; and a sweep on a Ray cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.sim.on_ray import RayFault, spread_on_ray
from bayplan.sim.openb import LOADS, Run, Summary
from bayplan.sim.policies import POLICIES
from bayplan.sim.published import differences, published, published_cells
from bayplan.sim.running import cores, in_order
from bayplan.sim.sweeping import Job, carry_out
from openb_data import WORKLOADS, pods_file

SEEDS = range(10)
WITHIN = 1.0


def test_every_workload_and_policy_was_published() -> None:
    expected = {(f"openb_pod_list_{workload}", policy) for workload in WORKLOADS for policy in POLICIES}
    assert set(published_cells()) == expected
    known = published("openb_pod_list_default", "fgd")
    assert known is not None
    assert known.mean == {90: 89.98, 100: 95.23, 130: 95.39}
    assert published("openb_pod_list_default", "fgd:2+bestfit:1") is None


@pytest.mark.soak
@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("workload", WORKLOADS)
def test_means_are_within_a_point_of_what_was_published(workload: str, policy: str) -> None:
    jobs = [Job(pods_file(workload), None, policy, seed) for seed in SEEDS]
    apart = differences(Summary.of(in_order(carry_out, jobs, cores())))
    assert list(apart) == list(LOADS)
    assert {load: by for load, by in apart.items() if abs(by) > WITHIN} == {}


@pytest.mark.soak
def test_a_sweep_on_ray_gives_what_a_sweep_here_gives(tmp_path: Path) -> None:
    pods, nodes = tmp_path / "pods.csv", tmp_path / "nodes.csv"
    lines = [f"{1000 * (n % 4)},512,1,{100 + 100 * (n % 10)}" for n in range(80)]
    pods.write_text("cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "\n".join(lines) + "\n")
    nodes.write_text("sn,cpu_milli,memory_mib,gpu\n" + "".join(f"n{n},32000,65536,4\n" for n in range(20)))
    jobs = [Job(pods, nodes, policy, seed) for policy in ("fgd", "random") for seed in range(2)]
    there: dict[int, Run] = dict(spread_on_ray(jobs, "local"))
    assert [there[place] for place in range(len(jobs))] == [carry_out(job) for job in jobs]


@pytest.mark.soak
def test_a_ray_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path / "pods.csv", None, "fgd", 0)
    with pytest.raises(RayFault, match=r"the Ray cluster at 127\.0\.0\.1:1 cannot be reached"):
        list(spread_on_ray([job], "127.0.0.1:1"))
