"""Validation of Services, Endpoints and EndpointSlices on create and update."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.metadata import check_immutable, check_labels, check_metadata, check_metadata_update
from bayplan.apiserver.validation.names import (
    address,
    cidr,
    dns_label,
    dns_subdomain,
    ip,
    label_key,
    label_value,
    port_number,
)
from bayplan.apiserver.validation.pods.containers import check_port_or_name, check_protocol
from bayplan.codec.field_errors import FieldErrorList

_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_FAMILIES = ("IPv4", "IPv6")
_FAMILY_POLICIES = ("PreferDualStack", "RequireDualStack", "SingleStack")
_ONLY_BALANCERS = "may only be used when `type` is 'LoadBalancer'"
_IMMUTABLE_ONCE_SET = "may not change once set"
_MOST_AFFINITY_S = 86400


def is_headless(spec: Tree) -> bool:
    return list(spec.get("clusterIPs") or ()) == ["None"]


def is_externally_reachable(spec: Tree) -> bool:
    """Whether clients outside the cluster can reach the service."""
    kind = spec.get("type")
    return kind in ("LoadBalancer", "NodePort") or (kind == "ClusterIP" and bool(spec.get("externalIPs")))


def needs_health_check(spec: Tree) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def check_new_service(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_label, namespaced=True)
    check_service(out, item["spec"], {})


def check_service(out: FieldErrorList, spec: Tree, old: Tree) -> None:
    kind, headless, ports = spec.get("type"), is_headless(spec), spec.get("ports") or []
    if not ports and not headless and kind != "ExternalName":
        out.required("spec.ports")
    if kind in ("LoadBalancer", "NodePort") and headless:
        out.invalid("spec.clusterIPs[0]", "None", f"may not be set to 'None' for {kind} services")
    if kind == "ExternalName":
        _check_external_name(out, spec)
    _check_service_ports(out, ports)
    if spec.get("selector"):
        check_labels(out, spec["selector"], "spec.selector")
    _check_affinity(out, spec)
    if kind != "ExternalName":
        _check_cluster_ips(out, spec, old)
    for index, text in enumerate(spec.get("externalIPs", ())):
        where = f"spec.externalIPs[{index}]"
        if problems := ip(text):
            out.each_invalid(where, text, problems)
        else:
            check_endpoint_ip(out, text, where)
    if kind not in _TYPES:
        out.unsupported("spec.type", kind or "", _TYPES)
    _check_port_uses(out, ports, kind)
    _check_load_balancer(out, spec, kind)
    _check_traffic(out, spec, kind)


def _check_external_name(out: FieldErrorList, spec: Tree) -> None:
    if spec.get("clusterIPs"):
        out.forbidden("spec.clusterIPs", "may not be set for ExternalName services")
    for name in ("ipFamilies", "ipFamilyPolicy"):
        if spec.get(name):
            out.forbidden(f"spec.{name}", "may not be set for ExternalName services")
    target = spec.get("externalName", "").removesuffix(".")
    if not target:
        out.required("spec.externalName")
    else:
        out.each_invalid("spec.externalName", target, dns_subdomain(target))


def _check_service_ports(out: FieldErrorList, ports: list[Tree]) -> None:
    names: set[str] = set()
    for index, port in enumerate(ports):
        where, name = f"spec.ports[{index}]", port.get("name", "")
        if not name and len(ports) > 1:
            out.required(f"{where}.name")
        elif name:
            out.each_invalid(f"{where}.name", name, dns_label(name))
            if name in names:
                out.duplicate(f"{where}.name", name)
            names.add(name)
        out.each_invalid(f"{where}.port", port.get("port", 0), port_number(port.get("port", 0)))
        check_protocol(out, port, where)
        check_port_or_name(out, port.get("targetPort"), f"{where}.targetPort")
        if (protocol := port.get("appProtocol")) is not None:
            out.each_invalid(f"{where}.appProtocol", protocol, label_key(protocol))


def _check_affinity(out: FieldErrorList, spec: Tree) -> None:
    affinity, config = spec.get("sessionAffinity"), spec.get("sessionAffinityConfig")
    if affinity not in ("ClientIP", "None"):
        out.unsupported("spec.sessionAffinity", affinity or "", ("ClientIP", "None"))
    elif affinity == "ClientIP":
        seconds = ((config or {}).get("clientIP") or {}).get("timeoutSeconds", 0)
        if not 0 < seconds <= _MOST_AFFINITY_S:
            rule = f"must be greater than 0 and less than {_MOST_AFFINITY_S}"
            out.invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, rule)


def _check_cluster_ips(out: FieldErrorList, spec: Tree, old: Tree) -> None:
    first, addresses = spec.get("clusterIP", ""), list(spec.get("clusterIPs") or ())
    if first:
        if not addresses:
            out.required("spec.clusterIPs")
        elif addresses[0] != first:
            out.invalid("spec.clusterIPs", addresses, "first value must match `clusterIP`")
    elif addresses:
        out.invalid("spec.clusterIPs", addresses, "must be empty when `clusterIP` is not specified")
    seen: set[str] = set()
    for index, family in enumerate(spec.get("ipFamilies") or ()):
        if family not in _FAMILIES:
            out.unsupported(f"spec.ipFamilies[{index}]", family, _FAMILIES)
        if family in seen:
            out.duplicate(f"spec.ipFamilies[{index}]", family)
        seen.add(family)
    policy = spec.get("ipFamilyPolicy")
    if policy is not None and policy not in _FAMILY_POLICIES:
        out.unsupported("spec.ipFamilyPolicy", policy, _FAMILY_POLICIES)
    for index, text in enumerate(addresses):
        if text == "None" and index == 0:
            if len(addresses) > 1:
                out.invalid("spec.clusterIPs", addresses, "'None' must be the first and only value")
        elif text not in (old.get("clusterIPs") or ()):
            out.each_invalid(f"spec.clusterIPs[{index}]", text, ip(text))
    if len(addresses) > 2:
        out.invalid("spec.clusterIPs", addresses, "may only hold up to 2 values")
    _check_families(out, addresses, list(spec.get("ipFamilies") or ()))


def _check_families(out: FieldErrorList, addresses: list[str], families: list[str]) -> None:
    parsed = [address(text) for text in addresses]
    if not all(parsed):
        return
    versions = [f"IPv{found.version}" for found in parsed if found]
    if len(versions) > 1 and len(set(versions)) == 1:
        rule = "may specify no more than one IP for each IP family"
        out.invalid("spec.clusterIPs", addresses, rule)
    for index, (version, family) in enumerate(zip(versions, families, strict=False)):
        if version != family and family in _FAMILIES:
            rule = f"expected an {family} value as indicated by `ipFamilies[{index}]`"
            out.invalid(f"spec.clusterIPs[{index}]", addresses[index], rule)


def _check_port_uses(out: FieldErrorList, ports: list[Tree], kind: Any) -> None:
    if kind == "ClusterIP":
        for index, port in enumerate(ports):
            if port.get("nodePort"):
                out.forbidden(f"spec.ports[{index}].nodePort", "may not be used when `type` is 'ClusterIP'")
    seen_outside: set[Any] = set()
    seen: set[Any] = set()
    for index, port in enumerate(ports):
        outside = (port.get("protocol"), port.get("nodePort"))
        if outside[1] and outside in seen_outside:
            out.duplicate(f"spec.ports[{index}].nodePort", outside[1])
        seen_outside.add(outside)
    for index, port in enumerate(ports):
        key = (port.get("protocol"), port.get("port"))
        if key in seen:
            shown = {"Name": "", "Protocol": key[0], "AppProtocol": None, "Port": key[1], "TargetPort": 0}
            out.duplicate(f"spec.ports[{index}]", {**shown, "NodePort": 0})
        seen.add(key)


def _check_load_balancer(out: FieldErrorList, spec: Tree, kind: Any) -> None:
    ranges = spec.get("loadBalancerSourceRanges") or ()
    if ranges:
        where = "spec.LoadBalancerSourceRanges"
        if kind != "LoadBalancer":
            out.forbidden(where, _ONLY_BALANCERS)
        for index, text in enumerate(ranges):
            out.each_invalid(f"{where}[{index}]", text.strip(), cidr(text.strip()))
    if spec.get("allocateLoadBalancerNodePorts") is not None and kind != "LoadBalancer":
        out.forbidden("spec.allocateLoadBalancerNodePorts", _ONLY_BALANCERS)
    name = spec.get("loadBalancerClass")
    if name is not None:
        if kind == "LoadBalancer":
            out.each_invalid("spec.loadBalancerClass", name, label_key(name))
        else:
            out.forbidden("spec.loadBalancerClass", _ONLY_BALANCERS)


def _check_traffic(out: FieldErrorList, spec: Tree, kind: Any) -> None:
    policy, port = spec.get("externalTrafficPolicy"), spec.get("healthCheckNodePort")
    if not is_externally_reachable(spec):
        if policy:
            out.invalid("spec.externalTrafficPolicy", policy, "may only be set for externally-accessible services")
    elif policy not in ("Cluster", "Local"):
        out.unsupported("spec.externalTrafficPolicy", policy or "", ("Cluster", "Local"))
    if port and not needs_health_check(spec):
        rule = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        out.invalid("spec.healthCheckNodePort", port, rule)
    inside = spec.get("internalTrafficPolicy")
    if inside is None:
        if kind in ("NodePort", "LoadBalancer", "ClusterIP"):
            out.required("spec.internalTrafficPolicy")
    elif inside not in ("Cluster", "Local"):
        out.unsupported("spec.internalTrafficPolicy", inside, ("Cluster", "Local"))
    distribution = spec.get("trafficDistribution")
    known = ("PreferClose", "PreferSameZone", "PreferSameNode")
    if distribution is not None and distribution not in known:
        out.unsupported("spec.trafficDistribution", distribution, known)


def check_service_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    new, before = item["spec"], old["spec"]
    if "ExternalName" not in (new.get("type"), before.get("type")):
        _check_immutable_addresses(out, new, before)
        _check_immutable_families(out, new, before)
    if new.get("type") == before.get("type") == "LoadBalancer":
        if new.get("loadBalancerClass") != before.get("loadBalancerClass"):
            out.invalid("spec.loadBalancerClass", new.get("loadBalancerClass"), _IMMUTABLE_ONCE_SET)
        if new.get("loadBalancerClass") is not None:
            name = new["loadBalancerClass"]
            out.each_invalid("spec.loadBalancerClass", name, label_key(name))
    elif new.get("loadBalancerClass") is not None and new.get("type") != "LoadBalancer":
        out.forbidden("spec.loadBalancerClass", _ONLY_BALANCERS)
    check_service(out, new, before)


def _check_immutable_addresses(out: FieldErrorList, new: Tree, old: Tree) -> None:
    if is_headless(new) and is_headless(old):
        return
    after, before = list(new.get("clusterIPs") or ()), list(old.get("clusterIPs") or ())
    if len(after) == len(before):
        for index, (first, second) in enumerate(zip(before, after, strict=True)):
            if first != second:
                out.invalid(f"spec.clusterIPs[{index}]", after, _IMMUTABLE_ONCE_SET)
    elif len(before) > len(after):
        if not after:
            out.invalid("spec.clusterIPs[0]", None, "primary clusterIP can not be unset")
        elif after[0] != before[0]:
            out.invalid("spec.clusterIPs[0]", after, _IMMUTABLE_ONCE_SET)
    elif before and after[0] != before[0]:
        out.invalid("spec.clusterIPs[0]", after, _IMMUTABLE_ONCE_SET)


def _check_immutable_families(out: FieldErrorList, new: Tree, old: Tree) -> None:
    if is_headless(new) or is_headless(old):
        return
    after, before = list(new.get("ipFamilies") or ()), list(old.get("ipFamilies") or ())
    if len(after) == len(before):
        for first, second in zip(before, after, strict=True):
            if first != second:
                out.invalid("spec.ipFamilies[0]", after, _IMMUTABLE_ONCE_SET)
    elif before and after and before[0] != after[0]:
        out.invalid("spec.ipFamilies[0]", list(new.get("clusterIPs") or ()), _IMMUTABLE_ONCE_SET)


# Endpoints


def check_endpoint_ip(out: FieldErrorList, text: str, path: str) -> None:
    found = address(text)
    if found is None:
        out.invalid(path, text, "must be a valid IP address")
        return
    if found.is_unspecified:
        out.invalid(path, text, f"may not be unspecified ({text})")
    if found.is_loopback:
        out.invalid(path, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
    if found.is_link_local:
        out.invalid(path, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    if str(found).startswith("224.0.0."):
        out.invalid(path, text, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")


def check_endpoints(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    for index, subset in enumerate(item.get("subsets", ())):
        where = f"subsets[{index}]"
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            out.required(where, "must specify `addresses` or `notReadyAddresses`")
        for name in ("addresses", "notReadyAddresses"):
            for at, each in enumerate(subset.get(name, ())):
                _check_address(out, each, f"{where}.{name}[{at}]")
        ports = subset.get("ports", ())
        for at, port in enumerate(ports):
            _check_endpoint_port(out, port, f"{where}.ports[{at}]", needs_name=len(ports) > 1)


def _check_address(out: FieldErrorList, each: Tree, path: str) -> None:
    text = each.get("ip", "")
    out.each_invalid(f"{path}.ip", text, ip(text))
    if hostname := each.get("hostname"):
        out.each_invalid(f"{path}.hostname", hostname, dns_label(hostname))
    if (node := each.get("nodeName")) is not None:
        out.each_invalid(f"{path}.nodeName", node, dns_subdomain(node))
    check_endpoint_ip(out, text, f"{path}.ip")


def _check_endpoint_port(out: FieldErrorList, port: Tree, path: str, *, needs_name: bool) -> None:
    name = port.get("name", "")
    if not name and needs_name:
        out.required(f"{path}.name")
    elif name:
        out.each_invalid(f"{path}.name", name, dns_label(name))
    out.each_invalid(f"{path}.port", port.get("port", 0), port_number(port.get("port", 0)))
    check_protocol(out, port, path)
    if (protocol := port.get("appProtocol")) is not None:
        out.each_invalid(f"{path}.appProtocol", protocol, label_key(protocol))


def check_endpoints_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    if item.get("subsets") == old.get("subsets"):
        item = {**item, "subsets": ()}
    check_endpoints(out, item)


def check_endpoint_slice(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    kind = item.get("addressType", "")
    if not kind:
        out.required("addressType")
    elif kind not in ("FQDN", "IPv4", "IPv6"):
        out.unsupported("addressType", kind, ("FQDN", "IPv4", "IPv6"))
    _check_slice_ports(out, item.get("ports") or ())
    for index, endpoint in enumerate(item.get("endpoints") or ()):
        _check_endpoint(out, endpoint, kind, f"endpoints[{index}]")


def _check_slice_ports(out: FieldErrorList, ports: Iterable[Tree]) -> None:
    names: set[str] = set()
    for index, port in enumerate(ports):
        where, name = f"ports[{index}]", port.get("name", "")
        if name:
            out.each_invalid(f"{where}.name", name, dns_label(name))
        if name in names:
            out.duplicate(f"{where}.name", name)
        names.add(name)
        check_protocol(out, port, where)
        if (protocol := port.get("appProtocol")) is not None:
            out.each_invalid(f"{where}.appProtocol", protocol, label_key(protocol))


def _check_endpoint(out: FieldErrorList, endpoint: Tree, kind: str, path: str) -> None:
    addresses = endpoint.get("addresses") or ()
    if not addresses:
        out.required(f"{path}.addresses", "must contain at least 1 address")
    for index, text in enumerate(addresses):
        where = f"{path}.addresses[{index}]"
        if kind not in ("IPv4", "IPv6"):
            continue
        if problems := ip(text):
            out.each_invalid(where, text, problems)
            continue
        found = address(text)
        if found and f"IPv{found.version}" != kind:
            out.invalid(f"{path}.addresses", text, f"must be an {kind} address")
        check_endpoint_ip(out, text, where)
    if (node := endpoint.get("nodeName")) is not None:
        out.each_invalid(f"{path}.nodeName", node, dns_subdomain(node))
    if (hostname := endpoint.get("hostname")) is not None:
        out.each_invalid(f"{path}.hostname", hostname, dns_label(hostname))
    for index, zone in enumerate((endpoint.get("hints") or {}).get("forZones", ())):
        name = zone.get("name", "")
        out.each_invalid(f"{path}.hints.forZones[{index}].name", name, label_value(name))


def check_endpoint_slice_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    changed = item if item.get("endpoints") != old.get("endpoints") else {**item, "endpoints": ()}
    check_endpoint_slice(out, changed)
    check_immutable(out, item.get("addressType", ""), old.get("addressType", ""), "addressType")
