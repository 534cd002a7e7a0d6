"""Several leases that count as one: all are held, or nobody decides."""

from __future__ import annotations

import asyncio

import pytest

from bayplan.client import Elections
from bayplan.errors import LeaseLost
from wire_server import on_loop, until


class Lease:
    """An election that a test decides."""

    def __init__(self, name: str, story: list[str]) -> None:
        self.name, self.story = name, story
        self.won, self.lost = asyncio.Event(), asyncio.Event()
        self.leading = False

    def overdue_s(self) -> float:
        return 3.0 if self.name == "second" else 1.0

    def check(self) -> None:
        if not self.leading:
            raise LeaseLost(self.name)

    async def acquire(self) -> None:
        self.story.append(f"{self.name} asked")
        await self.won.wait()
        self.leading = True

    async def hold(self) -> None:
        self.story.append(f"{self.name} held")
        try:
            await self.lost.wait()
            raise LeaseLost(self.name)
        finally:
            self.leading = False
            self.story.append(f"{self.name} over")


def both() -> tuple[Elections, Lease, Lease, list[str]]:
    story: list[str] = []
    first, second = Lease("first", story), Lease("second", story)
    return Elections([first, second]), first, second, story  # type: ignore[list-item]


@on_loop
async def test_they_are_taken_in_order_and_held_while_the_next_is_waited_for() -> None:
    elections, first, second, story = both()
    acquiring = asyncio.ensure_future(elections.acquire())
    await until(lambda: story == ["first asked"])
    first.won.set()
    await until(lambda: "second asked" in story)
    assert "first held" in story
    assert not elections.leading
    with pytest.raises(LeaseLost):
        elections.check()
    second.won.set()
    await acquiring
    assert elections.leading
    elections.check()
    assert elections.overdue_s() == 3.0
    holding = asyncio.ensure_future(elections.hold())
    await until(lambda: "second held" in story)
    second.lost.set()
    with pytest.raises(LeaseLost):
        await holding
    assert story[-2:] == ["second over", "first over"]
    assert not elections.leading


@on_loop
async def test_who_loses_one_while_waiting_for_another_gives_up() -> None:
    elections, first, _, story = both()
    acquiring = asyncio.ensure_future(elections.acquire())
    first.won.set()
    await until(lambda: "first held" in story)
    first.lost.set()
    with pytest.raises(LeaseLost):
        await acquiring
    assert not elections.leading


@on_loop
async def test_who_is_told_to_stop_gives_all_of_them_back() -> None:
    elections, first, second, story = both()
    first.won.set()
    second.won.set()
    await elections.acquire()
    holding = asyncio.ensure_future(elections.hold())
    await until(lambda: "second held" in story)
    holding.cancel()
    await asyncio.wait([holding])
    assert {"first over", "second over"} <= set(story)
