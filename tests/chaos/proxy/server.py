"""The proxy of one process: TLS on both sides, faults in between, and a log of the writes that passed.

Late and delayed writes outlive their connection, as they would in a network. `pending_writes` counts them: the driver
starts the next process of a slot only when none is left, because no scheduler can know of them.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from chaos.client import Access, trust
from chaos.proxy.faults import FaultPlan, RequestFault, Way
from chaos.proxy.requests import ApiRequest, classify
from chaos.proxy.wire import (
    LAST_CHUNK,
    RawRequest,
    body_parts,
    chunk,
    read_head,
    read_request,
    refusal,
    status_of,
    status_tree,
)

_LOG = 60_000
_LIMIT = 1 << 24
_WRITE_S = 20.0


@dataclass(frozen=True, slots=True)
class WriteLine:
    """One write that passed: `code` is the API server's answer, 0 where it never got the request."""

    at_s: float
    slot: str
    method: str
    path: str
    code: int
    fault: str
    body: bytes


class WriteLog:
    """The latest writes of all processes, for the reports of violations."""

    def __init__(self) -> None:
        self.lines: deque[WriteLine] = deque(maxlen=_LOG)
        self.listeners: list[Callable[[ApiRequest, WriteLine], None]] = []

    def add(self, request: ApiRequest, line: WriteLine) -> None:
        self.lines.append(line)
        for listen in self.listeners:
            listen(request, line)


class _Cut(ConnectionError):
    """Ends the client's connection."""


@dataclass(eq=False, slots=True)
class _Link:
    """One connection of the client, and the watch that it carries now."""

    writer: asyncio.StreamWriter
    request: ApiRequest | None = None
    muted_s: float | None = None
    end_with_gone: bool = False


