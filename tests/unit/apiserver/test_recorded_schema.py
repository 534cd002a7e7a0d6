"""Reading, patching, applying, custom resources and definitions, held against what a real API server answered."""

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
ASKED = list(zip(schema_requests(), RECORDED["answers"], strict=True))
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


def told(topic: str) -> list[Any]:
    """The questions of a topic with their answers; ids are cut from the bodies."""
    cases = [(question, answer) for question, answer in ASKED if question.topic == topic]
    return [pytest.param(*case, id=f"{at}-{case[0].body[:60]}") for at, case in enumerate(cases)]


def refusal(question: SchemaRequest) -> tuple[StatusError | None, DecodedObject | None]:
    try:
        return None, ours(question)
    except StatusError as refused:
        return refused, None


def ours(question: SchemaRequest) -> DecodedObject:
    validation: Validation = question.validation  # type: ignore[assignment]
    body, plural = question.body.encode(), question.path.split("/")[-1 if question.method == "POST" else -2]
    if question.topic == "custom":
        return custom(body, validation)
    expected = EXPECTED[plural]
    type_ = type_of(expected)
    if question.media == APPLY:
        found = decode_applied(body, "Ignore", expected=expected)
        apply(None, found.object, manager="m1", force=False, api_version=expected.api_version, type=type_, now=NOW)
        return decode_applied(body, validation, expected=expected)
    if question.method == "PATCH":
        strategic = type_ if question.media == STRATEGIC else None
        reader = BuiltInReader(type_, expected)
        return patch_object(reader, RECORDED["live"], body, question.media, validation, strategic=strategic)
    found = decode(type_, body, validation, expected=expected, yaml=question.media == YAML)
    return definition(found) if question.topic == "definitions" else found


def custom(body: bytes, validation: Validation) -> DecodedObject:
    found = WIDGET.decode(body, validation)
    found.object.pop("status", None)
    if faults := WIDGET.faults(found.object):
        raise invalid("Widget", "ex.io", found.object["metadata"].get("name", ""), faults)
    return found


def definition(found: DecodedObject) -> DecodedObject:
    tree = found.object
    definitions.set_crd_defaults(tree)
    tree["status"] = definitions.initial_status(tree)
    if faults := definitions.validate_crd(tree):
        raise invalid("CustomResourceDefinition", "apiextensions.k8s.io", tree["metadata"].get("name", ""), faults)
    return DecodedObject(tree, found.warnings + definitions.crd_warnings(tree))


def parts(message: str) -> list[str]:
    """The faults of a message, sorted: upstream walks maps in no order."""
    head, _, listed = message.partition(" is invalid: ")
    return [head, *sorted(re.split(r", (?=[\w.<>\[\]-]+: [A-Z])", listed.strip("[]")))]


OTHERS_DECIDE = ("is invalid: ", "does not match the name", "was undeterminable", "uid mismatch", "the object has been")
"""What the server finds out after reading: validation and lookups, which are not this room's."""


@pytest.mark.parametrize(("question", "answer"), told("decoding") + told("applying"))
def test_bodies_are_taken_and_refused_as_upstream_does(question: SchemaRequest, answer: Tree) -> None:
    refused, found = refusal(question)
    if answer["code"] >= 300 and refused is None:
        assert any(each in answer["message"] for each in OTHERS_DECIDE)
    elif answer["code"] >= 300:
        assert refused is not None
        assert (refused.code, refused.message) == (answer["code"], answer["message"])
    else:
        assert found is not None
        assert found.warnings == answer["warnings"]


@pytest.mark.parametrize(("question", "answer"), told("patching"))
def test_patches_give_what_upstream_gives(question: SchemaRequest, answer: Tree) -> None:
    refused, found = refusal(question)
    if answer["code"] >= 300 and refused is None:
        assert answer["message"].startswith('Pod "pp" is invalid: ')
    elif answer["code"] >= 300:
        assert refused is not None
        assert (refused.code, refused.message) == (answer["code"], answer["message"])
    else:
        assert found is not None
        assert found.object["spec"] == answer["spec"]
        ignored = ("managedFields", "creationTimestamp", "resourceVersion")
        assert without(found.object["metadata"], *ignored) == without(answer["metadata"], *ignored)
        assert found.warnings == answer["warnings"]


