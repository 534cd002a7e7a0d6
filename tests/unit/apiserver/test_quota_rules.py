"""Validation of quotas and their scopes, with the words of kube-apiserver."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.apiserver.validation.core_kinds import check_quota, check_quota_update
from bayplan.apiserver.validation.field_errors import FieldErrorList

Tree = dict[str, Any]
COMPUTE = (
    *("pods", "cpu", "memory", "ephemeral-storage"),
    *(f"{side}.{name}" for side in ("requests", "limits") for name in ("cpu", "memory", "ephemeral-storage")),
)
OTHERS = ("services", "secrets", "persistentvolumeclaims", "requests.storage")
OF_PODS = ("Terminating", "NotTerminating", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity")
SCOPES = "spec.scopes"
SELECTOR = "spec.scopeSelector.matchExpressions"
UNFIT = "unsupported scope applied to resource"


def quota(*hard: str, scopes: tuple[str, ...] = (), expressions: tuple[Tree, ...] = ()) -> Tree:
    spec: Tree = {"hard": dict.fromkeys(hard, "1")}
    if scopes:
        spec["scopes"] = list(scopes)
    if expressions:
        spec["scopeSelector"] = {"matchExpressions": list(expressions)}
    return {"metadata": {"name": "q", "namespace": "default"}, "spec": spec}


def expression(scope: str, operator: str = "Exists", *values: str) -> Tree:
    return {"scopeName": scope, "operator": operator, "values": list(values)}


def faults(item: Tree) -> list[tuple[str, str]]:
    """Each path that is refused, with the reason."""
    found = FieldErrorList()
    check_quota(found, item)
    return [(each.field, each.detail) for each in found]


def fits(scope: str, resource: str) -> bool:
    """The table of kube-apiserver's validation of quotas."""
    if scope == "BestEffort":
        return resource == "pods"
    if scope == "VolumeAttributesClass":
        return resource in ("persistentvolumeclaims", "requests.storage")
    return resource in COMPUTE


@pytest.mark.parametrize("resource", [*COMPUTE, *OTHERS])
@pytest.mark.parametrize("scope", [*OF_PODS, "BestEffort", "VolumeAttributesClass"])
def test_a_scope_fits_some_resources_only(scope: str, resource: str) -> None:
    expected = [] if fits(scope, resource) else [UNFIT]
    selected = quota(resource, expressions=(expression(scope),))
    assert faults(quota(resource, scopes=(scope,))) == [(SCOPES, each) for each in expected]
    assert faults(selected) == [(SELECTOR, each) for each in expected]


def test_each_resource_that_a_scope_does_not_fit_is_a_fault() -> None:
    hard = ("services", "pods", "cpu", "example.com/gpu")
    assert faults(quota(*hard, scopes=("BestEffort",))) == [(SCOPES, UNFIT)] * 2
    assert faults(quota(*hard, expressions=(expression("BestEffort"),))) == [(SELECTOR, UNFIT)] * 2


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
def test_scope_selectors(expressions: tuple[Tree, ...], expected: list[tuple[str, str]]) -> None:
    assert faults(quota("pods", expressions=expressions)) == expected


@pytest.mark.parametrize("scope", ["Terminating", "NotTerminating", "BestEffort", "CrossNamespacePodAffinity"])
def test_most_scopes_exist_or_not(scope: str) -> None:
    (fault,) = faults(quota("pods", expressions=(expression(scope, "In", "high"),)))
    assert fault[0] == f"{SELECTOR}.operator"
    assert fault[1].startswith("must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ")
    assert faults(quota("pods", expressions=(expression(scope),))) == []


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        pytest.param(("Terminating", "BestEffort"), [], id="two-that-go-together"),
        pytest.param(("Bogus",), ["unsupported scope"], id="unknown"),
        pytest.param(("Terminating", "NotTerminating"), ["conflicting scopes"], id="terminating-and-not"),
        pytest.param(("BestEffort", "NotBestEffort"), ["conflicting scopes"], id="best-effort-and-not"),
    ],
)
def test_scopes(scopes: tuple[str, ...], expected: list[str]) -> None:
    assert faults(quota("pods", scopes=scopes)) == [(SCOPES, each) for each in expected]


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
def test_scopes_stay_as_they_are(before: tuple[str, ...], after: tuple[str, ...], expected: list[str]) -> None:
    found = FieldErrorList()
    old, new = (quota("pods", scopes=each) for each in (before, after))
    for item in (old, new):
        item["metadata"]["resourceVersion"] = "1"
    check_quota_update(found, new, old)
    assert [(each.field, each.detail) for each in found] == [(SCOPES, each) for each in expected]
