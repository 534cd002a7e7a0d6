"""Defaults of pod volumes, PersistentVolumes and PersistentVolumeClaims.

The defaults of pods and storage kinds call them. A volume without a source is an emptyDir.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.apiserver.defaulting.image_pull_policy import default_pull_policy
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.resources.pod_resources import round_quantities

_MODE = 0o644

_MISSING_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "secret": {"defaultMode": _MODE},
    "configMap": {"defaultMode": _MODE},
    "downwardAPI": {"defaultMode": _MODE},
    "projected": {"defaultMode": _MODE},
    "hostPath": {"type": ""},
    "azureDisk": {"cachingMode": "ReadWrite", "fsType": "ext4", "readOnly": False, "kind": "Shared"},
}
"""Defaults of missing fields."""

_EMPTY_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "iscsi": {"iscsiInterface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    "scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"},
}
"""Defaults of missing or empty fields."""


def fill_volume(volume: Tree) -> None:
    kind = next((key for key in volume if key != "name"), None)
    if kind is None:
        volume["emptyDir"] = {}
        return
    source = volume[kind]
    fill_source(kind, source)
    if kind == "downwardAPI":
        _fill_files(source)
    elif kind == "projected":
        _fill_projections(source)
    elif kind == "image":
        _fill_image(source)
    elif kind == "ephemeral" and (template := source.get("volumeClaimTemplate")) is not None:
        template.setdefault("metadata", {})
        fill_claim_spec(template.setdefault("spec", {}))


def fill_source(kind: str, source: Tree) -> None:
    """Set the defaults of one volume source, of a pod volume or of a PersistentVolume."""
    for name, value in _MISSING_DEFAULTS.get(kind, {}).items():
        source.setdefault(name, value)
    for name, text in _EMPTY_DEFAULTS.get(kind, {}).items():
        if not source.get(name):
            source[name] = text


def _fill_files(source: Tree) -> None:
    for item in source.get("items", ()):
        if (reference := item.get("fieldRef")) is not None and not reference.get("apiVersion"):
            reference["apiVersion"] = "v1"
        if (resource := item.get("resourceFieldRef")) is not None:
            resource.setdefault("divisor", "0")


def _fill_projections(source: Tree) -> None:
    source.setdefault("sources", None)
    for projection in source["sources"] or ():
        if (files := projection.get("downwardAPI")) is not None:
            _fill_files(files)
        if (token := projection.get("serviceAccountToken")) is not None:
            token.setdefault("expirationSeconds", 3600)


def _fill_image(source: Tree) -> None:
    if not source.get("pullPolicy"):
        source["pullPolicy"] = default_pull_policy(source.get("reference", ""))


def fill_claim_spec(spec: Tree) -> None:
    spec.setdefault("volumeMode", "Filesystem")
    resources = spec.setdefault("resources", {})
    for name in ("requests", "limits"):
        if amounts := resources.get(name):
            round_quantities(amounts)


def fill_claim(claim: Tree) -> None:
    fill_claim_spec(claim.setdefault("spec", {}))
    status = claim.setdefault("status", {})
    if not status.get("phase"):
        status["phase"] = "Pending"
    for name in ("capacity", "allocatedResources"):
        if amounts := status.get(name):
            round_quantities(amounts)


def fill_persistent_volume(volume: Tree) -> None:
    spec = volume.setdefault("spec", {})
    if not spec.get("persistentVolumeReclaimPolicy"):
        spec["persistentVolumeReclaimPolicy"] = "Retain"
    spec.setdefault("volumeMode", "Filesystem")
    for kind in (*_MISSING_DEFAULTS, *_EMPTY_DEFAULTS):
        if (source := spec.get(kind)) is not None:
            fill_source(kind, source)
    if capacity := spec.get("capacity"):
        round_quantities(capacity)
    status = volume.setdefault("status", {})
    if not status.get("phase"):
        status["phase"] = "Pending"
