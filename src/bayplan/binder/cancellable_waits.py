"""Waits of binding attempts: they release their worker, and end when the request is deleted or replaced.

Volumes, devices and reservations may take minutes; a pod that waits for them must not block a worker. Code within an
attempt opens a wait (`async with waits():`); `controller` reports changes of requests. Only waits are cancelled. A
write in progress is not: the API server would execute it all the same, and no rollback would follow.
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
"""Opens the block of a wait."""


WAIT_EVENT_AFTER_S = 5.0
"""A longer wait is reported as an event, to distinguish a pod that waits for its volume from one without a binder."""


class BindingCancelled(BayplanError):
    """The request was deleted or replaced: the pod must not be bound because of it."""

    def __init__(self, request: BindRequest) -> None:
        node = request.spec.selected_node
        super().__init__(f"the bind request {request.key} to node {node} was deleted or replaced meanwhile")


class CancellableWaits:
    def __init__(self, is_current: Callable[[BindRequest], bool], *, notice_s: float = WAIT_EVENT_AFTER_S) -> None:
        self._is_current = is_current
        self._notice_s = notice_s
        self.on_long_wait: Callable[[BindRequest], None] = lambda _: None
        """Called once for each wait that takes long."""
        self.release_worker: WaitContext = nullcontext
        """Releases the worker for the duration of the block; set by the owner of the workers."""
        self._prepared: ContextVar[BindRequest | None] = ContextVar("the request whose pod is prepared", default=None)
        self._attempt: ContextVar[Cancellation | None] = ContextVar("how the attempt is cancelled", default=None)
        self._open: dict[RequestKey, dict[asyncio.Timeout, BindRequest]] = {}
        self._attempts: Counter[Cancellation] = Counter()  # attempts that wait, with their number of open blocks
        self._is_ending = False

    @contextmanager
    def for_request(self, request: BindRequest) -> Iterator[None]:
        """Waits in this block belong to this request. Waits outside, for example in a rollback, are not cancelled."""
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
        """Cancel attempts that wait, now or later, because the process ends. Writes go on until the next wait."""
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
        """Wait in this block. Raises `BindingCancelled` as soon as the attempt's request is known to be deleted or
        replaced."""
        request = self._prepared.get()
        async with self.release_worker():
            if request is None:
                yield
                return
            self.require_current(request)
            key = (request.namespace, request.name)
            notice = asyncio.get_running_loop().call_later(self._notice_s, self.on_long_wait, request)
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
                    raise  # a timeout of the code in the block
                raise BindingCancelled(request) from None
            finally:
                notice.cancel()

    def require_current(self, request: BindRequest) -> None:
        """Raise `BindingCancelled` unless the request still exists unchanged."""
        if not self._is_current(request):
            raise BindingCancelled(request)

    def cancel_if_outdated(self, key: RequestKey) -> None:
        """Handle a change of a request: cancel its waits if it was deleted or replaced."""
        for end, request in [*self._open.get(key, {}).items()]:
            if not self._is_current(request):
                self._cancel(key, end)
                end.reschedule(0)

    def _cancel(self, key: RequestKey, end: asyncio.Timeout) -> None:
        ends = self._open.get(key, {})
        ends.pop(end, None)
        if not ends:
            self._open.pop(key, None)


class CancellableWrites:
    """Implements `framework.handle.Writes`: intents that wait release their worker."""

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
