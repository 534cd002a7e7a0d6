"""Observes the bindings and their cost: a pod watch, samples of the process, and the final events.

The watch is the same for every contender and only records which pod has a node and when that was seen. The process is
sampled fifty times a second, so that its work before the first binding (start, lists) can be subtracted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import msgspec

from bayplan.client import Client
from bayplan.client.informer.watcher import LineSplitter
from bayplan.errors import BayplanError

log = logging.getLogger(__name__)

_LOOK_S = 0.02
_WATCH_S = 3600
_EVENTS_S = 60.0
_ENOUGH = 0.95
"""Minimum share of bound pods for meaningful figures. The rest would wait for a flush of the queue, for minutes."""


class Unfinished(BayplanError):
    """A contender did not bind its pods."""


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""
    remaining_item_count: int = 0


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class WatchedPod(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class WatchEvent(msgspec.Struct):
    type: str
    object: WatchedPod


class _Reference(msgspec.Struct):
    uid: str = ""


class _Event(msgspec.Struct):
    reason: str = ""
    regarding: _Reference = msgspec.field(default_factory=_Reference)


class _Events(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    items: list[_Event] = []


class BoundPods:
    """Watches pods of a namespace, by name."""

    def __init__(self, client: Client, namespace: str, wanted: frozenset[str]) -> None:
        self.at_s: dict[str, float] = {}
        """By name: time when a pod was first seen with a node."""
        self._client = client
        self._namespace = namespace
        self._wanted = wanted
        self._all = asyncio.Event()
        self._version = ""
        self._decoder = msgspec.json.Decoder(WatchEvent)

    async def run(self, opened: asyncio.Event) -> None:
        """Run the watch.

        A busy server closes watches that it cannot serve in time; the watch then resumes at its last version.
        """
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        self._version = await self._version_now(path)
        while True:
            lines = LineSplitter()
            query = f"{path}?watch=true&timeoutSeconds={_WATCH_S}&resourceVersion={self._version}"
            async with self._client.transport.stream(query, quiet_s=_WATCH_S) as stream:
                opened.set()
                while piece := await stream.read():
                    now = perf_counter()
                    for line in lines.feed(piece):
                        self._take(line, now)
            log.warning("the pod watch ended after %d pods; resuming", len(self.at_s))

    async def _version_now(self, path: str) -> str:
        answer = await self._client.transport.request("GET", f"{path}?limit=1")
        return msgspec.json.decode(answer.body, type=WatchedPod).metadata.resource_version

    def _take(self, line: bytes, now: float) -> None:
        event = self._decoder.decode(line)
        if event.type == "ERROR":
            raise Unfinished(f"the pod watch failed: {line.decode()}")
        pod = event.object
        self._version, name = pod.metadata.resource_version, pod.metadata.name
        if pod.spec.node_name and name not in self.at_s and name in self._wanted:
            self.at_s[name] = now
            if len(self.at_s) == len(self._wanted):
                self._all.set()

    async def wait_for_all(self, quiet_s: float) -> None:
        """Return when every pod has a node, or after `quiet_s` without a binding: pods that are left are reported."""
        while not self._all.is_set():
            before = len(self.at_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all.wait(), quiet_s)
            if len(self.at_s) > before:
                continue
            if before < _ENOUGH * len(self._wanted):
                raise Unfinished(f"{before} of {len(self._wanted)} pods were bound, and no other for {quiet_s:g} s")
            return


@dataclass
class Process:
    """Resource usage of a process: processor seconds at sample times, and memory."""

    pid: int
    seen: list[tuple[float, float]] = field(default_factory=list)

    def look(self) -> None:
        self.seen.append((perf_counter(), sum(_thread_seconds(self.pid))))

    def cpu_between(self, start_s: float, end_s: float) -> float:
        """From the last sample before the start to the first after the end."""
        before = [used for at, used in self.seen if at <= start_s] or [0.0]
        after = [used for at, used in self.seen if at >= end_s] or [self.seen[-1][1]]
        return after[0] - before[-1]

    def memory_mib(self) -> float:
        """Peak resident memory."""
        return self._mib("VmHWM:")

    def resident_mib(self) -> float:
        """Current resident memory."""
        return self._mib("VmRSS:")

    def _mib(self, name: str) -> float:
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
        line = next(line for line in text.splitlines() if line.startswith(name))
        return int(line.split()[1]) / 1024


async def look_at(*processes: Process) -> None:
    """Sample the processes until cancelled."""
    while True:
        for each in processes:
            each.look()
        await asyncio.sleep(_LOOK_S)


def _thread_seconds(pid: int) -> Iterator[float]:
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            yield int(file.read_text().split()[0]) / 1e9


class StoredEvents:
    """Scheduled events of pods, polled with a cheap count first, because full lists slow the server down."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"

    async def count(self) -> int:
        """Number of all events."""
        found = await self._get("?limit=1")
        return len(found.items) + found.metadata.remaining_item_count

    async def wait_for(self, uids: frozenset[str], more_than: int) -> float:
        """Wait until every pod's event can be read; return the time."""
        end_s = perf_counter() + _EVENTS_S
        while True:
            now = perf_counter()
            missing = len(uids) + more_than - await self.count()
            if missing <= 0:
                found = (await self._get("")).items
                missing = len(uids - {each.regarding.uid for each in found if each.reason == "Scheduled"})
                if not missing:
                    return now
            if now > end_s:
                raise Unfinished(f"{missing} of {len(uids)} pods have no Scheduled event after {_EVENTS_S:g} s")
            await asyncio.sleep(0.05)

    async def _get(self, query: str) -> _Events:
        answer = await self._client.transport.request("GET", self._path + query)
        return msgspec.json.decode(answer.body, type=_Events)
