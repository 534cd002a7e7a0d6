"""Composition of the batch engine: as a process, or as the second engine of a process with both."""

from __future__ import annotations

import logging
import platform
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bayplan import __version__
from bayplan.api_writes.pod_statuses import PodStatuses
from bayplan.api_writes.writes import ApiWrites
from bayplan.app.api_clients import ApiClients
from bayplan.app.batch_monitor import BatchMonitor
from bayplan.app.bind_request_watch import BindRequestWatch
from bayplan.app.configuration import known_actions, known_batch_plugins
from bayplan.app.insecure_serving import InsecureServingOptions
from bayplan.app.process import ProcessParts, start_process
from bayplan.app.process_lifecycle import SchedulerProcess
from bayplan.batch.actions import default_actions
from bayplan.batch.cluster_state import DEFAULT_SCHEDULER
from bayplan.batch.config.conf_file import ConfFile
from bayplan.batch.config.scheduler_conf import BatchConfiguration, load_default_conf
from bayplan.batch.engine import BatchEngine
from bayplan.batch.handle import HttpPoster, HttpReply
from bayplan.batch.live.bind_request_handlers import track_bind_requests
from bayplan.batch.live.event_handlers import ignore_freed_pod
from bayplan.batch.live.node_shard import NodeShardSync
from bayplan.batch.live.observer import BatchObserver
from bayplan.batch.live.options import HARD_SHARDS, LOCK_NAMESPACE, BatchOptions
from bayplan.batch.live.plugin_reloader import BatchPluginReloader
from bayplan.batch.live.run_loop import BatchRunLoop
from bayplan.batch.live.run_loop_factory import ApiWriters, build_event_handlers, build_run_loop
from bayplan.batch.node_usage.collector import UsageCollector
from bayplan.batch.node_usage.metrics_sources import MetricsError, MetricsRequest
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.registry import ActionSet, BatchPluginSet
from bayplan.cache import Cache
from bayplan.client import (
    EVERYTHING,
    BlockingHttpService,
    Client,
    ConnectionConfig,
    EventSink,
    GroupVersionResource,
    HttpService,
    InformerSet,
    UndecodableObject,
)
from bayplan.client.event_sink import MIN_SENDERS
from bayplan.clock import Clock, LoopClock, SystemClock
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.model import LeaderElection
from bayplan.config.serving_flags import ServingFlags
from bayplan.explain.engine_dispatch import BinderStatusReader
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.plugin_discovery import file_versions
from bayplan.framework.runtime.registry import Registry as PluginRegistry
from bayplan.objects import workloads
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import KINDS, Kind, kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.volcano import types as volcano
from bayplan.objects.volcano.types import DEFAULT_QUEUE
from bayplan.plugins import default_plugins
from bayplan.telemetry.binder_metrics import register_stale_requests
from bayplan.telemetry.decisions import DecisionRing
from bayplan.telemetry.events import WARNING, EventRecorder, ObjectReference
from bayplan.telemetry.metrics import MetricsRegistry

log = logging.getLogger(__name__)

_SHARDS = kind_of(volcano.NodeShard)
_REQUESTS = kind_of(BindRequest)
WATCHED_KINDS: tuple[Kind, ...] = tuple(
    kind for kind in KINDS if kind.struct is not workloads.PodGroup and kind not in (_SHARDS, _REQUESTS)
)
"""The kinds that the batch engine always watches. Of the two PodGroup kinds it watches Volcano's."""

REQUIRED_KINDS = (kind_of(volcano.PodGroup), kind_of(volcano.Queue))
"""Kinds without which there is nothing to schedule."""

NO_SECURE_PORT = ServingFlags(secure_port=0)


def kinds_read(options: BatchOptions) -> tuple[Kind, ...]:
    """The kinds that an engine with these options watches."""
    return (*WATCHED_KINDS, _SHARDS) if options.is_sharded else WATCHED_KINDS


def required_kinds(options: BatchOptions) -> tuple[Kind, ...]:
    """The kinds that the process waits for at its start."""
    return (*REQUIRED_KINDS, _SHARDS) if options.is_sharded else REQUIRED_KINDS


