"""Conditions and lease of a healthy node, as a kubelet reports them. Pure functions, a few microseconds each."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bayplan.objects.core import Node
from bayplan.objects.meta import format_micro_time, format_time

LEASE_NAMESPACE = "kube-node-lease"
LEASE_S = 40

_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


def conditions(now: datetime, seen: Node | None = None) -> list[dict[str, Any]]:
    """Conditions of a healthy node. Conditions that were already healthy keep their lastTransitionTime."""
    moment = format_time(now)
    before = {(each.type, each.status): each.last_transition_time for each in seen.status.conditions} if seen else {}
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": moment,
            "lastTransitionTime": format_time(before.get((kind, status)) or now),
        }
        for kind, status, reason, message in _CONDITIONS
    ]


def is_healthy(node: Node) -> bool:
    """Whether the node's Ready condition is True."""
    return ("Ready", "True") in ((each.type, each.status) for each in node.status.conditions)


def new_lease(name: str, uid: str, now: datetime) -> dict[str, Any]:
    """Build the lease of a node, which is its owner."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_S, **lease_renewal(now)},
    }


def lease_renewal(now: datetime) -> dict[str, Any]:
    return {"renewTime": format_micro_time(now)}
