"""Both engines in one process: one cache, one ledger of who waits and who leaves, one set of clients, two leases.

What the API server tells goes to both. The pod engine writes what it watches into the cache; the batch engine adds the
kinds that only it reads. Both decide only while the process holds both leases, and both stop when it loses one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from bayplan.app.api_clients import Wiring
from bayplan.app.batch import BatchSettings, BatchSide, batch_side, count_requests, usage_collector
from bayplan.app.bind_request_watch import RequestWatch
from bayplan.app.binder import (
    BinderMonitor,
    BinderProcess,
    BinderSettings,
    binder_process,
)
from bayplan.app.insecure_serving import OpenPages, served_openly
from bayplan.app.page_source import Showcase
from bayplan.app.process_lifecycle import SchedulerProcess, Watching
from bayplan.app.scheduler import watched_kinds, wired_scheduler
from bayplan.app.secure_serving import Monitor, monitored
from bayplan.batch.live.run_loop import LiveBatch
from bayplan.cache import Cache
from bayplan.client import EVERYTHING, Informers, Target
from bayplan.clock import LoopClock, SystemClock
from bayplan.config.model import Configuration, LeaderElection
from bayplan.config.serving_flags import ProcessOptions
from bayplan.explain.batch_explainer import BatchExplainer
from bayplan.explain.engine_dispatch import BinderLook
from bayplan.framework.runtime.object_changes import ASSIGNED_POD_DELETE
from bayplan.framework.runtime.registry import Registry
from bayplan.memory import keep_frozen
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import Kind
from bayplan.objects.meta import KubeObject
from bayplan.scheduler.live.cache_comparer import compare
from bayplan.scheduler.live.plugin_reloader import PluginSource, Reloading
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.telemetry.batch_metrics import BatchMetrics


@dataclass(frozen=True, slots=True)
class BothEngines:
    """Fits where one live engine does."""

    pods: LiveScheduler
    batch: LiveBatch

    async def catch_up(self) -> None:
        await self.pods.catch_up()
        await self.batch.catch_up()

    async def follow(self) -> None:
        await _together(self.pods.follow(), self.batch.follow())

    async def run(self) -> None:
        await _together(self.pods.run(), self.batch.run())

    def stop_deciding(self) -> None:
        self.pods.stop_deciding()
        self.batch.stop_deciding()

    async def drain(self) -> None:
        await asyncio.gather(self.pods.drain(), self.batch.drain())

    @property
    def has_open_writes(self) -> bool:
        return self.pods.has_open_writes or self.batch.has_open_writes

    async def abandon(self) -> None:
        await self.batch.abandon()
        await self.pods.abandon()

    def describe(self, known: Watching) -> Iterable[str]:
        """What each believes, the pod engine's comparison last."""
        yield from self.batch.described()
        yield from compare(self.pods, known.objects("nodes"), known.objects("pods")).lines()


