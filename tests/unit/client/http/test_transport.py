"""Requests over real sockets: keep-alive, limits, retries, timeouts, refusals and the write guard."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

import pytest

from bayplan import errors
from bayplan.client import PODS
from bayplan.client.http.connection import HIGH_WATER
from bayplan.client.http.connection_pool import WARM_CONNECTIONS
from bayplan.client.http.transport import RateLimiter
from bayplan.client.informer.backoff import BackoffConfig, RetryBackoff
from bayplan.clock import ManualClock
from bayplan.errors import ApiError, LeaseLost, TimedOut, Unreachable
from support.fakes.http_server import FakeHttpServer, NoAnswer, Reply, Request, ServerAnswer, WatchStream, status
from support.harness.async_tests import async_test, wait_until


def ok(_: Request) -> Reply:
    return Reply(200, {"fine": True})


@async_test
async def test_requests_share_one_connection() -> None:
    async with FakeHttpServer(ok) as server, server.client() as client:
        for _ in range(3):
            answer = await client.transport.request("GET", "/version")
            assert answer.body == b'{"fine":true}'
        assert server.connections == 1
        assert server.requests[0].headers["user-agent"] == "bayplan"


@async_test
async def test_requests_at_once_take_a_connection_each() -> None:
    async with FakeHttpServer(ok) as server, server.client() as client:
        await asyncio.gather(*(client.transport.request("GET", "/version") for _ in range(5)))
        assert server.connections == 5


@async_test
async def test_no_more_connections_are_open_than_allowed() -> None:
    async with FakeHttpServer(ok) as server, server.client(connections=2) as client:
        await asyncio.gather(*(client.transport.request("GET", "/version") for _ in range(9)))
        assert server.connections == 2
        assert len(server.requests) == 9


@async_test
async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    async with FakeHttpServer(script=[Reply(close=True), Reply()]) as server, server.client() as client:
        await client.transport.request("POST", "/a", b"{}")
        await client.transport.request("POST", "/b", b"{}")
        assert server.connections == 2


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.Invalid),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (410, "Gone", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (503, "ServiceUnavailable", errors.ServerError),
        (418, "", ApiError),
    ],
)
@async_test
async def test_refusals_have_types(code: int, reason: str, kind: type[ApiError]) -> None:
    async with FakeHttpServer(script=[status(code, reason, "the server's words")]) as server, server.client() as client:
        with pytest.raises(ApiError) as caught:
            await client.transport.request("POST", "/api/v1/pods", b"{}")
        assert type(caught.value) is kind
        assert (caught.value.code, caught.value.reason, caught.value.details) == (code, reason, "the server's words")
        assert str(caught.value).startswith(f"POST /api/v1/pods: {code}")


@async_test
async def test_a_refusal_without_a_status_contains_the_body() -> None:
    async with FakeHttpServer(script=[Reply(502, b"<html>bad gateway</html>")]) as server, server.client() as client:
        with pytest.raises(errors.ServerError, match="bad gateway"):
            await client.transport.request("GET", "/x")


@pytest.mark.parametrize(
    ("method", "code"), [("POST", 429), ("PATCH", 429), ("DELETE", 429), ("GET", 429), ("GET", 500), ("GET", 503)]
)
@async_test
async def test_a_request_is_retried_after_retry_after(method: str, code: int) -> None:
    clock = ManualClock()
    script = [status(code, "Busy", Retry_After="7"), Reply(201)]
    async with FakeHttpServer(script=script) as server, server.client(clock) as client:
        request = asyncio.create_task(client.transport.request(method, "/x"))
        await wait_until(lambda: len(server.requests) == 1 and clock.sleepers == 2)  # the second sleeper: the sweeper
        clock.advance(6.5)
        await wait_until(lambda: clock.sleepers == 2)
        assert len(server.requests) == 1
        clock.advance(0.5)
        assert (await request).status == 201


@pytest.mark.parametrize("code", [500, 503])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@async_test
async def test_a_write_is_not_sent_again_after_a_5xx_with_retry_after(method: str, code: int) -> None:
    script = [status(code, "Busy", Retry_After="7"), Reply(201)]
    async with FakeHttpServer(script=script) as server, server.client(ManualClock()) as client:
        with pytest.raises(errors.ServerError) as caught:
            await client.transport.request(method, "/x", b"{}")
        assert caught.value.outcome_unknown
        assert len(server.requests) == 1


@pytest.mark.parametrize("sent", [True, False])
@async_test
async def test_a_429_does_not_change_the_outcome_of_the_next_send(sent: bool) -> None:
    clock = ManualClock()
    script = [status(429, "Busy", Retry_After="1")]
    async with FakeHttpServer(script=script) as server, server.client(clock) as client:
        transport = client.transport
        once = transport._try_once

        async def first_send_only(*args: Any) -> Any:
            if server.requests:
                raise Unreachable("cut", sent=sent)
            return await once(*args)

        transport._try_once = first_send_only  # type: ignore[method-assign]
        request = asyncio.create_task(transport.request("POST", "/x", b"{}"))
        await wait_until(request.done, tick=lambda: clock.advance(0.5))
        with pytest.raises(Unreachable) as caught:
            request.result()
        assert caught.value.outcome_unknown == sent


@async_test
async def test_the_number_of_retries_is_limited() -> None:
    clock = ManualClock()
    busy = status(429, "TooManyRequests", "later", Retry_After="1")
    async with FakeHttpServer(lambda _: busy) as server, server.client(clock) as client:
        request = asyncio.create_task(client.transport.request("GET", "/x"))
        await wait_until(request.done, tick=lambda: clock.advance(1.0))
        with pytest.raises(errors.TooManyRequests) as caught:
            request.result()
        assert caught.value.retry_after_s == 1.0
        assert len(server.requests) == 11


@async_test
async def test_requests_are_limited_to_a_burst_and_then_a_rate() -> None:
    clock = ManualClock()
    async with FakeHttpServer(ok) as server, server.client(clock, qps=10.0, burst=3) as client:
        requests = [asyncio.create_task(client.transport.request("GET", f"/{number}")) for number in range(5)]
        await wait_until(lambda: sum(each.done() for each in requests) == 3)
        clock.advance(0.11)
        await wait_until(lambda: sum(each.done() for each in requests) == 4)
        clock.advance(0.1)
        await asyncio.gather(*requests)
        assert server.request_lines()[3:] == ["GET /3", "GET /4"]


def test_idle_time_saves_at_most_a_burst_of_tokens() -> None:
    clock = ManualClock()
    limiter = RateLimiter(clock, qps=10.0, burst=3)
    clock.advance(3600.0)
    assert [limiter.reserve() for _ in range(5)] == [0.0, 0.0, 0.0, pytest.approx(0.1), pytest.approx(0.2)]


def test_the_backoff_starts_over_after_a_quiet_time() -> None:
    clock = ManualClock()
    backoff = RetryBackoff(clock, random.Random(0), BackoffConfig(jitter=0.0))
    assert [backoff.delay_s() for _ in range(7)] == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
    clock.advance(121.0)
    assert backoff.delay_s() == 0.8


def test_backoff_delays_have_jitter() -> None:
    backoff = RetryBackoff(ManualClock(), random.Random(0))
    assert 0.8 < backoff.delay_s() < 1.6


@async_test
async def test_a_request_that_hangs_times_out() -> None:
    clock = ManualClock()
    async with FakeHttpServer(lambda _: NoAnswer()) as server, server.client(clock, timeout_s=5.0) as client:
        request = asyncio.create_task(client.transport.request("GET", "/slow"))
        await wait_until(lambda: server.requests)
        await wait_until(request.done, tick=lambda: clock.advance(0.25))
        with pytest.raises(TimedOut, match="GET /slow") as caught:
            request.result()
        assert caught.value.sent
        assert 5.0 <= clock.monotonic_s() <= 6.0
        assert len(server.requests) == 1


@async_test
async def test_the_sweepers_of_all_clients_run_at_the_same_time() -> None:
    """Each sweep wakes the process: several clients wake it as often as one."""
    sweeps_s: list[float] = []

    class RecordingClock(ManualClock):
        async def sleep(self, seconds: float) -> None:
            sweeps_s.append(round(self.monotonic_s() + seconds, 6))
            await super().sleep(seconds)

    clock = RecordingClock()
    async with FakeHttpServer(ok) as server, server.client(clock) as one, server.client(clock) as another:
        await one.transport.request("GET", "/version")
        clock.advance(0.1)
        await another.transport.request("GET", "/version")
        assert sweeps_s == [0.25, 0.25]
        clock.advance(0.2)
        await wait_until(lambda: len(sweeps_s) == 4)
        assert sweeps_s[2:] == [0.5, 0.5]


@async_test
async def test_only_a_read_is_retried_when_its_connection_dies() -> None:
    def cut(_: Request) -> Reply:
        server.cut()
        return Reply()

    async with FakeHttpServer(cut) as server, server.client() as client:
        with pytest.raises(Unreachable):
            await client.transport.request("GET", "/x")
        assert server.request_lines() == ["GET /x", "GET /x"]
        with pytest.raises(Unreachable) as caught:
            await client.transport.request("POST", "/y", b"{}")
        assert caught.value.sent
        assert server.request_lines()[2:] == ["POST /y"]


@async_test
async def test_the_error_names_an_unreachable_server() -> None:
    server = FakeHttpServer(ok)
    await server.start()
    client = server.client()
    await server.stop()
    with pytest.raises(Unreachable, match=f"cannot connect to {server.url}") as caught:
        await client.transport.request("POST", "/x", b"{}")
    assert not caught.value.sent
    await client.close()


@async_test
async def test_idle_connections_are_closed_before_the_server_closes_them() -> None:
    clock = ManualClock()
    async with FakeHttpServer(ok) as server, server.client(clock) as client:
        await client.transport.request("GET", "/x")
        await wait_until(lambda: not server._writers, tick=lambda: clock.advance(1.0))
        assert 60.0 < clock.monotonic_s() < 80.0
        await client.transport.request("POST", "/y", b"{}")
        assert server.connections == 2


@async_test
async def test_an_invalid_response_fails_one_request() -> None:
    script = [Reply(raw=b"SSH-2.0-OpenSSH_9\r\n\r\n"), Reply()]
    async with FakeHttpServer(script=script) as server, server.client() as client:
        with pytest.raises(Unreachable, match="cannot be parsed"):
            await client.transport.request("POST", "/x", b"{}")
        await client.transport.request("POST", "/x", b"{}")


class RefusingGuard:
    def check(self) -> None:
        raise LeaseLost("not now")

    async def hold_back(self) -> None:
        self.check()


@async_test
async def test_the_guard_stops_all_writes_and_no_reads() -> None:
    async with FakeHttpServer(ok) as server, server.client() as client:
        client.set_guard(RefusingGuard())
        await client.transport.request("GET", "/x")
        for write in (
            client.bind("ns", "pod", "node"),
            client.create(PODS, {}, namespace="ns"),
            client.patch(PODS, {}, namespace="ns", name="pod"),
            client.delete(PODS, namespace="ns", name="pod"),
            client.update(PODS, {"metadata": {"name": "pod", "namespace": "ns", "resourceVersion": "1"}}),
        ):
            with pytest.raises(LeaseLost):
                await write
        assert server.request_lines() == ["GET /x"]
        client.set_guard(None)
        await client.bind("ns", "pod", "node")


@async_test
async def test_the_guard_is_checked_again_before_a_retry() -> None:
    clock = ManualClock()
    async with (
        FakeHttpServer(script=[status(429, "Busy", Retry_After="1"), Reply()]) as server,
        server.client(clock) as client,
    ):
        request = asyncio.create_task(client.bind("ns", "pod", "node"))
        await wait_until(lambda: server.requests and clock.sleepers == 2)
        client.set_guard(RefusingGuard())
        clock.advance(1.0)
        with pytest.raises(LeaseLost):
            await request
        assert len(server.requests) == 1


@async_test
async def test_a_stream_stops_reading_when_its_reader_falls_behind() -> None:
    stream_ = WatchStream()
    for _ in range(256):
        stream_.write(b"x" * (1 << 17))
    stream_.end()
    size = 0
    async with FakeHttpServer(lambda _: stream_) as server, server.client() as client:
        async with client.transport.stream("/watch", quiet_s=60.0) as stream:
            await wait_until(lambda: stream._connection._paused)
            assert stream._connection._waiting < 2 * HIGH_WATER
            while piece := await stream.read():
                size += len(piece)
        assert size == 256 << 17


@async_test
async def test_a_slow_reader_does_not_time_out() -> None:
    clock, stream_ = ManualClock(), WatchStream()
    async with (
        FakeHttpServer(lambda _: stream_) as server,
        server.client(clock) as client,
        client.transport.stream("/watch", quiet_s=25.0) as stream,
    ):
        stream_.write(b"one")
        assert await stream.read() == b"one"
        for _ in range(100):
            clock.advance(1.0)
            await asyncio.sleep(0.001)  # lets the sweeper check the connections
        stream_.write(b"two")
        assert await stream.read() == b"two"


@async_test
async def test_a_timeout_of_a_stream_closes_the_idle_connections() -> None:
    """A fault that swallowed the stream may affect every connection that was open before."""
    clock = ManualClock()
    async with (
        FakeHttpServer(lambda request: WatchStream() if request.path == "/watch" else Reply()) as server,
        server.client(clock) as client,
        client.transport.stream("/watch", quiet_s=25.0) as stream,
    ):
        await client.transport.request("GET", "/x")
        assert server.connections == 2
        waiting = asyncio.ensure_future(stream.read())
        await wait_until(waiting.done, tick=lambda: clock.advance(0.5))
        with pytest.raises(TimedOut):
            waiting.result()
        assert 25.0 <= clock.monotonic_s() <= 26.0
        assert not client.transport._pool._idle
        await client.transport.request("GET", "/x")
        assert server.connections == 3


@async_test
async def test_a_dead_peer_is_detected_within_30_s() -> None:
    """The kernel detects it: by keepalive probes on idle connections, by the user timeout on busy ones."""
    async with FakeHttpServer(ok) as server, server.client() as client:
        await client.transport.request("GET", "/x")
        (connection,) = client.transport._pool._idle
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle_s, between_s, count = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle_s + between_s * count <= 30
        assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000


@async_test
async def test_the_connection_of_a_completed_stream_is_reused() -> None:
    stream_ = WatchStream()
    stream_.end()
    async with FakeHttpServer(script=[stream_, Reply()]) as server, server.client() as client:
        async with client.transport.stream("/watch", quiet_s=60.0) as stream:
            assert await stream.read() == b""
        await client.transport.request("GET", "/x")
        assert server.connections == 1


@async_test
async def test_an_abandoned_stream_leaves_no_data_for_the_next_request() -> None:
    stream_ = WatchStream()
    for _ in range(3):
        stream_.write(b"x" * HIGH_WATER)
    stream_.end()
    async with FakeHttpServer(script=[stream_, Reply(200, {"fine": True})]) as server, server.client() as client:
        async with client.transport.stream("/watch", quiet_s=60.0) as stream:
            connection = stream._connection
            connection._paused = True  # as after a burst up to the end: no more data can arrive
            await wait_until(lambda: connection._parser.complete)
        assert (await client.transport.request("GET", "/x")).body == b'{"fine":true}'
        assert server.connections == 1
        assert not connection._paused


@async_test
async def test_the_response_of_a_cancelled_request_does_not_reach_the_next_one() -> None:
    """The task is cancelled after the last byte has arrived and before it runs again."""
    hold = asyncio.Event()

    async def answer(request: Request) -> Reply:
        if request.path == "/gone":
            await hold.wait()
        return Reply(200, {"path": request.path})

    async with FakeHttpServer(answer) as server, server.client() as client:
        await client.transport.request("GET", "/warm")
        (connection,) = client.transport._pool._all
        arrived = connection.data_received

        def cancel_after(data: bytes) -> None:
            arrived(data)
            request.cancel()

        connection.data_received = cancel_after  # type: ignore[method-assign]
        request = asyncio.create_task(client.transport.request("GET", "/gone"))
        await wait_until(lambda: len(server.requests) == 2)
        hold.set()
        with pytest.raises(asyncio.CancelledError):
            await request
        connection.data_received = arrived  # type: ignore[method-assign]
        assert (await client.transport.request("GET", "/next")).body == b'{"path":"/next"}'
        assert server.connections == 1


@async_test
async def test_close_fails_pending_requests() -> None:
    async with FakeHttpServer(lambda _: NoAnswer()) as server:
        client = server.client()
        request = asyncio.create_task(client.transport.request("POST", "/x", b"{}"))
        await wait_until(lambda: server.requests)
        await client.close()
        with pytest.raises(Unreachable):
            await request


@async_test
async def test_requests_wait_for_a_free_connection_of_a_busy_server() -> None:
    gate = asyncio.Event()

    async def hold(_: Request) -> ServerAnswer:
        await gate.wait()
        return Reply(200, {})

    async with FakeHttpServer(hold) as server, server.client() as client:
        pending = [asyncio.ensure_future(client.transport.request("GET", f"/x{number}")) for number in range(60)]
        await wait_until(lambda: len(server.requests) == WARM_CONNECTIONS)
        gate.set()
        await asyncio.gather(*pending)
        assert (len(server.requests), server.connections) == (60, WARM_CONNECTIONS)


@async_test
async def test_a_request_that_waits_too_long_opens_a_connection() -> None:
    clock, gate = ManualClock(), asyncio.Event()

    async def hold(_: Request) -> ServerAnswer:
        await gate.wait()
        return Reply(200, {})

    async with FakeHttpServer(hold) as server, server.client(clock) as client:
        pending = [
            asyncio.ensure_future(client.transport.request("GET", f"/x{number}"))
            for number in range(WARM_CONNECTIONS + 2)
        ]
        await wait_until(lambda: len(server.requests) == WARM_CONNECTIONS)
        clock.advance(1.0)
        await wait_until(lambda: len(server.requests) == WARM_CONNECTIONS + 2)
        gate.set()
        assert [each.status for each in await asyncio.gather(*pending)] == [200] * (WARM_CONNECTIONS + 2)
        assert server.connections == WARM_CONNECTIONS + 2


@async_test
async def test_a_connection_lost_during_its_handover_is_replaced() -> None:
    """The pool hands over the connection, and it is lost before the waiting task runs."""
    async with FakeHttpServer(ok) as server, server.client(connections=1) as client:
        await client.transport.request("GET", "/warm")
        pool = client.transport._pool
        only = await pool.acquire(5.0)
        waiting = asyncio.create_task(client.transport.request("GET", "/next"))
        await wait_until(lambda: pool._waiters)
        pool.release(only)
        only.abort("cut")
        assert (await waiting).body == b'{"fine":true}'
        assert (server.connections, len(pool._all)) == (2, 1)


@async_test
async def test_warm_opens_connections_in_advance() -> None:
    async with FakeHttpServer(lambda _: Reply(200, {})) as server, server.client() as client:
        await client.warm()
        await wait_until(lambda: server.connections == WARM_CONNECTIONS)
        await asyncio.gather(*(client.transport.request("GET", f"/x{number}") for number in range(WARM_CONNECTIONS)))
        await client.warm()
        assert (len(server.requests), server.connections) == (WARM_CONNECTIONS, WARM_CONNECTIONS)


@async_test
async def test_warm_ignores_an_unreachable_server() -> None:
    async with FakeHttpServer(lambda _: Reply(200, {})) as server:
        client = server.client()
    await client.warm()
    with pytest.raises(Unreachable, match="is it running"):
        await client.transport.request("GET", "/x")
    await client.close()
