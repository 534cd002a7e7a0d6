"""Leader election over a Lease: who leads, who waits, what is written, and when nothing may be written any more."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import ElectionTimings, LeaderElector
from bayplan.client.auth.kubeconfig import ExecConfig
from bayplan.clock import ManualClock
from bayplan.errors import BayplanError, LeaseLost
from bayplan.objects.meta import format_micro_time
from support.fakes.http_server import FakeHttpServer, NoAnswer, Request, ServerAnswer, status
from support.fakes.lease_server import LeaseServer, lease_held_by
from support.harness.async_tests import async_test, wait_until


class World:
    def __init__(self, leases: LeaseServer, clock: ManualClock, election: LeaderElector) -> None:
        self.leases = leases
        self.clock = clock
        self.election = election

    async def leads(self) -> asyncio.Task[None]:
        """Acquire, then hold in a task of its own."""
        await self.election.acquire()
        holding = asyncio.create_task(self.election.renew_until_lost())
        await asyncio.sleep(0)
        return holding

    async def passes(self, seconds: float, *, step_s: float = 0.25) -> None:
        """Time goes by and everybody has turns enough to do what is due."""
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
            for _ in range(3):
                await asyncio.sleep(0.001)


@asynccontextmanager
async def world(identity: str = "me", program: ExecConfig | None = None, **more: Any) -> AsyncIterator[World]:
    clock, leases = ManualClock(), LeaseServer()
    async with (
        FakeHttpServer(leases) as server,
        server.client(clock, timeout_s=5.0, target=server.target(exec=program)) as client,
    ):
        yield World(leases, clock, LeaderElector(client, identity=identity, **more))


def test_times_are_written_as_the_server_writes_them() -> None:
    assert format_micro_time(datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)) == "2026-01-02T03:04:05.000006Z"


@pytest.mark.parametrize(
    "wrong", [{"lease_s": 10.0}, {"retry_s": 9.0}], ids=["lease-not-longer-than-renewal", "retry-too-slow"]
)
def test_timings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BayplanError, match="must be greater than"):
        ElectionTimings(**wrong)


@async_test
async def test_a_namespace_that_is_not_there_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        w.leases.fails = status(404, "NotFound", 'namespaces "kube-system" not found')
        waiting = asyncio.ensure_future(w.election.acquire())
        await w.passes(20.0)
        (told,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        assert "create that namespace, or name another one for the lease" in told
        w.leases.fails = None
        await w.passes(10.0)
        await waiting
        assert w.election.leading


@async_test
async def test_the_first_one_makes_the_lease() -> None:
    async with world() as w:
        with pytest.raises(LeaseLost, match="does not hold it"):
            w.election.check()
        await w.election.acquire()
        w.election.check()
        assert w.election.leading
        now = format_micro_time(w.clock.now())
        assert w.leases.spec == {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        }


@async_test
async def test_a_lease_is_renewed_every_two_seconds_and_nothing_else_in_it_changes() -> None:
    async with world() as w:
        holding = await w.leads()
        acquired = w.leases.spec["acquireTime"]
        await w.passes(20)
        assert w.leases.writes == ["me"] * 11
        assert (w.leases.spec["acquireTime"], w.leases.spec["leaseTransitions"]) == (acquired, 0)
        assert w.leases.spec["renewTime"] == format_micro_time(w.clock.now())
        w.election.check()
        holding.cancel()


@async_test
async def test_a_lease_of_somebody_else_is_waited_for_until_it_ends() -> None:
    heard: list[str] = []
    async with world(on_new_leader=heard.append) as w:
        w.leases.lease = lease_held_by("other")
        acquiring = asyncio.create_task(w.election.acquire())
        await w.passes(14)
        assert not acquiring.done()
        assert w.election.leader == "other"
        await wait_until(acquiring.done, tick=lambda: w.clock.advance(0.25))
        assert 15.0 <= w.clock.monotonic_s() < 20.0
        assert w.leases.spec["leaseTransitions"] == 5
        assert heard == ["other", "me"]


@pytest.mark.parametrize("died_at_s", [20.0, 20.5, 21.0, 21.5, 22.0])
@async_test
async def test_a_dead_leader_is_replaced_within_1_2_lease_durations(died_at_s: float) -> None:
    async with world() as w:
        w.leases.steal("other")
        acquiring = asyncio.create_task(w.election.acquire())
        while w.clock.monotonic_s() < died_at_s:
            await w.passes(0.25)
            w.leases.steal("other")
        while not acquiring.done():
            await w.passes(0.25)
        assert 15.0 <= w.clock.monotonic_s() - died_at_s <= 1.2 * 15.0


@async_test
async def test_a_lease_that_is_renewed_is_not_taken() -> None:
    async with world() as w:
        w.leases.lease = lease_held_by("other")
        acquiring = asyncio.create_task(w.election.acquire())
        for number in range(10):
            await w.passes(5)
            w.leases.lease = lease_held_by("other", renewed=f"{number}")
        assert not acquiring.done()
        acquiring.cancel()


@async_test
async def test_a_lease_that_was_given_up_is_taken_at_once() -> None:
    async with world() as w:
        w.leases.lease = lease_held_by("")
        await w.election.acquire()
        assert w.leases.spec["leaseTransitions"] == 5


@async_test
async def test_who_comes_back_under_its_own_name_goes_on() -> None:
    async with world() as w:
        w.leases.lease = lease_held_by("me")
        await w.election.acquire()
        assert (w.leases.spec["acquireTime"], w.leases.spec["leaseTransitions"]) == ("then", 4)


@async_test
async def test_a_server_that_fails_does_not_end_a_lease_that_still_lasts() -> None:
    async with world() as w:
        holding = await w.leads()
        await w.passes(4)
        w.leases.fails = status(500, "InternalError", "etcd has no leader")
        await w.passes(6)
        w.election.check()
        w.leases.fails = None
        await w.passes(8)
        assert not holding.done()
        w.election.check()
        holding.cancel()


@pytest.mark.parametrize("fails", [status(500, "InternalError"), NoAnswer()], ids=["fails", "hangs"])
@async_test
async def test_ten_seconds_without_a_renewal_are_the_end(fails: ServerAnswer) -> None:
    async with world() as w:
        holding = await w.leads()
        await w.passes(2)
        w.leases.fails = fails
        began = w.clock.monotonic_s()
        await w.passes(9)
        w.election.check()
        assert not holding.done()
        await wait_until(holding.done, tick=lambda: w.clock.advance(0.25))
        assert w.clock.monotonic_s() - began < 10.6
        with pytest.raises(LeaseLost, match="no renewal for 10 s"):
            holding.result()
        with pytest.raises(LeaseLost):
            w.election.check()


@async_test
async def test_a_credential_program_that_fails_for_a_while_costs_no_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program, away = tmp_path / "login", tmp_path / "away"
    version = "client.authentication.k8s.io/v1"
    soon = (ManualClock().now() + timedelta(seconds=1)).isoformat()
    lasting = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "lasting"}}
    short = {**lasting, "status": {"token": "short", "expirationTimestamp": soon}}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(short)}'\n")
    program.chmod(0o755)
    async with world(program=ExecConfig(command=str(program), api_version=version)) as w:
        holding = await w.leads()
        program.rename(away)
        await w.passes(6)
        assert "cannot run the credential program" in caplog.text
        assert not holding.done()
        away.write_text(f"#!/bin/sh\necho '{json.dumps(lasting)}'\n")
        away.rename(program)
        renewed = len(w.leases.writes)
        w.clock.advance(2.0)
        await wait_until(lambda: len(w.leases.writes) > renewed)
        assert w.election.leading
        holding.cancel()
        await asyncio.wait([holding])


@async_test
async def test_a_lease_that_somebody_took_is_lost_at_once() -> None:
    async with world() as w:
        holding = await w.leads()
        await w.passes(2)
        w.leases.steal("other")
        await wait_until(holding.done, tick=lambda: w.clock.advance(0.25))
        with pytest.raises(LeaseLost, match="other holds it"):
            holding.result()
        with pytest.raises(LeaseLost):
            w.election.check()
        assert w.leases.spec["holderIdentity"] == "other"


@pytest.mark.parametrize("seconds", [10.0, 12.0, 20.0, 1000.0])
@async_test
async def test_a_process_that_was_stopped_writes_nothing_when_it_goes_on(seconds: float) -> None:
    async with world() as w:
        holding = await w.leads()
        await w.passes(2)
        before = list(w.leases.asked)
        w.clock.advance(seconds)  # nobody had a turn meanwhile, and nobody has had one yet
        with pytest.raises(LeaseLost, match=f"{seconds:.0f} s old"):
            w.election.check()
        await wait_until(holding.done)
        with pytest.raises(LeaseLost):
            holding.result()
        assert w.leases.asked == before


@async_test
async def test_a_renewal_counts_from_when_it_was_sent() -> None:
    clock, leases = ManualClock(), LeaseServer()

    def slow(request: Request) -> ServerAnswer:
        clock.advance(3.0)
        return leases(request)

    async with FakeHttpServer(slow) as server, server.client(clock, timeout_s=60.0) as client:
        election = LeaderElector(client, identity="me")
        await election.acquire()  # reads and creates: two requests
        assert election.age_s() == 6.0


@async_test
async def test_a_version_that_moved_on_is_looked_up_and_renewed() -> None:
    async with world() as w:
        holding = await w.leads()
        assert w.leases.lease is not None
        w.leases._store({**w.leases.lease, "metadata": {**w.leases.lease["metadata"], "labels": {"a": "b"}}})
        await w.passes(4)
        assert not holding.done()
        assert w.leases.lease["metadata"]["labels"] == {"a": "b"}
        assert w.election.age_s() < 2.5
        holding.cancel()


@async_test
async def test_a_lease_that_was_deleted_is_made_again() -> None:
    async with world() as w:
        holding = await w.leads()
        w.leases.lease = None
        await w.passes(4)
        assert w.leases.spec["holderIdentity"] == "me"
        holding.cancel()


@async_test
async def test_stopping_gives_the_lease_up() -> None:
    async with world() as w:
        holding = await w.leads()
        await w.passes(2)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        assert w.leases.spec["holderIdentity"] == ""
        assert w.leases.spec["leaseDurationSeconds"] == 1
        with pytest.raises(LeaseLost):
            w.election.check()


@async_test
async def test_a_lease_that_is_retained_expires_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        holding = await w.leads()
        w.election.retain()
        await w.passes(2)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        assert w.leases.spec["holderIdentity"] == w.election.identity
        assert "is not released and expires in 15 s: a write may still take effect" in caplog.text
        with pytest.raises(LeaseLost):
            w.election.check()


@async_test
async def test_a_lease_of_somebody_else_is_not_given_up() -> None:
    async with world() as w:
        holding = await w.leads()
        w.leases.steal("other")
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        assert w.leases.spec["holderIdentity"] == "other"


@async_test
async def test_health_knows_how_long_a_lease_is_overdue() -> None:
    async with world() as w:
        assert w.election.overdue_s() == 0.0
        await w.election.acquire()
        w.clock.advance(36.0)
        assert w.election.overdue_s() == 21.0
