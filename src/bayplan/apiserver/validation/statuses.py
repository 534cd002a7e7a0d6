"""Validation of the numbers in the statuses of workloads and budgets.

Called for writes to the `status` subresource, which controllers send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.validation.resource_quantities import NEGATIVE
from bayplan.codec.field_errors import FieldErrorList

_OF_REPLICAS = "cannot be greater than status.replicas"
_NUMBERS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "ReplicationController"): (
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
    ),
    ("apps", "ReplicaSet"): (
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ),
    ("apps", "Deployment"): (
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ),
    ("apps", "StatefulSet"): (
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ),
    ("apps", "DaemonSet"): (
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ),
    ("policy", "PodDisruptionBudget"): ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"),
}
_PARTS_OF_REPLICAS: Mapping[str, Sequence[str]] = {
    "ReplicationController": ("fullyLabeledReplicas", "readyReplicas", "availableReplicas"),
    "ReplicaSet": ("fullyLabeledReplicas", "readyReplicas", "availableReplicas"),
    "Deployment": ("updatedReplicas", "readyReplicas", "availableReplicas"),
    "StatefulSet": ("readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"),
}


def check_status(out: FieldErrorList, resource: ServedResource, item: Tree, old: Tree) -> None:
    """Check a new status. Kinds without rules have no errors."""
    numbers = _NUMBERS.get((resource.group, resource.kind))
    if numbers is None:
        return
    status = item.get("status") or {}
    for name in numbers:
        if status.get(name, 0) < 0:
            out.invalid(f"status.{name}", status[name], NEGATIVE)
    parts = _PARTS_OF_REPLICAS.get(resource.kind, ())
    for name in parts:
        if status.get(name, 0) > status.get("replicas", 0):
            out.invalid(f"status.{name}", status.get(name, 0), _OF_REPLICAS)
    if parts and status.get("availableReplicas", 0) > status.get("readyReplicas", 0):
        field = "status.readyReplicas" if resource.kind == "StatefulSet" else "readyReplicas"
        out.invalid("status.availableReplicas", status["availableReplicas"], f"cannot be greater than {field}")
    if "collisionCount" in numbers:
        before, after = ((each.get("status") or {}).get("collisionCount") for each in (old, item))
        if before is not None and (after is None or after < before):
            out.invalid("status.collisionCount", after or 0, "cannot be decremented")
