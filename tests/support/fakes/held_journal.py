"""A cluster for tests of the group commit: the test decides when a commit happens or fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bayplan.apiserver import embedded
from bayplan.apiserver.http.in_process import InProcessServer
from bayplan.apiserver.storage import store as store_module
from bayplan.apiserver.storage.sqlite_backend import DataSync, SqliteBackend, StorageBackendError
from bayplan.apiserver.storage.store import Changes
from support.harness.async_tests import wait_until
from support.harness.embedded_cluster import EmbeddedClusterClient, ServerResponse, run_embedded_cluster

Tree = dict[str, Any]

CORE = "/api/v1/namespaces/default"
CONFIG_MAPS = f"{CORE}/configmaps"
JSON = "application/json"

DISK_FULL_ERROR = "cannot write objects.db: database or disk is full"


class ManualCommitJournal(SqliteBackend):
    """The product's journal; after `hold`, each commit waits for `commit_next` or `fail_next`."""

    def __init__(self, path: Path, sync: DataSync = "full") -> None:
        super().__init__(path, sync)
        self.groups: list[list[int]] = []
        """The versions of each group that was submitted since `hold`."""
        self._held = False
        self._failing = False
        self._waiting: list[tuple[int, Changes, asyncio.Future[None]]] = []

    def hold(self) -> None:
        self._held = True

    def fail_always(self) -> None:
        self._failing = True

    def work_again(self) -> None:
        """Commit all waiting groups and all later ones."""
        self._held = self._failing = False
        while self._waiting:
            self._pass_on(*self._waiting.pop(0))

    def commit(self, version: int, changes: Changes) -> asyncio.Future[None]:
        if not (self._held or self._failing):
            return super().commit(version, changes)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.groups.append([change.version for _, change in changes])
        if self._failing:
            done.set_exception(StorageBackendError(DISK_FULL_ERROR))
        else:
            self._waiting.append((version, changes, done))
        return done

    async def asked(self) -> None:
        """Return when a commit waits."""
        await wait_until(lambda: self._waiting)

    async def commit_next(self) -> None:
        await self.asked()
        self._pass_on(*self._waiting.pop(0))

    async def fail_next(self) -> None:
        await self.asked()
        self._waiting.pop(0)[2].set_exception(StorageBackendError(DISK_FULL_ERROR))

    def _pass_on(self, version: int, changes: Changes, done: asyncio.Future[None]) -> None:
        super().commit(version, changes).add_done_callback(lambda written: done.set_result(written.result()))


def use_held_journal(monkeypatch: pytest.MonkeyPatch) -> list[ManualCommitJournal]:
    """Make embedded clusters use such journals; returns the list of created ones."""
    made: list[ManualCommitJournal] = []

    def make(path: Path, sync: DataSync = "full") -> ManualCommitJournal:
        made.append(ManualCommitJournal(path, sync))
        return made[-1]

    monkeypatch.setattr(embedded, "SqliteBackend", make)
    return made


class HeldCluster(EmbeddedClusterClient):
    """A cluster with in-process requests."""

    def __init__(self, cluster: EmbeddedClusterClient) -> None:
        super().__init__(cluster.cluster, cluster.session)
        self._door = InProcessServer(cluster.cluster.handler_chain(), lambda: 0)

    async def begin(self, method: str, path: str, body: Tree, media: str = JSON) -> asyncio.Task[ServerResponse]:
        """Send a request; on return, the server has decided and waits for the commit, if any."""
        lines = f"Authorization: Bearer {self.cluster.credentials.token}\r\nContent-Type: {media}".encode()

        async def ask() -> ServerResponse:
            code, _, text = await self._door.request(method, path, lines, json.dumps(body).encode())
            return ServerResponse(code, {}, text.decode())

        asking = asyncio.create_task(ask())
        await asyncio.sleep(0)
        return asking


@asynccontextmanager
async def run_held_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, sync: DataSync = "full"
) -> AsyncIterator[tuple[HeldCluster, ManualCommitJournal]]:
    """A cluster whose commits the test holds, releases or fails."""
    made = use_held_journal(monkeypatch)
    monkeypatch.setattr(store_module, "RETRY_S", 0.0)
    data = folder / "objects.db"
    async with run_embedded_cluster(folder, data=data, data_sync=sync) as cluster:
        try:
            yield HeldCluster(cluster), made[0]
        finally:
            made[0].work_again()


def post(cluster: EmbeddedClusterClient, path: str, body: Tree) -> asyncio.Task[ServerResponse]:
    return asyncio.create_task(cluster.request("POST", path, body, Content_Type=JSON))


async def listed(cluster: EmbeddedClusterClient, path: str = CONFIG_MAPS) -> tuple[dict[str, str], str]:
    """Names and versions of a list, and its own version."""
    found = (await cluster.request("GET", path)).json
    items = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found["items"]}
    return items, found["metadata"]["resourceVersion"]


@asynccontextmanager
async def watched(cluster: EmbeddedClusterClient, path: str, version: str) -> AsyncIterator[list[tuple[str, str]]]:
    """The events of a watch so far: their types and the names of the objects."""
    events: list[tuple[str, str]] = []
    async with cluster.session.get(f"{path}?watch=true&resourceVersion={version}") as answer:

        async def read() -> None:
            async for line in answer.content:
                event = json.loads(line)
                events.append((event["type"], event["object"]["metadata"]["name"]))

        reading = asyncio.create_task(read())
        yield events
        reading.cancel()
