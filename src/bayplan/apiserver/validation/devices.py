"""Validation of ResourceClaims, their templates, DeviceClasses and ResourceSlices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.go_struct_text import struct_text
from bayplan.apiserver.validation.metadata import (
    check_annotations,
    check_immutable,
    check_labels,
    check_metadata,
    check_metadata_update,
)
from bayplan.apiserver.validation.names import dns_label, dns_subdomain
from bayplan.apiserver.validation.pods.scheduling import check_node_selector
from bayplan.apiserver.validation.pods.volumes import check_driver_name
from bayplan.codec.field_errors import IMMUTABLE, FieldErrorList
from bayplan.codec.quantity import parse_quantity
from bayplan.objects.resources import is_extended_resource_name

if TYPE_CHECKING:
    from bayplan.cel import DeviceEnvironment

_MAX_ITEMS = 32
_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IDENTIFIER_RULE = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric "
    "characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is "
    "'[A-Za-z_][A-Za-z0-9_]*')"
)
_REFERENCE = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"


@cache
def _cel_environment() -> DeviceEnvironment:
    """Loaded for the first selector: the CEL modules are large, and few clusters have selectors."""
    from bayplan.cel import DeviceEnvironment

    return DeviceEnvironment(parse_quantity=parse_quantity)


def _iterate_with_paths(out: FieldErrorList, items: Iterable[Tree], path: str) -> Iterable[tuple[str, Tree]]:
    """Yield the items with their paths; report names that repeat."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        where, name = f"{path}[{index}]", item.get("name", "")
        yield where, item
        if name in seen:
            out.duplicate(where, name)
        seen.add(name)


def _check_limit(out: FieldErrorList, items: Any, path: str) -> None:
    if len(items or ()) > _MAX_ITEMS:
        out.too_many(path, len(items), _MAX_ITEMS)


def check_claim_devices(out: FieldErrorList, devices: Tree, path: str) -> None:
    requests = devices.get("requests") or ()
    _check_limit(out, requests, f"{path}.requests")
    for where, request in _iterate_with_paths(out, requests, f"{path}.requests"):
        _check_request(out, request, where)
    names = {
        request.get("name", ""): [sub.get("name", "") for sub in request.get("firstAvailable") or ()]
        for request in requests
    }
    for index, constraint in enumerate(devices.get("constraints") or ()):
        where = f"{path}.constraints[{index}]"
        _check_references(out, constraint.get("requests") or (), names, f"{where}.requests")
        if constraint.get("matchAttribute") is not None:
            _check_qualified(out, constraint["matchAttribute"], f"{where}.matchAttribute")
        elif constraint.get("distinctAttribute") is not None:
            _check_qualified(out, constraint["distinctAttribute"], f"{where}.distinctAttribute")
        else:
            rule = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
            out.required(where, rule)
    for index, config in enumerate(devices.get("config") or ()):
        where = f"{path}.config[{index}]"
        _check_references(out, config.get("requests") or (), names, f"{where}.requests")
        _check_config(out, config, where)


def _check_request(out: FieldErrorList, request: Tree, path: str) -> None:
    name, exactly, several = request.get("name", ""), request.get("exactly"), request.get("firstAvailable")
    out.each_invalid(f"{path}.name", name, dns_label(name))
    if exactly is None and not several:
        out.required(path, "exactly one of `exactly` or `firstAvailable` is required")
    elif exactly is not None and several:
        rule = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"
        out.invalid(path, None, rule)
    elif several:
        for where, each in _iterate_with_paths(out, several, f"{path}.firstAvailable"):
            out.each_invalid(f"{where}.name", each.get("name", ""), dns_label(each.get("name", "")))
            _check_subrequest(out, each, where)
    elif exactly is not None:
        _check_subrequest(out, exactly, f"{path}.exactly")


def _check_subrequest(out: FieldErrorList, request: Tree, path: str) -> None:
    name, count = request.get("deviceClassName", ""), request.get("count", 0)
    if not name:
        out.required(f"{path}.deviceClassName")
    else:
        out.each_invalid(f"{path}.deviceClassName", name, dns_subdomain(name))
    check_selectors(out, request.get("selectors") or (), f"{path}.selectors")
    mode = request.get("allocationMode", "")
    if mode == "All":
        if count:
            out.invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == "ExactCount":
        if count <= 0:
            out.invalid(f"{path}.count", count, "must be greater than zero")
    else:
        out.unsupported(f"{path}.allocationMode", mode, ("All", "ExactCount"))


