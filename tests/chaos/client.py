"""HTTP client of the driver: JSON over aiohttp, with retries while the API server is away.

A write whose answer was lost is sent again; "already exists" of a repeated create and "not found" of a repeated delete
are then success.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import aiohttp

from chaos.kinds import KINDS
from chaos.objects import Tree, uid

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_PATIENCE_S = 120.0
_REQUEST_S = 15.0
_AWAY = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text[:600]}")
        self.code = code


class Away(Exception):
    """The API server did not answer for as long as the client waits."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is, and the administrator's token."""

    url: str
    ca_file: Path
    token: str


def trust(ca_file: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca_file))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class ApiClient:
    def __init__(self, access: Access) -> None:
        self._access = access
        self._tls = trust(access.ca_file)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ApiClient:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=64)
        headers = {"Authorization": f"Bearer {self._access.token}", "Accept": "application/json"}
        timeout = aiohttp.ClientTimeout(total=_REQUEST_S)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    # objects

    async def create(self, tree: Tree) -> Tree:
        kind, meta = KINDS[tree["kind"]], tree["metadata"]
        path = kind.path(meta.get("namespace", ""))
        try:
            return await self.request("POST", path, tree)
        except ApiError as fault:
            if fault.code != 409 or not getattr(fault, "repeated", False):
                raise
            return await self.get(kind.name, meta.get("namespace", ""), meta["name"])

    async def get(self, kind: str, namespace: str, name: str) -> Tree:
        return await self.request("GET", KINDS[kind].path(namespace, name))

    async def list(self, kind: str, namespace: str = "") -> Tree:
        """The list object: items and resourceVersion."""
        return await self.request("GET", KINDS[kind].path(namespace))

    async def patch(
        self, kind: str, namespace: str, name: str, body: Tree, *, sub: str = "", content: str = MERGE
    ) -> Tree:
        return await self.request("PATCH", KINDS[kind].path(namespace, name, sub), body, content)

    async def replace(self, tree: Tree, *, sub: str = "") -> Tree:
        meta = tree["metadata"]
        return await self.request("PUT", KINDS[tree["kind"]].path(meta.get("namespace", ""), meta["name"], sub), tree)

    async def delete(self, kind: str, tree: Tree, *, grace_s: int | None = None) -> None:
        """This object, not another one of its name. Nothing where it is gone."""
        options: Tree = {"preconditions": {"uid": uid(tree)}} if uid(tree) else {}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        meta = tree["metadata"]
        try:
            await self.request("DELETE", KINDS[kind].path(meta.get("namespace", ""), meta["name"]), options)
        except ApiError as fault:
            if fault.code not in (404, 409):
                raise

    # requests

    async def request(
        self, method: str, path: str, body: Tree | None = None, content: str = "application/json"
    ) -> Tree:
        """The answer as JSON. Repeats the request while the server is away or answers 5xx or 429."""
        loop = asyncio.get_running_loop()
        deadline, pause, repeated, last = loop.time() + _PATIENCE_S, 0.05, False, ""
        while loop.time() < deadline:
            try:
                code, text = await self._exchange(method, path, body, content)
            except _AWAY as fault:
                last, repeated = repr(fault), True
            else:
                if code < 400:
                    found: Tree = json.loads(text)
                    return found
                if code != 429 and code < 500 and code not in (401, 403):
                    error = ApiError(code, f"{method} {path}: {text}")
                    error.repeated = repeated  # type: ignore[attr-defined]
                    raise error
                last, repeated = f"{code}: {text[:300]}", repeated or code >= 500
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 2)
        raise Away(f"{method} {path}: no answer for {_PATIENCE_S:.0f} s, the last: {last}")

    async def _exchange(self, method: str, path: str, body: Tree | None, content: str) -> tuple[int, str]:
        assert self._session is not None
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content} if data is not None else {}
        async with self._session.request(method, self._access.url + path, data=data, headers=headers) as answer:
            return answer.status, await answer.text()

    async def watch(self, kind: str, since: str) -> AsyncIterator[tuple[str, Tree]]:
        """Types and objects of one watch, until the server ends it."""
        assert self._session is not None
        query = {"watch": "1", "resourceVersion": since, "allowWatchBookmarks": "true", "timeoutSeconds": "290"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_S, sock_read=300.0)
        url = f"{self._access.url}{KINDS[kind].path()}?{urlencode(query)}"
        async with self._session.get(url, timeout=timeout) as answer:
            if answer.status != 200:
                raise ApiError(answer.status, await answer.text())
            pending = b""
            async for data in answer.content.iter_any():
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    if line:
                        event = json.loads(line)
                        yield event["type"], event["object"]