def batch_lease(options: BatchOptions) -> LeaderElection:
    """The lease of vc-scheduler."""
    return LeaderElection(resource_name=options.lock_name, resource_namespace=LOCK_NAMESPACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    options: BatchOptions = field(default_factory=BatchOptions)
    conf: Path | BatchConfiguration | None = None
    """A file, which is read again when it changes, or a configuration."""
    plugin_folders: tuple[Path, ...] = ()
    trust_writable: bool = False
    lease: LeaderElection = field(default_factory=lambda: batch_lease(BatchOptions()))
    bayplan_settings: BayplanSettings = field(default_factory=BayplanSettings)

    @property
    def watched(self) -> tuple[Kind, ...]:
        return (*kinds_read(self.options), *self._requests)

    @property
    def required(self) -> tuple[Kind, ...]:
        """The kinds that the API server must have."""
        return (*required_kinds(self.options), *self._requests)

    @property
    def _requests(self) -> tuple[Kind, ...]:
        return (_REQUESTS,) if self.bayplan_settings.bind_requests else ()

    def build_engine(
        self,
        cache: Cache,
        clock: LoopClock,
        chance: random.Random | None = None,
        nominations: Nominator | None = None,
        outside: HttpPoster | None = None,
    ) -> BatchEngine:
        engine = build_batch_engine(
            self.conf or load_default_conf(),
            cache,
            plugins=known_batch_plugins(self.plugin_folders, trust_writable=self.trust_writable),
            actions=known_actions(self.plugin_folders, trust_writable=self.trust_writable),
            clock=clock,
            chance=chance,
            nominations=nominations,
            outside=outside,
            quirk_fixes=self.bayplan_settings.volcano_quirk_fixes,
            scheduler_names=self.options.scheduler_name,
            default_queue=self.options.default_queue,
            ignored_provisioners=self.options.ignored_provisioners,
        )
        engine.handle.decision_records = DecisionRing(self.bayplan_settings.records_mebibytes << 20)
        return engine

    def plugin_reloader(self, engine: BatchEngine) -> BatchPluginReloader:
        """Checks plugin files for changes before each session."""
        folders, trust = self.plugin_folders, self.trust_writable
        return BatchPluginReloader(
            engine,
            lambda: file_versions(folders),
            lambda: (known_batch_plugins(folders, trust_writable=trust), known_actions(folders, trust_writable=trust)),
        )


class SchedulerEventRecorders:
    """Records core events as Volcano does: for a pod in the name of its scheduler, else in the name of the first."""

    def __init__(self, sink: EventSink, names: Sequence[str]) -> None:
        client = sink.client
        self._recorders = {
            name: EventRecorder(
                name, host=platform.node(), clock=client.clock, chance=client.chance, post=sink.post_core
            )
            for name in names
        }
        self._first = self._recorders[names[0]]

    def record_core_event(self, regarding: KubeObject, kind: str, reason: str, note: str) -> None:
        self._recorder_for(regarding).record(regarding, type=kind, reason=reason, action="", note=note)

    def record(
        self,
        regarding: Pod,
        kind: str,
        reason: str,
        action: str,  # noqa: ARG002
        note: str,
        related: Pod | None = None,  # noqa: ARG002
    ) -> None:
        self.record_core_event(regarding, kind, reason, note)

    def report_unreadable(self, resource: GroupVersionResource, unreadable: UndecodableObject) -> None:
        """Log an object that cannot be decoded, and record an event for it."""
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
        self._first.record(about, type=WARNING, reason="Unreadable", action="", note=unreadable.reason)

    def _recorder_for(self, regarding: KubeObject) -> EventRecorder:
        name = regarding.scheduler_name if isinstance(regarding, Pod) else ""
        return self._recorders.get(name, self._first)


@dataclass(frozen=True, slots=True)
class BatchComponents:
    live: BatchRunLoop
    event_recorders: SchedulerEventRecorders


def wire_batch(
    settings: BatchSettings,
    clients: ApiClients,
    cache: Cache,
    *,
    observer: BatchObserver,
    writes: ApiWrites | None = None,
    nominations: Nominator | None = None,
    shared_kinds: Collection[type[KubeObject]] = (),
    freed: Callable[[Pod], None] = ignore_freed_pod,
) -> BatchComponents:
    """Build a batch engine on a cache. `writes`: those of the pod engine, if both engines share a process."""
    clock, chance = clients.client.clock, clients.client.chance
    http = BlockingHttpService(user_agent=f"bayplan/{__version__}")
    engine = settings.build_engine(cache, clock, chance, nominations, http)
    clients.stack.callback(engine.close)
    clients.stack.push_async_callback(http.close_steps)
    recorders = SchedulerEventRecorders(clients.event_sink, settings.options.scheduler_name)
    event_handlers = build_event_handlers(
        engine, settings.options, kinds_handled_elsewhere=shared_kinds, on_pod_released=freed
    )

    def exists(pod: Pod) -> bool:
        return event_handlers.latest_pod(pod) is not None

    served = clients.served_resources
    writes = writes or ApiWrites(
        clients.client,
        recorders,
        clock=clock,
        claims=served.get(kind_of(ResourceClaim)),
        exists=exists,
        request_timeout_s=settings.bayplan_settings.request_timeout_seconds,
    )
    writes.crash_point = clients.crash_points
    statuses = PodStatuses(clients.client, writes, event_handlers.waiting, clock=clock, chance=chance)
    groups, queues = (served.get(kind) for kind in REQUIRED_KINDS)
    assert groups is not None
    assert queues is not None
    writers = ApiWriters(clients.client, writes, statuses, recorders, groups, queues)
    live = build_run_loop(event_handlers, writers, settings.options, clock, observer, http)
    if settings.options.is_sharded:
        live.between_sessions.append(_node_shard_updater(settings.options, live, clients).sync)
    if settings.bayplan_settings.bind_requests:
        own = settings.bayplan_settings
        track_bind_requests(
            event_handlers,
            live.binds,
            writes,
            recorders,
            clock,
            attempts=own.bind_attempts,
            stale_s=own.stale_request_seconds,
            request_timeout_s=own.request_timeout_seconds,
        )
    if settings.plugin_folders:
        live.between_sessions.append(settings.plugin_reloader(engine).reload_if_changed)
    return BatchComponents(live, recorders)


def _node_shard_updater(options: BatchOptions, live: BatchRunLoop, clients: ApiClients) -> NodeShardSync:
    shards = clients.served_resources.get(_SHARDS)
    assert shards is not None
    is_hard = options.sharding_mode == HARD_SHARDS
    return NodeShardSync(live.engine, clients.client, live.writes, shards, live.clock, options.sharding_name, is_hard)


def add_bind_request_metrics(live: BatchRunLoop, registry: MetricsRegistry) -> None:
    """Register metrics of the sessions' BindRequests, if sessions create them."""
    factory, requests = live.engine.handle.bind_request_factory, live.event_handlers.requests
    if factory is not None and requests is not None:
        factory.mutation.add_to(registry)
        register_stale_requests(registry, lambda: len(requests.stale))


@asynccontextmanager
async def batch_process(
    settings: BatchSettings,
    target: ConnectionConfig,
    *,
    openly: InsecureServingOptions | None = None,
    qps: float = 2000.0,
    burst: int = 2000,
    own: BayplanSettings | None = None,
    serving: ServingFlags = NO_SECURE_PORT,
    identity: str = "",
    clock: LoopClock | None = None,
    chance: random.Random | None = None,
) -> AsyncIterator[SchedulerProcess]:
    """A batch engine on a cluster, in vc-scheduler's place. `openly`: serving without TLS and authorization; `serving`:
    `why` and the page, behind TLS."""
    clock, own = clock or SystemClock(), own or BayplanSettings()
    monitor = BatchMonitor(clock)
    kinds, options = settings.watched, settings.options

    async def build(clients: ApiClients) -> SchedulerProcess:
        side = wire_batch(settings, clients, Cache(), observer=monitor.metrics)
        live = side.live
        clients.event_sink.should_limit_senders = lambda: bool(live.binds.in_flight)
        handle_event = monitor.page_source.with_page_updates(live.handle_event)
        requests = await BindRequestWatch.create(
            live.event_handlers.requests, clients, options.exclusive_scheduler_names
        )
        informers = InformerSet(
            clients.client.informer(
                resource, handle_event, selection=selection, on_undecodable=side.event_recorders.report_unreadable
            )
            for kind in kinds
            if (resource := clients.served_resources.get(kind)) is not None
            for selection in (requests.selections if kind is _REQUESTS else (EVERYTHING,))
        )
        collector = await clients.stack.enter_async_context(
            usage_collector(live.engine, api=clients.client, clock=clock)
        )
        add_bind_request_metrics(live, monitor.registry)
        monitor.attach_engine(live, settings.lease, BinderStatusReader.for_engine(clients.client, own))
        return SchedulerProcess(
            live,
            informers,
            before_deciding=(
                clients.client.warm,
                clients.event_client.warm,
                *requests.startup_tasks(live.handle_event),
            ),
            describe=lambda _: live.dump(),
            background_tasks=(collector.run, *requests.background_tasks(clock)),
        )

    parts = ProcessParts(
        target=target,
        monitor=monitor,
        kinds=kinds,
        required=settings.required,
        leases=[(settings.lease, options.scheduler_name[0])],
        build=build,
        qps=qps,
        burst=burst,
        senders=MIN_SENDERS,
        settings=own,
        serving=serving,
        insecure_serving=openly,
        identity=identity,
        clock=clock,
        chance=chance or random.Random(),
    )
    async with start_process(parts) as process:
        yield process


def build_batch_engine(
    configuration: BatchConfiguration | Path,
    cache: Cache,
    *,
    plugins: BatchPluginSet | None = None,
    actions: ActionSet | None = None,
    framework_plugins: PluginRegistry | None = None,
    clock: Clock | None = None,
    chance: random.Random | None = None,
    nominations: Nominator | None = None,
    outside: HttpPoster | None = None,
    quirk_fixes: Iterable[str] = (),
    scheduler_names: Collection[str] = (DEFAULT_SCHEDULER,),
    default_queue: str = DEFAULT_QUEUE,
    ignored_provisioners: Iterable[str] = (),
) -> BatchEngine:
    """A batch engine on a cache, by default with all shipped plugins and actions.

    `configuration`: a value, or its file, which is checked for changes before each session. `nominations`: those of the
    pod engine, if both work on one cache. `outside`: the transport to extenders, by default HTTP. Volcano's quirks are
    fixed only where `volcanoQuirkFixes` names them. The caller closes the engine."""
    actions = actions or default_actions()
    file = ConfFile(configuration, actions=tuple(actions)) if isinstance(configuration, Path) else None
    return BatchEngine(
        cache,
        configuration if isinstance(configuration, BatchConfiguration) else load_default_conf(),
        plugins=plugins or default_batch_plugins(),
        actions=actions,
        framework_plugins=framework_plugins or default_plugins(),
        clock=clock or SystemClock(),
        chance=chance or random.Random(),
        nominations=nominations,
        file=file,
        outside=outside or BlockingHttpService(user_agent=f"bayplan/{__version__}"),
        quirk_fixes=quirk_fixes,
        scheduler_names=scheduler_names,
        default_queue=default_queue,
        ignored_provisioners=ignored_provisioners,
    )


@asynccontextmanager
async def usage_collector(
    engine: BatchEngine, *, api: Client | None = None, clock: LoopClock | None = None
) -> AsyncIterator[UsageCollector]:
    """A collector that queries the metrics system of the engine's configuration by HTTP: `run` it next to the sessions.

    `api`: a client of the API server, which serves the metrics of `prometheus_adaptor`."""
    clock = clock or SystemClock()
    agent = f"bayplan/{__version__}"
    services = {
        verify: HttpService(clock, user_agent=agent, trust=ConnectionConfig(server="", verify=verify))
        for verify in (True, False)
    }

    async def fetch(request: MetricsRequest, timeout_s: float) -> HttpReply:
        if request.url.startswith("/"):
            if api is None:
                raise MetricsError(
                    f"{request.url} is a path of the API server, but there is no client for it; give a full URL"
                )
            response = await api.transport.request(request.method, request.url, request.body, timeout_s=timeout_s)
        else:
            service = services[request.verify_tls]
            response = await service.post(request.url, request.body, timeout_s, headers=request.headers)
        return HttpReply(response.status, response.body)

    try:
        yield UsageCollector(engine, fetch, clock)
    finally:
        for service in services.values():
            await service.close()
