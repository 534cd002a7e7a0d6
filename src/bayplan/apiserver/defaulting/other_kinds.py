"""Defaults of services, nodes, namespaces and all other kinds without pods.

`kind_defaults` calls them. Some fields are not defaults: kube-apiserver always writes them, even if empty.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.resources.pod_resources import round_quantities

_RBAC = "rbac.authorization.k8s.io"
_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)


def _set_defaults(tree: Tree, **values: Any) -> None:
    for name, value in values.items():
        tree.setdefault(name, value)


def _set_default_text(tree: Tree, name: str, value: str) -> None:
    if not tree.get(name):
        tree[name] = value


def fill_service(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    _fill_affinity(spec)
    _set_default_text(spec, "type", "ClusterIP")
    for port in spec.get("ports", ()):
        _set_default_text(port, "protocol", "TCP")
        port.setdefault("port", 0)
        if not port.get("targetPort"):
            port["targetPort"] = port["port"]
    kind = spec["type"]
    if kind in ("LoadBalancer", "NodePort") or (kind == "ClusterIP" and spec.get("externalIPs")):
        _set_default_text(spec, "externalTrafficPolicy", "Cluster")
    if kind in ("NodePort", "LoadBalancer", "ClusterIP"):
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    balancer = item.setdefault("status", {}).setdefault("loadBalancer", {})
    if kind == "LoadBalancer":
        for ingress in balancer.get("ingress", ()):
            if ingress.get("ip"):
                ingress.setdefault("ipMode", "VIP")


def _fill_affinity(spec: Tree) -> None:
    _set_default_text(spec, "sessionAffinity", "None")
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        client = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
        if "timeoutSeconds" not in client:
            spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": 10800}}


def fill_endpoints(item: Tree) -> None:
    for subset in item.get("subsets", ()):
        for port in subset.get("ports", ()):
            _set_default_text(port, "protocol", "TCP")


def fill_endpoint_slice(item: Tree) -> None:
    _set_defaults(item, endpoints=None, ports=None, addressType="")
    for port in item["ports"] or ():
        _set_defaults(port, name="", protocol="TCP")
    for endpoint in item["endpoints"] or ():
        _set_defaults(endpoint, addresses=None)
        endpoint.setdefault("conditions", {})


def fill_namespace(item: Tree) -> None:
    metadata = item["metadata"]
    if metadata.get("name"):
        metadata["labels"] = {**metadata.get("labels", {}), "kubernetes.io/metadata.name": metadata["name"]}
    item.setdefault("spec", {})
    _set_default_text(item.setdefault("status", {}), "phase", "Active")


def fill_node(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    first, several = spec.get("podCIDR"), spec.get("podCIDRs") or []
    if first and several[:1] != [first]:
        spec["podCIDRs"] = [first]  # clients of the older field set only that one
    elif several:
        spec["podCIDR"] = several[0]
    status = item.setdefault("status", {})
    if capacity := status.get("capacity"):
        round_quantities(capacity)
        if "allocatable" not in status:
            status["allocatable"] = dict(capacity)
    if allocatable := status.get("allocatable"):
        round_quantities(allocatable)
    endpoints = status.setdefault("daemonEndpoints", {})
    endpoints.setdefault("kubeletEndpoint", {}).setdefault("Port", 0)
    info = status.setdefault("nodeInfo", {})
    for name in _NODE_INFO:
        info.setdefault(name, "")


def fill_limit_range(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("limits", None)
    for limit in spec["limits"] or ():
        for name in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
            if amounts := limit.get(name):
                round_quantities(amounts)
        if limit.get("type") == "Container":
            defaults = {**limit.get("max", {}), **limit.get("default", {})}
            default_requests = {**limit.get("min", {}), **defaults, **limit.get("defaultRequest", {})}
            if defaults:
                limit["default"] = defaults
            if default_requests:
                limit["defaultRequest"] = default_requests


def fill_resource_quota(item: Tree) -> None:
    spec, status = item.setdefault("spec", {}), item.setdefault("status", {})
    for amounts in (spec.get("hard"), status.get("hard"), status.get("used")):
        if amounts:
            round_quantities(amounts)


def fill_secret(item: Tree) -> None:
    """Move `stringData` into `data`; the writer of `stringData` becomes the manager of these fields."""
    _set_default_text(item, "type", "Opaque")
    if texts := item.pop("stringData", None):
        encoded = {key: b64encode(value.encode()).decode() for key, value in texts.items()}
        item["data"] = {**(item.get("data") or {}), **encoded}


def fill_event(item: Tree) -> None:
    _set_defaults(
        item,
        involvedObject={},
        source={},
        firstTimestamp=None,
        lastTimestamp=None,
        eventTime=None,
        reportingComponent="",
        reportingInstance="",
    )


def fill_events_v1(item: Tree) -> None:
    """The same for the events.k8s.io group, which has other field names."""
    _set_defaults(item, eventTime=None, regarding={}, deprecatedSource={}, deprecatedFirstTimestamp=None)
    _set_defaults(item, deprecatedLastTimestamp=None)


def fill_network_policy(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
        for port in rule.get("ports", ()):
            port.setdefault("protocol", "TCP")


def fill_ingress(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    for rule in spec.get("rules", ()):
        for path in (rule.get("http") or {}).get("paths") or ():
            path.setdefault("pathType", None)
            path.setdefault("backend", {})
            _fill_backend(path["backend"])
    if (backend := spec.get("defaultBackend")) is not None:
        _fill_backend(backend)
    item.setdefault("status", {}).setdefault("loadBalancer", {})


def _fill_backend(backend: Tree) -> None:
    if (service := backend.get("service")) is not None:
        service.setdefault("port", {})


def fill_ingress_class(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    if (parameters := spec.get("parameters")) is not None:
        parameters["scope"] = parameters.get("scope") or "Cluster"


def fill_storage_class(item: Tree) -> None:
    _set_defaults(item, provisioner="", reclaimPolicy="Delete", volumeBindingMode="Immediate")


def fill_csi_driver(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    _set_defaults(spec, attachRequired=True, podInfoOnMount=False, storageCapacity=False, requiresRepublish=False)
    _set_defaults(spec, fsGroupPolicy="ReadWriteOnceWithFSType", seLinuxMount=False)
    if not spec.get("volumeLifecycleModes"):
        spec["volumeLifecycleModes"] = ["Persistent"]


def fill_csi_node(item: Tree) -> None:
    item.setdefault("spec", {}).setdefault("drivers", None)


def fill_volume_attachment(item: Tree) -> None:
    _set_defaults(item.setdefault("spec", {}), attacher="", source={}, nodeName="")
    item.setdefault("status", {}).setdefault("attached", False)


def fill_priority_class(item: Tree) -> None:
    _set_defaults(item, value=0, preemptionPolicy="PreemptLowerPriority")


def fill_lease(item: Tree) -> None:
    item.setdefault("spec", {})


def fill_runtime_class(item: Tree) -> None:
    item.setdefault("handler", "")


def fill_role(item: Tree) -> None:
    item.setdefault("rules", None)


def fill_role_binding(item: Tree) -> None:
    reference = item.setdefault("roleRef", {})
    _set_default_text(reference, "apiGroup", _RBAC)
    _set_defaults(reference, kind="", name="")
    for subject in item.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            _set_default_text(subject, "apiGroup", _RBAC)


def fill_resource_claim(item: Tree) -> None:
    _fill_device_requests(item.setdefault("spec", {}))
    item.setdefault("status", {})


def fill_resource_claim_template(item: Tree) -> None:
    outer = item.setdefault("spec", {})
    outer.setdefault("metadata", {})
    _fill_device_requests(outer.setdefault("spec", {}))


def _fill_device_requests(spec: Tree) -> None:
    for request in spec.setdefault("devices", {}).get("requests") or ():
        exactly = request.get("exactly")
        for each in (*([exactly] if exactly is not None else ()), *(request.get("firstAvailable") or ())):
            _set_default_text(each, "allocationMode", "ExactCount")
            if each["allocationMode"] == "ExactCount" and not each.get("count"):
                each["count"] = 1
            for toleration in each.get("tolerations", ()):
                _set_default_text(toleration, "operator", "Equal")


def fill_device_class(item: Tree) -> None:
    item.setdefault("spec", {})


def fill_resource_slice(item: Tree) -> None:
    _set_defaults(item.setdefault("spec", {}), driver="", pool={"name": "", "generation": 0, "resourceSliceCount": 0})


def fill_webhooks(item: Tree) -> None:
    mutating = item.get("kind") == "MutatingWebhookConfiguration"
    for hook in item.get("webhooks", ()):
        _set_defaults(hook, failurePolicy="Fail", matchPolicy="Equivalent", namespaceSelector={}, objectSelector={})
        _set_defaults(hook, timeoutSeconds=10, sideEffects=None, admissionReviewVersions=None)
        if mutating:
            hook.setdefault("reinvocationPolicy", "Never")
        if (service := hook.setdefault("clientConfig", {}).get("service")) is not None:
            service.setdefault("port", 443)
        _fill_scopes(hook.get("rules", ()))


def fill_api_service(item: Tree) -> None:
    if (service := (item.get("spec") or {}).get("service")) is not None:
        service.setdefault("port", 443)


def _fill_scopes(rules: Any) -> None:
    for rule in rules:
        rule.setdefault("scope", "*")


def fill_admission_policy(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("failurePolicy", "Fail")
    if (constraints := spec.get("matchConstraints")) is not None:
        _fill_match(constraints)
    if item.get("kind") == "ValidatingAdmissionPolicy":
        item.setdefault("status", {})


def fill_admission_policy_binding(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    if (constraints := spec.get("matchResources")) is not None:
        _fill_match(constraints)


def _fill_match(constraints: Tree) -> None:
    _set_defaults(constraints, matchPolicy="Equivalent", namespaceSelector={}, objectSelector={})
    _fill_scopes([*constraints.get("resourceRules", ()), *constraints.get("excludeResourceRules", ())])


def fill_flow_schema(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("priorityLevelConfiguration", {}).setdefault("name", "")
    if not spec.get("matchingPrecedence"):
        spec["matchingPrecedence"] = 1000
    item.setdefault("status", {})


def fill_priority_level(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    if (exempt := spec.get("exempt")) is not None:
        _fill_shares(exempt, 0)
    if (limited := spec.get("limited")) is not None:
        _fill_shares(limited, 30)
        queuing = limited.setdefault("limitResponse", {}).get("queuing")
        if queuing is not None:
            for name, value in (("queues", 64), ("handSize", 8), ("queueLengthLimit", 50)):
                queuing[name] = queuing.get(name) or value
    item.setdefault("status", {})


def _fill_shares(level: Tree, shares: int) -> None:
    if level.get("nominalConcurrencyShares") is None:  # the field is always returned, and null counts as missing
        level["nominalConcurrencyShares"] = shares
    _set_defaults(level, lendablePercent=0)


def fill_service_cidr(item: Tree) -> None:
    item.setdefault("spec", {})
    item.setdefault("status", {})


def fill_certificate_signing_request(item: Tree) -> None:
    _set_defaults(item.setdefault("spec", {}), request=None, signerName="")
    item.setdefault("status", {})
