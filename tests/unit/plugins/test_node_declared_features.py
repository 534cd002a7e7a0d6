"""Features that nodes declare."""

from __future__ import annotations

import pytest

from bayplan.framework.runtime.filtering import PreFilterSummary
from bayplan.objects.core import Node, Pod, RestartRule
from bayplan.plugins.node_declared_features import (
    FEATURES_MISSING,
    RESTART_ALL_CONTAINERS,
    USER_NAMESPACES_WITH_HOST_NETWORK,
    NodeDeclaredFeatures,
    needed_features,
)
from support.builders.framework import (
    FEASIBLE,
    errored,
    evaluate_hints,
    filter_result,
    make_container,
    make_cycle,
    make_filtering,
    make_node,
    make_pod,
    make_snapshot,
    run_filter,
    unresolvable,
)

RESTARTER = make_container("main", restart_policy_rules=(RestartRule(action="RestartAllContainers"),))
NEEDY = make_pod(containers=(RESTARTER,))


@pytest.mark.parametrize(
    ("pod", "features"),
    [
        pytest.param(make_pod(), set(), id="an ordinary pod"),
        pytest.param(NEEDY, {RESTART_ALL_CONTAINERS}, id="a container that restarts all"),
        pytest.param(
            make_pod(init_containers=(RESTARTER,)), {RESTART_ALL_CONTAINERS}, id="an init container that does"
        ),
        pytest.param(
            make_pod(containers=(make_container(restart_policy_rules=(RestartRule(action="Restart"),)),)),
            set(),
            id="another rule",
        ),
        pytest.param(
            make_pod(host_network=True, host_users=False),
            {USER_NAMESPACES_WITH_HOST_NETWORK},
            id="host network, own users",
        ),
        pytest.param(make_pod(host_network=True, host_users=True), set(), id="host network, host users"),
        pytest.param(make_pod(host_network=True), set(), id="host network, users not said"),
        pytest.param(make_pod(host_users=False), set(), id="own users alone"),
    ],
)
def test_needs(pod: Pod, features: set[str]) -> None:
    assert needed_features(pod) == features
    assert NodeDeclaredFeatures().signature(pod) == frozenset(features)


def test_filter() -> None:
    pod = make_pod(containers=(RESTARTER,), host_network=True, host_users=False)
    both = (USER_NAMESPACES_WITH_HOST_NETWORK, RESTART_ALL_CONTAINERS, "Other")
    nodes = [make_node("a", features=both), make_node("b", features=both[1:]), make_node("c")]
    missing = unresolvable(FEATURES_MISSING)
    assert run_filter(NodeDeclaredFeatures, pod, *nodes) == {"a": FEASIBLE, "b": missing, "c": missing}


def test_a_pod_without_required_features_is_skipped() -> None:
    cycle = make_cycle(make_pod())
    make_filtering(NodeDeclaredFeatures()).pre_filter(cycle)
    assert cycle.skip_filter == {"NodeDeclaredFeatures"}


def test_filter_without_pre_filter_is_an_error() -> None:
    snapshot = make_snapshot([make_node("a")])
    diagnosis = make_filtering(NodeDeclaredFeatures()).run_filters(make_cycle(NEEDY, snapshot), PreFilterSummary())
    text = 'error reading "PreFilterNodeDeclaredFeatures" from cycle-state: not found'
    assert filter_result(diagnosis.status(0)) == errored(f'running "NodeDeclaredFeatures" filter plugin: {text}')


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(None, make_node(), "Queue", id="any new node"),
        pytest.param(make_node(), make_node(features=("x",)), "Queue", id="declares more"),
        pytest.param(make_node(features=("x",)), make_node(features=("x",)), "Skip", id="declares the same"),
    ],
)
def test_node_hints(old: Node | None, new: Node, hint: str) -> None:
    assert evaluate_hints(NodeDeclaredFeatures(), "Node", NEEDY, old, new) == [hint]


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(NEEDY, make_pod(), "Queue", id="its needs changed"),
        pytest.param(NEEDY, NEEDY, "Skip", id="its needs stayed"),
        pytest.param(make_pod("other", containers=(RESTARTER,)), make_pod("other"), "Skip", id="another pod's needs"),
    ],
)
def test_pod_hints(old: Pod, new: Pod, hint: str) -> None:
    assert evaluate_hints(NodeDeclaredFeatures(), "Pod", NEEDY, old, new) == [hint]
