"""Pods with a device claim each, and nodes with ten devices each. Called during setup."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import DeviceClass, ResourceClaim, ResourceSlice
from benchmarks.clusters import NAMESPACE, Manifest, container, node_name, pod

DRIVER = "test-driver.cdi.k8s.io"
CLASS = "test-class"
A_NODE = 10
SPARE = 20
"""Claims beyond the measured pods, for runs that decide a few more pods."""


def claimed_pod(number: int) -> Manifest:
    name = f"device-{number}"
    own = container("100m", "500Mi")
    own["resources"] = {**own["resources"], "claims": [{"name": "gpu"}]}
    found = pod(
        name,
        labels={"app": "training"},
        containers=[own],
        resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    )
    found["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]
    return found


def devices(nodes: int, pods: int) -> Iterator[KubeObject]:
    """The class, the slices of every node, and the claims that a controller creates for the pods."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    yield convert({"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}}, DeviceClass)
    for number in range(nodes):
        yield device_slice(DRIVER, node_name(number), A_NODE)
    for number in range(pods + SPARE):
        yield _claim(f"device-{number}")


def device_slice(driver: str, node: str, count: int) -> ResourceSlice:
    return convert(device_slice_tree(driver, node, count), ResourceSlice)


def device_slice_tree(driver: str, node: str, count: int) -> Manifest:
    """A slice with `count` devices of one node, as kube-scheduler's benchmarks publish them."""
    found = [
        {
            "name": f"instance-{number}",
            "attributes": {
                "model": {"string": "A100"},
                "family": {"string": "GPU"},
                "driverVersion": {"version": "1.2.3"},
                "dra.example.com/numa": {"int": number},
            },
            "capacity": {"memory": {"value": "1Gi"}},
        }
        for number in range(count)
    ]
    pool = {"name": node, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": found}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": node, "uid": f"uid-slice-{node}"},
        "spec": spec,
    }


def _claim(pod_name: str) -> ResourceClaim:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": f"uid-{pod_name}", "controller": True}
    exactly = {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 1}
    return convert(
        {
            "metadata": {
                "name": f"{pod_name}-gpu",
                "namespace": NAMESPACE,
                "uid": f"uid-claim-{pod_name}",
                "ownerReferences": [owner],
            },
            "spec": {"devices": {"requests": [{"name": "req-0", "exactly": exactly}]}},
        },
        ResourceClaim,
    )
