"""Validation of objects from files: the checks of an API server that scheduling depends on.

Objects from files have not passed an API server. This module finds invalid quantities, negative or excessive amounts,
numbers out of range, unknown enum values and pods without containers. Checks that follow from the type of a field cover
every quantity and every integer of every kind; the tables below add the rest. Called by `defaults.with_all_defaults`
once per object; cost: about ten microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from bayplan.codec.quantity import Quantity, QuantityError, QuantityText, parse_quantity
from bayplan.errors import ObjectError
from bayplan.objects import core, meta, resource, storage, volumes, workloads
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano import types as volcano

Check = Callable[[Any, str], Iterator[str]]
"""Checks a value at a path of the object, and yields the errors."""

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)
HIGHEST_USER_DEFINABLE_PRIORITY = 1_000_000_000

_QUANTITY_TYPES = frozenset(get_args(QuantityText))
_MAX_QUANTITY = Quantity.of(INT64[1])
_MAX_CPU_QUANTITY = Quantity.of_milli(INT64[1])


def check_object(item: KubeObject) -> None:
    """Raise `ObjectError` with the first error of the object, its field and a remedy."""
    for problem in object_errors(item):
        name = f' "{item.name}"' if item.name else ""
        raise ObjectError(f"{kind_of(type(item)).name}{name}: {problem}")


def object_errors(item: KubeObject) -> Iterator[str]:
    return _check_struct(item, "")


# Checks by field type.


def _check_struct(value: msgspec.Struct, where: str) -> Iterator[str]:
    for attribute, name, checks in _fields_with_checks(type(value)):
        content = getattr(value, attribute)
        place = f"{where}.{name}" if where else name
        for each in checks:
            yield from each(content, place)
    whole = _STRUCT_CHECKS.get(type(value))
    if whole is not None:
        yield from whole(value, where)


@cache
def _fields_with_checks(struct: type[msgspec.Struct]) -> tuple[tuple[str, str, tuple[Check, ...]], ...]:
    """The fields with checks: attribute, name in the file, checks. The check of the field itself comes first."""
    found = []
    for field in msgspec.structs.fields(struct):
        checks = tuple(
            each for each in (_FIELD_CHECKS.get((struct, field.name)), _check_for_type(field.type)) if each is not None
        )
        if checks:
            found.append((field.name, field.encode_name, checks))
    return tuple(found)


def _check_for_type(hint: Any) -> Check | None:
    """The check for a type; None if every decoded value of the type is valid."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        members = [each for each in arguments if each is not NoneType]
        if _QUANTITY_TYPES.issuperset(members) and len(members) == len(_QUANTITY_TYPES):
            return _check_quantity
        return _optional(_check_for_type(members[0])) if len(members) == 1 else None
    if origin is tuple:
        return _each_item(_check_for_type(arguments[0]))
    if origin is dict:
        return _each_value(_check_for_type(arguments[1]))
    if hint is int:
        return _in_range(*INT64)
    is_struct = isinstance(hint, type) and issubclass(hint, msgspec.Struct) and _has_checks(hint)
    return _check_struct if is_struct else None


def _has_checks(struct: type[msgspec.Struct]) -> bool:
    return struct in _STRUCT_CHECKS or bool(_fields_with_checks(struct))


def _optional(inner: Check | None) -> Check | None:
    if inner is None:
        return None

    def check_unless_absent(value: Any, where: str) -> Iterator[str]:
        return inner(value, where) if value is not None else iter(())

    return check_unless_absent


def _each_item(inner: Check | None) -> Check | None:
    if inner is None:
        return None

    def check_each(value: Any, where: str) -> Iterator[str]:
        for position, item in enumerate(value):
            yield from inner(item, f"{where}[{position}]")

    return check_each


def _each_value(inner: Check | None) -> Check | None:
    if inner is None:
        return None

    def check_each_value(value: Any, where: str) -> Iterator[str]:
        for key, item in value.items():
            yield from inner(item, f"{where}.{key}")

    return check_each_value


def _check_quantity(value: Any, where: str) -> Iterator[str]:
    if value is None:
        return
    try:
        parse_quantity(value)
    except QuantityError as fault:
        yield f'{where}: "{value}" is not a quantity ({fault.reason}); write it like 500m, 2 or 4Gi'


# Checks of single fields.


