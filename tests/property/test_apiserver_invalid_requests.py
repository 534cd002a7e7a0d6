"""Every invalid request gets a response: an object, or an error with a status code, never an unhandled exception."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.schema.crd import definitions
from bayplan.apiserver.schema.crd.custom_type import CustomResourceType
from bayplan.apiserver.schema.decoder import BuiltInReader, ExpectedKind, decode, decode_applied, normalize
from bayplan.apiserver.schema.managed_fields.server_side_apply import apply, track
from bayplan.apiserver.schema.patches import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, patch_object
from bayplan.apiserver.schema.protobuf import MAGIC, decode_protobuf
from bayplan.apiserver.schema.types import StructType, built_in_types
from support.builders.schema_requests import CASES

Tree = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"


def _type(group: str, kind: str) -> StructType:
    found = built_in_types().of(group, "v1", kind)
    assert found is not None
    return found


POD, DEFINITION = _type("", "Pod"), _type("apiextensions.k8s.io", "CustomResourceDefinition")
EXPECTED = ExpectedKind("", "v1", "Pod")
WIDGET = CustomResourceType("ex.io", "Widget", CASES["definition"]["spec"]["versions"][0])
LIVE = {"apiVersion": "v1", "kind": "Pod", **normalize(POD, CASES["live_pod"])}

_POD_WORDS = ("metadata", "spec", "containers", "name", "labels", "ports", "volumes", "status", "finalizers", "image")
_PATCH_WORDS = ("$patch", "$retainKeys", "$setElementOrder/containers", "$deleteFromPrimitiveList/finalizers", "$x/")
_WIDGET_WORDS = ("spec", "status", *WIDGET.schema["properties"]["spec"]["properties"])
_SCHEMA_WORDS = (
    *("type", "properties", "items", "default", "enum", "anyOf", "not", "required", "format", "nullable", "pattern"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations", "additionalProperties"),
)
_TEXTS = (
    "a",
    "object",
    "string",
    "array",
    "delete",
    "replace",
    "/spec/containers/0",
    "2026-01-01T00:00:00Z",
    "1Gi",
    "",
)


def trees(words: tuple[str, ...]) -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers(-5, 2**65) | st.floats(allow_nan=False) | st.sampled_from(_TEXTS)
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(words), inner, max_size=4),
        max_leaves=15,
    )


DONE = 200
ANSWERS = {DONE, *range(400, 501)}
"""Both outcomes are valid: success, or a 4xx error."""


def answer_to(run: Callable[[], Any]) -> int:
    try:
        run()
    except StatusError as refused:
        return refused.code
    return DONE


@given(trees((*_POD_WORDS, *_PATCH_WORDS)), st.sampled_from((MERGE_PATCH, STRATEGIC_PATCH)))
@settings(max_examples=80)
def test_any_merge_patch_is_answered(patch: Any, media: str) -> None:
    body = json.dumps(patch).encode()
    assert (
        answer_to(lambda: patch_object(BuiltInReader(POD, EXPECTED), LIVE, body, media, "Strict", strategic=POD))
        in ANSWERS
    )


operations = st.fixed_dictionaries(
    {},
    optional={
        "op": st.sampled_from(("add", "remove", "replace", "move", "copy", "test", "x")),
        "path": st.sampled_from(
            ("/metadata/labels/a", "/spec/containers/-", "/spec/containers/0/name", "", "x", "/q/r")
        ),
        "from": st.sampled_from(("/metadata/labels/a", "/spec", "/nope")),
        "value": trees(_POD_WORDS),
    },
)


@given(st.lists(operations | trees(_POD_WORDS), max_size=4))
@settings(max_examples=60)
def test_any_json_patch_is_answered(patch: Any) -> None:
    body = json.dumps(patch).encode()
    assert answer_to(lambda: patch_object(BuiltInReader(POD, EXPECTED), LIVE, body, JSON_PATCH, "Warn")) in ANSWERS


@given(trees(_POD_WORDS))
@settings(max_examples=60)
def test_any_applied_configuration_is_answered(tree: Any) -> None:
    given_tree = {"apiVersion": "v1", "kind": "Pod", **(tree if isinstance(tree, dict) else {"spec": tree})}

    def run() -> None:
        found = decode_applied(json.dumps(given_tree).encode(), "Strict", expected=EXPECTED)
        apply(LIVE, found.object, manager="m", force=True, api_version="v1", type=POD, now=NOW)

    assert answer_to(run) in ANSWERS


@given(trees(_WIDGET_WORDS))
@settings(max_examples=100)
def test_any_custom_resource_is_answered(tree: Any) -> None:
    made = {**(tree if isinstance(tree, dict) else {"spec": tree}), "apiVersion": "ex.io/v1", "kind": "Widget"}

    def run() -> None:
        found = WIDGET.decode(json.dumps({"metadata": {"name": "w"}, **made}).encode(), "Warn").object
        WIDGET.faults(found)
        WIDGET.faults(found, WIDGET.empty())
        track(None, found, manager="m", api_version="ex.io/v1", type=WIDGET, now=NOW)

    assert answer_to(run) in ANSWERS


@given(trees(_SCHEMA_WORDS))
@settings(max_examples=100)
def test_any_schema_of_a_definition_is_judged(schema: Any) -> None:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    tree = {**CASES["sound_definition"], "spec": {**CASES["sound_definition"]["spec"], "versions": [version]}}

    def run() -> None:
        expected = ExpectedKind("apiextensions.k8s.io", "v1", "CustomResourceDefinition")
        found = decode(DEFINITION, json.dumps(tree).encode(), "Warn", expected=expected).object
        definitions.set_crd_defaults(found)
        definitions.crd_warnings(found)
        if not definitions.validate_crd(found):
            CustomResourceType("ex.io", "Gadget", found["spec"]["versions"][0]).faults({"spec": {}})

    assert answer_to(run) in ANSWERS


@given(st.binary(max_size=60))
@settings(max_examples=100)
def test_any_protobuf_is_answered(data: bytes) -> None:
    header = b"\n\t\n\x02v1\x12\x03Pod\x12"
    assert answer_to(lambda: decode_protobuf(MAGIC + data, built_in_types())) in ANSWERS
    assert answer_to(lambda: decode_protobuf(MAGIC + header + bytes([len(data)]) + data, built_in_types())) in ANSWERS
