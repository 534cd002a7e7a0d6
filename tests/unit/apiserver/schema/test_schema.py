"""Unit tests of the schema package: types, canonical forms, field sets, OpenAPI, custom resource definitions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.resources.kinds import BUILT_IN, ServedResource, Subresource
from bayplan.apiserver.schema import openapi
from bayplan.apiserver.schema.crd import definitions
from bayplan.apiserver.schema.crd.custom_type import CustomResourceType
from bayplan.apiserver.schema.crd.formats import has_format
from bayplan.apiserver.schema.decoder import ExpectedKind, decode, normalize
from bayplan.apiserver.schema.managed_fields import field_sets
from bayplan.apiserver.schema.managed_fields.managers import ManagedFieldSet, Manager, cap_update_managers
from bayplan.apiserver.schema.managed_fields.server_side_apply import LAST_APPLIED, apply, is_no_op, track
from bayplan.apiserver.schema.patches import json_patch, merge_patch
from bayplan.apiserver.schema.protobuf import decode_protobuf
from bayplan.apiserver.schema.scalars import (
    ScalarError,
    canonical_base64,
    canonical_micro_time,
    canonical_quantity,
    canonical_time,
)
from bayplan.apiserver.schema.strategic_merge_patch import strategic_patch
from bayplan.apiserver.schema.types import StructType, built_in_types

Tree = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"


def type_of(group: str, version: str, kind: str) -> StructType:
    found = built_in_types().of(group, version, kind)
    assert found is not None
    return found


POD = type_of("", "v1", "Pod")
CONFIG_MAP = type_of("", "v1", "ConfigMap")


# Types.


@pytest.mark.parametrize("resource", BUILT_IN, ids=lambda each: f"{each.api_version} {each.kind}")
def test_every_served_kind_has_a_type(resource: ServedResource) -> None:
    assert built_in_types().of(resource.group, resource.version, resource.kind) is not None
    for sub in resource.subresources:
        group, version = (sub.group, sub.version) if sub.version else (resource.group, resource.version)
        assert built_in_types().of(group, version, sub.kind) is not None


@pytest.mark.parametrize(
    ("path", "strategy", "key"),
    [
        ("spec.containers", "merge", "name"),
        ("spec.volumes", "merge,retainKeys", "name"),
        ("spec.tolerations", "", ""),
        ("spec.topologySpreadConstraints", "merge", "topologyKey"),
        ("spec.containers.ports", "merge", "containerPort"),
        ("spec.ephemeralContainers.env", "merge", "name"),
        ("status.conditions", "merge", "type"),
        ("metadata.finalizers", "merge", ""),
        ("metadata.ownerReferences", "merge", "uid"),
    ],
)
def test_merge_strategies_of_lists(path: str, strategy: str, key: str) -> None:
    type_, field = POD, None
    for name in path.split("."):
        field = type_.fields[name]
        shape = field.shape.item or field.shape
        type_ = shape.type if shape.kind == "struct" else type_
    assert field is not None
    assert (field.strategy, field.merge_key) == (strategy, key)


def test_an_unknown_kind_has_no_type() -> None:
    assert built_in_types().of("", "v1", "Nothing") is None
    assert "Pod" in built_in_types().kinds("", "v1")


# Canonical forms.


@pytest.mark.parametrize(
    ("given", "canonical"),
    [("0.5", "500m"), ("1000m", "1"), ("1024Mi", "1Gi"), (1, "1"), (0.1, "100m"), ("1e3", "1e3")],
)
def test_quantities_are_canonical(given: Any, canonical: str) -> None:
    assert canonical_quantity(given) == canonical


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05+02:00", "2026-01-02T01:04:05Z"),
        ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T00:04:05-01:30", "2026-01-02T01:34:05Z"),
    ],
)
def test_times_are_in_utc_and_whole_seconds(given: str, canonical: str) -> None:
    assert canonical_time(given) == canonical


def test_micro_times_keep_six_decimals() -> None:
    assert canonical_micro_time("2026-01-02T03:04:05.123456Z") == "2026-01-02T03:04:05.123456Z"
    with pytest.raises(ScalarError, match=r'cannot parse "Z" as ".000000"'):
        canonical_micro_time("2026-01-02T03:04:05Z")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-13-01T00:00:00Z", 'parsing time "2026-13-01T00:00:00Z": month out of range'),
        ("2026-02-30T00:00:00Z", 'parsing time "2026-02-30T00:00:00Z": day out of range'),
        ("2026-02-03T00:00:00Zx", 'extra text: "x"'),
    ],
)
def test_an_invalid_time_has_go_s_error(text: str, why: str) -> None:
    with pytest.raises(ScalarError) as refused:
        canonical_time(text)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("text", "byte"), [("!!!", 0), ("YQ", 0), ("YQ=", 3), ("YWJj!", 4), ("YWJjYQ", 4), ("YQ==x", 4)]
)
def test_the_base64_error_has_the_byte_position(text: str, byte: int) -> None:
    with pytest.raises(ScalarError, match=f"at input byte {byte}$"):
        canonical_base64(text)
    assert canonical_base64("YWJj\nYQ==") == "YWJjYQ=="


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date-time", "2026-01-01T00:00:00Z", "2026-01-01"),
        ("date", "2026-01-01", "2026-1-1"),
        ("ipv4", "10.0.0.1", "::1"),
        ("ipv6", "::1", "10.0.0.1"),
        ("cidr", "10.0.0.0/8", "10.0.0.0"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
        ("hostname", "a.example", "_"),
        ("uri", "https://a.example/x", "::"),
        ("email", "a@b.example", "a"),
        ("byte", "YQ==", "!"),
        ("duration", "1h30m", "soon"),
        ("mac", "00:00:5e:00:53:01", "00"),
        ("k8s-short-name", "a-b", "A"),
    ],
)
def test_formats(name: str, good: str, bad: str) -> None:
    assert has_format(good, name)
    assert not has_format(bad, name)
    assert has_format(bad, "unheard-of")


# Decoding.


def test_fields_that_go_always_writes_are_added() -> None:
    read = normalize(POD, {"spec": {"containers": [{"image": "i"}]}, "status": {"conditions": [{"type": "Ready"}]}})
    assert read["spec"]["containers"] == [{"image": "i", "name": "", "resources": {}}]
    condition = {"type": "Ready", "status": "", "lastProbeTime": None, "lastTransitionTime": None}
    assert read["status"]["conditions"] == [condition]
    assert read["metadata"] == {}


def test_a_decoded_object_shares_nothing_with_the_request() -> None:
    given = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "command": ["x"]}]}}
    read = normalize(POD, given)
    read["metadata"]["labels"]["a"] = "z"
    read["spec"]["containers"][0]["command"].append("y")
    assert given["metadata"]["labels"] == {"a": "b"}
    assert given["spec"]["containers"][0]["command"] == ["x"]


@pytest.mark.parametrize("body", [b'{"metadata":{"annotations":{"a":"x:y:z"}}}', b'{"metadata" : {"name" : "a"} }'])
def test_colons_in_strings_are_not_repeated_keys(body: bytes) -> None:
    found = decode(POD, body, "Strict", expected=ExpectedKind("", "v1", "Pod"))
    assert found.warnings == []


def test_a_repeated_key_cannot_hide_behind_an_escaped_colon() -> None:
    body = b'{"metadata":{"labels":{"a":"b","a":"c"},"annotations":{"x":"\\u003a"}}}'
    with pytest.raises(StatusError, match=r'duplicate field "metadata.labels.a"'):
        decode(POD, body, "Strict", expected=ExpectedKind("", "v1", "Pod"))


@pytest.mark.parametrize("data", [b"", b"k8s\x00", b"k8s\x00\x0a\xff", b"{}", b"k8s\x00\x0a\x06\x0a\x02v1\x12\x00"])
def test_broken_protobuf_is_refused(data: bytes) -> None:
    with pytest.raises(StatusError) as refused:
        decode_protobuf(data, built_in_types())
    assert refused.value.code == 400


# Patches.


def test_new_elements_come_first_without_an_order_and_in_their_place_with_one() -> None:
    live = {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    plain = strategic_patch(live, {"spec": {"containers": [{"name": "c"}]}}, POD)
    assert [each["name"] for each in plain["spec"]["containers"]] == ["c", "a", "b"]
    order = [{"name": "a"}, {"name": "c"}, {"name": "b"}]
    patch = {"spec": {"containers": [{"name": "c"}], "$setElementOrder/containers": order}}
    ordered = strategic_patch(live, patch, POD)
    assert [each["name"] for each in ordered["spec"]["containers"]] == ["a", "c", "b"]
    assert live == {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}


def test_retain_keys_changes_the_source_of_a_volume() -> None:
    live = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    new = {"name": "v", "hostPath": {"path": "/x"}, "$retainKeys": ["name", "hostPath"]}
    patched = strategic_patch(live, {"spec": {"volumes": [new]}}, POD)
    assert patched["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]


def test_primitive_lists_merge_and_delete_elements() -> None:
    live = {"metadata": {"finalizers": ["a", "b"]}}
    patch = {"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert sorted(strategic_patch(live, patch, POD)["metadata"]["finalizers"]) == ["b", "c"]


def test_json_patch_accepts_escapes_and_negative_indexes() -> None:
    live = {"a/b": {"~": [1, 2, 3]}}
    assert json_patch(live, [{"op": "remove", "path": "/a~1b/~0/-1"}]) == {"a/b": {"~": [1, 2]}}
    assert live == {"a/b": {"~": [1, 2, 3]}}
    with pytest.raises(StatusError):
        json_patch(live, [{"op": "remove", "path": "/a~1b/~0/9"}])


def test_merge_patch_drops_nulls_of_new_maps() -> None:
    assert merge_patch({"a": 1}, {"b": {"c": None, "d": 2}, "a": None}) == {"b": {"d": 2}}


# Managed fields.


def test_a_write_without_field_changes_adds_no_entry_and_keeps_existing_ones() -> None:
    before: Tree = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
    made = track(None, before, manager="m", api_version="v1", type=CONFIG_MAP, now=NOW)
    assert made[0]["fieldsV1"] == {"f:data": {".": {}, "f:x": {}}}
    stored = {**before, "metadata": {"name": "a", "managedFields": made}}
    again = track(stored, before, manager="n", api_version="v1", type=CONFIG_MAP, now="2027-01-01T00:00:00Z")
    assert again == made


def test_managed_fields_of_the_request_count_and_an_empty_entry_resets_them() -> None:
    live: Tree = {"metadata": {"managedFields": track_one("m", {"a": "1"})}, "data": {"a": "1"}}
    brought = {"metadata": {"managedFields": track_one("other", {"a": "1"})}, "data": {"a": "1"}}
    kept = track(live, brought, manager="x", api_version="v1", type=CONFIG_MAP, now=NOW)
    assert [each["manager"] for each in kept] == ["other"]
    reset = {"metadata": {"managedFields": [{}]}, "data": {"a": "2"}}
    assert track(live, reset, manager="x", api_version="v1", type=CONFIG_MAP, now=NOW) == []


def track_one(manager: str, data: Tree) -> list[Tree]:
    return track(None, {"metadata": {}, "data": data}, manager=manager, api_version="v1", type=CONFIG_MAP, now=NOW)


def test_scaling_adds_an_entry_without_a_time() -> None:
    deployment = type_of("apps", "v1", "Deployment")
    before: Tree = {"kind": "Deployment", "metadata": {}, "spec": {"replicas": 1}}
    before["metadata"]["managedFields"] = track(
        None, before, manager="m", api_version="apps/v1", type=deployment, now=NOW
    )
    after = {**before, "metadata": {}, "spec": {"replicas": 2}}
    made = track(before, after, manager="s", api_version="apps/v1", type=deployment, now=NOW, subresource="scale")
    assert [(each["manager"], each.get("subresource"), "time" in each) for each in made] == [("s", "scale", False)]


def test_scaling_unmanaged_replicas_adds_no_entry() -> None:
    before: Tree = {"kind": "Widget", "metadata": {}, "spec": {}}
    custom = widget({"type": "object", "properties": {"replicas": {"type": "integer"}, "s": {"type": "string"}}})
    kw: Tree = {"api_version": "ex.io/v1", "type": custom, "now": NOW}
    made = track(None, {**before, "spec": {"s": "x"}}, manager="m", **kw)
    live = {**before, "metadata": {"managedFields": made}, "spec": {"s": "x"}}
    after = {**before, "spec": {"s": "x", "replicas": 2}}
    assert track(live, after, manager="s", subresource="scale", **kw) == made


def test_kubectl_apply_takes_over_the_fields_of_its_client_side_apply() -> None:
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
    live: Tree = {**applied, "metadata": {"name": "a", "annotations": {LAST_APPLIED: json.dumps(applied)}}}
    tracked = track(None, live, manager="kubectl-client-side-apply", api_version="v1", type=CONFIG_MAP, now=NOW)
    live["metadata"]["managedFields"] = tracked
    new = {**applied, "data": {"x": "2"}}
    with pytest.raises(StatusError, match="Apply failed with 1 conflict"):
        apply(live, new, manager="other", force=False, api_version="v1", type=CONFIG_MAP, now=NOW)
    made = apply(live, new, manager="kubectl", force=False, api_version="v1", type=CONFIG_MAP, now=NOW)
    assert made["data"] == {"x": "2"}
    assert json.loads(made["metadata"]["annotations"][LAST_APPLIED]) == new


def test_more_than_ten_updaters_are_merged() -> None:
    managers = {
        Manager(f"m{at:02}", "Update", "v1"): ManagedFieldSet({f"f:{at}": {}}, "v1", f"t{at:02}") for at in range(13)
    }
    left = cap_update_managers(managers)
    assert len(left) == 10
    ancient = left[Manager("ancient-changes", "Update", "v1")]
    assert ancient.fields == {"f:0": {}, "f:1": {}, "f:2": {}, "f:3": {}}


def test_a_write_that_only_changes_times_is_a_no_op() -> None:
    entry = {"manager": "m", "operation": "Apply", "time": "1", "fieldsV1": {"f:a": {}}}
    live = {"metadata": {"name": "a", "managedFields": [entry]}, "data": {"x": "1"}}
    assert is_no_op(live, {**live, "metadata": {"name": "a", "managedFields": [{**entry, "time": "2"}]}})
    assert not is_no_op(live, {**live, "data": {"x": "2"}})


def test_paths_have_upstream_s_notation() -> None:
    text = field_sets.path_text(("f:spec", 'k:{"containerPort":80,"protocol":"TCP"}', 'v:"x"', "f:image"))
    assert text == '.spec[containerPort=80,protocol="TCP"][="x"].image'


# Custom resources.


def widget(schema: Tree, **more: Any) -> CustomResourceType:
    root = {"type": "object", "properties": {"spec": schema}}
    return CustomResourceType("ex.io", "Widget", {"name": "v1", "schema": {"openAPIV3Schema": root}, **more})


def test_transition_rules_are_skipped_without_an_old_value() -> None:
    rules = [{"rule": "self.n >= oldSelf.n", "message": "may not shrink"}]
    custom = widget({"type": "object", "properties": {"n": {"type": "integer"}}, "x-kubernetes-validations": rules})
    assert custom.faults({"spec": {"n": 1}}) == []
    assert custom.faults({"spec": {"n": 2}}, {"spec": {"n": 1}}) == []
    assert [str(each) for each in custom.faults({"spec": {"n": 0}}, {"spec": {"n": 1}})] == [
        "spec: Invalid value: may not shrink"
    ]


def test_an_unchanged_old_error_is_not_reported() -> None:
    custom = widget({"type": "object", "properties": {"n": {"type": "integer", "maximum": 5}, "s": {"type": "string"}}})
    old = {"spec": {"n": 9, "s": "a"}}
    assert custom.faults({"spec": {"n": 9, "s": "b"}}, old) == []
    assert custom.faults({"spec": {"n": 8, "s": "b"}}, old)


def test_an_object_of_another_version_is_pruned_by_this_version_s_schema() -> None:
    custom = widget({"type": "object", "properties": {"a": {"type": "string", "default": "x"}}})
    stored = {"apiVersion": "ex.io/v2", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"b": 1}}
    shown = custom.prune(stored)
    assert (shown["apiVersion"], shown["spec"]) == ("ex.io/v1", {"a": "x"})
    assert stored["spec"] == {"b": 1}


def test_a_deprecated_version_warns() -> None:
    assert widget({"type": "object"}, deprecated=True).deprecation == "ex.io/v1 Widget is deprecated"
    assert widget({"type": "object"}, deprecated=True, deprecationWarning="gone soon").deprecation == "gone soon"
    assert widget({"type": "object"}).deprecation == ""


def test_a_status_is_validated_alone() -> None:
    root = {"type": "object", "required": ["spec"], "properties": {"status": {"type": "object", "required": ["p"]}}}
    custom = CustomResourceType("ex.io", "Widget", {"name": "v1", "schema": {"openAPIV3Schema": root}})
    assert [each.field for each in custom.faults({"status": {}}, {"status": {"p": 1}}, subresource="status")] == [
        "status.p"
    ]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"plural": "gadgets", "kind": "Other"}, "PluralConflict"),
        ({"plural": "others", "kind": "Gadget"}, "KindConflict"),
        ({"plural": "others", "kind": "Other", "shortNames": ["gd"]}, "ShortNamesConflict"),
        (None, None),
    ],
)
def test_taken_names_are_not_accepted(other: Tree | None, reason: str | None) -> None:
    names = {"plural": "gadgets", "kind": "Gadget", "shortNames": ["gd"]}
    mine: Tree = {"metadata": {"name": "gadgets.ex.io"}, "spec": {"group": "ex.io", "names": names, "versions": []}}
    definitions.set_crd_defaults(mine)
    others = [{"spec": {"group": "ex.io"}, "status": {"acceptedNames": other}}] if other else []
    conditions = {each["type"]: each for each in definitions.accept_names(mine, others, NOW)["conditions"]}
    assert conditions["Established"]["status"] == ("True" if reason is None else "False")
    assert conditions["NamesAccepted"]["reason"] == (reason or "NoConflicts")


def test_a_stored_version_stays_in_the_status() -> None:
    versions = [{"name": "v1", "storage": False}, {"name": "v2", "storage": True}]
    status = definitions.initial_status({"spec": {"versions": versions}}, {"status": {"storedVersions": ["v1"]}})
    assert status["storedVersions"] == ["v1", "v2"]


# OpenAPI.

WIDGETS = ServedResource(
    group="ex.io",
    version="v1",
    kind="Widget",
    plural="widgets",
    singular="widget",
    subresources=(Subresource("status", "Widget", ("get", "patch", "update")),),
    definition={"schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}},
)


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"].rpartition("/")[2]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(each) for each in value.values())) if value else own
    return set().union(*(references(each) for each in value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("api_version", sorted({each.api_version for each in BUILT_IN}))
def test_documents_contain_all_references_and_kubectl_s_extensions(api_version: str) -> None:
    resources = [each for each in BUILT_IN if each.api_version == api_version]
    made = openapi.document(resources)
    assert references(made) <= set(made["components"]["schemas"])
    for resource in resources:
        if "patch" not in resource.verbs:
            continue
        wanted = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        patches = [each["patch"] for each in made["paths"].values() if "patch" in each]
        mine = [each for each in patches if each["x-kubernetes-group-version-kind"] == wanted]
        assert any(parameter["name"] == "fieldValidation" for parameter in mine[0]["parameters"])
        assert "application/strategic-merge-patch+json" in mine[0]["requestBody"]["content"]


def test_custom_resources_have_no_strategic_patch_and_change_the_etag() -> None:
    made = openapi.document([WIDGETS])
    schema = made["components"]["schemas"]["io.ex.v1.Widget"]
    assert set(schema["properties"]) == {"apiVersion", "kind", "metadata", "spec"}
    item = made["paths"]["/apis/ex.io/v1/namespaces/{namespace}/widgets/{name}"]
    assert "application/strategic-merge-patch+json" not in item["patch"]["requestBody"]["content"]
    paths = openapi.index({"apis/ex.io/v1": [WIDGETS]})["paths"]
    assert paths["apis/ex.io/v1"]["serverRelativeURL"].endswith(openapi.etag([WIDGETS]))
    assert openapi.etag([WIDGETS]) != openapi.etag([])
