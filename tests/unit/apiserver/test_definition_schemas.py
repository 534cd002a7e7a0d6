"""Errors in the schemas of custom resources, their defaults, and sets of managed fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from bayplan.apiserver.schema.crd.definition_schemas import validate_schema
from bayplan.apiserver.schema.crd.structural_schema import apply_defaults, compile_defaults
from bayplan.apiserver.schema.managed_fields import field_sets
from bayplan.apiserver.schema.managed_fields.field_sets import FieldSet

Tree = dict[str, Any]
TEXT: Tree = {"type": "string"}
NUMBER: Tree = {"type": "integer"}
EXTENSION = "x-kubernetes-"
MAP_ITEM: Tree = {"type": "object", "properties": {"k": TEXT, "v": TEXT}, "required": ["k"]}


def list_map(keys: list[str], item: Tree) -> Tree:
    return {"type": "array", f"{EXTENSION}list-type": "map", f"{EXTENSION}list-map-keys": keys, "items": item}


def list_of_type(kind: str, **item: Any) -> Tree:
    return {"type": "array", f"{EXTENSION}list-type": kind, "items": item}


def with_extensions(kind: str, **extensions: Any) -> Tree:
    return {"type": kind, **{f"{EXTENSION}{name.replace('_', '-')}": value for name, value in extensions.items()}}


def rule(**fields: str) -> Tree:
    return {"type": "object", "properties": {"a": TEXT}, f"{EXTENSION}validations": [{"rule": "true", **fields}]}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        pytest.param(TEXT, [], id="a-text"),
        pytest.param({}, [".type: Required value: must not be empty for specified object fields"], id="no-type"),
        pytest.param({"type": "map"}, ['.type: Unsupported value: "map"'], id="unknown-type"),
        pytest.param({"type": "array"}, [".items: Required value: must be specified"], id="a-list-of-nothing"),
        pytest.param({"type": "array", "items": TEXT}, [], id="a-list"),
        pytest.param(
            {"type": "array", "items": {}},
            [".items.type: Required value: must not be empty for specified array items"],
            id="elements-without-a-type",
        ),
        pytest.param({"type": "array", "items": TEXT, "uniqueItems": True}, [".uniqueItems: Forbidden"], id="unique"),
        pytest.param({**TEXT, "pattern": "("}, [".pattern: Invalid value"], id="bad-pattern"),
        pytest.param({**TEXT, "pattern": "(a)"}, [], id="pattern"),
        pytest.param({**TEXT, "definitions": {}}, [".definitions: Forbidden"], id="an-unsupported-keyword"),
        pytest.param(
            {"type": "object", "properties": {"a": TEXT}, "additionalProperties": TEXT},
            [".additionalProperties: Forbidden"],
            id="properties-and-additional-properties",
        ),
        pytest.param({"type": "object", "additionalProperties": TEXT}, [], id="any-fields"),
        pytest.param(
            {"type": "object", "additionalProperties": {"type": "x"}},
            [".additionalProperties.type: Unsupported value"],
            id="any-fields-of-an-unknown-type",
        ),
        # Conditions
        pytest.param({**TEXT, "anyOf": [{"minLength": 1}, {"pattern": "a"}]}, [], id="conditions"),
        pytest.param(
            {**TEXT, "anyOf": [{"type": "string"}]},
            [".anyOf[0].type: Forbidden: must be empty to be structural"],
            id="a-type-in-a-condition",
        ),
        pytest.param(
            {f"{EXTENSION}int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            [],
            id="types-of-a-number-or-a-text",
        ),
        pytest.param(
            {**TEXT, "allOf": [{"anyOf": [{"title": "t"}]}]},
            [".allOf[0].anyOf[0].title: Forbidden: must be empty to be structural"],
            id="a-title-in-a-condition-in-a-condition",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": TEXT}, "not": {"properties": {"a": {"default": "x"}}}},
            [".not.properties[a].default: Forbidden"],
            id="a-default-in-a-field-of-a-negation",
        ),
        pytest.param(
            {**TEXT, "oneOf": [{"nullable": True, "additionalProperties": {}}]},
            [".oneOf[0].nullable: Forbidden: must be false", ".oneOf[0].additionalProperties: Forbidden"],
            id="null-in-a-condition",
        ),
        pytest.param({**TEXT, "oneOf": [{"nullable": False}]}, [], id="no-null-in-a-condition"),
        pytest.param(
            {**TEXT, "oneOf": [{f"{EXTENSION}list-type": "atomic"}]},
            [".oneOf[0].type: Invalid value", f".oneOf[0].{EXTENSION}list-type: Forbidden"],
            id="an-extension-in-a-condition",
        ),
        # Extensions
        pytest.param(with_extensions("object", preserve_unknown_fields=True), [], id="preserving"),
        pytest.param(
            with_extensions("object", preserve_unknown_fields=False),
            [f".{EXTENSION}preserve-unknown-fields: Inv"],
            id="not",
        ),
        pytest.param(with_extensions("object", map_type="granular"), [], id="map-type"),
        pytest.param(with_extensions("object", map_type="odd"), ["map-type: Unsupported value"], id="unknown-map-type"),
        pytest.param(with_extensions("string", map_type="atomic"), [".type: Invalid value"], id="map-type-of-a-text"),
        pytest.param(with_extensions("string", list_type="set"), [".type: Invalid value"], id="list-type-of-a-text"),
        pytest.param(list_of_type("odd", **TEXT), ["list-type: Unsupported value"], id="unknown-list-type"),
        pytest.param(
            {"type": "array", "items": TEXT, f"{EXTENSION}list-map-keys": ["a"]},
            ["list-type: Invalid value"],
            id="keys-without-a-map",
        ),
        pytest.param(
            with_extensions("object", embedded_resource=True),
            [".properties: Required value"],
            id="an-embedded-resource-without-properties",
        ),
        pytest.param(
            with_extensions("object", embedded_resource=True, preserve_unknown_fields=True), [], id="an-embedded-object"
        ),
        # Sets and maps
        pytest.param(list_of_type("set", **TEXT), [], id="set"),
        pytest.param(list_of_type("set", **TEXT, nullable=True), [".items.nullable: Forbidden"], id="set-of-nulls"),
        pytest.param(list_of_type("set", type="object"), ["items.x-kubernetes-map-type: Invalid"], id="set-of-objects"),
        pytest.param(
            list_of_type("set", **with_extensions("object", map_type="atomic")), [], id="set-of-atomic-objects"
        ),
        pytest.param(list_of_type("set", type="array", items=TEXT), [], id="set-of-lists"),
        pytest.param(
            list_of_type("set", **list_of_type("set", **TEXT)), ["items.x-kubernetes-list-type: I"], id="set-of-sets"
        ),
        pytest.param(list_map(["k"], MAP_ITEM), [], id="map"),
        pytest.param(list_map([], MAP_ITEM), ["list-map-keys: Required value"], id="map-without-keys"),
        pytest.param(list_map(["k"], TEXT), [".items.type: Invalid value"], id="map-of-texts"),
        pytest.param(list_map(["x"], MAP_ITEM), ["list-map-keys: Invalid value"], id="map-by-an-unknown-key"),
        pytest.param(list_map(["k", "k"], MAP_ITEM), ["list-map-keys: Invalid value"], id="map-by-a-key-twice"),
        pytest.param(list_map(["v"], MAP_ITEM), ["properties[v].default: Required value"], id="map-by-an-optional-key"),
        pytest.param(
            list_map(["v"], {"type": "object", "properties": {"v": {**TEXT, "default": "a"}}}), [], id="default-key"
        ),
        pytest.param(
            list_map(["k"], {"type": "object", "properties": {"k": {"type": "object"}}, "required": ["k"]}),
            ["properties[k].type: Invalid value"],
            id="map-by-an-object",
        ),
        pytest.param(
            list_map(["k"], {"type": "object", "properties": {"k": {**TEXT, "nullable": True}}, "required": ["k"]}),
            ["properties[k].nullable: Forbidden"],
            id="map-by-a-null",
        ),
        # Defaults and rules
        pytest.param({**TEXT, "default": "a"}, [], id="default"),
        pytest.param({**TEXT, "default": 1}, [".default: Invalid value"], id="default-of-another-type"),
        pytest.param(
            {"type": "object", "properties": {"b": {**NUMBER, "default": 0, "minimum": 1}}},
            [".properties[b].default: Invalid value"],
            id="default-below-a-minimum",
        ),
        pytest.param(rule(), [], id="rule"),
        pytest.param(rule(rule=" "), ["[0].rule: Required value"], id="no-rule"),
        pytest.param(rule(message=" "), ["[0].message: Invalid value"], id="blank-message"),
        pytest.param(rule(message="a\nb"), ["[0].message: Invalid value"], id="message-of-two-lines"),
        pytest.param(rule(message="a\n"), [], id="message-with-an-end"),
        pytest.param(rule(reason="FieldValueInvalid"), [], id="reason"),
        pytest.param(rule(reason="Odd"), ["[0].reason: Unsupported value"], id="unknown-reason"),
        pytest.param(rule(fieldPath=".a"), [], id="path"),
        pytest.param(rule(fieldPath="['a']"), [], id="quoted-path"),
        pytest.param(rule(fieldPath=".b"), ["[0].fieldPath: Invalid value"], id="path-to-nothing"),
        pytest.param(rule(fieldPath="a"), ["[0].fieldPath: Invalid value"], id="path-without-a-dot"),
    ],
)
def test_errors_of_a_schema(schema: Tree, expected: list[str]) -> None:
    found = list(map(str, validate_schema({"type": "object", "properties": {"f": schema}}, "s")))
    assert len(found) == len(expected), found
    assert all(text in each for each, text in zip(found, expected, strict=True)), found


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        pytest.param({"type": "object"}, [], id="an-object"),
        pytest.param({}, ["s.type: Required value: must not be empty at the root"], id="no-type"),
        pytest.param({"type": "string"}, ["s.type: Invalid value"], id="a-text"),
        pytest.param({"type": "object", "properties": {"kind": TEXT, "apiVersion": TEXT}}, [], id="a-kind"),
        pytest.param({"type": "object", "properties": {"kind": NUMBER}}, ["properties[kind].type: Inv"], id="a-number"),
        pytest.param({"type": "object", "properties": {"metadata": {"type": "object"}}}, [], id="metadata"),
        pytest.param({"type": "object", "properties": {"metadata": TEXT}}, ["[metadata].type: Inv"], id="a-text-of-it"),
        pytest.param(
            {"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": TEXT}}}},
            [],
            id="a-name",
        ),
        pytest.param(
            {"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": TEXT}}}},
            ["properties[metadata]: Forbidden"],
            id="labels",
        ),
        pytest.param(
            {"type": "object", "properties": {"metadata": {"type": "object", "nullable": True}}},
            ["properties[metadata]: Forbidden"],
            id="other-keywords-of-metadata",
        ),
    ],
)
def test_errors_of_the_root_of_a_schema(root: Tree, expected: list[str]) -> None:
    found = list(map(str, validate_schema(root, "s")))
    assert len(found) == len(expected), found
    assert all(text in each for each, text in zip(found, expected, strict=True)), found


WITH_DEFAULT: Tree = {"type": "object", "properties": {"a": {**TEXT, "default": "x"}}}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        pytest.param(WITH_DEFAULT, {}, {"a": "x"}, id="a-field"),
        pytest.param(WITH_DEFAULT, {"a": "y"}, {"a": "y"}, id="a-field-that-is-set"),
        pytest.param(WITH_DEFAULT, {"a": None}, {"a": "x"}, id="a-null"),
        pytest.param(
            {"properties": {"a": {**TEXT, "default": "x", "nullable": True}}}, {"a": None}, {"a": None}, id="null-stays"
        ),
        pytest.param({"properties": {"o": WITH_DEFAULT}}, {"o": {}}, {"o": {"a": "x"}}, id="a-field-below"),
        pytest.param({"properties": {"o": WITH_DEFAULT}}, {}, {}, id="nothing-below-what-is-not-there"),
        pytest.param({"items": WITH_DEFAULT}, [{}, {"a": "y"}], [{"a": "x"}, {"a": "y"}], id="elements"),
        pytest.param({"items": {**TEXT, "default": "x"}}, ["a", None], ["a", "x"], id="a-null-element"),
        pytest.param(
            {"items": {**TEXT, "default": "x", "nullable": True}}, ["a", None], ["a", None], id="a-null-element-stays"
        ),
        pytest.param({"additionalProperties": WITH_DEFAULT}, {"k": {}}, {"k": {"a": "x"}}, id="any-field"),
        pytest.param({"additionalProperties": {**TEXT, "default": "x"}}, {"k": None}, {"k": "x"}, id="any-null-field"),
    ],
)
def test_defaults_of_a_schema(schema: Tree, value: Any, expected: Any) -> None:
    compiled = compile_defaults(schema)
    assert compiled is not None
    apply_defaults(value, compiled)
    assert value == expected


@pytest.mark.parametrize("schema", [TEXT, {"items": TEXT}, {"properties": {"a": TEXT}}, {"additionalProperties": True}])
def test_a_schema_without_defaults_compiles_to_none(schema: Tree) -> None:
    assert compile_defaults(schema) is None


# Sets of fields: each operation is compared with the same one on plain sets of paths.

SELF: FieldSet = {".": {}}
SETS: list[FieldSet] = [
    {},
    {"f:a": {}},
    {"f:a": {}, "f:b": {}},
    {"f:a": {"f:x": {}}},
    {"f:a": {**SELF, "f:x": {}}},
    {"f:a": {"f:x": {}, "f:y": {}}, "f:b": {**SELF, "f:z": {}}},
    {"f:a": {**SELF, "f:x": {**SELF, "f:y": {}}}},
]


def paths(fields: FieldSet) -> set[tuple[str, ...]]:
    return set(field_sets.members(fields))


def is_below(path: tuple[str, ...], roots: Iterable[tuple[str, ...]]) -> bool:
    return any(path[: len(other)] == other for other in roots)


@pytest.mark.parametrize("left", SETS)
@pytest.mark.parametrize("right", SETS)
def test_operations_on_field_sets_equal_those_on_path_sets(left: FieldSet, right: FieldSet) -> None:
    left_paths, right_paths = paths(left), paths(right)
    assert paths(field_sets.union(left, right)) == left_paths | right_paths
    assert paths(field_sets.difference(left, right)) == left_paths - right_paths
    assert paths(field_sets.intersection(left, right)) == left_paths & right_paths
    assert paths(field_sets.remove_subtrees(left, right)) == {
        each for each in left_paths if not is_below(each, right_paths)
    }
    assert all(field_sets.has(left, list(each)) == (each in left_paths) for each in left_paths | right_paths)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ({}, {}),
        ({"f:a": {}}, {"f:a": {'k:{"n":1}': {"f:x": {}}, "f:y": {}}}),
        ({"f:a": {"*": {"f:x": {}}}}, {"f:a": {'k:{"n":1}': {"f:x": {}}}}),
        ({"f:a": {"f:y": {}}}, {"f:a": {"f:y": {}}}),
        ({"f:a": {"*": {"f:z": {}}}}, {}),
        ({"f:b": {"*": {}}}, {"f:b": {'v:"e"': {}}}),
    ],
)
def test_a_pattern_keeps_the_matching_fields(pattern: FieldSet, expected: FieldSet) -> None:
    fields = {"f:a": {'k:{"n":1}': {"f:x": {}}, "f:y": {}}, "f:b": {'v:"e"': {}}}
    assert field_sets.filter_by_pattern(fields, pattern) == expected


def test_members_are_sorted_by_kind_and_name() -> None:
    fields = {"i:2": {}, 'v:"b"': {}, 'k:{"n":"a"}': {}, "f:b": {}, "f:a": {**SELF, "f:c": {}}}
    texts = [field_sets.path_text(each) for each in field_sets.members(fields)]
    assert texts == [".a", ".a.c", ".b", '[n="a"]', '[="b"]', "[2]"]


def test_a_field_set_of_paths() -> None:
    assert field_sets.field_set(("metadata", "labels"), ("metadata", "name")) == {
        "f:metadata": {"f:labels": {}, "f:name": {}}
    }
