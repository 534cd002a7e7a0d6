"""Sends events to the API server: a bounded queue, a few senders, client-go's rules for retries.

All recorders of a process share one sink. `post` takes an event of `events.k8s.io`, as kube-scheduler records them;
`post_core` one of the core group, as Volcano and controllers record them. Both return at once; `run` sends until it is
cancelled. Writes to one event go one after another, so that a series never comes before its first event. What the
server refuses is given up at once; what does not reach it is tried 12 times, some 10 s apart. When more waits than the
queue holds, the newest are dropped and counted: an event is news, not state. Give it a client of its own, so that no
binding waits behind events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bayplan.client.client import Client
from bayplan.client.discovery.served_resources import ServedResources
from bayplan.client.resources import CORE_EVENTS, EVENTS, GroupVersionResource
from bayplan.errors import AlreadyExists, ApiError, BayplanError, LeaseLost, NotFound
from bayplan.telemetry.core_event_correlator import CoreEventCorrelator
from bayplan.telemetry.event_correlator import (
    SERIES_FINISH_AFTER,
    EventCorrelator,
    EventSeriesCorrelator,
    EventWrite,
)
from bayplan.telemetry.events import Event

log = logging.getLogger(__name__)

MAX_TRIES = 12
RETRY_S = 10.0
RETRY_JITTER = 0.25
MAX_QUEUED = 20_000
"""Upstream lets 1,000 wait for a goroutine and any number of goroutines for the server: this is the sum of both."""

SENDERS, MAX_EXTRA_SENDERS = 8, 24
"""Few beside the bindings that are on the wire: while a server is busy with pods, they come before the news about them.
When nothing else is under way, helpers send what has heaped up, so that it is not in the way of the next pods."""
EVENTS_PER_EXTRA_SENDER = 32
"""A helper opens a connection, which costs as much as it does to send several."""
MIN_SENDERS = 2
"""Beside sessions, which bind thousands of pods at once: so many, until they are bound or the queue is half full."""


@dataclass(frozen=True, slots=True)
class _EventGroup:
    """An API group of events, and how its events are correlated."""

    resource: GroupVersionResource
    book: EventCorrelator


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    """A write that waits for a sender."""

    resource: GroupVersionResource
    write: EventWrite

    @property
    def key(self) -> tuple[str, str]:
        return self.write.namespace, self.write.name

    def __str__(self) -> str:
        return f"{self.write.namespace}/{self.write.name}"


class EventSink:
    """Stores events on one API server."""

    def __init__(
        self,
        client: Client,
        *,
        resource: GroupVersionResource = EVENTS,
        senders: int = SENDERS,
        most_waiting: int = MAX_QUEUED,
        gives_way: Callable[[], bool] = lambda: True,
    ) -> None:
        self.dropped = 0
        """Events that found no room in the queue."""
        self.refused = 0
        """Writes that the server did not take, or that never reached it."""
        self.stored = 0
        """Writes that the server took."""
        self.client = client
        self._core = _EventGroup(CORE_EVENTS, CoreEventCorrelator(client.clock))
        self._main = _EventGroup(resource, EventSeriesCorrelator(client.clock)) if resource.group else self._core
        self._senders = senders
        self._most_waiting = most_waiting
        self._waiting: deque[_PendingWrite] = deque()
        self._following: dict[tuple[str, str], _PendingWrite | None] = {}
        self.gives_way = gives_way
        """Whether there is something more important under way; unless told otherwise, there always may be."""
        self._helping: set[asyncio.Task[None]] = set()
        self._work = asyncio.Semaphore(0)
        self._idle = asyncio.Event()
        self._idle.set()

    # What the rest of the process calls.

    def post(self, event: Event) -> None:
        """Take an event; it is sent when its turn comes."""
        self._take(event, self._main)

    def post_core(self, event: Event) -> None:
        """The same for an event of the core group, which is correlated as client-go does it there."""
        self._take(event, self._core)

    def _take(self, event: Event, group: _EventGroup) -> None:
        if len(self._waiting) >= self._most_waiting:
            if not self.dropped:
                log.error("too many events wait for the server; dropping new ones until it keeps up")
            self.dropped += 1
            return
        write = group.book.observe(event)
        if write is not None:
            self._submit(_PendingWrite(group.resource, write))

    @property
    def waiting(self) -> int:
        """Writes that were not answered yet, as far as they are not replaced by later ones."""
        return len(self._following)

    async def drained(self) -> None:
        """Return when everything that was posted is stored or given up."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._sweep(), name="event series")
                for number in range(self._senders):
                    group.create_task(self._send(), name=f"event sender {number}")
        finally:
            for helper in self._helping:
                helper.cancel()

    # The queue.

    def _submit(self, pending: _PendingWrite) -> None:
        key = pending.key
        self._idle.clear()
        if key in self._following:
            self._following[key] = pending  # has all that an earlier one would have had
            return
        self._following[key] = None
        self._waiting.append(pending)
        self._work.release()

    def _settle(self, pending: _PendingWrite) -> None:
        following = self._following.pop(pending.key)
        if following is not None:
            self._submit(following)
        elif not self._following:
            self._idle.set()

    async def _sweep(self) -> None:
        while True:
            for group in (self._main, self._core):
                for write in group.book.sweep():
                    self._submit(_PendingWrite(group.resource, write))
            await self.client.clock.sleep(SERIES_FINISH_AFTER.total_seconds())

    # Sending.

    async def _send(self) -> None:
        while True:
            await self._send_next()
            if len(self._waiting) > self._senders:
                self._start_extra_senders()

    async def _send_next(self) -> None:
        await self._work.acquire()
        pending = self._waiting.popleft()
        try:
            await self._deliver(pending)
        except Exception:
            self.refused += 1
            log.exception("event %s could not be written", pending)
        finally:
            self._settle(pending)

    def _start_extra_senders(self) -> None:
        """The server has just taken an event, and more of them wait."""
        if len(self._helping) < self._extra_sender_limit():
            helper = asyncio.ensure_future(self._run_extra_sender())
            self._helping.add(helper)
            helper.add_done_callback(self._helping.discard)

    async def _run_extra_sender(self) -> None:
        while not self._work.locked() and len(self._helping) <= self._extra_sender_limit():
            await self._send_next()

    def _extra_sender_limit(self) -> int:
        """Nobody beside what is more important, until so many wait that some could be lost."""
        if not self.gives_way():
            return min(MAX_EXTRA_SENDERS, len(self._waiting) // EVENTS_PER_EXTRA_SENDER)
        return SENDERS - self._senders if len(self._waiting) > self._most_waiting // 2 else 0

    async def _deliver(self, pending: _PendingWrite) -> None:
        """Try until it is stored, refused, or tried often enough."""
        clock, chance = self.client.clock, self.client.chance
        for number in range(1, MAX_TRIES + 1):
            if await self._attempt(pending):
                return
            if number < MAX_TRIES:
                await clock.sleep(RETRY_S * (1.0 + chance.random() * RETRY_JITTER))
        self.refused += 1
        log.error("event %s was not written: no try of %d reached the server", pending, MAX_TRIES)

    async def _attempt(self, pending: _PendingWrite) -> bool:
        """Whether the server has answered, with yes or with no."""
        try:
            await self._request(pending.resource, pending.write)
        except ApiError as fault:
            if not fault.code:
                log.warning("event %s: %s; trying again", pending, fault)
                return False
            if isinstance(fault, AlreadyExists) and pending.write.patch is not None:
                return False  # gone when it was patched, there when it was made anew: the next patch finds it
            self.refused += 1
            level = logging.DEBUG if isinstance(fault, AlreadyExists) else logging.ERROR
            log.log(level, "the server refuses event %s: %s", pending, fault)
        except LeaseLost as fault:
            self.refused += 1
            log.debug("event %s is not written: %s", pending, fault)
        except BayplanError as fault:
            self.refused += 1
            log.info("event %s is not written: %s", pending, fault)
        else:
            self.stored += 1
        return True

    async def _request(self, resource: GroupVersionResource, write: EventWrite) -> None:
        if write.patch is not None:
            try:
                await self.client.patch(resource, write.patch, namespace=write.namespace, name=write.name)
            except NotFound:
                pass  # removed meanwhile
            else:
                return
        await self.client.create(resource, write.body, namespace=write.namespace)


def event_resource(offered: ServedResources) -> GroupVersionResource:
    """Where events go on a server that offers this; `EVENTS` must be among what it was asked for."""
    return EVENTS if offered.offers(EVENTS) else CORE_EVENTS
