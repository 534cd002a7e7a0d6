"""Volumes and devices for the pods of end-to-end tests. The test plays their controllers."""

from __future__ import annotations

from cluster.api import Tree
from support.e2e.scheduler_harness import SchedulerHarness


def volume(harness: SchedulerHarness, name: str, node_name: str, storage_class: str, *others: str) -> Tree:
    """A volume that is reachable from a node, and optionally from further ones."""
    fits = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node_name, *others]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{harness.label}-{name}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "local": {"path": "/none"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [fits]}},
        },
    }


def claim(name: str, storage_class: str) -> Tree:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def wait_for_first_consumer_class(harness: SchedulerHarness, name: str, provisioner: str) -> str:
    full = f"{harness.label[:40]}-{name}"
    harness.api.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": full},
            "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )
    return full


def pod_with_claim(harness: SchedulerHarness, name: str, claim_name: str) -> Tree:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]
    return harness.pod(name, volumes=volumes)


def bind_claim(harness: SchedulerHarness, claim_name: str, volume_name: str) -> None:
    """Bind the pair, as the volume controller does."""
    done = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    harness.api.patch("PersistentVolumeClaim", claim_name, {"metadata": done, "spec": {"volumeName": volume_name}})
    harness.api.patch("PersistentVolumeClaim", claim_name, {"status": {"phase": "Bound"}}, sub="status")
    harness.api.patch("PersistentVolume", volume_name, {"status": {"phase": "Bound"}}, sub="status")


def device_claim(name: str, device_class: str) -> Tree:
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def devices(
    harness: SchedulerHarness, node_name: str, kind: str, *, count: int = 1, **spec: object
) -> tuple[Tree, Tree]:
    """Devices on a node, and their class."""
    slice_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{harness.label[:40]}-slice"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{number}", "attributes": {"model": {"string": "a"}}} for number in range(count)],
        },
    }
    selector = {"cel": {"expression": 'device.driver == "gpu.example.com"'}}
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": kind},
        "spec": {"selectors": [selector], **spec},
    }
    return slice_, device_class
