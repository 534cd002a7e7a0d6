"""Validation of volumes, claims and the other storage kinds on create and update."""

from __future__ import annotations

from collections.abc import Mapping
from posixpath import normpath
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.go_struct_text import struct_diff, struct_text
from bayplan.apiserver.validation.metadata import (
    check_immutable,
    check_metadata,
    check_metadata_update,
    check_selector,
    normalize_selector,
    sorted_map,
)
from bayplan.apiserver.validation.names import dns_label, dns_subdomain, label_key, no_backsteps
from bayplan.apiserver.validation.pods.scheduling import check_node_selector
from bayplan.apiserver.validation.pods.volumes import check_driver_name, check_source
from bayplan.apiserver.validation.resource_quantities import NEGATIVE, NOT_POSITIVE, check_quantity
from bayplan.codec.field_errors import IMMUTABLE, FieldErrorList
from bayplan.codec.quantity import parse_quantity

_ACCESS = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_MODES = ("Block", "Filesystem")
_OLD_CLASS = "volume.beta.kubernetes.io/storage-class"
_NOT_SOURCES = (
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
)
_MOST_PARAMETERS = 256 * 1024


def _check_access(out: FieldErrorList, modes: list[str], path: str, missing: str) -> None:
    if not modes:
        out.required(path, missing)
    for mode in modes:
        if mode not in _ACCESS:
            out.unsupported(path, mode, _ACCESS)
    if "ReadWriteOncePod" in modes and any(mode in _ACCESS[:3] for mode in modes):
        out.forbidden(path, "may not use ReadWriteOncePod with other access modes")


def _check_class_name(out: FieldErrorList, name: str | None, path: str) -> None:
    if name:
        out.each_invalid(path, name, dns_subdomain(name))


# Claims.


def check_claim(out: FieldErrorList, claim: Tree) -> None:
    check_metadata(out, claim["metadata"], dns_subdomain, namespaced=True)
    check_claim_spec(out, claim["spec"], "spec")


def check_claim_spec(out: FieldErrorList, spec: Tree, path: str, *, checked_before: bool = False) -> None:
    _check_access(out, spec.get("accessModes", []), f"{path}.accessModes", "at least 1 access mode is required")
    check_selector(out, spec.get("selector"), f"{path}.selector")
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    where = f"{path}.resources[storage]"
    if size is None:
        out.required(where)
    elif (quantity := parse_quantity(size)).sign() <= 0:
        out.invalid(where, str(quantity), NOT_POSITIVE)
    _check_class_name(out, spec.get("storageClassName"), f"{path}.storageClassName")
    if spec.get("volumeMode", "Block") not in _MODES:
        out.unsupported(f"{path}.volumeMode", spec["volumeMode"], _MODES)
    for name in ("dataSource", "dataSourceRef"):
        if (source := spec.get(name)) is not None:
            _check_data_source(out, source, f"{path}.{name}", check_group=not checked_before)
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
    if source is not None and reference is not None:
        if reference.get("namespace"):
            out.invalid(path, {}, "may not be specified when dataSourceRef.namespace is specified")
        elif any(source.get(name) != reference.get(name) for name in ("apiGroup", "kind", "name")):
            out.invalid(path, {}, "must match dataSourceRef")
    _check_class_name(out, spec.get("volumeAttributesClassName"), f"{path}.volumeAttributesClassName")


def _check_data_source(out: FieldErrorList, source: Tree, path: str, *, check_group: bool) -> None:
    for name in ("name", "kind"):
        if not source.get(name):
            out.required(f"{path}.{name}")
    group = source.get("apiGroup")
    if not group and source.get("kind") != "PersistentVolumeClaim":
        rule = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
        out.invalid(path, source.get("kind", ""), rule)
    if group and check_group:
        out.each_invalid(f"{path}.apiGroup", group, dns_subdomain(group))
    if namespace := source.get("namespace"):
        out.each_invalid(f"{path}.namespace", namespace, dns_label(namespace))


