"""The incrementally maintained best rows equal those of a scan over all totals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bayplan.framework.equivalence.top_rows import GroupedTopRows, TopRows

GROUPS = 4
ROWS = st.integers(1, 9)
NUMBERS = st.integers(0, 3)  # few, so that many tie


@dataclass(frozen=True)
class Step:
    """Effects of a placement: a row has another number, perhaps in another group, and groups have other scores."""

    row: int
    alone: int
    group: int
    scores: list[int] | None
    flat: int


SCORES = st.lists(st.integers(0, 5), min_size=GROUPS, max_size=GROUPS)
STEPS = st.lists(
    st.builds(Step, st.integers(0, 8), NUMBERS, st.integers(0, GROUPS - 1), st.none() | SCORES, st.integers(-2, 2)),
    max_size=30,
)


def by_looking(totals: list[int]) -> list[int]:
    return [row for row, total in enumerate(totals) if total == max(totals)]


def by_sorting(totals: list[int], first: int, count: int) -> list[int]:
    others = sorted((row for row in range(len(totals)) if row != first), key=lambda row: (-totals[row], row))
    return [first, *others][:count]


def assert_leads(leaders: TopRows | GroupedTopRows, totals: list[int]) -> None:
    best = leaders.best_rows()
    assert list(best) == by_looking(totals)
    for first in best:
        assert leaders.ranking(first, min(3, len(totals))) == by_sorting(totals, first, min(3, len(totals)))
    assert leaders.total.tolist() == totals


@given(st.lists(NUMBERS, min_size=1, max_size=9), STEPS, st.data())
def test_of_one_number_a_row(totals: list[int], steps: list[Step], data: st.DataObject) -> None:
    leaders = TopRows(np.array(totals, dtype=np.int64))
    for step in steps:
        row = step.row % len(totals)
        totals[row] = step.alone - 1  # -1: no longer a candidate
        leaders.set_total(row, totals[row])
        if data.draw(st.booleans()):
            assert_leads(leaders, totals)
    assert_leads(leaders, totals)


@given(ROWS, SCORES, STEPS, st.data())
def test_of_rows_in_groups(count: int, scores: list[int], steps: list[Step], data: st.DataObject) -> None:
    alone = data.draw(st.lists(NUMBERS, min_size=count, max_size=count))
    groups = np.array(data.draw(st.lists(st.integers(0, GROUPS - 1), min_size=count, max_size=count)), dtype=np.intp)
    flat = 7
    leaders = GroupedTopRows(np.array(alone, dtype=np.int64), groups, scores, flat)
    for step in steps:
        if step.scores is not None:
            scores, flat = step.scores, step.flat
            leaders.set_group_scores(scores, flat)
        row = step.row % count
        alone[row], groups[row] = step.alone, step.group
        leaders.set_total(row, step.alone)
        if data.draw(st.booleans()):
            assert_leads(leaders, [alone[row] + scores[groups[row]] + flat for row in range(count)])
    assert_leads(leaders, [alone[row] + scores[groups[row]] + flat for row in range(count)])