async def _together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, which none does by itself; then end the others."""
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
async def both_process(
    configuration: Configuration,
    registry: Registry,
    batch: BatchSettings,
    target: Target,
    *,
    clock: LoopClock | None = None,
    chance: random.Random | None = None,
    identity: str = "",
    plugins: PluginSource | None = None,
    options: ProcessOptions | None = None,
    set_verbosity: Callable[[int], None] | None = None,
    binder: BinderSettings | None = None,
    openly: OpenPages | None = None,
) -> AsyncIterator[SchedulerProcess]:
    """Both engines on a cluster, and a binder if there is to be one.

    What is served is what the pod engine serves, with the metrics of the others. `openly`: what of it everybody may
    read without TLS."""
    clock, chance = clock or SystemClock(), chance or random.Random()
    options = options or ProcessOptions()
    settings, connection = options.settings, configuration.client_connection
    async with AsyncExitStack() as stack:
        monitor, page = await stack.enter_async_context(
            monitored(configuration, target, options, clock=clock, chance=chance, set_verbosity=set_verbosity)
        )
        await stack.enter_async_context(served_openly(monitor.views(), openly or OpenPages(), clock))
        theirs = watched_kinds(options, configuration)
        kinds = (*theirs, *(kind for kind in batch.watched if kind not in theirs))
        wiring = await Wiring.to(
            target,
            stack,
            kinds,
            clock=clock,
            chance=chance,
            observer=monitor.observer(target),
            qps=connection.qps,
            burst=connection.burst,
            needed=(*batch.needed, *(kind for kind in theirs if kind.struct is BindRequest)),
        )
        cache = Cache()
        live = wired_scheduler(configuration, registry, cache, wiring, monitor, options, clock=clock, chance=chance)
        metrics = BatchMetrics(monitor.registry, clock.now)
        side = batch_side(
            batch,
            wiring,
            cache,
            clock=clock,
            chance=chance,
            observer=metrics,
            writes=live.writes,
            nominations=live.engine.nominations,
            left_to_others=frozenset(kind.struct for kind in theirs),
            freed=lambda pod: _freed(live, pod),
        )
        both = _on_one_cache(live, side.live)
        election = await wiring.candidate(_leases(configuration, batch), identity, options.serving.secure_port)
        collector = await stack.enter_async_context(usage_collector(side.live.engine, api=wiring.client, clock=clock))
        reloading = () if plugins is None else (Reloading(live, plugins, clock, settings.plugin_poll_seconds).run,)
        beside = [*reloading, collector.run, *_beside_requests(live, side, monitor, wiring)]
        counted = partial(_counted_binder, target, monitor, identity, clock, chance)
        binders = [await stack.enter_async_context(counted(each)) for each in (binder,) if each is not None]
        process = SchedulerProcess(
            both,
            _informers(wiring, kinds, theirs, monitor.showcase, live, side),
            election,
            told=wiring.sink.drained,
            patience_s=settings.stop_seconds,
            when_synced=keep_frozen,
            before_deciding=(wiring.client.warm, wiring.telling.warm),
            describe=both.describe,
            beside=[*beside, *(each.run for each in binders)],
            drain_beside=[each.drain for each in binders],
            page_url=page,
        )
        look = BinderLook.of(wiring.client, settings, configuration.leader_election)
        monitor.show(process, live, BatchExplainer(side.live), binder=look)
        monitor.showcase.show_sessions(side.live, metrics)
        yield process


def _counted_binder(
    target: Target, monitor: Monitor, identity: str, clock: LoopClock, chance: random.Random, settings: BinderSettings
) -> AbstractAsyncContextManager[BinderProcess]:
    """A binder whose metrics are among those of the engines."""
    counted = BinderMonitor(clock, monitor.registry, leader=monitor.leader)
    return binder_process(settings, target, monitor=counted, identity=identity, clock=clock, chance=chance)


def _beside_requests(
    live: LiveScheduler, side: BatchSide, monitor: Monitor, wiring: Wiring
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """What runs beside engines whose pods are bound by a binder; counted once, where both have theirs bound so."""
    if live.requests is None:
        count_requests(side.live, monitor.registry)
    engines = (live.requests, side.live.following.requests)
    return [work for each in engines for work in RequestWatch(each, wiring.client).beside(wiring.client.clock)]


def _on_one_cache(live: LiveScheduler, batch: LiveBatch) -> BothEngines:
    """One of them counts what others have on their way, and pods of either engine are nobody else's."""
    both = [each for each in (live.requests, batch.following.requests) if each is not None]
    for requests in both[1:]:
        requests.others = None
    for requests in both[:1]:
        assert requests.others is not None
        requests.others.serves = lambda pod: live.engine.serves(pod) or batch.following.serves(pod)
    return BothEngines(live, batch)


def _leases(configuration: Configuration, batch: BatchSettings) -> list[tuple[LeaderElection, str]]:
    """kube-scheduler's first, in every process: nobody waits crosswise."""
    return [
        (configuration.leader_election, configuration.profiles[0].scheduler_name),
        (batch.lease, batch.options.scheduler_name[0]),
    ]


def _freed(live: LiveScheduler, pod: Pod) -> None:
    """Room that the batch engine gave back may be what a pod of the other engine waits for."""
    live.queue.move_all(ASSIGNED_POD_DELETE, pod, None)
    live.wake()


def _informers(
    wiring: Wiring,
    kinds: Sequence[Kind],
    theirs: Sequence[Kind],
    showcase: Showcase,
    live: LiveScheduler,
    side: BatchSide,
) -> Informers:
    """One watch a kind; pods that have ended are watched, too: gangs count them."""
    shared, own = frozenset(theirs), side.live.hear

    def hear_both(old: KubeObject | None, new: KubeObject | None) -> None:
        live.hear(old, new)
        own(old, new)

    return Informers(
        wiring.client.informer(
            resource,
            showcase.heard(hear_both if kind in shared else own),
            selection=EVERYTHING,
            complaint=side.speaker.complain,
        )
        for kind in kinds
        if (resource := wiring.offered.get(kind)) is not None
    )
