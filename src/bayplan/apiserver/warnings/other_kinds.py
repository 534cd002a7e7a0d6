"""Warnings about kinds other than Pod: old annotations, fields without effect, fractional amounts."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.codec.go_text import quote
from bayplan.codec.quantity import parse_quantity

DEPRECATED_LABELS = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": 'deprecated since v1.17; use "topology.kubernetes.io/region" instead',
    "failure-domain.beta.kubernetes.io/zone": 'deprecated since v1.17; use "topology.kubernetes.io/zone" instead',
    "beta.kubernetes.io/instance-type": 'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead',
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
}
"""Deprecated node labels."""
STORAGE_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_OLD_RECLAIM = "volume.beta.kubernetes.io/mount-options"
REMOVED_VOLUME_TYPES = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
VOLUME_TYPE_NAMES = {"storageos": "storageOS"}
"""Fields with another spelling in warnings."""
_TOKENS = (
    "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible "
    "logging of tokens in volume attributes"
)


def fraction_warning(path: str, amount: Any) -> Iterator[str]:
    """Amounts of bytes must be integers."""
    if amount is None or amount[-1:] != "m":
        return
    if parse_quantity(amount).milli_value() % 1000:
        yield f"{path}: fractional byte value {quote(amount)} is invalid, must be an integer"


def term_warnings(path: str, term: Tree) -> Iterator[str]:
    for index, each in enumerate(term.get("matchExpressions") or ()):
        if (reason := DEPRECATED_LABELS.get(each.get("key", ""))) is not None:
            yield f"{path}.matchExpressions[{index}].key: {each['key']} is {reason}"


def volume_warnings(item: Tree) -> list[str]:
    spec, annotations = item["spec"], item["metadata"].get("annotations") or {}
    found = []
    if STORAGE_CLASS_ANNOTATION in annotations:
        reason = 'deprecated since v1.8; use "storageClassName" attribute instead'
        found.append(f"metadata.annotations[{STORAGE_CLASS_ANNOTATION}]: {reason}")
    if _OLD_RECLAIM in annotations:
        reason = 'deprecated since v1.31; use "mountOptions" attribute instead'
        found.append(f"metadata.annotations[{_OLD_RECLAIM}]: {reason}")
    if spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        reason = "The Recycle reclaim policy is deprecated."
        better = "Instead, the recommended approach is to use dynamic provisioning."
        found.append(f"spec.persistentVolumeReclaimPolicy: {reason} {better}")
    terms = ((spec.get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or ()
    for index, term in enumerate(terms):
        found += term_warnings(f"spec.nodeAffinity.required.nodeSelectorTerms[{index}]", term)
    removed = [(name, reason) for name, reason in REMOVED_VOLUME_TYPES.items() if spec.get(name) is not None]
    return found + [f"spec.{VOLUME_TYPE_NAMES.get(name, name)}: {reason}" for name, reason in removed]


def claim_warnings(item: Tree) -> list[str]:
    found = []
    if STORAGE_CLASS_ANNOTATION in (item["metadata"].get("annotations") or {}):
        reason = 'deprecated since v1.8; use "storageClassName" attribute instead'
        found.append(f"metadata.annotations[{STORAGE_CLASS_ANNOTATION}]: {reason}")
    return found + claim_spec_warnings("spec", item["spec"])


def claim_spec_warnings(path: str, spec: Tree) -> list[str]:
    resources = spec.get("resources") or {}
    found: list[str] = []
    for part in ("requests", "limits"):
        amount = (resources.get(part) or {}).get("storage")
        found += fraction_warning(f"{path}.resources.{part}[storage]", amount)
    return found


def service_warnings(item: Tree) -> list[str]:
    spec, annotations = item["spec"], item["metadata"].get("annotations") or {}
    found = []
    if "service.kubernetes.io/topology-aware-hints" in annotations:
        better = "service.kubernetes.io/topology-mode"
        reason = f"annotation service.kubernetes.io/topology-aware-hints is deprecated, please use {better} instead"
        found.append(reason)
    kind, outside = spec.get("type"), spec.get("externalIPs")
    headless = kind == "ClusterIP" and spec.get("clusterIP") == "None"
    if headless:
        if spec.get("loadBalancerIP"):
            found.append("spec.loadBalancerIP is ignored for headless services")
        if outside:
            found.append("spec.externalIPs is ignored for headless services")
        if spec.get("sessionAffinity", "None") != "None":
            found.append("spec.SessionAffinity is ignored for headless services")
    elif outside and kind != "ExternalName":
        found.append("spec.externalIPs is deprecated and may no longer be implemented in some clusters")
    if kind == "ExternalName" and outside:
        found.append('spec.externalIPs is ignored when spec.type is "ExternalName"')
    if kind != "ExternalName" and spec.get("externalName"):
        found.append('spec.externalName is ignored when spec.type is not "ExternalName"')
    if spec.get("trafficDistribution") == "PreferClose":
        found.append('spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"')
    return found


def ingress_warnings(item: Tree) -> list[str]:
    name = "kubernetes.io/ingress.class"
    if name not in (item["metadata"].get("annotations") or {}):
        return []
    return [f"annotation {quote(name)} is deprecated, please use 'spec.ingressClassName' instead"]


def node_warnings(item: Tree) -> list[str]:
    spec = item.get("spec") or {}
    found = ["spec.configSource: the feature is removed"] if spec.get("configSource") is not None else []
    if spec.get("externalID"):
        found.append("spec.externalID: this field is deprecated, and is unused by Kubernetes")
    return found


def runtime_class_warnings(item: Tree) -> list[str]:
    selector = (item.get("scheduling") or {}).get("nodeSelector") or {}
    return [f"scheduling.nodeSelector: {DEPRECATED_LABELS[key]}" for key in selector if key in DEPRECATED_LABELS]


def secret_warnings(item: Tree) -> list[str]:
    """Warns if the certificate or the key is not PEM. Whether both belong together is not checked."""
    if item.get("type") != "kubernetes.io/tls":
        return []
    data = item.get("data") or {}
    for key, name in (("tls.crt", "certificate"), ("tls.key", "key")):
        if not _is_pem(b64decode(data.get(key, ""))):
            return [f"tls: failed to find any PEM data in {name} input"]
    return []


_is_pem = re.compile(rb"(?:.*\n)?-----BEGIN [^\n]+-----\s.*-----END ", re.DOTALL).match


def driver_warnings(item: Tree) -> list[str]:
    spec = item["spec"]
    return [_TOKENS] if spec.get("tokenRequests") and spec.get("serviceAccountTokenInSecrets") is None else []


def storage_class_warnings(item: Tree) -> list[str]:
    return [
        f"allowedTopologies[{index}].matchLabelExpressions[{number}].key: {DEPRECATED_LABELS[each['key']]}"
        for index, term in enumerate(item.get("allowedTopologies") or ())
        for number, each in enumerate(term.get("matchLabelExpressions") or ())
        if each.get("key") in DEPRECATED_LABELS
    ]
