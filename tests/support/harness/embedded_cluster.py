"""An embedded cluster on loopback for a test, and clients for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bayplan.apiserver.embedded import EmbeddedCluster, credentials_for
from bayplan.apiserver.requests import RequestUser
from bayplan.client import Client, ConnectionConfig, Secret
from bayplan.clock import SystemClock

Tree = dict[str, Any]
UNKNOWN_TOKEN = "token-of-a-stranger"


@dataclass(slots=True)
class ServerResponse:
    code: int
    headers: Any
    text: str

    @property
    def json(self) -> Tree:
        found: Tree = json.loads(self.text)
        return found


class EmbeddedClusterClient:
    """The cluster, and a session of its administrator."""

    def __init__(self, cluster: EmbeddedCluster, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.session = session

    async def request(self, method: str, path: str, body: Any = None, **headers: str) -> ServerResponse:
        """Send any request; header names with underscores, bodies that are not text as JSON."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        data = body if isinstance(body, str | bytes | None) else json.dumps(body)
        async with self.session.request(method, path, data=data, headers=named) as answer:
            return ServerResponse(answer.status, answer.headers, await answer.text())

    async def create(self, path: str, body: Tree) -> Tree:
        answer = await self.request("POST", path, body, Content_Type="application/json")
        assert answer.code == 201, answer.text
        return answer.json

    def target(self, token: str = "") -> ConnectionConfig:
        credentials = self.cluster.credentials
        return ConnectionConfig(
            server=self.cluster.url, ca_file=str(credentials.authority), token=Secret(token or credentials.token)
        )

    def client(self, token: str = "") -> Client:
        return Client(self.target(token), clock=SystemClock(), chance=random.Random(0), qps=10_000.0, burst=10_000)

    async def raw(self, text: bytes) -> bytes:
        """The server's response to raw bytes on a connection, until it closes it."""
        trust = ssl.create_default_context(cafile=str(self.cluster.credentials.authority))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.cluster.port, ssl=trust)
        writer.write(text)
        await writer.drain()
        said = await reader.read()
        writer.close()
        return said


@contextlib.asynccontextmanager
async def run_embedded_cluster(folder: Path, **options: Any) -> AsyncIterator[EmbeddedClusterClient]:
    credentials = credentials_for(folder, "127.0.0.1")
    users = {UNKNOWN_TOKEN: RequestUser("stranger", ("strangers",))}
    async with EmbeddedCluster(credentials, users=users, **options) as cluster:
        trust = ssl.create_default_context(cafile=str(credentials.authority))
        headers = {"Authorization": f"Bearer {credentials.token}"}
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(
            cluster.url, connector=connector, headers=headers, skip_auto_headers=("Content-Type",)
        ) as session:
            yield EmbeddedClusterClient(cluster, session)
