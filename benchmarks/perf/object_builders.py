"""Builds the objects of an operation: nodes with their strategies, pods with their volumes, any object from a file.

Called while operations run, outside of measurements. The rules are those of upstream's harness: names, the labels that
nodes get in turn, the content of a CSINode, how claims and volumes are bound to each other beforehand. Objects are
trees with all their fields: an API server requires more of them than a scheduler reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.perf.templates import Raw, Template

HOST = "kubernetes.io/hostname"
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"

BASE_POD: Raw = {
    "metadata": {"generateName": "pod-"},
    "spec": {
        "containers": [
            {
                "name": "pause",
                "image": "registry.k8s.io/pause:3.10.2",
                "ports": [{"containerPort": 80}],
                "resources": {
                    "limits": {"cpu": "100m", "memory": "500Mi"},
                    "requests": {"cpu": "100m", "memory": "500Mi"},
                },
            }
        ]
    },
}
"""The pod of an operation without a template."""


def base_node(number_of_operation: int) -> Raw:
    """The node of an operation without a template."""
    return {
        "metadata": {"generateName": f"node-{number_of_operation}-"},
        "status": {
            "capacity": {"pods": "110", "cpu": "4", "memory": "32Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _core(kind: str, raw: Raw) -> Raw:
    """Add apiVersion and kind, which the operation implies and some files omit."""
    return {**raw, "apiVersion": "v1", "kind": kind}


def in_namespace(raw: Raw, namespace: str) -> Raw:
    return {**raw, "metadata": {**raw["metadata"], "namespace": namespace}}


# nodes


def nodes(template: Template, operation: Mapping[str, Any], features: int) -> Iterator[Raw]:
    """Nodes as their strategy prepares them, each followed by its CSINode if it has one."""
    strategy = _strategy(operation)
    declared = sorted(f"Feature{number}" for number in range(1, features + 1))
    for index, raw in enumerate(template.objects(operation["count"])):
        metadata, status = raw["metadata"], dict(raw.get("status") or {})
        labels = {**(metadata.get("labels") or {}), HOST: metadata["name"]}
        if declared:
            status["declaredFeatures"] = declared
        prepared = {**raw, "metadata": {**metadata, "labels": labels}, "status": status}
        yield _core("Node", strategy(prepared, index))
        if "nodeAllocatableStrategy" in operation:
            yield csi_node(metadata["name"], operation["nodeAllocatableStrategy"])


def _strategy(operation: Mapping[str, Any]) -> Callable[[Raw, int], Raw]:
    labels, unique = operation.get("labelNodePrepareStrategy"), operation.get("uniqueNodeLabelStrategy")
    if "nodeAllocatableStrategy" in operation:
        more = operation["nodeAllocatableStrategy"].get("nodeAllocatable") or {}
        return lambda raw, _: _with_room(raw, more)
    if labels is not None:
        values = labels["labelValues"]
        return lambda raw, index: _labelled(raw, labels["labelKey"], values[index % len(values)])
    if unique is not None:
        return lambda raw, _: _labelled(raw, unique["labelKey"], f"only-{raw['metadata']['name']}")
    return lambda raw, _: raw


def _labelled(raw: Raw, key: str, value: str) -> Raw:
    metadata = raw["metadata"]
    return {**raw, "metadata": {**metadata, "labels": {**metadata["labels"], key: value}}}


def _with_room(raw: Raw, more: Mapping[str, Any]) -> Raw:
    status = raw["status"]
    return {**raw, "status": {**status, "allocatable": {**(status.get("allocatable") or status["capacity"]), **more}}}


def csi_node(name: str, strategy: Mapping[str, Any]) -> Raw:
    drivers = [
        {"name": driver, "nodeID": name, "allocatable": room}
        for driver, room in (strategy.get("csiNodeAllocatable") or {}).items()
    ]
    annotations = {MIGRATED: ",".join(strategy.get("migratedPlugins") or ())}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"drivers": drivers},
    }


def namespaces(raw: Raw, prefix: str, count: int) -> Iterator[Raw]:
    for number in range(count):
        metadata = {**(raw.get("metadata") or {}), "name": f"{prefix}-{number}"}
        yield _core("Namespace", {"metadata": metadata})


# pods


def pods(template: Template, namespace: str, count: int) -> Iterator[Raw]:
    for raw in template.objects(count):
        yield _core("Pod", in_namespace(raw, namespace))


def pods_with_volumes(
    template: Template, volume: Template, claim: Template, namespace: str, count: int
) -> Iterator[Raw]:
    """Pods with a claim each that is bound to a volume: the claim, the volume, then the pod."""
    for index, raw in enumerate(template.objects(count)):
        name, volume_name = f"pvc-{index}", f"{namespace}-vol-{index}"
        yield _bound_claim(claim.object(index, count), namespace, name, volume_name)
        yield _bound_volume(volume.object(index, count), namespace, name, volume_name)
        own = {"name": "vol", "persistentVolumeClaim": {"claimName": name}}
        yield _core("Pod", in_namespace({**raw, "spec": {**raw["spec"], "volumes": [own]}}, namespace))


def _bound_claim(raw: Raw, namespace: str, name: str, volume: str) -> Raw:
    metadata = {**raw["metadata"], "namespace": namespace, "name": name}
    spec = {**raw["spec"], "volumeName": volume}
    return _core("PersistentVolumeClaim", {"metadata": metadata, "spec": spec, "status": {"phase": "Bound"}})


def _bound_volume(raw: Raw, namespace: str, claim: str, name: str) -> Raw:
    spec = dict(raw["spec"])
    if "csi" in spec:
        spec["csi"] = {**spec["csi"], "volumeHandle": name}
    elif "awsElasticBlockStore" in spec:
        spec["awsElasticBlockStore"] = {**spec["awsElasticBlockStore"], "volumeID": name.removeprefix(f"{namespace}-")}
    spec["claimRef"] = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": namespace, "name": claim}
    metadata = {**raw["metadata"], "name": name}
    return _core("PersistentVolume", {"metadata": metadata, "spec": spec, "status": {"phase": "Bound"}})
