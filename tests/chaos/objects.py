"""Readers of API objects as JSON trees. They return defaults for fields that are absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Tree = dict[str, Any]

TERMINAL = ("Succeeded", "Failed")


def uid(tree: Tree) -> str:
    return str(tree["metadata"].get("uid", ""))


def name(tree: Tree) -> str:
    return str(tree["metadata"]["name"])


def namespace(tree: Tree) -> str:
    return str(tree["metadata"].get("namespace", ""))


def key(tree: Tree) -> str:
    """`namespace/name`, or the name alone of a cluster-scoped object."""
    return f"{namespace(tree)}/{name(tree)}" if namespace(tree) else name(tree)


def version(tree: Tree) -> int:
    return int(tree["metadata"].get("resourceVersion") or 0)


def labels(tree: Tree) -> dict[str, str]:
    return tree["metadata"].get("labels") or {}


def annotations_of(tree: Tree) -> dict[str, str]:
    return tree["metadata"].get("annotations") or {}


def is_deleted(tree: Tree) -> bool:
    """Whether its deletion was requested."""
    return "deletionTimestamp" in tree["metadata"]


def spec(tree: Tree) -> Tree:
    return tree.get("spec") or {}


def status(tree: Tree) -> Tree:
    return tree.get("status") or {}


def owner_uids(tree: Tree) -> list[str]:
    return [each["uid"] for each in tree["metadata"].get("ownerReferences") or ()]


# pods


def node_of(pod: Tree) -> str:
    return str(spec(pod).get("nodeName") or "")


def is_terminal(pod: Tree) -> bool:
    return status(pod).get("phase") in TERMINAL


def occupies(pod: Tree) -> bool:
    """Whether the pod counts on its node: bound, and neither finished nor gone."""
    return bool(node_of(pod)) and not is_terminal(pod)


def is_waiting(pod: Tree) -> bool:
    """Whether the pod still has to be bound."""
    return not node_of(pod) and not is_terminal(pod) and not is_deleted(pod)


def priority(pod: Tree) -> int:
    return int(spec(pod).get("priority") or 0)


def scheduler_of(pod: Tree) -> str:
    return str(spec(pod).get("schedulerName") or "default-scheduler")


def host_ports(pod: Tree) -> set[tuple[str, int]]:
    ports = (port for each in spec(pod).get("containers", ()) for port in each.get("ports") or ())
    return {(port.get("protocol", "TCP"), int(port["hostPort"])) for port in ports if port.get("hostPort")}


def claims_of(pod: Tree) -> list[str]:
    """Names of the pod's ResourceClaims."""
    return [each["resourceClaimName"] for each in spec(pod).get("resourceClaims") or () if "resourceClaimName" in each]


def volume_claims_of(pod: Tree) -> list[str]:
    """Names of the pod's PersistentVolumeClaims."""
    volumes = spec(pod).get("volumes") or ()
    return [each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each]


def group_of(pod: Tree) -> str:
    """`namespace/name` of the pod's PodGroup of the batch engine, or an empty string."""
    found = annotations_of(pod).get("scheduling.k8s.io/group-name", "")
    return f"{namespace(pod)}/{found}" if found else ""


def tolerates(pod: Tree, taint: Mapping[str, str]) -> bool:
    for each in spec(pod).get("tolerations") or ():
        if each.get("effect") not in (None, "", taint["effect"]):
            continue
        if each.get("operator") == "Exists" and each.get("key") in (None, "", taint["key"]):
            return True
        if each.get("key") == taint["key"] and each.get("value", "") == taint.get("value", ""):
            return True
    return False


def matches(selector: Mapping[str, Any], found: Mapping[str, str]) -> bool:
    """A LabelSelector with `matchLabels` alone, which is all that the workload writes."""
    return all(found.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())


# claims and volumes


def devices_of(claim: Tree) -> list[tuple[str, str, str]]:
    """Driver, pool and name of each device that is allocated to a ResourceClaim."""
    results: Iterable[Tree] = ((status(claim).get("allocation") or {}).get("devices") or {}).get("results") or ()
    return [(each["driver"], each["pool"], each["device"]) for each in results]


def reserved_for(claim: Tree) -> set[str]:
    return {each["uid"] for each in status(claim).get("reservedFor") or ()}


def volume_reaches(volume: Tree, node: Tree) -> bool:
    """Whether a PersistentVolume with node affinity by labels can be used on the node."""
    terms = ((spec(volume).get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms")
    if not terms:
        return True
    found = labels(node)
    return any(
        all(found.get(each["key"]) in each["values"] for each in term.get("matchExpressions") or ()) for term in terms
    )


# BindRequests


def request_pod_uid(request: Tree) -> str:
    owners = owner_uids(request)
    return str(spec(request).get("podUID") or (owners[0] if owners else ""))


def request_is_live(request: Tree) -> bool:
    """Whether the binder has carried it out or may still do so."""
    found = status(request)
    return found.get("phase") != "Failed" or found.get("failedAttempts", 0) < spec(request).get("backoffLimit", 0)
