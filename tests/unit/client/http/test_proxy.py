"""Choice of the proxy, and tunnels to the server through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bayplan.client import ConnectionConfig
from bayplan.client.http.proxy import proxy_for
from bayplan.errors import KubeconfigError, Unreachable
from support.fakes.certificates import Authority, server_context
from support.fakes.http_server import FakeHttpServer, Reply
from support.harness.async_tests import async_test

PROXY = "http://proxy.example:3128"


def proxy_url(env: dict[str, str], server: str = "https://kube.example:6443", proxy: str = "") -> str:
    found = proxy_for(ConnectionConfig(server=server, proxy=proxy), env)
    return found.geturl() if found else ""


@pytest.mark.parametrize(
    ("env", "server", "expected"),
    [
        pytest.param({}, "https://kube.example:6443", "", id="none"),
        pytest.param({"HTTPS_PROXY": PROXY}, "https://kube.example:6443", PROXY, id="https"),
        pytest.param({"https_proxy": "proxy.example:3128"}, "https://kube.example:6443", PROXY, id="bare-address"),
        pytest.param({"HTTP_PROXY": PROXY}, "https://kube.example:6443", "", id="the-other-scheme"),
        pytest.param({"HTTPS_PROXY": PROXY}, "https://127.0.0.1:6443", "", id="loopback"),
        pytest.param({"HTTPS_PROXY": PROXY}, "https://localhost:6443", "", id="localhost"),
        pytest.param({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, "https://kube.example:6443", "", id="all-excepted"),
        pytest.param({"HTTPS_PROXY": PROXY, "NO_PROXY": "a, example"}, "https://kube.example:6443", "", id="domain"),
        pytest.param(
            {"HTTPS_PROXY": PROXY, "NO_PROXY": "be.example"}, "https://kube.example:6443", PROXY, id="no-part"
        ),
        pytest.param({"HTTPS_PROXY": PROXY, "NO_PROXY": ".kube.example"}, "https://kube.example:1", PROXY, id="below"),
        pytest.param({"HTTPS_PROXY": PROXY, "NO_PROXY": "*.example"}, "https://kube.example:1", "", id="star"),
        pytest.param({"HTTPS_PROXY": PROXY, "NO_PROXY": "kube.example:1"}, "https://kube.example:1", "", id="port"),
        pytest.param(
            {"HTTPS_PROXY": PROXY, "NO_PROXY": "kube.example:2"}, "https://kube.example:1", PROXY, id="not-port"
        ),
        pytest.param({"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, "https://10.9.8.7:1", "", id="network"),
        pytest.param(
            {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, "https://kube.example:1", PROXY, id="no-address"
        ),
        pytest.param({"HTTPS_PROXY": PROXY, "NO_PROXY": "fd00::1"}, "https://[fd00::1]:1", "", id="address-6"),
    ],
)
def test_environment_variables_are_read_as_go_reads_them(env: dict[str, str], server: str, expected: str) -> None:
    assert proxy_url(env, server) == expected


def test_the_kubeconfig_has_priority_over_the_environment() -> None:
    assert proxy_url({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, proxy="socks5://other:1") == "socks5://other:1"


@pytest.mark.parametrize("proxy", ["ftp://x", "http://", "http://x:y"])
def test_an_invalid_proxy_is_refused(proxy: str) -> None:
    with pytest.raises(KubeconfigError, match=r"proxy-url is not the address of a proxy; write"):
        proxy_for(ConnectionConfig(server="https://x:1", proxy=proxy, origin="clusters[one]"), {})


Greeting = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[str]]


async def greet_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    return head


async def greet_socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    _, method = (await reader.readexactly(3))[1:]
    writer.write(bytes([5, method]))
    user = b""
    if method == 2:
        await reader.readexactly(1)
        user = await reader.readexactly((await reader.readexactly(1))[0])
        await reader.readexactly((await reader.readexactly(1))[0])
        writer.write(b"\x01\x00")
    await reader.readexactly(4)
    host = await reader.readexactly((await reader.readexactly(1))[0])
    port = int.from_bytes(await reader.readexactly(2), "big")
    writer.write(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00")
    return f"{user.decode()} {host.decode()}:{port}"


@asynccontextmanager
async def proxy(greeting: Greeting, port: int) -> AsyncIterator[tuple[str, list[str]]]:
    """A proxy that connects to one port, whatever the request names. Yields its address and the requests."""
    requests: list[str] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await greeting(reader, writer))
        server_streams = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, server_streams[1]), pump(server_streams[0], writer), return_exceptions=True)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", requests


@pytest.mark.parametrize(
    ("greeting", "scheme", "expected"),
    [
        pytest.param(greet_http, "http://", "CONNECT kube.example:6443 HTTP/1.1", id="http"),
        pytest.param(greet_http, "http://me:pw@", "Proxy-Authorization: Basic bWU6cHc=", id="http-with-user"),
        pytest.param(greet_socks, "socks5://", " kube.example:6443", id="socks"),
        pytest.param(greet_socks, "socks5://me:pw@", "me kube.example:6443", id="socks-with-user"),
    ],
)
@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
@async_test
async def test_a_tunnel_reaches_the_server(
    tmp_path: Path, greeting: Greeting, scheme: str, expected: str, secure: bool
) -> None:
    authority = Authority()
    context = server_context(tmp_path, authority.server("kube.example")) if secure else None
    async with (
        FakeHttpServer(lambda _: Reply(200, {"x": 1}), tls=context) as server,
        proxy(greeting, server.port) as (address, requests),
    ):
        target = ConnectionConfig(
            server=f"{'https' if secure else 'http'}://kube.example:6443",
            ca_data=authority.certificate.encode(),
            proxy=f"{scheme}{address}",
        )
        async with server.client(target=target) as client:
            for _ in range(2):
                assert (await client.transport.request("GET", "/x")).body == b'{"x":1}'
        assert len(requests) == 1
        assert expected in requests[0]


@async_test
async def test_the_error_names_a_proxy_that_refuses() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        return ""

    async with FakeHttpServer(lambda _: Reply()) as server, proxy(refuse, server.port) as (address, _):
        target = ConnectionConfig(server="http://kube.example:80", proxy=f"http://{address}")
        async with server.client(target=target) as client:
            with pytest.raises(Unreachable, match=r"the proxy 127\.0\.0\.1 answered 407"):
                await client.transport.request("GET", "/x")


@async_test
async def test_the_error_names_an_unreachable_proxy() -> None:
    async with FakeHttpServer(lambda _: Reply(200, b"{}")) as server:
        target = server.target(proxy="http://user:word@127.0.0.1:9")
        async with server.client(target=target) as client:
            with pytest.raises(Unreachable, match=r"through the proxy 127\.0\.0\.1: .*is it running") as caught:
                await client.transport.request("GET", "/x")
        assert "word" not in str(caught.value)
        assert server.requests == []
