"""Short names of policies with weights, and their configurations."""

from __future__ import annotations

import pytest

from bayplan.errors import UsageError
from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest
from bayplan.sim.traces.trace_files import TracePod
from bayplan.sim.virtual_time.policies import POLICIES, parse_policy, policy_manifest

POD = TracePod("p", 100, 0, GpuMilliRequest(500, 1, ""))


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("fgd", {"fgd": 1}),
        ("fgd:1", {"fgd": 1}),
        ("fgd:1000+bestfit", {"fgd": 1000, "bestfit": 1}),
        ("bestfit:3+fgd:2", {"bestfit": 3, "fgd": 2}),
    ],
)
def test_policies_with_weights(text: str, weights: dict[str, int]) -> None:
    assert parse_policy(text) == weights


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("best", 'unknown policy "best"'),
        ("fgd:0", "the weight of a policy is a whole number from 1 to 1000"),
        ("fgd:1001", "the weight of a policy is a whole number from 1 to 1000"),
        ("fgd:x", "the weight of a policy is a whole number from 1 to 1000"),
        ("fgd:²", "the weight of a policy is a whole number from 1 to 1000"),
        ("fgd+fgd:2", "names fgd twice"),
    ],
)
def test_invalid_policies_are_rejected(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_policy(text)


def test_a_policy_as_a_profile() -> None:
    (profile,) = policy_manifest("bestfit+gpupacking:2", [POD])["profiles"]
    points = profile["plugins"]
    assert points["multiPoint"] == {
        "disabled": [{"name": "*"}],
        "enabled": [{"name": POLICIES["bestfit"]}, {"name": POLICIES["gpupacking"], "weight": 2}],
    }
    assert points["filter"] == points["preFilter"] == {"enabled": [{"name": "NodeResourcesFit"}]}
    assert "pluginConfig" not in profile


def test_the_fgd_configuration_has_typical_pods() -> None:
    (profile,) = policy_manifest("fgd", [POD, POD])["profiles"]
    (config,) = profile["pluginConfig"]
    (shape,) = config["args"]["typicalPods"]
    assert (shape["cpuMilli"], shape["gpuMilli"], shape["gpuCount"], shape["pods"]) == (100, 500, 1, 2)
