"""Who only waits? Volumes, devices and reservations are others' work, for minutes maybe: a pod that waits for them
takes no worker's place from pods that could be bound, and waits no longer than its request wants that.

Asked for by whoever waits in the midst of an attempt (`async with waits():`), told by `live` what became of requests.
Only waits are cut short: a write that is under way would be carried out all the same, and nobody would take it back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from bayplan.binder.informer_cache import RequestKey
from bayplan.client.cancellation import Cancellation
from bayplan.devices.claim_intents import WaitForDevices
from bayplan.errors import BayplanError
from bayplan.intents.writes import Writes
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.volumes.volume_intents import WaitForVolumes

WaitContext = Callable[[], AbstractAsyncContextManager[None]]
"""What a block that only waits is opened with."""


WAIT_EVENT_AFTER_S = 5.0
"""Who waits for longer says so: else nobody could tell a pod that waits for its volume from one without a binder."""


class BindingCancelled(BayplanError):
    """Nobody wants the pod to be bound any more, or not so."""

    def __init__(self, request: BindRequest) -> None:
        node = request.spec.selected_node
        super().__init__(f"the bind request {request.key} to node {node} was deleted or replaced meanwhile")


class CancellableWaits:
    """The waits of one binder."""

    def __init__(self, is_there: Callable[[BindRequest], bool], *, notice_s: float = WAIT_EVENT_AFTER_S) -> None:
        self._is_there = is_there
        self._notice_s = notice_s
        self.noticed: Callable[[BindRequest], None] = lambda _: None
        """Told once of each wait that has become long."""
        self.aside: WaitContext = nullcontext
        """Gives a worker's place to others, for as long as the block takes; set by whoever has workers."""
        self._prepared: ContextVar[BindRequest | None] = ContextVar("the request whose pod is prepared", default=None)
        self._attempt: ContextVar[Cancellation | None] = ContextVar("how the attempt is cancelled", default=None)
        self._open: dict[RequestKey, dict[asyncio.Timeout, BindRequest]] = {}
        self._attempts: Counter[Cancellation] = Counter()  # those that wait, and in how many blocks
        self._is_ending = False

    @contextmanager
    def for_request(self, request: BindRequest) -> Iterator[None]:
        """Waits in this block are for this request; what is awaited elsewhere, to take things back, is not cut."""
        task = asyncio.current_task()
        assert task is not None
        before = self._prepared.set(request)
        try:
            with Cancellation(task.cancel) as attempt:
                outer = self._attempt.set(attempt)
                try:
                    yield
                finally:
                    self._attempt.reset(outer)
        finally:
            self._prepared.reset(before)

    def end(self) -> None:
        """Cancel attempts that wait, now or later: the process ends. Attempts that write go on until they wait."""
        self._is_ending = True
        for attempt in list(self._attempts):
            attempt.cancel()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        attempt = self._attempt.get()
        if attempt is None:
            yield
            return
        self._attempts[attempt] += 1
        if self._is_ending:
            attempt.cancel()
        try:
            yield
        finally:
            self._attempts[attempt] -= 1
            if not self._attempts[attempt]:
                del self._attempts[attempt]

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        """Only wait in this block. Raises `BindingCancelled` as soon as the request of it is known to be gone, or
        another."""
        request = self._prepared.get()
        async with self.aside():
            if request is None:
                yield
                return
            self.require_current(request)
            key = (request.namespace, request.name)
            notice = asyncio.get_running_loop().call_later(self._notice_s, self.noticed, request)
            try:
                async with asyncio.timeout(None) as end:
                    self._open.setdefault(key, {})[end] = request
                    try:
                        with self._waiting():
                            yield
                    finally:
                        self._cancel(key, end)
            except TimeoutError:
                if not end.expired():
                    raise  # one of the waiter's own
                raise BindingCancelled(request) from None
            finally:
                notice.cancel()

    def require_current(self, request: BindRequest) -> None:
        """`BindingCancelled` unless the request is still there as it was taken up."""
        if not self._is_there(request):
            raise BindingCancelled(request)

    def cancel_if_outdated(self, key: RequestKey) -> None:
        """Something was told of a request: whoever waits for one that is there no more need not."""
        for end, request in [*self._open.get(key, {}).items()]:
            if not self._is_there(request):
                self._cancel(key, end)
                end.reschedule(0)

    def _cancel(self, key: RequestKey, end: asyncio.Timeout) -> None:
        ends = self._open.get(key, {})
        ends.pop(end, None)
        if not ends:
            self._open.pop(key, None)


class CancellableWrites:
    """Fits `framework.handle.Writes`: who asks for something to be awaited waits aside."""

    def __init__(self, writes: Writes, waits: CancellableWaits) -> None:
        self._writes = writes
        self._waits = waits

    async def perform(self, intent: object) -> Any:
        if not isinstance(intent, WaitForVolumes | WaitForDevices):
            return await self._writes.perform(intent)
        async with self._waits():
            return await self._writes.perform(intent)

    def submit(self, intent: object) -> None:
        self._writes.submit(intent)
