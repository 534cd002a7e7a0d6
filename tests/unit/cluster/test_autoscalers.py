"""Autoscalers in their first version: what it shows of them, and that nothing is lost on the way through it."""

from __future__ import annotations

import json

import pytest

from api_world import Tree
from bayplan.cluster.autoscalers import to_new, to_old

TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
MEMORY = {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}}
METRIC = {"name": "queue", "selector": {"matchLabels": {"a": "b"}}}
AVERAGE = {"type": "AverageValue", "averageValue": "30"}
VALUE = {"type": "Value", "value": "10k"}
SERVICE = {"apiVersion": "v1", "kind": "Service", "name": "s"}


def autoscaler(*metrics: Tree, **spec: object) -> Tree:
    return {
        "kind": "HorizontalPodAutoscaler",
        "apiVersion": "autoscaling/v2",
        "metadata": {"name": "a", "annotations": {"mine": "yes"}},
        "spec": {"maxReplicas": 3, "scaleTargetRef": TARGET, "metrics": list(metrics), **spec},
        "status": {"currentReplicas": 1, "desiredReplicas": 2, "currentMetrics": None},
    }


@pytest.mark.parametrize(
    "metric",
    [
        pytest.param(CPU, id="the load of processors"),
        pytest.param(MEMORY, id="another resource"),
        pytest.param({"type": "Pods", "pods": {"metric": METRIC, "target": AVERAGE}}, id="pods"),
        pytest.param(
            {"type": "Object", "object": {"describedObject": SERVICE, "metric": METRIC, "target": VALUE}},
            id="an object",
        ),
        pytest.param(
            {"type": "Object", "object": {"describedObject": SERVICE, "metric": METRIC, "target": AVERAGE}},
            id="an object, on average",
        ),
        pytest.param({"type": "External", "external": {"metric": METRIC, "target": VALUE}}, id="from outside"),
        pytest.param({"type": "External", "external": {"metric": METRIC, "target": AVERAGE}}, id="outside, on average"),
        pytest.param(
            {
                "type": "ContainerResource",
                "containerResource": {
                    "name": "cpu",
                    "container": "c",
                    "target": {"type": "Utilization", "averageUtilization": 7},
                },
            },
            id="one container",
        ),
    ],
)
def test_nothing_is_lost_on_the_way_through_the_first_version(metric: Tree) -> None:
    body = autoscaler(metric, behavior={"scaleDown": {"stabilizationWindowSeconds": 30}})
    body["status"]["conditions"] = [{"type": "AbleToScale", "status": "True"}]
    assert to_new(to_old(body)) == body


def test_the_first_version_shows_the_load_of_processors_and_puts_the_rest_aside() -> None:
    old = to_old(autoscaler(CPU, MEMORY))
    assert old["apiVersion"] == "autoscaling/v1"
    assert old["spec"] == {"maxReplicas": 3, "scaleTargetRef": TARGET, "targetCPUUtilizationPercentage": 50}
    aside = json.loads(old["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"])
    assert aside == [{"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}}]


def test_an_annotation_that_cannot_be_read_breaks_nothing() -> None:
    old = to_old(autoscaler(CPU))
    old["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"] = "{nonsense"
    assert to_new(old)["spec"]["metrics"] == [CPU]
