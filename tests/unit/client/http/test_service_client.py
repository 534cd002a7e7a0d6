"""HTTP services other than the API server: connection reuse, certificates, and errors with Go's texts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import ConnectionConfig, HttpService, Secret, ServiceCallError
from bayplan.clock import ManualClock
from bayplan.errors import KubeconfigError
from support.fakes.certificates import Authority, server_context
from support.fakes.http_server import FakeHttpServer, NoAnswer, Reply
from support.harness.async_tests import async_test, wait_until


def service(clock: ManualClock | None = None, **trust: Any) -> HttpService:
    return HttpService(clock or ManualClock(), user_agent="bayplan", trust=ConnectionConfig(server="", **trust), env={})


@async_test
async def test_calls_share_a_connection() -> None:
    async with FakeHttpServer(lambda _: Reply(200, {"fine": True})) as server:
        client = service()
        for _ in range(3):
            answer = await client.post(f"{server.url}/scheduler/filter?x=1", b"{}", 5.0)
        await client.close()
        assert (answer.status, answer.body) == (200, b'{"fine":true}')
        assert server.connections == 1
        (request, *_) = server.requests
        assert (request.method, request.path, request.query, request.body) == (
            "POST",
            "/scheduler/filter",
            "x=1",
            b"{}",
        )
        assert request.headers["content-type"] == "application/json"
        assert request.headers["host"] == f"127.0.0.1:{server.port}"


@async_test
async def test_a_refusal_is_returned() -> None:
    async with FakeHttpServer(lambda _: Reply(503)) as server:
        client = service()
        assert (await client.post(server.url, b"", 5.0)).status == 503
        assert server.request_lines() == ["POST /"], "a refusal is not retried"
        await client.close()


@async_test
async def test_post_ok_raises_a_refusal() -> None:
    async with FakeHttpServer(script=[Reply(200, b"good"), Reply(404)]) as server:
        client = service()
        assert await client.post_ok(server.url, b"", 5.0) == b"good"
        with pytest.raises(ServiceCallError, match="it answered 404"):
            await client.post_ok(server.url, b"", 5.0)
        await client.close()


@async_test
async def test_user_and_password_of_the_url_are_sent() -> None:
    async with FakeHttpServer(lambda _: Reply()) as server:
        client = service()
        await client.post(f"http://me:s%40crt@127.0.0.1:{server.port}/x", b"", 5.0)
        assert server.requests[0].headers["authorization"] == "Basic bWU6c0BjcnQ="
        assert server.requests[0].headers["host"] == f"127.0.0.1:{server.port}"
        await client.close()


@async_test
async def test_a_service_that_is_unreachable() -> None:
    async with FakeHttpServer() as server:
        url = f"{server.url}/filter"
    expected = f'Post "{url}": dial tcp 127.0.0.1:{server.port}: connect: connection refused'
    with pytest.raises(ServiceCallError) as caught:
        await service().post(url, b"", 5.0)
    assert str(caught.value) == expected


@async_test
async def test_a_service_that_does_not_answer_in_time() -> None:
    clock = ManualClock()
    async with FakeHttpServer(script=[NoAnswer()]) as server:
        client = service(clock)
        with pytest.raises(ServiceCallError) as caught:
            async with Ticking(clock):
                await client.post(f"{server.url}/filter", b"", 5.0)
        assert "context deadline exceeded (Client.Timeout exceeded while awaiting headers)" in str(caught.value)
        assert 5.0 <= clock.monotonic_s() < 6.0
        await client.close()


@async_test
async def test_a_service_that_closes_the_connection() -> None:
    async with FakeHttpServer(script=[Reply(raw=b"", close=True)]) as server:
        with pytest.raises(ServiceCallError, match=r'Post ".*": EOF'):
            await service().post(server.url, b"", 5.0)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        pytest.param("localhost:80/filter", 'unsupported protocol scheme "localhost"', id="no-scheme"),
        pytest.param("ftp://localhost/filter", 'unsupported protocol scheme "ftp"', id="another-scheme"),
        pytest.param("http:///filter", "no Host in request URL", id="no-host"),
        pytest.param("http://localhost:port/filter", "parse", id="no-port"),
    ],
)
def test_invalid_urls_are_errors(url: str, expected: str) -> None:
    @async_test
    async def post() -> None:
        with pytest.raises(ServiceCallError) as caught:
            await service().post(url, b"", 5.0)
        assert expected in str(caught.value)

    post()


@async_test
async def test_certificates_on_both_sides(tmp_path: Path) -> None:
    authority = Authority()
    user = authority.user("scheduler")
    tls = server_context(tmp_path, authority.server("extender.example"), clients=authority.certificate)
    (tmp_path / "wrong.pem").write_text("nothing")
    tls_files = {
        "ca_data": authority.certificate.encode(),
        "server_name": "extender.example",
        "cert_data": user.certificate.encode(),
        "key_data": Secret(user.key),
    }
    async with FakeHttpServer(lambda _: Reply(), tls=tls) as server:
        good, anonymous = service(**tls_files), service(**{**tls_files, "cert_data": b""})
        assert (await good.post(server.url, b"", 5.0)).status == 200
        for bad in (anonymous, service()):
            with pytest.raises(ServiceCallError):
                await bad.post(server.url, b"", 5.0)
        with pytest.raises(KubeconfigError, match="not PEM"):
            service(ca_file=str(tmp_path / "wrong.pem")).check(server.url)
        await good.close()


class Ticking:
    """Advances a clock while the block waits."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(wait_until(lambda: False, tick=lambda: self._clock.advance(0.25)))

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
