"""Autoscalers in their first version: what it shows of them, and that nothing is lost on the way through it."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from bayplan.apiserver.resources.autoscaler_conversion import to_v1, to_v2
from support.harness.apiserver_store import ApiserverStore, Tree

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
    assert to_v2(to_v1(body)) == body


def test_the_first_version_shows_the_load_of_processors_and_puts_the_rest_aside() -> None:
    old = to_v1(autoscaler(CPU, MEMORY))
    assert old["apiVersion"] == "autoscaling/v1"
    assert old["spec"] == {"maxReplicas": 3, "scaleTargetRef": TARGET, "targetCPUUtilizationPercentage": 50}
    aside = json.loads(old["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"])
    assert aside == [{"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}}]


def test_an_annotation_that_cannot_be_read_breaks_nothing() -> None:
    old = to_v1(autoscaler(CPU))
    old["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"] = "{nonsense"
    assert to_v2(old)["spec"]["metrics"] == [CPU]


def test_each_version_has_the_fields_of_its_own_writers() -> None:
    """Who wrote in the first keeps what it calls by its own names, until somebody changes that in the second."""
    world = ApiserverStore()
    newer = world.write("HorizontalPodAutoscaler", "autoscaling", manager="new")
    first = next(each for each in world.resources.stored_in(newer.resource.storage) if each.version == "v1")
    spec = {"maxReplicas": 3, "scaleTargetRef": TARGET, "targetCPUUtilizationPercentage": 50}
    body = {"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v1", "metadata": {"name": "a"}, "spec": spec}
    made = world.writer.create(replace(newer, resource=first, manager="old"), body).tree
    assert fields(made, "old") == (
        "autoscaling/v1",
        {"f:maxReplicas", "f:minReplicas", "f:scaleTargetRef", "f:targetCPUUtilizationPercentage"},
    )

    def doubled(live: Tree) -> Tree:
        return {**live, "spec": {**live["spec"], "metrics": [MEMORY]}}

    changed = world.writer.update(replace(newer, manager="new"), "a", doubled).tree
    assert fields(changed, "old") == ("autoscaling/v1", {"f:maxReplicas", "f:minReplicas", "f:scaleTargetRef"})
    assert fields(changed, "new") == ("autoscaling/v2", {"f:metrics"})


def fields(tree: Tree, manager: str) -> tuple[str, set[str]]:
    entry = next(each for each in tree["metadata"]["managedFields"] if each["manager"] == manager)
    return entry["apiVersion"], set(entry["fieldsV1"]["f:spec"])