def _check_amounts(value: Any, where: str) -> Iterator[str]:
    """Amounts of resources must not be negative or larger than the columns' integers."""
    for name, text in (value or {}).items():
        yield from _check_amount(text, f"{where}.{name}", most=_MAX_CPU_QUANTITY if name == "cpu" else _MAX_QUANTITY)


def _check_size(value: Any, where: str) -> Iterator[str]:
    return _check_amount(value, where, most=_MAX_QUANTITY) if value is not None else iter(())


def _check_amount(text: Any, where: str, *, most: Quantity) -> Iterator[str]:
    try:
        quantity = parse_quantity(text)
    except QuantityError:
        return  # `_check_quantity` reports it
    if quantity.sign() < 0:
        yield f'{where}: "{text}" is negative; write zero or more'
    elif quantity.compare(most) > 0:
        yield f'{where}: "{text}" is too large; write at most {most}'


def _in_range(least: int, most: int) -> Check:
    def check_range(value: Any, where: str) -> Iterator[str]:
        if value is not None and not least <= value <= most:
            yield f"{where}: {value} is out of range; write a number from {least} to {most}"

    return check_range


def _enum(*words: str, optional: bool = False) -> Check:
    """The value must be one of the words; with `optional` it may be empty."""

    def check_word(value: Any, where: str) -> Iterator[str]:
        if value is None or value in words or (optional and not value):
            return
        error = f'"{value}" is not known' if value else "the value is missing"
        yield f"{where}: {error}; write {_alternatives_text(words)}"

    return check_word


def _alternatives_text(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _required_check(what: str) -> Check:
    def check_some(value: Any, where: str) -> Iterator[str]:
        if not value:
            yield f"{where}: the list is empty; a pod needs at least one {what}"

    return check_some


_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PREEMPTION = _enum("PreemptLowerPriority", "Never", optional=True)
_INCLUSION = _enum("Honor", "Ignore")
_PORT = _in_range(0, 65535)
_WEIGHT = _in_range(1, 100)
_POSITIVE = _in_range(1, INT32[1])
_NON_NEGATIVE = _in_range(0, INT32[1])
_MODE = _enum("Filesystem", "Block")
_ACCESS = _each_item(_enum("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"))
_ALLOCATION = _enum("ExactCount", "All", optional=True)
_COUNT = _in_range(0, INT64[1])
assert _ACCESS is not None

_FIELD_CHECKS: Mapping[tuple[type[msgspec.Struct], str], Check] = {
    (core.ResourceRequirements, "requests"): _check_amounts,
    (core.ResourceRequirements, "limits"): _check_amounts,
    (core.PodSpec, "overhead"): _check_amounts,
    (core.PodSpec, "containers"): _required_check("container"),
    (core.PodSpec, "priority"): _in_range(*INT32),
    (core.PodSpec, "preemption_policy"): _PREEMPTION,
    (core.NodeStatus, "allocatable"): _check_amounts,
    (core.NodeStatus, "capacity"): _check_amounts,
    (core.Container, "restart_policy"): _enum("Always", "OnFailure", "Never"),
    (core.ContainerPort, "container_port"): _PORT,
    (core.ContainerPort, "host_port"): _PORT,
    (core.ContainerPort, "protocol"): _enum("TCP", "UDP", "SCTP", optional=True),
    (core.Taint, "effect"): _enum(*_EFFECTS),
    (core.Toleration, "effect"): _enum(*_EFFECTS, optional=True),
    (core.Toleration, "operator"): _enum("Equal", "Exists", optional=True),
    (core.TopologySpreadConstraint, "max_skew"): _POSITIVE,
    (core.TopologySpreadConstraint, "min_domains"): _POSITIVE,
    (core.TopologySpreadConstraint, "when_unsatisfiable"): _enum("DoNotSchedule", "ScheduleAnyway"),
    (core.TopologySpreadConstraint, "node_affinity_policy"): _INCLUSION,
    (core.TopologySpreadConstraint, "node_taints_policy"): _INCLUSION,
    (core.PreferredSchedulingTerm, "weight"): _WEIGHT,
    (core.WeightedPodAffinityTerm, "weight"): _WEIGHT,
    (volumes.VolumeResources, "requests"): _check_amounts,
    (volumes.VolumeResources, "limits"): _check_amounts,
    (volumes.PersistentVolumeClaimSpec, "access_modes"): _ACCESS,
    (volumes.PersistentVolumeClaimSpec, "volume_mode"): _MODE,
    (storage.PersistentVolumeSpec, "capacity"): _check_amounts,
    (storage.PersistentVolumeSpec, "access_modes"): _ACCESS,
    (storage.PersistentVolumeSpec, "volume_mode"): _MODE,
    (storage.StorageClass, "volume_binding_mode"): _enum("Immediate", "WaitForFirstConsumer"),
    (storage.CsiStorageCapacity, "capacity"): _check_size,
    (storage.CsiStorageCapacity, "maximum_volume_size"): _check_size,
    (storage.VolumeNodeResources, "count"): _in_range(*INT32),
    (resource.ExactDeviceRequest, "allocation_mode"): _ALLOCATION,
    (resource.ExactDeviceRequest, "count"): _COUNT,
    (resource.DeviceSubRequest, "allocation_mode"): _ALLOCATION,
    (resource.DeviceSubRequest, "count"): _COUNT,
    (resource.DeviceToleration, "operator"): _enum("Equal", "Exists", optional=True),
    (workloads.PriorityClass, "preemption_policy"): _PREEMPTION,
    (workloads.PriorityClass, "value"): _in_range(*INT32),
    (workloads.PodDisruptionBudgetStatus, "disruptions_allowed"): _in_range(*INT32),
    (workloads.GangPolicy, "min_count"): _POSITIVE,
    (volcano.PodGroupSpec, "min_member"): _NON_NEGATIVE,
    (volcano.PodGroupSpec, "min_resources"): _check_amounts,
    (volcano.SubGroupPolicy, "sub_group_size"): _POSITIVE,
    (volcano.SubGroupPolicy, "min_sub_groups"): _NON_NEGATIVE,
    (volcano.NetworkTopology, "mode"): _enum(volcano.HARD, volcano.SOFT, optional=True),
    (volcano.NetworkTopology, "highest_tier_allowed"): _NON_NEGATIVE,
    (volcano.QueueSpec, "weight"): _in_range(0, 65535),
    (volcano.QueueSpec, "priority"): _NON_NEGATIVE,
    (volcano.QueueSpec, "capability"): _check_amounts,
    (volcano.QueueSpec, "deserved"): _check_amounts,
    (volcano.QueueSpec, "dequeue_strategy"): _enum("fifo", "traverse", optional=True),
    (volcano.Guarantee, "resource"): _check_amounts,
    (volcano.MemberSpec, "type"): _enum("Node", "HyperNode"),
    (volcano.HyperNodeSpec, "tier"): _NON_NEGATIVE,
}
"""The checks of single fields, besides those by type."""


# Checks of several fields.


def _check_node_requirement(value: core.NodeSelectorRequirement, where: str) -> Iterator[str]:
    return _check_requirement(value, where, ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))


