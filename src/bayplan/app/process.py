"""Composition of a process with engines, the same for every command.

A command names its parts in `ProcessParts`. `start_process` serves probes and metrics, connects the clients, builds the
engines on them, prepares the election, and yields the process, which the command runs. Everything is closed at the end
of the block, the newest first. Probes are answered before the process connects to the cluster.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from bayplan.app.api_clients import ApiClients
from bayplan.app.insecure_serving import InsecureServingOptions, serve_insecure
from bayplan.app.page_source import PageSource, serve_page
from bayplan.app.process_lifecycle import SchedulerProcess
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


class ProcessMonitor(ServableMonitor, Protocol):
    """Metrics and views of a process, before and while it runs."""

    page_source: PageSource

    def attach(self, process: SchedulerProcess) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessParts:
    """The parts of one process."""

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
    """A process that is connected and ready to run."""
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
        process.flush_events = clients.event_sink.drained
        process.drain_timeout_s = parts.settings.stop_seconds
        process.on_synced = freeze_periodically
        process.page_url = page_url
        monitor.attach(process)
        yield process
