"""Decoding, patching, server-side apply, custom resources and definitions, compared with a real API server."""

from __future__ import annotations

import base64
import json
import lzma
import re
from copy import deepcopy
from typing import Any

import pytest

from bayplan.apiserver.api_errors import StatusError, invalid
from bayplan.apiserver.schema.crd import definitions
from bayplan.apiserver.schema.crd.custom_type import CustomResourceType
from bayplan.apiserver.schema.decoder import (
    BuiltInReader,
    DecodedObject,
    ExpectedKind,
    Validation,
    decode,
    decode_applied,
    normalize,
)
from bayplan.apiserver.schema.managed_fields.server_side_apply import apply, track
from bayplan.apiserver.schema.patches import patch_object
from bayplan.apiserver.schema.protobuf import decode_protobuf
from bayplan.apiserver.schema.types import StructType, built_in_types
from support.builders.schema_requests import (
    APPLY,
    CASES,
    KINDS,
    RECORDING,
    STRATEGIC,
    YAML,
    History,
    SchemaRequest,
    Write,
    schema_requests,
)

Tree = dict[str, Any]

RECORDED: Tree = json.loads(lzma.decompress(RECORDING.read_bytes()))
RECORDED_REQUESTS = list(zip(schema_requests(), RECORDED["answers"], strict=True))
WIDGET = CustomResourceType("ex.io", "Widget", CASES["definition"]["spec"]["versions"][0])
NOW = "2026-01-01T00:00:00Z"
EXPECTED = {
    "pods": ExpectedKind("", "v1", "Pod"),
    "secrets": ExpectedKind("", "v1", "Secret"),
    "leases": ExpectedKind("coordination.k8s.io", "v1", "Lease"),
    "configmaps": ExpectedKind("", "v1", "ConfigMap"),
    "customresourcedefinitions": ExpectedKind("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
}


def type_of(expected: ExpectedKind) -> StructType:
    found = built_in_types().of(expected.group, expected.version, expected.kind)
    assert found is not None
    return found


def recorded_cases(topic: str) -> list[Any]:
    """The recorded requests of a topic with their responses."""
    cases = [(sent, response) for sent, response in RECORDED_REQUESTS if sent.topic == topic]
    return [pytest.param(*case, id=f"{number}-{case[0].body[:60]}") for number, case in enumerate(cases)]


def run_request(sent: SchemaRequest) -> tuple[StatusError | None, DecodedObject | None]:
    try:
        return None, decode_request(sent)
    except StatusError as error:
        return error, None


def decode_request(sent: SchemaRequest) -> DecodedObject:
    validation: Validation = sent.validation  # type: ignore[assignment]
    body, plural = sent.body.encode(), sent.path.split("/")[-1 if sent.method == "POST" else -2]
    if sent.topic == "custom":
        return decode_custom_resource(body, validation)
    expected = EXPECTED[plural]
    type_ = type_of(expected)
    if sent.media == APPLY:
        found = decode_applied(body, "Ignore", expected=expected)
        apply(None, found.object, manager="m1", force=False, api_version=expected.api_version, type=type_, now=NOW)
        return decode_applied(body, validation, expected=expected)
    if sent.method == "PATCH":
        strategic = type_ if sent.media == STRATEGIC else None
        reader = BuiltInReader(type_, expected)
        return patch_object(reader, RECORDED["live"], body, sent.media, validation, strategic=strategic)
    found = decode(type_, body, validation, expected=expected, yaml=sent.media == YAML)
    return validate_definition(found) if sent.topic == "definitions" else found


def decode_custom_resource(body: bytes, validation: Validation) -> DecodedObject:
    found = WIDGET.decode(body, validation)
    found.object.pop("status", None)
    if faults := WIDGET.faults(found.object):
        raise invalid("Widget", "ex.io", found.object["metadata"].get("name", ""), faults)
    return found


def validate_definition(found: DecodedObject) -> DecodedObject:
    tree = found.object
    definitions.set_crd_defaults(tree)
    tree["status"] = definitions.initial_status(tree)
    if faults := definitions.validate_crd(tree):
        raise invalid("CustomResourceDefinition", "apiextensions.k8s.io", tree["metadata"].get("name", ""), faults)
    return DecodedObject(tree, found.warnings + definitions.crd_warnings(tree))


def message_parts(message: str) -> list[str]:
    """The errors in a message, sorted: upstream iterates over maps in random order."""
    head, _, listed = message.partition(" is invalid: ")
    return [head, *sorted(re.split(r", (?=[\w.<>\[\]-]+: [A-Z])", listed.strip("[]")))]


LATER_ERRORS = ("is invalid: ", "does not match the name", "was undeterminable", "uid mismatch", "the object has been")
"""Errors that the server finds after decoding: validation and lookups, which these tests do not run."""


@pytest.mark.parametrize(("sent", "response"), recorded_cases("decoding") + recorded_cases("applying"))
def test_bodies_are_decoded_or_refused_as_by_upstream(sent: SchemaRequest, response: Tree) -> None:
    error, found = run_request(sent)
    if response["code"] >= 300 and error is None:
        assert any(each in response["message"] for each in LATER_ERRORS)
    elif response["code"] >= 300:
        assert error is not None
        assert (error.code, error.message) == (response["code"], response["message"])
    else:
        assert found is not None
        assert found.warnings == response["warnings"]


@pytest.mark.parametrize(("sent", "response"), recorded_cases("patching"))
def test_patches_give_the_same_objects_as_upstream(sent: SchemaRequest, response: Tree) -> None:
    error, found = run_request(sent)
    if response["code"] >= 300 and error is None:
        assert response["message"].startswith('Pod "pp" is invalid: ')
    elif response["code"] >= 300:
        assert error is not None
        assert (error.code, error.message) == (response["code"], response["message"])
    else:
        assert found is not None
        assert found.object["spec"] == response["spec"]
        ignored = ("managedFields", "creationTimestamp", "resourceVersion")
        assert without(found.object["metadata"], *ignored) == without(response["metadata"], *ignored)
        assert found.warnings == response["warnings"]


@pytest.mark.parametrize(("sent", "response"), recorded_cases("custom") + recorded_cases("definitions"))
def test_custom_resources_and_definitions_are_validated_as_by_upstream(sent: SchemaRequest, response: Tree) -> None:
    error, found = run_request(sent)
    if response["code"] >= 300:
        assert error is not None
        assert (error.code, message_parts(error.message)) == (response["code"], message_parts(response["message"]))
    else:
        assert found is not None
        assert found.warnings == response["warnings"]
        if sent.topic == "custom":
            assert found.object["spec"] == response["spec"]


def without(tree: Tree, *names: str) -> Tree:
    return {key: value for key, value in tree.items() if key not in names}


# Histories


@pytest.mark.parametrize("name", list(RECORDED["histories"]))
def test_managed_fields_of_random_histories_equal_upstreams(name: str) -> None:
    plural, seed = name.split()
    history, live = History(plural, int(seed)), None
    type_ = WIDGET if plural == "widgets" else type_of(ExpectedKind(*KINDS[plural][:3]))
    for recorded in RECORDED["histories"][name]:
        step = history.next_write(exists=live is not None)
        result = without(recorded, "code")
        if step.verb in ("apply", "force"):
            compare_applied(live, step, recorded, type_, history.kind.api_version)
        elif recorded["code"] < 300:
            after = {**result, "metadata": without(result["metadata"], "managedFields")}
            subresource = "status" if step.verb == "status" else ""
            tracked = track(
                live,
                after,
                manager=step.manager,
                api_version=history.kind.api_version,
                type=type_,
                now=NOW,
                subresource=subresource,
            )
            assert without_times(tracked) == without_times(result["metadata"].get("managedFields"))
        live = result if recorded["code"] < 300 else live


def compare_applied(
    live: Tree | None, step: Write, recorded: Tree, type_: StructType | CustomResourceType, api_version: str
) -> None:
    force = step.verb == "force"
    body = deepcopy(step.body)
    if recorded["code"] == 409:
        with pytest.raises(StatusError) as error:
            apply(live, body, manager=step.manager, force=force, api_version=api_version, type=type_, now=NOW)
        assert error.value.code == 409
        assert sorted(error.value.message.splitlines()) == sorted(recorded["message"].splitlines())
        return
    result = apply(live, body, manager=step.manager, force=force, api_version=api_version, type=type_, now=NOW)
    assert body == step.body, "apply does not change its argument"
    if recorded["code"] == 422:
        return  # validation refuses the result
    assert recorded["code"] < 300
    assert without_times(result["metadata"]["managedFields"]) == without_times(
        recorded["metadata"].get("managedFields")
    )
    read = WIDGET.read(result)[0] if isinstance(type_, CustomResourceType) else normalize(type_, result)
    assert_within(without(read, "metadata", "status"), without(recorded, "metadata", "status", "code"))
    for name in ("labels", "annotations"):
        assert read["metadata"].get(name) == recorded["metadata"].get(name)


def assert_within(our_value: Any, upstream_value: Any) -> None:
    """Upstream's object contains ours; what it has in addition are defaults."""
    if isinstance(our_value, dict):
        for key, value in our_value.items():
            assert key in upstream_value
            assert_within(value, upstream_value[key])
    elif isinstance(our_value, list):
        assert len(our_value) == len(upstream_value)
        for one, other in zip(our_value, upstream_value, strict=True):
            assert_within(one, other)
    else:
        assert our_value == upstream_value


def without_times(entries: Any) -> list[str]:
    return sorted(json.dumps(without(entry, "time"), sort_keys=True) for entry in entries or ())


# Objects


@pytest.mark.parametrize("example", RECORDED["seen"], ids=lambda example: example["json"]["kind"])
def test_an_object_of_upstream_is_decoded_unchanged(example: Tree) -> None:
    tree = example["json"]
    group, _, version = tree["apiVersion"].rpartition("/")
    assert normalize(type_of(ExpectedKind(group, version, tree["kind"])), tree) == tree


@pytest.mark.parametrize("example", RECORDED["seen"], ids=lambda example: example["json"]["kind"])
def test_protobuf_and_json_are_decoded_alike(example: Tree) -> None:
    api_version, kind, tree = decode_protobuf(base64.b64decode(example["protobuf"]), built_in_types())
    group, _, version = api_version.rpartition("/")
    assert normalize(type_of(ExpectedKind(group, version, kind)), tree) == example["json"]
