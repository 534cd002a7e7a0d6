"""Warnings about pods and pod templates: deprecated names, duplicate entries, overlapping paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.clean_spec_cache import CleanSpecCache
from bayplan.apiserver.warnings.other_kinds import (
    DEPRECATED_LABELS,
    REMOVED_VOLUME_TYPES,
    VOLUME_TYPE_NAMES,
    claim_spec_warnings,
    fraction_warning,
    term_warnings,
)
from bayplan.codec.go_text import quote

_ANNOTATIONS = {
    "scheduler.alpha.kubernetes.io/critical-pod": 'non-functional in v1.16+; use the "priorityClassName" field instead',
    "security.alpha.kubernetes.io/sysctls": 'non-functional in v1.11+; use the "sysctls" field instead',
    "security.alpha.kubernetes.io/unsafe-sysctls": 'non-functional in v1.11+; use the "sysctls" field instead',
}
_SECCOMP = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_OF = "container.seccomp.security.alpha.kubernetes.io/"
_NO_SECCOMP = 'non-functional in v1.27+; use the "seccompProfile" field instead'
_APPARMOR_OF = "container.apparmor.security.beta.kubernetes.io/"
_NULL_SELECTOR = "a null labelSelector results in matching no pod"
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_VOLUMES = {
    **REMOVED_VOLUME_TYPES,
    "gitRepo": "deprecated in v1.11, and disabled by default in v1.33+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
}

_Containers = list[tuple[str, Tree]]
_Paths = list[tuple[str, str]]
"""Path and source of a file."""


_CLEAN_SPECS = CleanSpecCache()


def pod_warnings(where: str, pod: Tree) -> list[str]:
    """`where` is the path of a template, empty for a pod. A spec without warnings is checked once."""
    if (pod.get("metadata") or {}).get("annotations"):
        return _pod_warnings(where, pod)
    text = _CLEAN_SPECS.key(pod.get("spec") or {})
    if text in _CLEAN_SPECS:
        return []
    found = _pod_warnings(where, pod)
    if not found:
        _CLEAN_SPECS.add(text)
    return found


def _pod_warnings(where: str, pod: Tree) -> list[str]:
    spec = pod.get("spec") or {}
    prefix = f"{where}." if where else ""
    path = f"{prefix}spec"
    containers: _Containers = [
        (f"{path}.{kind}[{index}]", each) for kind in _CONTAINERS for index, each in enumerate(spec.get(kind) or ())
    ]
    found = [
        f"{path}.nodeSelector[{key}]: {DEPRECATED_LABELS[key]}"
        for key in spec.get("nodeSelector") or ()
        if key in DEPRECATED_LABELS
    ]
    affinity = spec.get("affinity")
    if affinity:
        found += _node_affinity(path, affinity.get("nodeAffinity") or {})
    found += _topology_spread(path, spec)
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if annotations:
        found += (
            f"{prefix}metadata.annotations[{key}]: {_ANNOTATIONS[key]}" for key in _ANNOTATIONS if key in annotations
        )
    if spec.get("volumes"):
        found += _volumes(path, spec["volumes"])
    found += _lists(path, spec)
    if annotations:
        found += _profiles(prefix, spec, annotations, containers, template=bool(where))
    for place, container in containers:
        found += _amounts(place, container)
        found += _environment(place, container)
    found += _ports(containers)
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        why = "must be >= 0; negative values are invalid and will be treated as 1"
        found.append(f"{path}.terminationGracePeriodSeconds: {why}")
    if affinity:
        found += _pod_affinity(path, affinity)
    return found


# Placement.


def _node_affinity(path: str, affinity: Tree) -> Iterator[str]:
    place = f"{path}.affinity.nodeAffinity"
    needed = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for index, term in enumerate(needed.get("nodeSelectorTerms") or ()):
        at = f"{place}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[{index}]"
        yield from term_warnings(at, term)
    for index, term in enumerate(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        at = f"{place}.preferredDuringSchedulingIgnoredDuringExecution[{index}].preference"
        yield from term_warnings(at, term.get("preference") or {})


def _pod_affinity(path: str, affinity: Tree) -> Iterator[str]:
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        place = f"{path}.affinity.{kind}"
        for index, term in enumerate(terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ()):
            if term.get("labelSelector") is None:
                at = f"{place}.requiredDuringSchedulingIgnoredDuringExecution[{index}]"
                yield f"{at}.labelSelector: {_NULL_SELECTOR}"
        for index, weighted in enumerate(terms.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
            if (weighted.get("podAffinityTerm") or {}).get("labelSelector") is None:
                at = f"{place}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
                yield f"{at}.podAffinityTerm.labelSelector: {_NULL_SELECTOR}"


def _topology_spread(path: str, spec: Tree) -> Iterator[str]:
    for index, each in enumerate(spec.get("topologySpreadConstraints") or ()):
        place = f"{path}.topologySpreadConstraints[{index}]"
        if (reason := DEPRECATED_LABELS.get(each.get("topologyKey", ""))) is not None:
            yield f"{place}.topologyKey: {each['topologyKey']} is {reason}"
        if each.get("labelSelector") is None:
            yield f"{place}.labelSelector: {_NULL_SELECTOR}"


# Volumes.


def _volumes(path: str, volumes: list[Tree]) -> Iterator[str]:
    for index, volume in enumerate(volumes):
        place = f"{path}.volumes[{index}]"
        for name, reason in _VOLUMES.items():
            if volume.get(name) is not None:
                yield f"{place}.{VOLUME_TYPE_NAMES.get(name, name)}: {reason}"
        template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
        if template is not None:
            yield from claim_spec_warnings(f"{place}.ephemeral.volumeClaimTemplate.spec", template.get("spec") or {})
    for volume in volumes:
        yield from _overlaps(volume)


def _overlaps(volume: Tree) -> Iterator[str]:
    for kind, kind_name, key in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
        if (source := volume.get(kind)) is not None:
            shown = f"{kind_name} {quote(source.get(key, ''))}"
            yield from _colliding_paths(
                volume, shown, [(each.get("path", ""), "") for each in source.get("items") or ()]
            )
    if (source := volume.get("downwardAPI")) is not None:
        yield from _colliding_paths(
            volume, "DownwardAPI", [(each.get("path", ""), "") for each in source.get("items") or ()]
        )
    if (projected := volume.get("projected")) is not None:
        together: _Paths = []
        for source in projected.get("sources") or ():
            if not source:
                yield f"volume {quote(volume['name'])} (Projected) has no sources provided"
            together += _projected_paths(source)
        yield from _colliding_paths(volume, "Projected", together)


def _projected_paths(source: Tree) -> _Paths:
    for kind, kind_name in (("configMap", "ConfigMap"), ("secret", "Secret"), ("downwardAPI", "DownwardAPI")):
        if (part := source.get(kind)) is not None and part.get("items"):
            shown = f"{kind_name} {quote(part.get('name', ''))}" if kind != "downwardAPI" else kind_name
            return [(each.get("path", ""), shown) for each in part["items"]]
    if (token := source.get("serviceAccountToken")) is not None:
        return [(token.get("path", ""), "ServiceAccountToken")]
    if (bundle := source.get("clusterTrustBundle")) is not None:
        name = bundle["name"] if bundle.get("name") is not None else bundle.get("signerName", "")
        return [(bundle.get("path", ""), f"ClusterTrustBundle {quote(name)}")]
    pairs = (("certificateChainPath", "chain"), ("keyPath", "key"), ("credentialBundlePath", "credential bundle"))
    certificate = source.get("podCertificate") or {}
    return [(certificate[key], f"PodCertificate {what}") for key, what in pairs if certificate.get(key)]


def _colliding_paths(volume: Tree, shown: str, paths: _Paths) -> Iterator[str]:
    """Warn of files of one volume with the same path, or with a path below another file."""
    before: _Paths = []
    for given, source in paths:
        path = given.rstrip("/")
        for other, other_source in before:
            if path and other and (f"{other}/".startswith(f"{path}/") or f"{path}/".startswith(f"{other}/")):
                both = f"{_path_text(path, source)} with {_path_text(other, other_source)}"
                yield f"volume {quote(volume['name'])} ({shown}): overlapping paths: {both}"
        before.append((path, source))


def _path_text(path: str, source: str) -> str:
    return f"{quote(path)} ({source})" if source else quote(path)


# Lists of the pod.


def _lists(path: str, spec: Tree) -> Iterator[str]:
    yield from _duplicates(f"{path}.hostAliases", spec.get("hostAliases") or (), "ip")
    secrets = spec.get("imagePullSecrets") or ()
    yield from _duplicates(f"{path}.imagePullSecrets", secrets, "name")
    for index, each in enumerate(secrets):
        if not each.get("name"):
            yield f'{path}.imagePullSecrets[{index}].name: invalid empty name ""'
    for name in ("memory", "ephemeral-storage"):
        yield from fraction_warning(f"{path}.overhead[{name}]", (spec.get("overhead") or {}).get(name))


def _duplicates(path: str, items: Any, key: str) -> Iterator[str]:
    seen = set()
    for index, each in enumerate(items):
        value = each.get(key, "")
        if value in seen:
            yield f"{path}[{index}].{key}: duplicate {key} {quote(value)}"
        seen.add(value)


def _profiles(prefix: str, spec: Tree, annotations: Tree, containers: _Containers, *, template: bool) -> Iterator[str]:
    """Annotations that fields replaced.

    A pod's AppArmor annotations are read as the field, so only templates get a warning.
    """
    security = spec.get("securityContext") or {}
    if security.get("seccompProfile") is None and _SECCOMP in annotations:
        yield f"{prefix}metadata.annotations[{_SECCOMP}]: {_NO_SECCOMP}"
    for _, container in containers:
        own = container.get("securityContext") or {}
        key = f"{_SECCOMP_OF}{container.get('name', '')}"
        if own.get("seccompProfile") is None and key in annotations:
            yield f"{prefix}metadata.annotations[{key}]: {_NO_SECCOMP}"
        key = f"{_APPARMOR_OF}{container.get('name', '')}"
        named = own.get("appArmorProfile") is not None or security.get("appArmorProfile") is not None
        if template and not named and key in annotations:
            why = 'deprecated since v1.30; use the "appArmorProfile" field instead'
            yield f"{prefix}metadata.annotations[{key}]: {why}"


# Containers.


def _amounts(place: str, container: Tree) -> Iterator[str]:
    resources = container.get("resources")
    if resources:
        for name in ("memory", "ephemeral-storage"):
            for part in ("limits", "requests"):
                amount = (resources.get(part) or {}).get(name)
                if amount is not None:
                    yield from fraction_warning(f"{place}.resources.{part}[{name}]", amount)


def _environment(place: str, container: Tree) -> Iterator[str]:
    variables = container.get("env") or ()
    if len(variables) < 2:
        return
    seen = set()
    for index, each in enumerate(variables):
        name, value = each.get("name", ""), each.get("value", "")
        reference = f"$({name})"
        hides = each.get("valueFrom") is not None or value == reference or reference not in value
        if name in seen and hides:
            reason = f"hides previous definition of {quote(name)}, which may be dropped when using apply"
            yield f"{place}.env[{index}]: {reason}"
        seen.add(name)


def _ports(containers: _Containers) -> list[str]:
    ports = [
        (f"{place}.ports[{index}]", port)
        for place, container in containers
        for index, port in enumerate(container.get("ports") or ())
    ]
    if len(ports) < 2:
        return []
    found: list[str] = []
    numbers: dict[tuple[Any, Any], list[tuple[str, Tree]]] = {}
    for place, port in ports:
        same_number = numbers.setdefault((port.get("containerPort"), port.get("protocol", "TCP")), [])
        found += (
            f"{place}: {reason} port definition with {at}"
            for at, other in same_number
            if (reason := _port_conflict(port, other))
        )
        same_number.append((place, port))
    names: dict[str, str] = {}
    for place, port in ports:
        name = port.get("name")
        if name and name in names:
            reason = f"services and probes that select ports by name will use {names[name]}"
            found.append(f"{place}: duplicate port name {quote(name)} with {names[name]}, {reason}")
        elif name:
            names[name] = place
    return found


def _port_conflict(port: Tree, other: Tree) -> str:
    """The conflict between two ports of one number; empty if there is none."""
    host_port, other_host_port = port.get("hostPort", 0), other.get("hostPort", 0)
    address, another = port.get("hostIP", ""), other.get("hostIP", "")
    if address == another and host_port == other_host_port:
        return "duplicate"
    if not host_port or not other_host_port:
        return "overlapping"
    if host_port == other_host_port and bool(address) != bool(another):
        return "dangerously ambiguous"
    return ""
