"""Leader election over a Lease: candidates, the written record, and when writes are forbidden."""

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


class Harness:
    def __init__(self, leases: LeaseServer, clock: ManualClock, election: LeaderElector) -> None:
        self.leases = leases
        self.clock = clock
        self.election = election

    async def acquire(self) -> asyncio.Task[None]:
        """Acquire the lease, then renew it in a task."""
        await self.election.acquire()
        renewing = asyncio.create_task(self.election.renew_until_lost())
        await asyncio.sleep(0)
        return renewing

    async def advance(self, seconds: float, *, step_s: float = 0.25) -> None:
        """Advance the clock in steps, and let tasks run after each."""
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
            for _ in range(3):
                await asyncio.sleep(0.001)


@asynccontextmanager
async def elector(identity: str = "me", program: ExecConfig | None = None, **options: Any) -> AsyncIterator[Harness]:
    clock, leases = ManualClock(), LeaseServer()
    async with (
        FakeHttpServer(leases) as server,
        server.client(clock, timeout_s=5.0, target=server.target(exec=program)) as client,
    ):
        yield Harness(leases, clock, LeaderElector(client, identity=identity, **options))


def test_micro_times_have_the_servers_format() -> None:
    assert format_micro_time(datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)) == "2026-01-02T03:04:05.000006Z"


@pytest.mark.parametrize(
    "timings", [{"lease_s": 10.0}, {"retry_s": 9.0}], ids=["lease-not-longer-than-renewal", "retry-too-slow"]
)
def test_invalid_timings_are_refused(timings: dict[str, float]) -> None:
    with pytest.raises(BayplanError, match="must be greater than"):
        ElectionTimings(**timings)


@async_test
async def test_a_missing_namespace_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with elector() as w:
        w.leases.fails = status(404, "NotFound", 'namespaces "kube-system" not found')
        waiting = asyncio.ensure_future(w.election.acquire())
        await w.advance(20.0)
        (warning,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        assert "create that namespace, or name another one for the lease" in warning
        w.leases.fails = None
        await w.advance(10.0)
        await waiting
        assert w.election.leading


@async_test
async def test_the_first_candidate_creates_the_lease() -> None:
    async with elector() as w:
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
async def test_a_renewal_every_two_seconds_changes_only_the_renew_time() -> None:
    async with elector() as w:
        renewing = await w.acquire()
        acquired = w.leases.spec["acquireTime"]
        await w.advance(20)
        assert w.leases.writes == ["me"] * 11
        assert (w.leases.spec["acquireTime"], w.leases.spec["leaseTransitions"]) == (acquired, 0)
        assert w.leases.spec["renewTime"] == format_micro_time(w.clock.now())
        w.election.check()
        renewing.cancel()


@async_test
async def test_a_candidate_waits_for_the_expiry_of_the_lease() -> None:
    leaders: list[str] = []
    async with elector(on_new_leader=leaders.append) as w:
        w.leases.lease = lease_held_by("other")
        acquiring = asyncio.create_task(w.election.acquire())
        await w.advance(14)
        assert not acquiring.done()
        assert w.election.leader == "other"
        await wait_until(acquiring.done, tick=lambda: w.clock.advance(0.25))
        assert 15.0 <= w.clock.monotonic_s() < 20.0
        assert w.leases.spec["leaseTransitions"] == 5
        assert leaders == ["other", "me"]


@pytest.mark.parametrize("died_at_s", [20.0, 20.5, 21.0, 21.5, 22.0])
@async_test
async def test_a_dead_leader_is_replaced_within_1_2_lease_durations(died_at_s: float) -> None:
    async with elector() as w:
        w.leases.steal("other")
        acquiring = asyncio.create_task(w.election.acquire())
        while w.clock.monotonic_s() < died_at_s:
            await w.advance(0.25)
            w.leases.steal("other")
        while not acquiring.done():
            await w.advance(0.25)
        assert 15.0 <= w.clock.monotonic_s() - died_at_s <= 1.2 * 15.0


@async_test
async def test_a_renewed_lease_is_not_taken() -> None:
    async with elector() as w:
        w.leases.lease = lease_held_by("other")
        acquiring = asyncio.create_task(w.election.acquire())
        for number in range(10):
            await w.advance(5)
            w.leases.lease = lease_held_by("other", renewed=f"{number}")
        assert not acquiring.done()
        acquiring.cancel()


@async_test
async def test_a_released_lease_is_taken_at_once() -> None:
    async with elector() as w:
        w.leases.lease = lease_held_by("")
        await w.election.acquire()
        assert w.leases.spec["leaseTransitions"] == 5


@async_test
async def test_a_candidate_with_the_holders_identity_resumes_the_lease() -> None:
    async with elector() as w:
        w.leases.lease = lease_held_by("me")
        await w.election.acquire()
        assert (w.leases.spec["acquireTime"], w.leases.spec["leaseTransitions"]) == ("then", 4)


@async_test
async def test_a_failing_server_does_not_end_an_unexpired_lease() -> None:
    async with elector() as w:
        renewing = await w.acquire()
        await w.advance(4)
        w.leases.fails = status(500, "InternalError", "etcd has no leader")
        await w.advance(6)
        w.election.check()
        w.leases.fails = None
        await w.advance(8)
        assert not renewing.done()
        w.election.check()
        renewing.cancel()


@pytest.mark.parametrize("fails", [status(500, "InternalError"), NoAnswer()], ids=["fails", "hangs"])
@async_test
async def test_a_lease_is_lost_after_the_renew_deadline(fails: ServerAnswer) -> None:
    async with elector() as w:
        renewing = await w.acquire()
        await w.advance(2)
        w.leases.fails = fails
        started_s = w.clock.monotonic_s()
        await w.advance(9)
        w.election.check()
        assert not renewing.done()
        await wait_until(renewing.done, tick=lambda: w.clock.advance(0.25))
        assert w.clock.monotonic_s() - started_s < 10.6
        with pytest.raises(LeaseLost, match="no renewal for 10 s"):
            renewing.result()
        with pytest.raises(LeaseLost):
            w.election.check()


@async_test
async def test_a_temporary_failure_of_an_exec_plugin_loses_no_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program, renamed = tmp_path / "login", tmp_path / "away"
    version = "client.authentication.k8s.io/v1"
    soon = (ManualClock().now() + timedelta(seconds=1)).isoformat()
    permanent = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "lasting"}}
    short = {**permanent, "status": {"token": "short", "expirationTimestamp": soon}}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(short)}'\n")
    program.chmod(0o755)
    async with elector(program=ExecConfig(command=str(program), api_version=version)) as w:
        renewing = await w.acquire()
        program.rename(renamed)
        await w.advance(6)
        assert "cannot run the credential program" in caplog.text
        assert not renewing.done()
        renamed.write_text(f"#!/bin/sh\necho '{json.dumps(permanent)}'\n")
        renamed.rename(program)
        renewed = len(w.leases.writes)
        w.clock.advance(2.0)
        await wait_until(lambda: len(w.leases.writes) > renewed)
        assert w.election.leading
        renewing.cancel()
        await asyncio.wait([renewing])


