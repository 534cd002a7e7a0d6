"""Validation of roles, role bindings, Ingresses and NetworkPolicies on create and update."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.jobs import check_domain_path
from bayplan.apiserver.validation.metadata import check_immutable, check_metadata, check_metadata_update, check_selector
from bayplan.apiserver.validation.names import (
    address,
    cidr,
    dns_label,
    dns_subdomain,
    path_segment,
    port_name,
    port_number,
    wildcard_subdomain,
)
from bayplan.codec.field_errors import FieldErrorList

_GROUP = "rbac.authorization.k8s.io"


# Roles and bindings.


def check_role(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], path_segment, namespaced=True)
    _check_rules(out, item, namespaced=True)


def check_cluster_role(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], path_segment, namespaced=False)
    _check_rules(out, item, namespaced=False)
    if (rule := item.get("aggregationRule")) is not None:
        selectors = rule.get("clusterRoleSelectors") or ()
        if not selectors:
            detail = "at least one clusterRoleSelector required if aggregationRule is non-nil"
            out.required("aggregationRule.clusterRoleSelectors", detail)
        for index, selector in enumerate(selectors):
            where, before = f"aggregationRule.clusterRoleSelectors[{index}]", len(out)
            check_selector(out, selector, where)
            if len(out) > before:
                out.invalid(where, None, "invalid label selector.")


def _check_rules(out: FieldErrorList, item: Tree, *, namespaced: bool) -> None:
    for index, rule in enumerate(item.get("rules") or ()):
        path, urls = f"rules[{index}]", rule.get("nonResourceURLs")
        if not rule.get("verbs"):
            out.required(f"{path}.verbs", "verbs must contain at least one value")
        if urls:
            if namespaced:
                detail = "namespaced rules cannot apply to non-resource URLs"
                out.invalid(f"{path}.nonResourceURLs", urls, detail)
            if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
                detail = "rules cannot apply to both regular resources and non-resource URLs"
                out.invalid(f"{path}.nonResourceURLs", urls, detail)
            continue
        if not rule.get("apiGroups"):
            out.required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            out.required(f"{path}.resources", "resource rules must supply at least one resource")


def check_role_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_role(out, item)
    check_metadata_update(out, item["metadata"], old["metadata"])


def check_cluster_role_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_cluster_role(out, item)
    check_metadata_update(out, item["metadata"], old["metadata"])


def check_binding(out: FieldErrorList, item: Tree, *, namespaced: bool = True) -> None:
    check_metadata(out, item["metadata"], path_segment, namespaced=namespaced)
    reference = item.get("roleRef") or {}
    kinds = ("Role", "ClusterRole") if namespaced else ("ClusterRole",)
    if reference.get("apiGroup", "") != _GROUP:
        out.unsupported("roleRef.apiGroup", reference.get("apiGroup", ""), (_GROUP,))
    if reference.get("kind", "") not in kinds:
        out.unsupported("roleRef.kind", reference.get("kind", ""), kinds)
    if not reference.get("name"):
        out.required("roleRef.name")
    else:
        out.each_invalid("roleRef.name", reference["name"], path_segment(reference["name"]))
    for index, subject in enumerate(item.get("subjects", ())):
        _check_subject(out, subject, f"subjects[{index}]", namespaced=namespaced)


def _check_subject(out: FieldErrorList, subject: Tree, path: str, *, namespaced: bool) -> None:
    name, kind, group = subject.get("name", ""), subject.get("kind", ""), subject.get("apiGroup", "")
    if not name:
        out.required(f"{path}.name")
    if kind == "ServiceAccount":
        if name:
            out.each_invalid(f"{path}.name", name, dns_subdomain(name))
        if group:
            out.unsupported(f"{path}.apiGroup", group, ("",))
        if not namespaced and not subject.get("namespace"):
            out.required(f"{path}.namespace")
    elif kind in ("User", "Group"):
        if group != _GROUP:
            out.unsupported(f"{path}.apiGroup", group, (_GROUP,))
    else:
        out.unsupported(f"{path}.kind", kind, ("ServiceAccount", "User", "Group"))


def check_cluster_binding(out: FieldErrorList, item: Tree) -> None:
    check_binding(out, item, namespaced=False)


def check_binding_update(out: FieldErrorList, item: Tree, old: Tree, *, namespaced: bool = True) -> None:
    check_binding(out, item, namespaced=namespaced)
    check_metadata_update(out, item["metadata"], old["metadata"])
    if item.get("roleRef") != old.get("roleRef"):
        reference = item.get("roleRef") or {}
        shown = {"APIGroup": reference.get("apiGroup", ""), "Kind": reference.get("kind", "")}
        out.invalid("roleRef", {**shown, "Name": reference.get("name", "")}, "cannot change roleRef")


def check_cluster_binding_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_binding_update(out, item, old, namespaced=False)


# Ingresses.


def check_new_ingress(out: FieldErrorList, item: Tree) -> None:
    check_ingress(out, item)
    name = (item["metadata"].get("annotations") or {}).get("kubernetes.io/ingress.class")
    chosen = item["spec"].get("ingressClassName")
    if name is not None and chosen is not None and name != chosen:
        where = "annotations.kubernetes.io/ingress.class"
        out.invalid(where, name, "must match `ingressClassName` when both are specified")


def check_ingress(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    spec = item["spec"]
    if not spec.get("rules") and spec.get("defaultBackend") is None:
        out.invalid("spec", None, "either `defaultBackend` or `rules` must be specified")
    if (backend := spec.get("defaultBackend")) is not None:
        _check_backend(out, backend, "spec.defaultBackend")
    for index, rule in enumerate(spec.get("rules", ())):
        _check_ingress_rule(out, rule, f"spec.rules[{index}]")
    for index, tls in enumerate(spec.get("tls", ())):
        for at, host in enumerate(tls.get("hosts", ())):
            problems = wildcard_subdomain(host) if "*" in host else dns_subdomain(host)
            out.each_invalid(f"spec.tls[{index}].hosts[{at}]", host, problems)
        if secret := tls.get("secretName"):
            out.each_invalid(f"spec.tls[{index}].secretName", secret, dns_subdomain(secret))
    if (name := spec.get("ingressClassName")) is not None:
        out.each_invalid("spec.ingressClassName", name, dns_subdomain(name))


def _check_ingress_rule(out: FieldErrorList, rule: Tree, path: str) -> None:
    if host := rule.get("host"):
        if address(host):
            out.invalid(f"{path}.host", host, "must be a DNS name, not an IP address")
        problems = wildcard_subdomain(host) if "*" in host else dns_subdomain(host)
        out.each_invalid(f"{path}.host", host, problems)
    if (http := rule.get("http")) is not None:
        if not http.get("paths"):
            out.required(f"{path}.http.paths")
        for index, each in enumerate(http.get("paths") or ()):
            _check_path(out, each, f"{path}.http.paths[{index}]")


def _check_path(out: FieldErrorList, each: Tree, path: str) -> None:
    kind, text = each.get("pathType"), each.get("path", "")
    if kind is None:
        out.required(f"{path}.pathType", "pathType must be specified")
        return
    if kind in ("Exact", "Prefix"):
        if not text.startswith("/"):
            out.invalid(f"{path}.path", text, "must be an absolute path")
        for part in ("//", "/./", "/../", "%2f", "%2F"):
            if part in text:
                out.invalid(f"{path}.path", text, f"must not contain '{part}'")
        for part in ("/..", "/."):
            if text.endswith(part):
                out.invalid(f"{path}.path", text, f"cannot end with '{part}'")
    elif kind == "ImplementationSpecific":
        if text and not text.startswith("/"):
            out.invalid(f"{path}.path", text, "must be an absolute path")
    else:
        out.unsupported(f"{path}.pathType", kind, ("Exact", "ImplementationSpecific", "Prefix"))
    _check_backend(out, each.get("backend") or {}, f"{path}.backend")


def _check_backend(out: FieldErrorList, backend: Tree, path: str) -> None:
    resource, service = backend.get("resource"), backend.get("service")
    if resource is not None and service is not None:
        out.invalid(path, "", "cannot set both resource and service backends")
    elif resource is not None:
        _check_local_reference(out, resource, f"{path}.resource")
    elif service is not None:
        _check_service_backend(out, service, path)
    else:
        out.invalid(path, "", "resource or service backend is required")


def _check_service_backend(out: FieldErrorList, service: Tree, path: str) -> None:
    if not service.get("name"):
        out.required(f"{path}.service.name")
    else:
        out.each_invalid(f"{path}.service.name", service["name"], dns_label(service["name"]))
    port = service.get("port") or {}
    name, number = port.get("name"), port.get("number")
    if name and number:
        out.invalid(path, "", "cannot set both port name & port number")
    elif name:
        out.each_invalid(f"{path}.service.port.name", name, port_name(name))
    elif number:
        out.each_invalid(f"{path}.service.port.number", number, port_number(number))
    else:
        out.required(path, "port name or number is required")


def _check_local_reference(out: FieldErrorList, reference: Tree, path: str) -> None:
    if (group := reference.get("apiGroup")) is not None:
        out.each_invalid(f"{path}.apiGroup", group, dns_subdomain(group))
    for name in ("kind", "name"):
        if not reference.get(name):
            out.required(f"{path}.{name}")
        else:
            out.each_invalid(f"{path}.{name}", reference[name], path_segment(reference[name]))


def check_ingress_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    check_ingress(out, item)


def check_ingress_class(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False)
    spec = item["spec"]
    controller = spec.get("controller", "")
    if len(controller) > 250:
        out.too_long("spec.controller", 250)
    check_domain_path(out, controller, "spec.controller")
    if (parameters := spec.get("parameters")) is None:
        return
    _check_local_reference(out, parameters, "spec.parameters")
    scope, namespace = parameters.get("scope"), parameters.get("namespace")
    if scope not in ("Cluster", "Namespace"):
        out.unsupported("spec.parameters.scope", scope or "", ("Cluster", "Namespace"))
    elif scope == "Namespace":
        if namespace is None:
            out.required("spec.parameters.namespace", "`parameters.scope` is set to 'Namespace'")
        else:
            out.each_invalid("spec.parameters.namespace", namespace, dns_label(namespace))
    elif namespace is not None:
        out.forbidden("spec.parameters.namespace", "`parameters.scope` is set to 'Cluster'")


def check_ingress_class_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    new, before = item["spec"].get("controller", ""), old["spec"].get("controller", "")
    check_immutable(out, new, before, "spec.controller")
    check_ingress_class(out, item)


# Network policies.


def check_network_policy(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    _check_policy_spec(out, item["spec"])


def check_network_policy_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    _check_policy_spec(out, item["spec"])


def _check_policy_spec(out: FieldErrorList, spec: Tree) -> None:
    check_selector(out, spec.get("podSelector"), "spec.podSelector")
    for name, peers in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(name, ())):
            where = f"spec.{name}[{index}]"
            for at, port in enumerate(rule.get("ports", ())):
                _check_policy_port(out, port, f"{where}.ports[{at}]")
            for at, peer in enumerate(rule.get(peers, ())):
                _check_peer(out, peer, f"{where}.{peers}[{at}]")
    kinds = spec.get("policyTypes") or []
    if len(kinds) > 2:
        out.invalid("spec.policyTypes", kinds, "may not specify more than two policyTypes")
        return
    for index, kind in enumerate(kinds):
        if kind not in ("Ingress", "Egress"):
            out.unsupported(f"spec.policyTypes[{index}]", kind, ("Ingress", "Egress"))


def _check_policy_port(out: FieldErrorList, port: Tree, path: str) -> None:
    if port.get("protocol", "TCP") not in ("TCP", "UDP", "SCTP"):
        out.unsupported(f"{path}.protocol", port["protocol"], ("TCP", "UDP", "SCTP"))
    first: Any = port.get("port")
    last = port.get("endPort")
    if first is None:
        if last is not None:
            out.invalid(f"{path}.endPort", last, "may not be specified when `port` is not specified")
    elif isinstance(first, str):
        if last is not None:
            out.invalid(f"{path}.endPort", last, "may not be specified when `port` is non-numeric")
        out.each_invalid(f"{path}.port", first, port_name(first))
    else:
        out.each_invalid(f"{path}.port", first, port_number(first))
        if last is not None:
            if last < first:
                out.invalid(f"{path}.endPort", first, "must be greater than or equal to `port`")
            out.each_invalid(f"{path}.endPort", last, port_number(last))


def _check_peer(out: FieldErrorList, peer: Tree, path: str) -> None:
    for name in ("podSelector", "namespaceSelector"):
        check_selector(out, peer.get(name), f"{path}.{name}")
    block = peer.get("ipBlock")
    if block is not None:
        _check_block(out, block, f"{path}.ipBlock")
    given = [name for name in ("podSelector", "namespaceSelector", "ipBlock") if peer.get(name) is not None]
    if not given:
        out.required(path, "must specify a peer")
    elif len(given) > 1 and block is not None:
        out.forbidden(path, "may not specify both ipBlock and another peer")


def _check_block(out: FieldErrorList, block: Tree, path: str) -> None:
    text = block.get("cidr", "")
    if not text:
        out.required(f"{path}.cidr")
        return
    if problems := cidr(text):
        out.each_invalid(f"{path}.cidr", text, problems)
        return
    whole = ip_network(text, strict=False)
    for index, each in enumerate(block.get("except", ())):
        where = f"{path}.except[{index}]"
        if problems := cidr(each):
            out.each_invalid(where, each, problems)
            continue
        part: Any = ip_network(each, strict=False)
        if part.version != whole.version or not part.subnet_of(whole) or part.prefixlen <= whole.prefixlen:
            out.invalid(where, each, "must be a strict subset of `cidr`")
