"""Pods of a StatefulSet and their PersistentVolumeClaims. Pure functions."""

from __future__ import annotations

from typing import Any

from bayplan.controllers.core.api_types import STATEFUL_SETS, ControllerRevision, PodFields, Tree, UntypedObject
from bayplan.controllers.core.owner_refs import owner_reference, pod_from_template
from bayplan.controllers.workloads.controller_revisions import HASH_LABEL, template_of

NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"


def first_ordinal(found: UntypedObject) -> int:
    return int((found.spec.get("ordinals") or {}).get("start") or 0)


def ordinal_of(found: UntypedObject, name: str) -> int | None:
    """Ordinal in a pod's name; None for a name that is not one of this set's pods."""
    parent, dash, digits = name.rpartition("-")
    if parent != found.name or not dash or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)


def numbered_pod(found: UntypedObject, ordinal: int, revision: ControllerRevision) -> Tree:
    """Build the pod of this ordinal from a revision's template."""
    name = f"{found.name}-{ordinal}"
    body = pod_from_template(template_of(revision, found), owner_reference(STATEFUL_SETS, found), name=name)
    labels = {NAME_LABEL: name, INDEX_LABEL: str(ordinal), HASH_LABEL: revision.name}
    body["metadata"]["labels"] = {**body["metadata"].get("labels", {}), **labels}
    spec: dict[str, Any] = {**body["spec"], "hostname": name}
    if found.spec.get("serviceName"):
        spec["subdomain"] = found.spec["serviceName"]
    claim_by_volume = {each["metadata"]["name"]: _claim_name(found, each, ordinal) for each in _templates(found)}
    if claim_by_volume:
        other_volumes = [each for each in spec.get("volumes") or () if each["name"] not in claim_by_volume]
        claims = [
            {"name": key, "persistentVolumeClaim": {"claimName": claim}} for key, claim in claim_by_volume.items()
        ]
        spec["volumes"] = [*claims, *other_volumes]
    return {**body, "spec": spec}


def claims_of(found: UntypedObject, ordinal: int) -> list[Tree]:
    """Build the claims of the pod of this ordinal."""
    selector = (found.spec.get("selector") or {}).get("matchLabels") or {}
    bodies = []
    for each in _templates(found):
        meta = each["metadata"]
        meta_fields = {key: meta[key] for key in ("annotations", "finalizers") if meta.get(key)}
        labels = {**(meta.get("labels") or {}), **selector}
        metadata = {**meta_fields, "name": _claim_name(found, each, ordinal), "labels": labels}
        if deletes_claims(found, "whenDeleted"):
            metadata["ownerReferences"] = [
                _owner_reference(STATEFUL_SETS.api_version, "StatefulSet", found.name, found.uid)
            ]
        bodies.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": each["spec"]})
    return bodies


def claim_owner_patch(pod: PodFields) -> Tree:
    return {"metadata": {"ownerReferences": [_owner_reference("v1", "Pod", pod.name, pod.uid)]}}


def deletes_claims(found: UntypedObject, when: str) -> bool:
    policy = found.spec.get("persistentVolumeClaimRetentionPolicy") or {}
    return bool(policy.get(when) == "Delete")


def _owner_reference(api_version: str, kind: str, name: str, uid: str) -> Tree:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}


def _templates(found: UntypedObject) -> list[Tree]:
    return found.spec.get("volumeClaimTemplates") or []


def _claim_name(found: UntypedObject, template: Tree, ordinal: int) -> str:
    return f"{template['metadata']['name']}-{found.name}-{ordinal}"
