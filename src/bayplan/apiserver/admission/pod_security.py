"""PodSecurity: checks pods against the Pod Security labels of their namespace.

`pod-security.kubernetes.io/enforce` refuses pods. `warn` adds warnings for pods and for workloads with a pod template.
`audit` is only validated, because there is no audit log. A change of the labels of a namespace returns warnings about
its existing pods that violate the new level. A namespace without such labels costs a look at its labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bayplan.apiserver import api_errors
from bayplan.apiserver.admission.pod_security_standards import BASELINE, RESTRICTED, PolicyViolation, violations
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.resources.lookup import ObjectLookup, built_in
from bayplan.apiserver.resources.pod_templates import pod_template
from bayplan.codec.field_errors import FieldErrorList

_PREFIX = "pod-security.kubernetes.io/"
_PRIVILEGED = "privileged"
_LEVELS = (_PRIVILEGED, BASELINE, RESTRICTED)
_LATEST = "latest"
_MAX_PODS = 3000
_POD_SUBRESOURCES = ("", "ephemeralcontainers", "resize")


@dataclass(frozen=True, slots=True)
class PolicyLevel:
    """A Pod Security level and the Kubernetes version of its definition."""

    name: str = _PRIVILEGED
    version: str = _LATEST

    @property
    def strictness(self) -> int:
        return _LEVELS.index(self.name)

    def violations(self, metadata: Tree, spec: Tree) -> list[PolicyViolation]:
        if self.name == _PRIVILEGED:
            return []
        minor = 1 << 30 if self.version == _LATEST else int(self.version.removeprefix("v1."))
        return violations(self.name, minor, metadata, spec)

    def __str__(self) -> str:
        return f"{self.name}:{self.version}"


_PRIVILEGED_LEVEL = PolicyLevel()


def evaluate(
    resource: ServedResource, item: Tree, old: Tree | None, lookup: ObjectLookup, *, subresource: str = ""
) -> list[str]:
    """The warnings for an admitted object. Raises if the object is refused."""
    if resource.custom:
        return []
    if resource.kind == "Pod" and not resource.group:
        if subresource not in _POD_SUBRESOURCES or (old is not None and not _images_changed(item, old)):
            return []
        enforce_level, warn_level = _namespace_levels(item, lookup)
        found = enforce_level.violations(item["metadata"], item["spec"])
        if found:
            name = item["metadata"]["name"]
            raise api_errors.forbidden(
                resource, name, f'violates PodSecurity "{enforce_level}": {_violation_text(found)}'
            )
        return _warning(warn_level, item)
    if subresource:
        return []
    if resource.kind == "Namespace" and not resource.group:
        return _evaluate_namespace(resource, item, old, lookup)
    template = pod_template(resource, item)
    return _warning(_namespace_levels(item, lookup)[1], template) if template else []


def _warning(level: PolicyLevel, pod: Tree) -> list[str]:
    found = level.violations(pod.get("metadata") or {}, pod.get("spec") or {})
    return [f'would violate PodSecurity "{level}": {_violation_text(found)}'] if found else []


def _violation_text(found: Iterable[PolicyViolation]) -> str:
    return ", ".join(map(str, found))


def _images_changed(pod: Tree, old: Tree) -> bool:
    """Whether an update of a pod changes its images or containers; nothing else affects the level."""
    return any(
        [(each["name"], each.get("image")) for each in pod["spec"].get(part) or ()]
        != [(each["name"], each.get("image")) for each in old["spec"].get(part) or ()]
        for part in ("containers", "initContainers", "ephemeralContainers")
    )


# Labels


def _namespace_levels(item: Tree, lookup: ObjectLookup) -> tuple[PolicyLevel, PolicyLevel]:
    namespace = lookup.get(built_in("Namespace"), "", item["metadata"].get("namespace", "")) or {}
    return _levels((namespace.get("metadata") or {}).get("labels"), FieldErrorList())


def _levels(labels: Mapping[str, str] | None, errors: FieldErrorList) -> tuple[PolicyLevel, PolicyLevel]:
    """The enforced and the warned level. An invalid level enforces the strictest one and warns of nothing."""
    if not labels or not any(key.startswith(_PREFIX) for key in labels):
        return _PRIVILEGED_LEVEL, _PRIVILEGED_LEVEL
    enforce_level, known = _level(labels, "enforce", RESTRICTED, errors)
    _level(labels, "audit", _PRIVILEGED, errors)
    warn_level, _ = _level(labels, "warn", _PRIVILEGED, errors)
    if f"{_PREFIX}warn" not in labels and known and enforce_level.strictness > warn_level.strictness:
        versioned = f"{_PREFIX}warn-version" in labels
        warn_level = PolicyLevel(enforce_level.name, warn_level.version if versioned else enforce_level.version)
    return enforce_level, warn_level


def _level(labels: Mapping[str, str], mode: str, fallback: str, errors: FieldErrorList) -> tuple[PolicyLevel, bool]:
    """The level of a mode, and whether the labels name a valid one."""
    name, version = labels.get(f"{_PREFIX}{mode}"), labels.get(f"{_PREFIX}{mode}-version", _LATEST)
    known = name in _LEVELS
    if name is not None and not known:
        errors.invalid(f"metadata.labels[{_PREFIX}{mode}]", name, f"must be one of {', '.join(_LEVELS)}")
    if version != _LATEST and not re.fullmatch(r"v1\.(0|[1-9][0-9]*)", version):
        errors.invalid(f"metadata.labels[{_PREFIX}{mode}-version]", version, 'must be "latest" or "v1.x"')
        version = _LATEST
    chosen = _PRIVILEGED if name is None else name if known else fallback
    return PolicyLevel(chosen, version), known


# Namespaces


def _evaluate_namespace(resource: ServedResource, item: Tree, old: Tree | None, lookup: ObjectLookup) -> list[str]:
    errors, old_faults = FieldErrorList(), FieldErrorList()
    enforce_level, _ = _levels(item["metadata"].get("labels"), errors)
    old_level, _ = (
        _levels(old["metadata"].get("labels"), old_faults)
        if old is not None
        else (_PRIVILEGED_LEVEL, _PRIVILEGED_LEVEL)
    )
    if errors and errors != old_faults:
        raise api_errors.invalid(resource.kind, resource.group, item["metadata"]["name"], errors)
    relaxed = enforce_level.version == old_level.version and enforce_level.strictness <= old_level.strictness
    if old is None or enforce_level.name == _PRIVILEGED or relaxed:
        return []
    return _warnings_of_pods(enforce_level, item["metadata"]["name"], lookup)


def _warnings_of_pods(level: PolicyLevel, namespace: str, lookup: ObjectLookup) -> list[str]:
    pods = list(_one_per_owner_first(lookup.list(built_in("Pod"), namespace)))
    names_by_reasons: dict[str, list[str]] = {}
    for pod in pods[:_MAX_PODS]:
        if found := level.violations(pod["metadata"], pod["spec"]):
            names_by_reasons.setdefault(", ".join(each.reason for each in found), []).append(pod["metadata"]["name"])
    warnings = []
    if len(pods) > _MAX_PODS:
        checked = f"the first {_MAX_PODS} of {len(pods)} existing pods"
        warnings.append(f"new PodSecurity enforce level only checked against {checked}")
    if names_by_reasons:
        warnings.append(f'existing pods in namespace "{namespace}" violate the new PodSecurity enforce level "{level}"')
    return warnings + sorted(f"{_first_of(names)}: {what}" for what, names in names_by_reasons.items())


def _one_per_owner_first(pods: Iterable[Tree]) -> Iterator[Tree]:
    """One pod of each owner first: its other pods are alike."""
    seen, later = set(), []
    for pod in pods:
        owner = next(
            (each["uid"] for each in pod["metadata"].get("ownerReferences") or () if each.get("controller")), None
        )
        if owner in seen:
            later.append(pod)
            continue
        if owner is not None:
            seen.add(owner)
        yield pod
    yield from later


def _first_of(names: list[str]) -> str:
    more = len(names) - 1
    others = f" (and {more} other {'pod' if more == 1 else 'pods'})" if more else ""
    return f"{min(names)}{others}"
