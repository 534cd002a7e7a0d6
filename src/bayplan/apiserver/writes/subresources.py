"""Rules of the sub-resources of pods and workloads: binding, eviction, scale, log, exec and token.

`SubresourceHandlers` calls them. Each function takes trees and returns new ones, or raises the `StatusError` of the
response; the caller stores the result. No function changes a tree that it gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bayplan.apiserver.api_errors import (
    StatusError,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
    too_many_requests,
    uid_conflict,
)
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.resources.lookup import ObjectLookup, built_in
from bayplan.apiserver.tables.cell_text import selector_text
from bayplan.apiserver.validation.metadata import selector_matches
from bayplan.codec.field_errors import FieldErrorList, aggregate

SUCCESS: Tree = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
_TOO_MANY = "Cannot evict pod as it would violate the pod's disruption budget."
_MAX_DISRUPTED_PODS = 2000
_TEN_MINUTES_S = 600
_TERMINAL_PHASES = ("Succeeded", "Failed")


# Binding


def bind(pod: Tree, binding: Tree, now: str) -> Tree:
    """The pod with its node. `now` is the time of the condition."""
    name, meta = pod["metadata"]["name"], pod["metadata"]
    _check_binding(binding)
    wanted = (binding.get("metadata") or {}).get("uid")
    if wanted and wanted != meta.get("uid"):
        raise uid_conflict(built_in("Pod"), meta["namespace"], name, requested=wanted, found=meta["uid"])
    kind = built_in("Pod")
    if meta.get("deletionTimestamp"):
        raise conflict(
            kind, name, f"pod {name} is being deleted, cannot be assigned to a host", resource_name="pods/binding"
        )
    if node := pod["spec"].get("nodeName"):
        raise conflict(kind, name, f'pod {name} is already assigned to node "{node}"', resource_name="pods/binding")
    if pod["spec"].get("schedulingGates"):
        raise conflict(kind, name, f"pod {name} has non-empty .spec.schedulingGates", resource_name="pods/binding")
    return _set_node(pod, binding, now)


def _check_binding(binding: Tree) -> None:
    target, errors = binding.get("target") or {}, FieldErrorList()
    if target.get("kind") and target["kind"] != "Node":
        errors.unsupported("target.kind", target["kind"], ("Node", "<empty>"))
    if not target.get("name"):
        errors.required("target.name")
    if errors:
        raise StatusError(500, "", aggregate(errors))


def _set_node(pod: Tree, binding: Tree, now: str) -> Tree:
    given = binding.get("metadata") or {}
    metadata = dict(pod["metadata"])
    for name in ("annotations", "labels"):
        if given.get(name):
            metadata[name] = {**(metadata.get(name) or {}), **given[name]}
    condition = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    status = with_condition(pod.get("status") or {}, condition)
    status.pop("nominatedNodeName", None)  # the pod has a node now
    spec = {**pod["spec"], "nodeName": binding["target"]["name"]}
    return {**pod, "metadata": metadata, "spec": spec, "status": status}


def with_condition(status: Tree, condition: Tree) -> Tree:
    """The status with the condition in place of that of its type; an unchanged condition keeps its time."""
    conditions = list(status.get("conditions") or ())
    for index, each in enumerate(conditions):
        if each.get("type") == condition["type"]:
            previous_time = each.get("lastTransitionTime") if each.get("status") == condition["status"] else None
            conditions[index] = {**condition, "lastTransitionTime": previous_time or condition["lastTransitionTime"]}
            break
    else:
        conditions.append(condition)
    return {**status, "conditions": conditions}


# Eviction


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """The result of an eviction: the pod to store before its deletion, and the changed disruption budget, if any."""

    pod: Tree
    budget: Tree | None = None


def evict(pod: Tree, lookup: ObjectLookup, now: str, *, dry_run: bool = False) -> EvictionResult:
    """Evict a pod if its disruption budget allows it."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now,
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    marked = {**pod, "status": with_condition(pod.get("status") or {}, condition)}
    if (pod.get("status") or {}).get("phase") in (*_TERMINAL_PHASES, "Pending") or pod["metadata"].get(
        "deletionTimestamp"
    ):
        return EvictionResult(marked)
    budgets = list(_budgets_of(pod, lookup))
    if len(budgets) > 1:
        rule = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise StatusError(500, "", rule)
    if not budgets or _can_evict_unhealthy(pod, budgets[0]):
        return EvictionResult(marked)
    changed_budget = _consume_disruption(budgets[0], pod["metadata"]["name"], now)
    return EvictionResult(marked, None if dry_run else changed_budget)


