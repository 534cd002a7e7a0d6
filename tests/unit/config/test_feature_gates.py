"""Feature gates: known gates, configurable gates, and errors."""

from __future__ import annotations

import pytest

from bayplan.config.defaults import default_plugins
from bayplan.config.feature_gates import (
    CONFIGURABLE_GATES,
    DISABLED_GATES,
    ENABLED_GATES,
    LOCKED_GATES,
    parse_feature_gates,
)
from bayplan.errors import ConfigError


def test_defaults_hold_without_flags() -> None:
    features = parse_feature_gates(())
    assert features.enabled("SchedulerPopFromBackoffQ")
    assert features.enabled("DynamicResourceAllocation")
    assert not features.enabled("GangScheduling")
    assert features.emulated_version == "1.36"


def test_no_gate_is_in_two_sets() -> None:
    assert len(ENABLED_GATES | DISABLED_GATES | LOCKED_GATES) == len(ENABLED_GATES) + len(DISABLED_GATES) + len(
        LOCKED_GATES
    )
    assert CONFIGURABLE_GATES <= ENABLED_GATES | DISABLED_GATES


def test_the_last_value_counts_and_spaces_are_ignored() -> None:
    features = parse_feature_gates(["SchedulerPopFromBackoffQ=true", " kube: SchedulerPopFromBackoffQ = false", ""])
    assert not features.enabled("SchedulerPopFromBackoffQ")


def test_ineffective_gates_are_listed() -> None:
    features = parse_feature_gates(
        ["StorageCapacityScoring=true", "SchedulerAsyncPreemption=true", "KubeletThing=true", "OpportunisticBatching=0"]
    )
    assert features.ineffective_gates() == ["StorageCapacityScoring"]


def test_unknown_gates_are_listed_with_the_nearest_known_name() -> None:
    gates = ["GangSchedulling=true", "genericworkload=true", "Nope=false", "OpportunisticBatching=false"]
    nearest = [("GangSchedulling", "GangScheduling"), ("Nope", ""), ("genericworkload", "GenericWorkload")]
    assert list(parse_feature_gates(gates).unknown()) == nearest


def test_the_gates_of_pod_groups_are_configurable() -> None:
    features = parse_feature_gates(
        ["GenericWorkload=true", "GangScheduling=true", "TopologyAwareWorkloadScheduling=true"]
    )
    assert features.ineffective_gates() == []
    assert all(map(features.is_effective, features.set_gates))


@pytest.mark.parametrize(
    ("gates", "added"),
    [
        ([], []),
        (["GangScheduling"], ["GangScheduling"]),
        (["TopologyAwareWorkloadScheduling"], ["TopologyPlacementGenerator", "PodGroupPodsCount"]),
        (
            ["TopologyAwareWorkloadScheduling", "GangScheduling"],
            ["GangScheduling", "TopologyPlacementGenerator", "PodGroupPodsCount"],
        ),
    ],
)
def test_gates_add_default_plugins(gates: list[str], added: list[str]) -> None:
    plain, found = (default_plugins(each).multi_point.enabled for each in ((), gates))
    assert [ref.name for ref in found[len(plain) :]] == added


def test_an_older_version_can_be_emulated() -> None:
    assert parse_feature_gates((), ["kube=1.34"], ["1.33"]).emulated_version == "1.34"


@pytest.mark.parametrize(
    ("gates", "emulated", "compatible", "words"),
    [
        pytest.param(["X"], [], [], "missing bool value for X", id="no-value"),
        pytest.param(["X=maybe"], [], [], "invalid value of X=maybe, err: strconv.ParseBool", id="no-bool"),
        pytest.param(["etcd:X=true"], [], [], "component not registered: etcd", id="component"),
        pytest.param(["DynamicResourceAllocation=false"], [], [], "feature is locked to true", id="locked"),
        pytest.param(
            ["GangScheduling=true"],
            [],
            [],
            "GangScheduling is enabled, but depends on features that are disabled: [GenericWorkload]",
            id="needs-another",
        ),
        pytest.param([], ["1.2"], [], "emulation version 1.2 is not between [1.33, 1.36.0]", id="too-old"),
        pytest.param([], ["1.37"], [], "emulation version 1.37 is not between", id="too-new"),
        pytest.param([], ["x"], [], 'could not parse "x" as version', id="no-version"),
        pytest.param([], ["1.34"], ["1.35"], "minCompatibilityVersion version 1.35 is not between", id="compatible"),
    ],
)
def test_invalid_gates_are_refused(gates: list[str], emulated: list[str], compatible: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_feature_gates(gates, emulated, compatible)
    assert words in str(caught.value)