def check_claim_update(out: FieldErrorList, claim: Tree, old: Tree) -> None:
    check_metadata_update(out, claim["metadata"], old["metadata"])
    check_metadata(out, claim["metadata"], dns_subdomain, namespaced=True)
    new_spec, old_spec = claim["spec"], old["spec"]
    had_source = any((old_spec.get(name) or {}).get("apiGroup") for name in ("dataSource", "dataSourceRef"))
    check_claim_spec(out, new_spec, "spec", checked_before=had_source)
    annotation = (claim["metadata"].get("annotations") or {}).get(_OLD_CLASS, "")
    if annotation != (old["metadata"].get("annotations") or {}).get(_OLD_CLASS, ""):
        out.invalid(f"metadata.annotations.{_OLD_CLASS}", annotation, IMMUTABLE)
    bound = (claim.get("status") or {}).get("phase") == "Bound"
    if _immutable_claim_spec(new_spec, old_spec, bound=bound) != _immutable_claim_spec(old_spec, old_spec, bound=bound):
        rule = "spec is immutable after creation except resources.requests and volumeAttributesClassName"
        difference = struct_diff("core.PersistentVolumeClaimSpec", _copy_settable_fields(old_spec, new_spec), new_spec)
        out.forbidden("spec", f"{rule} for bound claims\n{difference}")
    _check_size_update(out, new_spec, old_spec, old.get("status") or {})
    if new_spec.get("volumeMode") != old_spec.get("volumeMode"):
        out.invalid("volumeMode", new_spec.get("volumeMode"), IMMUTABLE)


def _immutable_claim_spec(spec: Tree, old: Tree, *, bound: bool) -> Tree:
    """The immutable part of a claim spec: fields that may still be set are left out."""
    immutable = dict(spec)
    if not old.get("volumeName"):
        immutable.pop("volumeName", None)
    if old.get("storageClassName") is None:
        immutable.pop("storageClassName", None)
    if bound:
        immutable.pop("volumeAttributesClassName", None)
        resources = dict(immutable.get("resources") or {})
        resources["requests"] = {**(resources.get("requests") or {}), "storage": None}
        immutable["resources"] = resources
    return immutable


def _copy_settable_fields(old: Tree, new: Tree) -> Tree:
    """The old spec for the message's comparison: a volume name that may be set now is set as in the new spec."""
    result = dict(old)
    if not old.get("volumeName") and new.get("volumeName"):
        result["volumeName"] = new["volumeName"]
    return result


def _check_size_update(out: FieldErrorList, new: Tree, old: Tree, status: Tree) -> None:
    before = _storage_request((old.get("resources") or {}).get("requests"))
    after = _storage_request((new.get("resources") or {}).get("requests"))
    if after.compare(before) < 0 and after.compare(_storage_request(status.get("capacity"))) <= 0:
        out.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")


def _storage_request(amounts: Mapping[str, Any] | None) -> Any:
    return parse_quantity((amounts or {}).get("storage", "0"))


# Volumes.


def check_volume(out: FieldErrorList, volume: Tree) -> None:
    check_metadata(out, volume["metadata"], dns_subdomain, namespaced=False)
    spec = volume["spec"]
    _check_access(out, spec.get("accessModes", []), "spec.accessModes", "")
    _check_capacity(out, spec.get("capacity"))
    policy = spec.get("persistentVolumeReclaimPolicy")
    if policy and policy not in ("Delete", "Recycle", "Retain"):
        supported = ("Delete", "Recycle", "Retain")
        out.unsupported("spec.persistentVolumeReclaimPolicy", policy, supported)
    if (affinity := spec.get("nodeAffinity")) is not None:
        if affinity.get("required") is None:
            out.required("spec.nodeAffinity.required", "must specify required node constraints")
        else:
            check_node_selector(out, affinity["required"], "spec.nodeAffinity.required")
    _check_volume_source(out, spec)
    _check_class_name(out, spec.get("storageClassName"), "spec.storageClassName")
    if spec.get("volumeMode", "Block") not in _MODES:
        out.unsupported("spec.volumeMode", spec["volumeMode"], _MODES)


