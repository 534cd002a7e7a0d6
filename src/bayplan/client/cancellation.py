"""Cancellation of work that writes: a wait ends at once, a write ends first.

A request that is cancelled may still take effect, and its result would be lost. Work that another decision may cancel
therefore runs in a `Cancellation`: PreBind of a pod that is preempted, a plugin of the binder that takes too long.
`ApiWrites.perform` calls `finish_write`, which delays the cancellation until the outcome of the write is known. The
plugin gets the result and is cancelled at its next `await`. Cost: a context variable per write; nothing where no
`Cancellation` is open.

Cancelling the task itself does not wait. The end of the process and the loss of the lease do that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

_current: ContextVar[Cancellation | None] = ContextVar("the innermost cancellation", default=None)


class Cancellation:
    """Unit of work that may be cancelled. `cut` ends its waits: it cancels a task, or expires a timeout."""

    def __init__(self, cut: Callable[[], object]) -> None:
        self._cut = cut
        self._outer = _current.get()
        self._writes = 0
        self._is_requested = False
        self._is_cut = False
        self._over = asyncio.Event()

    def cancel(self) -> None:
        """End the work: now, or as soon as no write is in flight in it."""
        self._is_requested = True
        self._cut_if_idle()

    def __enter__(self) -> Cancellation:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
        self._over.set()

    def begin_write(self) -> None:
        self._writes += 1

    def end_write(self) -> None:
        self._writes -= 1
        self._cut_if_idle()

    async def refuse_write(self) -> None:
        """Block a write that starts after the cancellation was requested. A task that is already cancelled may write:
        it undoes a change."""
        if not self._is_requested:
            return
        await asyncio.sleep(0)  # raises if the task was cancelled since its last step
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            await self._over.wait()
            raise asyncio.CancelledError("the work that this write belongs to was cancelled")

    def outwards(self) -> Iterator[Cancellation]:
        """Yield this cancellation and those that enclose it."""
        each: Cancellation | None = self
        while each is not None:
            yield each
            each = each._outer

    def _cut_if_idle(self) -> None:
        if self._is_requested and not self._is_cut and not self._writes:
            self._is_cut = True
            self._cut()

    def _end(self, _: object) -> None:
        self._over.set()


def start_cancellable(work: Coroutine[Any, Any, T]) -> tuple[asyncio.Task[T], Cancellation]:
    """Start a coroutine as a task, with a cancellation that lets its writes finish."""
    cancellation = Cancellation(lambda: task.cancel())
    context = copy_context()
    context.run(_current.set, cancellation)
    task: asyncio.Task[T] = asyncio.get_running_loop().create_task(work, context=context)
    task.add_done_callback(cancellation._end)
    return task, cancellation


async def finish_write(write: Awaitable[T]) -> T:
    """Await a write. A cancellation requested meanwhile takes effect when the outcome of the write is known."""
    innermost = _current.get()
    if innermost is None:
        return await write
    cancellations = list(innermost.outwards())
    try:
        for each in cancellations:
            await each.refuse_write()
    except BaseException:
        if asyncio.iscoroutine(write):
            write.close()
        raise
    for each in cancellations:
        each.begin_write()
    try:
        return await write
    finally:
        for each in cancellations:
            each.end_write()


def leave_cancellation() -> None:
    """Detach the current task from the cancellation of the work that started it."""
    _current.set(None)
