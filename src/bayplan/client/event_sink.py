"""Sends events to the API server: a bounded queue, a few senders and client-go's rules for retries.

All recorders of a process share one sink. `post` takes an event of `events.k8s.io`, as kube-scheduler records it.
`post_core` takes an event of the core group, as Volcano and controllers record it. Both return at once; `run` sends
until it is cancelled. Writes to one event are sequential, so that a series never precedes its first event. A refused
write is dropped at once. A write that does not reach the server is tried 12 times, about 10 s apart. When the queue is
full, the newest events are dropped and counted. The sink needs its own client, so that no binding waits behind events.
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
from bayplan.telemetry.event_correlator import SERIES_FINISH_AFTER, EventCorrelator, EventSeriesCorrelator, EventWrite
from bayplan.telemetry.events import Event

log = logging.getLogger(__name__)

MAX_TRIES = 12
RETRY_S = 10.0
RETRY_JITTER = 0.25
MAX_QUEUED = 20_000
"""Upstream queues 1,000 events and starts an unlimited number of goroutines; this limit stands for both."""

SENDERS, MAX_EXTRA_SENDERS = 8, 24
"""Senders while the process binds pods: events must not slow down bindings on a busy server. When no binding is in
flight, extra senders empty the queue before the next pods arrive."""
EVENTS_PER_EXTRA_SENDER = 32
"""An extra sender opens a connection, which costs as much as sending several events."""
MIN_SENDERS = 2
"""Senders beside a session that binds thousands of pods, until they are bound or the queue is half full."""


@dataclass(frozen=True, slots=True)
class _EventGroup:
    """API group of events with its correlator."""

    resource: GroupVersionResource
    correlator: EventCorrelator


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    resource: GroupVersionResource
    write: EventWrite

    @property
    def key(self) -> tuple[str, str]:
        return self.write.namespace, self.write.name

    def __str__(self) -> str:
        return f"{self.write.namespace}/{self.write.name}"


class EventSink:
    def __init__(
        self,
        client: Client,
        *,
        resource: GroupVersionResource = EVENTS,
        senders: int = SENDERS,
        max_queued: int = MAX_QUEUED,
        should_limit_senders: Callable[[], bool] = lambda: True,
    ) -> None:
        self.dropped = 0
        """Events dropped because the queue was full."""
        self.refused = 0
        """Writes that the server refused or that never reached it."""
        self.stored = 0
        """Writes that the server accepted."""
        self.client = client
        self._core = _EventGroup(CORE_EVENTS, CoreEventCorrelator(client.clock))
        self._main = _EventGroup(resource, EventSeriesCorrelator(client.clock)) if resource.group else self._core
        self._senders = senders
        self._max_queued = max_queued
        self._queue: deque[_PendingWrite] = deque()
        self._newer_writes: dict[tuple[str, str], _PendingWrite | None] = {}
        self.should_limit_senders = should_limit_senders
        """Whether more important writes are in flight. Default: always, so no extra sender starts."""
        self._extra_senders: set[asyncio.Task[None]] = set()
        self._work = asyncio.Semaphore(0)
        self._idle = asyncio.Event()
        self._idle.set()

    # API of the recorders.

    def post(self, event: Event) -> None:
        """Queue an event of the main group."""
        self._take(event, self._main)

    def post_core(self, event: Event) -> None:
        """Queue an event of the core group, correlated as client-go does for it."""
        self._take(event, self._core)

    def _take(self, event: Event, group: _EventGroup) -> None:
        if len(self._queue) >= self._max_queued:
            if not self.dropped:
                log.error("the event queue is full; dropping new events until the server keeps up")
            self.dropped += 1
            return
        write = group.correlator.observe(event)
        if write is not None:
            self._submit(_PendingWrite(group.resource, write))

    @property
    def waiting(self) -> int:
        """Number of events with an unanswered write."""
        return len(self._newer_writes)

    async def drain(self) -> None:
        """Wait until all queued events are stored or dropped."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._sweep(), name="event series")
                for number in range(self._senders):
                    group.create_task(self._send(), name=f"event sender {number}")
        finally:
            for sender in self._extra_senders:
                sender.cancel()

    # Queue.

    def _submit(self, pending: _PendingWrite) -> None:
        key = pending.key
        self._idle.clear()
        if key in self._newer_writes:
            self._newer_writes[key] = pending  # contains the earlier pending write
            return
        self._newer_writes[key] = None
        self._queue.append(pending)
        self._work.release()

    def _settle(self, pending: _PendingWrite) -> None:
        newer = self._newer_writes.pop(pending.key)
        if newer is not None:
            self._submit(newer)
        elif not self._newer_writes:
            self._idle.set()

    async def _sweep(self) -> None:
        while True:
            for group in (self._main, self._core):
                for write in group.correlator.sweep():
                    self._submit(_PendingWrite(group.resource, write))
            await self.client.clock.sleep(SERIES_FINISH_AFTER.total_seconds())

    # Senders.

    async def _send(self) -> None:
        while True:
            await self._send_next()
            if len(self._queue) > self._senders:
                self._start_extra_senders()

    async def _send_next(self) -> None:
        await self._work.acquire()
        pending = self._queue.popleft()
        try:
            await self._deliver(pending)
        except Exception:
            self.refused += 1
            log.exception("event %s could not be written", pending)
        finally:
            self._settle(pending)

    def _start_extra_senders(self) -> None:
        """Start an extra sender when events still wait after a write."""
        if len(self._extra_senders) < self._extra_sender_limit():
            sender = asyncio.ensure_future(self._run_extra_sender())
            self._extra_senders.add(sender)
            sender.add_done_callback(self._extra_senders.discard)

    async def _run_extra_sender(self) -> None:
        while not self._work.locked() and len(self._extra_senders) <= self._extra_sender_limit():
            await self._send_next()

    def _extra_sender_limit(self) -> int:
        """Number of extra senders: none while more important writes are in flight, unless the queue is half full."""
        if not self.should_limit_senders():
            return min(MAX_EXTRA_SENDERS, len(self._queue) // EVENTS_PER_EXTRA_SENDER)
        return SENDERS - self._senders if len(self._queue) > self._max_queued // 2 else 0

    async def _deliver(self, pending: _PendingWrite) -> None:
        """Retry until the event is stored, refused, or out of tries."""
        clock, chance = self.client.clock, self.client.chance
        for number in range(1, MAX_TRIES + 1):
            if await self._attempt(pending):
                return
            if number < MAX_TRIES:
                await clock.sleep(RETRY_S * (1.0 + chance.random() * RETRY_JITTER))
        self.refused += 1
        log.error("event %s was not written: no try of %d reached the server", pending, MAX_TRIES)

    async def _attempt(self, pending: _PendingWrite) -> bool:
        """Send once. Returns whether the server has accepted or refused the write."""
        try:
            await self._request(pending.resource, pending.write)
        except ApiError as fault:
            if not fault.code:
                log.warning("event %s: %s; retrying", pending, fault)
                return False
            if isinstance(fault, AlreadyExists) and pending.write.patch is not None:
                return False  # deleted before the patch and recreated before the create: the next patch finds it
            self.refused += 1
            level = logging.DEBUG if isinstance(fault, AlreadyExists) else logging.ERROR
            log.log(level, "the server refused event %s: %s", pending, fault)
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
                pass  # deleted meanwhile
            else:
                return
        await self.client.create(resource, write.body, namespace=write.namespace)


def event_resource(offered: ServedResources) -> GroupVersionResource:
    """Events resource of a server; its discovery must have included `EVENTS`."""
    return EVENTS if offered.offers(EVENTS) else CORE_EVENTS
