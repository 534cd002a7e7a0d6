"""Informer: keeps the objects of one resource in step with the API server. client-go's reflector, store and handler.

An informer lists, watches, resumes a watch and relists after a gap. It calls one handler with (old, new) for each
change. Its store holds the same objects that the handler got. The handler runs on the loop, in slices of a few
milliseconds. An exception of the handler is logged, and the handler misses that one change. A relist finds deletes that
happened in a gap. The informer never requests a version older than the last one it has seen.

A watch may lag without a sign: it waits for its next try, or it is dead. A process that has just become the leader
calls `catch_up` before it decides, so that it knows what its predecessor wrote last.
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

from bayplan.client.error_log_throttle import SERVER_TOPIC, ErrorLogThrottle
from bayplan.client.http.api_status import ApiStatus, is_version_too_large, status_error
from bayplan.client.http.transport import Transport
from bayplan.client.informer.backoff import RetryBackoff
from bayplan.client.informer.decoder import Decoder, Key, ListMeta, UndecodableObject, WatchEvent, is_initial_events_end
from bayplan.client.informer.pager import list_all
from bayplan.client.informer.watcher import watch, watch_timeout_s
from bayplan.client.resources import GroupVersionResource, query
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, BayplanError, Gone, Invalid, ServerError, TimedOut, TooManyRequests
from bayplan.objects.meta import KubeObject

log = logging.getLogger(__name__)

Handler = Callable[[KubeObject | None, KubeObject | None], None]
"""handler(old, new): `old` is None for an add, `new` is None for a delete."""

UndecodableHandler = Callable[[GroupVersionResource, UndecodableObject], None]
"""Called for an object that cannot be decoded, once per resourceVersion."""

CATCH_UP_S = 10.0
"""Maximum duration of `Informer.catch_up`."""

SLICE_S = 0.004
_MIN_WATCH_S = 1.0
_STREAM_TRIES = 2
_CATCH_UP_WATCH_S = 1
"""timeoutSeconds of a watch that only catches up. The server sends the missed events first."""
_PROMPT_S = (0.9, 1.75)
"""A one-second watch that ended earlier or later may have ended before the server sent the missed events."""
_CATCH_UP_PAUSE_S = 1.0
"""The longest pause before the next try while `catch_up` waits, unless the server asks for a longer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    namespace: str = ""
    field_selector: str = ""
    label_selector: str = ""


EVERYTHING = Selection()