@pytest.mark.parametrize(("question", "answer"), told("custom") + told("definitions"))
def test_custom_resources_and_definitions_are_judged_as_upstream_does(question: SchemaRequest, answer: Tree) -> None:
    refused, found = refusal(question)
    if answer["code"] >= 300:
        assert refused is not None
        assert (refused.code, parts(refused.message)) == (answer["code"], parts(answer["message"]))
    else:
        assert found is not None
        assert found.warnings == answer["warnings"]
        if question.topic == "custom":
            assert found.object["spec"] == answer["spec"]


def without(tree: Tree, *names: str) -> Tree:
    return {key: value for key, value in tree.items() if key not in names}


# Histories.


@pytest.mark.parametrize("name", list(RECORDED["histories"]))
def test_managers_of_random_histories_own_what_upstream_says(name: str) -> None:
    plural, seed = name.split()
    history, live = History(plural, int(seed)), None
    type_ = WIDGET if plural == "widgets" else type_of(ExpectedKind(*KINDS[plural][:3]))
    for recorded in RECORDED["histories"][name]:
        step = history.next_write(exists=live is not None)
        made = without(recorded, "code")
        if step.verb in ("apply", "force"):
            compare_applied(live, step, recorded, type_, history.kind.api_version)
        elif recorded["code"] < 300:
            after = {**made, "metadata": without(made["metadata"], "managedFields")}
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
            assert timeless(tracked) == timeless(made["metadata"].get("managedFields"))
        live = made if recorded["code"] < 300 else live


def compare_applied(
    live: Tree | None, step: Write, recorded: Tree, type_: StructType | CustomResourceType, api_version: str
) -> None:
    force = step.verb == "force"
    body = deepcopy(step.body)
    if recorded["code"] == 409:
        with pytest.raises(StatusError) as refused:
            apply(live, body, manager=step.manager, force=force, api_version=api_version, type=type_, now=NOW)
        assert refused.value.code == 409
        assert sorted(refused.value.message.splitlines()) == sorted(recorded["message"].splitlines())
        return
    made = apply(live, body, manager=step.manager, force=force, api_version=api_version, type=type_, now=NOW)
    assert body == step.body, "what is applied is not changed"
    if recorded["code"] == 422:
        return  # validation had something against the result
    assert recorded["code"] < 300
    assert timeless(made["metadata"]["managedFields"]) == timeless(recorded["metadata"].get("managedFields"))
    read = WIDGET.read(made)[0] if isinstance(type_, CustomResourceType) else normalize(type_, made)
    assert_within(without(read, "metadata", "status"), without(recorded, "metadata", "status", "code"))
    for name in ("labels", "annotations"):
        assert read["metadata"].get(name) == recorded["metadata"].get(name)


def assert_within(mine: Any, theirs: Any) -> None:
    """Upstream's object has all that ours has; what it has on top are defaults."""
    if isinstance(mine, dict):
        for key, value in mine.items():
            assert key in theirs
            assert_within(value, theirs[key])
    elif isinstance(mine, list):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_within(one, other)
    else:
        assert mine == theirs


def timeless(entries: Any) -> list[str]:
    return sorted(json.dumps(without(entry, "time"), sort_keys=True) for entry in entries or ())


# Objects.


@pytest.mark.parametrize("seen", RECORDED["seen"], ids=lambda seen: seen["json"]["kind"])
def test_an_object_of_upstream_reads_as_itself(seen: Tree) -> None:
    tree = seen["json"]
    group, _, version = tree["apiVersion"].rpartition("/")
    assert normalize(type_of(ExpectedKind(group, version, tree["kind"])), tree) == tree


@pytest.mark.parametrize("seen", RECORDED["seen"], ids=lambda seen: seen["json"]["kind"])
def test_protobuf_says_what_json_says(seen: Tree) -> None:
    api_version, kind, tree = decode_protobuf(base64.b64decode(seen["protobuf"]), built_in_types())
    group, _, version = api_version.rpartition("/")
    assert normalize(type_of(ExpectedKind(group, version, kind)), tree) == seen["json"]
