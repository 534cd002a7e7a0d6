"""Calls of plugin code: timing, counting, and faults that name the plugin."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.framework.api.extension_points import BIND, FILTER
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import SUCCESS, Code, Status, unschedulable
from bayplan.framework.runtime.plugin_call import SLOW_CALL_S, PluginCaller, to_status
from bayplan.telemetry.plugin_timings import PluginTimings


class Slow:
    """A plugin with configurable durations of its calls."""

    name = "Slow"

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def filter(self, seconds: float) -> str:
        self.clock.advance(seconds)
        return "answer"

    def breaks(self, seconds: float) -> None:
        self.clock.advance(seconds)
        raise ValueError("no such rack")

    async def bind(self, seconds: float) -> str:
        self.clock.advance(seconds)
        return "bound"

    async def fails(self) -> None:
        raise ConnectionError("refused")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def caller(clock: ManualClock) -> PluginCaller:
    return PluginCaller(clock, PluginTimings())


def test_calls_are_counted_and_timed(clock: ManualClock, caller: PluginCaller) -> None:
    plugin = Slow(clock)
    assert caller.call(plugin, FILTER, plugin.filter, 0.02) == "answer"
    assert caller.call(plugin, FILTER, plugin.filter, 0.03) == "answer"
    stats = caller.timings.of("Slow", "filter")
    assert (stats.calls, stats.slow, stats.failed) == (2, 0, 0)
    assert stats.seconds == pytest.approx(0.05)
    assert stats.max_s == pytest.approx(0.03)
    assert [(plugin, point) for plugin, point, _ in caller.timings.rows()] == [("Slow", "filter")]
    assert caller.timings.of("Nobody", "filter").calls == 0


def test_a_slow_call_is_counted_and_named(
    clock: ManualClock, caller: PluginCaller, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Slow(clock)
    with caplog.at_level(logging.WARNING):
        caller.call(plugin, FILTER, plugin.filter, SLOW_CALL_S)
        assert caplog.messages == []
        caller.call(plugin, FILTER, plugin.filter, 0.25)
    assert caller.timings.of("Slow", "filter").slow == 1
    assert caplog.messages == ["plugin Slow took 250 ms at filter; no other pod is scheduled meanwhile"]


def test_a_plugin_that_raises_is_named_with_point_and_place(
    clock: ManualClock, caller: PluginCaller, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Slow(clock)
    with pytest.raises(PluginFault) as caught:
        caller.call(plugin, FILTER, plugin.breaks, 0.01)
    fault = caught.value
    assert (fault.plugin, fault.point) == ("Slow", "filter")
    assert re.fullmatch(r"ValueError: no such rack \(test_plugin_call.py:\d+\)", fault.text)
    assert str(fault) == f'plugin "Slow" at filter: {fault.text}'
    stats = caller.timings.of("Slow", "filter")
    assert (stats.calls, stats.failed) == (1, 1)
    assert caplog.messages == ["plugin Slow failed at filter"]
    assert caplog.records[0].exc_info is not None


def test_awaited_calls_are_handled_alike(clock: ManualClock, caller: PluginCaller) -> None:
    plugin = Slow(clock)
    assert asyncio.run(caller.await_call(plugin, BIND, plugin.bind, 3.0)) == "bound"
    with pytest.raises(PluginFault, match=r'plugin "Slow" at bind: ConnectionError: refused \(test_plugin_call'):
        asyncio.run(caller.await_call(plugin, BIND, plugin.fails))
    stats = caller.timings.of("Slow", "bind")
    assert (stats.calls, stats.failed) == (2, 1)
    assert stats.slow == 0, "waiting for an external service blocks no other work"


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (None, "Success"),
        (Status(Code.SKIP), "Skip"),
        (Status(Code.UNRESOLVABLE, ("no",)), "UnschedulableAndUnresolvable"),
        (("rows", Status(Code.UNSCHEDULABLE, ("no",))), "Unschedulable"),
        (("rows", None), "Success"),
    ],
)
def test_durations_are_labeled_with_the_status(caller: PluginCaller, answer: object, label: str) -> None:
    caller.call(Slow(ManualClock()), FILTER, lambda: answer)
    assert [status for _, _, status, _ in caller.timings.spreads()] == [label]


def test_durations_of_calls_that_raised_are_labeled_as_errors(clock: ManualClock, caller: PluginCaller) -> None:
    plugin = Slow(clock)
    with pytest.raises(PluginFault):
        caller.call(plugin, FILTER, plugin.breaks, 0.01)
    with pytest.raises(PluginFault):
        asyncio.run(caller.await_call(plugin, BIND, plugin.fails))
    found = [(point, status, spread.count) for _, point, status, spread in caller.timings.spreads()]
    assert found == [("filter", "Error", 1), ("bind", "Error", 1)]


def test_a_fault_of_a_fault_keeps_its_text(caller: PluginCaller) -> None:
    plugin = Slow(ManualClock())
    inner = PluginFault("Slow", "filter", "said so itself")

    def raises() -> None:
        raise inner

    with pytest.raises(PluginFault) as caught:
        caller.call(plugin, FILTER, raises)
    assert caught.value is inner


def test_exceptions_that_end_the_process_are_not_caught(caller: PluginCaller) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        caller.call(Slow(ManualClock()), FILTER, interrupted)


def test_none_is_success() -> None:
    assert to_status(None, "P", FILTER) is SUCCESS


def test_statuses_get_the_name_of_the_plugin() -> None:
    assert to_status(unschedulable("x"), "P", FILTER) == unschedulable("x").by("P")
    assert to_status(SUCCESS, "P", FILTER).plugin == ""


@pytest.mark.parametrize("answer", [True, "ok", 0], ids=repr)
def test_other_results_are_faults(answer: Any) -> None:
    with pytest.raises(PluginFault, match="which is not a Status"):
        to_status(answer, "P", FILTER)
