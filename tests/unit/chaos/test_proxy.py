"""The proxy of the chaos driver: what each fault does to a request, on the side of the client and of the server."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from chaos import certificates
from chaos.child_processes import free_ports
from chaos.client import Access, trust
from chaos.proxy.faults import FaultPlan, RequestFault, Way
from chaos.proxy.requests import ApiRequest, classify
from chaos.proxy.server import Proxy, WriteLog
from chaos.proxy.wire import chunk, read_request

BINDING = "/api/v1/namespaces/team/pods/one/binding"
EVENT = b'{"type":"ADDED","object":{}}\n'


class Rig:
    """A server that answers 201 to everything and sends an event on watches, the proxy before it, and a client."""

    def __init__(self, folder: Path) -> None:
        self.seen: list[str] = []
        self.effects: list[str] = []
        self.plan = FaultPlan(asyncio.get_running_loop().time, self._on_effect)
        self.log = WriteLog()
        self._files = certificates.write(folder)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(self._files.certificate, self._files.key)
        self.received = asyncio.Event()

    def _on_effect(self, fault: RequestFault, request: ApiRequest, detail: str) -> None:  # noqa: ARG002
        self.effects.append(fault.way.name)

    async def start(self) -> None:
        port, behind = free_ports(2)
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", behind, ssl=self._tls)
        access = Access(f"https://127.0.0.1:{behind}", self._files.ca, "token")
        self.proxy = Proxy("scheduler", access, self._tls, self.plan, self.log, port)
        await self.proxy.start()

    async def stop(self) -> None:
        await self.proxy.stop()
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await read_request(reader)
                self.seen.append(request.method)
                self.received.set()
                if "watch=1" in request.path:
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(EVENT))
                else:
                    writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.close()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        tls = trust(self._files.ca)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.port, ssl=tls)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def ask(self, method: str = "POST", path: str = BINDING) -> tuple[int, bytes]:
        """Status and head of the answer; 0 where the connection was cut."""
        async with self.connect() as (reader, writer):
            writer.write(f"{method} {path} HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return 0, b""
            return int(head.split()[1]), head

    def arm(self, way: Way, *, target: str = "binding", code: int = 500, delay_s: float = 0.0) -> RequestFault:
        fault = RequestFault(1, way, target, "", float("inf"), 1, code, delay_s)
        self.plan.arm(fault)
        return fault


def with_rig(folder: Path, test: Callable[[Rig], Awaitable[None]]) -> None:
    async def run() -> None:
        harness = Rig(folder)
        await harness.start()
        try:
            async with asyncio.timeout(30):
                await test(harness)
        finally:
            await harness.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("way", "code", "answer", "reaches"),
    [
        pytest.param(Way.ERROR_AFTER_WRITE, 503, 503, True, id="5xx after the write"),
        pytest.param(Way.ERROR_BEFORE_WRITE, 503, 503, False, id="5xx without the write"),
        pytest.param(Way.ANSWER_LOST, 0, 0, True, id="answer lost"),
        pytest.param(Way.LATE_WRITE, 0, 0, True, id="late write"),
        pytest.param(Way.REFUSED_AFTER_WRITE, 409, 409, True, id="4xx after the write"),
        pytest.param(Way.RETRY_AFTER, 503, 503, True, id="5xx with Retry-After"),
        pytest.param(Way.THROTTLED, 0, 429, False, id="throttled"),
        pytest.param(Way.DELAYED, 0, 201, True, id="delayed"),
        pytest.param(Way.CUT, 0, 0, False, id="cut"),
        pytest.param(Way.CUT_ANSWER, 0, 201, True, id="cut within the answer"),
    ],
)
def test_faults_of_a_write(tmp_path: Path, way: Way, code: int, answer: int, reaches: bool) -> None:
    async def test(harness: Rig) -> None:
        fault = harness.arm(way, code=code)
        found, head = await harness.ask()
        assert found == answer
        if reaches:
            await harness.received.wait()
        assert bool(harness.seen) == reaches
        if way in (Way.THROTTLED, Way.RETRY_AFTER):
            assert b"Retry-After: 1" in head
        await _until(lambda: harness.effects == [way.name])
        assert fault.effects == 1
        await _until(lambda: harness.proxy.pending_writes == 0)
        assert (await harness.ask())[0] == 201, "one request was meant"

    with_rig(tmp_path, test)


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_a_late_write_lands_after_the_client_was_cut_off(tmp_path: Path) -> None:
    async def test(harness: Rig) -> None:
        harness.arm(Way.LATE_WRITE, delay_s=0.2)
        assert (await harness.ask())[0] == 0
        assert harness.seen == []
        assert harness.proxy.pending_writes == 1
        await harness.received.wait()
        await _until(lambda: harness.proxy.pending_writes == 0)
        assert [line.code for line in harness.log.lines] == [201]

    with_rig(tmp_path, test)


def test_a_write_lands_late_after_a_5xx_with_retry_after(tmp_path: Path) -> None:
    async def test(harness: Rig) -> None:
        harness.arm(Way.RETRY_AFTER, code=503, delay_s=0.2)
        code, head = await harness.ask()
        assert (code, b"Retry-After: 1" in head) == (503, True)
        assert (harness.seen, harness.effects, harness.proxy.pending_writes) == ([], [], 1)
        await harness.received.wait()
        await _until(lambda: harness.effects == ["RETRY_AFTER"])

    with_rig(tmp_path, test)


def test_other_requests_pass(tmp_path: Path) -> None:
    async def test(harness: Rig) -> None:
        harness.arm(Way.ERROR_BEFORE_WRITE)
        assert (await harness.ask("GET", "/api/v1/nodes"))[0] == 201
        assert harness.effects == []

    with_rig(tmp_path, test)


def test_a_watch_goes_silent_and_stays_open(tmp_path: Path) -> None:
    async def test(harness: Rig) -> None:
        replaced: list[str] = []
        harness.proxy.on_watch_replaced = lambda request, muted_s: replaced.append(request.resource)  # noqa: ARG005
        async with harness.connect() as (reader, writer):
            writer.write(b"GET /api/v1/pods?watch=1 HTTP/1.1\r\n\r\n")
            await reader.readuntil(EVENT)
            assert harness.proxy.mute_watches("pods") == 1
            assert harness.proxy.mute_watches("nodes") == 0
            assert not reader.at_eof()
        await _until(lambda: replaced == ["pods"])

    with_rig(tmp_path, test)


def test_a_watch_ends_with_410(tmp_path: Path) -> None:
    async def test(harness: Rig) -> None:
        async with harness.connect() as (reader, writer):
            writer.write(b"GET /api/v1/pods?watch=1 HTTP/1.1\r\n\r\n")
            await reader.readuntil(EVENT)
            harness.proxy.expire_watches("")
            rest = await reader.read(-1)
        event = json.loads(next(line for line in rest.split(b"\r\n") if line.startswith(b"{")))
        assert event["type"] == "ERROR"
        assert event["object"]["code"] == 410

    with_rig(tmp_path, test)


def test_all_connections_are_cut(tmp_path: Path) -> None:
    async def test(harness: Rig) -> None:
        async with harness.connect() as (reader, writer):
            writer.write(b"GET /api/v1/pods?watch=1 HTTP/1.1\r\n\r\n")
            await reader.readuntil(EVENT)
            assert harness.proxy.cut_all() == 1
            with suppress(ConnectionError):
                await reader.read(-1)

    with_rig(tmp_path, test)


@pytest.mark.parametrize(
    ("method", "path", "target"),
    [
        ("POST", BINDING, "binding"),
        ("POST", "/api/v1/namespaces/t/pods/x/eviction", "eviction"),
        ("DELETE", "/api/v1/namespaces/t/pods/x", "pod-delete"),
        ("PATCH", "/api/v1/namespaces/t/pods/x/status", "pod-status"),
        ("PATCH", "/api/v1/namespaces/t/pods/x", "pod-patch"),
        ("POST", "/api/v1/namespaces/kai-resource-reservation/pods", "reservation"),
        ("POST", "/apis/scheduling.run.ai/v1alpha2/namespaces/t/bindrequests", "bindrequest-create"),
        ("PATCH", "/apis/scheduling.run.ai/v1alpha2/namespaces/t/bindrequests/x/status", "bindrequest-status"),
        ("DELETE", "/apis/scheduling.run.ai/v1alpha2/namespaces/t/bindrequests/x", "bindrequest-delete"),
        ("PATCH", "/apis/resource.k8s.io/v1/namespaces/t/resourceclaims/x/status", "claim-status"),
        ("PATCH", "/api/v1/persistentvolumes/x", "volume"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x", "lease"),
        ("POST", "/apis/events.k8s.io/v1/namespaces/t/events", "event"),
        ("GET", "/api/v1/pods?watch=1&resourceVersion=7", "watch"),
        ("GET", "/api/v1/namespaces/t/pods?limit=500", "list"),
        ("GET", "/api/v1/nodes/x", "get"),
        ("GET", "/api/v1/namespaces/x", "get"),
    ],
)
def test_classes_of_requests(method: str, path: str, target: str) -> None:
    assert classify("scheduler", method, path).target == target
