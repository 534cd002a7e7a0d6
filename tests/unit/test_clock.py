"""The manual clock wakes its sleepers in order; the system clock is monotonic."""

from __future__ import annotations

import asyncio

import pytest

from bayplan.clock import ManualClock, SystemClock


def test_sleepers_wake_when_their_time_has_come_the_earliest_first() -> None:
    woken: list[str] = []

    async def sleep(clock: ManualClock, seconds: float, name: str) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async def scenario() -> None:
        clock = ManualClock()
        tasks = [asyncio.create_task(sleep(clock, seconds, name)) for seconds, name in ((3, "c"), (1, "a"), (2, "b"))]
        await asyncio.sleep(0)
        assert clock.sleepers == 3
        clock.advance(2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert woken == ["a", "b"]
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert clock.sleepers == 0
        clock.advance(5)
        assert woken == ["a", "b"]

    asyncio.run(scenario())


@pytest.mark.parametrize("clock", [ManualClock(), SystemClock()], ids=["manual", "system"])
def test_sleeping_for_no_time_gives_others_their_turn(clock: ManualClock | SystemClock) -> None:
    async def scenario() -> list[str]:
        seen = []
        other = asyncio.create_task(asyncio.sleep(0, "other"))
        await clock.sleep(0)
        seen.append("back")
        await other
        return seen

    assert asyncio.run(scenario()) == ["back"]


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        ManualClock().advance(-1)
    clock = SystemClock()
    first = clock.uptime_s()
    assert clock.uptime_s() >= first
