"""What exists of one resource right now, and who is told when it changes?

One informer a resource: it lists, watches, resumes, lists again after a gap, and hands every change to one handler as
(old, new). Its store holds the same objects that the handler got. The handler runs on the loop, in slices of a few
milliseconds; what it raises is logged and costs that one change. Deletes that were missed in a gap are found by the
next list; a version older than the last one seen is never asked for.

A watch may lag without a sign of it: it waits for its next try, or it is silently dead. A process that has just become
the leader calls `catch_up` before it decides, so that it knows what its predecessor wrote last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from bayplan.client.backoff import Backoff
from bayplan.client.decoding import Decoder, Key, Unreadable, WatchEvent, ends_initial
from bayplan.client.lasting import SERVER, LastingFaults
from bayplan.client.lists import list_all
from bayplan.client.resources import Resource, query
from bayplan.client.statuses import Status, fault, too_large_version
from bayplan.client.transport import Transport
from bayplan.client.watches import watch, watch_s
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, BayplanError, Gone, Invalid, ServerError, TimedOut, TooManyRequests
from bayplan.objects.meta import KubeObject

log = logging.getLogger(__name__)

Handler = Callable[[KubeObject | None, KubeObject | None], None]
"""handler(old, new): no old is an add, no new is a delete."""

Complaint = Callable[[Resource, Unreadable], None]
"""Told about an object that cannot be read, once for each version of it."""

CATCH_UP_S = 10.0
"""The longest time for which `Informer.catch_up` waits."""

SLICE_S = 0.004
_SHORT_S = 1.0
_STREAM_TRIES = 2
_CATCH_UP_WATCH_S = 1
"""What a watch asks for that only delivers what was missed. The server sends that first."""
_PROMPT_S = (0.9, 1.75)
"""A watch of one second that ended earlier or later may have ended before the server sent what was missed."""
_CATCH_UP_PAUSE_S = 1.0
"""The longest pause before the next try while `catch_up` waits, unless the server asks for a longer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which objects of a resource an informer keeps."""

    namespace: str = ""
    field_selector: str = ""
    label_selector: str = ""


EVERYTHING = Selection()


class Informer:
    """Keeps one resource in step with the server. `run` it as a task; cancel the task to stop."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        handler: Handler,
        *,
        clock: LoopClock,
        chance: random.Random,
        selection: Selection = EVERYTHING,
        complaint: Complaint | None = None,
        streaming: bool = True,
        only_latest: bool = False,
        faults: LastingFaults | None = None,
    ) -> None:
        """`only_latest`: of several changes of one object that have come together the last will do. `faults`: where
        several informers of one server complain together."""
        self.resource = resource
        self.resource_version = ""
        """The last version that was told; the next watch goes on from it."""
        self.trouble = ""
        """Why nothing comes at present, in words."""
        self._transport = transport
        self._handler = handler
        self._clock = clock
        self._chance = chance
        self._selection = selection
        self._complaint = complaint
        self._streaming = streaming
        self._only_latest = only_latest
        self._decoder = Decoder(resource)
        self._backoff = Backoff(clock, chance)
        self._faults = faults or LastingFaults(log, clock)
        self._store: dict[Key, KubeObject] = {}
        self._unreadable: dict[Key, Unreadable] = {}
        self._synced = asyncio.Event()
        self._latest = False
        self._slice_started = 0.0
        self._failed_streams = 0
        self._wanted: int | None = None  # the version up to which `catch_up` waits
        self._caught_up = asyncio.Event()
        self._limit: asyncio.Timeout | None = None  # of what `catch_up` may cut
        self._gathers = False  # whether the watch delivers a list at present

    @property
    def store(self) -> Mapping[Key, KubeObject]:
        """What exists, by namespace and name."""
        return MappingProxyType(self._store)

    @property
    def unreadable(self) -> Mapping[Key, Unreadable]:
        """What exists and cannot be read; the store may hold an earlier version of it."""
        return MappingProxyType(self._unreadable)

    @property
    def synced(self) -> bool:
        """Whether everything that existed at the start has been told."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def catch_up(self) -> None:
        """Return when the handler has every change that the server had accepted when this was called.

        The newest version comes from a consistent read of one object. A watch that has not seen it is cut, and the next
        one asks the server to end it after a second: it has delivered everything when it delivers that version, or
        nothing at all. Cost: two requests, and about a second for a kind that has not changed lately.

        Returns after `CATCH_UP_S` in any case: one kind that the server cannot deliver must not keep a process from
        its work.
        """
        if self._transport.in_process:
            return
        tasks = [asyncio.ensure_future(each) for each in (self._catch_up(), self._clock.sleep(CATCH_UP_S))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                log.warning(
                    "%s: not caught up after %.0f s: %s", self.resource, CATCH_UP_S, self.trouble or "no answer"
                )
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.wait(tasks)
            self._wanted = None

    async def _catch_up(self) -> None:
        self._wanted = await self._newest_version()
        self._caught_up.clear()
        self._look_caught_up()
        if self._wanted is not None:
            self._cut()
        await self._caught_up.wait()

    async def _newest_version(self) -> int:
        path = self.resource.path(self._selection.namespace) + query({"limit": 1})
        backoff = Backoff(self._clock, self._chance)
        while True:
            try:
                answer = await self._transport.request("GET", path)
            except ApiError as error:
                log.info("%s: cannot read the newest version: %s", self.resource, error)
                await backoff.wait()
                continue
            return _number(msgspec.json.decode(answer.body, type=_ListHead).metadata.resource_version)

    def _look_caught_up(self, *, is_complete: bool = False) -> None:
        """`is_complete`: a watch has ended that had nothing to deliver."""
        if self._wanted is not None and (is_complete or _number(self.resource_version) >= self._wanted):
            self._wanted = None
            self._caught_up.set()

    def _cut(self) -> None:
        """End a watch, or the wait for the next one. A list that is under way is not cut."""
        if self._limit is not None and not self._gathers and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    @contextlib.asynccontextmanager
    async def _interruptible(self) -> AsyncGenerator[None, None]:
        """`_cut` ends this block."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as self._limit:
                try:
                    yield
                finally:
                    self._limit, self._gathers = None, False

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                streamed = self._streaming and self._failed_streams < _STREAM_TRIES
                if not streamed:
                    await self._list()
                await self._follow(with_initial=streamed)
            except BayplanError as error:
                self._learn_from(error)
                await self._pause()

    def _learn_from(self, error: BayplanError) -> None:
        """What the next try does otherwise."""
        if isinstance(error, Invalid) and self._streaming:
            self._streaming = False
            log.info("%s: the server does not stream lists; listing in pages", self.resource)
            return
        if isinstance(error, ServerError | TimedOut):
            # Some servers accept a streamed list and cannot deliver it (an old etcd): the next list comes in pages.
            self._failed_streams += 1
        if isinstance(error, Gone) or (isinstance(error, ApiError) and too_large_version(error)):
            self._latest = True
        self.trouble = str(error)
        self._faults.tell_of(self.resource, f"{self.resource}: cannot list or watch", error)

    def _since(self) -> str:
        """The oldest version that may be listed: never one before what was told already."""
        return "" if self._latest else self.resource_version or "0"

    # Listing.

    async def _list(self) -> None:
        chosen = self._selection
        found = await list_all(
            self._transport,
            self.resource,
            self._decoder,
            since=self._since(),
            namespace=chosen.namespace,
            field_selector=chosen.field_selector,
            label_selector=chosen.label_selector,
        )
        await self._replace(found.items, found.resource_version)

    async def _replace(self, items: Iterable[KubeObject | Unreadable], version: str) -> None:
        """Everything that exists was told: the difference to what was known is what happened in the gap."""
        gone = set(self._store)
        bad = set(self._unreadable)
        for item in items:
            key = _key(item)
            gone.discard(key)
            bad.discard(key)
            self._put(key, item)
            await self._breathe()
        for key in bad:
            del self._unreadable[key]
        for key in sorted(gone):
            self._remove(key, None)
            await self._breathe()
        self.resource_version = version
        self._latest = False
        self._failed_streams = 0
        self._look_caught_up()
        self.trouble = ""
        self._faults.cured(self.resource)
        self._faults.cured(SERVER)
        self._synced.set()

    # Watching.

    async def _follow(self, *, with_initial: bool) -> None:
        """Watch again and again from the last version; return when everything must be listed anew.

        With `with_initial` the first watch begins with everything that exists, ended by a bookmark that says so.
        """
        while True:
            gathered: dict[Key, KubeObject | Unreadable] | None = {} if with_initial else None
            began_with_list = with_initial
            started = self._clock.monotonic_s()
            is_quiet, is_cut = True, True
            is_brief = self._wanted is not None and not with_initial
            try:
                async with (
                    self._interruptible(),
                    aclosing(self._events(with_initial=with_initial)) as events,
                ):
                    self._gathers = with_initial
                    async for event in events:
                        is_quiet = False
                        if gathered is None:
                            self._take(event)
                            if self._wanted is not None:
                                self._look_caught_up()
                            if self._slice_is_over():
                                await self._breathe()
                        elif await self._gather(gathered, event):
                            gathered, with_initial = None, False
                            self._gathers = False
                            if self._wanted is not None:
                                self._cut()
                    is_cut = False
            except ApiError as error:
                if gathered is None and began_with_list and isinstance(error, TimedOut):
                    continue  # no fault: the server did not promise an end of this watch within the allowed silence
                if gathered is not None or not self._may_resume(error):
                    raise
                if isinstance(error, Gone):
                    return
                if isinstance(error, TimedOut):
                    continue  # the silence was delay enough; a longer one would add to what was missed
                await self._pause(getattr(error, "retry_after_s", 0.0))
                continue
            if is_cut:
                continue
            if gathered is not None:
                self._streaming = False
                log.info("%s: a streamed list ended before its end; listing in pages", self.resource)
                return
            took_s = self._clock.monotonic_s() - started
            if self._wanted is not None:
                self._look_caught_up(is_complete=is_quiet and is_brief and _PROMPT_S[0] <= took_s < _PROMPT_S[1])
            if took_s < (_PROMPT_S[0] if is_brief else _SHORT_S):
                await self._pause()  # a watch that ends as soon as it began is a failure in disguise

    async def _pause(self, least_s: float = 0.0) -> None:
        """Wait for the next try. `_cut` ends it, and while `catch_up` waits it is short."""
        delay_s = self._backoff.delay_s()
        if self._wanted is not None:
            delay_s = min(delay_s, _CATCH_UP_PAUSE_S)
        async with self._interruptible():
            await self._clock.sleep(max(least_s, delay_s))

    def _may_resume(self, error: ApiError) -> bool:
        """Whether a watch that ended so can go on, or is to be replaced by a list without further ado."""
        if isinstance(error, Gone):
            log.info("%s: the history after %s is gone; listing anew", self.resource, self.resource_version)
            self._latest = True
            return True
        log.info("%s: the watch ended: %s; going on from %s", self.resource, error, self.resource_version)
        return isinstance(error, TooManyRequests) or not 400 <= error.code < 500

    async def _gather(self, gathered: dict[Key, KubeObject | Unreadable], event: WatchEvent) -> bool:
        """Collect what exists; true when that is told and taken over."""
        found = event.object
        if isinstance(found, Status):
            raise fault(f"watch on {self.resource}", found)
        if event.type == "DELETED":
            gathered.pop(_key(found), None)
        elif event.type != "BOOKMARK":
            gathered[_key(found)] = found
        elif ends_initial(event):
            await self._replace(gathered.values(), _version(event))
            return True
        await self._breathe()
        return False

    def _events(self, *, with_initial: bool) -> AsyncGenerator[WatchEvent, None]:
        chosen = self._selection
        return watch(
            self._transport,
            self.resource,
            self._decoder,
            since=self._since() if with_initial else self.resource_version,
            timeout_s=_CATCH_UP_WATCH_S
            if self._wanted is not None and not with_initial
            else watch_s(self._chance, long=with_initial or self._transport.in_process),
            namespace=chosen.namespace,
            field_selector=chosen.field_selector,
            label_selector=chosen.label_selector,
            with_initial=with_initial,
            only_latest=self._only_latest,
        )

    def _take(self, event: WatchEvent) -> None:
        found = event.object
        if event.type == "MODIFIED" and isinstance(found, KubeObject):  # most are; as below, without asking what it is
            meta = found.metadata
            self._put((meta.namespace, meta.name), found)
            self.resource_version = meta.resource_version or self.resource_version
            return
        if isinstance(found, Status):
            raise fault(f"watch on {self.resource}", found)
        if event.type == "DELETED":
            key = _key(found)
            self._unreadable.pop(key, None)
            self._remove(key, found if isinstance(found, KubeObject) else None)
        elif event.type != "BOOKMARK":
            self._put(_key(found), found)
        self.resource_version = _version(event) or self.resource_version

    # The store.

    def _put(self, key: Key, item: KubeObject | Unreadable) -> None:
        uid = item.uid if isinstance(item, Unreadable) else item.metadata.uid
        old = self._store.get(key)
        if old is not None and old.metadata.uid != uid:
            # Deleted and made again in a gap: two objects of one name, and nobody may take one for the other.
            self._remove(key, None)
            old = None
        if isinstance(item, Unreadable):
            return self._complain(key, item)
        self._unreadable.pop(key, None)
        if old is not None and old.metadata.resource_version == item.metadata.resource_version != "":
            return None  # told before
        self._store[key] = item
        return self._tell(old, item)

    def _remove(self, key: Key, last: KubeObject | None) -> None:
        """`last` is the object as it was when it went; without it the last version that was seen has to do."""
        known = self._store.pop(key, None)
        if known is not None:
            self._tell(last or known, None)

    def _complain(self, key: Key, item: Unreadable) -> None:
        before = self._unreadable.get(key)
        self._unreadable[key] = item
        if before is not None and before.resource_version == item.resource_version:
            return
        log.warning("%s %s/%s is left out: %s", self.resource, *key, item.reason)
        if self._complaint is not None:
            self._complaint(self.resource, item)

    def _tell(self, old: KubeObject | None, new: KubeObject | None) -> None:
        try:
            self._handler(old, new)
        except Exception:
            about = new if new is not None else old
            assert about is not None
            log.exception("%s %s: the handler of its change failed; the change is lost on it", self.resource, about.key)

    def _slice_is_over(self) -> bool:
        return self._clock.monotonic_s() - self._slice_started > SLICE_S

    async def _breathe(self) -> None:
        """Give the others their turn when this slice has lasted long enough."""
        if self._slice_is_over():
            await asyncio.sleep(0)
            self._slice_started = self._clock.monotonic_s()


def _key(item: KubeObject | Unreadable | Status) -> Key:
    assert not isinstance(item, Status)
    return item.key if isinstance(item, Unreadable) else (item.metadata.namespace, item.metadata.name)


def _version(event: WatchEvent) -> str:
    found = event.object
    if isinstance(found, Status):
        return ""
    return found.resource_version if isinstance(found, Unreadable) else found.metadata.resource_version


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _ListHead(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()


def _number(version: str) -> int:
    """Versions of one server are numbers that grow."""
    return int(version) if version.isdecimal() else 0
