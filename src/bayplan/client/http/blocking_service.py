"""HTTP client for synchronous code: posts and blocks until the response arrives.

Used by sessions of the batch engine, which call an extender in the middle of a decision, as Volcano does. It needs one
of two threads, each started by the first call. One module has both, because `post` chooses between them.

On a cluster, a session with an extender runs step by step in a thread. Its requests are awaited on the event loop,
which runs other tasks meanwhile; their changes are those that may happen between any two steps. The caller of a step
waits for it, so only one of the two threads works at a time and no lock is needed.

Elsewhere, requests run on an event loop in a thread, and `post` blocks the caller's thread, which may have a loop.
Cost: the request and two thread switches, and two switches for each step, some 20 µs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from bayplan.client.http.service_client import HttpService, ServiceCallError
from bayplan.clock import SystemClock

T = TypeVar("T")
_Response = tuple[int, bytes]
_Step = tuple[asyncio.AbstractEventLoop, Future[Any], Callable[[], Any]]
_Call = tuple[Coroutine[Any, Any, _Response], Future[asyncio.Task[_Response]]]

_GRACE_S = 1.0
"""A request may take this much longer than the service's own timeout, which always ends first."""


class BlockingHttpService:
    """Posts to URLs and blocks. The creator closes it."""

    def __init__(self, *, user_agent: str, env: Mapping[str, str] | None = None) -> None:
        self._new_service = partial(HttpService, SystemClock(), user_agent=user_agent, env=env)
        self._services: dict[asyncio.AbstractEventLoop, HttpService] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._step_thread: threading.Thread | None = None
        self._steps: SimpleQueue[_Step | None] = SimpleQueue()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()  # requests of the current step; None: it has ended

    def post(self, url: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Return status and body of the response. Raises `ServiceCallError` without a response."""
        call = self._post(url, body, timeout_s)
        if threading.current_thread() is self._step_thread:
            done: Future[asyncio.Task[_Response]] = Future()
            self._calls.put((call, done))
            return done.result().result()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(target=self._loop.run_forever, name="blocking-posts", daemon=True)
            self._loop_thread.start()
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def run_step(self, work: Callable[[], T]) -> T:
        """Run one step in the thread of steps and return its result; meanwhile the loop runs only while the step posts.
        A cancelled caller waits for the end of the step first."""
        if self._step_thread is None:
            self._step_thread = threading.Thread(target=self._run_steps, name="session", daemon=True)
            self._step_thread.start()
        step: Future[T] = Future()
        self._steps.put((asyncio.get_running_loop(), step, work))
        cancelled = False
        while (pending := self._calls.get()) is not None:
            call, done = pending
            task = asyncio.ensure_future(call)
            while not task.done():
                try:
                    await asyncio.wait((task,))
                except asyncio.CancelledError:
                    cancelled = True
            done.set_result(task)
        if cancelled:
            raise asyncio.CancelledError
        return step.result()

    def close(self) -> None:
        """Close the connections of callers that blocked, and end their thread. The next `post` starts them again."""
        loop, thread = self._loop, self._loop_thread
        if loop is None or thread is None:
            return
        self._loop = self._loop_thread = None
        asyncio.run_coroutine_threadsafe(self._close_service(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def close_steps(self) -> None:
        """Close the connections of steps, and end their thread. The next step starts them again."""
        thread, self._step_thread = self._step_thread, None
        if thread is not None:
            self._steps.put(None)
            thread.join()
        await self._close_service()

    async def _post(self, url: str, body: bytes, timeout_s: float) -> _Response:
        loop = asyncio.get_running_loop()
        if loop not in self._services:  # connections belong to one loop
            self._services[loop] = self._new_service()
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                answer = await self._services[loop].post(url, body, timeout_s)
        except TimeoutError:
            raise ServiceCallError(f'Post "{url}": no answer within {timeout_s:g} s') from None
        return answer.status, answer.body

    async def _close_service(self) -> None:
        service = self._services.pop(asyncio.get_running_loop(), None)
        if service is not None:
            await service.close()

    def _run_steps(self) -> None:
        while (step := self._steps.get()) is not None:
            loop, done, work = step
            asyncio._set_running_loop(loop)  # the loop waits: tasks that a step creates start when it continues
            try:
                done.set_result(work())
            except BaseException as fault:
                done.set_exception(fault)
            asyncio._set_running_loop(None)
            self._calls.put(None)
