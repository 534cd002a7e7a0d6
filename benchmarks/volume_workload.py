"""Pods with a claim each: bound to a volume of one zone, or to be provisioned on the pod's node.

Called during setup.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import CsiDriver, CsiNode, PersistentVolume, PersistentVolumeClaim, StorageClass
from benchmarks.clusters import NAMESPACE, ZONE, Manifest, node_name, pod, running, zone_of

DRIVER = "ebs.csi.aws.com"
CLASS = "fast"
ATTACHED_AT_MOST = 39
SPARE = 50
"""Claims beyond the measured pods, for runs that decide a few more pods."""

_FIRST_EARLIER = 1_000_000
"""Numbers of the claims of already running pods start here, so that they do not collide."""


def pod_with_claim(number: int) -> Manifest:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": f"claim-{number}"}}
    return pod(f"stateful-{number}", labels={"app": "db"}, volumes=[volume])


def storage(nodes: int, pods: int) -> Iterator[KubeObject | Manifest]:
    """The driver and its class, the attach limit of each node, a claim for every pod, and already running pods."""
    yield convert({"metadata": {"name": DRIVER}, "spec": {"attachRequired": True}}, CsiDriver)
    yield convert(
        {"metadata": {"name": CLASS}, "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}, StorageClass
    )
    for number in range(nodes):
        driver = {"name": DRIVER, "nodeID": node_name(number), "allocatable": {"count": ATTACHED_AT_MOST}}
        yield convert({"metadata": {"name": node_name(number)}, "spec": {"drivers": [driver]}}, CsiNode)
    for number in range(pods + SPARE):
        yield _claim(number, bound=number % 2 == 0)
        if number % 2 == 0:
            yield _volume(number, zone_of(number // 2))
    yield from _earlier(nodes)


def _earlier(nodes: int) -> Iterator[KubeObject | Manifest]:
    """A pod with an attached volume on every other node."""
    for node in range(0, nodes, 2):
        number = _FIRST_EARLIER + node
        yield _claim(number, bound=True)
        yield _volume(number, zone_of(node))
        yield running(pod_with_claim(number), node)


def _claim(number: int, *, bound: bool) -> PersistentVolumeClaim:
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
        "storageClassName": CLASS,
        "volumeMode": "Filesystem",
    }
    notes = {}
    if bound:
        spec["volumeName"] = f"pv-{number}"
        notes["pv.kubernetes.io/bind-completed"] = "yes"
    metadata = {"name": f"claim-{number}", "namespace": NAMESPACE, "uid": f"uid-claim-{number}", "annotations": notes}
    phase = "Bound" if bound else "Pending"
    return convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, PersistentVolumeClaim)


def _volume(number: int, zone: str) -> PersistentVolume:
    here = {"key": ZONE, "operator": "In", "values": [zone]}
    spec = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASS,
        "volumeMode": "Filesystem",
        "claimRef": {"kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": f"claim-{number}"},
        "csi": {"driver": DRIVER, "volumeHandle": f"vol-{number}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }
    return convert({"metadata": {"name": f"pv-{number}"}, "spec": spec, "status": {"phase": "Bound"}}, PersistentVolume)
