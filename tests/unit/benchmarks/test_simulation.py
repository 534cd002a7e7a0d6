"""The benchmark of simulations: what it measures is a number, and a budget that does not hold is seen."""

from __future__ import annotations

from benchmarks.simulation import Measured, long_trace


def test_a_long_trace_is_replayed_and_its_growth_told() -> None:
    assert 0 <= long_trace(200) < 256


def test_a_budget_holds_or_not() -> None:
    assert Measured("run", 4.9, "s", 5.0).holds
    assert not Measured("run", 5.1, "s", 5.0).holds
