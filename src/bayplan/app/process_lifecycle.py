"""Lifecycle of a process with engines or a binder: sync informers, acquire the lease, work, and shut down in order.

A standby keeps its informers in sync and decides nothing. The leader decides until it is stopped or loses the lease.
When stopped, it starts nothing new and finishes the bindings in flight. It releases the lease only if no write is left
that may still take effect; else the lease expires by itself. After a lost lease the process ends at once, and the guard
of the client refuses writes meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from bayplan.errors import LeaseLost
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject

log = logging.getLogger(__name__)

STOPPED_EXIT_CODE, LEASE_LOST_EXIT_CODE = 0, 1
"""Exit codes: stopped on request, and no longer the leader."""

_DRAIN_TIMEOUT_S = 20.0
"""Timeout for work in flight when the process stops."""


class InformerSource(Protocol):
    """Informers, as in `client.InformerSet`."""

    async def run(self) -> None: ...
    async def wait_synced(self) -> None: ...
    async def catch_up(self) -> None: ...
    def objects(self, plural: str) -> Iterable[KubeObject]: ...
    @property
    def synced(self) -> bool: ...


class EngineLoop(Protocol):
    """One engine, or both: `LiveScheduler` implements it."""

    async def handle_pending_events(self) -> None: ...
    async def handle_events(self) -> None: ...
    async def run(self) -> None: ...
    def stop_scheduling(self) -> None: ...
    async def drain(self) -> None: ...
    @property
    def has_open_writes(self) -> bool: ...
    async def abandon(self) -> None: ...


class LeaderLease(Protocol):
    """An election, as in `client.LeaderElector`."""

    @property
    def leading(self) -> bool: ...
    def overdue_s(self) -> float: ...
    async def observe(self) -> None: ...
    async def acquire(self) -> None: ...
    async def renew_until_lost(self) -> None: ...
    def retain(self) -> None: ...
    def report_unsent(self) -> None: ...


@dataclass
class EngineProcess:
    """Runs one engine loop until `stop` is called."""

    engine_loop: EngineLoop
    informers: InformerSource
    election: LeaderLease | None = None
    flush_events: Callable[[], Awaitable[None]] | None = None  # waits until all events are sent
    drain_timeout_s: float = _DRAIN_TIMEOUT_S
    before_deciding: Sequence[Callable[[], Awaitable[None]]] = ()
    background_tasks: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    """Tasks that run as long as the process does, and end it when they fail."""
    drain_beside: Sequence[Callable[[], Awaitable[None]]] = ()
    """Functions that finish other writes of the process, at the same time as the engines."""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def is_leading(self) -> bool:
        return self.election is None or self.election.leading

    def handle_synced(self) -> None:
        """Called once, when the informers have synced."""

    async def run_until_stopped(self) -> None:
        """Run the process. Raises `LeaseLost` when the lease is lost."""
        stop_task = asyncio.ensure_future(self._stop.wait())
        informers_task = asyncio.gather(self.informers.run(), *(work() for work in self.background_tasks))
        observe_task = None if self.election is None else asyncio.ensure_future(self.election.observe())
        engine_task: asyncio.Task[None] | None = None
        renewal: asyncio.Future[None] | None = None
        try:
            if not await _completes_first(self.informers.wait_synced(), stop_task, informers_task):
                return
            if not await _completes_first(self.engine_loop.handle_pending_events(), stop_task, informers_task):
                return
            self.handle_synced()
            if self.election is not None:
                await _cancel_and_wait(observe_task)
                if not await self._acquire_lease(self.election, stop_task, informers_task):
                    return
                renewal = asyncio.ensure_future(self.election.renew_until_lost())
            if not await _completes_first(self._prepare(), stop_task, informers_task):
                return
            engine_task = asyncio.ensure_future(self.engine_loop.run())
            running = [task for task in (stop_task, informers_task, engine_task, renewal) if task is not None]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if stop_task.done():
                await self._shut_down(renewal)
            else:
                _raise_fault(informers_task, engine_task, renewal)
        finally:
            await _cancel_and_wait(engine_task)
            if self.election is not None and self.engine_loop.has_open_writes:
                self.election.retain()
            await self.engine_loop.abandon()
            for task in (observe_task, informers_task, stop_task, renewal):
                await _cancel_and_wait(task)
            if self.election is not None:
                self.election.report_unsent()

    async def _acquire_lease(self, election: LeaderLease, *ends: asyncio.Future[Any]) -> bool:
        """Wait for the lease, and keep the caches up to date meanwhile."""
        event_task = asyncio.ensure_future(self.engine_loop.handle_events())
        try:
            return await _completes_first(election.acquire(), *ends, event_task)
        finally:
            await _cancel_and_wait(event_task)

    async def _prepare(self) -> None:
        """Prepare the first decision. A new leader first reads the latest writes of its predecessor."""
        catch_up = () if self.election is None else (self.informers.catch_up(),)
        await asyncio.gather(*catch_up, *(each() for each in self.before_deciding))
        await self.engine_loop.handle_pending_events()

    async def _shut_down(self, renewal: asyncio.Future[None] | None) -> None:
        """Start nothing new and let work in flight finish, unless the lease is lost meanwhile."""
        self.engine_loop.stop_scheduling()
        drain_task = asyncio.ensure_future(self._drain())
        try:
            ends = [task for task in (drain_task, renewal) if task is not None]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not drain_task.done():
                _raise_fault(renewal)
            drain_task.result()
        finally:
            await _cancel_and_wait(drain_task)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self.drain_timeout_s):
                await asyncio.gather(self.engine_loop.drain(), *(drain() for drain in self.drain_beside))
                if self.flush_events is not None:
                    await self.flush_events()
        except TimeoutError:
            log.warning(
                "work is still in flight after %.0f s; stopping without its result, which the next start reads back",
                self.drain_timeout_s,
            )


@dataclass
class SchedulerProcess(EngineProcess):
    """A process with one engine or both."""

    on_synced: Callable[[], object] = lambda: None
    describe: Callable[[InformerSource], Iterable[str]] = lambda _: ()
    """Lines for a log about the known objects and the pending pods."""
    page_url: str = ""
    """The URL of the page on this machine."""

    def pods(self) -> list[Pod]:
        """Every known pod on the leader; none on a standby, whose numbers would count twice."""
        return [each for each in self.informers.objects("pods") if isinstance(each, Pod)] if self.is_leading else []

    async def dump(self) -> None:
        """Log the known objects and pending pods, and whether they equal those of the API server."""
        await self.engine_loop.handle_pending_events()
        for line in self.describe(self.informers):
            log.info("%s", line)

    def handle_synced(self) -> None:
        self.on_synced()
        log.info("caches are synchronised")

    async def run(self) -> int:
        """Run the process; returns its exit code."""
        try:
            await self.run_until_stopped()
        except LeaseLost as fault:
            log.error("leaderelection lost: %s", fault)
            return LEASE_LOST_EXIT_CODE
        return STOPPED_EXIT_CODE


async def _completes_first(work: Awaitable[object], *ends: asyncio.Future[Any]) -> bool:
    """Whether `work` ended before any of `ends`. Exceptions are raised."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait((task, *ends), return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
        return task in done
    finally:
        await _cancel_and_wait(task)


def _raise_fault(*tasks: asyncio.Future[Any] | None) -> NoReturn:
    for task in tasks:
        if task is not None and task.done() and not task.cancelled() and (fault := task.exception()) is not None:
            raise fault
    raise LeaseLost("the process ended by itself")


async def _cancel_and_wait(task: asyncio.Future[Any] | None) -> None:
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # a consequence of the cancellation
