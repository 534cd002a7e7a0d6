"""The batch engine as a process of its own, and as the second engine of a process that has both."""

from __future__ import annotations

import logging
import platform
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bayplan import __version__
from bayplan.api_writes.pod_statuses import PodStatuses
from bayplan.api_writes.writes import ApiWrites
from bayplan.app.api_clients import Wiring
from bayplan.app.batch_monitor import BatchMonitor
from bayplan.app.bind_request_watch import RequestWatch
from bayplan.app.configuration import known_actions, known_batch_plugins
from bayplan.app.insecure_serving import OpenPages, served_openly
from bayplan.app.page_source import page_served
from bayplan.app.process_lifecycle import SchedulerProcess, Watching
from bayplan.app.secure_serving import served
from bayplan.batch.actions import default_actions
from bayplan.batch.cluster_state import DEFAULT_SCHEDULER
from bayplan.batch.config.conf_file import ConfFile
from bayplan.batch.config.scheduler_conf import BatchConfiguration, load_default
from bayplan.batch.engine import BatchEngine
from bayplan.batch.handle import Outside, Reply
from bayplan.batch.live.bind_request_handlers import follow_requests
from bayplan.batch.live.event_handlers import nobody_waits
from bayplan.batch.live.node_shard import Sharding
from bayplan.batch.live.observer import BatchObserver
from bayplan.batch.live.options import HARD_SHARDS, LOCK_NAMESPACE, BatchOptions
from bayplan.batch.live.plugin_reloader import BatchReloading
from bayplan.batch.live.run_loop import LiveBatch
from bayplan.batch.live.run_loop_factory import Ways, followed, live_batch
from bayplan.batch.node_usage.collector import UsageCollector
from bayplan.batch.node_usage.metrics_sources import MetricsFault, MetricsRequest
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.registry import ActionSet, PluginSet
from bayplan.cache import Cache
from bayplan.client import (
    EVERYTHING,
    BlockingService,
    Client,
    EventSink,
    Informers,
    Resource,
    Service,
    Target,
    Unreadable,
)
from bayplan.client.event_sink import FEW_SENDERS
from bayplan.clock import Clock, LoopClock, SystemClock
from bayplan.config.bayplan_settings import OwnSettings
from bayplan.config.model import LeaderElection
from bayplan.config.serving_flags import ServingFlags
from bayplan.explain.engine_dispatch import BinderLook
from bayplan.framework.runtime.nominator import NominationLedger
from bayplan.framework.runtime.plugin_call import call_under_way
from bayplan.framework.runtime.plugin_discovery import (
    looks,
)
from bayplan.framework.runtime.registry import Registry as PluginRegistry
from bayplan.memory import keep_frozen
from bayplan.objects import workloads
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import KINDS, Kind, kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.volcano import types as volcano
from bayplan.objects.volcano.types import DEFAULT_QUEUE
from bayplan.plugins import default_plugins
from bayplan.telemetry.binder_metrics import show_stale
from bayplan.telemetry.decisions import DecisionRing
from bayplan.telemetry.events import WARNING, EventRecorder, ObjectReference
from bayplan.telemetry.metrics import Registry
from bayplan.telemetry.watchdog import watched_loop

log = logging.getLogger(__name__)

_SHARDS = kind_of(volcano.NodeShard)
_REQUESTS = kind_of(BindRequest)
WATCHED: tuple[Kind, ...] = tuple(
    kind for kind in KINDS if kind.struct is not workloads.PodGroup and kind not in (_SHARDS, _REQUESTS)
)
"""What the batch engine reads of a cluster in any case: of the two kinds of pod groups Volcano's."""

NEEDED = (kind_of(volcano.PodGroup), kind_of(volcano.Queue))
"""Without these there is nothing to schedule."""

NO_PORT = ServingFlags(secure_port=0)


def read_by(options: BatchOptions) -> tuple[Kind, ...]:
    """What an engine with these options reads."""
    return (*WATCHED, _SHARDS) if options.is_sharded else WATCHED


def needed_by(options: BatchOptions) -> tuple[Kind, ...]:
    """Kinds without which it waits."""
    return (*NEEDED, _SHARDS) if options.is_sharded else NEEDED