def _check_capacity(out: FieldErrorList, given: Tree | None) -> None:
    capacity = given or {}
    if not capacity:
        out.required("spec.capacity")
    if "storage" not in capacity or len(capacity) > 1:
        out.unsupported("spec.capacity", given, ("storage",))
    for name, text in capacity.items():
        quantity, where = parse_quantity(text), f"spec.capacity[{name}]"
        if quantity.value() < 0:
            out.invalid(where, quantity.value(), "must be a valid resource quantity")
        if quantity.sign() <= 0:
            out.invalid(where, str(quantity), NOT_POSITIVE)


def volume_source(spec: Tree) -> dict[str, Tree]:
    """The sources that a volume spec sets; a valid spec has one."""
    return {name: source for name, source in spec.items() if name not in _NOT_SOURCES}


def _check_volume_source(out: FieldErrorList, spec: Tree) -> None:
    sources = volume_source(spec)
    if not sources:
        out.required("spec", "must specify a volume type")
        return
    kind, *extra = sources
    for name in extra:
        out.forbidden(f"spec.{name}", "may not specify more than 1 volume type")
    source = sources[kind]
    if kind == "csi":
        _check_csi_volume(out, source)
    elif kind == "local":
        _check_local(out, source)
        if spec.get("nodeAffinity") is None:
            out.required("spec.nodeAffinity", "Local volume requires node affinity")
    else:
        check_source(out, kind, source, f"spec.{kind}")
    recycled = spec.get("persistentVolumeReclaimPolicy") == "Recycle"
    if kind == "hostPath" and recycled and normpath(source.get("path", "")) == "/":
        rule = "may not be 'recycle' for a hostPath mount of '/'"
        out.forbidden("spec.persistentVolumeReclaimPolicy", rule)


def _check_local(out: FieldErrorList, source: Tree) -> None:
    path = source.get("path", "")
    if not path:
        out.required("spec.local.path")
    else:
        out.each_invalid("spec.local.path", path, no_backsteps(path))


def _check_csi_volume(out: FieldErrorList, source: Tree) -> None:
    check_driver_name(out, source.get("driver", ""), "spec.csi.driver")
    if not source.get("volumeHandle"):
        out.required("spec.csi.volumeHandle")
    for name in (
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ):
        if (secret := source.get(name)) is not None:
            for field, rule in (("name", dns_subdomain), ("namespace", dns_label)):
                if not secret.get(field):
                    out.required(f"spec.csi.{name}.{field}")
                else:
                    out.each_invalid(f"spec.csi.{name}.{field}", secret[field], rule(secret[field]))


def check_volume_update(out: FieldErrorList, volume: Tree, old: Tree) -> None:
    check_volume(out, volume)
    if volume_source(volume["spec"]) != volume_source(old["spec"]):
        difference = struct_diff("core.PersistentVolumeSource", old["spec"], volume["spec"])
        rule = "spec.persistentvolumesource is immutable after creation"
        out.forbidden("spec.persistentvolumesource", f"{rule}\n{difference}")
    if volume["spec"].get("volumeMode") != old["spec"].get("volumeMode"):
        out.invalid("volumeMode", volume["spec"].get("volumeMode"), IMMUTABLE)
    place, before = volume["spec"].get("nodeAffinity"), old["spec"].get("nodeAffinity")
    if before is not None and place != before:
        shown = None if place is None else struct_text("core.VolumeNodeAffinity", place)
        out.invalid("nodeAffinity", shown, f"{IMMUTABLE}, except for updating from beta label to GA")


# Classes, drivers, capacities and attachments.


