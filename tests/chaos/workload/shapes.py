"""Manifests of the workload."""

from __future__ import annotations

from typing import Any

from chaos.objects import Tree

POOL = "chaos/pool"
GROUP_NAME = "scheduling.k8s.io/group-name"
DRIVER = "gpu.chaos.example"
CSI_DRIVER = "csi.chaos.example"
DEVICE_CLASS = "chaos-gpu"
LATE_CLASS = "chaos-local"
VOLCANO = "scheduling.volcano.sh/v1beta1"
URGENT = "chaos-urgent"


def node(
    name: str, pool: str, *, cpu: str, memory: str = "64Gi", pods: int = 20, zone: str = "zone-0", **more: Any
) -> Tree:
    """`labels` and `room` add to the labels and to the allocatable resources."""
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": zone,
        POOL: pool,
        "chaos/open": "yes",
        **more.get("labels", {}),
    }
    room = {"cpu": cpu, "memory": memory, "pods": str(pods), **more.get("room", {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        },
    }


def pod(
    name: str,
    pool: str,
    *,
    cpu: str = "1",
    requests: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    ports: tuple[int, ...] = (),
    selector: dict[str, str] | None = None,
    **spec: Any,
) -> Tree:
    asked = {"cpu": cpu, **(requests or {})}
    whole = {resource: amount for resource, amount in asked.items() if "/" in resource}
    container: Tree = {
        "name": "main",
        "image": "chaos.example/main:1",
        "resources": {"requests": asked, **({"limits": whole} if whole else {})},
    }
    if ports:
        container["ports"] = [{"containerPort": each, "hostPort": each} for each in ports]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace_of(pool),
            "labels": {POOL: pool, **(labels or {})},
            "annotations": annotations or {},
        },
        "spec": {
            "containers": [container],
            "terminationGracePeriodSeconds": 2,
            "nodeSelector": {POOL: pool, **(selector or {})},
            **spec,
        },
    }


def namespace_of(pool: str) -> str:
    return f"chaos-{pool}"


def pod_group(name: str, pool: str, minimum: int, queue: str = "default", priority_class: str = "") -> Tree:
    spec: Tree = {"minMember": minimum, "queue": queue}
    if priority_class:
        spec["priorityClassName"] = priority_class
    meta = {"name": name, "namespace": namespace_of(pool)}
    return {"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": meta, "spec": spec}


def queue(name: str, weight: int, cpu: str = "") -> Tree:
    spec: Tree = {"weight": weight, "reclaimable": False}
    if cpu:
        spec["capability"] = {"cpu": cpu}
    return {"apiVersion": VOLCANO, "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def priority_class(name: str, value: int) -> Tree:
    meta = {"name": name}
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": value}


def of_batch(tree: Tree, group: str) -> Tree:
    """The pod as a member of a group of the batch engine."""
    tree["spec"]["schedulerName"] = "volcano"
    tree["metadata"]["annotations"][GROUP_NAME] = group
    return tree


# devices


def device_class() -> Tree:
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    meta = {"name": DEVICE_CLASS}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": meta,
        "spec": {"selectors": [selector]},
    }


def resource_slice(node_name: str, count: int) -> Tree:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-devices"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{number}"} for number in range(count)],
        },
    }


def resource_claim(name: str, pool: str) -> Tree:
    exactly = {"deviceClassName": DEVICE_CLASS, "allocationMode": "ExactCount", "count": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace_of(pool)},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def with_claim(tree: Tree, claim: str) -> Tree:
    tree["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    tree["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return tree


# volumes


def storage_class() -> Tree:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": LATE_CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def csi_node(name: str, limit: int) -> Tree:
    driver = {"name": CSI_DRIVER, "nodeID": name, "allocatable": {"count": limit}}
    meta = {"name": name}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": meta, "spec": {"drivers": [driver]}}


def local_volume(name: str, node_name: str) -> Tree:
    fits = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node_name]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": LATE_CLASS,
            "local": {"path": "/none"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [fits]}},
        },
    }


def csi_volume(name: str, mode: str) -> Tree:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": [mode],
            "storageClassName": "",
            "csi": {"driver": CSI_DRIVER, "volumeHandle": name},
        },
    }


def volume_claim(name: str, pool: str, *, late: bool, mode: str = "ReadWriteOnce", volume: str = "") -> Tree:
    spec: Tree = {
        "accessModes": [mode],
        "storageClassName": LATE_CLASS if late else "",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    if volume:
        spec["volumeName"] = volume
    meta = {"name": name, "namespace": namespace_of(pool)}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def with_volume(tree: Tree, claim: str) -> Tree:
    tree["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    return tree
