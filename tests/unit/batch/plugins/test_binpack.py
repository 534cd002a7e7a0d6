from __future__ import annotations

from typing import Any

import pytest

from bayplan.batch.plugins.binpack import BinpackPlugin
from bayplan.objects.meta import ResourceList
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session
from support.builders.batch_scores import scores

GPU = "nvidia.com/gpu"
ROOM: ResourceList = {"cpu": "8", "memory": "8Gi", "pods": "10"}
NODES = [
    make_node("empty", allocatable=ROOM),
    make_node("half", allocatable=ROOM),
    make_node("gpus", allocatable={**ROOM, GPU: "4"}),
]
RUNNING = make_member("running", node="half", requests={"cpu": "4", "memory": "2Gi"})


@pytest.mark.parametrize(
    ("requests", "arguments", "expected"),
    [
        pytest.param({"cpu": "2"}, {}, {"empty": 25.0, "half": 75.0, "gpus": 25.0}, id="the-fullest-is-best"),
        pytest.param(
            {"cpu": "2", "memory": "2Gi"}, {}, {"empty": 25.0, "half": 62.5, "gpus": 25.0}, id="mean-of-the-requested"
        ),
        pytest.param(
            {"cpu": "2", "memory": "2Gi"},
            {"binpack.cpu": 3},
            {"empty": 25.0, "half": 68.75, "gpus": 25.0},
            id="resource-weights",
        ),
        pytest.param({"cpu": "5"}, {}, {"empty": 62.5, "half": 0.0, "gpus": 62.5}, id="too-large-scores-0"),
        pytest.param({"cpu": "4"}, {}, {"empty": 50.0, "half": 100.0, "gpus": 50.0}, id="exactly-full"),
        pytest.param({"cpu": "2"}, {"binpack.weight": 3}, {"empty": 75.0, "half": 225.0, "gpus": 75.0}, id="weight"),
        pytest.param(
            {"cpu": "2"}, {"binpack.weight": -1}, {"empty": -25.0, "half": -75.0, "gpus": -25.0}, id="negative-weight"
        ),
        pytest.param({"cpu": "2"}, {"binpack.weight": 0}, {"empty": 0.0, "half": 0.0, "gpus": 0.0}, id="off"),
        pytest.param({"cpu": "2"}, {"binpack.cpu": -5}, {"empty": 25.0, "half": 75.0, "gpus": 25.0}, id="below-zero"),
        pytest.param(
            {"cpu": "2", GPU: 1}, {}, {"empty": 25.0, "half": 75.0, "gpus": 25.0}, id="unlisted-resources-do-not-count"
        ),
        pytest.param(
            {"cpu": "2", GPU: 1},
            {"binpack.resources": f"{GPU}, other", f"binpack.resources.{GPU}": 3},
            {"empty": 6.25, "half": 18.75, "gpus": 25.0},
            id="missing-resource-counts-as-0",
        ),
        pytest.param(
            {"cpu": "2", GPU: 8},
            {"binpack.resources": GPU, f"binpack.resources.{GPU}": 0},
            {"empty": 25.0, "half": 75.0, "gpus": 25.0},
            id="weight-0-is-ignored",
        ),
        pytest.param(
            {"cpu": "5"}, {"binpack.cpu": 0}, {"empty": 0.0, "half": 0.0, "gpus": 0.0}, id="no-weight-no-score"
        ),
    ],
)
def test_scores(requests: ResourceList, arguments: dict[str, Any], expected: dict[str, float]) -> None:
    pods = [RUNNING, make_member("p", requests=requests)]
    with open_session(BinpackPlugin, arguments=arguments, nodes=NODES, pods=pods, objects=[make_group()]) as session:
        assert scores(session, "p") == pytest.approx(expected)


def test_a_resource_list_that_is_not_a_text_is_reported() -> None:
    with open_session(BinpackPlugin, arguments={"binpack.resources": [GPU]}, nodes=NODES) as session:
        assert any("binpack.resources" in fault for fault in session.faults)
