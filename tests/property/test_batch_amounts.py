"""`Amounts` against a naive twin that compares one dimension at a time, and the laws that sessions rely on."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from bayplan.batch.model.amounts import TOLERANCE, Amounts, DimensionDefault, excess_amounts, max_amounts

NUMBERS = st.sampled_from([0.0, 0.05, 0.1, 0.15, 1.0, 1.05, 1.1, 2.0, 3.0, 1000.0, 2.0**40, -0.05, -2.0])
NAMES = ["pods", "x", "y", "z"]
SCALARS = st.none() | st.dictionaries(st.sampled_from(NAMES), NUMBERS, max_size=3)
AMOUNTS = st.builds(Amounts, NUMBERS, NUMBERS, SCALARS)
WHOLE = st.integers(0, 2**40).map(float)
COUNTED = st.builds(Amounts, WHOLE, WHOLE, st.dictionaries(st.sampled_from(NAMES), WHOLE, max_size=3))
MISSING = st.sampled_from(list(DimensionDefault))

Compare = Callable[[float, float], bool]


def within(left: float, right: float) -> bool:
    return left < right or abs(left - right) < TOLERANCE


def copied(amounts: Amounts) -> Amounts:
    scalars = amounts.scalars
    return Amounts(amounts.milli_cpu, amounts.memory, None if scalars is None else dict(scalars), amounts.max_task_num)


def dimensions(
    left: Amounts, right: Amounts, missing: DimensionDefault
) -> dict[str, tuple[float | None, float | None]]:
    """Every dimension with both sides; None for an unlimited dimension."""
    unnamed = 0.0 if missing is DimensionDefault.ZERO else None
    found: dict[str, tuple[float | None, float | None]] = {
        "cpu": (left.milli_cpu, right.milli_cpu),
        "memory": (left.memory, right.memory),
    }
    mine, theirs = left.scalars or {}, right.scalars or {}
    for name in mine.keys() | theirs.keys():
        found[name] = mine.get(name, unnamed), theirs.get(name, unnamed)
    return found


def all_within(left: Amounts, right: Amounts, missing: DimensionDefault, compare: Compare) -> bool:
    mine = left.scalars or {}
    for name, (less, more) in dimensions(left, right, missing).items():
        if less is None:
            return False  # unlimited against a limit
        if more is None or (name not in ("cpu", "memory") and name not in mine):
            continue  # a dimension of the right side only is no request
        if not compare(less, more):
            return False
    return True


@given(AMOUNTS, AMOUNTS, MISSING)
def test_comparisons_look_at_every_dimension(left: Amounts, right: Amounts, missing: DimensionDefault) -> None:
    assert left.less_equal(right, missing) == all_within(left, right, missing, within)
    assert left.less(right, missing) == all_within(left, right, missing, float.__lt__)


@given(AMOUNTS, AMOUNTS)
def test_the_names_above_say_whether_it_fits(left: Amounts, right: Amounts) -> None:
    assert (left.names_above(right) == []) == left.less_equal(right)
    assert set(left.names_above(right, DimensionDefault.INFINITY)) <= set(left.names_above(right))


@given(AMOUNTS, AMOUNTS, AMOUNTS)
def test_named_dimensions_are_asked_ones(left: Amounts, right: Amounts, asked: Amounts) -> None:
    wanted = {name for name in ("cpu", "memory", *(asked.scalars or {})) if asked.get(name) > 0} - {"pods"}
    greater = left.requested_names_greater(right, asked)
    within_it = left.requested_names_within(right, asked)
    assert set(greater) | set(within_it) == wanted
    assert set(left.requested_names_above(right, asked)) <= set(greater)
    assert set(left.relevant_names_greater(right, asked)) <= set(greater)
    assert set(left.used_names_within(right, asked)) <= set(within_it)


@given(COUNTED, COUNTED)
def test_adding_and_subtracting_are_inverse(left: Amounts, right: Amounts) -> None:
    total = copied(left).add(right)
    back = copied(total).sub(right)
    assert back.less_equal(left)
    assert left.less_equal(back)
    assert right.less_equal(total)
    assert left.less_equal(total)


@given(COUNTED, COUNTED)
def test_a_difference_clamps_the_smaller_side_at_zero(left: Amounts, right: Amounts) -> None:
    more, less = left.diff(right, DimensionDefault.ZERO)
    assert copied(right).add(more).sub_unchecked(less).equal(left)
    assert excess_amounts(left, right).equal(more)


@given(AMOUNTS, AMOUNTS)
def test_bounds(left: Amounts, right: Amounts) -> None:
    highest = copied(left).set_max(right)
    for name in ("cpu", "memory", *NAMES):
        assert max_amounts(left, right).get(name) >= min(left.get(name), right.get(name), 0.0)
        if name in (right.scalars or {}):
            assert highest.get(name) >= right.get(name)


@given(AMOUNTS, AMOUNTS, MISSING)
def test_lowering_never_raises_or_adds_dimensions(left: Amounts, right: Amounts, missing: DimensionDefault) -> None:
    lowered = copied(left).min_dimension(right, missing)
    assert (lowered.scalars or {}).keys() == (left.scalars or {}).keys()
    assert (lowered.scalars is None) == (left.scalars is None)
    for name, amount in (lowered.scalars or {}).items():
        assert amount <= max(left.get(name), 0.0)
    assert lowered.milli_cpu == min(left.milli_cpu, right.milli_cpu)


@given(AMOUNTS, AMOUNTS)
def test_arguments_are_left_alone(left: Amounts, right: Amounts) -> None:
    before = copied(right)
    copied(left).add(right).sub_unchecked(right).set_max(right).min_dimension(right, DimensionDefault.ZERO)
    left.diff(right, DimensionDefault.INFINITY)
    assert right == before
