"""Validation of quotas and their scopes, with the messages of kube-apiserver."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.apiserver.validation.core_kinds import check_quota, check_quota_update
from bayplan.codec.field_errors import FieldErrorList

Tree = dict[str, Any]
COMPUTE = (
    *("pods", "cpu", "memory", "ephemeral-storage"),
    *(f"{side}.{name}" for side in ("requests", "limits") for name in ("cpu", "memory", "ephemeral-storage")),
)
OTHER_RESOURCES = ("services", "secrets", "persistentvolumeclaims", "requests.storage")
POD_SCOPES = ("Terminating", "NotTerminating", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity")
SCOPES = "spec.scopes"
SELECTOR = "spec.scopeSelector.matchExpressions"
UNSUPPORTED = "unsupported scope applied to resource"


def quota(*hard: str, scopes: tuple[str, ...] = (), expressions: tuple[Tree, ...] = ()) -> Tree:
    spec: Tree = {"hard": dict.fromkeys(hard, "1")}
    if scopes:
        spec["scopes"] = list(scopes)
    if expressions:
        spec["scopeSelector"] = {"matchExpressions": list(expressions)}
    return {"metadata": {"name": "q", "namespace": "default"}, "spec": spec}


def expression(scope: str, operator: str = "Exists", *values: str) -> Tree:
    return {"scopeName": scope, "operator": operator, "values": list(values)}


def errors(item: Tree) -> list[tuple[str, str]]:
    """The path and the detail of each error."""
    found = FieldErrorList()
    check_quota(found, item)
    return [(each.field, each.detail) for each in found]


def supports(scope: str, resource: str) -> bool:
    """Which resources a scope supports, from kube-apiserver's validation."""
    if scope == "BestEffort":
        return resource == "pods"
    if scope == "VolumeAttributesClass":
        return resource in ("persistentvolumeclaims", "requests.storage")
    return resource in COMPUTE


@pytest.mark.parametrize("resource", [*COMPUTE, *OTHER_RESOURCES])
@pytest.mark.parametrize("scope", [*POD_SCOPES, "BestEffort", "VolumeAttributesClass"])
def test_a_scope_supports_some_resources_only(scope: str, resource: str) -> None:
    expected = [] if supports(scope, resource) else [UNSUPPORTED]
    selected = quota(resource, expressions=(expression(scope),))
    assert errors(quota(resource, scopes=(scope,))) == [(SCOPES, each) for each in expected]
    assert errors(selected) == [(SELECTOR, each) for each in expected]


def test_each_unsupported_resource_is_an_error() -> None:
    hard = ("services", "pods", "cpu", "example.com/gpu")
    assert errors(quota(*hard, scopes=("BestEffort",))) == [(SCOPES, UNSUPPORTED)] * 2
    assert errors(quota(*hard, expressions=(expression("BestEffort"),))) == [(SELECTOR, UNSUPPORTED)] * 2


@pytest.mark.parametrize(
    ("expressions", "expected"),
    [
        pytest.param((expression("Terminating"), expression("PriorityClass")), [], id="two-that-go-together"),
        pytest.param((expression("PriorityClass", "In", "high"),), [], id="one-of-these-values"),
        pytest.param((expression("PriorityClass", "DoesNotExist"),), [], id="no-value"),
        pytest.param((expression("Bogus"),), [(f"{SELECTOR}.scopeName", "unsupported scope")], id="unknown"),
        pytest.param(
            (expression("Terminating"), expression("NotTerminating")),
            [(SELECTOR, "conflicting scopes")],
            id="terminating-and-not",
        ),
        pytest.param(
            (expression("NotBestEffort"), expression("BestEffort")),
            [(SELECTOR, "conflicting scopes")],
            id="best-effort-and-not",
        ),
        pytest.param(
            (expression("PriorityClass", "In"),),
            [
                (
                    f"{SELECTOR}.values",
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
                )
            ],
            id="no-values-to-be-in",
        ),
        pytest.param(
            (expression("PriorityClass", "Exists", "high"),),
            [
                (
                    f"{SELECTOR}.values",
                    "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
                )
            ],
            id="values-that-exist",
        ),
        pytest.param(
            (expression("PriorityClass", "Like", "high"),),
            [(f"{SELECTOR}.operator", "not a valid selector operator")],
            id="unknown-operator",
        ),
    ],
)
def test_errors_of_scope_selectors(expressions: tuple[Tree, ...], expected: list[tuple[str, str]]) -> None:
    assert errors(quota("pods", expressions=expressions)) == expected


@pytest.mark.parametrize("scope", ["Terminating", "NotTerminating", "BestEffort", "CrossNamespacePodAffinity"])
def test_most_scopes_support_the_operator_exists_only(scope: str) -> None:
    (error,) = errors(quota("pods", expressions=(expression(scope, "In", "high"),)))
    assert error[0] == f"{SELECTOR}.operator"
    assert error[1].startswith("must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ")
    assert errors(quota("pods", expressions=(expression(scope),))) == []


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        pytest.param(("Terminating", "BestEffort"), [], id="two-that-go-together"),
        pytest.param(("Bogus",), ["unsupported scope"], id="unknown"),
        pytest.param(("Terminating", "NotTerminating"), ["conflicting scopes"], id="terminating-and-not"),
        pytest.param(("BestEffort", "NotBestEffort"), ["conflicting scopes"], id="best-effort-and-not"),
    ],
)
def test_errors_of_scopes(scopes: tuple[str, ...], expected: list[str]) -> None:
    assert errors(quota("pods", scopes=scopes)) == [(SCOPES, each) for each in expected]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(("Terminating", "BestEffort"), ("BestEffort", "Terminating"), [], id="in-another-order"),
        pytest.param(("Terminating",), ("BestEffort",), ["field is immutable"], id="another"),
        pytest.param(("Terminating",), (), ["field is immutable"], id="none-any-more"),
        pytest.param((), ("Terminating",), ["field is immutable"], id="one-more"),
        pytest.param((), (), [], id="none"),
    ],
)
def test_scopes_are_immutable(before: tuple[str, ...], after: tuple[str, ...], expected: list[str]) -> None:
    found = FieldErrorList()
    old, new = (quota("pods", scopes=each) for each in (before, after))
    for item in (old, new):
        item["metadata"]["resourceVersion"] = "1"
    check_quota_update(found, new, old)
    assert [(each.field, each.detail) for each in found] == [(SCOPES, each) for each in expected]
