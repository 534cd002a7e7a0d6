"""Runs a session's steps in a separate thread, so that a step can wait for an HTTP call without blocking the loop.

A session is synchronous code and may call an HTTP extender in the middle of a decision. Then its steps run here. The
caller of a step waits for it, so only one of the two threads works at a time and no lock is needed. While a step waits
for a response, the loop runs other tasks. Their changes are those that may happen between any two steps.
Cost: two thread switches per step, some 20 µs. Sessions without extenders run in the loop's thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class _ExternalWait:
    """Wait of a step for an external call: its end, and the permission to continue."""

    def __init__(self) -> None:
        self.over: Future[None] = Future()
        self.resumed = threading.Event()


class StepThread:
    """Runs work step by step, and lets the loop run while a step waits."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._steps: SimpleQueue[tuple[asyncio.AbstractEventLoop, Future[Any], Callable[[], Any]] | None]
        self._steps = SimpleQueue()
        self._replies: SimpleQueue[Future[Any] | _ExternalWait] = SimpleQueue()

    async def run_step(self, work: Callable[[], T]) -> T:
        """Run one step and return its result. A cancelled caller waits for the end of the step first."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="session", daemon=True)
            self._thread.start()
        done: Future[T] = Future()
        self._steps.put((asyncio.get_running_loop(), done, work))
        cancelled = False
        while isinstance(pause := self._replies.get(), _ExternalWait):
            try:
                await asyncio.shield(asyncio.wrap_future(pause.over))
            except asyncio.CancelledError:
                cancelled = True
                pause.over.result()
            pause.resumed.set()
        if cancelled:
            raise asyncio.CancelledError
        return done.result()

    def wait_outside(self, wait: Callable[[], T]) -> T:
        """Wait for an external call. In a step, the loop runs other tasks meanwhile."""
        if threading.current_thread() is not self._thread:
            return wait()
        pause = _ExternalWait()
        self._replies.put(pause)
        try:
            return wait()
        finally:
            pause.over.set_result(None)
            pause.resumed.wait()

    def close(self) -> None:
        """End the thread; the next step starts another."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._steps.put(None)
            thread.join()

    def _work(self) -> None:
        while (step := self._steps.get()) is not None:
            loop, done, work = step
            asyncio._set_running_loop(loop)  # the loop waits: tasks that a step creates start when it continues
            try:
                done.set_result(work())
            except BaseException as fault:
                done.set_exception(fault)
            asyncio._set_running_loop(None)
            self._replies.put(done)
