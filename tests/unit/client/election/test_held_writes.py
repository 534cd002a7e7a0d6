"""Writes that a lease holds back: sent after a late renewal, otherwise counted in one log line."""

from __future__ import annotations

import asyncio

import pytest

from bayplan.client import PODS, Client, LeaderElector, MultiLeaseElector
from bayplan.clock import ManualClock
from bayplan.errors import LeaseLost
from support.fakes.http_server import FakeHttpServer, Reply, Request, ServerAnswer
from support.fakes.lease_server import LeaseServer
from support.harness.async_tests import async_test, wait_until
from support.harness.lost_lease import StaleLease, complaints, unsent


async def _write(client: Client, number: int = 0) -> None:
    await client.patch(PODS, {}, namespace="ns", name=f"p{number}")


@async_test
async def test_a_held_write_is_sent_after_a_renewal(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with FakeHttpServer(lambda _: Reply()) as server, server.client(clock) as client:
        lease = StaleLease(clock)
        client.set_guard(lease)
        writing = asyncio.create_task(_write(client))
        await wait_until(lambda: lease.refused == 1)
        lease.leading = True
        await wait_until(writing.done, tick=lambda: clock.advance(0.1))
        await writing
        assert len(server.requests) == 1
        lease.report_unsent()
        assert complaints(caplog) == []


@async_test
async def test_cancelled_held_writes_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with FakeHttpServer(lambda _: Reply()) as server, server.client(clock) as client:
        lease = StaleLease(clock)
        client.set_guard(lease)
        writes = [asyncio.create_task(_write(client, number)) for number in range(45)]
        extender = asyncio.create_task(client.check_guard())
        await wait_until(lambda: lease.refused == 46)
        await client.transport.request("GET", "/x")  # held writes keep no connection
        for each in (*writes, extender):
            each.cancel()
        await asyncio.gather(*writes, extender, return_exceptions=True)
        assert all(each.cancelled() for each in (*writes, extender))
        assert server.request_lines() == ["GET /x"]
        lease.report_unsent()
        lease.report_unsent()
        assert complaints(caplog) == [unsent(46)]


@async_test
async def test_a_held_write_fails_when_the_process_does_not_end() -> None:
    clock = ManualClock()
    async with FakeHttpServer(lambda _: Reply()) as server, server.client(clock) as client:
        client.set_guard(StaleLease(clock))
        writing = asyncio.create_task(_write(client))
        await wait_until(writing.done, tick=lambda: clock.advance(0.5))
        with pytest.raises(LeaseLost):
            await writing


@async_test
async def test_a_cleanup_write_of_a_cancelled_task_is_not_held() -> None:
    clock = ManualClock()

    async def work(client: Client) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await _write(client)

    async with FakeHttpServer(lambda _: Reply()) as server, server.client(clock) as client:
        client.set_guard(StaleLease(clock))
        task = asyncio.create_task(work(client))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


@async_test
async def test_a_write_without_a_lease_is_refused_at_once() -> None:
    async with FakeHttpServer(LeaseServer()) as server, server.client(ManualClock()) as client:
        for guard in (election := LeaderElector(client, identity="me"), MultiLeaseElector([election], client.clock)):
            with pytest.raises(LeaseLost, match="does not hold it"):
                await guard.hold_back()


@async_test
async def test_a_write_after_the_release_is_refused_at_once() -> None:
    async with FakeHttpServer(LeaseServer()) as server, server.client(ManualClock()) as client:
        election = LeaderElector(client, identity="me")
        await election.acquire()
        renewing = asyncio.create_task(election.renew_until_lost())
        await asyncio.sleep(0)
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with pytest.raises(LeaseLost, match="does not hold it"):
            await election.hold_back()


@pytest.mark.parametrize("several", [False, True], ids=["one-lease", "two-leases"])
def test_a_lost_lease_holds_writes_back(several: bool, caplog: pytest.LogCaptureFixture) -> None:
    @async_test
    async def test() -> None:
        clock, names = ManualClock(), ("first", "second") if several else ("first",)
        leases = {name: LeaseServer(name) for name in names}

        def route(request: Request) -> ServerAnswer:
            is_new = request.method == "POST"
            return leases[request.json["metadata"]["name"] if is_new else request.path.rpartition("/")[2]](request)

        async with FakeHttpServer(route) as server, server.client(clock) as client:
            elections = [LeaderElector(client, identity="me", name=name) for name in names]
            guard = MultiLeaseElector(elections, clock) if several else elections[0]
            await guard.acquire()
            renewing = asyncio.create_task(guard.renew_until_lost())
            await asyncio.sleep(0)
            clock.advance(1000.0)  # as if the process had been stopped
            late = asyncio.create_task(guard.hold_back())
            await wait_until(renewing.done, tick=lambda: clock.advance(0.01))
            with pytest.raises(LeaseLost):
                await renewing
            later = asyncio.create_task(guard.hold_back())
            await asyncio.sleep(0)
            assert not late.done()
            for each in (late, later):
                each.cancel()
            await asyncio.wait([late, later])
            caplog.clear()
            guard.report_unsent()
            assert complaints(caplog) == [unsent(2)]

    test()