def _budgets_of(pod: Tree, lookup: ObjectLookup) -> Iterable[Tree]:
    labels = pod["metadata"].get("labels") or {}
    for budget in lookup.list(built_in("PodDisruptionBudget", "policy"), pod["metadata"]["namespace"]):
        selector = budget["spec"].get("selector")
        if labels and selector is not None and selector_matches(selector, labels):
            yield budget


def _can_evict_unhealthy(pod: Tree, budget: Tree) -> bool:
    """An unready pod may be evicted if the policy allows it, or if enough other pods are ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions):
        return False
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    return bool(status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0) > 0)


def _consume_disruption(budget: Tree, pod_name: str, now: str) -> Tree:
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        message = f"The disruption budget {name} is still being processed by the server."
        raise _too_many(message, {"retryAfterSeconds": 10})
    disrupted = status.get("disruptedPods") or {}
    if len(disrupted) > _MAX_DISRUPTED_PODS:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise forbidden(built_in("PodDisruptionBudget", "policy"), name, why)
    if status.get("disruptionsAllowed", 0) == 0:
        healthy, needed = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        raise _too_many(f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently", {})
    left = status["disruptionsAllowed"] - 1
    new = {**status, "disruptionsAllowed": left, "disruptedPods": {**disrupted, pod_name: now}}
    if left == 0:
        new = with_condition(new, _exhausted_budget_cause(budget, now))
    return {**budget, "status": new}


def _exhausted_budget_cause(budget: Tree, now: str) -> Tree:
    return {
        "type": "DisruptionAllowed",
        "status": "False",
        "observedGeneration": (budget.get("status") or {}).get("observedGeneration", 0),
        "lastTransitionTime": now,
        "reason": "InsufficientPods",
        "message": "",
    }


def _too_many(message: str, more: Tree) -> StatusError:
    cause = {"reason": "DisruptionBudget", "message": message}
    return too_many_requests(_TOO_MANY, {"causes": [cause], **more})


def check_body_name(given: Tree, name: str, kind: str) -> None:
    if (given.get("metadata") or {}).get("name") != name:
        raise bad_request(f"name in URL does not match name in {kind} object")


# Scale


def to_scale(resource: ServedResource, item: Tree) -> Tree:
    """The Scale of an object: desired and current replicas."""
    meta = item["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    wanted, found, selector = _scale_values(resource, item)
    status: Tree = {"replicas": found}
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: meta[name] for name in names if name in meta},
        "spec": {"replicas": wanted} if wanted else {},
        "status": status,
    }


def _scale_values(resource: ServedResource, item: Tree) -> tuple[int, int, str]:
    if resource.definition is not None:
        paths = (resource.definition.get("subresources") or {}).get("scale") or {}
        wanted, found = (_get_path(item, paths.get(f"{part}ReplicasPath", "")) for part in ("spec", "status"))
        return wanted or 0, found or 0, _get_path(item, paths.get("labelSelectorPath", "")) or ""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    selector = spec.get("selector")
    if resource.kind == "ReplicationController":
        selector = {"matchLabels": selector or {}}
    return spec.get("replicas", 0), status.get("replicas", 0), selector_text(selector)


def apply_scale(resource: ServedResource, item: Tree, scale: Tree) -> Tree:
    given, name = (scale.get("metadata") or {}).get("name", ""), item["metadata"]["name"]
    if given != name:
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
    wanted, errors = (scale.get("spec") or {}).get("replicas", 0), FieldErrorList()
    if wanted < 0:
        errors.invalid("spec.replicas", wanted, "must be greater than or equal to 0")
        raise invalid("Scale", "autoscaling", item["metadata"]["name"], errors)
    if resource.definition is not None:
        paths = (resource.definition.get("subresources") or {}).get("scale") or {}
        return _set_path(item, _path_steps(paths.get("specReplicasPath", ".spec.replicas")), wanted)
    return {**item, "spec": {**(item.get("spec") or {}), "replicas": wanted}}


def _path_steps(path: str) -> list[str]:
    return [step for step in path.split(".") if step]


def _get_path(item: Any, path: str) -> Any:
    for step in _path_steps(path):
        item = item.get(step) if isinstance(item, Mapping) else None
    return item if path else None


def _set_path(item: Tree, steps: list[str], value: Any) -> Tree:
    first, *rest = steps
    return {**item, first: _set_path(item.get(first) or {}, rest, value) if rest else value}


# Logs, exec, attach, port-forward


def check_log_options(name: str, query: Mapping[str, str]) -> None:
    errors = FieldErrorList()
    for field, least, rule in (
        ("tailLines", 0, "must be greater than or equal to 0"),
        ("limitBytes", 1, "must be greater than 0"),
        ("sinceSeconds", 1, "must be greater than 0"),
    ):
        text = query.get(field, "")
        number = int(text) if text.lstrip("-").isdigit() else None
        if number is not None and number < least:
            errors.invalid(field, number, rule)
    if errors:
        raise invalid("PodLogOptions", "", name, errors)


def container_of(pod: Tree, wanted: str) -> str:
    """The requested container, or the default one."""
    spec, name = pod["spec"], pod["metadata"]["name"]
    known = [
        each.get("name", "")
        for field in ("initContainers", "containers", "ephemeralContainers")
        for each in spec.get(field) or ()
    ]
    if wanted:
        if wanted not in known:
            raise bad_request(f"container {wanted} is not valid for pod {name}")
        return wanted
    containers = [each.get("name", "") for each in spec.get("containers") or ()]
    chosen = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    if chosen in containers:
        return str(chosen)
    if len(containers) == 1 and not spec.get("initContainers"):
        return str(containers[0])
    return _default_container_error(name, spec, containers)


def _default_container_error(name: str, spec: Tree, containers: list[str]) -> str:
    init_containers = [each.get("name", "") for each in spec.get("initContainers") or ()]
    message = f"a container name must be specified for pod {name}, choose one of: [{' '.join(containers)}]"
    if init_containers:
        message += f" or one of the init containers: [{' '.join(init_containers)}]"
    raise bad_request(message)


def check_log(pod: Tree, wanted: str, lookup: ObjectLookup) -> None:
    """Refuse unavailable logs. A pod without a node has an empty log."""
    container_of(pod, wanted)
    node = pod["spec"].get("nodeName")
    if node:
        raise _unreachable(node, lookup)


def check_stream(pod: Tree, wanted: str, lookup: ObjectLookup, *, upgrade: bool) -> None:
    """Refuse exec, attach and port-forward: the cluster runs no kubelet."""
    container_of(pod, wanted)
    node = pod["spec"].get("nodeName")
    if not node:
        raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
    refusal = _unreachable(node, lookup)
    raise refusal if upgrade or refusal.code == 404 else bad_request("Upgrade request required")


def _unreachable(node: str, lookup: ObjectLookup) -> StatusError:
    if lookup.get(built_in("Node"), "", node) is None:
        return not_found(built_in("Pod"), node)
    why = f"no kubelet answers for node {node}: this cluster has an API and no containers"
    return StatusError(500, "InternalError", f"Internal error occurred: {why}")


# Tokens


def token_request(account: Tree, request: Tree, now: datetime, issuer: str) -> tuple[Tree, Tree]:
    """The response to a TokenRequest without its token, and the claims of the token."""
    spec, errors = dict(request.get("spec") or {}), FieldErrorList()
    seconds = spec.get("expirationSeconds")
    seconds = 3600 if seconds is None else seconds
    if seconds < _TEN_MINUTES_S:
        errors.invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
    if seconds > 1 << 32:
        errors.invalid("spec.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
    if errors:
        raise invalid("TokenRequest", "authentication.k8s.io", "", errors)
    meta = account["metadata"]
    spec |= {"audiences": spec.get("audiences") or [issuer], "expirationSeconds": seconds}
    spec.setdefault("boundObjectRef", None)
    end = now + timedelta(seconds=seconds)
    names = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
    answer = {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {**names, "creationTimestamp": f"{now:%Y-%m-%dT%H:%M:%SZ}"},
        "spec": spec,
        "status": {"token": "", "expirationTimestamp": f"{end:%Y-%m-%dT%H:%M:%SZ}"},
    }
    return answer, _claims(meta, spec["audiences"], now, end, issuer)


def _claims(meta: Tree, audiences: list[str], now: datetime, end: datetime, issuer: str) -> Tree:
    start = int(now.timestamp())
    account = {"name": meta["name"], "uid": meta["uid"]}
    return {
        "aud": audiences,
        "exp": int(end.timestamp()),
        "iat": start,
        "nbf": start,
        "iss": issuer,
        "kubernetes.io": {"namespace": meta["namespace"], "serviceaccount": account},
        "sub": f"system:serviceaccount:{meta['namespace']}:{meta['name']}",
    }
