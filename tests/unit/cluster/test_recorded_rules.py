"""Do our rules make of objects what a real API server makes of them?

The recording holds its answers to manifests of every kind and to copies of them with one field changed; see
`record_rules.py`. Each copy goes through reading, defaults, admission, preparation and validation here, and the
object, or the list of faults, must be the same. Identities and times aside.
"""

from __future__ import annotations

import json
import lzma
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bayplan.cluster.answers import Refusal
from bayplan.cluster.kinds import BUILT_IN, Resource
from bayplan.cluster.rules.admission import admit, check
from bayplan.cluster.rules.defaults import fill
from bayplan.cluster.rules.strategies import prepare_create, prepare_update
from bayplan.cluster.rules.validating import on_create, on_update
from bayplan.cluster.schema.decoding import Expected, decode
from bayplan.cluster.schema.types import built_in_types
from changed_copies import changed, fresh

Tree = dict[str, Any]
RECORDING = Path(__file__).parent / "rules.json.xz"
MADE_UP = ("uid", "creationTimestamp", "resourceVersion", "managedFields")


@cache
def recorded() -> list[Tree]:
    found: list[Tree] = json.loads(lzma.decompress(RECORDING.read_bytes()))
    return found


def resource_of(item: Tree) -> Resource:
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

    def get(self, resource: Resource, namespace: str, name: str) -> Tree | None:  # noqa: ARG002
        if resource.kind == "Namespace":
            return {"metadata": {"name": name}, "status": {"phase": "Active"}}
        return next((each for each in self.list(resource) if each["metadata"]["name"] == name), None)

    def list(self, resource: Resource, namespace: str = "") -> list[Tree]:  # noqa: ARG002
        return self._priorities if resource.kind == "PriorityClass" else []


def read(resource: Resource, item: Tree) -> Tree:
    type_ = built_in_types().of(resource.group, resource.version, resource.kind)
    assert type_ is not None
    expected = Expected(resource.group, resource.version, resource.kind)
    return decode(type_, msgspec.json.encode(item), "Ignore", expected=expected).object


def create(item: Tree, identity: Tree) -> Any:
    """The object as it would be stored, or its faults; `identity` has the recorded uid and time."""
    resource = resource_of(item)
    tree = read(resource, item)
    metadata = tree["metadata"]
    metadata.update({name: identity[name] for name in ("uid", "creationTimestamp", "name") if name in identity})
    if metadata.get("generateName") and not metadata.get("name"):
        metadata["name"] = f"{metadata['generateName']}x1y2z"
    if resource.namespaced:
        metadata.setdefault("namespace", "default")
    fill(resource, tree)
    try:
        admit(resource, tree, None, "create", World())
        prepare_create(resource, tree, lookup=World())
        if faults := on_create(resource, tree):
            return told(faults)
        check(resource, tree, None, "create", World())
    except Refusal as refused:
        return refused_text(refused)
    return tree


def update(item: Tree, old: Tree) -> Any:
    resource = resource_of(old)
    tree = read(resource, item)
    for name in ("creationTimestamp", "uid", "resourceVersion", "name", "namespace"):
        if name in old["metadata"]:
            tree["metadata"].setdefault(name, old["metadata"][name])
    fill(resource, tree)
    try:
        admit(resource, tree, old, "update", World())
        prepare_update(resource, tree, old, lookup=World())
        if faults := on_update(resource, tree, old):
            return told(faults)
        check(resource, tree, old, "update", World())
    except Refusal as refused:
        return refused_text(refused)
    return tree


def told(faults: Any) -> list[list[str]]:
    return plain([each.field, each.reason, each.message] for each in faults)


def plain(causes: Any) -> list[list[str]]:
    """Faults in one order, each once. What is made up is gone, and so is the difference between empty and absent,
    which reading loses."""
    found = {(field, reason, _UID.sub("<uid>", _EMPTY.sub("null", text))) for field, reason, text in causes}
    return sorted(map(list, found))


_UID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_EMPTY = re.compile(r"\{\}|\[\]")


def refused_text(refused: Refusal) -> Any:
    causes = (refused.details or {}).get("causes")
    if refused.reason == "Invalid" and causes:
        return plain([each["field"], each["reason"], each["message"]] for each in causes)
    return f"{refused.code} {refused.message}"


def comparable(answer: Any) -> Any:
    """Without what is made up anew each time."""
    if isinstance(answer, list):
        return plain(answer)
    if isinstance(answer, str):
        return answer
    answer = fresh(answer)
    metadata = answer["metadata"]
    for name in MADE_UP:
        metadata.pop(name, None)
    if answer["kind"] == "Service" and answer["spec"].get("clusterIP") not in (None, "None"):
        answer["spec"]["clusterIP"] = "<ip>"
        answer["spec"]["clusterIPs"] = ["<ip>"]
    return answer


def identity_of(answer: Any) -> Tree:
    found: Tree = (
        answer["metadata"]
        if isinstance(answer, dict)
        else {"uid": "12345678-1234-1234-1234-123456789012", "creationTimestamp": "2026-01-01T00:00:00Z"}
    )
    return found


APART = {
    ("DeviceClass", "spec.selectors.0.cel.expression"),  # an empty expression is told of in other words
    ("ResourceClaim", "spec.devices.requests.0.exactly.selectors.0.cel.expression"),
    ("HorizontalPodAutoscaler", "spec.behavior.scaleDown.policies.0"),  # an empty list is read as none
    ("PersistentVolume", "spec.nodeAffinity.required.nodeSelectorTerms.0.matchExpressions.0.key"),  # counts as renamed
}


def cases(sort: str) -> list[Any]:
    return [
        pytest.param(number, id=f"{each['item']['kind']}-{each['item']['metadata'].get('name', 'unnamed')}")
        for number, each in enumerate(recorded())
        if sort in each
    ]


def apart(kind: str, where: list[Any], value: Any) -> bool:
    return value == "-" and (kind, ".".join(map(str, where))) in APART


@pytest.mark.parametrize("number", cases("created"))
def test_a_new_object_is_stored_as_upstream_stores_it(number: int) -> None:
    case = recorded()[number]
    assert comparable(create(case["item"], identity_of(case["created"]))) == comparable(case["created"])


@pytest.mark.parametrize("number", cases("creations"))
def test_a_changed_copy_is_stored_or_refused_as_upstream_does(number: int) -> None:
    case = recorded()[number]
    for where, value, answer in case["creations"]:
        if not apart(case["item"]["kind"], where, value):
            copy = changed(case["item"], tuple(where), value)
            assert comparable(create(copy, identity_of(answer))) == comparable(answer), (where, value)


@pytest.mark.parametrize("number", cases("updates"))
def test_an_update_is_stored_or_refused_as_upstream_does(number: int) -> None:
    case = recorded()[number]
    old = case["updates"]["stored"]
    for where, value, answer in case["updates"]["cases"]:
        if not apart(case["item"]["kind"], where, value):
            assert comparable(update(changed(old, tuple(where), value), old)) == comparable(answer), (where, value)


@pytest.mark.parametrize("number", cases("created"))
def test_defaults_are_filled_in_once_and_for_all(number: int) -> None:
    item = recorded()[number]["item"]
    resource = resource_of(item)
    tree = read(resource, item)
    fill(resource, tree)
    again = fresh(tree)
    fill(resource, again)
    assert again == tree
