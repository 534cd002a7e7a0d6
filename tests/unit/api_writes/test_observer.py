"""Observer: each attempt is observed at its extension points as in kube-scheduler, with and without shared
evaluations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import pytest

from bayplan.app import configured, filled_cache, known_plugins
from bayplan.clock import ManualClock
from bayplan.framework import (
    Cycle,
    NodeInfo,
    NodeTable,
    PluginTraits,
    Rejection,
    Status,
    error,
    row_local,
    unschedulable,
)
from bayplan.objects.core import Pod
from bayplan.objects.kinds import convert
from bayplan.scheduler.engine import PodEngine
from bayplan.telemetry.plugin_timings import PointTimings
from support.builders.framework import make_node, make_pod

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- percentageOfNodesToScore: {share}
  plugins: {{multiPoint: {{enabled: [{enabled}]}}}}
"""
DEFAULT = "default-scheduler"
GOOD = "Success"
LOOKED = {("PreFilter", GOOD): 1, ("Filter", GOOD): 1}
CHOSEN = {**LOOKED, ("PreScore", GOOD): 1, ("Score", GOOD): 1}
POINTS = ("PreFilter", "Filter", "PreScore", "Score")


class FailsHere:
    """Fails for pods with a label that names the extension point."""

    name = "FailsHere"
    traits = PluginTraits(depends_on=row_local)

    def signature(self, pod: Pod) -> Hashable:
        return pod.metadata.labels.get("breaks")

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        if cycle.pod.metadata.labels.get("breaks") == "filter":
            yield Rejection.from_error(nodes, "no")

    def pre_filter(self, cycle: Cycle) -> Status | None:
        return error("no") if cycle.pod.metadata.labels.get("breaks") == "preFilter" else None

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        return error("no") if cycle.pod.metadata.labels.get("breaks") == "preScore" else None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> Any:
        if cycle.pod.metadata.labels.get("breaks") == "score":
            raise RuntimeError("no")
        return np.zeros(len(nodes), dtype=np.int64)


class Walks:
    """A per-node filter, so that a sample is searched in steps; rejects the first nodes."""

    name = "Walks"

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
        return unschedulable("early") if int(node.name[1:]) < 300 else None


def engine(*plugins: type[Any], nodes: int = 4, share: bool = True, percentage: str = "100") -> PodEngine:
    registry = known_plugins().with_plugins(*plugins)
    config = CONFIG.format(enabled=", ".join(f"{{name: {plugin.name}}}" for plugin in plugins), share=percentage)
    cache = filled_cache([make_node(f"n{number}", cpu="8") for number in range(nodes)])
    given = configured(config, registry)
    return PodEngine(given, registry, cache, clock=ManualClock(), chance=random.Random(0), share=share)


def points(of: PodEngine) -> PointTimings:
    return of.timings.points(DEFAULT)


def seen(of: PodEngine) -> Counter[tuple[str, str]]:
    """Observations by point and status, of the points before a node is chosen."""
    found = {(point, status): spread.count for point, status, spread in points(of).spreads() if point in POINTS}
    return Counter(found)


def pod(name: str, **spec: Any) -> Pod:
    labels = spec.pop("labels", {})
    metadata = {"name": name, "namespace": "default", "uid": name, "labels": labels}
    spec.setdefault("containers", [{"name": "c", "resources": {"requests": {"cpu": spec.pop("cpu", "100m")}}}])
    return convert({"metadata": metadata, "spec": spec}, Pod)


def named(node: str) -> dict[str, Any]:
    """An affinity to one node by its name, which PreFilter narrows to."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, CHOSEN, id="placed"),
        pytest.param({"cpu": "99"}, LOOKED, id="refused by a filter"),
        pytest.param({"nodeSelector": {"disk": "none"}}, LOOKED, id="selected nothing"),
        pytest.param(named("n1"), LOOKED, id="one node by name"),
        pytest.param(named("missing"), LOOKED, id="no node of this name"),
        pytest.param(
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]},
            {("PreFilter", "UnschedulableAndUnresolvable"): 1},
            id="refused by PreFilter",
        ),
        pytest.param({"labels": {"breaks": "preFilter"}}, {("PreFilter", "Error"): 1}, id="PreFilter breaks"),
        pytest.param(
            {"labels": {"breaks": "filter"}}, {("PreFilter", GOOD): 1, ("Filter", "Error"): 1}, id="Filter breaks"
        ),
        pytest.param({"labels": {"breaks": "preScore"}}, {**LOOKED, ("PreScore", "Error"): 1}, id="PreScore breaks"),
        pytest.param(
            {"labels": {"breaks": "score"}}, {**LOOKED, ("PreScore", GOOD): 1, ("Score", "Error"): 1}, id="Score breaks"
        ),
    ],
)
def test_an_attempt_is_observed_once_at_each_point_with_its_answer(
    spec: dict[str, Any], expected: dict[tuple[str, str], int], *, share: bool
) -> None:
    on = engine(FailsHere, share=share)
    for number in range(4):  # evaluated alone, then stored, then from the stored evaluation
        before = seen(on)
        on.place(pod(f"p{number}", **spec))
        assert seen(on) - before == expected, number


def test_a_single_node_that_fits_is_not_scored() -> None:
    on = engine(nodes=1)
    for number in range(3):
        on.place(pod(f"p{number}"))
    assert seen(on) == dict.fromkeys(LOOKED, 3)


def test_without_nodes_no_plugin_is_called() -> None:
    on = engine(nodes=0)
    on.place(pod("p"))
    assert seen(on) == {}


def test_a_search_in_steps_counts_once() -> None:
    on = engine(Walks, nodes=400, percentage="5")
    assert on.place(make_pod("p")).node is not None
    assert seen(on) == CHOSEN


def test_class_lookups_of_placed_pods() -> None:
    on = engine(nodes=2)
    for number in range(5):
        assert on.place(pod(f"p{number}")).node is not None
    assert points(on).class_lookups(found=True).count == 3, "one evaluated alone, one stored"
    assert points(on).class_lookups(found=False).count == 2


def test_class_lookups_of_pods_that_fit_nowhere() -> None:
    on = engine()
    for number in range(4):
        assert on.place(pod(f"p{number}", cpu="99")).node is None
    assert points(on).class_lookups(found=True).count == 0
    assert points(on).class_lookups(found=False).count == 4
    on.place(pod("q", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]))
    assert points(on).class_lookups(found=False).count == 4, "PreFilter has rejected the pod"
