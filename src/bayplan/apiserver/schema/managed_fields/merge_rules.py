"""How do values of this type merge: as one leaf, by key, as a set, or field by field?

Asked by everything around managed fields. A `MergeRule` says it for maps, lists and scalars; which of them counts is
decided by the value at hand, since some fields take anything. Rules of built-in types are made when a value first gets
there, and then kept with the type; rules of custom resources come from their schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bayplan.apiserver.schema.types import (
    UNSET,
    FieldType,
    SchemaField,
    StructType,
    WireType,
)


class ListMergeRule:
    """A list: atomic, a set of scalars (`associative` without keys) or a map by keys.

    `defaults` are of the keys that may be missing in an element.
    """

    __slots__ = ("associative", "defaults", "item", "keys")

    def __init__(
        self,
        item: MergeRule,
        associative: bool = False,
        keys: tuple[str, ...] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.item = item
        self.associative = associative
        self.keys = keys
        self.defaults = defaults or {}


class MapMergeRule:
    """A map or struct. `element` is the rule of fields that are not declared; None where there may be none."""

    __slots__ = ("_fields", "_steps", "atomic", "declared", "element")

    def __init__(
        self,
        declared: Callable[[], dict[str, MergeRule]],
        element: MergeRule | None = None,
        atomic: bool = False,
    ) -> None:
        self.declared = declared
        self.element = element
        self.atomic = atomic
        self._fields: dict[str, MergeRule] | None = None
        self._steps: dict[str, tuple[str, MergeRule, bool]] | None = None

    def fields(self) -> dict[str, MergeRule]:
        if self._fields is None:
            self._fields = self.declared()
        return self._fields

    def steps(self) -> dict[str, tuple[str, MergeRule, bool]]:
        """For each field the step to it, its rule, and whether it can only be a leaf."""
        if self._steps is None:
            self._steps = {name: (f"f:{name}", rule, rule.only_leaf) for name, rule in self.fields().items()}
        return self._steps


class MergeRule:
    """What a value may be, and how each form of it merges. `scalar` names the scalars that are allowed."""

    __slots__ = ("list", "map", "scalar")

    def __init__(self, scalar: str = "", list: ListMergeRule | None = None, map: MapMergeRule | None = None) -> None:  # noqa: A002
        self.scalar = scalar
        self.list = list
        self.map = map

    @property
    def only_leaf(self) -> bool:
        """Whether nothing below a value ever counts by itself."""
        return (self.map is None or self.map.atomic) and (self.list is None or not self.list.associative)


STRING, NUMBER, BOOLEAN, UNTYPED = "string", "numeric", "boolean", "untyped"


def _no_fields() -> dict[str, MergeRule]:
    return {}


def _untyped_rule(*, atomic: bool) -> MergeRule:
    rule = MergeRule(scalar=UNTYPED)
    rule.list = ListMergeRule(_LEAF if not atomic else rule)
    rule.map = MapMergeRule(_no_fields, rule, atomic)
    return rule


_LEAF = MergeRule(scalar=UNTYPED)
LEAF = _untyped_rule(atomic=True)
"""Anything, taken as one."""
DEDUCED = _untyped_rule(atomic=False)
"""Anything; maps merge field by field, lists are leaves."""
DEDUCED.list = ListMergeRule(LEAF)

_SCALARS = {
    WireType.STRING: MergeRule(scalar=STRING),
    WireType.BYTES: MergeRule(scalar=STRING),
    WireType.BOOL: MergeRule(scalar=BOOLEAN),
    WireType.INT32: MergeRule(scalar=NUMBER),
    WireType.INT64: MergeRule(scalar=NUMBER),
    WireType.FLOAT: MergeRule(scalar=NUMBER),
    WireType.TIME: MergeRule(scalar=UNTYPED),
    WireType.MICRO_TIME: MergeRule(scalar=UNTYPED),
    WireType.DURATION: MergeRule(scalar=UNTYPED),
    WireType.QUANTITY: MergeRule(scalar=UNTYPED),
    WireType.INT_OR_STRING: DEDUCED,
    WireType.RAW: LEAF,
    WireType.JSON: DEDUCED,
    WireType.SCHEMA_OR_ARRAY: DEDUCED,
    WireType.SCHEMA_OR_BOOL: DEDUCED,
    WireType.SCHEMA_OR_STRINGS: DEDUCED,
    WireType.FIELDS: MergeRule(map=MapMergeRule(_no_fields, DEDUCED)),
}


def merge_rule(type_: StructType) -> MergeRule:
    """The rule of a built-in type."""
    made: MergeRule | None = type_.memory.get("rule")
    if made is None:
        made = type_.memory["rule"] = MergeRule(map=MapMergeRule(lambda: _fields(type_), None, type_.atomic))
    return made


def _fields(type_: StructType) -> dict[str, MergeRule]:
    return {each.name: _field_rule(each) for each in type_.fields.values()}


def _field_rule(each: SchemaField) -> MergeRule:
    shape = each.shape
    if shape.kind is WireType.LIST:
        return MergeRule(list=_list_rule(each))
    if shape.kind is WireType.MAP:
        assert shape.item is not None
        return MergeRule(map=MapMergeRule(_no_fields, _shape_rule(shape.item), each.map_type == "atomic"))
    rule = _shape_rule(shape)
    if shape.kind is WireType.STRUCT and each.map_type and (each.map_type == "atomic") != shape.type.atomic:
        # The field overrides what its type says of itself.
        return MergeRule(map=MapMergeRule(lambda: _fields(shape.type), None, each.map_type == "atomic"))
    return rule


def _list_rule(each: SchemaField) -> ListMergeRule:
    item = each.shape.item
    assert item is not None
    rule = _shape_rule(item)
    if each.list_type == "map" or (not each.list_type and "merge" in each.strategy.split(",") and each.merge_key):
        keys = each.keys or (each.merge_key,)
        known = item.type.fields
        defaults = {key: known[key].default for key in keys if key in known and known[key].default is not UNSET}
        return ListMergeRule(rule, True, keys, defaults)
    merges = each.list_type == "set" or (not each.list_type and "merge" in each.strategy.split(","))
    return ListMergeRule(rule, merges)


def _shape_rule(shape: FieldType) -> MergeRule:
    if shape.kind is WireType.STRUCT:
        return merge_rule(shape.type)
    if shape.kind is WireType.LIST:
        assert shape.item is not None
        return MergeRule(list=ListMergeRule(_shape_rule(shape.item)))
    if shape.kind is WireType.MAP:
        assert shape.item is not None
        return MergeRule(map=MapMergeRule(_no_fields, _shape_rule(shape.item)))
    return _SCALARS[shape.kind]
