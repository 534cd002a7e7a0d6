# ruff: noqa: ARG002
"""Plugins that block the event loop: the warning names them, and awaiting them is unchanged."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.plugin import BinderHandle
from bayplan.clock import ManualClock
from bayplan.framework.runtime.plugin_call import plugin_call_of_frame
from bayplan.telemetry.await_timing import TimedAwait
from support.harness.reconciler import ReconcilerHarness, run_with_reconciler


class OnClock:
    """Runs first and gives the binder a manual clock."""

    name = "onclock"

    def __init__(self) -> None:
        self.clock = ManualClock()

    async def pre_bind(self, ctx: BinderHandle, pod: Any, node: Any, bind_request: Any, state: Any) -> None:
        ctx.clock = self.clock


class Blocking:
    """Advances the clock without an await, and records the call that a watchdog would name."""

    name = "blocking"

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.named = ""

    async def pre_bind(self, ctx: Any, pod: Any, node: Any, bind_request: Any, state: Any) -> None:
        await asyncio.sleep(0)
        self._clock.advance(2.5)
        self.named = plugin_call_of_frame(sys._getframe())


def test_a_plugin_that_blocks_is_named_with_its_method_and_the_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = OnClock()
    plugin = Blocking(first.clock)

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        await harness.sync()
        assert (await harness.status())["phase"] == "Succeeded"

    caplog.set_level(logging.WARNING)
    run_with_reconciler(tmp_path, test, first, plugin)
    (warning,) = [each.getMessage() for each in caplog.records if "blocked the event loop" in each.getMessage()]
    assert warning.startswith(
        "binder plugin blocking at pre_bind has blocked the event loop for 2.5 s; no other work was done"
    )
    assert "asyncio.to_thread" in warning
    assert plugin.named == "binder plugin blocking at pre_bind"


def warnings_of(caplog: pytest.LogCaptureFixture, clock: ManualClock, work: Any) -> list[str]:
    """The warnings about some work while it is awaited."""

    async def run() -> None:
        await TimedAwait(work, "it", clock.monotonic_s)

    caplog.set_level(logging.WARNING)
    asyncio.run(run())
    return [each.getMessage().split(";")[0] for each in caplog.records if each.name == "bayplan.telemetry.await_timing"]


def test_waiting_is_not_blocking(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    async def elsewhere() -> None:
        clock.advance(100.0)

    async def work() -> None:
        clock.advance(0.9)
        await asyncio.create_task(elsewhere())
        clock.advance(0.9)

    assert warnings_of(caplog, clock, work()) == []


def test_each_step_is_measured_separately(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    async def work() -> None:
        clock.advance(3.0)
        await asyncio.sleep(0)
        clock.advance(0.5)
        await asyncio.sleep(0)
        clock.advance(4.0)

    assert warnings_of(caplog, clock, work()) == [
        "it has blocked the event loop for 3.0 s",
        "it has blocked the event loop for 4.0 s",
    ]


def test_a_call_that_blocks_and_then_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    async def work() -> None:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            clock.advance(2.0)
            raise

    with pytest.raises(TimeoutError):
        warnings_of(caplog, clock, work())
    assert "it has blocked the event loop for 2.0 s" in caplog.text


def test_a_cancellation_reaches_the_awaited_work() -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    async def run() -> None:
        async def waiting() -> None:
            await TimedAwait(work(), "it", ManualClock().monotonic_s)

        task = asyncio.create_task(waiting())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert cleaned == ["up"]
