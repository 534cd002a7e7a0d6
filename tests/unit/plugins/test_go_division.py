"""Integer division as Go does it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bayplan.plugins.go_division import quotient

INT64 = st.integers(-(2**63), 2**63 - 1)
DIVISOR = INT64.filter(lambda value: value not in (0, -1))


def cut(dividend: int, divisor: int) -> int:
    """Towards zero, in unbounded integers."""
    size = abs(dividend) // abs(divisor)
    return size if (dividend < 0) == (divisor < 0) else -size


@given(st.lists(st.tuples(INT64, DIVISOR), min_size=1, max_size=5))
def test_columns_divide_like_go(pairs: list[tuple[int, int]]) -> None:
    dividends, divisors = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    assert quotient(dividends, divisors).tolist() == [cut(*pair) for pair in pairs]


@given(st.lists(INT64, max_size=5), DIVISOR)
def test_a_column_divides_by_one_number(dividends: list[int], divisor: int) -> None:
    found = quotient(np.array(dividends, dtype=np.int64), divisor)
    assert found.tolist() == [cut(each, divisor) for each in dividends]
