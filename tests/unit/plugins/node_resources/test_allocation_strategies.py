"""Scores of NodeResourcesFit: the three strategies, and which resources count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bayplan.objects.core import Pod, ResourceRequirements
from bayplan.objects.meta import ResourceList
from bayplan.plugins.node_resources.allocation_strategies import round_half_up, shape_function
from bayplan.plugins.node_resources.fit import NodeResourcesFit
from bayplan.plugins.node_resources.fit_args import NodeResourcesFitArgs, RequestedToCapacityRatioParam, ScoringStrategy
from bayplan.plugins.node_resources.resource_specs import ResourceSpec, UtilizationShapePoint
from support.builders.framework import (
    make_container,
    make_cycle,
    make_node,
    make_plugin,
    make_pod,
    make_scoring,
    make_snapshot,
    run_score,
)

GPU = "example.com/gpu"
NODE: ResourceList = {"cpu": "4", "memory": "1000Mi", "pods": "10"}
LEAST, MOST, RATIO = "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"


def strategy(kind: str, *shape: tuple[int, int], **weights: int) -> NodeResourcesFitArgs:
    resources = tuple(ResourceSpec(name.replace("GPU", GPU), weight) for name, weight in weights.items())
    points = tuple(UtilizationShapePoint(*point) for point in shape)
    ratio = RequestedToCapacityRatioParam(points) if points else None
    args: NodeResourcesFitArgs = NodeResourcesFit.ARGS.apply_defaults(
        NodeResourcesFitArgs(scoring_strategy=ScoringStrategy(kind, resources, ratio))
    )
    return args


def fit_score(args: NodeResourcesFitArgs, pod: Pod, allocatable: ResourceList = NODE, *pods: Pod) -> int:
    return run_score(NodeResourcesFit, pod, make_node("a", allocatable=allocatable), pods=pods, args=args)["a"]


HALF = make_pod(requests={"cpu": "2", "memory": "250Mi"})


@pytest.mark.parametrize(
    ("args", "pod", "expected"),
    [
        pytest.param(strategy(LEAST), HALF, (50 + 75) // 2, id="least: the average of what is left"),
        pytest.param(strategy(MOST), HALF, (50 + 25) // 2, id="most: the average of what is taken"),
        pytest.param(strategy(LEAST, cpu=3, memory=1), HALF, (3 * 50 + 75) // 4, id="weights"),
        pytest.param(strategy(LEAST), make_pod(), (97 + 80) // 2, id="a guess for what a container does not say"),
        pytest.param(strategy(LEAST), make_pod(requests={"cpu": "5"}), (0 + 80) // 2, id="more than there is: 0"),
        pytest.param(strategy(MOST), make_pod(requests={"cpu": "5"}), (100 + 20) // 2, id="more than there is: 100"),
        pytest.param(
            strategy(LEAST, cpu=1, GPU=9), HALF, 50, id="an extended resource it does not ask for is left out"
        ),
        pytest.param(
            strategy(LEAST, cpu=1, GPU=9),
            make_pod(requests={"cpu": "2", GPU: "1"}),
            50,
            id="one that the node lacks too",
        ),
        pytest.param(strategy(LEAST, pods=1), HALF, 0, id="pods is no resource to score"),
        pytest.param(strategy(RATIO, (0, 0), (100, 10), cpu=1), HALF, 50, id="ratio: a line"),
        pytest.param(
            strategy(RATIO, (0, 10), (100, 0), cpu=1), make_pod(requests={"cpu": "1"}), 75, id="ratio: a falling line"
        ),
        pytest.param(
            strategy(RATIO, (0, 0), (100, 10)),
            make_pod(requests={"cpu": "2", "memory": "255Mi"}),
            38,
            id="ratio: halves are rounded up",
        ),
        pytest.param(strategy(RATIO, (50, 0), (100, 10)), HALF, 0, id="ratio: nothing scores"),
        pytest.param(
            strategy(RATIO, (30, 0), (100, 7)), HALF, 20, id="ratio: a resource that scores 0 is not averaged in"
        ),
    ],
)
def test_strategies(args: NodeResourcesFitArgs, pod: Pod, expected: int) -> None:
    assert fit_score(args, pod) == expected


def test_existing_pods_count_with_the_same_default_requests() -> None:
    there = make_pod("there", node="a", requests={"memory": "100Mi"})
    assert fit_score(strategy(LEAST, cpu=1), make_pod(requests={"cpu": "1"}), NODE, there) == 72
    assert fit_score(strategy(LEAST, memory=1), make_pod(requests={"memory": "100Mi"}), NODE, there) == 80


def test_the_pod_level_does_not_count_for_the_incoming_pod() -> None:
    pod = make_pod(requests={"cpu": "1"}, resources=ResourceRequirements(requests={"cpu": "3"}))
    assert fit_score(strategy(LEAST, cpu=1), pod) == 75
    assert (
        fit_score(
            strategy(LEAST, cpu=1),
            make_pod(requests={"cpu": "0"}),
            NODE,
            make_pod("x", node="a", requests={"cpu": "1"}, resources=ResourceRequirements(requests={"cpu": "3"})),
        )
        == 25
    )


def test_init_containers_get_default_requests_too() -> None:
    pod = make_pod(
        containers=(make_container(requests={"cpu": "50m", "memory": "1Mi"}),),
        init_containers=(make_container("init"),),
    )
    assert fit_score(strategy(MOST, cpu=1), pod) == 100 * 100 // 4000


@pytest.mark.parametrize(
    ("allocatable", "requests", "kind", "expected"),
    [
        pytest.param({"ephemeral-storage": "100"}, {"ephemeral-storage": "30"}, LEAST, 70, id="ephemeral storage"),
        pytest.param({GPU: "4"}, {GPU: "1"}, MOST, 25, id="extended resources"),
        pytest.param({}, {}, MOST, 0, id="a node without it"),
    ],
)
def test_other_resources(allocatable: ResourceList, requests: ResourceList, kind: str, expected: int) -> None:
    name = next(iter(allocatable), "ephemeral-storage")
    resources = (ResourceSpec(name, 1),)
    args = NodeResourcesFitArgs(scoring_strategy=ScoringStrategy(kind, resources))
    assert fit_score(args, make_pod(requests=requests), allocatable) == expected


def test_score_without_pre_score_is_the_same() -> None:
    plugin = make_plugin(NodeResourcesFit)
    snapshot = make_snapshot([make_node("a", allocatable=NODE)])
    scoring, alone = make_scoring(plugin), make_scoring(plugin)
    alone._pre_scores = ()
    cycle = make_cycle(HALF, snapshot)
    expected = alone.score(cycle, snapshot.table).by_plugin["NodeResourcesFit"].tolist()
    assert (
        scoring.score(make_cycle(HALF, snapshot), snapshot.table).by_plugin["NodeResourcesFit"].tolist()
        == expected
        == [62]
    )


def test_products_overflow_as_in_go() -> None:
    huge: dict[str, Any] = {"memory": str(2**62), "cpu": "1", "pods": "1"}
    assert fit_score(strategy(LEAST, memory=1), make_pod(requests={"memory": "0"}), huge) == 0


@pytest.mark.parametrize(
    ("shape", "heights"),
    [
        pytest.param([(0, 0), (100, 10)], {0: 0, 1: 1, 99: 99, 100: 100}, id="a line"),
        pytest.param([(40, 2), (60, 8)], {0: 20, 40: 20, 50: 50, 60: 80, 100: 80}, id="flat outside"),
        pytest.param([(0, 10), (30, 0)], {1: 97, 10: 67, 20: 34, 29: 4}, id="falling lines are cut towards zero"),
        pytest.param([(50, 3)], {0: 30, 50: 30, 100: 30}, id="one point"),
    ],
)
def test_curves(shape: list[tuple[int, int]], heights: dict[int, int]) -> None:
    share = shape_function([UtilizationShapePoint(*point) for point in shape])
    requested = np.array(list(heights), dtype=np.int64)
    assert share(requested, np.full(len(heights), 100, dtype=np.int64)).tolist() == list(heights.values())


def test_utilization_above_100_percent_counts_as_100() -> None:
    share = shape_function([UtilizationShapePoint(0, 0), UtilizationShapePoint(100, 10)])
    assert share(np.array([101, 100]), np.array([100, 100])).tolist() == [100, 100]


def test_halves_are_rounded_up() -> None:
    assert round_half_up(np.array([5, 4, 0, 7]), np.array([2, 3, 1, 3])).tolist() == [3, 1, 0, 2]
