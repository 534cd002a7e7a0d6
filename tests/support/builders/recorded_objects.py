"""The recorded manifests of every kind, and the result of defaulting, admission and validation for them.

`create` and `update` take an object through decoding, defaulting, admission, strategy and validation, as a request
does. They return the object that would be stored, or its field errors as (field, reason, message).
"""

from __future__ import annotations

import json
import lzma
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from bayplan.apiserver.admission.plugins import admit, validate
from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.defaulting.kind_defaults import set_defaults
from bayplan.apiserver.resources.kinds import BUILT_IN, ServedResource
from bayplan.apiserver.schema.decoder import ExpectedKind, decode
from bayplan.apiserver.schema.types import built_in_types
from bayplan.apiserver.validation.kind_validators import validate_create, validate_update
from bayplan.apiserver.writes.strategies import prepare_create, prepare_update

Tree = dict[str, Any]
RECORDING = Path(__file__).parents[2] / "unit" / "apiserver" / "rules.json.xz"


@cache
def recorded() -> list[Tree]:
    found: list[Tree] = json.loads(lzma.decompress(RECORDING.read_bytes()))
    return found


def resource_of(item: Tree) -> ServedResource:
    group, _, version = item["apiVersion"].rpartition("/")
    return next(r for r in BUILT_IN if (r.group, r.version, r.kind) == (group, version, item["kind"]))


class World:
    """The few objects that every cluster has."""

    def __init__(self) -> None:
        self._priorities = [
            {
                "metadata": {"name": "system-node-critical"},
                "value": 2000001000,
                "preemptionPolicy": "PreemptLowerPriority",
            }
        ]

    def get(self, resource: ServedResource, namespace: str, name: str) -> Tree | None:  # noqa: ARG002
        if resource.kind == "Namespace":
            return {"metadata": {"name": name}, "status": {"phase": "Active"}}
        return next((each for each in self.list(resource) if each["metadata"]["name"] == name), None)

    def list(self, resource: ServedResource, namespace: str = "") -> list[Tree]:  # noqa: ARG002
        return self._priorities if resource.kind == "PriorityClass" else []


def read(resource: ServedResource, item: Tree) -> Tree:
    type_ = built_in_types().of(resource.group, resource.version, resource.kind)
    assert type_ is not None
    expected = ExpectedKind(resource.group, resource.version, resource.kind)
    return decode(type_, msgspec.json.encode(item), "Ignore", expected=expected).object


def create(item: Tree, identity: Tree) -> Any:
    """The object that would be stored, or its errors; `identity` has the recorded uid and time."""
    resource = resource_of(item)
    tree = read(resource, item)
    metadata = tree["metadata"]
    metadata.update({name: identity[name] for name in ("uid", "creationTimestamp", "name") if name in identity})
    if metadata.get("generateName") and not metadata.get("name"):
        metadata["name"] = f"{metadata['generateName']}x1y2z"
    if resource.namespaced:
        metadata.setdefault("namespace", "default")
    set_defaults(resource, tree)
    try:
        admit(resource, tree, None, "create", World())
        prepare_create(resource, tree, lookup=World())
        if faults := validate_create(resource, tree):
            return messages(faults)
        validate(resource, tree, None, "create", World())
    except StatusError as refused:
        return refused_text(refused)
    return tree


def update(item: Tree, old: Tree) -> Any:
    resource = resource_of(old)
    tree = read(resource, item)
    for name in ("creationTimestamp", "uid", "resourceVersion", "name", "namespace"):
        if name in old["metadata"]:
            tree["metadata"].setdefault(name, old["metadata"][name])
    set_defaults(resource, tree)
    try:
        admit(resource, tree, old, "update", World())
        prepare_update(resource, tree, old, lookup=World())
        if faults := validate_update(resource, tree, old):
            return messages(faults)
        validate(resource, tree, old, "update", World())
    except StatusError as refused:
        return refused_text(refused)
    return tree


def messages(faults: Any) -> list[list[str]]:
    return plain([each.field, each.reason, each.message] for each in faults)


def plain(causes: Any) -> list[list[str]]:
    """The errors, sorted and without duplicates.

    Generated parts are removed, and empty and absent values are equal, because decoding cannot distinguish them.
    """
    found = {(field, reason, _UID.sub("<uid>", _EMPTY.sub("null", text))) for field, reason, text in causes}
    return sorted(map(list, found))


_UID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_EMPTY = re.compile(r"\{\}|\[\]")


def refused_text(refused: StatusError) -> Any:
    causes = (refused.details or {}).get("causes")
    if refused.reason == "Invalid" and causes:
        return plain([each["field"], each["reason"], each["message"]] for each in causes)
    return f"{refused.code} {refused.message}"


def identity_of(answer: Any) -> Tree:
    found: Tree = (
        answer["metadata"]
        if isinstance(answer, dict)
        else {"uid": "12345678-1234-1234-1234-123456789012", "creationTimestamp": "2026-01-01T00:00:00Z"}
    )
    return found
