"""Compares, merges and prunes objects by their merge rules.

The arithmetic of managed fields and server-side apply, by the rules of structured-merge-diff. `compare` skips equal
parts, so a small change to a large object is cheap. `added_fields` walks the whole value, about 30 µs for a pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from bayplan.apiserver.schema.managed_fields.field_sets import MEMBER, SELF, FieldSet, path_text
from bayplan.apiserver.schema.managed_fields.merge_rules import LEAF, ListMergeRule, MapMergeRule, MergeRule
from bayplan.codec.go_text import go_value

ABSENT: Any = object()
_encode = msgspec.json.Encoder(order="sorted").encode


class MergeError(Exception):
    """Values that do not fit the rules. The message is upstream's, with the path to the value."""


class FieldComparison(NamedTuple):
    removed: FieldSet
    modified: FieldSet
    added: FieldSet


def compare(old: dict[str, Any], new: dict[str, Any], rule: MergeRule) -> FieldComparison:
    found = FieldComparison({}, {}, {})
    _compare(old, new, rule, found.removed, found.modified, found.added)
    return found


def _compare(old: Any, new: Any, rule: MergeRule, removed: FieldSet, other: FieldSet, added: FieldSet) -> None:
    """Compare two different values, and add the fields to the sets of removed, modified and added fields."""
    fields, listed = rule.map, rule.list
    if isinstance(new, dict) and fields is not None and not fields.atomic and (old is None or isinstance(old, dict)):
        if old or new:
            _compare_maps(old or {}, new, fields, removed, other, added)
            return
    elif isinstance(old, dict) and new is None and old and fields is not None and not fields.atomic:
        _compare_maps(old, {}, fields, removed, other, added)
        return
    elif listed is not None and listed.associative and _lists(old, new):
        _compare_lists(old or [], new or [], listed, removed, other, added)
        return
    other[SELF] = MEMBER


def _lists(old: Any, new: Any) -> bool:
    """Whether both are lists or null and at least one has an element."""
    return isinstance(old, (list, type(None))) and isinstance(new, (list, type(None))) and bool(old or new)


def _compare_maps(
    old: dict[str, Any], new: dict[str, Any], rule: MapMergeRule, removed: FieldSet, other: FieldSet, added: FieldSet
) -> None:
    fields, element = rule.fields(), rule.element or LEAF
    for key, value in new.items():
        before = old.get(key, ABSENT)
        if before is value or (before == value and before is not ABSENT):
            continue
        if before is ABSENT:
            added["f:" + key] = added_fields(value, fields.get(key, element))
        else:
            _compare_step(before, value, "f:" + key, fields.get(key, element), removed, other, added)
    if len(old) and (len(old) > len(new) or not old.keys() <= new.keys()):
        for key, before in old.items():
            if key not in new:
                removed["f:" + key] = added_fields(before, fields.get(key, element))


def _compare_lists(
    old: list[Any], new: list[Any], rule: ListMergeRule, removed: FieldSet, other: FieldSet, added: FieldSet
) -> None:
    old_elements, new_elements = _index_by_step(old, rule), _index_by_step(new, rule)
    for step, values in new_elements.items():
        before = old_elements.get(step)
        if before is None:
            added[step] = added_fields(values[0], rule.item) if len(values) == 1 else MEMBER
        elif before != values:
            _compare_same_key(before, values, step, rule.item, removed, other, added)
    for step, values in old_elements.items():
        if step not in new_elements:
            removed[step] = added_fields(values[0], rule.item) if len(values) == 1 else MEMBER


def _compare_same_key(
    before: list[Any], after: list[Any], step: str, rule: MergeRule, removed: FieldSet, other: FieldSet, added: FieldSet
) -> None:
    """Compare the elements with one key; the key may be repeated on either side."""
    if len(before) == len(after) == 1:
        _compare_step(before[0], after[0], step, rule, removed, other, added)
    elif len(before) > 1 and len(after) > 1:
        other[step] = {}
    elif len(before) > 1:
        added[step] = added_fields(after[0], rule)
        removed[step] = {}
    else:
        removed[step] = added_fields(before[0], rule)
        added[step] = {}


def _compare_step(
    before: Any, value: Any, step: str, rule: MergeRule, removed: FieldSet, other: FieldSet, added: FieldSet
) -> None:
    if not isinstance(value, (dict, list)) and not isinstance(before, (dict, list)):
        other[step] = MEMBER
        return
    left: FieldSet = {}
    changed: FieldSet = {}
    found: FieldSet = {}
    _compare(before, value, rule, left, changed, found)
    if left:
        removed[step] = MEMBER if len(left) == 1 and SELF in left else left
    if changed:
        other[step] = MEMBER if len(changed) == 1 and SELF in changed else changed
    if found:
        added[step] = MEMBER if len(found) == 1 and SELF in found else found