def _check_label_requirement(value: meta.LabelSelectorRequirement, where: str) -> Iterator[str]:
    return _check_requirement(value, where, ("In", "NotIn", "Exists", "DoesNotExist"))


def _check_requirement(
    value: core.NodeSelectorRequirement | meta.LabelSelectorRequirement, where: str, operators: tuple[str, ...]
) -> Iterator[str]:
    yield from _enum(*operators)(value.operator, f"{where}.operator")
    many = len(value.values)
    if value.operator in ("In", "NotIn") and not many:
        yield f"{where}.values: the list is empty; operator {value.operator} needs at least one value"
    elif value.operator in ("Exists", "DoesNotExist") and many:
        yield f"{where}.values: operator {value.operator} takes no values; remove them"
    elif value.operator in ("Gt", "Lt") and many != 1:
        yield f"{where}.values: {many} values; operator {value.operator} needs exactly one"


def _check_toleration(value: core.Toleration, where: str) -> Iterator[str]:
    if not value.key and value.operator != "Exists":
        yield f"{where}.key: missing; write a key, or tolerate every taint with operator Exists"
    if value.operator == "Exists" and value.value:
        yield f"{where}.value: operator Exists takes no value; remove it"


def _check_priority_class(value: workloads.PriorityClass, where: str) -> Iterator[str]:  # noqa: ARG001
    if value.value > HIGHEST_USER_DEFINABLE_PRIORITY and not value.name.startswith("system-"):
        yield (f"value: {value.value} is reserved for system classes; write at most {HIGHEST_USER_DEFINABLE_PRIORITY}")


_STRUCT_CHECKS: Mapping[type[msgspec.Struct], Check] = {
    core.NodeSelectorRequirement: _check_node_requirement,
    core.Toleration: _check_toleration,
    meta.LabelSelectorRequirement: _check_label_requirement,
    workloads.PriorityClass: _check_priority_class,
}
