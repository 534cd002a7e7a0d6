from __future__ import annotations

import json

import pytest

from bayplan.config.load import dump, load, load_default
from bayplan.plugins.args_kinds import ARGS_KINDS


def test_the_dump_of_the_default_configuration() -> None:
    shown = dump(load_default(ARGS_KINDS))
    profile = shown["profiles"][0]
    assert shown["kind"] == "KubeSchedulerConfiguration"
    assert shown["leaderElection"]["leaseDuration"] == "15s"
    assert shown["clientConnection"]["qps"] == 50
    assert profile["plugins"]["filter"] == {}
    assert profile["plugins"]["multiPoint"]["enabled"][4] == {"name": "TaintToleration", "weight": 3}
    assert profile["pluginConfig"][1] == {
        "name": "DynamicResources",
        "args": {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "DynamicResourcesArgs",
            "filterTimeout": "10s",
            "bindingTimeout": "10m0s",
        },
    }
    assert "extenders" not in shown


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param("", id="nothing"),
        pytest.param("percentageOfNodesToScore: 7\nprofiles: [{percentageOfNodesToScore: 0}]\n", id="percentages"),
        pytest.param("extenders: [{urlPrefix: u, tlsConfig: {certData: aGk=}, httpTimeout: 1m}]\n", id="extender"),
        pytest.param("profiles: [{pluginConfig: [{name: Foo, args: {a: [1]}}, {name: Bar}]}]\n", id="raw arguments"),
        pytest.param(
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: "
            "RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}]}}}}]}]\n",
            id="arguments",
        ),
    ],
)
def test_a_dump_loads_as_the_same_configuration(fields: str) -> None:
    header = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    first = dump(load(header + fields, ARGS_KINDS))
    # Loading merges the default plugins once more, which must change nothing.
    assert dump(load(json.dumps(first), ARGS_KINDS)) == first
