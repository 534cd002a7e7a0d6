"""What does the server set, keep or ignore when an object is created or changed?

The writing side asks after defaults and mutating admission and before validation. An object comes with its name, uid,
namespace and creationTimestamp; `prepare_create` gives it its first status and generation, `prepare_update` puts back
what the caller may not change and raises the generation when the spec has changed. Both work in place on a tree that
belongs to the request. Some ten microseconds for a pod.
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
"""The status of a new object, whatever its maker said."""

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
"""Kinds that have a generation, and the fields whose change raises it."""

_STATUS_METADATA_FIELDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): ("ownerReferences",),
    ("apps", "Deployment"): ("labels",),
}
_ALL_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
_NO_METADATA_BY_STATUS = (
    "resource.k8s.io",
    "storage.k8s.io",
    "flowcontrol.apiserver.k8s.io",
)


def prepare_create(resource: ServedResource, item: Tree, *, lookup: ObjectLookup | None = None) -> None:
    """Make a new object ready for validation. `lookup` is needed for services, whose numbers must be free."""
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
    if (special := _ON_CREATE.get(key)) is not None:
        special(item)
    if key == ("", "Service"):
        allocate(item, None, lookup.list(built_in("Service")) if lookup else ())


def _drop_disabled_fields(resource: ServedResource, item: Tree) -> None:
    """Fields of pods that belong to features that are not on, and so are not kept: signals of one's own choice."""
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
    """A job without labels of its own has those of its pods, the ones that were just made included."""
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
    """How many may be away at once is a feature that is not on."""
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
    """`dataSource` and `dataSourceRef` are two names of one thing, unless it lives in another namespace.

    The old name knows claims and snapshots alone; anything else under it is ignored, as it always was.
    """
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
    had_one = any((old or {}).get(name) is not None for name in ("dataSource", "dataSourceRef"))
    if source is not None and reference is None and not had_one:
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
    """Put back what this way of writing may not change, and raise the generation where it must."""
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
    if (special := _ON_UPDATE.get(key)) is not None and not subresource:
        special(item, old)
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
    """Of a pod, its ephemeral containers or what its containers ask for; all else stays."""
    spec = item["spec"]
    kept = deepcopy(old["spec"])
    if subresource == "ephemeralcontainers":
        kept.pop("ephemeralContainers", None)
        if spec.get("ephemeralContainers"):
            kept["ephemeralContainers"] = spec["ephemeralContainers"]
    elif not _same_containers(spec, kept):
        kept = spec
    else:
        for name in ("containers", "initContainers"):
            for mine, theirs in zip(kept.get(name) or (), spec.get(name) or (), strict=True):
                mine["resources"] = theirs.get("resources", {})
                _restore_field(mine, theirs, "resizePolicy")
        _restore_field(kept, spec, "resources")
    item["spec"] = kept
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
    """What belongs to the type that a service had goes with it, unless the caller has just set it anew."""
    spec, before = item["spec"], old["spec"]
    kind, was = spec.get("type"), before.get("type")
    if was != "ExternalName" and kind == "ExternalName":
        if spec.get("clusterIPs") == before.get("clusterIPs"):
            spec.pop("clusterIP", None)
            spec.pop("clusterIPs", None)
        for name in ("ipFamilies", "ipFamilyPolicy"):
            if spec.get(name) == before.get(name):
                spec.pop(name, None)
    outside = ("NodePort", "LoadBalancer")
    if was in outside and kind not in outside:
        known = {port.get("nodePort") for port in before.get("ports", ())}
        if {port["nodePort"] for port in spec.get("ports", ()) if port.get("nodePort")} <= known:
            for port in spec.get("ports", ()):
                port.pop("nodePort", None)
    same = spec.get("externalTrafficPolicy") == before.get("externalTrafficPolicy")
    if is_externally_reachable(before) and not is_externally_reachable(spec) and same:
        spec.pop("externalTrafficPolicy", None)
    if was == "LoadBalancer" != kind:
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
