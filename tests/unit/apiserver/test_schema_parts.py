"""Parts of the schema package: protobuf bodies, CEL values, removed field sets, bodies without a kind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.resources.kinds import ResourceRegistry
from bayplan.apiserver.schema.crd.custom_type import CustomResourceType
from bayplan.apiserver.schema.crd.validation_rules import cel_value
from bayplan.apiserver.schema.managed_fields.merge_rules import merge_rule
from bayplan.apiserver.schema.managed_fields.typed_merge import merge, remove
from bayplan.apiserver.schema.protobuf import decode_protobuf
from bayplan.apiserver.schema.types import StructType, built_in_types
from bayplan.apiserver.storage.stored_objects import make_stored_object
from bayplan.apiserver.writes.deletion import CRD_CLEANUP_FINALIZER, DeleteOptions, begin_deletion

Tree = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def type_of(kind: str) -> StructType:
    found = built_in_types().of("", "v1", kind)
    assert found is not None
    return found


# Protobuf


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def body(api_version: str, kind: str, raw: bytes) -> bytes:
    head = field(1, api_version.encode()) + field(2, kind.encode())
    return b"k8s\0" + field(1, head) + field(2, raw)


def moment(seconds: int, nanos: int = 0) -> bytes:
    return field(1, seconds) + (field(2, nanos) if nanos else b"")


def test_times_in_a_protobuf_body() -> None:
    metadata = field(1, b"l") + field(3, b"default") + field(8, moment(1_700_000_000, 999))
    spec = field(1, b"me") + field(2, 300) + field(3, moment(1_700_000_000, 123_456_789)) + field(5, 0)
    api_version, kind, tree = decode_protobuf(
        body("coordination.k8s.io/v1", "Lease", field(1, metadata) + field(2, spec)), built_in_types()
    )
    assert (api_version, kind) == ("coordination.k8s.io/v1", "Lease")
    assert tree["metadata"]["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert tree["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 300,
        "acquireTime": "2023-11-14T22:13:20.123456Z",
        "leaseTransitions": 0,
    }


def test_maps_and_bytes_in_a_protobuf_body() -> None:
    pairs = field(2, field(1, b"a") + field(2, b"1")) + field(2, field(1, b"b") + field(2, b"2"))
    binary = field(3, field(1, b"c") + field(2, b"\xff"))
    _, _, tree = decode_protobuf(body("v1", "ConfigMap", pairs + binary + field(4, 1)), built_in_types())
    assert (tree["data"], tree["binaryData"], tree["immutable"]) == ({"a": "1", "b": "2"}, {"c": "/w=="}, True)


# CEL values


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("YQ==", {"type": "string", "format": "byte"}, b"a"),
        ("YQ", {"type": "string", "format": "byte"}, "YQ"),
        ("a", {"type": "string"}, "a"),
        ("soon", {"type": "string", "format": "date-time"}, "soon"),
        (1, {"type": "integer"}, 1),
        (1, {"type": "number"}, 1.0),
        (True, {"type": "number"}, True),
        ([1], {"type": "array", "items": {"type": "number"}}, (1.0,)),
    ],
)
def test_cel_values(value: Any, schema: Tree, expected: Any) -> None:
    found = cel_value(value, schema)
    assert (found, type(found) is float) == (expected, type(expected) is float)


@pytest.mark.parametrize(
    ("rule", "field", "holds"),
    [
        ("self.t == timestamp('2026-01-01T00:00:00Z')", {"format": "date-time"}, True),
        ("self.t > timestamp('2026-01-01T00:00:00Z')", {"format": "date-time"}, False),
        ("self.t == '2026-01-01T00:00:00Z'", {}, True),
        ("self.t != '2026-01-01T00:00:00Z'", {}, False),
    ],
)
def test_a_date_time_field_is_a_cel_timestamp(rule: str, field: Tree, holds: bool) -> None:
    errors = custom_type_with_rule(rule, **field).faults({"spec": {"t": "2026-01-01T00:00:00Z"}})
    assert (errors == []) == holds, errors


GOOD = {"date-time": "2026-01-01T00:00:00Z", "date": "2026-01-01", "duration": "1s", "byte": "YQ=="}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("new_is_valid", [True, False])
def test_an_invalid_old_value_does_not_stop_a_transition_rule(name: str, new_is_valid: bool) -> None:
    custom = custom_type_with_rule("self.n > oldSelf.n", format=name)
    old = {"spec": {"t": "!", "n": 1}}
    text = GOOD[name] if new_is_valid else "!"
    assert custom.faults({"spec": {"t": text, "n": 2}}, old) == []
    assert [each.detail for each in custom.faults({"spec": {"t": text, "n": 1}}, old)] == [
        "failed rule: self.n > oldSelf.n"
    ]


def custom_type_with_rule(rule: str, **field: str) -> CustomResourceType:
    """A custom resource with a text `t`, a number `n` and a validation rule."""
    properties = {"t": {"type": "string", **field}, "n": {"type": "integer"}}
    spec = {"type": "object", "properties": properties, "x-kubernetes-validations": [{"rule": rule}]}
    root = {"type": "object", "properties": {"spec": spec}}
    return CustomResourceType("ex.io", "Widget", {"name": "v1", "schema": {"openAPIV3Schema": root}})


# Removal and merge of fields


@pytest.mark.parametrize(
    ("kind", "value", "removed", "remaining"),
    [
        ("ConfigMap", {"data": {"a": "1", "b": "2"}}, {"f:data": {"f:a": {}}}, {"data": {"b": "2"}}),
        ("ConfigMap", {"data": {"a": "1"}}, {"f:data": {"f:a": {}}}, {"data": None}),
        ("ConfigMap", {"data": {"a": "1"}, "kind": "k"}, {"f:data": {".": {}, "f:a": {}}}, {"kind": "k"}),
        ("ConfigMap", {"kind": "k"}, {"f:kind": {"f:x": {}}}, {"kind": "k"}),
        ("ConfigMap", {"kind": "k"}, {"f:kind": {}}, None),
        ("ConfigMap", {"immutable": True}, {"f:data": {}}, {"immutable": True}),
        (
            "Pod",
            {"metadata": {"finalizers": ["a", "b"]}},
            {"f:metadata": {"f:finalizers": {'v:"a"': {}}}},
            {"metadata": {"finalizers": ["b"]}},
        ),
        (
            "Pod",
            {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}},
            {"f:spec": {"f:containers": {'k:{"name":"a"}': {}}}},
            {"spec": {"containers": [{"name": "b"}]}},
        ),
        (
            "Pod",
            {"spec": {"containers": [{"name": "a", "image": "i"}]}},
            {"f:spec": {"f:containers": {'k:{"name":"a"}': {"f:image": {}}}}},
            {"spec": {"containers": [{"name": "a"}]}},
        ),
        (
            "Pod",
            {"spec": {"containers": [{"name": "a", "command": ["x"]}]}},
            {"f:spec": {"f:containers": {'k:{"name":"a"}': {"f:command": {"v:x": {}}}}}},
            {"spec": {"containers": [{"name": "a", "command": None}]}},
        ),
    ],
)
def test_removal_of_a_field_set(kind: str, value: Tree, removed: Tree, remaining: Tree | None) -> None:
    assert remove(value, removed, merge_rule(type_of(kind))) == remaining


@pytest.mark.parametrize(
    ("live", "applied", "merged"),
    [
        ("a b c", "c a", "b c a"),
        ("a b", "b a", "b a"),
        ("a b", "c", "a b c"),
        ("a b", "c a", "c a b"),
        ("", "b a", "b a"),
        ("a b", "", "a b"),
        ("a x b", "a b", "a x b"),
    ],
)
def test_merged_list_elements_have_the_applied_order(live: str, applied: str, merged: str) -> None:
    def pod(names: str) -> Tree:
        return {"spec": {"containers": [{"name": each} for each in names.split()]}}

    found = merge(pod(live), pod(applied), merge_rule(type_of("Pod")))
    assert " ".join(each["name"] for each in found["spec"]["containers"]) == merged


# Bodies, stored objects, deletions


@pytest.mark.parametrize(("size", "is_cut"), [(30, False), (31, True)])
def test_the_error_for_a_body_without_a_kind_shows_its_start(size: int, is_cut: bool) -> None:
    custom = CustomResourceType("ex.io", "Widget", {"name": "v1", "schema": {"openAPIV3Schema": {"type": "object"}}})
    raw = b'{"apiVersion":"ex.io/v1"}'.ljust(size)
    with pytest.raises(StatusError) as raised:
        custom.decode(raw, "Ignore")
    start = raw[:30].decode()
    assert raised.value.message.endswith(f"({start} ...)" if is_cut else f"({start})")


def test_states_of_an_object_share_unchanged_labels() -> None:
    tree = {"metadata": {"name": "a", "uid": "u", "labels": {"a": "b"}}}
    first = make_stored_object(tree, 1)
    second = make_stored_object(tree, 2, None, first)
    assert second.labels is first.labels
    third = make_stored_object({"metadata": {"name": "a", "uid": "u", "labels": {"a": "c"}}}, 3, None, second)
    assert third.labels == {"a": "c"}


def test_a_deleted_definition_gets_the_cleanup_finalizer() -> None:
    resource = ResourceRegistry().built_in("CustomResourceDefinition", "apiextensions.k8s.io")
    tree: Tree = {"metadata": {"name": "d", "uid": "u"}}
    assert begin_deletion(resource, tree, DeleteOptions(), NOW) == ("marked", True)
    assert tree["metadata"]["finalizers"] == [CRD_CLEANUP_FINALIZER]
    assert begin_deletion(resource, tree, DeleteOptions(), NOW) == ("unchanged", True)
    del tree["metadata"]["finalizers"]
    assert begin_deletion(resource, tree, DeleteOptions(), NOW) == ("removed", False)