def check_storage_class(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False)
    _check_provisioner(out, item.get("provisioner", ""), "provisioner")
    _check_parameters(out, item.get("parameters") or {})
    if item.get("reclaimPolicy", "Delete") not in ("Delete", "Retain", ""):
        out.unsupported("reclaimPolicy", item["reclaimPolicy"], ("Delete", "Retain"))
    if item.get("volumeBindingMode") not in ("Immediate", "WaitForFirstConsumer"):
        supported = ("Immediate", "WaitForFirstConsumer")
        out.unsupported("volumeBindingMode", item.get("volumeBindingMode"), supported)
    seen: list[Any] = [{}]  # an empty term counts as a duplicate
    for index, term in enumerate(item.get("allowedTopologies", ())):
        where = f"allowedTopologies[{index}]"
        found = _check_topology(out, term, where)
        if found in seen:
            out.duplicate(f"{where}.matchLabelExpressions", "")
        seen.append(found)


def _check_provisioner(out: FieldErrorList, name: str, path: str) -> None:
    if not name:
        out.required(path)
    else:
        out.each_invalid(path, name.lower(), label_key(name.lower()))


def _check_parameters(out: FieldErrorList, parameters: Mapping[str, str]) -> None:
    if len(parameters) > 512:
        out.too_long("parameters", 512)
    if "" in parameters:
        out.invalid("parameters", "", "field can not be empty.")
    if sum(len(key) + len(value) for key, value in parameters.items()) > _MOST_PARAMETERS:
        out.too_long("parameters", _MOST_PARAMETERS)


