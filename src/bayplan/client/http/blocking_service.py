"""How does code that cannot await reach an HTTP service? It posts, and waits for the answer.

For sessions of the batch engine, which ask an extender in the middle of a decision, as Volcano's do. Requests run on a
loop in a thread of its own, started at the first one, so that the caller's thread may have a loop or not; the caller
waits, and the two never work at the same time. Cost: that of the request, and two changes of the thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import TimeoutError as Overdue

from bayplan.client.http.service_client import HttpService, ServiceCallError
from bayplan.clock import SystemClock

_GRACE_S = 1.0
"""How much later than the service itself, which is never, the caller gives up."""


class BlockingHttpService:
    """Posts to addresses and waits. Whoever made it closes it."""

    def __init__(self, *, user_agent: str, env: Mapping[str, str] | None = None) -> None:
        self._user_agent = user_agent
        self._env = env
        self._service: HttpService | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def post(self, url: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of the answer; `ServiceCallError` where there is none."""
        loop, service = self._started()
        asked = asyncio.run_coroutine_threadsafe(service.post(url, body, timeout_s), loop)
        try:
            answer = asked.result(timeout_s + _GRACE_S)
        except Overdue:
            asked.cancel()
            raise ServiceCallError(f'Post "{url}": no answer within {timeout_s:g} s') from None
        return answer.status, answer.body

    def close(self) -> None:
        """Close the connections and end the thread; the next `post` begins anew."""
        loop, service, thread = self._loop, self._service, self._thread
        if loop is None or service is None or thread is None:
            return
        self._loop = self._service = self._thread = None
        asyncio.run_coroutine_threadsafe(service.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _started(self) -> tuple[asyncio.AbstractEventLoop, HttpService]:
        if self._loop is None or self._service is None:
            self._loop = asyncio.new_event_loop()
            self._service = HttpService(SystemClock(), user_agent=self._user_agent, env=self._env)
            self._thread = threading.Thread(target=self._loop.run_forever, name="blocking-posts", daemon=True)
            self._thread.start()
        return self._loop, self._service