def added_fields(value: Any, rule: MergeRule) -> FieldSet:
    """All fields of a new value, below the step that leads to it."""
    if type(value) is dict:
        below = rule.map
        if below is None or below.atomic or not value:
            return MEMBER
        steps, element = below.steps(), below.element or LEAF
        found: FieldSet = {SELF: MEMBER}
        for key, each in value.items():
            known = steps.get(key)
            if known is None:
                found["f:" + key] = added_fields(each, element)
            else:
                found[known[0]] = MEMBER if known[2] else added_fields(each, known[1])
        return found
    if type(value) is list:
        listed = rule.list
        if listed is None or not listed.associative or not value:
            return MEMBER
        found = {SELF: MEMBER}
        for each in value:
            step = element_step(each, listed)
            # An element that occurs twice is one leaf.
            found[step] = MEMBER if step in found else added_fields(each, listed.item)
        return found
    return MEMBER


def field_set(value: Any, rule: MergeRule) -> FieldSet:
    """The fields that a manager owns when it writes this value."""
    found: FieldSet = {}
    if isinstance(value, dict) and rule.map is not None:
        for key, each in value.items():
            known = rule.map.fields().get(key)
            below = _owned_fields(each, known or rule.map.element or LEAF)
            if below is None and (each is None or known is None or each == {}):
                below = {}
            elif below and known is None:
                below = {SELF: {}, **below}
            if below is not None:
                found[f"f:{key}"] = below
    elif isinstance(value, list) and rule.list is not None:
        for step, values in _index_by_step(value, rule.list).items():
            below = _owned_fields(values[0], rule.list.item) if len(values) == 1 else None
            found[step] = {SELF: {}, **below} if below else {}
    return found


def _owned_fields(value: Any, rule: MergeRule) -> FieldSet | None:
    """The fields below a step; empty for a leaf, None if there is nothing to own."""
    if value is None:
        return {} if rule.scalar and rule.map is None else None
    if isinstance(value, dict):
        if rule.map is None or rule.map.atomic:
            return {}
        return field_set(value, rule) or None
    if isinstance(value, list):
        if rule.list is None or not rule.list.associative:
            return {}
        return field_set(value, rule) or None
    return {}


# Elements of lists.


def _index_by_step(values: list[Any], rule: ListMergeRule) -> dict[str, list[Any]]:
    """The elements by their step, in order; elements with the same step are in one list."""
    found: dict[str, list[Any]] = {}
    for each in values:
        step = element_step(each, rule)
        if step in found:
            found[step].append(each)
        else:
            found[step] = [each]
    return found


def element_step(each: Any, rule: ListMergeRule) -> str:
    """For example `k:{"name":"c"}` or `v:"x"`."""
    keys = rule.keys
    if not keys:
        _check_scalar(each)
        return _value_step(each) if type(each) is str else f"v:{_encode(each).decode()}"
    if not isinstance(each, dict):
        what = "a null element" if each is None else "non-map elements"
        raise MergeError(f"associative list with keys may not have {what}")
    if len(keys) == 1:
        value = each.get(keys[0])
        if type(value) is str:
            return _key_step(keys[0], value)
    return _keys_step(each, rule)


def _keys_step(each: dict[str, Any], rule: ListMergeRule) -> str:
    found, keys = {}, rule.keys
    for key in keys:
        value = each.get(key, ABSENT)
        if value is ABSENT:
            value = rule.defaults.get(key, ABSENT)
        if value is not ABSENT:
            found[key] = value
    if not found:
        named = " ".join(f'"{key}"' for key in keys)
        raise MergeError(
            f"associative list with keys has an element that omits all key fields [{named}] "
            "(and doesn't have default values for any key fields)"
        )
    return f"k:{_encode(found).decode()}"


def _check_scalar(each: Any) -> None:
    if isinstance(each, dict):
        raise MergeError("associative list without keys has an element that's a map type")
    if isinstance(each, list):
        raise MergeError("not supported: associative list with lists as elements")
    if each is None:
        raise MergeError("associative list without keys has an element that's an explicit null")


@lru_cache(maxsize=8192)
def _key_step(key: str, value: str) -> str:
    return f"k:{_encode({key: value}).decode()}"


@lru_cache(maxsize=8192)
def _value_step(value: str) -> str:
    return f"v:{_encode(value).decode()}"


# Merging, removing and checking.


def merge(live: Any, given: Any, rule: MergeRule) -> Any:
    """The live value with the given one merged in. Either may be ABSENT."""
    if given is ABSENT:
        return live
    if isinstance(given, dict) and rule.map is not None and not rule.map.atomic:
        if not given and not live:
            return given
        live_map = live if isinstance(live, dict) else {}
        fields, element = rule.map.fields(), rule.map.element or LEAF
        merged = dict(live_map)
        for key, value in given.items():
            merged[key] = merge(live_map.get(key, ABSENT), value, fields.get(key, element))
        return merged
    if isinstance(given, list) and rule.list is not None and rule.list.associative:
        if not given and not live:
            return given
        return _merge_lists(live if isinstance(live, list) else [], given, rule.list)
    return given


