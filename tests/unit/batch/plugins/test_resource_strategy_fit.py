from __future__ import annotations

from typing import Any

import pytest

from bayplan.batch.plugins.resource_strategy_fit import (
    POD_RESOURCE_WEIGHTS,
    POD_SCORING_TYPE,
    ResourceStrategyFitPlugin,
)
from bayplan.framework.api.status import Code
from bayplan.objects.meta import ResourceList
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session
from support.builders.batch_scores import predicate_rejections, scores

GPU = "nvidia.com/gpu"
ROOM: ResourceList = {"cpu": "8", "memory": "8Gi", "pods": "10"}
NODES = [make_node("cpu", allocatable=ROOM), make_node("gpu", allocatable={**ROOM, GPU: "4"})]
RUNNING = make_member("running", node="gpu", requests={"cpu": "4", GPU: 1})
OFF = {"resourceStrategyFitWeight": 0}
MOST, LEAST = "MostAllocated", "LeastAllocated"


def resources(**types: Any) -> dict[str, Any]:
    return {"resourceStrategyFitWeight": 1, "resources": types}


@pytest.mark.parametrize(
    ("requests", "arguments", "expected"),
    [
        pytest.param({"cpu": "2"}, {}, {"cpu": 750.0, "gpu": 250.0}, id="the-emptiest-times-ten"),
        pytest.param({"cpu": "2"}, {"resourceStrategyFitWeight": -3}, {"cpu": 750.0, "gpu": 250.0}, id="below-zero"),
        pytest.param({"cpu": "2"}, OFF, {"cpu": 0.0, "gpu": 0.0}, id="off"),
        pytest.param({"cpu": "2"}, resources(cpu={"type": MOST, "weight": 2}), {"cpu": 25.0, "gpu": 75.0}, id="most"),
        pytest.param({"cpu": "2"}, resources(cpu={"type": "Odd"}), {"cpu": 75.0, "gpu": 25.0}, id="unknown-type"),
        pytest.param(
            {"cpu": "6"}, resources(cpu={"type": LEAST}), {"cpu": 25.0, "gpu": 0.0}, id="above-capacity-scores-0"
        ),
        pytest.param({"cpu": "2"}, resources(memory={"type": MOST}), {"cpu": 0.0, "gpu": 0.0}, id="not-configured"),
        pytest.param(
            {"cpu": "2", GPU: 1},
            resources(**{"cpu": {"type": LEAST, "weight": 1}, "nvidia.com/*": {"type": MOST, "weight": 3}}),
            {"cpu": 18.75, "gpu": (25 + 3 * 50) / 4},
            id="prefix-match",
        ),
        pytest.param(
            {GPU: 1},
            resources(**{"nvidia.com/*": {"type": LEAST}, "nvidia*": {"type": MOST}, GPU: {"type": MOST}}),
            {"cpu": 0.0, "gpu": 50.0},
            id="the-exact-name-first",
        ),
        pytest.param(
            {GPU: 1},
            resources(**{"nvidia.com/*": {"type": MOST}, "nvidia*": {"type": LEAST}}),
            {"cpu": 0.0, "gpu": 50.0},
            id="longest-prefix",
        ),
        pytest.param({"cpu": "2"}, resources(**{"*": {"type": MOST}}), {"cpu": 0.0, "gpu": 0.0}, id="a-bare-star"),
        pytest.param({"cpu": "2"}, resources(**{"c*u": {"type": MOST}}), {"cpu": 0.0, "gpu": 0.0}, id="a-star-inside"),
        pytest.param(
            {"cpu": "2"},
            resources(**{"c*u": {"type": LEAST}, "cpu": {"type": MOST}}),
            {"cpu": 25.0, "gpu": 75.0},
            id="a-good-name-after-a-bad-one",
        ),
    ],
)
def test_strategies(requests: ResourceList, arguments: dict[str, Any], expected: dict[str, float]) -> None:
    pods = [RUNNING, make_member("p", requests=requests)]
    with open_session(
        ResourceStrategyFitPlugin, arguments=arguments, nodes=NODES, pods=pods, objects=[make_group()]
    ) as session:
        assert scores(session, "p") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param(
            {POD_SCORING_TYPE: MOST, POD_RESOURCE_WEIGHTS: '{"cpu": 2}'}, {"cpu": 25.0, "gpu": 75.0}, id="replaces-all"
        ),
        pytest.param({POD_SCORING_TYPE: MOST}, {"cpu": 0.0, "gpu": 0.0}, id="without-weights"),
        pytest.param(
            {POD_SCORING_TYPE: MOST, POD_RESOURCE_WEIGHTS: '{"cpu": 1.5}'},
            {"cpu": 0.0, "gpu": 0.0},
            id="no-whole-number",
        ),
        pytest.param({POD_SCORING_TYPE: MOST, POD_RESOURCE_WEIGHTS: "cpu=1"}, {"cpu": 0.0, "gpu": 0.0}, id="no-json"),
        pytest.param({POD_SCORING_TYPE: MOST, POD_RESOURCE_WEIGHTS: "null"}, {"cpu": 0.0, "gpu": 0.0}, id="null"),
        pytest.param(
            {POD_SCORING_TYPE: MOST, POD_RESOURCE_WEIGHTS: f'{{"cpu": {2**63}}}'},
            {"cpu": 0.0, "gpu": 0.0},
            id="too-large",
        ),
        pytest.param(
            {POD_SCORING_TYPE: MOST, POD_RESOURCE_WEIGHTS: f'{{"cpu": 1, "x": {2**63}}}'},
            {"cpu": 0.0, "gpu": 0.0},
            id="one-too-large",
        ),
        pytest.param(
            {POD_SCORING_TYPE: MOST, POD_RESOURCE_WEIGHTS: '{"cpu": null, "memory": 1}'},
            {"cpu": 0.0, "gpu": 0.0},
            id="null-weight",
        ),
        pytest.param(
            {POD_SCORING_TYPE: MOST, POD_RESOURCE_WEIGHTS: '{"c*": 1}'}, {"cpu": 0.0, "gpu": 0.0}, id="no-prefix-match"
        ),
        pytest.param(
            {POD_SCORING_TYPE: MOST, POD_RESOURCE_WEIGHTS: '{"cpu": -1}'}, {"cpu": -25.0, "gpu": -75.0}, id="below-zero"
        ),
        pytest.param(
            {POD_SCORING_TYPE: "Odd", POD_RESOURCE_WEIGHTS: '{"cpu": 1}'}, {"cpu": 0.0, "gpu": 0.0}, id="unknown-type"
        ),
        pytest.param({POD_RESOURCE_WEIGHTS: '{"cpu": 1}'}, {"cpu": 75.0, "gpu": 25.0}, id="weights-alone-are-not-read"),
    ],
)
def test_strategy_in_the_annotations_of_a_pod(annotations: dict[str, str], expected: dict[str, float]) -> None:
    pods = [RUNNING, make_member("p", requests={"cpu": "2"}, annotations=annotations)]
    arguments = resources(cpu={"type": LEAST})
    with open_session(
        ResourceStrategyFitPlugin, arguments=arguments, nodes=NODES, pods=pods, objects=[make_group()]
    ) as session:
        assert scores(session, "p") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("requests", "sra", "expected"),
    [
        pytest.param({"cpu": "1"}, {"resources": GPU, "weight": 2}, {"cpu": 200.0, "gpu": 0.0}, id="avoids-gpu-nodes"),
        pytest.param(
            {GPU: 1}, {"resources": GPU, "weight": 2}, {"cpu": 0.0, "gpu": 0.0}, id="missing-resource-scores-0"
        ),
        pytest.param(
            {"cpu": "1"},
            {"resources": f"{GPU}, a.b/c", "weight": 1, "resourceWeight": {GPU: 1, "a.b/c": 3}},
            {"cpu": 100.0, "gpu": 75.0},
            id="weights",
        ),
        pytest.param(
            {"cpu": "1"},
            {"resources": f"{GPU},a.b/c", "weight": 1, "resourceWeight": {GPU: -7}},
            {"cpu": 100.0, "gpu": 50.0},
            id="below-zero-is-one",
        ),
        pytest.param(
            {"cpu": "1"},
            {"resources": f"{GPU},{GPU}", "weight": 1},
            {"cpu": 100.0, "gpu": 50.0},
            id="twice-in-the-list",
        ),
        pytest.param({"cpu": "1"}, {"resources": GPU}, {"cpu": 0.0, "gpu": 0.0}, id="no-weight-is-off"),
        pytest.param(
            {"cpu": "1"}, {"enable": False, "resources": GPU, "weight": 1}, {"cpu": 0.0, "gpu": 0.0}, id="not-enabled"
        ),
    ],
)
def test_scarce_resources(requests: ResourceList, sra: dict[str, Any], expected: dict[str, float]) -> None:
    arguments = {**OFF, "sra": {"enable": True, **sra}}
    pods = [make_member("p", requests=requests)]
    with open_session(
        ResourceStrategyFitPlugin, arguments=arguments, nodes=NODES, pods=pods, objects=[make_group()]
    ) as session:
        assert scores(session, "p") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("requests", "proportions", "rejected"),
    [
        pytest.param({"cpu": "1"}, {"cpu": 1, "memory": 1}, False, id="enough-beside-three-idle-gpus"),
        pytest.param({"cpu": "1"}, {}, False, id="one-each-by-default"),
        pytest.param({"cpu": "2"}, {"cpu": 1}, True, id="too-little-cpu"),
        pytest.param({"cpu": "1", "memory": "7Gi"}, {"cpu": 0}, True, id="too-little-memory"),
        pytest.param({"cpu": "2"}, {"cpu": 0.5}, False, id="enough-for-half-a-core-each"),
        pytest.param({"cpu": "1"}, {"cpu": 1.5}, True, id="too-little-for-more-than-a-core-each"),
        pytest.param({"cpu": "2"}, {"cpu": -1, "memory": 0}, True, id="below-zero-is-one"),
        pytest.param({"cpu": "2", GPU: 1}, {"cpu": 1}, False, id="requests-a-gpu"),
    ],
)
def test_proportions(requests: ResourceList, proportions: dict[str, float], rejected: bool) -> None:
    rates = {f"{GPU}.{name}": rate for name, rate in proportions.items()}
    arguments = {"proportional": {"enable": True, "resources": f"cpu, {GPU}", "resourceProportion": rates}}
    pods = [RUNNING, make_member("p", requests=requests)]
    with open_session(
        ResourceStrategyFitPlugin, arguments=arguments, nodes=NODES, pods=pods, objects=[make_group()]
    ) as session:
        reason = f"proportional of resource {GPU} check failed"
        assert predicate_rejections(session, "p") == ({"gpu": (Code.UNRESOLVABLE, reason)} if rejected else {})


def test_a_node_is_rejected_for_one_resource_only() -> None:
    """The first resource that is short is the reason; a later one does not repeat the node."""
    other = "a.b/c"
    node = make_node("n", allocatable={**ROOM, GPU: "8", other: "8"})
    arguments = {"proportional": {"enable": True, "resources": f"{GPU}, {other}"}}
    pods = [make_member("p", requests={"cpu": "1"})]
    with open_session(
        ResourceStrategyFitPlugin, arguments=arguments, nodes=[node], pods=pods, objects=[make_group()]
    ) as session:
        expected = {"n": (Code.UNRESOLVABLE, f"proportional of resource {GPU} check failed")}
        assert predicate_rejections(session, "p") == expected
