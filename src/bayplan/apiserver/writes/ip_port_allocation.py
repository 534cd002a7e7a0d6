"""Which address and which node ports does a service get?

Asked before a service is validated, on create and on update. Numbers are not kept anywhere: the services that exist
say which are taken, since a cluster of this size has hundreds of them, not hundreds of thousands. Addresses come from
10.0.0.0/24 and node ports from 30000 to 32767, both from a place that the service's name decides, so that they do not
depend on the order of creation alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import Any
from zlib import crc32

from bayplan.apiserver.api_errors import StatusError, internal_error, invalid
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.field_errors import FieldErrorList
from bayplan.apiserver.validation.names import address
from bayplan.apiserver.validation.services import check_service, is_headless, needs_health_check

ADDRESSES = IPv4Network("10.0.0.0/24")
NODE_PORTS = range(30000, 32768)
_STATIC_ADDRESSES = 16  # the first addresses are left to those who ask for a certain one


def _refused(item: Tree, path: str, value: Any, detail: str) -> StatusError:
    faults = FieldErrorList()
    faults.invalid(path, value, detail)
    return invalid("Service", "", item["metadata"].get("name", ""), faults)


def allocate(item: Tree, old: Tree | None, others: Iterable[Tree]) -> None:
    """Give a service what it needs and does not have, in place; refuse numbers that cannot be had."""
    spec, before = item["spec"], (old or {}).get("spec") or {}
    if old is not None:
        _keep_allocated(spec, before)
    _normalise_cluster_ips(spec, before)
    if spec.get("type") == "ExternalName":
        return
    taken = [each["spec"] for each in others if each["metadata"].get("uid") != item["metadata"].get("uid")]
    _set_ip_families(item, spec, before)
    _allocate_cluster_ip(item, spec, before, taken)
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        _allocate_node_ports(item, spec, before, taken)


def _keep_allocated(spec: Tree, before: Tree) -> None:
    """A client that leaves out what it was given means to keep it."""
    has_address = "ExternalName" not in (before.get("type"), spec.get("type"))
    if has_address:
        spec["clusterIP"] = spec.get("clusterIP") or before.get("clusterIP", "")
        spec["clusterIPs"] = spec.get("clusterIPs") or before.get("clusterIPs", [])
    elif spec.get("type") == "ExternalName" and before.get("internalTrafficPolicy") == spec.get(
        "internalTrafficPolicy"
    ):
        spec.pop("internalTrafficPolicy", None)
    outside = ("NodePort", "LoadBalancer")
    if before.get("type") in outside and spec.get("type") in outside:
        known = {port.get("name"): port.get("nodePort") for port in before.get("ports", ())}
        kept = {port.get("nodePort") for port in spec.get("ports", ())} & set(known.values())
        for port in spec.get("ports", ()):
            number = known.get(port.get("name"))
            if not port.get("nodePort") and number and number not in kept:
                port["nodePort"] = number
    if needs_health_check(before) and needs_health_check(spec) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = before["healthCheckNodePort"]


def _normalise_cluster_ips(spec: Tree, before: Tree) -> None:
    """`clusterIP` and the first of `clusterIPs` are one thing; who changes one alone means both."""
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
    faults = FieldErrorList()
    check_service(faults, {"type": "", **spec}, before)
    about = ("spec.clusterIPs", "spec.ipFamilies", "spec.ipFamilyPolicy")
    related = [fault for fault in faults if fault.field.startswith(about) and fault.value_text != '"None"']
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
        raise _refused(item, "spec.ipFamilyPolicy", "RequireDualStack", detail)
    elif "IPv6" in families:
        where = f"spec.ipFamilies[{families.index('IPv6')}]"
        raise _refused(item, where, "IPv6", "not configured on this cluster")
    spec["ipFamilies"] = families


def _allocate_cluster_ip(item: Tree, spec: Tree, before: Tree, taken: list[Tree]) -> None:
    if is_headless(spec):
        return
    used = {text for each in taken for text in each.get("clusterIPs") or ()}
    given = spec.get("clusterIPs")
    if not given:
        spec["clusterIP"] = _free_cluster_ip(item, used)
        spec["clusterIPs"] = [spec["clusterIP"]]
        return
    if given == before.get("clusterIPs"):
        return
    found = address(given[0])
    if found not in ADDRESSES:
        told = "the provided network does not match the current range"
        raise _refused(item, "spec.clusterIPs", given, f"failed to allocate IP {given[0]}: {told}")
    if given[0] in used:
        told = f"failed to allocate IP {given[0]}: provided IP is already allocated"
        raise _refused(item, "spec.clusterIPs", given, told)


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


def _allocate_node_ports(item: Tree, spec: Tree, before: Tree, taken: list[Tree]) -> None:
    used = {port.get("nodePort") for each in taken for port in each.get("ports", ())}
    used |= {each.get("healthCheckNodePort") for each in taken}
    kept = {port.get("nodePort") for port in before.get("ports", ())}
    chosen: dict[int, int] = {}
    allocates = spec.get("type") == "NodePort" or spec.get("allocateLoadBalancerNodePorts", True)
    for index, port in enumerate(spec.get("ports", ())):
        number = port.get("nodePort") or chosen.get(port.get("port", 0))
        if number and number not in kept and number not in chosen.values():
            _check_port(item, number, used, f"spec.ports[{index}].nodePort")
        if not number and allocates:
            number = _free_node_port(item, used | kept | set(chosen.values()))
        if number:
            port["nodePort"] = chosen[port.get("port", 0)] = number
    if needs_health_check(spec) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = _free_node_port(item, used | set(chosen.values()))


def _check_port(item: Tree, number: int, used: set[Any], path: str) -> None:
    if number not in NODE_PORTS:
        told = f"{NODE_PORTS.start}-{NODE_PORTS.stop - 1}"
        raise _refused(
            item, path, number, f"provided port is not in the valid range. The range of valid ports is {told}"
        )
    if number in used:
        raise _refused(item, path, number, "provided port is already allocated")


def _free_node_port(item: Tree, used: set[Any]) -> int:
    start = _name_hash(item)
    for step in range(len(NODE_PORTS)):
        number = NODE_PORTS[(start + step) % len(NODE_PORTS)]
        if number not in used:
            return number
    raise internal_error("Internal error occurred: failed to allocate a nodePort: range is full")