@async_test
async def test_a_lease_taken_by_another_process_is_lost_at_once() -> None:
    async with elector() as w:
        renewing = await w.acquire()
        await w.advance(2)
        w.leases.steal("other")
        await wait_until(renewing.done, tick=lambda: w.clock.advance(0.25))
        with pytest.raises(LeaseLost, match="other holds it"):
            renewing.result()
        with pytest.raises(LeaseLost):
            w.election.check()
        assert w.leases.spec["holderIdentity"] == "other"


@pytest.mark.parametrize("seconds", [10.0, 12.0, 20.0, 1000.0])
@async_test
async def test_a_process_that_continues_after_a_stop_may_not_write(seconds: float) -> None:
    async with elector() as w:
        renewing = await w.acquire()
        await w.advance(2)
        before = list(w.leases.asked)
        w.clock.advance(seconds)  # no task has run meanwhile
        with pytest.raises(LeaseLost, match=f"{seconds:.0f} s old"):
            w.election.check()
        await wait_until(renewing.done)
        with pytest.raises(LeaseLost):
            renewing.result()
        assert w.leases.asked == before


@async_test
async def test_a_renewal_counts_from_its_request() -> None:
    clock, leases = ManualClock(), LeaseServer()

    def slow(request: Request) -> ServerAnswer:
        clock.advance(3.0)
        return leases(request)

    async with FakeHttpServer(slow) as server, server.client(clock, timeout_s=60.0) as client:
        election = LeaderElector(client, identity="me")
        await election.acquire()  # reads and creates: two requests
        assert election.age_s() == 6.0


@async_test
async def test_a_lease_with_a_new_version_is_read_and_renewed() -> None:
    async with elector() as w:
        renewing = await w.acquire()
        assert w.leases.lease is not None
        w.leases._store({**w.leases.lease, "metadata": {**w.leases.lease["metadata"], "labels": {"a": "b"}}})
        await w.advance(4)
        assert not renewing.done()
        assert w.leases.lease["metadata"]["labels"] == {"a": "b"}
        assert w.election.age_s() < 2.5
        renewing.cancel()


@async_test
async def test_a_deleted_lease_is_recreated() -> None:
    async with elector() as w:
        renewing = await w.acquire()
        w.leases.lease = None
        await w.advance(4)
        assert w.leases.spec["holderIdentity"] == "me"
        renewing.cancel()


@async_test
async def test_a_cancelled_holder_releases_the_lease() -> None:
    async with elector() as w:
        renewing = await w.acquire()
        await w.advance(2)
        renewing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await renewing
        assert w.leases.spec["holderIdentity"] == ""
        assert w.leases.spec["leaseDurationSeconds"] == 1
        with pytest.raises(LeaseLost):
            w.election.check()


@async_test
async def test_a_retained_lease_expires_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    async with elector() as w:
        renewing = await w.acquire()
        w.election.retain()
        await w.advance(2)
        renewing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await renewing
        assert w.leases.spec["holderIdentity"] == w.election.identity
        assert "is not released and expires in 15 s: a write may still take effect" in caplog.text
        with pytest.raises(LeaseLost):
            w.election.check()


@async_test
async def test_the_lease_of_another_process_is_not_released() -> None:
    async with elector() as w:
        renewing = await w.acquire()
        w.leases.steal("other")
        renewing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await renewing
        assert w.leases.spec["holderIdentity"] == "other"


@async_test
async def test_overdue_s_counts_from_the_expiry_of_the_lease() -> None:
    async with elector() as w:
        assert w.election.overdue_s() == 0.0
        await w.election.acquire()
        w.clock.advance(36.0)
        assert w.election.overdue_s() == 21.0
