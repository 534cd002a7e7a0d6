"""Several leases that count as one: all or none are held, and a dead holder is replaced in time."""

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


class Harness:
    """Two leases on one server, and their candidates."""

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
        return [holder for each in self.leases.values() for holder in each.writes]

    def renew(self, holder: str, *names: str) -> None:
        for name in names or NAMES:
            self.leases[name].steal(holder)

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

    async def advance(self, seconds: float, each_step: Callable[[], None] = lambda: None) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.clock.advance(STEP_S)
            each_step()
            for _ in range(3):
                await asyncio.sleep(0.001)


@asynccontextmanager
async def two_leases() -> AsyncIterator[Harness]:
    clock = ManualClock()
    async with FakeHttpServer() as server:
        harness = Harness(server, clock, {name: LeaseServer(name) for name in NAMES})
        server.route = harness
        yield harness


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("retry_s", [2.0, 8.0], ids=["usual", "seldom"])
@async_test
async def test_both_leases_of_a_dead_leader_are_taken_within_1_2_lease_durations(seed: int, retry_s: float) -> None:
    """Independent of when the holder dies between two reads, and with a long retry period, too."""
    timings = ElectionTimings(retry_s=retry_s)
    async with two_leases() as w, w.candidate("me", seed=seed, timings=timings) as me:
        w.renew("dead")
        acquiring = asyncio.ensure_future(me.acquire())
        await w.advance(20.0 + 0.5 * seed, lambda: w.renew("dead"))  # the holder dies right after a renewal
        assert w.holders() == ["dead", "dead"]
        died_s = w.clock.monotonic_s()
        while not acquiring.done():
            await w.advance(STEP_S)
        assert timings.lease_s <= w.clock.monotonic_s() - died_s <= 1.2 * timings.lease_s
        me.check()
        assert w.holders() == ["me", "me"]


@async_test
async def test_leases_observed_during_the_start_are_taken_at_their_expiry() -> None:
    """The time in which a starting process fills its caches counts."""
    async with two_leases() as w, w.candidate("me") as me:
        w.renew("dead")
        observing = asyncio.ensure_future(me.observe())
        await w.advance(14.0)
        observing.cancel()
        acquiring = asyncio.ensure_future(me.acquire())
        await w.advance(2.0)
        assert acquiring.done()
        assert w.holders() == ["me", "me"]


@async_test
async def test_candidates_read_each_lease_once_per_retry_period_and_write_nothing() -> None:
    async with two_leases() as w, w.candidate("me") as me:
        w.renew("other")
        acquiring = asyncio.ensure_future(me.acquire())
        await w.advance(60.0, lambda: w.renew("other"))
        for lease in w.leases.values():
            assert set(lease.asked) == {"GET"}
            assert 25 <= len(lease.asked) <= 33
        acquiring.cancel()


@pytest.mark.parametrize("held", NAMES)
@async_test
async def test_no_lease_is_taken_while_another_process_holds_one(held: str) -> None:
    async with two_leases() as w, w.candidate("me") as me:
        w.renew("other", held)
        acquiring = asyncio.ensure_future(me.acquire())
        await w.advance(40.0, lambda: w.renew("other", held))
        assert set(w.writes()) == {"other"}
        assert not acquiring.done()
        await wait_until(acquiring.done, tick=lambda: w.clock.advance(STEP_S))
        assert w.holders() == ["me", "me"]


@async_test
async def test_the_first_lease_is_released_when_another_process_takes_the_second() -> None:
    async with two_leases() as w, w.candidate("me") as me:

        def take_second(request: Request) -> None:
            if request.method == "POST" and request.json["metadata"]["name"] == "first":
                w.renew("other", "second")

        w.before = take_second
        acquiring = asyncio.ensure_future(me.acquire())
        await w.advance(4.0)
        assert w.leases["first"].writes[:2] == ["me", ""]
        assert w.holders() == ["", "other"]
        assert not me.leading
        with pytest.raises(LeaseLost):
            me.check()
        await wait_until(acquiring.done, tick=lambda: w.clock.advance(STEP_S))
        assert w.holders() == ["me", "me"]


@pytest.mark.parametrize("seed", range(4))
@async_test
async def test_one_of_two_concurrent_candidates_gets_all_leases(seed: int) -> None:
    async with two_leases() as w, w.candidate("a", seed=seed) as one, w.candidate("b", seed=seed + 10) as two:
        tries = [asyncio.ensure_future(each.acquire()) for each in (one, two)]
        await w.advance(30.0)
        assert sorted(each.done() for each in tries) == [False, True]
        assert set(w.holders()) in ({"a"}, {"b"})
        for each in tries:
            each.cancel()


@async_test
async def test_a_refusal_of_the_server_keeps_the_held_leases() -> None:
    async with two_leases() as w, w.candidate("me") as me:

        def refuse(request: Request) -> None:
            if request.method == "POST" and request.json["metadata"]["name"] == "first":
                w.leases["second"].fails = status(500, "InternalError", "etcd has no leader")

        w.before = refuse
        acquiring = asyncio.ensure_future(me.acquire())
        await w.advance(8.0)
        assert w.holders() == ["me", ""]
        assert not me.leading
        w.leases["second"].fails = None
        await w.advance(3.0)
        assert acquiring.done()
        assert "" not in w.leases["first"].writes
        me.check()


@async_test
async def test_the_loss_of_one_lease_releases_all() -> None:
    async with two_leases() as w, w.candidate("me") as me:
        await me.acquire()
        renewing = asyncio.ensure_future(me.renew_until_lost())
        await w.advance(6.0)
        me.check()
        w.renew("thief", "second")
        await wait_until(renewing.done, tick=lambda: w.clock.advance(STEP_S))
        with pytest.raises(LeaseLost, match="thief holds it"):
            renewing.result()
        with pytest.raises(LeaseLost):
            me.check()
        assert w.holders() == ["", "thief"]


@async_test
async def test_a_loss_during_the_acquisition_raises_lease_lost() -> None:
    async with two_leases() as w, w.candidate("me") as me:

        def refuse(request: Request) -> None:
            if request.method == "POST" and request.json["metadata"]["name"] == "second":
                w.leases["second"].fails = status(500, "InternalError", "etcd has no leader")

        w.before = refuse
        acquiring = asyncio.ensure_future(me.acquire())
        await w.advance(1.0)
        w.renew("thief", "first")
        await wait_until(acquiring.done, tick=lambda: w.clock.advance(STEP_S))
        with pytest.raises(LeaseLost, match="thief holds it"):
            acquiring.result()
        assert not me.leading


@async_test
async def test_a_cancelled_holder_releases_all_leases() -> None:
    async with two_leases() as w, w.candidate("me") as me:
        await me.acquire()
        renewing = asyncio.ensure_future(me.renew_until_lost())
        await w.advance(2.0)
        renewing.cancel()
        await asyncio.wait([renewing])
        assert w.holders() == ["", ""]


@async_test
async def test_overdue_s_is_the_longest_of_all_leases() -> None:
    async with two_leases() as w, w.candidate("me") as me:
        assert me.overdue_s() == 0.0
        await me.acquire()
        w.clock.advance(36.0)
        assert me.overdue_s() == 21.0
