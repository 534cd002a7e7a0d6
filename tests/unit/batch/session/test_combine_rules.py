from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bayplan.batch.model.tasks import Task
from bayplan.batch.session import combine_rules
from bayplan.batch.session.combine_rules import PointFunctions, Vote
from support.builders.batch import make_member

A, B, C = (Task(make_member(name)) for name in "abc")


def functions_of(*tiers: list[Any]) -> tuple[PointFunctions, list[str]]:
    """The functions of tiers: a callable is used as it is, other values are returned as constants."""
    blamed: list[str] = []

    def fn(answer: Any) -> Callable[..., Any]:
        return answer if callable(answer) else lambda *_: answer

    named = [
        [(f"p{number}{tier}", fn(answer)) for number, answer in enumerate(each)] for tier, each in enumerate(tiers)
    ]
    return PointFunctions(named, lambda plugin, what: blamed.append(f"{plugin}: {what}")), blamed


def failing(*_: object) -> Any:
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    ("tiers", "order"),
    [
        pytest.param([[]], 0, id="no-plugin"),
        pytest.param([[0, -3], [5]], -1, id="first-that-cares"),
        pytest.param([[0], [0.5]], 1, id="later-tier-and-fractions"),
        pytest.param([[failing, 2]], 1, id="a-failing-plugin-is-ignored"),
        pytest.param([["left", -1]], -1, id="an-invalid-answer-is-ignored"),
    ],
)
def test_first_nonzero(tiers: list[list[Any]], order: int) -> None:
    assert combine_rules.first_nonzero(functions_of(*tiers)[0], A, B) == order


@pytest.mark.parametrize(
    ("tiers", "passed"),
    [
        pytest.param([[Vote.PERMIT, Vote.REJECT]], False, id="reject-in-the-same-tier"),
        pytest.param([[Vote.PERMIT], [Vote.REJECT]], True, id="permit-hides-later-tiers"),
        pytest.param([[Vote.ABSTAIN], [Vote.REJECT]], False, id="abstaining-does-not"),
        pytest.param([[Vote.REJECT, Vote.PERMIT]], False, id="reject-ends-it"),
        pytest.param([[]], True, id="no-plugin"),
        pytest.param([[failing], [Vote.REJECT]], False, id="a-failing-plugin-abstains"),
        pytest.param([[None], [Vote.PERMIT]], True, id="an-invalid-answer-abstains"),
    ],
)
def test_vote(tiers: list[list[Any]], passed: bool) -> None:
    assert combine_rules.vote(functions_of(*tiers)[0], A) is passed


@pytest.mark.parametrize(
    ("tiers", "victims"),
    [
        pytest.param([[[A, B], []], [[C]]], [C], id="an-empty-list-vetoes-its-tier-only"),
        pytest.param([[[A], [B], [C]]], [C], id="an-empty-intersection-starts-anew"),
        pytest.param([[None, [A]]], [A], id="abstaining"),
        pytest.param([[None], [None]], [], id="no-plugin-decides"),
        pytest.param([[[A, B], [B, C]], [[A]]], [B], id="first-deciding-tier"),
        pytest.param([[[C, A, B], [B, C]]], [C, B], id="in-the-order-of-the-first"),
        pytest.param([[failing, [A]]], [A], id="a-failing-plugin-abstains"),
        pytest.param([[["a"], [A]]], [A], id="an-invalid-answer-abstains"),
    ],
)
def test_victims_of_tier(tiers: list[list[Any]], victims: list[Task]) -> None:
    assert combine_rules.victims_of_tier(functions_of(*tiers)[0], A, [A, B, C]) == victims


@pytest.mark.parametrize(
    ("tiers", "starving"),
    [
        pytest.param([[]], False, id="no-plugin"),
        pytest.param([[], [True]], True, id="first-tier-with-one"),
        pytest.param([[True], [False]], True, id="later-tiers-do-not-count"),
        pytest.param([[True, False]], False, id="all-of-the-tier"),
    ],
)
def test_starving_uses_the_first_tier_with_an_answer(tiers: list[list[Any]], starving: bool) -> None:
    assert combine_rules.unanimous_in_first_tier(functions_of(*tiers)[0], A) is starving


def test_unanimous_and_any_true() -> None:
    assert combine_rules.unanimous(functions_of([])[0]) is True
    assert combine_rules.unanimous(functions_of([True], [False])[0]) is False
    assert combine_rules.unanimous(functions_of([failing, "yes"])[0]) is True
    assert combine_rules.any_true(functions_of([])[0]) is False
    assert combine_rules.any_true(functions_of([False], [1])[0]) is True


def test_union_of_the_first_tier_with_tasks() -> None:
    def union(*tiers: list[Callable[..., list[Task]]]) -> list[Task]:
        return combine_rules.union_of_tier(PointFunctions([[("p", fns)] for fns in tiers], lambda *_: None), [])

    assert union([lambda _: [A], lambda _: [B, A]], [lambda _: [C]]) == [A, B]
    assert union([lambda _: []], [lambda _: [C]]) == [C]
    assert union([failing], [lambda _: [C]]) == [C]


def test_first_answer_and_first_registered() -> None:
    assert combine_rules.first_answer(functions_of([None], ["x", "y"])[0]) == "x"
    assert combine_rules.first_registered(functions_of([None, "x"])[0]) is None
    assert combine_rules.first_registered(functions_of([failing, "x"])[0]) == "x"


@pytest.mark.parametrize(
    "rule",
    [
        combine_rules.first_nonzero,
        combine_rules.vote,
        combine_rules.unanimous,
        combine_rules.call_all,
        combine_rules.answers_by_plugin,
    ],
)
def test_a_plugin_that_raises_is_reported_with_its_error(rule: Callable[..., Any]) -> None:
    found, faults = functions_of([failing])
    rule(found, A)
    assert faults == ["p00: no idea"]


def test_an_invalid_answer_is_reported_with_what_is_needed() -> None:
    found, faults = functions_of(["perhaps"])
    combine_rules.unanimous(found, A)
    assert faults == ["p00: answered 'perhaps'; True or False is needed"]