class Informer:
    """Keeps one resource in step with the API server. The caller runs `run` as a task, and cancels it to stop."""

    def __init__(
        self,
        transport: Transport,
        resource: GroupVersionResource,
        handler: Handler,
        *,
        clock: LoopClock,
        chance: random.Random,
        selection: Selection = EVERYTHING,
        on_undecodable: UndecodableHandler | None = None,
        streaming: bool = True,
        only_latest: bool = False,
        faults: ErrorLogThrottle | None = None,
    ) -> None:
        """`only_latest`: of several changes of one object in one chunk, handle only the last. `faults`: the log
        throttle that informers of one server share."""
        self.resource = resource
        self.resource_version = ""
        """Version of the last event or list; the next watch starts from it."""
        self.last_error = ""
        """Text of the current failure; empty when there is none."""
        self._transport = transport
        self._handler = handler
        self._clock = clock
        self._chance = chance
        self._selection = selection
        self._on_undecodable = on_undecodable
        self._streaming = streaming
        self._only_latest = only_latest
        self._decoder = Decoder(resource)
        self._backoff = RetryBackoff(clock, chance)
        self._faults = faults or ErrorLogThrottle(log, clock)
        self._store: dict[Key, KubeObject] = {}
        self._undecodable: dict[Key, UndecodableObject] = {}
        self._synced = asyncio.Event()
        self._list_latest = False
        self._slice_started = 0.0
        self._failed_streams = 0
        self._wanted: int | None = None  # the version that `catch_up` waits for
        self._caught_up = asyncio.Event()
        self._limit: asyncio.Timeout | None = None  # of the block that `_cut` may end
        self._receives_initial = False  # whether the watch delivers initial events now

    @property
    def store(self) -> Mapping[Key, KubeObject]:
        """Existing objects by namespace and name."""
        return MappingProxyType(self._store)

    @property
    def undecodable(self) -> Mapping[Key, UndecodableObject]:
        """Existing objects that cannot be decoded; the store may hold an earlier version of them."""
        return MappingProxyType(self._undecodable)

    @property
    def synced(self) -> bool:
        """Whether the handler has all objects of the first list."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def catch_up(self) -> None:
        """Wait until the handler has every change that the server had accepted when this was called.

        The newest version comes from a consistent read of one object. A watch that has not reached it is cut. The next
        watch asks the server to end it after a second. It is complete when it delivers that version, or no event at
        all. Cost: two requests, and about a second for a kind without recent changes.

        Returns after `CATCH_UP_S` in any case: a kind that the server cannot deliver must not stop the process.
        """
        if self._transport.in_process:
            return
        tasks = [asyncio.ensure_future(each) for each in (self._catch_up(), self._clock.sleep(CATCH_UP_S))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                log.warning(
                    "%s: not caught up after %.0f s: %s", self.resource, CATCH_UP_S, self.last_error or "no answer"
                )
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.wait(tasks)
            self._wanted = None

    async def _catch_up(self) -> None:
        self._wanted = await self._newest_version()
        self._caught_up.clear()
        self._check_caught_up()
        if self._wanted is not None:
            self._cut()
        await self._caught_up.wait()

    async def _newest_version(self) -> int:
        path = self.resource.path(self._selection.namespace) + query({"limit": 1})
        backoff = RetryBackoff(self._clock, self._chance)
        while True:
            try:
                answer = await self._transport.request("GET", path)
            except ApiError as error:
                log.info("%s: cannot read the newest version: %s", self.resource, error)
                await backoff.wait()
                continue
            return _number(msgspec.json.decode(answer.body, type=_ListHead).metadata.resource_version)

    def _check_caught_up(self, *, is_complete: bool = False) -> None:
        """Finish `catch_up` if its version is reached. `is_complete`: a watch has ended without events."""
        if self._wanted is not None and (is_complete or _number(self.resource_version) >= self._wanted):
            self._wanted = None
            self._caught_up.set()

    def _cut(self) -> None:
        """End a watch or the wait for the next one. A list in progress is not cut."""
        if self._limit is not None and not self._receives_initial and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    @contextlib.asynccontextmanager
    async def _interruptible(self) -> AsyncGenerator[None, None]:
        """Block that `_cut` can end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as self._limit:
                try:
                    yield
                finally:
                    self._limit, self._receives_initial = None, False

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                streamed = self._streaming and self._failed_streams < _STREAM_TRIES
                if not streamed:
                    await self._list()
                await self._watch(with_initial=streamed)
            except BayplanError as error:
                self._on_error(error)
                await self._pause()

    def _on_error(self, error: BayplanError) -> None:
        """Record a failure and choose how the next try lists."""
        if isinstance(error, Invalid) and self._streaming:
            self._streaming = False
            log.info("%s: the server does not support streaming lists; listing in pages", self.resource)
            return
        if isinstance(error, ServerError | TimedOut):
            # Some servers accept a streaming list and cannot deliver it (an old etcd): the next list is paged.
            self._failed_streams += 1
        if isinstance(error, Gone) or (isinstance(error, ApiError) and is_version_too_large(error)):
            self._list_latest = True
        self.last_error = str(error)
        self._faults.log_api_error(self.resource, f"{self.resource}: cannot list or watch", error)

    def _since(self) -> str:
        """Oldest version that a list may have: never one before the last event."""
        return "" if self._list_latest else self.resource_version or "0"

    # List.

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

    async def _replace(self, items: Iterable[KubeObject | UndecodableObject], version: str) -> None:
        """Replace the store after a list, and call the handler for the differences."""
        deleted = set(self._store)
        bad = set(self._undecodable)
        for item in items:
            key = _key(item)
            deleted.discard(key)
            bad.discard(key)
            self._put(key, item)
            await self._yield_to_loop()
        for key in bad:
            del self._undecodable[key]
        for key in sorted(deleted):
            self._remove(key, None)
            await self._yield_to_loop()
        self.resource_version = version
        self._list_latest = False
        self._failed_streams = 0
        self._check_caught_up()
        self.last_error = ""
        self._faults.clear(self.resource)
        self._faults.clear(SERVER_TOPIC)
        self._synced.set()

    # Watch.

    async def _watch(self, *, with_initial: bool) -> None:
        """Watch repeatedly from the last version. Returns when a relist is needed.

        With `with_initial` the first watch starts with all existing objects, up to the bookmark that ends them.
        """
        while True:
            initial: dict[Key, KubeObject | UndecodableObject] | None = {} if with_initial else None
            began_with_list = with_initial
            started = self._clock.monotonic_s()
            is_quiet, is_cut = True, True
            is_brief = self._wanted is not None and not with_initial
            try:
                async with self._interruptible(), aclosing(self._events(with_initial=with_initial)) as events:
                    self._receives_initial = with_initial
                    async for event in events:
                        is_quiet = False
                        if initial is None:
                            self._apply_event(event)
                            if self._wanted is not None:
                                self._check_caught_up()
                            if self._slice_is_over():
                                await self._yield_to_loop()
                        elif await self._collect_initial(initial, event):
                            initial, with_initial = None, False
                            self._receives_initial = False
                            if self._wanted is not None:
                                self._cut()
                    is_cut = False
            except ApiError as error:
                if initial is None and began_with_list and isinstance(error, TimedOut):
                    continue  # no fault: this watch has no timeout within the allowed silence
                if initial is not None or not self._may_resume(error):
                    raise
                if isinstance(error, Gone):
                    return
                if isinstance(error, TimedOut):
                    continue  # the silence was delay enough; a longer one would add to the missed changes
                await self._pause(getattr(error, "retry_after_s", 0.0))
                continue
            if is_cut:
                continue
            if initial is not None:
                self._streaming = False
                log.info("%s: a streaming list ended early; listing in pages", self.resource)
                return
            took_s = self._clock.monotonic_s() - started
            if self._wanted is not None:
                self._check_caught_up(is_complete=is_quiet and is_brief and _PROMPT_S[0] <= took_s < _PROMPT_S[1])
            if took_s < (_PROMPT_S[0] if is_brief else _MIN_WATCH_S):
                await self._pause()  # a watch that ends at once counts as a failure

    async def _pause(self, least_s: float = 0.0) -> None:
        """Wait for the next try. `_cut` ends it, and while `catch_up` waits it is short."""
        delay_s = self._backoff.delay_s()
        if self._wanted is not None:
            delay_s = min(delay_s, _CATCH_UP_PAUSE_S)
        async with self._interruptible():
            await self._clock.sleep(max(least_s, delay_s))

    def _may_resume(self, error: ApiError) -> bool:
        """Whether the watch may continue after this error without a backoff; after Gone it relists."""
        if isinstance(error, Gone):
            log.info("%s: resourceVersion %s is too old; relisting", self.resource, self.resource_version)
            self._list_latest = True
            return True
        log.info("%s: the watch ended: %s; resuming from %s", self.resource, error, self.resource_version)
        return isinstance(error, TooManyRequests) or not 400 <= error.code < 500

    async def _collect_initial(self, initial: dict[Key, KubeObject | UndecodableObject], event: WatchEvent) -> bool:
        """Collect an initial event. Returns True after the last one, when the store is replaced."""
        found = event.object
        if isinstance(found, ApiStatus):
            raise status_error(f"watch on {self.resource}", found)
        if event.type == "DELETED":
            initial.pop(_key(found), None)
        elif event.type != "BOOKMARK":
            initial[_key(found)] = found
        elif is_initial_events_end(event):
            await self._replace(initial.values(), _version(event))
            return True
        await self._yield_to_loop()
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
            else watch_timeout_s(self._chance, long=with_initial or self._transport.in_process),
            namespace=chosen.namespace,
            field_selector=chosen.field_selector,
            label_selector=chosen.label_selector,
            with_initial=with_initial,
            only_latest=self._only_latest,
        )

    def _apply_event(self, event: WatchEvent) -> None:
        found = event.object
        if event.type == "MODIFIED" and isinstance(found, KubeObject):  # the usual case, without the checks below
            meta = found.metadata
            self._put((meta.namespace, meta.name), found)
            self.resource_version = meta.resource_version or self.resource_version
            return
        if isinstance(found, ApiStatus):
            raise status_error(f"watch on {self.resource}", found)
        if event.type == "DELETED":
            key = _key(found)
            self._undecodable.pop(key, None)
            self._remove(key, found if isinstance(found, KubeObject) else None)
        elif event.type != "BOOKMARK":
            self._put(_key(found), found)
        self.resource_version = _version(event) or self.resource_version

    # Store.

    def _put(self, key: Key, item: KubeObject | UndecodableObject) -> None:
        uid = item.uid if isinstance(item, UndecodableObject) else item.metadata.uid
        old = self._store.get(key)
        if old is not None and old.metadata.uid != uid:
            # Deleted and recreated in a gap: two objects with one name, which the handler must not confuse.
            self._remove(key, None)
            old = None
        if isinstance(item, UndecodableObject):
            return self._report_undecodable(key, item)
        self._undecodable.pop(key, None)
        if old is not None and old.metadata.resource_version == item.metadata.resource_version != "":
            return None  # the handler has this version
        self._store[key] = item
        return self._notify(old, item)

    def _remove(self, key: Key, last: KubeObject | None) -> None:
        """Remove an object. `last`: its final state; without it the handler gets the last version in the store."""
        known = self._store.pop(key, None)
        if known is not None:
            self._notify(last or known, None)

    def _report_undecodable(self, key: Key, item: UndecodableObject) -> None:
        before = self._undecodable.get(key)
        self._undecodable[key] = item
        if before is not None and before.resource_version == item.resource_version:
            return
        log.warning("%s %s/%s is skipped: %s", self.resource, *key, item.reason)
        if self._on_undecodable is not None:
            self._on_undecodable(self.resource, item)

    def _notify(self, old: KubeObject | None, new: KubeObject | None) -> None:
        try:
            self._handler(old, new)
        except Exception:
            about = new if new is not None else old
            assert about is not None
            log.exception("%s %s: the event handler failed; it misses this change", self.resource, about.key)

    def _slice_is_over(self) -> bool:
        return self._clock.monotonic_s() - self._slice_started > SLICE_S

    async def _yield_to_loop(self) -> None:
        """Let other tasks run when this slice has lasted long enough."""
        if self._slice_is_over():
            await asyncio.sleep(0)
            self._slice_started = self._clock.monotonic_s()


def _key(item: KubeObject | UndecodableObject | ApiStatus) -> Key:
    assert not isinstance(item, ApiStatus)
    return item.key if isinstance(item, UndecodableObject) else (item.metadata.namespace, item.metadata.name)


def _version(event: WatchEvent) -> str:
    found = event.object
    if isinstance(found, ApiStatus):
        return ""
    return found.resource_version if isinstance(found, UndecodableObject) else found.metadata.resource_version


class _ListHead(msgspec.Struct, frozen=True):
    metadata: ListMeta = ListMeta()


def _number(version: str) -> int:
    """Number of a resourceVersion. The versions of one server grow."""
    return int(version) if version.isdecimal() else 0