def check_selectors(out: FieldErrorList, selectors: Any, path: str) -> None:
    _check_limit(out, selectors, path)
    if not selectors:
        return
    from bayplan.cel import MAX_LENGTH, CompileError

    for index, selector in enumerate(selectors):
        where, cel = f"{path}[{index}].cel", selector.get("cel")
        if cel is None:
            out.required(where)
            continue
        text = cel.get("expression", "")
        if len(text) > MAX_LENGTH:
            out.too_long(f"{where}.expression", MAX_LENGTH)
            continue
        try:
            _cel_environment().compile(text)
        except CompileError as fault:
            out.invalid(f"{where}.expression", text, str(fault))


def _check_references(out: FieldErrorList, references: Any, names: dict[str, list[str]], path: str) -> None:
    seen: set[str] = set()
    for index, text in enumerate(references):
        where = f"{path}[{index}]"
        first, slash, second = text.partition("/")
        if text.count("/") > 1:
            out.invalid(where, text, _REFERENCE)
        else:
            for part in (first, second) if slash else (first,):
                out.each_invalid(where, part, dns_label(part))
            if first not in names or (slash and second not in names[first]):
                out.invalid(where, text, _REFERENCE)
        if text in seen:
            out.duplicate(where, text)
        seen.add(text)


def _check_qualified(out: FieldErrorList, text: str, path: str) -> None:
    domain, slash, name = text.partition("/")
    if not text:
        out.required(path)
    elif not slash:
        out.invalid(path, text, "a fully qualified name must be a domain and a name separated by a slash")
        _check_identifier(out, text, path)
    else:
        _check_parts(out, domain, name, path)


def _check_parts(out: FieldErrorList, domain: str, name: str, path: str) -> None:
    out.each_invalid(path, domain, dns_subdomain(domain))
    _check_identifier(out, name, path)


def _check_identifier(out: FieldErrorList, name: str, path: str) -> None:
    if not name:
        out.required(path, "the name must not be empty")
    elif len(name) > _MAX_ITEMS:
        out.too_long(path, _MAX_ITEMS)
    elif not _IDENTIFIER.fullmatch(name):
        out.invalid(path, name, _IDENTIFIER_RULE)


def _check_config(out: FieldErrorList, config: Tree, path: str) -> None:
    opaque = config.get("opaque")
    if opaque is None:
        out.required(f"{path}.opaque")
        return
    check_driver_name(out, opaque.get("driver", ""), f"{path}.opaque.driver")
    parameters = opaque.get("parameters")
    if parameters is None:
        out.required(f"{path}.opaque.parameters")
    elif not isinstance(parameters, dict):
        out.invalid(f"{path}.opaque.parameters", "<value omitted>", "must be a valid JSON object")


# The kinds


