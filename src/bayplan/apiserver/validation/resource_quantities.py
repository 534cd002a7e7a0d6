"""Validation of resource amounts: known names, no negative amounts, requests within limits.

Called for containers, pods, nodes, quotas, limit ranges and claims. Cost: about a microsecond per amount; the results
for names are cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.names import Problems, dns_label, label_key
from bayplan.codec.field_errors import NOT_FOUND, FieldError, FieldErrorList
from bayplan.codec.go_text import quote
from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.objects.resources import is_extended_resource_name, is_hugepages, is_native, is_pod_level

NEGATIVE = "must be greater than or equal to 0"
NOT_POSITIVE = "must be greater than zero"
_CONTAINER_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_OBJECT_COUNT_RESOURCES = (
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
)
_QUOTA_RESOURCES = (
    *_CONTAINER_RESOURCES,
    *_OBJECT_COUNT_RESOURCES,
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
)
_STANDARD_RESOURCES = frozenset((*_QUOTA_RESOURCES, "storage"))
_POD_LEVEL_RESOURCES = ("cpu", "hugepages-", "memory")

NameCheck = Callable[[str], Problems]


def _is_hugepages_in_quotas(name: str) -> bool:
    return name.startswith(("hugepages-", "requests.hugepages-"))


@lru_cache(maxsize=4096)
def resource_name(name: str) -> Problems:
    if problems := label_key(name):
        return problems
    if (
        "/" not in name
        and name not in _STANDARD_RESOURCES
        and not is_hugepages(name)
        and not name.startswith("requests.hugepages-")
    ):
        return ("must be a standard resource type or fully qualified",)
    return ()


@lru_cache(maxsize=4096)
def container_resource_name(name: str) -> Problems:
    found = resource_name(name)
    if "/" not in name:
        if name not in _CONTAINER_RESOURCES and not is_hugepages(name):
            found += ("must be a standard resource for containers",)
    elif not is_native(name) and not is_extended_resource_name(name):
        found += ("doesn't follow extended resource name standard",)
    return found


@lru_cache(maxsize=4096)
def quota_resource_name(name: str) -> Problems:
    found = resource_name(name)
    if "/" not in name and name not in _QUOTA_RESOURCES and not _is_hugepages_in_quotas(name):
        found += ("must be a standard resource for quota",)
    return found


def overcommit_allowed(name: str) -> bool:
    return is_native(name) and not is_hugepages(name)


def _is_integer_resource(name: str) -> bool:
    return name in _OBJECT_COUNT_RESOURCES or is_extended_resource_name(name)


def check_quantity(out: FieldErrorList, name: str, quantity: Quantity, path: str) -> None:
    if quantity.sign() < 0:
        out.invalid(path, str(quantity), NEGATIVE)
    if quantity.exponent < 0 and _is_integer_resource(name) and quantity.milli_value() % 1000:
        out.invalid(path, str(quantity), "must be an integer")


def check_quantities(out: FieldErrorList, amounts: Mapping[str, Any], rule: NameCheck, path: str) -> None:
    for name, text in amounts.items():
        where = f"{path}[{name}]"
        out.each_invalid(where, name, rule(name))
        check_quantity(out, name, parse_quantity(text), where)


def check_requirements(
    out: FieldErrorList, resources: Tree, claims: frozenset[str], path: str, *, whole_pod: bool = False
) -> None:
    """Check the requests, limits and claims of a container or of a whole pod."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, text in limits.items():
        _check_named(out, name, text, f"{path}.limits", whole_pod=whole_pod)
    for name, text in requests.items():
        _check_named(out, name, text, f"{path}.requests", whole_pod=whole_pod)
        _check_against_limit(out, name, text, limits.get(name), path)
    names = {**limits, **requests}
    if "cpu" not in names and "memory" not in names and any(map(is_hugepages, names)):
        out.forbidden(path, "HugePages require cpu or memory")
    if named := resources.get("claims"):
        _check_claims(out, named, claims, f"{path}.claims")


def _check_named(out: FieldErrorList, name: str, text: Any, path: str, *, whole_pod: bool) -> None:
    quantity = parse_quantity(text)
    if name in ("cpu", "memory"):
        if quantity.amount < 0:
            out.invalid(f"{path}[{name}]", str(quantity), NEGATIVE)
        return
    where = f"{path}[{name}]"
    if not whole_pod:
        out.each_invalid(where, name, container_resource_name(name))
    elif problems := resource_name(name):
        out.each_invalid(where, name, problems)
    elif not is_pod_level(name):
        out.unsupported(where, name, _POD_LEVEL_RESOURCES)
    check_quantity(out, name, quantity, where)
    if is_hugepages(name) and not _is_divisible(name, quantity):
        out.invalid(where, str(quantity), f"{quantity} is not positive integer multiple of {name}")


def _is_divisible(name: str, quantity: Quantity) -> bool:
    try:
        page = parse_quantity(name.removeprefix("hugepages-"))
    except ValueError:
        return False
    return page.sign() > 0 and quantity.value() % page.value() == 0


def _check_against_limit(out: FieldErrorList, name: str, text: Any, limit: Any, path: str) -> None:
    if limit is None:
        if not overcommit_allowed(name):
            out.required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        return
    if text == limit:
        return
    quantity, most = parse_quantity(text), parse_quantity(limit)
    order = quantity.compare(most)
    if order and not overcommit_allowed(name):
        out.invalid(f"{path}.requests", str(quantity), f"must be equal to {name} limit of {most}")
    elif order > 0:
        out.invalid(f"{path}.requests", str(quantity), f"must be less than or equal to {name} limit of {most}")


def _check_claims(out: FieldErrorList, named: list[Tree], claims: frozenset[str], path: str) -> None:
    seen: set[str] = set()
    for index, claim in enumerate(named):
        name, request, where = claim.get("name", ""), claim.get("request", ""), f"{path}[{index}]"
        if not name:
            out.required(where)
            continue
        if name in seen:
            out.duplicate(where, name)
        else:
            if request:
                out.each_invalid(f"{where}.request", request, dns_label(request))
            key = f"{name}/{request}" if request else name
            if key in seen:
                out.duplicate(where, key)
            elif not request:
                for other in seen:
                    if other.startswith(f"{name}/"):
                        out.duplicate(where, name)
            seen.add(key)
        if name not in claims:
            names = f": {', '.join(sorted(claims))}" if claims else " which is empty"
            detail = f"must be one of the names in pod.spec.resourceClaims{names}"
            out.append(FieldError(where, NOT_FOUND, quote(name), detail))