def batch_lease(options: BatchOptions) -> LeaderElection:
    """The lease that vc-scheduler takes."""
    return LeaderElection(resource_name=options.lock_name, resource_namespace=LOCK_NAMESPACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Everything that says how a batch engine is to run."""

    options: BatchOptions = field(default_factory=BatchOptions)
    conf: Path | BatchConfiguration | None = None
    """A file, which is read again when it changes, or what one says."""
    plugin_folders: tuple[Path, ...] = ()
    trust_writable: bool = False
    lease: LeaderElection = field(default_factory=lambda: batch_lease(BatchOptions()))
    own: OwnSettings = field(default_factory=OwnSettings)

    @property
    def watched(self) -> tuple[Kind, ...]:
        """What the engine reads of a cluster."""
        return (*read_by(self.options), *self._requests)

    @property
    def needed(self) -> tuple[Kind, ...]:
        """What there must be."""
        return (*needed_by(self.options), *self._requests)

    @property
    def _requests(self) -> tuple[Kind, ...]:
        return (_REQUESTS,) if self.own.bind_requests else ()

    def engine(
        self,
        cache: Cache,
        clock: LoopClock,
        chance: random.Random | None = None,
        nominations: NominationLedger | None = None,
    ) -> BatchEngine:
        engine = build_batch_engine(
            self.conf or load_default(),
            cache,
            plugins=known_batch_plugins(self.plugin_folders, trust_writable=self.trust_writable),
            actions=known_actions(self.plugin_folders, trust_writable=self.trust_writable),
            clock=clock,
            chance=chance,
            nominations=nominations,
            mends=self.own.mends,
            scheduler_names=self.options.scheduler_name,
            default_queue=self.options.default_queue,
            ignored_provisioners=self.options.ignored_provisioners,
        )
        engine.handle.records = DecisionRing(self.own.records_mebibytes << 20)
        return engine

    def reloading(self, engine: BatchEngine) -> BatchReloading:
        """What looks for changed files of plugins before each session."""
        folders, trust = self.plugin_folders, self.trust_writable
        return BatchReloading(
            engine,
            lambda: looks(folders),
            lambda: (
                known_batch_plugins(folders, trust_writable=trust),
                known_actions(folders, trust_writable=trust),
            ),
        )


class SchedulerNames:
    """Records core events, as Volcano does: about a pod in the name of its scheduler, else in that of the first."""

    def __init__(self, sink: EventSink, names: Sequence[str]) -> None:
        client = sink.client
        self._recorders = {
            name: EventRecorder(
                name, host=platform.node(), clock=client.clock, chance=client.chance, post=sink.post_core
            )
            for name in names
        }
        self._first = self._recorders[names[0]]

    def tell(self, regarding: KubeObject, kind: str, reason: str, note: str) -> None:
        self._speaker(regarding).event(regarding, type=kind, reason=reason, action="", note=note)

    def record(
        self,
        regarding: Pod,
        kind: str,
        reason: str,
        action: str,  # noqa: ARG002
        note: str,
        related: Pod | None = None,  # noqa: ARG002
    ) -> None:
        self.tell(regarding, kind, reason, note)

    def complain(self, resource: Resource, unreadable: Unreadable) -> None:
        """An object that cannot be read at all is told so."""
        namespace, name = unreadable.key
        about = ObjectReference(
            kind=resource.kind.name if resource.kind is not None else resource.plural,
            api_version=resource.api_version,
            namespace=namespace,
            name=name,
            uid=unreadable.uid,
            resource_version=unreadable.resource_version,
        )
        log.error("%s", unreadable.reason)
        self._first.event(about, type=WARNING, reason="Unreadable", action="", note=unreadable.reason)

    def _speaker(self, regarding: KubeObject) -> EventRecorder:
        name = regarding.scheduler_name if isinstance(regarding, Pod) else ""
        return self._recorders.get(name, self._first)


@dataclass(frozen=True, slots=True)
class BatchSide:
    """A batch engine that is wired up, and who speaks for it."""

    live: LiveBatch
    speaker: SchedulerNames

    def describe(self, _: Watching) -> list[str]:
        return list(self.live.described())


def batch_side(
    settings: BatchSettings,
    wiring: Wiring,
    cache: Cache,
    *,
    clock: LoopClock,
    chance: random.Random,
    observer: BatchObserver,
    writes: ApiWrites | None = None,
    nominations: NominationLedger | None = None,
    left_to_others: Collection[type[KubeObject]] = (),
    freed: Callable[[Pod], None] = nobody_waits,
) -> BatchSide:
    """A batch engine on a cache. `writes`: somebody else's, where two engines share a process."""
    engine = settings.engine(cache, clock, chance, nominations)
    wiring.stack.callback(engine.close)
    speaker = SchedulerNames(wiring.sink, settings.options.scheduler_name)
    following = followed(engine, settings.options, left_to_others=left_to_others, freed=freed)

    def exists(pod: Pod) -> bool:
        return following.newest(pod) is not None

    offered = wiring.offered
    writes = writes or ApiWrites(
        wiring.client,
        speaker,
        clock=clock,
        claims=offered.get(kind_of(ResourceClaim)),
        exists=exists,
        request_timeout_s=settings.own.request_timeout_seconds,
    )
    writes.reached = wiring.reached
    statuses = PodStatuses(wiring.client, writes, following.waiting, clock=clock, chance=chance)
    groups, queues = (offered.get(kind) for kind in NEEDED)
    assert groups is not None
    assert queues is not None
    ways = Ways(wiring.client, writes, statuses, speaker, groups, queues)
    live = live_batch(following, ways, settings.options, clock, observer)
    wiring.stack.callback(live.aside.close)
    if settings.options.is_sharded:
        live.between_sessions.append(_sharding(settings.options, live, wiring).look)
    if settings.own.bind_requests:
        own = settings.own
        follow_requests(
            following,
            live.binds,
            writes,
            speaker,
            clock,
            attempts=own.bind_attempts,
            stale_s=own.stale_request_seconds,
            request_timeout_s=own.request_timeout_seconds,
        )
    if settings.plugin_folders:
        live.between_sessions.append(settings.reloading(engine).look)
    return BatchSide(live, speaker)


def _sharding(options: BatchOptions, live: LiveBatch, wiring: Wiring) -> Sharding:
    shards = wiring.offered.get(_SHARDS)
    assert shards is not None
    is_hard = options.sharding_mode == HARD_SHARDS
    return Sharding(live.engine, wiring.client, live.writes, shards, live.clock, options.sharding_name, is_hard)


def count_requests(live: LiveBatch, registry: Registry) -> None:
    """Show what becomes of the requests of sessions, where there are some."""
    desk, requests = live.engine.handle.desk, live.following.requests
    if desk is not None and requests is not None:
        desk.mutation.add_to(registry)
        show_stale(registry, lambda: len(requests.stale))


@asynccontextmanager
async def batch_process(
    settings: BatchSettings,
    target: Target,
    *,
    monitor: BatchMonitor | None = None,
    openly: OpenPages | None = None,
    qps: float = 2000.0,
    burst: int = 2000,
    own: OwnSettings | None = None,
    serving: ServingFlags = NO_PORT,
    identity: str = "",
    clock: LoopClock | None = None,
    chance: random.Random | None = None,
) -> AsyncIterator[SchedulerProcess]:
    """A batch engine on a cluster, in vc-scheduler's place. `openly`: what everybody may read; `serving`: of why
    and the page, behind TLS."""
    clock, chance, own = clock or SystemClock(), chance or random.Random(), own or OwnSettings()
    monitor = monitor or BatchMonitor(clock)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(watched_loop(own.watchdog_seconds, call_under_way))
        await stack.enter_async_context(served_openly(monitor.views(), openly or OpenPages(), clock))
        await stack.enter_async_context(served(monitor, target, serving, clock=clock, chance=chance))
        page = await stack.enter_async_context(page_served(own.page_address, monitor.showcase, clock))
        kinds = settings.watched
        wiring = await Wiring.to(
            target,
            stack,
            kinds,
            clock=clock,
            chance=chance,
            observer=monitor.observer(target),
            qps=qps,
            burst=burst,
            needed=settings.needed,
            senders=FEW_SENDERS,
        )
        side = batch_side(settings, wiring, Cache(), clock=clock, chance=chance, observer=monitor.metrics)
        wiring.sink.gives_way = lambda: bool(side.live.binds.under_way)
        hear = monitor.showcase.heard(side.live.hear)
        requests = await RequestWatch.of(side.live.following.requests, wiring, settings.options.sole_names)
        informers = Informers(
            wiring.client.informer(
                resource,
                hear,
                selection=selection,
                complaint=side.speaker.complain,
            )
            for kind in kinds
            if (resource := wiring.offered.get(kind)) is not None
            for selection in (requests.selections if kind is _REQUESTS else (EVERYTHING,))
        )
        election = await wiring.candidate(
            [(settings.lease, settings.options.scheduler_name[0])], identity, serving.secure_port
        )
        collector = await stack.enter_async_context(usage_collector(side.live.engine, api=wiring.client, clock=clock))
        process = SchedulerProcess(
            side.live,
            informers,
            election,
            told=wiring.sink.drained,
            patience_s=own.stop_seconds,
            when_synced=keep_frozen,
            before_deciding=(wiring.client.warm, wiring.telling.warm, *requests.before_deciding(side.live.hear)),
            describe=side.describe,
            beside=(collector.run, *requests.beside(clock)),
            page_url=page,
        )
        count_requests(side.live, monitor.registry)
        monitor.show(process, side.live, settings.lease, binder=BinderLook.of(wiring.client, own))
        yield process


def build_batch_engine(
    configuration: BatchConfiguration | Path,
    cache: Cache,
    *,
    plugins: PluginSet | None = None,
    actions: ActionSet | None = None,
    framework_plugins: PluginRegistry | None = None,
    clock: Clock | None = None,
    chance: random.Random | None = None,
    nominations: NominationLedger | None = None,
    outside: Outside | None = None,
    mends: Iterable[str] = (),
    scheduler_names: Collection[str] = (DEFAULT_SCHEDULER,),
    default_queue: str = DEFAULT_QUEUE,
    ignored_provisioners: Iterable[str] = (),
) -> BatchEngine:
    """A batch engine on a cache, with every shipped plugin and action unless told otherwise.

    `configuration`: as it is, or the file that says it, which is looked at again before each session. `nominations`:
    the pod engine's, where both work on one cache. `outside`: how extenders are reached, if not by HTTP. `mends`: which
    of Volcano's quirks are switched off, by name. Close it."""
    actions = actions or default_actions()
    file = ConfFile(configuration, actions=tuple(actions)) if isinstance(configuration, Path) else None
    return BatchEngine(
        cache,
        configuration if isinstance(configuration, BatchConfiguration) else load_default(),
        plugins=plugins or default_batch_plugins(),
        actions=actions,
        framework_plugins=framework_plugins or default_plugins(),
        clock=clock or SystemClock(),
        chance=chance or random.Random(),
        nominations=nominations,
        file=file,
        outside=outside or BlockingService(user_agent=f"bayplan/{__version__}"),
        mends=mends,
        scheduler_names=scheduler_names,
        default_queue=default_queue,
        ignored_provisioners=ignored_provisioners,
    )


@asynccontextmanager
async def usage_collector(
    engine: BatchEngine, *, api: Client | None = None, clock: LoopClock | None = None
) -> AsyncIterator[UsageCollector]:
    """Who asks the metrics system that the engine's configuration names, by HTTP: `run` it beside the sessions.

    `api`: a client of the API server, which serves the metrics of `prometheus_adaptor`."""
    clock = clock or SystemClock()
    agent = f"bayplan/{__version__}"
    services = {
        verify: Service(clock, user_agent=agent, trust=Target(server="", verify=verify)) for verify in (True, False)
    }

    async def fetch(request: MetricsRequest, timeout_s: float) -> Reply:
        if request.url.startswith("/"):
            if api is None:
                raise MetricsFault(f"{request.url} is a path of the API server, and there is no client for one")
            told = await api.transport.request(request.method, request.url, request.body, timeout_s=timeout_s)
        else:
            service = services[request.verify_tls]
            told = await service.post(request.url, request.body, timeout_s, headers=request.headers)
        return Reply(told.status, told.body)

    try:
        yield UsageCollector(engine, fetch, clock)
    finally:
        for service in services.values():
            await service.close()