def _merge_lists(live: list[Any], given: list[Any], rule: ListMergeRule) -> list[Any]:
    """The elements of both, in an order that respects both orders as far as possible."""
    live_elements, given_elements = _index_by_step(live, rule), _index_by_step(given, rule)
    left, right = [element_step(each, rule) for each in live], list(given_elements)
    shared = [step for step in right if step in live_elements]
    out: list[Any] = []
    done: set[str] = set()
    at = other = following = 0

    def emit(step: str) -> None:
        before = live_elements.get(step, [ABSENT])
        out.append(merge(before[0] if len(before) == 1 else ABSENT, given_elements[step][0], rule.item))
        done.add(step)

    while at < len(left) or other < len(right):
        if at < len(left) and other < len(right):
            if left[at] == right[other]:
                emit(left[at])
                at, other, following = at + 1, other + 1, following + 1
                continue
            if left[at] in given_elements and following < len(shared) and shared[following] != left[at]:
                at += 1
                continue
        if at < len(left):
            if left[at] not in given_elements:
                out.append(live[at])
                at += 1
                continue
            if left[at] in done:
                at += 1
        if other < len(right):
            step = right[other]
            emit(step)
            other += 1
            if following < len(shared) and shared[following] == step:
                following += 1
    return out


def remove(value: Any, removed: FieldSet, rule: MergeRule) -> Any:
    """The value without the members of the set. A map or list that becomes empty is None."""
    if isinstance(value, dict) and rule.map is not None and not rule.map.atomic:
        remaining: dict[str, Any] = {}
        for key, each in value.items():
            below = removed.get(f"f:{key}")
            if below is None:
                remaining[key] = each
            elif below and SELF not in below:
                remaining[key] = remove(each, below, rule.map.fields().get(key, rule.map.element or LEAF))
        return remaining or None
    if isinstance(value, list) and rule.list is not None and rule.list.associative:
        items = []
        for each in value:
            below = removed.get(element_step(each, rule.list))
            if below is None:
                items.append(each)
            elif below and SELF not in below:
                items.append(remove(each, below, rule.list.item))
        return items or None
    return value if rule.scalar and not isinstance(value, (dict, list)) else None


def with_parent_members(given: FieldSet, rule: MergeRule) -> FieldSet:
    """The set plus every declared field on the path to a member."""
    result: FieldSet = {}
    for step, below in given.items():
        if step == SELF or not below:
            result[step] = below
            continue
        inner = with_parent_members(below, _below(rule, step))
        if step[0] == "f" and rule.map is not None and step[2:] in rule.map.fields():
            inner = {SELF: {}, **inner}
        result[step] = inner
    return result


def _below(rule: MergeRule, step: str) -> MergeRule:
    if step[0] == "f":
        return (rule.map.fields().get(step[2:]) or rule.map.element or LEAF) if rule.map is not None else LEAF
    return rule.list.item if rule.list is not None else LEAF


def check(value: Any, rule: MergeRule) -> None:
    """Raise `MergeError` with all fields of an applied object that do not fit its type."""
    found = list(_problems(value, rule, ""))
    if found:
        raise MergeError(found[0] if len(found) == 1 else "\n  ".join(("errors:", *found)))


def _problems(value: Any, rule: MergeRule, path: str) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, dict) and rule.map is not None:
        yield from _map_problems(value, rule.map, path)
    elif isinstance(value, list) and rule.list is not None:
        yield from _list_problems(value, rule.list, path)
    elif rule.map is not None and not rule.scalar:
        yield f"{path}: expected map, got &{{{go_value(value)}}}"
    elif rule.scalar:
        yield from _scalar_problems(value, rule.scalar, path)
    else:
        yield f"{path}: expected list, got &{{{go_value(value)}}}"


def _map_problems(value: dict[str, Any], rule: MapMergeRule, path: str) -> Iterator[str]:
    for key, each in value.items():
        known = rule.fields().get(key) or rule.element
        if known is None:
            yield f"{path}.{key}: field not declared in schema"
            return  # upstream stops here too
        yield from _problems(each, known, f"{path}.{key}")


def _list_problems(values: list[Any], rule: ListMergeRule, path: str) -> Iterator[str]:
    seen = set()
    for at, each in enumerate(values):
        if not rule.associative:
            yield from _problems(each, rule.item, f"{path}[{at}]")
            continue
        try:
            step = element_step(each, rule)
        except MergeError as error:
            yield f"{path}: element {at}: {error}"
            return
        if step in seen:
            yield f"{path}: duplicate entries for key {path_text((step,))}"
        seen.add(step)
        yield from _problems(each, rule.item, path + path_text((step,)))


_GO_NAMES = {str: "string", bool: "bool", int: "int64", float: "float64", list: "[]interface {}"}


def _scalar_problems(value: Any, scalar: str, path: str) -> Iterator[str]:
    kind = type(value)
    if scalar == "numeric" and kind not in (int, float):
        yield f"{path}: expected numeric (int or float), got {_GO_NAMES.get(kind, 'map[string]interface {}')}"
    if scalar == "string" and kind is not str:
        yield f"{path}: expected string, got &value.valueUnstructured{{Value:{go_value(value)}}}"
    if scalar == "boolean" and kind is not bool:
        yield f"{path}: expected boolean, got &{{{go_value(value)}}}"
    if scalar == "untyped" and kind in (list, dict):
        yield f"{path}: expected any scalar, got &{{{go_value(value)}}}"
