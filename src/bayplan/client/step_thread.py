"""How does a session wait for somebody outside without holding the loop? It works in a thread of its own, in turns.

A session is plain code, and asks an HTTP extender in the middle of a decision. Where that may happen its steps run
here: whoever began a step waits for it, so that only one of the two threads ever works, and nothing needs a lock. While
a step waits for an answer it hands the turn back to the loop, which serves everybody else, and takes it again when the
answer is there. What others change meanwhile is what they may change between any two steps.
Cost: two changes of the thread a step, some 20 µs; sessions that ask nobody stay in the loop's own thread.
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
    """A step that waits for the outside: when that is over, and that it may go on."""

    def __init__(self) -> None:
        self.over: Future[None] = Future()
        self.may_go_on = threading.Event()


class StepThread:
    """Runs work step by step, and lets the loop have its turn wherever the work waits."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._given: SimpleQueue[tuple[asyncio.AbstractEventLoop, Future[Any], Callable[[], Any]] | None]
        self._given = SimpleQueue()
        self._back: SimpleQueue[Future[Any] | _ExternalWait] = SimpleQueue()

    async def run_step(self, work: Callable[[], T]) -> T:
        """Do it, and return what it returns. Who is cancelled meanwhile sees it end first."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="session", daemon=True)
            self._thread.start()
        done: Future[T] = Future()
        self._given.put((asyncio.get_running_loop(), done, work))
        cancelled = False
        while isinstance(pause := self._back.get(), _ExternalWait):
            try:
                await asyncio.shield(asyncio.wrap_future(pause.over))
            except asyncio.CancelledError:
                cancelled = True
                pause.over.result()
            pause.may_go_on.set()
        if cancelled:
            raise asyncio.CancelledError
        return done.result()

    def wait_outside(self, wait: Callable[[], T]) -> T:
        """Wait for something; where a step does, others have their turn meanwhile."""
        if threading.current_thread() is not self._thread:
            return wait()
        pause = _ExternalWait()
        self._back.put(pause)
        try:
            return wait()
        finally:
            pause.over.set_result(None)
            pause.may_go_on.wait()

    def close(self) -> None:
        """End the thread; the next step begins another."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._given.put(None)
            thread.join()

    def _work(self) -> None:
        while (given := self._given.get()) is not None:
            loop, done, work = given
            asyncio._set_running_loop(loop)  # it waits for us: what a step starts there begins when it goes on
            try:
                done.set_result(work())
            except BaseException as fault:
                done.set_exception(fault)
            asyncio._set_running_loop(None)
            self._back.put(done)
