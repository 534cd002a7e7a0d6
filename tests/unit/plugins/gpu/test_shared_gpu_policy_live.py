"""The policy of the simulator on a live cluster: the same plugin and configuration, with written devices."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from bayplan import Cluster
from bayplan.objects.core import Pod
from bayplan.plugins.gpu.gpu_requests import GPU_COUNT, GPU_INDEX, GPU_MODEL, GpuMilliRequest, request_annotations
from bayplan.sim.traces.trace_files import TracePod
from bayplan.sim.virtual_time.policies import POLICIES, policy_manifest
from support.harness.async_tests import async_test
from support.harness.deadlines import DEADLINE_S

TRACE = [
    *[TracePod("", 4000, 1024, GpuMilliRequest(460, 1)) for _ in range(2)],
    *[TracePod("", 4000, 1024, GpuMilliRequest(1000, 1)) for _ in range(6)],
]


def node(name: str, devices: int, model: str) -> dict[str, Any]:
    allocatable = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU_COUNT: str(devices)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {GPU_MODEL: model}},
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


def pod(name: str, ask: GpuMilliRequest, cpu: str = "4") -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": request_annotations(ask)},
        "spec": {"containers": [container]},
    }


def on(placed: Pod) -> tuple[str, str]:
    return placed.spec.node_name, placed.metadata.annotations.get(GPU_INDEX, "")


@pytest.mark.parametrize("policy", ["fgd", "bestfit"])
@async_test
async def test_a_live_scheduler_runs_what_was_simulated(policy: str) -> None:
    config = yaml.safe_dump(policy_manifest(policy, TRACE))
    nodes = [node("pair", 2, "T4"), node("many", 8, "P100")]
    async with Cluster(nodes=nodes, config=config) as cluster:
        placed = {}
        asked = {
            "first": GpuMilliRequest(460, 1, "T4"),
            "second": GpuMilliRequest(460, 1, "T4"),
            "whole": GpuMilliRequest(1000, 1, "T4"),
            "four": GpuMilliRequest(1000, 4),
            "plain": GpuMilliRequest(),
        }
        for name, ask in asked.items():
            await cluster.apply(pod(name, ask))
            placed[name] = on(
                await cluster.wait_for(lambda each: bool(each.spec.node_name), name, timeout_s=DEADLINE_S)
            )
        assert placed["first"] == ("pair", "0")
        assert placed["second"] == ("pair", "0")  # beside the first: the other device stays whole
        assert placed["whole"] == ("pair", "1")
        assert placed["four"] == ("many", "0-1-2-3")
        assert placed["plain"][1] == ""
        await cluster.apply(pod("late", GpuMilliRequest(500, 1, "T4")))
        assert "1 node(s) had no GPU with enough left" in await cluster.wait_unschedulable("late", timeout_s=DEADLINE_S)


def test_every_published_policy_is_a_plugin_that_any_configuration_may_name() -> None:
    for policy, plugin in POLICIES.items():
        (profile,) = policy_manifest(policy, TRACE)["profiles"]
        assert profile["plugins"]["multiPoint"]["enabled"] == [{"name": plugin}]
