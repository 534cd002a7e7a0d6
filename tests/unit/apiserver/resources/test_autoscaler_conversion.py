"""Conversion of autoscalers between v1 and v2, without loss."""

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
        pytest.param(CPU, id="cpu utilization"),
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
        pytest.param({"type": "External", "external": {"metric": METRIC, "target": VALUE}}, id="external"),
        pytest.param(
            {"type": "External", "external": {"metric": METRIC, "target": AVERAGE}}, id="external, on average"
        ),
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
def test_a_round_trip_through_v1_loses_nothing(metric: Tree) -> None:
    body = autoscaler(metric, behavior={"scaleDown": {"stabilizationWindowSeconds": 30}})
    body["status"]["conditions"] = [{"type": "AbleToScale", "status": "True"}]
    assert to_v2(to_v1(body)) == body


def test_v1_has_cpu_utilization_and_annotations_for_the_rest() -> None:
    v1 = to_v1(autoscaler(CPU, MEMORY))
    assert v1["apiVersion"] == "autoscaling/v1"
    assert v1["spec"] == {"maxReplicas": 3, "scaleTargetRef": TARGET, "targetCPUUtilizationPercentage": 50}
    annotated = json.loads(v1["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"])
    assert annotated == [{"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}}]


def test_an_invalid_annotation_is_ignored() -> None:
    v1 = to_v1(autoscaler(CPU))
    v1["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"] = "{nonsense"
    assert to_v2(v1)["spec"]["metrics"] == [CPU]


def test_managed_fields_keep_the_version_of_their_manager() -> None:
    """A manager of v1 fields owns them under their v1 names until another manager changes them in v2."""
    store = ApiserverStore()
    v2_write = store.write("HorizontalPodAutoscaler", "autoscaling", manager="new")
    v1_resource = next(each for each in store.resources.of_group("autoscaling", "v1"))
    spec = {"maxReplicas": 3, "scaleTargetRef": TARGET, "targetCPUUtilizationPercentage": 50}
    body = {"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v1", "metadata": {"name": "a"}, "spec": spec}
    created = store.writer.create(replace(v2_write, resource=v1_resource, manager="old"), body).tree
    assert fields(created, "old") == (
        "autoscaling/v1",
        {"f:maxReplicas", "f:minReplicas", "f:scaleTargetRef", "f:targetCPUUtilizationPercentage"},
    )

    def set_memory_metric(live: Tree) -> Tree:
        return {**live, "spec": {**live["spec"], "metrics": [MEMORY]}}

    changed = store.writer.update(replace(v2_write, manager="new"), "a", set_memory_metric).tree
    assert fields(changed, "old") == ("autoscaling/v1", {"f:maxReplicas", "f:minReplicas", "f:scaleTargetRef"})
    assert fields(changed, "new") == ("autoscaling/v2", {"f:metrics"})


def fields(tree: Tree, manager: str) -> tuple[str, set[str]]:
    entry = next(each for each in tree["metadata"]["managedFields"] if each["manager"] == manager)
    return entry["apiVersion"], set(entry["fieldsV1"]["f:spec"])
