"""Builders for the nodes and pods of the benchmarks, as an API server returns them, in plain JSON values.

Called while a workload is set up, never inside a measurement. Nodes are realistic: three sizes, three zones, a dozen
labels, ten images, six resources, and the pods of DaemonSets. Pods have the fields that an API server adds
(tolerations, the token volume, owners), because these cost time to decode and memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject

Manifest = dict[str, Any]
T = TypeVar("T", bound=KubeObject)

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
NAMESPACE = "bench"
ZONES = 3
CREATED = "2026-01-01T00:00:00Z"

_MIB = 1024 * 1024
_SIZES = (("c6.4xlarge", 16, 64), ("c6.8xlarge", 32, 128), ("c6.16xlarge", 64, 256))
_CATALOGUE = tuple(
    (f"registry.example.com/team-{number % 7}/app-{number}:v1", 40 + 17 * number) for number in range(40)
)
_EVERYWHERE = (("registry.k8s.io/kube-proxy:v1.36.4", 95), ("registry.example.com/cni-node:v3", 180))
_IMAGES_A_NODE = 8
_SHORT_LIVED = tuple(
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for what in ("not-ready", "unreachable")
)
_DAEMONS = ("kube-proxy", "cni-node")


def image(number: int) -> str:
    """One of the images that some nodes have."""
    return _CATALOGUE[number % len(_CATALOGUE)][0]


def zone_of(number: int) -> str:
    return f"zone-{number % ZONES}"


# nodes


def node(number: int) -> Manifest:
    """The number-th node of a cluster."""
    name = node_name(number)
    size, cpus, memory = _SIZES[number // ZONES % len(_SIZES)]
    labels = {
        HOST: name,
        ZONE: zone_of(number),
        REGION: "region-1",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": size,
        "example.com/pool": f"pool-{number % 10}",
        "disk": "ssd" if number % 2 else "hdd",
    }
    room = {"cpu": f"{cpus * 1000 - 120}m", "memory": f"{memory * 1024 - 900}Mi", "pods": "110"}
    room |= {"ephemeral-storage": "95551679124", "hugepages-2Mi": "0"}
    if number % 10 == 0:
        room["nvidia.com/gpu"] = "8"
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, "creationTimestamp": CREATED},
        "spec": {"providerID": f"cloud:///{zone_of(number)}/{name}"},
        "status": {"capacity": room, "allocatable": room, "images": _images(number), "conditions": _CONDITIONS},
    }


def node_name(number: int) -> str:
    return f"node-{number:05}"


def small_node(number: int) -> Manifest:
    """A node of kube-scheduler's own benchmarks, with the labels of `node`."""
    found = node(number)
    room = {"cpu": "4", "memory": "32Gi", "pods": "110"}
    found["status"] |= {"capacity": room, "allocatable": room}
    return found


_CONDITIONS = [
    {"type": what, "status": "True" if what == "Ready" else "False", "reason": "KubeletSays"}
    for what in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
]


def _images(number: int) -> list[Manifest]:
    own = [_CATALOGUE[(3 * number + step) % len(_CATALOGUE)] for step in range(_IMAGES_A_NODE)]
    return [{"names": [name], "sizeBytes": size * _MIB} for name, size in (*_EVERYWHERE, *own)]


# pods


def container(cpu: str, memory: str, *, picture: str = "registry.k8s.io/pause:3.10.2", **more: Any) -> Manifest:
    amounts = {"cpu": cpu, "memory": memory}
    return {
        "name": "main",
        "image": picture,
        "ports": [{"containerPort": 80, "protocol": "TCP"}],
        "resources": {"requests": amounts, "limits": amounts},
        "volumeMounts": [{"name": "kube-api-access", "mountPath": "/var/run/secrets", "readOnly": True}],
        "imagePullPolicy": "IfNotPresent",
        **more,
    }


def pod(name: str, *, labels: dict[str, str] | None = None, owner: str = "", **spec: Any) -> Manifest:
    """A pending pod; 100m CPU and 500Mi memory, as in kube-scheduler's own benchmarks, unless `containers` differ."""
    tolerations = [*spec.pop("tolerations", ()), *_SHORT_LIVED]
    token = {"name": "kube-api-access", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    metadata: Manifest = {
        "name": name,
        "namespace": spec.pop("namespace", NAMESPACE),
        "uid": f"uid-{name}",
        "labels": labels or {},
        "creationTimestamp": CREATED,
    }
    if owner:
        kind = "DaemonSet" if owner in _DAEMONS else "ReplicaSet"
        metadata["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": f"uid-{owner}", "controller": True}
        ]
    known = {
        "schedulerName": "default-scheduler",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "containers": [container("100m", "500Mi")],
        "terminationGracePeriodSeconds": 30,
        "serviceAccountName": "default",
    }
    volumes = [*spec.pop("volumes", ()), token]
    return {
        "metadata": metadata,
        "spec": {**known, **spec, "tolerations": tolerations, "volumes": volumes},
        "status": {"phase": "Running" if spec.get("nodeName") else "Pending"},
    }


def running(found: Manifest, number: int) -> Manifest:
    """The pod, bound to the number-th node and running."""
    spec = {**found["spec"], "nodeName": node_name(number)}
    return {**found, "spec": spec, "status": {"phase": "Running", "startTime": CREATED}}


def daemons(nodes: int) -> Iterator[Manifest]:
    """The DaemonSet pods of every node."""
    for number in range(nodes):
        for name in _DAEMONS:
            found = pod(
                f"{name}-{number}",
                namespace="kube-system",
                labels={"k8s-app": name, "controller-revision-hash": "6d5f"},
                owner=name,
                containers=[container("100m", "128Mi", picture=_EVERYWHERE[_DAEMONS.index(name)][0], ports=[])],
                tolerations=[{"operator": "Exists"}],
                priority=2_000_001_000,
                priorityClassName="system-node-critical",
                hostNetwork=True,
            )
            yield running(found, number)


def as_nodes(manifests: Iterable[Manifest]) -> Iterator[Node]:
    return (convert(each, Node) for each in manifests)


def as_pods(manifests: Iterable[Manifest]) -> Iterator[Pod]:
    return (convert(each, Pod) for each in manifests)
