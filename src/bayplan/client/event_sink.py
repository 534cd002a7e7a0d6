"""How do events reach the API server? A bounded queue, a few senders, and upstream's rules for trying again.

`post` is called from the loop for every event and returns at once; `run` sends until it is cancelled. Writes to one
event go one after another, so a series is never told before its first event. What the server refuses is given up at
once; what does not reach it is tried 12 times, some 10 s apart. When more waits than the queue holds, the newest are
dropped and counted: an event is news, not state. Give it a client of its own, so that no binding waits behind events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from bayplan.client.client import Client
from bayplan.client.discovery import Offered
from bayplan.client.resources import CORE_EVENTS, EVENTS, Resource
from bayplan.errors import AlreadyExists, ApiError, BayplanError, NotFound
from bayplan.telemetry.core_events import CoreBook
from bayplan.telemetry.event_books import FINISH, EventBook, EventWrite, SeriesBook
from bayplan.telemetry.events import Event

log = logging.getLogger(__name__)

TRIES = 12
RETRY_S = 10.0
RETRY_JITTER = 0.25
MOST_WAITING = 20_000
"""Upstream lets 1,000 wait for a goroutine and any number of goroutines for the server: this is the sum of both."""

SENDERS, HELPERS = 8, 24
"""Few beside the bindings that are on the wire: while a server is busy with pods, they come before the news about them.
When nothing else is under way, helpers send what has heaped up, so that it is not in the way of the next pods."""
EVENTS_A_HELPER = 32
"""A helper opens a connection, which costs as much as it does to send several."""
FEW_SENDERS = 2
"""Beside sessions, which bind thousands of pods at once: so many, until they are bound or the queue is half full."""


class EventSink:
    """Stores events on one API server."""

    def __init__(
        self,
        client: Client,
        *,
        resource: Resource = EVENTS,
        senders: int = SENDERS,
        most_waiting: int = MOST_WAITING,
        gives_way: Callable[[], bool] = lambda: True,
    ) -> None:
        self.dropped = 0
        """Events that found no room in the queue."""
        self.refused = 0
        """Writes that the server did not take, or that never reached it."""
        self.stored = 0
        """Writes that the server took."""
        self.client = client
        self._resource = resource
        self._book: EventBook = SeriesBook(client.clock) if resource.group else CoreBook(client.clock)
        self._senders = senders
        self._most_waiting = most_waiting
        self._waiting: deque[EventWrite] = deque()
        self._following: dict[tuple[str, str], EventWrite | None] = {}
        self.gives_way = gives_way
        """Whether there is something more important under way; unless told otherwise, there always may be."""
        self._helping: set[asyncio.Task[None]] = set()
        self._work = asyncio.Semaphore(0)
        self._idle = asyncio.Event()
        self._idle.set()

    # What the rest of the process calls.

    def post(self, event: Event) -> None:
        """Take an event; it is sent when its turn comes."""
        if len(self._waiting) >= self._most_waiting:
            if not self.dropped:
                log.error("too many events wait for the server; dropping new ones until it keeps up")
            self.dropped += 1
            return
        write = self._book.observe(event)
        if write is not None:
            self._submit(write)

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

    def _submit(self, write: EventWrite) -> None:
        key = (write.namespace, write.name)
        self._idle.clear()
        if key in self._following:
            self._following[key] = write  # tells all that an earlier one would have told
            return
        self._following[key] = None
        self._waiting.append(write)
        self._work.release()

    def _settle(self, write: EventWrite) -> None:
        following = self._following.pop((write.namespace, write.name))
        if following is not None:
            self._submit(following)
        elif not self._following:
            self._idle.set()

    async def _sweep(self) -> None:
        while True:
            for write in self._book.sweep():
                self._submit(write)
            await self.client.clock.sleep(FINISH.total_seconds())

    # Sending.

    async def _send(self) -> None:
        while True:
            await self._send_next()
            if len(self._waiting) > self._senders:
                self._call_for_help()

    async def _send_next(self) -> None:
        await self._work.acquire()
        write = self._waiting.popleft()
        try:
            await self._deliver(write)
        except Exception:
            self.refused += 1
            log.exception("event %s/%s could not be written", write.namespace, write.name)
        finally:
            self._settle(write)

    def _call_for_help(self) -> None:
        """The server has just taken an event, and more of them wait."""
        if len(self._helping) < self._most_helping():
            helper = asyncio.ensure_future(self._help())
            self._helping.add(helper)
            helper.add_done_callback(self._helping.discard)

    async def _help(self) -> None:
        while not self._work.locked() and len(self._helping) <= self._most_helping():
            await self._send_next()

    def _most_helping(self) -> int:
        """Nobody beside what is more important, until so many wait that some could be lost."""
        if not self.gives_way():
            return min(HELPERS, len(self._waiting) // EVENTS_A_HELPER)
        return SENDERS - self._senders if len(self._waiting) > self._most_waiting // 2 else 0

    async def _deliver(self, write: EventWrite) -> None:
        """Try until it is stored, refused, or tried often enough."""
        clock, chance = self.client.clock, self.client.chance
        tries = 1 if write.last else TRIES
        for number in range(1, tries + 1):
            if await self._attempt(write):
                self._book.written(write)
                return
            if number < tries:
                await clock.sleep(RETRY_S * (1.0 + chance.random() * RETRY_JITTER))
        self.refused += 1
        if not write.last:
            log.error(
                "event %s/%s was not written: no try of %d reached the server", write.namespace, write.name, tries
            )

    async def _attempt(self, write: EventWrite) -> bool:
        """Whether the server has answered, with yes or with no."""
        try:
            await self._request(write)
        except ApiError as fault:
            if not fault.code:
                log.warning("event %s/%s: %s; trying again", write.namespace, write.name, fault)
                return False
            if isinstance(fault, AlreadyExists) and write.patch is not None:
                return False  # gone when it was patched, there when it was made anew: the next patch finds it
            self.refused += 1
            level = logging.DEBUG if isinstance(fault, AlreadyExists) else logging.ERROR
            log.log(level, "the server refuses event %s/%s: %s", write.namespace, write.name, fault)
        except BayplanError as fault:
            self.refused += 1
            log.info("event %s/%s is not written: %s", write.namespace, write.name, fault)
        else:
            self.stored += 1
        return True

    async def _request(self, write: EventWrite) -> None:
        if write.patch is not None:
            try:
                await self.client.patch(self._resource, write.patch, namespace=write.namespace, name=write.name)
            except NotFound:
                pass  # removed meanwhile
            else:
                return
        await self.client.create(self._resource, write.body, namespace=write.namespace)


def event_resource(offered: Offered) -> Resource:
    """Where events go on a server that offers this; `EVENTS` must be among what it was asked for."""
    return EVENTS if offered.offers(EVENTS) else CORE_EVENTS
