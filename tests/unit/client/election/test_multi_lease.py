"""Several leases that count as one: all are held, or none; and a dead holder is replaced in time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bayplan.client import ElectionTimings, LeaderElector, MultiLeaseElector
from bayplan.clock import ManualClock
from bayplan.errors import LeaseLost
from support.fakes.http_server import FakeHttpServer, Request, ServerAnswer, status
from support.fakes.lease_server import PATH, LeaseServer
from support.harness.async_tests import async_test, wait_until

NAMES = ("first", "second")
STEP_S = 0.25


class World:
    """Two leases on one server, and candidates for both."""

    def __init__(self, server: FakeHttpServer, clock: ManualClock, leases: dict[str, LeaseServer]) -> None:
        self.server = server
        self.clock = clock
        self.leases = leases
        self.before: Callable[[Request], None] = lambda _: None

    def __call__(self, request: Request) -> ServerAnswer:
        self.before(request)
        name = request.json["metadata"]["name"] if request.method == "POST" else request.path.removeprefix(f"{PATH}/")
        return self.leases[name](request)

    def holders(self) -> list[str]:
        return [each.spec["holderIdentity"] if each.lease is not None else "" for each in self.leases.values()]

    def writes(self) -> list[str]:
        return [who for each in self.leases.values() for who in each.writes]

    def renew(self, who: str, *names: str) -> None:
        for name in names or NAMES:
            self.leases[name].steal(who)

    @asynccontextmanager
    async def candidate(
        self, identity: str, *, seed: int = 0, timings: ElectionTimings | None = None
    ) -> AsyncIterator[MultiLeaseElector]:
        async with self.server.client(self.clock, timeout_s=5.0) as client:
            client.chance = random.Random(seed)
            elections = [
                LeaderElector(client, identity=identity, name=name, timings=timings or ElectionTimings())
                for name in NAMES
            ]
            yield MultiLeaseElector(elections, self.clock)

    async def passes(self, seconds: float, each_step: Callable[[], None] = lambda: None) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.clock.advance(STEP_S)
            each_step()
            for _ in range(3):
                await asyncio.sleep(0.001)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    clock = ManualClock()
    async with FakeHttpServer() as server:
        made = World(server, clock, {name: LeaseServer(name) for name in NAMES})
        server.route = made
        yield made


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("retry_s", [2.0, 8.0], ids=["usual", "seldom"])
@async_test
async def test_both_leases_of_a_dead_leader_are_taken_within_1_2_lease_durations(seed: int, retry_s: float) -> None:
    """Whenever it dies between two looks of the candidate, and also where it renews seldom."""
    timings = ElectionTimings(retry_s=retry_s)
    async with world() as w, w.candidate("me", seed=seed, timings=timings) as me:
        w.renew("dead")
        acquiring = asyncio.ensure_future(me.acquire())
        await w.passes(20.0 + 0.5 * seed, lambda: w.renew("dead"))  # the last renewal is in the last moment of its life
        assert w.holders() == ["dead", "dead"]
        died_s = w.clock.monotonic_s()
        while not acquiring.done():
            await w.passes(STEP_S)
        assert timings.lease_s <= w.clock.monotonic_s() - died_s <= 1.2 * timings.lease_s
        me.check()
        assert w.holders() == ["me", "me"]


@async_test
async def test_leases_that_were_observed_during_a_start_are_taken_when_they_end() -> None:
    """A process that comes up fills its caches first: that time counts."""
    async with world() as w, w.candidate("me") as me:
        w.renew("dead")
        observing = asyncio.ensure_future(me.observe())
        await w.passes(14.0)
        observing.cancel()
        acquiring = asyncio.ensure_future(me.acquire())
        await w.passes(2.0)
        assert acquiring.done()
        assert w.holders() == ["me", "me"]


@async_test
async def test_candidates_look_at_each_lease_once_a_retry_period_and_write_nothing() -> None:
    async with world() as w, w.candidate("me") as me:
        w.renew("other")
        acquiring = asyncio.ensure_future(me.acquire())
        await w.passes(60.0, lambda: w.renew("other"))
        for lease in w.leases.values():
            assert set(lease.asked) == {"GET"}
            assert 25 <= len(lease.asked) <= 33
        acquiring.cancel()


@pytest.mark.parametrize("held", NAMES)
@async_test
async def test_nothing_is_taken_while_another_process_holds_one_of_them(held: str) -> None:
    async with world() as w, w.candidate("me") as me:
        w.renew("other", held)
        acquiring = asyncio.ensure_future(me.acquire())
        await w.passes(40.0, lambda: w.renew("other", held))
        assert set(w.writes()) == {"other"}
        assert not acquiring.done()
        await wait_until(acquiring.done, tick=lambda: w.clock.advance(STEP_S))
        assert w.holders() == ["me", "me"]


@async_test
async def test_the_first_is_given_up_when_another_process_is_faster_at_the_second() -> None:
    async with world() as w, w.candidate("me") as me:

        def snatch(request: Request) -> None:
            if request.method == "POST" and request.json["metadata"]["name"] == "first":
                w.renew("other", "second")

        w.before = snatch
        acquiring = asyncio.ensure_future(me.acquire())
        await w.passes(4.0)
        assert w.leases["first"].writes[:2] == ["me", ""]
        assert w.holders() == ["", "other"]
        assert not me.leading
        with pytest.raises(LeaseLost):
            me.check()
        await wait_until(acquiring.done, tick=lambda: w.clock.advance(STEP_S))
        assert w.holders() == ["me", "me"]


@pytest.mark.parametrize("seed", range(4))
@async_test
async def test_of_two_that_start_at_once_one_gets_all_leases_and_the_other_none(seed: int) -> None:
    async with world() as w, w.candidate("a", seed=seed) as one, w.candidate("b", seed=seed + 10) as two:
        tries = [asyncio.ensure_future(each.acquire()) for each in (one, two)]
        await w.passes(30.0)
        assert sorted(each.done() for each in tries) == [False, True]
        assert set(w.holders()) in ({"a"}, {"b"})
        for each in tries:
            each.cancel()


@async_test
async def test_a_refusal_of_the_server_does_not_cost_what_is_held() -> None:
    async with world() as w, w.candidate("me") as me:

        def refuse(request: Request) -> None:
            if request.method == "POST" and request.json["metadata"]["name"] == "first":
                w.leases["second"].fails = status(500, "InternalError", "etcd has no leader")

        w.before = refuse
        acquiring = asyncio.ensure_future(me.acquire())
        await w.passes(8.0)
        assert w.holders() == ["me", ""]
        assert not me.leading
        w.leases["second"].fails = None
        await w.passes(3.0)
        assert acquiring.done()
        assert "" not in w.leases["first"].writes
        me.check()


@async_test
async def test_losing_one_is_losing_all() -> None:
    async with world() as w, w.candidate("me") as me:
        await me.acquire()
        holding = asyncio.ensure_future(me.renew_until_lost())
        await w.passes(6.0)
        me.check()
        w.renew("thief", "second")
        await wait_until(holding.done, tick=lambda: w.clock.advance(STEP_S))
        with pytest.raises(LeaseLost, match="thief holds it"):
            holding.result()
        with pytest.raises(LeaseLost):
            me.check()
        assert w.holders() == ["", "thief"]


@async_test
async def test_a_lease_that_is_lost_while_the_next_is_taken_ends_the_process() -> None:
    async with world() as w, w.candidate("me") as me:

        def refuse(request: Request) -> None:
            if request.method == "POST" and request.json["metadata"]["name"] == "second":
                w.leases["second"].fails = status(500, "InternalError", "etcd has no leader")

        w.before = refuse
        acquiring = asyncio.ensure_future(me.acquire())
        await w.passes(1.0)
        w.renew("thief", "first")
        await wait_until(acquiring.done, tick=lambda: w.clock.advance(STEP_S))
        with pytest.raises(LeaseLost, match="thief holds it"):
            acquiring.result()
        assert not me.leading


@async_test
async def test_stopping_gives_all_of_them_up() -> None:
    async with world() as w, w.candidate("me") as me:
        await me.acquire()
        holding = asyncio.ensure_future(me.renew_until_lost())
        await w.passes(2.0)
        holding.cancel()
        await asyncio.wait([holding])
        assert w.holders() == ["", ""]


@async_test
async def test_health_knows_how_long_the_oldest_is_overdue() -> None:
    async with world() as w, w.candidate("me") as me:
        assert me.overdue_s() == 0.0
        await me.acquire()
        w.clock.advance(36.0)
        assert me.overdue_s() == 21.0
