"""Do our rules make of objects what a real API server makes of them?

The recording holds its answers to manifests of every kind and to copies of them with one field changed; see
`record_rules.py`. Each copy goes through reading, defaults, admission, preparation and validation here, and the
object, or the list of faults, must be the same. Identities and times aside.
"""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.apiserver.defaulting.kind_defaults import set_defaults
from support.builders.manifest_mutations import apply_mutation, copy_tree
from support.builders.recorded_objects import (
    create,
    identity_of,
    plain,
    read,
    recorded,
    resource_of,
    update,
)

MADE_UP = ("uid", "creationTimestamp", "resourceVersion", "managedFields")


def comparable(answer: Any) -> Any:
    """Without what is made up anew each time."""
    if isinstance(answer, list):
        return plain(answer)
    if isinstance(answer, str):
        return answer
    answer = copy_tree(answer)
    metadata = answer["metadata"]
    for name in MADE_UP:
        metadata.pop(name, None)
    if answer["kind"] == "Service" and answer["spec"].get("clusterIP") not in (None, "None"):
        answer["spec"]["clusterIP"] = "<ip>"
        answer["spec"]["clusterIPs"] = ["<ip>"]
    return answer


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
            copy = apply_mutation(case["item"], tuple(where), value)
            assert comparable(create(copy, identity_of(answer))) == comparable(answer), (where, value)


@pytest.mark.parametrize("number", cases("updates"))
def test_an_update_is_stored_or_refused_as_upstream_does(number: int) -> None:
    case = recorded()[number]
    old = case["updates"]["stored"]
    for where, value, answer in case["updates"]["cases"]:
        if not apart(case["item"]["kind"], where, value):
            assert comparable(update(apply_mutation(old, tuple(where), value), old)) == comparable(answer), (
                where,
                value,
            )


@pytest.mark.parametrize("number", cases("created"))
def test_defaults_are_filled_in_once_and_for_all(number: int) -> None:
    item = recorded()[number]["item"]
    resource = resource_of(item)
    tree = read(resource, item)
    set_defaults(resource, tree)
    again = copy_tree(tree)
    set_defaults(resource, again)
    assert again == tree
