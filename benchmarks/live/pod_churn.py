"""Pods that are created, bound and deleted, for a given number of pods: each with unique labels.

Called by `soak.py`. `alive` pods exist at a time; a pod that has a node is deleted, and another one is created. A
scheduler could leak memory by caching labels that never repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from bayplan.client import Client
from bayplan.client.informer.watcher import LineSplitter
from bayplan.errors import ApiError, NotFound
from benchmarks.live.bind_watch import WatchedPod, WatchEvent

NAMESPACE = "soak"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_AT_ONCE = 12
_NOW = b'{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0}'


class PodChurn:
    """`pods` in total, `alive` at a time. `passed` counts those that were bound and deleted."""

    def __init__(self, client: Client, pods: int, alive: int, on_passed: Callable[[int], None]) -> None:
        self.passed = 0
        self._client = client
        self._pods = pods
        self._on_passed = on_passed
        self._numbers = iter(range(pods))
        self._room = asyncio.Semaphore(alive)
        self._doomed: asyncio.Queue[str] = asyncio.Queue()
        self._over = asyncio.Event()
        self._decoder = msgspec.json.Decoder(WatchEvent)

    async def run(self) -> None:
        """Run until the last pod is deleted."""
        version = await self._version()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._watch(version))]
            tasks += [group.create_task(self._create()) for _ in range(_AT_ONCE)]
            tasks += [group.create_task(self._delete()) for _ in range(_AT_ONCE)]
            await self._over.wait()
            for task in tasks:
                task.cancel()

    async def _version(self) -> str:
        answer = await self._client.transport.request("GET", f"{_PODS}?limit=1")
        return msgspec.json.decode(answer.body, type=WatchedPod).metadata.resource_version

    async def _watch(self, version: str) -> None:
        while True:
            path = f"{_PODS}?watch=true&allowWatchBookmarks=true&resourceVersion={version}"
            lines, seen = LineSplitter(), set[str]()
            async with self._client.transport.stream(path, quiet_s=300.0) as stream:
                while piece := await stream.read():
                    for line in lines.feed(piece):
                        version = self._take(self._decoder.decode(line), seen) or version

    def _take(self, event: WatchEvent, seen: set[str]) -> str:
        name = event.object.metadata.name
        if event.type == "DELETED":
            seen.discard(name)
        elif event.object.spec.node_name and name not in seen:
            seen.add(name)
            self._doomed.put_nowait(name)
        return event.object.metadata.resource_version

    async def _create(self) -> None:
        for number in self._numbers:
            await self._room.acquire()
            await self._client.transport.request("POST", _PODS, msgspec.json.encode(unique_pod(number)))

    async def _delete(self) -> None:
        while True:
            name = await self._doomed.get()
            try:
                await self._client.transport.request("DELETE", f"{_PODS}/{name}", _NOW)
            except NotFound:
                continue
            except ApiError:
                self._doomed.put_nowait(name)
                continue
            self._room.release()
            self.passed += 1
            self._on_passed(self.passed)
            if self.passed >= self._pods:
                self._over.set()


def unique_pod(number: int) -> dict[str, object]:
    """A pod of a job: its labels and its owner are unique, its size is one of twenty."""
    unique = f"{number:08x}-aaaa-bbbb-cccc-{number:012x}"
    asks = {"cpu": f"{100 + 10 * (number % 20)}m", "memory": "64Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"job-{number}",
            "namespace": NAMESPACE,
            "labels": {
                "batch.kubernetes.io/controller-uid": unique,
                "batch.kubernetes.io/job-name": f"job-{number}",
                "app": f"app-{number % 50}",
            },
            "annotations": {"example.com/run": unique},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{number}", "uid": unique, "controller": True}
            ],
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "main", "image": f"example.com/app:{number % 50}", "resources": {"requests": asks}}
            ],
        },
    }
