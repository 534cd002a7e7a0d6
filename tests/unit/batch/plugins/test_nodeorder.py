from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from bayplan.testing.builders import make_node, make_pod
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import GANGS, build_engine

NODEORDER_ONLY = GANGS.replace("  - name: predicates\n", "")
ALL = ("leastrequested", "balancedresource", "nodeaffinity", "podaffinity", "tainttoleration", "podtopologyspread")
OFF = {f"{name}.weight": 0 for name in (*ALL, "imagelocality")}


def scores(arguments: dict[str, Any], nodes: list[Any], pods: list[Any]) -> list[float]:
    lines = "".join(f"      {key}: {value}\n" for key, value in arguments.items())
    conf = NODEORDER_ONLY.replace("  - name: nodeorder\n", f"  - name: nodeorder\n    arguments:\n{lines}")
    with build_engine(
        conf=conf, nodes=nodes, pods=[make_member("p"), *pods], objects=[make_group()]
    ).session() as session:
        (task,) = session.jobs["default/job"].pending.values()
        totals = session.scores(task, np.ones(len(nodes), dtype=np.bool_))
        assert totals is not None
        return [float(total) for total in totals]


NODES = [make_node("a", cpu=4, memory="8Gi"), make_node("b", cpu=4, memory="8Gi", taints=["spot:PreferNoSchedule"])]
BUSY = [make_pod("busy", cpu=2, memory="2Gi", node="a")]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        pytest.param({"leastrequested.weight": 1}, [48, 86], id="least-requested"),
        pytest.param({"mostrequested.weight": 1}, [51, 13], id="most-requested"),
        pytest.param({"tainttoleration.weight": 3}, [300, 0], id="taints"),
        pytest.param({"leastrequested.weight": -2}, [-96, -172], id="negative-weight"),
        pytest.param({}, [0, 0], id="all-off"),
        pytest.param({"leastrequested.weight": 1, "tainttoleration.weight": 1}, [148, 86], id="sum"),
    ],
)
def test_weights(weights: dict[str, int], expected: list[float]) -> None:
    assert scores({**OFF, **weights}, NODES, BUSY) == expected


def test_balance_is_scored_with_the_pod_included() -> None:
    nodes = [make_node("a", cpu=4, memory="8Gi"), make_node("b", cpu=2, memory="8Gi")]
    found = scores({**OFF, "balancedresource.weight": 1}, nodes, [])
    assert found == [87, 75]


def test_image_counts_depend_on_the_order_of_nodes() -> None:
    nodes = [make_node(name, images={"repo/app:v1": 400 * 1024 * 1024}) for name in "abcd"]
    pod = make_member("p")
    container = replace(pod.spec.containers[0], image="repo/app:v1")
    wanting = replace(pod, spec=replace(pod.spec, containers=(container,)))
    with build_engine(conf=NODEORDER_ONLY, nodes=nodes, pods=[wanting], objects=[make_group()]).session() as session:
        (task,) = session.jobs["default/job"].pending.values()
        totals = session.scores(task, np.ones(4, dtype=np.bool_))
        assert totals is not None
        assert list(totals) == sorted(totals)
        assert totals[0] < totals[3]
