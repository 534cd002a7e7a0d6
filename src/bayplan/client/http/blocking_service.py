"""HTTP client for code that cannot await: posts and blocks until the response arrives.

Used by sessions of the batch engine, which call an extender in the middle of a decision, as Volcano does. Requests run
on an event loop in a separate thread, which the first request starts. The caller's thread may have a loop or not. The
caller blocks meanwhile, so the two threads never work at the same time. Cost: the request and two thread switches.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError

from bayplan.client.http.service_client import HttpService, ServiceCallError
from bayplan.clock import SystemClock

_GRACE_S = 1.0
"""The caller waits this much longer than the service's own timeout, which always ends first."""


class BlockingHttpService:
    """Posts to URLs and blocks. The creator closes it."""

    def __init__(self, *, user_agent: str, env: Mapping[str, str] | None = None) -> None:
        self._user_agent = user_agent
        self._env = env
        self._service: HttpService | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def post(self, url: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Return status and body of the response. Raises `ServiceCallError` without a response."""
        loop, service = self._ensure_started()
        future = asyncio.run_coroutine_threadsafe(service.post(url, body, timeout_s), loop)
        try:
            answer = future.result(timeout_s + _GRACE_S)
        except FutureTimeoutError:
            future.cancel()
            raise ServiceCallError(f'Post "{url}": no answer within {timeout_s:g} s') from None
        return answer.status, answer.body

    def close(self) -> None:
        """Close the connections and end the thread. The next `post` starts them again."""
        loop, service, thread = self._loop, self._service, self._thread
        if loop is None or service is None or thread is None:
            return
        self._loop = self._service = self._thread = None
        asyncio.run_coroutine_threadsafe(service.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _ensure_started(self) -> tuple[asyncio.AbstractEventLoop, HttpService]:
        if self._loop is None or self._service is None:
            self._loop = asyncio.new_event_loop()
            self._service = HttpService(SystemClock(), user_agent=self._user_agent, env=self._env)
            self._thread = threading.Thread(target=self._loop.run_forever, name="blocking-posts", daemon=True)
            self._thread.start()
        return self._loop, self._service