def check_resource_claim(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    check_claim_devices(out, item["spec"].get("devices") or {}, "spec.devices")


def check_resource_claim_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    check_metadata_update(out, item["metadata"], old["metadata"])
    if item["spec"] != old["spec"]:
        out.invalid("spec", struct_text("resource.ResourceClaimSpec", item["spec"]), IMMUTABLE)


def check_claim_template(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    inner = item["spec"].get("metadata") or {}
    check_annotations(out, inner.get("annotations") or {}, "spec.metadata.annotations")
    check_labels(out, inner.get("labels") or {}, "spec.metadata.labels")
    devices = (item["spec"].get("spec") or {}).get("devices") or {}
    check_claim_devices(out, devices, "spec.spec.devices")


def check_claim_template_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_claim_template(out, item)
    check_metadata_update(out, item["metadata"], old["metadata"])
    if item["spec"] != old["spec"]:
        out.invalid("spec", struct_text("resource.ResourceClaimTemplateSpec", item["spec"]), IMMUTABLE)


def check_device_class(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False)
    _check_class_spec(out, item["spec"])


def check_device_class_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_device_class(out, item)
    check_metadata_update(out, item["metadata"], old["metadata"])


def _check_class_spec(out: FieldErrorList, spec: Tree) -> None:
    check_selectors(out, spec.get("selectors") or (), "spec.selectors")
    for index, config in enumerate(spec.get("config") or ()):
        _check_config(out, config, f"spec.config[{index}]")
    name = spec.get("extendedResourceName")
    if name is not None and not is_extended_resource_name(name):
        out.invalid("spec.extendedResourceName", name, "must be a valid extended resource name")


def check_resource_slice(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False)
    _check_slice_spec(out, item["spec"])


def check_resource_slice_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    spec, before = item["spec"], old["spec"]
    _check_slice_spec(out, spec)
    pool, pool_before = spec.get("pool") or {}, before.get("pool") or {}
    check_immutable(out, pool.get("name", ""), pool_before.get("name", ""), "spec.pool.name")
    check_immutable(out, spec.get("driver", ""), before.get("driver", ""), "spec.driver")
    check_immutable(out, spec.get("nodeName"), before.get("nodeName"), "spec.nodeName")


def _check_slice_spec(out: FieldErrorList, spec: Tree) -> None:
    check_driver_name(out, spec.get("driver", ""), "spec.driver")
    pool = spec.get("pool") or {}
    _check_pool_name(out, pool.get("name", ""), "spec.pool.name")
    if pool.get("resourceSliceCount", 0) <= 0:
        rule = "must be greater than zero"
        out.invalid("spec.pool.resourceSliceCount", pool.get("resourceSliceCount", 0), rule)
    if pool.get("generation", 0) < 0:
        out.invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero")
    _check_node_selection(out, spec)
    if spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        out.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    devices = spec.get("devices") or ()
    if len(devices) > 128:
        out.too_many("spec.devices", len(devices), 128)
    for where, device in _iterate_with_paths(out, devices, "spec.devices"):
        _check_device(out, device, where)


def _check_pool_name(out: FieldErrorList, name: str, path: str) -> None:
    if not name:
        out.required(path)
        return
    if len(name) > 253:
        out.too_long(path, 253)
    for part in name.split("/"):
        out.each_invalid(path, part, dns_subdomain(part))


def _check_node_selection(out: FieldErrorList, spec: Tree) -> None:
    given = []
    if (name := spec.get("nodeName")) is not None:
        if name:
            given.append("`nodeName`")
            out.each_invalid("spec.nodeName", name, dns_subdomain(name))
        else:
            out.invalid("spec.nodeName", name, "must be either unset or set to a non-empty string")
    if (selector := spec.get("nodeSelector")) is not None:
        given.append("`nodeSelector`")
        check_node_selector(out, selector, "spec.nodeSelector")
    for field in ("allNodes", "perDeviceNodeSelection"):
        if (value := spec.get(field)) is not None:
            if value:
                given.append(f"`{field}`")
            else:
                out.invalid(f"spec.{field}", value, "must be either unset or set to true")
    rule = f"exactly one of {', '.join(f'`{name}`' for name in _NODE_FIELDS)} is required"
    if not given:
        out.required("spec", rule)
    elif len(given) > 1:
        out.invalid("spec", f"{{{', '.join(given)}}}", f"{rule}, but multiple fields are set")


def _check_device(out: FieldErrorList, device: Tree, path: str) -> None:
    name = device.get("name", "")
    out.each_invalid(f"{path}.name", name, dns_label(name))
    total = len(device.get("attributes") or ()) + len(device.get("capacity") or ())
    if total > _MAX_ITEMS:
        rule = f"the total number of attributes and capacities must not exceed {_MAX_ITEMS}"
        out.invalid(path, total, rule)
    for field in ("attributes", "capacity"):
        for key, value in (device.get(field) or {}).items():
            where = f"{path}.{field}[{key}]"
            domain, slash, name = key.partition("/")
            if slash:
                _check_parts(out, domain, name, where)
            else:
                _check_identifier(out, key, where)
            if field == "attributes":
                _check_attribute(out, value, where)
            elif value.get("value") is not None:
                parse_quantity(value["value"])


def _check_attribute(out: FieldErrorList, value: Tree, path: str) -> None:
    if not value:
        out.invalid(path, "", "exactly one value must be specified")
    elif len(value) > 1:
        out.invalid(path, value, "exactly one value must be specified")
    elif len(value.get("string") or "") > 64:
        out.too_long(f"{path}.string", 64)