def _check_topology(out: FieldErrorList, term: Tree, path: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for index, expression in enumerate(term.get("matchLabelExpressions", ())):
        where, key = f"{path}.matchLabelExpressions[{index}]", expression.get("key", "")
        values: set[str] = set()
        if not expression.get("values"):
            out.required(f"{where}.values")
        for at, value in enumerate(expression.get("values") or ()):
            if value in values:
                out.duplicate(f"{where}.values[{at}]", value)
            values.add(value)
        out.each_invalid(f"{where}.key", key, label_key(key))
        if key in found:
            out.duplicate(f"{where}.key", key)
        found[key] = values
    return found


def check_storage_class_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_storage_class(out, item)
    check_metadata_update(out, item["metadata"], old["metadata"])
    if item.get("parameters") != old.get("parameters"):
        out.invalid("parameters", sorted_map(item.get("parameters")), IMMUTABLE)
    for name in ("provisioner", "reclaimPolicy", "volumeBindingMode"):
        check_immutable(out, item.get(name), old.get(name), name)


def check_csi_driver(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False)
    _check_driver_spec(out, item["spec"])


def _check_driver_spec(out: FieldErrorList, spec: Tree) -> None:
    policies = ("File", "None", "ReadWriteOnceWithFSType")
    if spec.get("fsGroupPolicy", "None") not in policies:
        out.unsupported("spec.fsGroupPolicy", spec["fsGroupPolicy"], policies)
    seen: set[str] = set()
    for index, request in enumerate(spec.get("tokenRequests", ())):
        where, audience = f"spec.tokenRequests[{index}]", request.get("audience", "")
        if audience in seen:
            out.duplicate(f"{where}.audience", audience)
            continue
        seen.add(audience)
        seconds = request.get("expirationSeconds")
        if seconds is not None and seconds < 600:
            out.invalid(f"{where}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
        if seconds is not None and seconds > 1 << 32:
            rule = "may not specify a duration larger than 2^32 seconds"
            out.invalid(f"{where}.expirationSeconds", seconds, rule)
    for mode in spec.get("volumeLifecycleModes", ()):
        if mode not in ("Persistent", "Ephemeral"):
            out.unsupported("spec.volumeLifecycleModes", mode, ("Persistent", "Ephemeral"))


def check_csi_driver_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    _check_driver_spec(out, item["spec"])
    for name, shown in (("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")):
        check_immutable(out, item["spec"].get(name), old["spec"].get(name), f"spec.{shown}")


def check_csi_node(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False)
    seen: set[str] = set()
    for index, driver in enumerate(item["spec"].get("drivers") or ()):
        where, name = f"spec.drivers[{index}]", driver.get("name", "")
        check_driver_name(out, name, f"{where}.name")
        if not driver.get("nodeID"):
            out.required(f"{where}.nodeID")
        count = (driver.get("allocatable") or {}).get("count")
        if count is not None and count < 0:
            out.invalid(f"{where}.allocatable.count", count, NEGATIVE)
        if name in seen:
            out.duplicate(f"{where}.name", name)
        seen.add(name)
        _check_topology_keys(out, driver.get("topologyKeys") or (), where)


def _check_topology_keys(out: FieldErrorList, keys: Any, path: str) -> None:
    seen: set[str] = set()
    for key in keys:
        if not key:
            out.required(path)
        if key in seen:
            out.duplicate(path, key)
        seen.add(key)
        out.each_invalid(path, key, label_key(key))


def check_csi_node_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_csi_node(out, item)
    for before in old["spec"].get("drivers") or ():
        for after in item["spec"].get("drivers") or ():
            if after.get("name") == before.get("name"):
                first, second = ({**each, "allocatable": None} for each in (after, before))
                if first != second:
                    shown = {
                        "Name": after.get("name", ""),
                        "NodeID": after.get("nodeID", ""),
                        "TopologyKeys": after.get("topologyKeys"),
                        "Allocatable": None,
                    }
                    out.invalid("spec.drivers", shown, IMMUTABLE)


def check_csi_storage_capacity(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    check_selector(out, item.get("nodeTopology"), "nodeTopology")
    name = item.get("storageClassName", "")
    out.each_invalid("storageClassName", name, dns_subdomain(name))
    if item.get("capacity") is not None:
        check_quantity(out, "storage", parse_quantity(item["capacity"]), "capacity")


def check_csi_storage_capacity_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_csi_storage_capacity(out, item)
    check_metadata_update(out, item["metadata"], old["metadata"])
    if item.get("nodeTopology") != old.get("nodeTopology"):
        out.invalid("nodeTopology", normalize_selector(item.get("nodeTopology")), IMMUTABLE)
    check_immutable(out, item.get("storageClassName", ""), old.get("storageClassName", ""), "storageClassName")


def check_volume_attachment(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False)
    spec = item["spec"]
    check_driver_name(out, spec.get("attacher", ""), "spec.attacher")
    source = spec.get("source") or {}
    name, inline = source.get("persistentVolumeName"), source.get("inlineVolumeSpec")
    rule = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
    if name is None and inline is None:
        out.required("spec.source", rule)
    elif name is not None and inline is not None:
        out.forbidden("spec.source", rule)
    elif name == "":
        out.required("spec.source.persistentVolumeName", "must specify non empty persistentVolumeName")
    node = spec.get("nodeName", "")
    out.each_invalid("spec.nodeName", node, dns_subdomain(node))
    if name is not None:
        out.each_invalid("spec.source.persistentVolumeName", name, dns_subdomain(name))


def check_volume_attachment_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_volume_attachment(out, item)
    if item["spec"] != old["spec"]:
        source = item["spec"].get("source") or {}
        shown = {
            "Attacher": item["spec"].get("attacher", ""),
            "Source": {
                "PersistentVolumeName": source.get("persistentVolumeName"),
                "InlineVolumeSpec": source.get("inlineVolumeSpec"),
            },
            "NodeName": item["spec"].get("nodeName", ""),
        }
        out.invalid("spec", shown, IMMUTABLE)


def check_attributes_class(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False)
    _check_provisioner(out, item.get("driverName", ""), "driverName")
    _check_parameters(out, item.get("parameters") or {})
    if not item.get("parameters"):
        out.required("parameters", "must contain at least one key/value pair")


def check_attributes_class_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    for name in ("driverName", "parameters"):
        if item.get(name) != old.get(name):
            out.forbidden(name, f"updates to {name} are forbidden.")
    check_attributes_class(out, item)
