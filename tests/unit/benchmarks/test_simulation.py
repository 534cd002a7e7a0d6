"""The benchmark of simulations: its measurements are numbers, and an exceeded budget is reported."""

from __future__ import annotations

from benchmarks.simulation import Measured, long_trace


def test_a_long_trace_is_replayed_and_its_growth_measured() -> None:
    assert 0 <= long_trace(200) < 256


def test_a_budget_holds_or_not() -> None:
    assert Measured("run", 4.9, "s", 5.0).holds
    assert not Measured("run", 5.1, "s", 5.0).holds
