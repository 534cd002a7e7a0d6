"""Composition of both engines in one process: one cache, one queue and nominator, one set of clients, two leases.

Events of the API server go to both engines. The pod engine writes its kinds into the cache; the batch engine adds the
kinds that only it watches. Both decide only while the process holds both leases, and both stop when it loses one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bayplan.app.api_clients import ApiClients
from bayplan.app.batch import BatchComponents, BatchSettings, add_bind_request_metrics, usage_collector, wire_batch
from bayplan.app.bind_request_watch import BindRequestWatch
from bayplan.app.binder import BinderMonitor, BinderProcess, BinderSettings, binder_process
from bayplan.app.insecure_serving import InsecureServingOptions
from bayplan.app.page_source import PageSource
from bayplan.app.process import ProcessParts, start_process
from bayplan.app.process_lifecycle import InformerSource, SchedulerProcess
from bayplan.app.scheduler import reload_tasks, watched_kinds, wire_scheduler
from bayplan.app.secure_serving import SchedulerMonitor
from bayplan.batch.live.run_loop import BatchRunLoop
from bayplan.cache import Cache
from bayplan.client import EVERYTHING, ConnectionConfig, InformerSet
from bayplan.clock import LoopClock, SystemClock
from bayplan.config.model import Configuration, LeaderElection
from bayplan.config.serving_flags import ProcessOptions
from bayplan.explain.batch_explainer import BatchExplainer
from bayplan.explain.engine_dispatch import BinderStatusReader
from bayplan.framework.runtime.object_changes import ASSIGNED_POD_DELETE
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import Kind
from bayplan.objects.meta import KubeObject
from bayplan.scheduler.live.cache_comparer import compare_cache
from bayplan.scheduler.live.plugin_reloader import PluginSource
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.telemetry.batch_metrics import BatchMetrics


@dataclass(frozen=True, slots=True)
class CombinedEngines:
    """Two live engines that implement `EngineLoop` together."""

    pods: LiveScheduler
    batch: BatchRunLoop

    async def handle_pending_events(self) -> None:
        await self.pods.handle_pending_events()
        await self.batch.handle_pending_events()

    async def handle_events(self) -> None:
        await _run_together(self.pods.handle_events(), self.batch.handle_events())

    async def run(self) -> None:
        await _run_together(self.pods.run(), self.batch.run())

    def stop_scheduling(self) -> None:
        self.pods.stop_scheduling()
        self.batch.stop_scheduling()

    async def drain(self) -> None:
        await asyncio.gather(self.pods.drain(), self.batch.drain())

    @property
    def has_open_writes(self) -> bool:
        return self.pods.has_open_writes or self.batch.has_open_writes

    async def abandon(self) -> None:
        await self.batch.abandon()
        await self.pods.abandon()

    def describe(self, known: InformerSource) -> Iterable[str]:
        """Both engines' state for a log, the pod engine's cache comparison last."""
        yield from self.batch.dump()
        yield from compare_cache(self.pods, known.objects("nodes"), known.objects("pods")).lines()


async def _run_together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, then cancel the rest. None ends by itself."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def combined_process(
    configuration: Configuration,
    registry: Registry,
    batch: BatchSettings,
    target: ConnectionConfig,
    *,
    clock: LoopClock | None = None,
    chance: random.Random | None = None,
    identity: str = "",
    plugins: PluginSource | None = None,
    options: ProcessOptions | None = None,
    set_verbosity: Callable[[int], None] | None = None,
    binder: BinderSettings | None = None,
    openly: InsecureServingOptions | None = None,
) -> AsyncIterator[SchedulerProcess]:
    """Both engines on a cluster, and a binder if `binder` is given.

    Serves the views of the pod engine, with the metrics of all components. `openly`: the part that is served without
    TLS and authorization."""
    clock, options = clock or SystemClock(), options or ProcessOptions()
    connection = configuration.client_connection
    monitor = SchedulerMonitor(configuration, options.serving, clock)
    pod_engine_kinds = watched_kinds(options, configuration)
    kinds = (*pod_engine_kinds, *(kind for kind in batch.watched if kind not in pod_engine_kinds))

    async def build(clients: ApiClients) -> SchedulerProcess:
        live = wire_scheduler(configuration, registry, Cache(), clients, monitor, options)
        metrics = BatchMetrics(monitor.registry, clock.now)
        side = wire_batch(
            batch,
            clients,
            live.engine.cache,
            observer=metrics,
            writes=live.writes,
            nominations=live.engine.nominator,
            shared_kinds=frozenset(kind.struct for kind in pod_engine_kinds),
            freed=lambda pod: _wake_for_deleted_pod(live, pod),
        )
        both = _share_cache(live, side.live)
        start = clients.stack.enter_async_context
        collector = await start(usage_collector(side.live.engine, api=clients.client, clock=clock))
        binders = [
            await start(_monitored_binder(each, clients, target, monitor, identity)) for each in (binder,) if each
        ]
        binder_status = BinderStatusReader.for_engine(clients.client, options.settings, configuration.leader_election)
        monitor.attach_engine(live, BatchExplainer(side.live), binder=binder_status)
        monitor.page_source.attach_batch(side.live, metrics)
        return SchedulerProcess(
            both,
            _informers(clients, kinds, pod_engine_kinds, monitor.page_source, live, side),
            before_deciding=(clients.client.warm, clients.event_client.warm),
            describe=both.describe,
            background_tasks=[
                *reload_tasks(live, plugins, options),
                collector.run,
                *_bind_request_tasks(live, side, monitor, clients),
                *(each.run for each in binders),
            ],
            drain_beside=[each.drain for each in binders],
        )

    parts = ProcessParts(
        target=target,
        monitor=monitor,
        kinds=kinds,
        required=(*batch.required, *(kind for kind in pod_engine_kinds if kind.struct is BindRequest)),
        leases=_leases(configuration, batch),
        build=build,
        qps=connection.qps,
        burst=connection.burst,
        settings=options.settings,
        serving=options.serving,
        insecure_serving=openly,
        set_verbosity=set_verbosity,
        identity=identity,
        clock=clock,
        chance=chance or random.Random(),
    )
    async with start_process(parts) as process:
        yield process


def _monitored_binder(
    settings: BinderSettings, clients: ApiClients, target: ConnectionConfig, monitor: SchedulerMonitor, identity: str
) -> AbstractAsyncContextManager[BinderProcess]:
    """A binder that registers its metrics with those of the engines."""
    clock, chance = clients.client.clock, clients.client.chance
    binder_monitor = BinderMonitor(clock, monitor.registry, leader=monitor.leader)
    return binder_process(settings, target, monitor=binder_monitor, identity=identity, clock=clock, chance=chance)


def _bind_request_tasks(
    live: LiveScheduler, side: BatchComponents, monitor: SchedulerMonitor, clients: ApiClients
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Tasks next to engines whose pods are bound by a binder. Metrics are registered once if both have such pods."""
    if live.bind_requests is None:
        add_bind_request_metrics(side.live, monitor.registry)
    engines = (live.bind_requests, side.live.event_handlers.requests)
    return [
        work
        for each in engines
        for work in BindRequestWatch(each, clients.client).background_tasks(clients.client.clock)
    ]


