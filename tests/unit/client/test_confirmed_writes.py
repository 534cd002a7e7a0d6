"""Writes with an unknown outcome: retried, looked up, and failed only when they cannot take effect any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from bayplan.client import (
    REQUEST_TIMEOUT_S,
    ConfirmedWrite,
    ConfirmedWrites,
    LateCreates,
    NotWritten,
    WriteState,
    worker_slot,
)
from bayplan.clock import ManualClock
from bayplan.errors import ApiError, Conflict, Forbidden, NotFound, ServerError, TooManyRequests, Unreachable
from support.harness.async_tests import async_test, wait_until

LOST = Unreachable("the connection was cut", sent=True)
NOT_SENT = Unreachable("connection refused")
FAILED = ServerError("it failed", code=500)
REFUSED = Forbidden("not you", code=403)
RETRIED_THEN_REFUSED = Conflict("already assigned", code=409)
RETRIED_THEN_REFUSED.outcome_unknown = True


@dataclass
class Server:
    """Answers sends in order, repeating the last answer; the write takes effect at `lands_s`."""

    answers: list[ApiError | str]
    lands_s: float = float("inf")
    lookups: list[ApiError | NotWritten] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)
    sent_s: list[float] = field(default_factory=list)
    lookup_delays_s: list[float] = field(default_factory=list)
    lookups_s: list[float] = field(default_factory=list)

    async def send(self) -> str:
        self.sent_s.append(self.clock.monotonic_s())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def find(self) -> WriteState[str]:
        self.lookups_s.append(self.clock.monotonic_s())
        if self.lookups:
            result = self.lookups.pop(0)
            if isinstance(result, ApiError):
                raise result
            return result
        found = ConfirmedWrite("found") if self.clock.monotonic_s() >= self.lands_s else NotWritten.SO_FAR
        if self.lookup_delays_s:
            await self.clock.sleep(self.lookup_delays_s.pop(0))
        return found

    async def write(self, **options: Any) -> str:
        confirmed = ConfirmedWrites(self.clock)
        work = asyncio.ensure_future(confirmed.write(self.send, self.find, what="a write", **options))
        await wait_until(work.done, tick=lambda: self.clock.advance(0.05))
        return work.result()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async_test(test)()


@pytest.mark.parametrize("lost", [LOST, FAILED, RETRIED_THEN_REFUSED], ids=["lost", "5xx", "4xx after a retried 5xx"])
def test_a_lookup_finds_a_write_that_took_effect(lost: ApiError) -> None:
    async def test() -> None:
        server = Server([lost], lands_s=0.0)
        assert await server.write() == "found"
        assert (len(server.sent_s), len(server.lookups_s)) == (1, 1)

    run(test)


@pytest.mark.parametrize("lost", [LOST, FAILED], ids=["lost", "5xx"])
def test_a_write_that_had_no_effect_is_sent_again(lost: ApiError) -> None:
    async def test() -> None:
        server = Server([lost, lost, "done"])
        assert await server.write() == "done"
        assert server.sent_s == [pytest.approx(0.0), pytest.approx(0.25, abs=0.1), pytest.approx(0.75, abs=0.2)]

    run(test)


@pytest.mark.parametrize("lands_s", [0.3, 4.0, 59.0])
def test_a_write_that_takes_effect_late_is_found(lands_s: float) -> None:
    async def test() -> None:
        server = Server([FAILED], lands_s=lands_s)
        assert await server.write() == "found"
        assert server.clock.monotonic_s() >= lands_s

    run(test)


@async_test
async def test_the_refusal_is_raised_after_the_request_timeout() -> None:
    server = Server([FAILED])
    with pytest.raises(ServerError, match="it failed"):
        await server.write()
    last_s = server.sent_s[-1]
    assert len(server.sent_s) == 4
    assert server.lookups_s[-1] >= last_s + REQUEST_TIMEOUT_S
    assert server.lookups_s[-2] < last_s + REQUEST_TIMEOUT_S


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([LOST, NOT_SENT], id="before-the-write-is-sent-again"),
        pytest.param([FAILED], id="after-the-last-send"),
    ],
)
@async_test
async def test_a_lookup_sent_before_the_request_timeout_is_inconclusive(answers: list[ApiError | str]) -> None:
    sends = len(answers) if len(answers) > 1 else 4
    slow = [0.0] * (sends - 1) if len(answers) == 1 else []
    server = Server([*answers], lands_s=30.0, lookup_delays_s=[*slow, REQUEST_TIMEOUT_S + 5.0])
    assert await server.write() == "found"


@async_test
async def test_a_write_that_cannot_take_effect_any_more_is_refused_at_once() -> None:
    server = Server([LOST], lookups=[NotWritten.FOR_EVER])
    with pytest.raises(Unreachable):
        await server.write()
    assert (len(server.sent_s), server.clock.monotonic_s()) == (1, pytest.approx(0.0, abs=0.2))


@async_test
async def test_a_refusal_is_looked_up_once_and_raised() -> None:
    server = Server([REFUSED])
    with pytest.raises(Forbidden):
        await server.write()
    assert (len(server.sent_s), len(server.lookups_s)) == (1, 1)


@async_test
async def test_a_refused_write_that_took_effect_succeeds() -> None:
    assert await Server([REFUSED], lands_s=0.0).write() == "found"


@async_test
async def test_a_trusted_refusal_is_raised_without_a_lookup() -> None:
    server = Server([REFUSED], lands_s=0.0)
    with pytest.raises(Forbidden):
        await server.write(trust_refusal=True)
    assert server.lookups_s == []


@async_test
async def test_only_some_refusals_are_trusted() -> None:
    server = Server([Conflict("changed", code=409)], lands_s=0.0)
    with pytest.raises(Conflict):
        await server.write(trusted=(Conflict, NotFound))
    assert server.lookups_s == []
    assert await Server([REFUSED], lands_s=0.0).write(trusted=(Conflict, NotFound)) == "found"


@async_test
async def test_a_refusal_after_an_unknown_outcome_waits_for_that_outcome() -> None:
    server = Server([LOST, REFUSED], lands_s=30.0)
    assert await server.write(trust_refusal=True) == "found"


@async_test
async def test_an_unsent_request_fails_without_a_lookup() -> None:
    server = Server([NOT_SENT])
    with pytest.raises(Unreachable):
        await server.write()
    assert (len(server.sent_s), server.lookups_s) == (1, [])


@pytest.mark.parametrize("refusal", [NOT_SENT, TooManyRequests("later", code=429)], ids=["not sent", "429"])
def test_an_unreceived_or_throttled_write_is_retried_on_demand(refusal: ApiError) -> None:
    async def test() -> None:
        assert await Server([refusal, refusal, "done"]).write(retry_refused=True, trust_refusal=True) == "done"
        server = Server([refusal])
        with pytest.raises(type(refusal)):
            await server.write(retry_refused=True, trust_refusal=True)
        assert (len(server.sent_s), server.lookups_s) == (4, [])

    run(test)


@async_test
async def test_a_write_with_an_unknown_outcome_is_sent_until_the_server_receives_it() -> None:
    """Requests that the server did not receive do not count: they call no webhook."""
    server = Server([LOST, *[NOT_SENT] * 5, "done"])
    assert await server.write() == "done"
    assert len(server.sent_s) == 7


def test_a_create_is_remembered_until_it_cannot_take_effect() -> None:
    clock = ManualClock()
    late = LateCreates(ConfirmedWrites(clock))
    late.note("answered", REFUSED)
    late.note("first", LOST)
    clock.advance(10.0)
    late.note("second", LOST)
    found = [late.until_s(each) for each in ("answered", "first", "second")]
    assert found == [None, REQUEST_TIMEOUT_S, 10.0 + REQUEST_TIMEOUT_S]
    clock.advance(REQUEST_TIMEOUT_S - 10.0)
    late.note("third", LOST)
    assert [late.until_s(each) is None for each in ("first", "second", "third")] == [True, False, False]
    assert late._until_s.keys() == {"second", "third"}, "expired entries are removed"


@async_test
async def test_a_lookup_is_retried_until_the_server_answers() -> None:
    server = Server([LOST, "done"], lookups=[NOT_SENT, FAILED, TooManyRequests("later", code=429), NotWritten.SO_FAR])
    assert await server.write() == "done"
    assert len(server.lookups_s) == 4


@async_test
async def test_a_refused_lookup_is_inconclusive() -> None:
    server = Server([LOST, "done"], lookups=[NotFound("no such kind", code=404)])
    assert await server.write() == "done"


@async_test
async def test_a_worker_releases_its_slot_while_it_waits_and_holds_it_while_it_sends() -> None:
    free = 0
    server = Server([LOST, "done"])

    @asynccontextmanager
    async def slot() -> AsyncIterator[None]:
        nonlocal free
        free += 1
        yield
        free -= 1

    seen: list[int] = []
    send = server.send

    async def count_and_send() -> str:
        seen.append(free)
        return await send()

    async def write() -> str:
        worker_slot.set(slot)
        return await ConfirmedWrites(server.clock).write(count_and_send, server.find, what="a write")

    work = asyncio.ensure_future(write())
    await wait_until(lambda: free == 1)
    await wait_until(work.done, tick=lambda: server.clock.advance(0.05))
    assert (work.result(), seen, free) == ("done", [0, 0], 0)
