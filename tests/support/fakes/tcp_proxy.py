"""A TCP proxy that a test can cut, so that the client alone loses its server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from support.harness.deadlines import DEADLINE_S


class TcpProxy:
    """Listens on loopback and forwards to a port."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def __aenter__(self) -> TcpProxy:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Refuse new connections, and cut the open ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._to_port)
        self._writers |= {writer, there}
        try:
            await asyncio.gather(_copy_bytes(reader, there), _copy_bytes(there_reader, writer), return_exceptions=True)
        finally:
            self._writers -= {writer, there}


async def _copy_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


class ThreadedTcpProxy:
    """The same for a test without an event loop."""

    def __init__(self, to_port: int, loop: asyncio.AbstractEventLoop) -> None:
        self._pipe = TcpProxy(to_port)
        self._loop = loop

    @property
    def port(self) -> int:
        return self._pipe.port

    def open(self) -> None:
        self._run(self._pipe.open())

    def cut(self) -> None:
        self._run(self._pipe.cut())

    def close(self) -> None:
        self.cut()
        self._run(_cancel_all_tasks())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)


async def _cancel_all_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def run_tcp_proxy(to_port: int) -> Iterator[ThreadedTcpProxy]:
    """An open proxy, on its own thread."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    pipe = ThreadedTcpProxy(to_port, loop)
    try:
        pipe.open()
        yield pipe
    finally:
        pipe.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
