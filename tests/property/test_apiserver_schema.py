"""Laws of decoding, patching and applying: a diff leads to its target, and applying is idempotent.

Field sets are compared with a naive twin: plain sets of paths.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.schema.decoder import ExpectedKind, decode, normalize
from bayplan.apiserver.schema.managed_fields import field_sets
from bayplan.apiserver.schema.managed_fields.field_sets import FieldSet
from bayplan.apiserver.schema.managed_fields.merge_rules import merge_rule
from bayplan.apiserver.schema.managed_fields.server_side_apply import apply, is_no_op, track
from bayplan.apiserver.schema.managed_fields.typed_merge import compare, merge
from bayplan.apiserver.schema.patches import json_patch, merge_patch
from bayplan.apiserver.schema.strategic_merge_patch import strategic_patch
from bayplan.apiserver.schema.types import SchemaField, StructType, WireType, built_in_types

Tree = dict[str, Any]

_FOUND = built_in_types().of("", "v1", "Pod")
assert _FOUND is not None
POD: StructType = _FOUND
NOW = "2026-01-01T00:00:00Z"

names = st.sampled_from(["a", "b", "c"])
texts = st.sampled_from(["x", "y", "z"])
labels = st.dictionaries(names, texts, max_size=3)


def keyed(key: str, keys: st.SearchStrategy[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Tree]]:
    """Map lists with one key; the other fields are optional."""
    element = st.fixed_dictionaries({key: keys}, optional=fields)
    return st.lists(element, max_size=3, unique_by=lambda each: str(each[key]))


containers = keyed(
    "name",
    names,
    image=texts,
    args=st.lists(texts, max_size=2),
    env=keyed("name", names, value=texts),
    ports=keyed("containerPort", st.sampled_from([80, 81, 82]), name=texts),
    resources=st.fixed_dictionaries({}, optional={"limits": st.dictionaries(names, st.just("1"), max_size=2)}),
)
volumes = keyed("name", names, emptyDir=st.just({}), configMap=st.fixed_dictionaries({"name": texts}))
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("p")},
            optional={"labels": labels, "annotations": labels, "finalizers": st.lists(names, max_size=3, unique=True)},
        ),
        "spec": st.fixed_dictionaries(
            {"containers": containers},
            optional={
                "volumes": volumes,
                "nodeSelector": labels,
                "tolerations": st.lists(st.fixed_dictionaries({"key": names}), max_size=2),
                "priority": st.integers(0, 3),
                "hostNetwork": st.booleans(),
            },
        ),
    }
)


def applied(tree: Tree) -> Tree:
    return {"apiVersion": "v1", "kind": "Pod", **tree}


@given(pods)
def test_decoding_is_idempotent(tree: Tree) -> None:
    once = decode(POD, json.dumps(tree).encode(), "Strict", expected=ExpectedKind("", "v1", "Pod")).object
    again = decode(POD, json.dumps(once).encode(), "Strict", expected=ExpectedKind("", "v1", "Pod")).object
    assert once == again == normalize(POD, once)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*POD.fields, "x"]), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_accepted_or_refused_with_a_status(value: Any) -> None:
    assert refused_code(json.dumps(value).encode()) in (None, 400)


@given(st.binary(max_size=40))
def test_any_bytes_are_accepted_or_refused_with_a_status(body: bytes) -> None:
    assert refused_code(body) in (None, 400)
    assert refused_code(body, yaml=True) in (None, 400)


def refused_code(body: bytes, *, yaml: bool = False) -> int | None:
    try:
        decode(POD, body, "Strict", expected=ExpectedKind("", "v1", "Pod"), yaml=yaml)
    except StatusError as refused:
        return refused.code
    return None


# A diff leads to its target.


def strategic_diff(old: Tree, new: Tree, type_: StructType | None) -> Tree:
    """A patch as kubectl writes it, in the simplest form: every list with `$setElementOrder`."""
    patch: Tree = {key: None for key in old if key not in new}
    for key, value in new.items():
        field = type_.fields.get(key) if type_ is not None else None
        if key not in old:
            patch[key] = value
        elif isinstance(value, dict):
            below = field.shape.type if field is not None and field.shape.kind is WireType.STRUCT else None
            patch[key] = strategic_diff(old[key], value, below)
        elif isinstance(value, list) and field is not None and "merge" in field.strategy:
            patch |= list_diff(key, old[key], value, field)
        elif value != old[key]:
            patch[key] = value
    return patch


def list_diff(key: str, old: list[Any], new: list[Any], field: SchemaField) -> Tree:
    if not old or not new:
        return {key: new or None}
    if not field.merge_key:
        gone = [each for each in old if each not in new]
        patch = {f"$deleteFromPrimitiveList/{key}": gone} if gone else {}
        return {**patch, key: [each for each in new if each not in old], f"$setElementOrder/{key}": new}
    mine, below = {each[field.merge_key]: each for each in old}, field.shape.item
    assert below is not None
    changed = []
    for each in new:
        before = mine.get(each[field.merge_key])
        diff = (
            each
            if before is None
            else {**strategic_diff(before, each, below.type), field.merge_key: each[field.merge_key]}
        )
        if "retainKeys" in field.strategy and before is not None:
            diff = {**diff, "$retainKeys": sorted(each)}
        changed.append(diff)
    kept = {each[field.merge_key] for each in new}
    deleted = [{"$patch": "delete", field.merge_key: gone} for gone in mine if gone not in kept]
    order = [{field.merge_key: each[field.merge_key]} for each in new]
    return {key: [*changed, *deleted], f"$setElementOrder/{key}": order}


@given(pods, pods)
@settings(max_examples=60)
def test_a_strategic_patch_of_a_diff_gives_the_target(old: Tree, new: Tree) -> None:
    old, new = normalize(POD, old), normalize(POD, new)
    assert normalize(POD, strategic_patch(old, strategic_diff(old, new, POD), POD)) == new


@given(pods, pods)
@settings(max_examples=60)
def test_a_merge_patch_of_a_diff_gives_the_target(old: Tree, new: Tree) -> None:
    def diff(left: Tree, right: Tree) -> Tree:
        found: Tree = {key: None for key in left if key not in right}
        for key, value in right.items():
            both = isinstance(value, dict) and isinstance(left.get(key), dict)
            found[key] = diff(left[key], value) if both else value
        return found

    assert merge_patch(old, diff(old, new)) == new


@given(pods, pods)
@settings(max_examples=60)
def test_a_json_patch_can_replace_everything_and_leaves_the_original_alone(old: Tree, new: Tree) -> None:
    before = json.dumps(old)
    operations = [{"op": "replace", "path": f"/{key}", "value": value} for key, value in new.items()]
    assert json_patch(old, [{"op": "test", "path": "", "value": old}, *operations]) == new
    assert json.dumps(old) == before


# Server-side apply.


@given(pods, pods)
@settings(max_examples=60)
def test_apply_is_idempotent(live: Tree, tree: Tree) -> None:
    live = applied(normalize(POD, live))
    live["metadata"]["managedFields"] = track(None, live, manager="first", api_version="v1", type=POD, now=NOW)
    once = normalize(POD, apply(live, applied(tree), manager="m", force=True, api_version="v1", type=POD, now=NOW))
    again = apply(once, applied(tree), manager="m", force=False, api_version="v1", type=POD, now="2027-01-01T00:00:00Z")
    assert is_no_op(once, normalize(POD, again))


@given(pods, pods, pods)
@settings(max_examples=60)
def test_fields_dropped_by_their_only_manager_are_removed(first: Tree, second: Tree, other: Tree) -> None:
    one = apply(None, applied(first), manager="m", force=True, api_version="v1", type=POD, now=NOW)
    two = apply(one, applied(other), manager="n", force=True, api_version="v1", type=POD, now=NOW)
    three = apply(two, applied(second), manager="m", force=True, api_version="v1", type=POD, now=NOW)
    fresh = apply(None, applied(second), manager="m", force=True, api_version="v1", type=POD, now=NOW)
    for label, value in (fresh["metadata"].get("labels") or {}).items():
        assert three["metadata"]["labels"][label] == value
    held = {*(second["metadata"].get("labels") or {}), *(other["metadata"].get("labels") or {})}
    assert set(three["metadata"].get("labels") or {}) == held


@given(pods, pods)
def test_a_merge_changes_only_the_fields_of_the_patch(live: Tree, tree: Tree) -> None:
    merged = merge(live, tree, merge_rule(POD))
    assert compare(tree, merged, merge_rule(POD)).modified == {}
    assert compare(tree, merged, merge_rule(POD)).removed == {}
    assert compare(merged, merge(merged, tree, merge_rule(POD)), merge_rule(POD)) == ({}, {}, {})


# Field sets and their naive twin.

steps = st.sampled_from(["f:a", "f:b", 'k:{"n":"x"}', 'v:"y"'])
paths = st.frozensets(st.lists(steps, min_size=1, max_size=3).map(tuple), max_size=6)


def field_set(members: frozenset[tuple[str, ...]]) -> FieldSet:
    made: FieldSet = {}
    for path in members:
        one: FieldSet = {}
        for step in reversed(path):
            one = {step: one}
        made = field_sets.union(made, one)
    return made


@given(paths, paths)
@settings(max_examples=80)
def test_sets_of_fields_are_sets_of_paths(left: frozenset[tuple[str, ...]], right: frozenset[tuple[str, ...]]) -> None:
    one, other = field_set(left), field_set(right)
    assert set(field_sets.members(one)) == left
    assert set(field_sets.members(field_sets.union(one, other))) == left | right
    assert set(field_sets.members(field_sets.difference(one, other))) == left - right
    assert set(field_sets.members(field_sets.intersection(one, other))) == left & right
    below = {path for path in left if any(path[: len(gone)] == gone for gone in right)}
    assert set(field_sets.members(field_sets.remove_subtrees(one, other))) == left - below
    assert all(field_sets.has(one, list(path)) for path in left)