class Proxy:
    def __init__(
        self, slot: str, access: Access, tls: ssl.SSLContext, plan: FaultPlan, log: WriteLog, port: int
    ) -> None:
        parts = urlsplit(access.url)
        assert parts.hostname is not None and parts.port is not None  # noqa: PT018
        self.slot, self.port = slot, port
        self._host, self._upstream_port = parts.hostname, parts.port
        self._serving, self._upstream_tls = tls, trust(access.ca_file)
        self._plan, self._log = plan, log
        self._links: set[_Link] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.pending_writes = 0
        self.requests = 0
        """# since the process started"""
        self.on_watch_replaced: Callable[[ApiRequest, float], None] = lambda request, muted_s: None  # noqa: ARG005

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._serving, limit=_LIMIT)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut_all()
        for task in self._background:
            task.cancel()
        while self._links:  # each ends by itself now
            await asyncio.sleep(0.01)

    def cut_all(self) -> int:
        """Cut every connection; how many there were."""
        for link in list(self._links):
            link.writer.transport.abort()
        return len(self._links)

    def mute_watches(self, resource: str) -> int:
        """Let open watches of a resource deliver nothing any more; all watches without a resource."""
        return self._each_watch(resource, self._mute)

    def expire_watches(self, resource: str) -> int:
        """End open watches of a resource with an ERROR event of code 410."""
        return self._each_watch(resource, self._expire)

    def _each_watch(self, resource: str, act: Callable[[_Link], None]) -> int:
        found = [
            link
            for link in self._links
            if link.request is not None and link.request.is_watch and resource in ("", link.request.resource)
        ]
        for link in found:
            act(link)
        return len(found)

    def _mute(self, link: _Link) -> None:
        link.muted_s = link.muted_s or self._plan.now()

    def _expire(self, link: _Link) -> None:
        link.end_with_gone = True

    # connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        upstream = _Upstream(self._host, self._upstream_port, self._upstream_tls)
        try:
            while True:
                raw = await read_request(reader)
                self.requests += 1
                link.request = classify(self.slot, raw.method, raw.path)
                await self._pass(raw, link, upstream, reader)
                link.request = None
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError, ValueError):
            pass
        finally:
            self._links.discard(link)
            if link.muted_s is not None and link.request is not None:
                self.on_watch_replaced(link.request, link.muted_s)
            writer.transport.abort()
            upstream.abort()

    async def _pass(self, raw: RawRequest, link: _Link, upstream: _Upstream, reader: asyncio.StreamReader) -> None:
        request = link.request
        assert request is not None
        fault = self._plan.choose(request)
        if fault is not None and fault.way is Way.DELAYED and not request.is_write:
            self._plan.took_effect(fault, request)
            await asyncio.sleep(fault.delay_s)
            fault = None
        if fault is not None:
            await self._disturb(fault, request, raw, link, upstream)
            return
        head, up_reader = await upstream.send(raw.data)
        self._note(request, raw, status_of(head), None)
        if request.is_watch and status_of(head) == 200:
            await self._relay_watch(head, up_reader, link, reader)
        else:
            await self._relay(head, up_reader, link)

    async def _relay(self, head: bytes, up_reader: asyncio.StreamReader, link: _Link) -> None:
        link.writer.write(head)
        async for part in body_parts(head, up_reader):
            link.writer.write(part)
            await link.writer.drain()

    async def _relay_watch(
        self, head: bytes, up_reader: asyncio.StreamReader, link: _Link, reader: asyncio.StreamReader
    ) -> None:
        link.writer.write(head)
        gone = asyncio.ensure_future(reader.read(1))
        parts = body_parts(head, up_reader)
        turn: asyncio.Future[bytes] | None = None
        try:
            while True:
                turn = turn or asyncio.ensure_future(anext(parts))
                await asyncio.wait((turn, gone), timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    raise _Cut
                if link.end_with_gone:
                    event = {"type": "ERROR", "object": status_tree(410)}
                    link.writer.write(chunk(json.dumps(event).encode() + b"\n") + LAST_CHUNK)
                    raise _Cut
                if not turn.done():
                    continue
                part, turn = turn.result(), None
                if link.muted_s is None:
                    link.writer.write(part)
                    await link.writer.drain()
        except StopAsyncIteration:
            if link.muted_s is not None:  # the server has ended it; the client must not know
                await gone
            raise _Cut from None
        finally:
            gone.cancel()
            if turn is not None:
                turn.cancel()
            with suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError, StopAsyncIteration):
                await gone

    # faults

    async def _disturb(
        self, fault: RequestFault, request: ApiRequest, raw: RawRequest, link: _Link, upstream: _Upstream
    ) -> None:
        way = fault.way
        if way in (Way.ERROR_BEFORE_WRITE, Way.REFUSED, Way.THROTTLED, Way.GONE):
            self._note(request, raw, 0, fault)
            self._plan.took_effect(fault, request)
            code = {Way.THROTTLED: 429, Way.GONE: 410}.get(way, fault.code)
            link.writer.write(refusal(code, retry_after_s=1 if way is Way.THROTTLED else None))
            await link.writer.drain()
        elif way is Way.CUT:
            self._note(request, raw, 0, fault)
            self._plan.took_effect(fault, request)
            raise _Cut
        elif way is Way.LATE_WRITE:
            self._keep(self._deliver(fault, request, raw))
            raise _Cut
        elif way is Way.RETRY_AFTER and fault.delay_s:
            self._keep(self._deliver(fault, request, raw))
            link.writer.write(refusal(fault.code, retry_after_s=1))
            await link.writer.drain()
        elif way is Way.DELAYED:
            await self._delay(fault, request, raw, link)
        elif way is Way.CUT_ANSWER:
            await self._cut_answer(fault, request, raw, link, upstream)
        else:
            await self._hide_answer(fault, request, raw, link, upstream)

    async def _hide_answer(
        self, fault: RequestFault, request: ApiRequest, raw: RawRequest, link: _Link, upstream: _Upstream
    ) -> None:
        """The write reaches the server; the client gets another answer or none."""
        head, up_reader = await upstream.send(raw.data)
        parts = [part async for part in body_parts(head, up_reader)]
        code = status_of(head)
        self._note(request, raw, code, fault)
        if code >= 400:  # nothing took effect, so the answer is right
            link.writer.write(head + b"".join(parts))
            await link.writer.drain()
            return
        self._plan.took_effect(fault, request)
        if fault.way is Way.ANSWER_LOST:
            raise _Cut
        repeated = request.method == "POST" and not request.sub and fault.code == 409
        retry_after_s = 1 if fault.way is Way.RETRY_AFTER else None
        link.writer.write(refusal(fault.code, retry_after_s=retry_after_s, reason="AlreadyExists" if repeated else ""))
        await link.writer.drain()

    async def _delay(self, fault: RequestFault, request: ApiRequest, raw: RawRequest, link: _Link) -> None:
        self._plan.took_effect(fault, request)
        delivery = self._keep(self._deliver(fault, request, raw, link))
        await asyncio.shield(delivery)

    async def _cut_answer(
        self, fault: RequestFault, request: ApiRequest, raw: RawRequest, link: _Link, upstream: _Upstream
    ) -> None:
        head, up_reader = await upstream.send(raw.data)
        self._note(request, raw, status_of(head), fault)
        link.writer.write(head)
        async for part in body_parts(head, up_reader):
            link.writer.write(part[: len(part) // 2])
            await link.writer.drain()
            break
        self._plan.took_effect(fault, request)
        raise _Cut

    async def _deliver(
        self, fault: RequestFault, request: ApiRequest, raw: RawRequest, link: _Link | None = None
    ) -> None:
        """Send the request after a while, whatever became of the client; answer it where there still is one."""
        self.pending_writes += 1
        upstream = _Upstream(self._host, self._upstream_port, self._upstream_tls)
        try:
            await asyncio.sleep(fault.delay_s)
            async with asyncio.timeout(_WRITE_S):
                head, up_reader = await upstream.send(raw.data)
                parts = [part async for part in body_parts(head, up_reader)]
            code = status_of(head)
            self._note(request, raw, code, fault)
            if link is None and code < 400:
                self._plan.took_effect(fault, request, f"landed {fault.delay_s:.1f} s later")
            if link is not None and not link.writer.is_closing():
                link.writer.write(head + b"".join(parts))
                await link.writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            if link is not None:
                link.writer.transport.abort()
        finally:
            self.pending_writes -= 1
            upstream.abort()

    def _keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _note(self, request: ApiRequest, raw: RawRequest, code: int, fault: RequestFault | None) -> None:
        if request.is_write:
            way = fault.way.value if fault is not None else ""
            path = request.path.partition("?")[0]
            self._log.add(request, WriteLine(self._plan.now(), self.slot, raw.method, path, code, way, raw.body))


class _Upstream:
    """Connection to the API server; opened again when it is broken."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: bytes) -> tuple[bytes, asyncio.StreamReader]:
        """Send a request; the head of its answer."""
        if self._ends is None or self._ends[0].at_eof() or self._ends[1].is_closing():
            self.abort()
            self._ends = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_LIMIT)
        reader, writer = self._ends
        writer.write(data)
        await writer.drain()
        return await read_head(reader), reader

    def abort(self) -> None:
        if self._ends is not None:
            self._ends[1].transport.abort()
            self._ends = None
