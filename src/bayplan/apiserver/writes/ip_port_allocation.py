"""Allocation of cluster IPs and node ports of services.

Called before a service is validated, on create and update. No allocation is stored: the existing services say which
numbers are taken, because a cluster of this size has hundreds of services. Cluster IPs come from 10.0.0.0/24, node
ports from 30000 to 32767. The search starts at a hash of the service's name, so the result does not depend on the order
of creation alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import Any
from zlib import crc32

from bayplan.apiserver.api_errors import StatusError, internal_error, invalid
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.names import address
from bayplan.apiserver.validation.services import check_service, is_headless, needs_health_check
from bayplan.codec.field_errors import FieldErrorList

ADDRESSES = IPv4Network("10.0.0.0/24")
NODE_PORTS = range(30000, 32768)
_STATIC_ADDRESSES = 16  # the first addresses are for services that request one


def _invalid_field(item: Tree, path: str, value: Any, detail: str) -> StatusError:
    errors = FieldErrorList()
    errors.invalid(path, value, detail)
    return invalid("Service", "", item["metadata"].get("name", ""), errors)


def allocate(item: Tree, old: Tree | None, services: Iterable[Tree]) -> None:
    """Allocate the missing numbers of a service, in place. Refuses numbers that are out of range or taken."""
    spec, before = item["spec"], (old or {}).get("spec") or {}
    if old is not None:
        _keep_allocated(spec, before)
    _normalise_cluster_ips(spec, before)
    if spec.get("type") == "ExternalName":
        return
    other_specs = [each["spec"] for each in services if each["metadata"].get("uid") != item["metadata"].get("uid")]
    _set_ip_families(item, spec, before)
    _allocate_cluster_ip(item, spec, before, other_specs)
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        _allocate_node_ports(item, spec, before, other_specs)


def _keep_allocated(spec: Tree, before: Tree) -> None:
    """Restore allocated numbers that the update omits."""
    has_address = "ExternalName" not in (before.get("type"), spec.get("type"))
    if has_address:
        spec["clusterIP"] = spec.get("clusterIP") or before.get("clusterIP", "")
        spec["clusterIPs"] = spec.get("clusterIPs") or before.get("clusterIPs", [])
    elif spec.get("type") == "ExternalName" and before.get("internalTrafficPolicy") == spec.get(
        "internalTrafficPolicy"
    ):
        spec.pop("internalTrafficPolicy", None)
    external_types = ("NodePort", "LoadBalancer")
    if before.get("type") in external_types and spec.get("type") in external_types:
        known = {port.get("name"): port.get("nodePort") for port in before.get("ports", ())}
        allocated = {port.get("nodePort") for port in spec.get("ports", ())} & set(known.values())
        for port in spec.get("ports", ()):
            number = known.get(port.get("name"))
            if not port.get("nodePort") and number and number not in allocated:
                port["nodePort"] = number
    if needs_health_check(before) and needs_health_check(spec) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = before["healthCheckNodePort"]


def _normalise_cluster_ips(spec: Tree, before: Tree) -> None:
    """`clusterIP` and the first of `clusterIPs` are the same field: a change of one changes both."""
    first, several = spec.get("clusterIP", ""), spec.get("clusterIPs") or []
    if not before:
        if first and not several:
            spec["clusterIPs"] = [first]
        return
    changed = before.get("clusterIP", "") != first
    if changed and several == (before.get("clusterIPs") or []):
        if not first:
            spec.pop("clusterIPs", None)
        elif before.get("clusterIP") or not several:
            spec["clusterIPs"] = [first]
    if not spec.get("clusterIPs"):
        spec.pop("clusterIPs", None)
    if not spec.get("clusterIP"):
        spec.pop("clusterIP", None)


def _set_ip_families(item: Tree, spec: Tree, before: Tree) -> None:
    selectorless = spec.get("clusterIP") == "None" and not spec.get("selector")
    if spec.get("ipFamilyPolicy") is None:
        dual = "RequireDualStack" if selectorless else "SingleStack"
        spec["ipFamilyPolicy"] = before.get("ipFamilyPolicy") or dual
    errors = FieldErrorList()
    check_service(errors, {"type": "", **spec}, before)
    paths = ("spec.clusterIPs", "spec.ipFamilies", "spec.ipFamilyPolicy")
    related = [error for error in errors if error.field.startswith(paths) and error.value_text != '"None"']
    if related:
        raise invalid("Service", "", item["metadata"].get("name", ""), related)
    families: list[str] = list(spec.get("ipFamilies") or ())
    for text in (spec.get("clusterIPs") or [])[len(families) :]:
        found = address(text)
        if found is not None:
            families.append(f"IPv{found.version}")
    families = families or ["IPv4"]
    if selectorless:
        if len(families) < 2 and spec["ipFamilyPolicy"] != "SingleStack":
            families.append("IPv6" if families[0] == "IPv4" else "IPv4")
    elif spec["ipFamilyPolicy"] == "RequireDualStack":
        detail = "this cluster is not configured for dual-stack services"
        raise _invalid_field(item, "spec.ipFamilyPolicy", "RequireDualStack", detail)
    elif "IPv6" in families:
        path = f"spec.ipFamilies[{families.index('IPv6')}]"
        raise _invalid_field(item, path, "IPv6", "not configured on this cluster")
    spec["ipFamilies"] = families


def _allocate_cluster_ip(item: Tree, spec: Tree, before: Tree, other_specs: list[Tree]) -> None:
    if is_headless(spec):
        return
    used = {text for each in other_specs for text in each.get("clusterIPs") or ()}
    given = spec.get("clusterIPs")
    if not given:
        spec["clusterIP"] = _free_cluster_ip(item, used)
        spec["clusterIPs"] = [spec["clusterIP"]]
        return
    if given == before.get("clusterIPs"):
        return
    found = address(given[0])
    if found not in ADDRESSES:
        reason = "the provided network does not match the current range"
        raise _invalid_field(item, "spec.clusterIPs", given, f"failed to allocate IP {given[0]}: {reason}")
    if given[0] in used:
        reason = f"failed to allocate IP {given[0]}: provided IP is already allocated"
        raise _invalid_field(item, "spec.clusterIPs", given, reason)


def _free_cluster_ip(item: Tree, used: set[str]) -> str:
    start, size = _name_hash(item), ADDRESSES.num_addresses
    free = list(range(_STATIC_ADDRESSES, size - 1))
    for step in range(len(free)):
        text = str(ADDRESSES[free[(start + step) % len(free)]])
        if text not in used:
            return text
    name = item["metadata"].get("name", "")
    raise internal_error(f'Internal error occurred: failed to allocate a serviceIP for Service "{name}": range is full')


def _name_hash(item: Tree) -> int:
    meta = item["metadata"]
    return crc32(f"{meta.get('namespace', '')}/{meta.get('name', '')}".encode())


def _allocate_node_ports(item: Tree, spec: Tree, before: Tree, other_specs: list[Tree]) -> None:
    used = {port.get("nodePort") for each in other_specs for port in each.get("ports", ())}
    used |= {each.get("healthCheckNodePort") for each in other_specs}
    allocated = {port.get("nodePort") for port in before.get("ports", ())}
    chosen: dict[int, int] = {}
    allocates = spec.get("type") == "NodePort" or spec.get("allocateLoadBalancerNodePorts", True)
    for index, port in enumerate(spec.get("ports", ())):
        number = port.get("nodePort") or chosen.get(port.get("port", 0))
        if number and number not in allocated and number not in chosen.values():
            _check_port(item, number, used, f"spec.ports[{index}].nodePort")
        if not number and allocates:
            number = _free_node_port(item, used | allocated | set(chosen.values()))
        if number:
            port["nodePort"] = chosen[port.get("port", 0)] = number
    if needs_health_check(spec) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = _free_node_port(item, used | set(chosen.values()))


def _check_port(item: Tree, number: int, used: set[Any], path: str) -> None:
    if number not in NODE_PORTS:
        valid = f"{NODE_PORTS.start}-{NODE_PORTS.stop - 1}"
        raise _invalid_field(
            item, path, number, f"provided port is not in the valid range. The range of valid ports is {valid}"
        )
    if number in used:
        raise _invalid_field(item, path, number, "provided port is already allocated")


def _free_node_port(item: Tree, used: set[Any]) -> int:
    start = _name_hash(item)
    for step in range(len(NODE_PORTS)):
        number = NODE_PORTS[(start + step) % len(NODE_PORTS)]
        if number not in used:
            return number
    raise internal_error("Internal error occurred: failed to allocate a nodePort: range is full")
