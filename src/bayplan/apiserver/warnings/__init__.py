"""Warnings about objects that the API server accepts. kubectl prints them, and clients log them.

The write pipeline calls it after validation, for new objects and for updates of kinds that users write. Updates of pods
have no warnings. Cost: a few microseconds for a pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.resources.pod_templates import TEMPLATES, at_path
from bayplan.apiserver.validation.names import dns_label
from bayplan.apiserver.warnings.other_kinds import (
    claim_spec_warnings,
    claim_warnings,
    driver_warnings,
    ingress_warnings,
    node_warnings,
    runtime_class_warnings,
    secret_warnings,
    service_warnings,
    storage_class_warnings,
    volume_warnings,
)
from bayplan.apiserver.warnings.pods import pod_warnings

_MANY_COMPLETIONS, _MANY_AT_ONCE = 100_000, 10_000


def warnings_for(resource: ServedResource, item: Tree, old: Tree | None = None) -> list[str]:
    """The warnings for an object that is created, or updated if there is an old one."""
    if resource.custom:
        return []
    key = (resource.group, resource.kind)
    if key == ("", "Pod"):
        return [] if old is not None else [*_name_warnings(item, "the Pod's hostname"), *pod_warnings("", item)]
    if key in TEMPLATES:
        return _workload_warnings(key, item, old)
    plain = _OTHERS.get(key)
    return plain(item) if plain is not None and (old is None or key not in _ONLY_NEW) else []


def _name_warnings(item: Tree, use: str) -> list[str]:
    problems = dns_label(item["metadata"].get("name", ""))
    if not problems:
        return []
    why = f"this is used in {use}, which can result in surprising behavior; a DNS label is recommended"
    return [f"metadata.name: {why}: [{' '.join(problems)}]"]


_NOT_IN_NAMES = frozenset({("", "PodTemplate"), ("apps", "DaemonSet"), ("apps", "StatefulSet")})


def _workload_warnings(key: tuple[str, str], item: Tree, old: Tree | None) -> list[str]:
    found = [] if old is not None or key in _NOT_IN_NAMES else _name_warnings(item, "Pod names and hostnames")
    if old is None or item["metadata"].get("generation") != old["metadata"].get("generation"):
        path = TEMPLATES[key]
        if key[0] == "batch":
            found += _job_warnings(above := path.rpartition(".")[0], at_path(item, above))
        found += pod_warnings(path, at_path(item, path))
    if key == ("apps", "StatefulSet"):
        found += _stateful_set_warnings(item["spec"], new=old is None)
    if key == ("batch", "CronJob") and old is not None and "TZ" in item["spec"].get("schedule", ""):
        more = "use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/"
        found.append(f"cannot use TZ or CRON_TZ in spec.spec.schedule, {more} for more details")
    return found


def _stateful_set_warnings(spec: Tree, *, new: bool) -> list[str]:
    found = []
    for index, claim in enumerate(spec.get("volumeClaimTemplates") or ()):
        path = f"spec.volumeClaimTemplates[{index}]" + ("" if new else ".Spec")
        found += claim_spec_warnings(path, claim.get("spec") or {})
    if (spec.get("revisionHistoryLimit") or 0) < 0:
        why = "a negative value retains all historical revisions; a value >= 0 is recommended"
        found.append(f"spec.revisionHistoryLimit: {why}")
    return found


def _job_warnings(path: str, spec: Tree) -> list[str]:
    many = (spec.get("completions") or 0) > _MANY_COMPLETIONS and (spec.get("parallelism") or 0) > _MANY_AT_ONCE
    if spec.get("completionMode") != "Indexed" or not many:
        return []
    rule = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4"
    return [f"{path}: {rule}, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"]


_ONLY_NEW = frozenset({("networking.k8s.io", "Ingress"), ("storage.k8s.io", "CSIDriver")})
_OTHERS: Mapping[tuple[str, str], Callable[[Tree], list[str]]] = {
    ("", "Node"): node_warnings,
    ("", "PersistentVolume"): volume_warnings,
    ("", "PersistentVolumeClaim"): claim_warnings,
    ("", "Secret"): secret_warnings,
    ("", "Service"): service_warnings,
    ("networking.k8s.io", "Ingress"): ingress_warnings,
    ("node.k8s.io", "RuntimeClass"): runtime_class_warnings,
    ("storage.k8s.io", "CSIDriver"): driver_warnings,
    ("storage.k8s.io", "StorageClass"): storage_class_warnings,
}
