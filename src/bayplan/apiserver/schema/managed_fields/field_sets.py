"""Sets of fields, with union, difference and intersection.

A set has the form of `managedFields`: nested dicts whose keys are steps (`f:spec`, `k:{"name":"c"}`, `v:"x"`). A step
that leads to `{}` is a member; a step with more below it is a member only if it has the key `.`. The empty dict at the
top is the empty set. Sets are values: no function here changes its arguments, and results may share parts with them.
Cost: linear in the smaller set where possible.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

FieldSet = dict[str, Any]

SELF = "."
MEMBER: FieldSet = {}
"""A member without anything below it. All sets share this dict, to save memory."""


def is_valid_field_set(found: Any) -> bool:
    """Whether this is a valid set. A client can write anything in its place."""
    return isinstance(found, dict) and all(is_valid_field_set(below) for below in found.values())


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    if not left or left is right:
        return right
    return _union(left, right) if right else left


def _union(left: FieldSet, right: FieldSet) -> FieldSet:
    """The union of two sets below a step, where empty means that the step itself is a member."""
    if not left:
        return right if not right or SELF in right else {SELF: {}, **right}
    if not right:
        return left if SELF in left else {SELF: {}, **left}
    merged = dict(left)
    for step, below in right.items():
        merged[step] = _union(left[step], below) if step in left else below
    return merged


def difference(left: FieldSet, right: FieldSet) -> FieldSet:
    if not left or not right:
        return left
    return _difference(left, right) or {}


def _difference(left: FieldSet, right: FieldSet) -> FieldSet | None:
    """The difference below a step; None if it has no member, not even the step itself."""
    if not left:
        return None if not right or SELF in right else left
    if not right:
        right = {SELF: {}}
    remaining: FieldSet = {}
    for step, below in left.items():
        if step not in right:
            remaining[step] = below
        elif step != SELF:
            rest = _difference(below, right[step])
            if rest is not None:
                remaining[step] = rest
    return _normalize(remaining)


def _normalize(fields: FieldSet) -> FieldSet | None:
    """The set below a step in canonical form: a member without anything below it is empty."""
    if not fields:
        return None
    return {} if len(fields) == 1 and SELF in fields else fields


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    if not left or not right:
        return {}
    return _intersection(left, right, top=True) or {}


def _intersection(left: FieldSet, right: FieldSet, *, top: bool = False) -> FieldSet | None:
    member = not top and (not left or SELF in left) and (not right or SELF in right)
    common: FieldSet = {SELF: {}} if member else {}
    for step, below in left.items():
        if step in right and step != SELF:
            both = _intersection(below, right[step])
            if both is not None:
                common[step] = both
    return _normalize(common)


def remove_subtrees(given: FieldSet, removed: FieldSet) -> FieldSet:
    """The set without the members of the other one and everything below them."""
    return (_remove_subtrees(given, removed) or {}) if given and removed else given


def _remove_subtrees(given: FieldSet, removed: FieldSet) -> FieldSet | None:
    if not given:
        return given
    remaining: FieldSet = {}
    for step, below in given.items():
        other = removed.get(step)
        if other is None:
            remaining[step] = below
        elif other and SELF not in other:
            rest = _remove_subtrees(below, other)
            if rest is not None:
                remaining[step] = rest
    return _normalize(remaining)


def filter_by_pattern(given: FieldSet, pattern: FieldSet) -> FieldSet:
    """The part of the set at or below the pattern's paths; `*` matches any element of a list."""
    matching: FieldSet = {}
    for step, below in given.items():
        wanted = pattern.get(step)
        if wanted is None and step[:2] in ("k:", "v:"):
            wanted = pattern.get("*")
        if wanted is None:
            continue
        if not wanted:
            matching[step] = below
        elif rest := filter_by_pattern(below, wanted):
            matching[step] = rest
    return matching


def has(given: FieldSet, steps: list[str]) -> bool:
    for step in steps:
        if step not in given:
            return False
        given = given[step]
    return not given or SELF in given


def field_set(*paths: tuple[str, ...]) -> FieldSet:
    """The set of some fields, by their names: `field_set(("metadata", "labels"))`."""
    found: FieldSet = {}
    for path in paths:
        one: FieldSet = {}
        for name in reversed(path):
            one = {f"f:{name}": one}
        found = union(found, one)
    return found


def members(given: FieldSet, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all members, in upstream's order."""
    if path and (not given or SELF in given):
        yield path
    for step in sorted(given, key=_rank):
        if step != SELF:
            yield from members(given[step], (*path, step))


def _rank(step: str) -> tuple[int, str]:
    return "fkvi".find(step[0]), step


def path_text(path: tuple[str, ...]) -> str:
    """A path as messages show it: `.spec.containers[name="c"].image`."""
    return "".join(map(_step_text, path))


def _step_text(step: str) -> str:
    kind, rest = step[0], step[2:]
    if kind == "f":
        return f".{rest}"
    if kind == "v":
        return f"[={rest}]"
    if kind == "i":
        return f"[{rest}]"
    keys = json.loads(rest)
    pairs = (f"{key}={json.dumps(keys[key], ensure_ascii=False, separators=(',', ':'))}" for key in sorted(keys))
    return f"[{','.join(pairs)}]"
