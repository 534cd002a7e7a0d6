"""Table rows of services, ingresses, volumes and storage classes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.tables.cell_text import (
    NONE,
    UNSET,
    access_modes_text,
    labels_text,
    list_text,
    load_balancer_text,
    selector_cell,
)
from bayplan.apiserver.tables.object_parts import name_of, object_age_cell, spec_and_status
from bayplan.codec.quantity import parse_quantity


def service(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    ports = ",".join(_port(each) for each in spec.get("ports") or ())
    cluster_ip = (spec.get("clusterIPs") or [spec.get("clusterIP")])[0] or NONE
    start = [name_of(item), spec.get("type", ""), cluster_ip, _external_ips(spec, status), ports or NONE]
    return [*start, object_age_cell(item, now), labels_text(spec.get("selector"))]


def _port(port: Tree) -> str:
    number = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port', 0)}{number}/{port.get('protocol', '')}"


def _external_ips(spec: Tree, status: Tree) -> str:
    given = spec.get("externalIPs") or []
    match spec.get("type"):
        case "ClusterIP" | "NodePort":
            return ",".join(given) or NONE
        case "LoadBalancer":
            return ",".join([*filter(None, load_balancer_text(status).split(",")), *given]) or "<pending>"
        case "ExternalName":
            return str(spec.get("externalName", ""))
    return "<unknown>"


def endpoints(item: Tree, now: datetime) -> list[Any]:
    found: list[str] = []
    total = 0
    for subset in item.get("subsets") or ():
        addresses = [each.get("ip", "") for each in subset.get("addresses") or ()]
        for port in subset.get("ports") or [None]:
            total += len(addresses)
            found += addresses if port is None else [f"{each}:{port.get('port', 0)}" for each in addresses]
    shown = list_text(found, 3, total=total, empty="") if item.get("subsets") else NONE
    return [name_of(item), shown, object_age_cell(item, now)]


def endpoint_slice(item: Tree, now: datetime) -> list[Any]:
    ports = [_slice_port(port) for port in item.get("ports") or ()]
    addresses = [text for each in item.get("endpoints") or () for text in each.get("addresses") or ()]
    return [
        name_of(item),
        item.get("addressType", ""),
        list_text(ports, 3),
        list_text(addresses, 3),
        object_age_cell(item, now),
    ]


def _slice_port(port: Tree) -> str:
    if port.get("port") is not None:
        return str(port["port"])
    return port["name"] if port.get("name") is not None else "*"


def ingress(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    rules = spec.get("rules") or ()
    hosts = [rule["host"] for rule in rules if rule.get("host")]
    shown = ",".join(hosts[:3]) or "*"
    shown += f" + {len(rules) - 3} more..." if len(hosts[:3]) == 3 and len(rules) > 3 else ""
    ports = "80, 443" if spec.get("tls") else "80"
    return [
        name_of(item),
        spec.get("ingressClassName") or NONE,
        shown,
        load_balancer_text(status),
        ports,
        object_age_cell(item, now),
    ]


def ingress_class(item: Tree, now: datetime) -> list[Any]:
    spec, _ = spec_and_status(item)
    parameters = spec.get("parameters")
    shown = NONE
    if parameters is not None:
        group = f".{parameters['apiGroup']}" if parameters.get("apiGroup") is not None else ""
        shown = f"{parameters.get('kind', '')}{group}/{parameters.get('name', '')}"
    name = _default_name(item, "ingressclass.kubernetes.io/is-default-class")
    return [name, spec.get("controller", ""), shown, object_age_cell(item, now)]


def _default_name(item: Tree, *keys: str) -> str:
    annotations = item["metadata"].get("annotations") or {}
    is_default = any(annotations.get(key) == "true" for key in keys)
    return f"{name_of(item)} (default)" if is_default else name_of(item)


def network_policy(item: Tree, now: datetime) -> list[Any]:
    return [name_of(item), selector_cell((item.get("spec") or {}).get("podSelector")), object_age_cell(item, now)]


def service_cidr(item: Tree, now: datetime) -> list[Any]:
    return [name_of(item), ",".join((item.get("spec") or {}).get("cidrs") or ()), object_age_cell(item, now)]


def ip_address(item: Tree, now: datetime) -> list[Any]:
    parent = (item.get("spec") or {}).get("parentRef")
    shown = NONE
    if parent is not None:
        names = [parent.get("resource", ""), parent.get("group", "")]
        shown = "/".join(
            filter(None, (".".join(filter(None, names)).lower(), parent.get("namespace"), parent.get("name")))
        )
    return [name_of(item), shown, object_age_cell(item, now)]


def _phase(item: Tree) -> str:
    ending = item["metadata"].get("deletionTimestamp")
    return "Terminating" if ending else (item.get("status") or {}).get("phase", "")


def _amount(amounts: Mapping[str, Any] | None) -> str:
    return str(parse_quantity((amounts or {}).get("storage", "0")))


def persistent_volume(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    claim = spec.get("claimRef")
    bound = f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim is not None else ""
    old_class = (item["metadata"].get("annotations") or {}).get("volume.beta.kubernetes.io/storage-class")
    start = [name_of(item), _amount(spec.get("capacity")), access_modes_text(spec.get("accessModes"))]
    start += [spec.get("persistentVolumeReclaimPolicy", ""), _phase(item), bound]
    classes = [old_class or spec.get("storageClassName", ""), spec.get("volumeAttributesClassName") or UNSET]
    return [*start, *classes, status.get("reason", ""), object_age_cell(item, now), spec.get("volumeMode") or UNSET]


def volume_claim(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    bound = bool(spec.get("volumeName"))
    capacity = _amount(status.get("capacity")) if bound else ""
    modes = access_modes_text(status.get("accessModes")) if bound else ""
    old_class = (item["metadata"].get("annotations") or {}).get("volume.beta.kubernetes.io/storage-class")
    classes = [old_class or spec.get("storageClassName") or "", spec.get("volumeAttributesClassName") or UNSET]
    start = [name_of(item), _phase(item), spec.get("volumeName", ""), capacity, modes]
    return [*start, *classes, object_age_cell(item, now), spec.get("volumeMode") or UNSET]


def storage_class(item: Tree, now: datetime) -> list[Any]:
    keys = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
    start = [_default_name(item, *keys), item.get("provisioner", ""), item.get("reclaimPolicy", "Delete")]
    expands = bool(item.get("allowVolumeExpansion"))
    return [*start, item.get("volumeBindingMode", "Immediate"), expands, object_age_cell(item, now)]


def volume_attributes_class(item: Tree, now: datetime) -> list[Any]:
    return [name_of(item), item.get("driverName", ""), object_age_cell(item, now)]


def volume_attachment(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    volume = (spec.get("source") or {}).get("persistentVolumeName") or ""
    start = [name_of(item), spec.get("attacher", ""), volume, spec.get("nodeName", "")]
    return [*start, status.get("attached", False), object_age_cell(item, now)]


def csi_node(item: Tree, now: datetime) -> list[Any]:
    return [name_of(item), len((item.get("spec") or {}).get("drivers") or ()), object_age_cell(item, now)]


def csi_driver(item: Tree, now: datetime) -> list[Any]:
    spec, _ = spec_and_status(item)
    tokens = spec.get("tokenRequests")
    audiences = UNSET if tokens is None else ",".join(each.get("audience", "") for each in tokens)
    flags = [spec.get("attachRequired", True), spec.get("podInfoOnMount", False), spec.get("storageCapacity", False)]
    modes = ",".join(spec.get("volumeLifecycleModes") or ()) or NONE
    return [name_of(item), *flags, audiences, spec.get("requiresRepublish", False), modes, object_age_cell(item, now)]
