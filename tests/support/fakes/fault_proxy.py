"""A proxy on loopback between a scheduler and its API server, which injects faults that a test selects.

It terminates TLS on both sides, so it reads requests. It runs in its own thread, because the tests are synchronous.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cluster.run import ADMIN, Cluster
from support.fakes.certificates import server_context

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """A request as it passes the proxy."""

    method: str
    path: str

    @property
    def is_watch(self) -> bool:
        return "watch=" in self.path

    @property
    def is_binding(self) -> bool:
        return self.method == "POST" and self.path.partition("?")[0].endswith("/binding")


@dataclass(eq=False)
class ProxyFault:
    """A fault for the first `times` requests that `matches` accepts.

    `refuse`: an error response instead of the server's. `hold`: the request waits until `release`, or the connection is
    cut; with `after` the request passes and its response waits. `drop_answer`: the request passes, and the connection
    is cut. `answer`: the request passes, and the client gets this instead of the server's response. `delay_s`: the
    connection is cut, and the server gets the request so many seconds later.
    """

    matches: Callable[[ProxiedRequest], bool]
    times: int = 1_000_000
    refuse: bytes = b""
    hold: bool = False
    after: bool = False
    drop_answer: bool = False
    answer: bytes = b""
    delay_s: float = 0.0
    seen: list[ProxiedRequest] = field(default_factory=list)
    delivered: int = 0
    """Requests that the server got late."""
    _released: asyncio.Event = field(default_factory=asyncio.Event)


def refusal(code: int, reason: str, message: str = "", **headers: str) -> bytes:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason}
    body = json.dumps({**status, "code": code}).encode()
    lines = [f"HTTP/1.1 {code} X", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class FaultProxy:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._serving = server_context(folder, cluster.authority.server("127.0.0.1"))
        self._asking = ssl.create_default_context(cafile=str(cluster.ca_file))
        self._asking.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        self._folder = folder
        self._faults: list[ProxyFault] = []
        self._links: dict[asyncio.StreamWriter, ProxiedRequest | None] = {}
        self._late: set[asyncio.Task[None]] = set()
        self._swallowed: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self.port = 0

    # interface of the tests -------------------------------------------------------------------------------------

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """A kubeconfig of the user that connects through this proxy."""
        text = self._cluster.kubeconfig(user).read_text()
        path = self._folder / f"proxied-{user}.kubeconfig"
        path.write_text(text.replace(self._cluster.url, f"https://127.0.0.1:{self.port}"))
        return path

    def add(self, fault: ProxyFault) -> ProxyFault:
        self._soon(lambda: self._faults.append(fault))
        return fault

    def remove(self, fault: ProxyFault) -> None:
        """Release held requests, and let later ones pass."""

        def off() -> None:
            if fault in self._faults:
                self._faults.remove(fault)
            fault._released.set()

        self._soon(off)

    def cut(self, hits: Callable[[ProxiedRequest], bool] = lambda _: True) -> int:
        """Cut every connection whose current request matches; return their number."""

        def now() -> int:
            hit = [writer for writer, ask in self._links.items() if ask is not None and hits(ask)]
            for writer in hit:
                writer.transport.abort()
            return len(hit)

        return self._soon(now)

    def blackhole(self, hits: Callable[[ProxiedRequest | None], bool] = lambda _: True) -> int:
        """Keep the connections whose request matches open, and deliver nothing on them any more, in either direction.

        Idle connections have no request. Returns the number of connections. New connections work.
        """

        def now() -> int:
            hit = {writer for writer, ask in self._links.items() if hits(ask)}
            self._swallowed |= hit
            return len(hit)

        return self._soon(now)

    def blackholed_watches(self) -> int:
        """Number of blackholed watches that the client has not closed yet."""

        def now() -> int:
            waiting = [self._links.get(writer) for writer in self._swallowed if not writer.is_closing()]
            return sum(ask is not None and ask.is_watch for ask in waiting)

        return self._soon(now)

    def _soon(self, work: Callable[[], T]) -> T:
        async def run() -> T:
            return work()

        return self._run(run()).result(10)

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # lifecycle --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True).start()
        self._run(self._listen()).result(10)

    def stop(self) -> None:
        self._run(self._close()).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._serving)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for fault in self._faults:
            fault._released.set()
        for writer in list(self._links):
            writer.transport.abort()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    # one connection ---------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._links[writer] = None
        upstream = _Upstream(self._cluster.url, self._asking)
        try:
            while await self._pass_one(reader, writer, upstream):
                self._links[writer] = None
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            del self._links[writer]
            writer.transport.abort()
            upstream.abort()

    async def _pass_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: _Upstream) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        if writer in self._swallowed:
            await reader.read()
            return False
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        ask = ProxiedRequest(method, path)
        body = await reader.readexactly(_length(head))
        self._links[writer] = ask
        fault = self._fault(ask)
        if fault is not None and fault.refuse:
            writer.write(fault.refuse)
            await writer.drain()
            return True
        if fault is not None and fault.delay_s:
            self._late.add(asyncio.ensure_future(self._deliver_late(head + body, fault)))
            return False
        if fault is not None and fault.hold and not fault.after:
            await self._held(fault, reader)
        up_reader = await upstream.send(head + body)
        if fault is not None and fault.answer:
            answer = await up_reader.readuntil(b"\r\n\r\n")
            await up_reader.readexactly(_length(answer))
            writer.write(fault.answer)
            await writer.drain()
            return True
        if fault is not None and fault.drop_answer:
            await up_reader.readuntil(b"\r\n\r\n")
            return False
        if fault is not None and fault.hold and fault.after:
            await up_reader.readuntil(b"\r\n\r\n")
            await self._held(fault, reader)
            return False
        await _relay(up_reader, partial(self._deliver, writer))
        return True

    async def _deliver_late(self, request: bytes, fault: ProxyFault) -> None:
        await asyncio.sleep(fault.delay_s)
        upstream = _Upstream(self._cluster.url, self._asking)
        reader = await upstream.send(request)
        await reader.readuntil(b"\r\n\r\n")
        upstream.abort()
        fault.delivered += 1

    async def _deliver(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if writer not in self._swallowed:
            writer.write(data)
            await writer.drain()

    def _fault(self, ask: ProxiedRequest) -> ProxyFault | None:
        for fault in self._faults:
            if fault.matches(ask):
                fault.seen.append(ask)
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                return fault
        return None

    async def _held(self, fault: ProxyFault, reader: asyncio.StreamReader) -> None:
        """Wait for the release; the client may close the connection before."""
        released, gone = asyncio.ensure_future(fault._released.wait()), asyncio.ensure_future(reader.read(1))
        await asyncio.wait((released, gone), return_when=asyncio.FIRST_COMPLETED)
        if not released.done():
            released.cancel()
            raise ConnectionError("the client has closed the connection")
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone


class _Upstream:
    """The connection to the server; one that was closed since the last request is opened again."""

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        self._host, _, port = url.removeprefix("https://").partition(":")
        self._port = int(port)
        self._tls = tls
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: bytes) -> asyncio.StreamReader:
        if self._ends is None or self._ends[0].at_eof() or self._ends[1].is_closing():
            self.abort()
            self._ends = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        reader, writer = self._ends
        writer.write(data)
        await writer.drain()
        return reader

    def abort(self) -> None:
        if self._ends is not None:
            self._ends[1].transport.abort()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


async def _relay(reader: asyncio.StreamReader, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Relay one response as it arrives."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        await write(head + await reader.readexactly(_length(head)))
        return
    await write(head)
    while True:
        size = await reader.readuntil(b"\r\n")
        await write(size + await reader.readexactly(int(size, 16) + 2))
        if size == b"0\r\n":
            return


@contextmanager
def run_fault_proxy(cluster: Cluster, folder: Path) -> Iterator[FaultProxy]:
    proxy = FaultProxy(cluster, folder)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
