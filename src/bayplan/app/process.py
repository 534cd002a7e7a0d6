"""Composition of a process with engines, the same for every command.

A command names its parts in `ProcessParts`. `start_process` serves probes and metrics, connects the clients, builds the
engines on them, prepares the election, and yields the process. Everything is closed at the end of the block, the newest
first. Probes are answered before the process connects to the cluster.

`run_process` runs it and handles its signals. SIGTERM and SIGINT stop the process. SIGUSR2 logs its state, SIGUSR1
writes it to a file. Before the informers have synced there is no state to write; the log says so, and the process
continues.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from bayplan.app.api_clients import ApiClients
from bayplan.app.insecure_serving import InsecureServingOptions, serve_insecure
from bayplan.app.page_source import PageSource, serve_page
from bayplan.app.process_lifecycle import STOPPED_EXIT_CODE, SchedulerProcess
from bayplan.app.secure_serving import ServableMonitor, serve_secure
from bayplan.client import ConnectionConfig
from bayplan.client.event_sink import SENDERS
from bayplan.clock import LoopClock, SystemClock
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.model import LeaderElection
from bayplan.config.serving_flags import ServingFlags
from bayplan.framework.runtime.plugin_call import plugin_call_of_frame
from bayplan.memory import freeze_periodically
from bayplan.objects.kinds import Kind
from bayplan.telemetry.watchdog import watched_loop

log = logging.getLogger(__name__)


class ProcessMonitor(ServableMonitor, Protocol):
    """Metrics and views of a process, before and while it runs."""

    page_source: PageSource

    def attach(self, process: SchedulerProcess) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessParts:
    target: ConnectionConfig
    monitor: ProcessMonitor
    kinds: Sequence[Kind]
    """The kinds to discover."""
    required: Sequence[Kind]
    """Those of the kinds that the process waits for."""
    leases: Sequence[tuple[LeaderElection, str]]
    """Each with the reporter name of its events."""
    build: Callable[[ApiClients], Awaitable[SchedulerProcess]]
    """Builds the engines on the clients. `start_process` sets the fields that all processes share."""
    qps: float
    burst: int
    senders: int = SENDERS
    """Event requests at a time while bindings are in flight."""
    settings: BayplanSettings
    serving: ServingFlags
    """The server with TLS."""
    insecure_serving: InsecureServingOptions | None = None
    set_verbosity: Callable[[int], None] | None = None
    identity: str = ""
    """The identity of the candidate for the leases; empty: generated."""
    clock: LoopClock = field(default_factory=SystemClock)
    chance: random.Random = field(default_factory=random.Random)


@asynccontextmanager
async def start_process(parts: ProcessParts) -> AsyncIterator[SchedulerProcess]:
    clock, monitor, target = parts.clock, parts.monitor, parts.target
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(watched_loop(parts.settings.watchdog_seconds, plugin_call_of_frame))
        await stack.enter_async_context(
            serve_insecure(monitor.views(), parts.insecure_serving or InsecureServingOptions(), clock)
        )
        await stack.enter_async_context(
            serve_secure(
                monitor, target, parts.serving, clock=clock, chance=parts.chance, set_verbosity=parts.set_verbosity
            )
        )
        page_url = await stack.enter_async_context(serve_page(parts.settings.page_address, monitor.page_source, clock))
        clients = await ApiClients.connect(
            target,
            stack,
            parts.kinds,
            clock=clock,
            chance=parts.chance,
            observer=monitor.observer(target),
            qps=parts.qps,
            burst=parts.burst,
            needed=parts.required,
            senders=parts.senders,
        )
        process = await parts.build(clients)
        process.election = await clients.build_election(parts.leases, parts.identity, parts.serving.secure_port)
        process.flush_events = clients.event_sink.drain
        process.drain_timeout_s = parts.settings.stop_seconds
        process.on_synced = freeze_periodically
        process.page_url = page_url
        monitor.attach(process)
        yield process


async def run_process(
    process: AbstractAsyncContextManager[SchedulerProcess], dump_file: Callable[[SchedulerProcess], None] | None = None
) -> int:
    """Run the process; returns its exit code, also if it is stopped while it starts. `dump_file`: handles SIGUSR1."""
    main_task = asyncio.current_task()
    assert main_task is not None
    _add_stop_handlers(main_task.cancel)
    dumps = _StateDumper(dump_file)
    has_started = False
    with _dump_signal_handlers(dumps):
        try:
            async with process as running:
                has_started = True
                _add_stop_handlers(running.stop)
                dumps.process = running
                return await running.run()
        except asyncio.CancelledError:
            if has_started:
                raise
            return STOPPED_EXIT_CODE


@dataclass(slots=True)
class _StateDumper:
    """Writes the state of a process on a signal."""

    to_file: Callable[[SchedulerProcess], None] | None
    process: SchedulerProcess | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self, number: int) -> None:
        if self.process is None or not self.process.informers.synced:
            log.info("%s: no state is written, because the start is not complete yet", signal.Signals(number).name)
        elif number == signal.SIGUSR2:
            task = asyncio.get_running_loop().create_task(self.process.dump())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif self.to_file is not None:
            self.to_file(self.process)


@contextmanager
def _dump_signal_handlers(dumps: _StateDumper) -> Iterator[None]:
    """Install signal handlers for the block, and restore the previous ones. Handlers of the loop would restore the
    default action, which kills the process, when the loop is closed."""
    loop = asyncio.get_running_loop()

    def handle(number: int, _: FrameType | None) -> None:
        loop.call_soon_threadsafe(dumps.start, number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _add_stop_handlers(stop: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
