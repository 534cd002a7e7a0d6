"""The life of a scheduler process: watch, be elected, decide, and stop in order.

A follower keeps its informers warm and decides nothing. Who leads decides until it is told to stop or loses the lease.
Told to stop, it begins nothing new and finishes what is under way. It gives the lease up if no write is left that may
still take effect; else the lease expires by itself. Having lost the lease, it ends at once, and the guard of the client
lets no write out meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bayplan.errors import LeaseLost
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject

log = logging.getLogger(__name__)

STOPPED_EXIT_CODE, LEASE_LOST_EXIT_CODE = 0, 1
"""Exit codes: told to stop, and no longer the leader."""

_DRAIN_TIMEOUT_S = 20.0
"""How long what is under way may take when the process is told to stop."""


class InformerSource(Protocol):
    """Informers, as `client.Informers` are."""

    async def run(self) -> None: ...
    async def wait_synced(self) -> None: ...
    async def catch_up(self) -> None: ...
    def objects(self, plural: str) -> Iterable[KubeObject]: ...
    @property
    def synced(self) -> bool: ...


class EngineLoop(Protocol):
    """One engine, or both: `LiveScheduler` is one."""

    async def handle_pending_events(self) -> None: ...
    async def handle_events(self) -> None: ...
    async def run(self) -> None: ...
    def stop_scheduling(self) -> None: ...
    async def drain(self) -> None: ...
    @property
    def has_open_writes(self) -> bool: ...
    async def abandon(self) -> None: ...


class LeaderLease(Protocol):
    """An election, as `client.Election` is."""

    @property
    def leading(self) -> bool: ...
    def overdue_s(self) -> float: ...
    async def observe(self) -> None: ...
    async def acquire(self) -> None: ...
    async def renew_until_lost(self) -> None: ...
    def retain(self) -> None: ...
    def report_unsent(self) -> None: ...


@dataclass(slots=True)
class SchedulerProcess:
    """Runs one live scheduler until it is told to `stop`."""

    engine_loop: EngineLoop
    informers: InformerSource
    election: LeaderLease | None = None
    flush_events: Callable[[], Awaitable[None]] | None = None  # waits until everything was told that is to be told
    drain_timeout_s: float = _DRAIN_TIMEOUT_S
    on_synced: Callable[[], object] = lambda: None
    before_deciding: Sequence[Callable[[], Awaitable[None]]] = ()
    describe: Callable[[InformerSource], Iterable[str]] = lambda _: ()
    """What is known and who waits, in lines for a log."""
    background_tasks: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    """What else runs as long as the process does, and ends it when it breaks."""
    drain_beside: Sequence[Callable[[], Awaitable[None]]] = ()
    """Finish what else writes beside the engines, at the same time."""
    page_url: str = ""
    """Where people on this machine can look at it."""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def pods(self) -> list[Pod]:
        """Every pod that is known, for whoever leads: others' numbers would count twice."""
        return [each for each in self.informers.objects("pods") if isinstance(each, Pod)] if self.is_leading else []

    async def dump(self) -> None:
        """Write into the log what is known and who waits, and whether that is what the API server says."""
        await self.engine_loop.handle_pending_events()
        for line in self.describe(self.informers):
            log.info("%s", line)

    @property
    def is_ready(self) -> bool:
        """Whether everything that exists is known, and nobody said stop."""
        return self.informers.synced and not self._stop.is_set()

    @property
    def is_leading(self) -> bool:
        return self.election is None or self.election.leading

    async def run(self) -> int:
        """Returns an exit code."""
        stopping = asyncio.ensure_future(self._stop.wait())
        watching = asyncio.gather(self.informers.run(), *(work() for work in self.background_tasks))
        observing = None if self.election is None else asyncio.ensure_future(self.election.observe())
        deciding: asyncio.Task[None] | None = None
        holding: asyncio.Future[None] | None = None
        try:
            if not await _completes_first(self.informers.wait_synced(), stopping, watching):
                return STOPPED_EXIT_CODE
            if not await _completes_first(self.engine_loop.handle_pending_events(), stopping, watching):
                return STOPPED_EXIT_CODE
            self.on_synced()
            log.info("caches are synchronised")
            if self.election is not None:
                await _cancel_and_wait(observing)
                if not await self._acquire_lease(self.election, stopping, watching):
                    return STOPPED_EXIT_CODE
                holding = asyncio.ensure_future(self.election.renew_until_lost())
            if not await _completes_first(self._prepare(), stopping, watching):
                return STOPPED_EXIT_CODE
            deciding = asyncio.ensure_future(self.engine_loop.run())
            running = [task for task in (stopping, watching, deciding, holding) if task is not None]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                return await self._shut_down(holding)
            return _exit_code(watching, deciding, holding)
        finally:
            await _cancel_and_wait(deciding)
            if self.election is not None and self.engine_loop.has_open_writes:
                self.election.retain()
            await self.engine_loop.abandon()
            for task in (observing, watching, stopping, holding):
                await _cancel_and_wait(task)
            if self.election is not None:
                self.election.report_unsent()

    async def _acquire_lease(self, election: LeaderLease, *ends: asyncio.Future[Any]) -> bool:
        """Wait for the lease, and keep the caches true meanwhile."""
        following = asyncio.ensure_future(self.engine_loop.handle_events())
        try:
            return await _completes_first(election.acquire(), *ends, following)
        finally:
            await _cancel_and_wait(following)

    async def _prepare(self) -> None:
        """What comes before the first decision. A leader first learns what its predecessor wrote last."""
        catching_up = () if self.election is None else (self.informers.catch_up(),)
        await asyncio.gather(*catching_up, *(each() for each in self.before_deciding))
        await self.engine_loop.handle_pending_events()

    async def _shut_down(self, holding: asyncio.Future[None] | None) -> int:
        """Begin nothing new, and let what is under way come to its end, unless the lease is lost meanwhile."""
        self.engine_loop.stop_scheduling()
        finishing = asyncio.ensure_future(self._drain())
        try:
            ends = [task for task in (finishing, holding) if task is not None]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not finishing.done():
                return _exit_code(holding)
            finishing.result()
            return STOPPED_EXIT_CODE
        finally:
            await _cancel_and_wait(finishing)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self.drain_timeout_s):
                await asyncio.gather(self.engine_loop.drain(), *(drain() for drain in self.drain_beside))
                if self.flush_events is not None:
                    await self.flush_events()
        except TimeoutError:
            log.warning(
                "still under way after %.0f s, and left alone: a restart finds out how it ended", self.drain_timeout_s
            )


async def _completes_first(work: Awaitable[object], *ends: asyncio.Future[Any]) -> bool:
    """Whether work was done before any of the others ended; one that broke raises."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait((task, *ends), return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
        return task in done
    finally:
        await _cancel_and_wait(task)


def _exit_code(*tasks: asyncio.Future[Any] | None) -> int:
    for task in tasks:
        if task is None or not task.done() or task.cancelled():
            continue
        fault = task.exception()
        if isinstance(fault, LeaseLost):
            log.error("leaderelection lost: %s", fault)
            return LEASE_LOST_EXIT_CODE
        if fault is not None:
            raise fault
    return LEASE_LOST_EXIT_CODE


async def _cancel_and_wait(task: asyncio.Future[Any] | None) -> None:
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # whatever it is, it came of the cancelling: nobody has to hear of it
