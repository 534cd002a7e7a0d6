"""Merge rules of types: as one leaf, by key, as a set, or field by field.

Used by all code for managed fields. A `MergeRule` has a rule for maps, one for lists and one for scalars; the value at
hand decides which of them applies, since some fields take any value. Rules of built-in types are built on first use and
cached with the type. Rules of custom resources come from their schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bayplan.apiserver.schema.types import UNSET, FieldType, SchemaField, StructType, WireType


class ListMergeRule:
    """A list: atomic, a set of scalars (`associative` without keys) or a map by keys.

    `defaults` are the values of keys that an element may omit.
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
    """A map or struct. `element` is the rule of undeclared fields, None where there may be none."""

    __slots__ = ("_fields", "_steps", "atomic", "declared", "element")

    def __init__(
        self, declared: Callable[[], dict[str, MergeRule]], element: MergeRule | None = None, atomic: bool = False
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
    """The forms that a value may have, and how each form merges. `scalar` names the allowed scalars."""

    __slots__ = ("list", "map", "scalar")

    def __init__(self, scalar: str = "", list: ListMergeRule | None = None, map: MapMergeRule | None = None) -> None:  # noqa: A002
        self.scalar = scalar
        self.list = list
        self.map = map

    @property
    def only_leaf(self) -> bool:
        """Whether the parts of a value are never managed on their own."""
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
"""Any value, managed as a whole."""
DEDUCED = _untyped_rule(atomic=False)
"""Any value. Maps merge field by field; lists are leaves."""
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
    rule: MergeRule | None = type_.memory.get("rule")
    if rule is None:
        rule = type_.memory["rule"] = MergeRule(map=MapMergeRule(lambda: _fields(type_), None, type_.atomic))
    return rule


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
        # The attributes of the field override those of its type.
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
