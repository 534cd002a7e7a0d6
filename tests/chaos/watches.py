"""Watches of the driver, directly at the API server: they fill the record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from chaos.client import ApiClient, ApiError
from chaos.objects import Tree
from chaos.record import Record

_PAUSE_S = 0.1


class Watcher:
    """Lists and watches one kind until it is cancelled. Outages of the server are waited out."""

    def __init__(self, client: ApiClient, record: Record, kind: str, now: Callable[[], float]) -> None:
        self._client, self._record, self._kind, self._now = client, record, kind, now
        self._since = ""
        self.listed = asyncio.Event()
        self.relists = 0

    async def run(self) -> None:
        while True:
            try:
                if not self._since:
                    await self._list()
                await self._follow()
            except ApiError as fault:
                if fault.code == 410:
                    self._since = ""
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
                pass
            await asyncio.sleep(_PAUSE_S)

    async def _list(self) -> None:
        found = await self._client.list(self._kind)
        kind = self._kind
        items: list[Tree] = [{"apiVersion": found["apiVersion"], "kind": kind, **each} for each in found["items"]]
        self._record.relist(kind, items, self._now())
        self._since = found["metadata"]["resourceVersion"]
        self.relists += 1
        self.listed.set()

    async def _follow(self) -> None:
        async for type_, tree in self._client.watch(self._kind, self._since):
            if type_ == "ERROR":
                self._since = ""
                return
            if type_ != "BOOKMARK":
                self._record.apply(self._kind, type_, tree, self._now())
            self._since = tree["metadata"]["resourceVersion"]
