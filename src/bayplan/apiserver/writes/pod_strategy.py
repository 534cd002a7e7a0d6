"""Preparation of a new pod before validation: initial status, label keys and AppArmor profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.resources.qos import qos_class
from bayplan.apiserver.validation.pods.security import APPARMOR_ANNOTATION_PREFIX

_SCHEDULING_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_MAX_PROFILE = 4095


def prepare_pod(pod: Tree) -> None:
    spec = pod["spec"]
    status: Tree = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        status["conditions"] = [{**_SCHEDULING_GATED, "lastProbeTime": None, "lastTransitionTime": None}]
        created = pod["metadata"].get("creationTimestamp")
        status["conditions"][0]["lastTransitionTime"] = created
    pod["status"] = status
    _merge_label_keys(spec, pod["metadata"].get("labels") or {})
    if annotations := pod["metadata"].get("annotations"):
        _sync_apparmor_fields(spec, annotations)


def _merge_label_keys(spec: Tree, labels: Mapping[str, str]) -> None:
    """Turn `matchLabelKeys` into selector requirements with the pod's values; the scheduler reads only selectors."""
    affinity = spec.get("affinity")
    if affinity:
        for name in ("podAffinity", "podAntiAffinity"):
            pods = affinity.get(name) or {}
            for weighted in pods.get("preferredDuringSchedulingIgnoredDuringExecution", ()):
                _merge_keys(weighted.get("podAffinityTerm") or {}, labels)
            for term in pods.get("requiredDuringSchedulingIgnoredDuringExecution", ()):
                _merge_keys(term, labels)
    for constraint in spec.get("topologySpreadConstraints", ()):
        _merge_keys(constraint, labels)


def _merge_keys(term: Tree, labels: Mapping[str, str]) -> None:
    selector = term.get("labelSelector")
    if selector is None:
        return
    for name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        for key in term.get(name) or ():
            if key in labels:
                more = {"key": key, "operator": operator, "values": [labels[key]]}
                selector["matchExpressions"] = [*selector.get("matchExpressions", ()), more]


def _sync_apparmor_fields(spec: Tree, annotations: Mapping[str, str]) -> None:
    """Set the AppArmor field from the older annotation where the field is empty."""
    annotated = {
        key.removeprefix(APPARMOR_ANNOTATION_PREFIX): value
        for key, value in annotations.items()
        if key.startswith(APPARMOR_ANNOTATION_PREFIX)
    }
    if not annotated or (spec.get("os") or {}).get("name") == "windows":
        return
    shared = (spec.get("securityContext") or {}).get("appArmorProfile")
    for container in _containers(spec):
        security = container.get("securityContext") or {}
        profile = _apparmor_profile(annotated.get(container.get("name", ""), ""))
        if profile and "appArmorProfile" not in security and profile != shared:
            container["securityContext"] = {**security, "appArmorProfile": profile}


def _containers(spec: Tree) -> Iterator[Tree]:
    for name in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(name) or ()


def _apparmor_profile(text: str) -> Tree | None:
    """The profile field for an annotation value; None if the value is invalid."""
    if text in ("unconfined", "runtime/default"):
        return {"type": "Unconfined" if text == "unconfined" else "RuntimeDefault"}
    name = text.removeprefix("localhost/")
    if name == text or not name.strip() or name != name.strip() or len(name) > _MAX_PROFILE:
        return None
    return {"type": "Localhost", "localhostProfile": name}
