"""Strategies: what the server sets, keeps or ignores when an object is created or updated.

The write pipeline calls them after defaulting and mutating admission and before validation. A new object already has
its name, uid, namespace and creationTimestamp. `prepare_create` sets its initial status and generation.
`prepare_update` restores what the caller cannot change, and increments the generation when the spec changes. Both work
in place on a tree that belongs to the request. Cost: some ten microseconds for a pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from bayplan.apiserver.defaulting.workloads import TEMPLATE_GENERATION
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.resources.lookup import ObjectLookup, built_in
from bayplan.apiserver.resources.pod_templates import pod_template
from bayplan.apiserver.validation.services import is_externally_reachable
from bayplan.apiserver.writes.ip_port_allocation import allocate
from bayplan.apiserver.writes.pod_strategy import prepare_pod

_INITIAL_STATUS: Mapping[tuple[str, str], Tree] = {
    ("", "Namespace"): {"phase": "Active"},
    ("", "PersistentVolumeClaim"): {"phase": "Pending"},
    ("", "ReplicationController"): {"replicas": 0},
    ("", "ResourceQuota"): {},
    ("", "Service"): {"loadBalancer": {}},
    ("apps", "DaemonSet"): {
        "currentNumberScheduled": 0,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": 0,
        "numberReady": 0,
    },
    ("apps", "Deployment"): {},
    ("apps", "ReplicaSet"): {"replicas": 0},
    ("apps", "StatefulSet"): {"replicas": 0, "availableReplicas": 0},
    ("autoscaling", "HorizontalPodAutoscaler"): {"desiredReplicas": 0, "currentMetrics": None},
    ("batch", "CronJob"): {},
    ("batch", "Job"): {},
    ("networking.k8s.io", "Ingress"): {"loadBalancer": {}},
    ("policy", "PodDisruptionBudget"): {
        "disruptionsAllowed": 0,
        "currentHealthy": 0,
        "desiredHealthy": 0,
        "expectedPods": 0,
    },
    ("resource.k8s.io", "ResourceClaim"): {},
    ("storage.k8s.io", "VolumeAttachment"): {"attached": False},
}
"""The status of a new object; a status in the request is ignored."""

_GENERATION_FIELDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): ("spec",),
    ("", "PodTemplate"): ("template",),
    ("", "ReplicationController"): ("spec",),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"): ("spec",),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"): ("spec",),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): ("webhooks",),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): ("spec",),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): ("spec",),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): ("webhooks",),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): ("spec",),
    ("apps", "DaemonSet"): ("spec",),
    ("apps", "Deployment"): ("spec",),
    ("apps", "ReplicaSet"): ("spec",),
    ("apps", "StatefulSet"): ("spec",),
    ("batch", "CronJob"): ("spec",),
    ("batch", "Job"): ("spec",),
    ("discovery.k8s.io", "EndpointSlice"): ("endpoints", "ports", "addressType"),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): ("spec",),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): ("spec",),
    ("networking.k8s.io", "Ingress"): ("spec",),
    ("networking.k8s.io", "IngressClass"): ("spec",),
    ("networking.k8s.io", "NetworkPolicy"): ("spec",),
    ("policy", "PodDisruptionBudget"): ("spec",),
    ("resource.k8s.io", "DeviceClass"): ("spec",),
    ("resource.k8s.io", "ResourceSlice"): ("spec",),
    ("scheduling.k8s.io", "PriorityClass"): (),
}
"""Kinds with a generation, and the fields whose change increments it."""

_STATUS_METADATA_FIELDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): ("ownerReferences",),
    ("apps", "Deployment"): ("labels",),
}
_ALL_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
_NO_METADATA_BY_STATUS = ("resource.k8s.io", "storage.k8s.io", "flowcontrol.apiserver.k8s.io")


def prepare_create(resource: ServedResource, item: Tree, *, lookup: ObjectLookup | None = None) -> None:
    """Prepare a new object for validation. `lookup` is needed for services, to find free numbers."""
    key = (resource.group, resource.kind)
    if resource.custom:
        _prepare_custom(resource, item)
        return
    status = _INITIAL_STATUS.get(key)
    if status is not None:
        item["status"] = dict(status)
    if key in _GENERATION_FIELDS:
        item["metadata"]["generation"] = 1
    _drop_disabled_fields(resource, item)
    if (prepare_kind := _ON_CREATE.get(key)) is not None:
        prepare_kind(item)
    if key == ("", "Service"):
        allocate(item, None, lookup.list(built_in("Service")) if lookup else ())


def _drop_disabled_fields(resource: ServedResource, item: Tree) -> None:
    """Drop pod fields of disabled features: `lifecycle.stopSignal`."""
    pod = item if resource.kind == "Pod" and not resource.group else pod_template(resource, item)
    spec = (pod or {}).get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        if (lifecycle := container.get("lifecycle")) is not None:
            lifecycle.pop("stopSignal", None)


def _prepare_custom(resource: ServedResource, item: Tree) -> None:
    item["metadata"]["generation"] = 1
    if resource.subresource("status") is not None:
        item.pop("status", None)


def _prepare_job(job: Tree) -> None:
    metadata, spec = job["metadata"], job["spec"]
    if spec.get("manualSelector"):
        return
    template = spec["template"].setdefault("metadata", {})
    labels = dict(template.get("labels") or {})
    for prefix in ("", "batch.kubernetes.io/"):
        labels.setdefault(f"{prefix}job-name", metadata.get("name", ""))
        labels.setdefault(f"{prefix}controller-uid", metadata.get("uid", ""))
    template["labels"] = labels
    selector = dict(spec.get("selector") or {})
    chosen = selector.get("matchLabels") or {}
    selector["matchLabels"] = {"batch.kubernetes.io/controller-uid": metadata.get("uid", ""), **chosen}
    spec["selector"] = selector


def _prepare_job_labels(job: Tree) -> None:
    """A job without labels has those of its pod template, the generated ones included."""
    own = job["metadata"].get("labels")
    shares = not own or own is (job["spec"]["template"].get("metadata") or {}).get("labels")
    _prepare_job(job)
    if shares:
        job["metadata"]["labels"] = dict(job["spec"]["template"]["metadata"].get("labels") or {})


def _prepare_daemon_set(item: Tree) -> None:
    annotations = dict(item["metadata"].get("annotations") or {})
    given = annotations.get(TEMPLATE_GENERATION, "")
    annotations[TEMPLATE_GENERATION] = given if given.isdigit() and int(given) > 0 else "1"
    item["metadata"]["annotations"] = annotations


def _prepare_stateful_set(item: Tree) -> None:
    """Drop `maxUnavailable`, whose feature is disabled."""
    rolling = (item["spec"].get("updateStrategy") or {}).get("rollingUpdate")
    if rolling:
        rolling.pop("maxUnavailable", None)


def _prepare_namespace(item: Tree) -> None:
    item.setdefault("spec", {})["finalizers"] = ["kubernetes"]


def _prepare_volume(item: Tree) -> None:
    item["status"] = {"phase": "Pending", "lastPhaseTransitionTime": item["metadata"].get("creationTimestamp")}
    _add_finalizer(item, "kubernetes.io/pv-protection")


def _prepare_attributes_class(item: Tree) -> None:
    _add_finalizer(item, "kubernetes.io/vac-protection")


def _prepare_claim(item: Tree) -> None:
    _add_finalizer(item, "kubernetes.io/pvc-protection")
    sync_data_source(item["spec"])


def sync_data_source(spec: Tree, old: Tree | None = None) -> None:
    """`dataSource` and `dataSourceRef` are the same field, unless the source is in another namespace.

    The older `dataSource` supports claims and snapshots only; other sources in it are dropped, as in upstream.
    """
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
    had_source = any((old or {}).get(name) is not None for name in ("dataSource", "dataSourceRef"))
    if source is not None and reference is None and not had_source:
        known = (source.get("apiGroup") or "", source.get("kind"))
        if known not in (("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot")):
            del spec["dataSource"]
            return
    if source is not None and reference is None:
        spec["dataSourceRef"] = dict(source)
    elif source is None and reference is not None and not reference.get("namespace"):
        spec["dataSource"] = dict(reference)


def _add_finalizer(item: Tree, name: str) -> None:
    finalizers = item["metadata"].get("finalizers") or []
    if name not in finalizers:
        item["metadata"]["finalizers"] = [*finalizers, name]


_ON_CREATE: Mapping[tuple[str, str], Callable[[Tree], None]] = {
    ("", "Namespace"): _prepare_namespace,
    ("", "PersistentVolume"): _prepare_volume,
    ("", "PersistentVolumeClaim"): _prepare_claim,
    ("", "Pod"): prepare_pod,
    ("apps", "DaemonSet"): _prepare_daemon_set,
    ("batch", "Job"): _prepare_job_labels,
    ("apps", "StatefulSet"): _prepare_stateful_set,
    ("storage.k8s.io", "VolumeAttributesClass"): _prepare_attributes_class,
}


# Updates


def prepare_update(
    resource: ServedResource, item: Tree, old: Tree, subresource: str = "", *, lookup: ObjectLookup | None = None
) -> None:
    """Restore what this kind of update cannot change, and increment the generation if required."""
    key = (resource.group, resource.kind)
    metadata = item["metadata"]
    _restore_field(metadata, old["metadata"], "generation")
    if subresource == "status":
        _keep_all_but_status(resource, item, old)
        return
    if subresource in ("resize", "ephemeralcontainers"):
        _keep_all_but_subresource(item, old, subresource)
    elif resource.subresource("status") is not None or key in _INITIAL_STATUS or key == ("", "PersistentVolume"):
        _restore_field(item, old, "status")
    if not subresource:
        _drop_disabled_fields(resource, item)
    if key == ("", "Service"):
        allocate(item, old, lookup.list(built_in("Service")) if lookup else ())
    if (prepare_kind := _ON_UPDATE.get(key)) is not None and not subresource:
        prepare_kind(item, old)
    if resource.custom:
        changed = any(item.get(name) != old.get(name) for name in {*item, *old} - {"metadata", "status"})
    else:
        changed = any(item.get(name) != old.get(name) for name in _GENERATION_FIELDS.get(key, ()))
        changed = changed or _metadata_bumps_generation(key, metadata, old["metadata"])
    if changed or (key == ("storage.k8s.io", "CSIDriver") and item.get("spec") != old.get("spec")):
        metadata["generation"] = old["metadata"].get("generation", 0) + 1


def _metadata_bumps_generation(key: tuple[str, str], new: Tree, old: Tree) -> bool:
    if key == ("apps", "Deployment"):
        return (new.get("annotations") or {}) != (old.get("annotations") or {})
    return key == ("discovery.k8s.io", "EndpointSlice") and (new.get("labels") or {}) != (old.get("labels") or {})


def _restore_field(item: Tree, old: Tree, name: str) -> None:
    if name in old:
        item[name] = old[name]
    else:
        item.pop(name, None)


def _keep_all_but_status(resource: ServedResource, item: Tree, old: Tree) -> None:
    for name in {*item, *old} - {"apiVersion", "kind", "metadata", "status"}:
        _restore_field(item, old, name)
    if resource.custom or resource.group in _NO_METADATA_BY_STATUS or resource.kind == "ServiceCIDR":
        names: tuple[str, ...] = _ALL_METADATA
    else:
        names = _STATUS_METADATA_FIELDS.get((resource.group, resource.kind), ())
    for name in names:
        _restore_field(item["metadata"], old["metadata"], name)
    if resource.kind == "Pod" and not resource.group:
        status = item.setdefault("status", {})
        if not status.get("qosClass") and "qosClass" in old.get("status", {}):
            status["qosClass"] = old["status"]["qosClass"]


def _keep_all_but_subresource(item: Tree, old: Tree, subresource: str) -> None:
    """Keep all of a pod except its ephemeral containers or its resources."""
    spec = item["spec"]
    new_spec = deepcopy(old["spec"])
    if subresource == "ephemeralcontainers":
        new_spec.pop("ephemeralContainers", None)
        if spec.get("ephemeralContainers"):
            new_spec["ephemeralContainers"] = spec["ephemeralContainers"]
    elif not _same_containers(spec, new_spec):
        new_spec = spec
    else:
        for name in ("containers", "initContainers"):
            for container, resized in zip(new_spec.get(name) or (), spec.get(name) or (), strict=True):
                container["resources"] = resized.get("resources", {})
                _restore_field(container, resized, "resizePolicy")
        _restore_field(new_spec, spec, "resources")
    item["spec"] = new_spec
    _restore_field(item, old, "status")
    for name in _ALL_METADATA:
        _restore_field(item["metadata"], old["metadata"], name)


def _same_containers(spec: Tree, old: Tree) -> bool:
    def names(tree: Tree) -> list[Any]:
        return [[each.get("name") for each in tree.get(key) or ()] for key in ("containers", "initContainers")]

    return names(spec) == names(old)


def _update_daemon_set(item: Tree, old: Tree) -> None:
    before = (old["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION, "1")
    number = int(before) + (item["spec"].get("template") != old["spec"].get("template"))
    annotations = {**(item["metadata"].get("annotations") or {}), TEMPLATE_GENERATION: str(number)}
    item["metadata"]["annotations"] = annotations


def _update_namespace(item: Tree, old: Tree) -> None:
    _restore_field(item.setdefault("spec", {}), old.get("spec") or {}, "finalizers")


def _update_service(item: Tree, old: Tree) -> None:
    """Drop the fields of the earlier service type, unless this update changes them."""
    spec, before = item["spec"], old["spec"]
    kind, old_type = spec.get("type"), before.get("type")
    if old_type != "ExternalName" and kind == "ExternalName":
        if spec.get("clusterIPs") == before.get("clusterIPs"):
            spec.pop("clusterIP", None)
            spec.pop("clusterIPs", None)
        for name in ("ipFamilies", "ipFamilyPolicy"):
            if spec.get(name) == before.get(name):
                spec.pop(name, None)
    external_types = ("NodePort", "LoadBalancer")
    if old_type in external_types and kind not in external_types:
        known = {port.get("nodePort") for port in before.get("ports", ())}
        if {port["nodePort"] for port in spec.get("ports", ()) if port.get("nodePort")} <= known:
            for port in spec.get("ports", ()):
                port.pop("nodePort", None)
    same = spec.get("externalTrafficPolicy") == before.get("externalTrafficPolicy")
    if is_externally_reachable(before) and not is_externally_reachable(spec) and same:
        spec.pop("externalTrafficPolicy", None)
    if old_type == "LoadBalancer" != kind:
        for name in ("allocateLoadBalancerNodePorts", "loadBalancerClass", "healthCheckNodePort"):
            if spec.get(name) == before.get(name):
                spec.pop(name, None)
    if kind != "LoadBalancer":
        item["status"] = {**(item.get("status") or {}), "loadBalancer": {}}


def _update_claim(item: Tree, old: Tree) -> None:
    sync_data_source(item["spec"], old["spec"])


_ON_UPDATE: Mapping[tuple[str, str], Callable[[Tree, Tree], None]] = {
    ("", "Namespace"): _update_namespace,
    ("", "PersistentVolumeClaim"): _update_claim,
    ("", "Service"): _update_service,
    ("apps", "DaemonSet"): _update_daemon_set,
    ("apps", "StatefulSet"): lambda item, _: _prepare_stateful_set(item),
}