def _share_cache(live: LiveScheduler, batch: BatchRunLoop) -> CombinedEngines:
    """Let only one engine count foreign bind requests, and let both treat pods of either engine as their own."""
    both = [each for each in (live.bind_requests, batch.event_handlers.requests) if each is not None]
    for requests in both[1:]:
        requests.foreign_requests = None
    for requests in both[:1]:
        assert requests.foreign_requests is not None
        requests.foreign_requests.is_own_pod = lambda pod: (
            live.engine.serves(pod) or batch.event_handlers.is_responsible_for(pod)
        )
    return CombinedEngines(live, batch)


def _leases(configuration: Configuration, batch: BatchSettings) -> list[tuple[LeaderElection, str]]:
    """The leases in a fixed order, kube-scheduler's first: two processes cannot deadlock."""
    return [
        (configuration.leader_election, configuration.profiles[0].scheduler_name),
        (batch.lease, batch.options.scheduler_name[0]),
    ]


def _wake_for_deleted_pod(live: LiveScheduler, pod: Pod) -> None:
    """Wake the pod engine: a pod of the batch engine freed resources that its pods may wait for."""
    live.queue.move_all_on_event(ASSIGNED_POD_DELETE, pod, None)
    live.wake()


def _informers(
    clients: ApiClients,
    kinds: Sequence[Kind],
    pod_engine_kinds: Sequence[Kind],
    page_source: PageSource,
    live: LiveScheduler,
    side: BatchComponents,
) -> InformerSet:
    """One watch a kind. Pods that have ended are watched too, because gangs count them."""
    shared, own = frozenset(pod_engine_kinds), side.live.handle_event

    def handle_in_both(old: KubeObject | None, new: KubeObject | None) -> None:
        live.handle_event(old, new)
        own(old, new)

    return InformerSet(
        clients.client.informer(
            resource,
            page_source.with_page_updates(handle_in_both if kind in shared else own),
            selection=EVERYTHING,
            on_undecodable=side.event_recorders.report_unreadable,
        )
        for kind in kinds
        if (resource := clients.served_resources.get(kind)) is not None
    )
