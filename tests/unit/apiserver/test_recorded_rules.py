"""Defaulting, admission, strategies and validation compared with a real API server.

The recording has its responses to manifests of every kind and to copies with one changed field; see `record_rules.py`.
Each copy runs through decoding, defaulting, admission, the strategy and validation here. The object or the list of
errors must be equal, apart from identities and times.
"""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.apiserver.defaulting.kind_defaults import set_defaults
from support.builders.manifest_mutations import apply_mutation, copy_tree
from support.builders.recorded_objects import create, identity_of, plain, read, recorded, resource_of, update

GENERATED_FIELDS = ("uid", "creationTimestamp", "resourceVersion", "managedFields")


def comparable(response: Any) -> Any:
    """A response without generated values."""
    if isinstance(response, list):
        return plain(response)
    if isinstance(response, str):
        return response
    response = copy_tree(response)
    metadata = response["metadata"]
    for name in GENERATED_FIELDS:
        metadata.pop(name, None)
    if response["kind"] == "Service" and response["spec"].get("clusterIP") not in (None, "None"):
        response["spec"]["clusterIP"] = "<ip>"
        response["spec"]["clusterIPs"] = ["<ip>"]
    return response


KNOWN_DIFFERENCES = {
    ("DeviceClass", "spec.selectors.0.cel.expression"),  # an empty expression gets another message
    ("ResourceClaim", "spec.devices.requests.0.exactly.selectors.0.cel.expression"),
    ("HorizontalPodAutoscaler", "spec.behavior.scaleDown.policies.0"),  # an empty list is decoded as none
    ("PersistentVolume", "spec.nodeAffinity.required.nodeSelectorTerms.0.matchExpressions.0.key"),  # counts as a rename
}


def cases(case_kind: str) -> list[Any]:
    return [
        pytest.param(number, id=f"{each['item']['kind']}-{each['item']['metadata'].get('name', 'unnamed')}")
        for number, each in enumerate(recorded())
        if case_kind in each
    ]


def is_known_difference(kind: str, steps: list[Any], value: Any) -> bool:
    return value == "-" and (kind, ".".join(map(str, steps))) in KNOWN_DIFFERENCES


@pytest.mark.parametrize("number", cases("created"))
def test_a_manifest_is_stored_as_by_upstream(number: int) -> None:
    case = recorded()[number]
    assert comparable(create(case["item"], identity_of(case["created"]))) == comparable(case["created"])


@pytest.mark.parametrize("number", cases("creations"))
def test_a_changed_copy_is_stored_or_refused_as_by_upstream(number: int) -> None:
    case = recorded()[number]
    for steps, value, response in case["creations"]:
        if not is_known_difference(case["item"]["kind"], steps, value):
            copy = apply_mutation(case["item"], tuple(steps), value)
            assert comparable(create(copy, identity_of(response))) == comparable(response), (steps, value)


@pytest.mark.parametrize("number", cases("updates"))
def test_an_update_is_stored_or_refused_as_by_upstream(number: int) -> None:
    case = recorded()[number]
    old = case["updates"]["stored"]
    for steps, value, response in case["updates"]["cases"]:
        if not is_known_difference(case["item"]["kind"], steps, value):
            assert comparable(update(apply_mutation(old, tuple(steps), value), old)) == comparable(response), (
                steps,
                value,
            )


@pytest.mark.parametrize("number", cases("created"))
def test_defaulting_twice_changes_nothing(number: int) -> None:
    item = recorded()[number]["item"]
    resource = resource_of(item)
    tree = read(resource, item)
    set_defaults(resource, tree)
    again = copy_tree(tree)
    set_defaults(resource, again)
    assert again == tree
