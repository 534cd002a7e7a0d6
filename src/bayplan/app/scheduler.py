"""Composition of the pod engine: builds a running scheduler from configuration, cluster and clock."""

from __future__ import annotations

import platform
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from bayplan import __version__
from bayplan.api_writes.pod_status_messages import ProfileEvents
from bayplan.app.api_clients import ApiClients
from bayplan.app.bind_request_watch import BackgroundTask, BindRequestWatch
from bayplan.app.page_source import EventHandler
from bayplan.app.process import ProcessParts, start_process
from bayplan.app.process_lifecycle import SchedulerProcess
from bayplan.app.secure_serving import SchedulerMonitor
from bayplan.app.wakeup_batching import WakeupDelay
from bayplan.cache import Cache
from bayplan.client import (
    EVERYTHING,
    Client,
    ConnectionConfig,
    EventSink,
    HttpService,
    InformerSet,
    Selection,
    ServedResources,
)
from bayplan.clock import Clock, LoopClock, SystemClock
from bayplan.config.feature_gates import GENERIC_WORKLOAD
from bayplan.config.model import Configuration, ExtenderConfig, ProfileConfig
from bayplan.config.serving_flags import ProcessOptions
from bayplan.explain.engine_dispatch import BinderStatusReader
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import KINDS, kind_of
from bayplan.objects.kinds import Kind as ObjectKind
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.workloads import PodGroup
from bayplan.plugins.bind_request_binder import BindRequestBinder
from bayplan.plugins.gpu_sharing import GpuSharing
from bayplan.scheduler.cycle.extender_client import ExtenderClient, extender_transports
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.live.bind_request_handlers import track_bind_requests
from bayplan.scheduler.live.cache_comparer import compare_cache
from bayplan.scheduler.live.plugin_reloader import PluginReloader, PluginSource
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.scheduler.live.scheduler_factory import new_live_scheduler
from bayplan.telemetry.binder_metrics import register_stale_requests
from bayplan.telemetry.events import EventRecorder

_UNWATCHED_KINDS = {"PodGroup", "ResourceQuota", "PriorityClass", "BindRequest"}

_WATCHED_KINDS = tuple(
    kind for kind in KINDS if not kind.group.endswith("volcano.sh") and kind.name not in _UNWATCHED_KINDS
)
"""The kinds that the pod engine watches."""

_MAX_CONCURRENT_BIND_REQUESTS = 16
"""More would need additional connections and bind no pod sooner, because the binder is slower."""

_MAX_QUEUED_EVENTS, _MAX_WAKEUP_DELAY_BUSY_S = 1500, 0.05
"""With more waiting events than this, event senders are not limited and wake-ups are delayed at most 0.05 s."""

_NOT_ENDED_PODS = Selection(field_selector="status.phase!=Succeeded,status.phase!=Failed")


def build_engine(
    configuration: Configuration,
    registry: Registry,
    cache: Cache,
    *,
    clock: Clock | None = None,
    seed: int | None = None,
) -> PodEngine:
    """A pod engine on a cache. With a `seed`, ties between nodes are broken the same way every time."""
    return PodEngine(configuration, registry, cache, clock=clock or SystemClock(), chance=random.Random(seed))


@asynccontextmanager
async def scheduler_process(
    configuration: Configuration,
    registry: Registry,
    target: ConnectionConfig,
    *,
    clock: LoopClock | None = None,
    chance: random.Random | None = None,
    identity: str = "",
    plugins: PluginSource | None = None,
    options: ProcessOptions | None = None,
    set_verbosity: Callable[[int], None] | None = None,
    pace: WakeupDelay | None = None,
) -> AsyncIterator[SchedulerProcess]:
    """A pod engine on a cluster, with separate clients for decisions, events, the lease and access reviews.

    `plugins`: their source, if they are reloaded when their files change. `set_verbosity`: of the log. `pace`: the
    wake-up delay of the loop, if the process has a batching loop."""
    clock, options = clock or SystemClock(), options or ProcessOptions()
    connection, lease = configuration.client_connection, configuration.leader_election
    monitor = SchedulerMonitor(configuration, options.serving, clock)
    watched = watched_kinds(options, configuration)
    names = [profile.scheduler_name for profile in configuration.profiles]

    async def build(clients: ApiClients) -> SchedulerProcess:
        live = wire_scheduler(configuration, registry, Cache(), clients, monitor, options)
        if pace is not None:
            pace.max_delay_s = partial(_max_wakeup_delay_s, live, clients.event_sink)
        request_watch = await BindRequestWatch.create(live.bind_requests, clients, names)
        informers = _informers(
            clients.client,
            clients.served_resources,
            watched,
            monitor.page_source.with_page_updates(live.handle_event),
            request_watch.selections,
            only_latest=live.all_by_binder,
        )
        monitor.attach_engine(live, binder=BinderStatusReader.for_engine(clients.client, options.settings, lease))
        return SchedulerProcess(
            live,
            informers,
            before_deciding=(
                *clients.warm_connections(live.bindings.cycle.max_concurrent),
                *request_watch.startup_tasks(live.handle_event),
            ),
            describe=lambda known: compare_cache(live, known.objects("nodes"), known.objects("pods")).lines(),
            background_tasks=(*reload_tasks(live, plugins, options), *request_watch.background_tasks(clock)),
        )

    parts = ProcessParts(
        target=target,
        monitor=monitor,
        kinds=watched,
        required=[kind for kind in watched if kind.struct is BindRequest],
        leases=[(lease, names[0])],
        build=build,
        qps=connection.qps,
        burst=connection.burst,
        settings=options.settings,
        serving=options.serving,
        set_verbosity=set_verbosity,
        identity=identity,
        clock=clock,
        chance=chance or random.Random(),
    )
    async with start_process(parts) as process:
        yield process


def reload_tasks(live: LiveScheduler, plugins: PluginSource | None, options: ProcessOptions) -> list[BackgroundTask]:
    """The task that reloads plugins when their files change, if they have a source."""
    if plugins is None:
        return []
    return [PluginReloader(live, plugins, live.clock, options.settings.plugin_poll_seconds).run]


def watched_kinds(options: ProcessOptions, configuration: Configuration) -> tuple[ObjectKind, ...]:
    """The kinds that the pod engine watches with the enabled feature gates and plugins."""
    groups = (kind_of(PodGroup),) if options.serving.features.enabled(GENERIC_WORKLOAD) else ()
    return (*_WATCHED_KINDS, *groups, *((kind_of(BindRequest),) if uses_bind_requests(configuration) else ()))


def uses_bind_requests(configuration: Configuration) -> bool:
    """Whether the binder binds the pods of some profile."""
    return any(_binds_through_requests(profile) for profile in configuration.profiles)


def gpu_sharing_schedulers(configuration: Configuration) -> list[str]:
    """The schedulers whose pods may share GPUs: their profile enables GpuSharing and binds through the binder."""
    sharing = (each for each in configuration.profiles if GpuSharing.name in each.plugins.enabled_names())
    return [each.scheduler_name for each in sharing if _binds_through_requests(each)]


def _binds_through_requests(profile: ProfileConfig) -> bool:
    return BindRequestBinder.name in profile.plugins.enabled_names()


def wire_scheduler(
    configuration: Configuration,
    registry: Registry,
    cache: Cache,
    clients: ApiClients,
    monitor: SchedulerMonitor,
    options: ProcessOptions,
) -> LiveScheduler:
    """A live pod engine that writes through the clients of a process and reports to its monitor."""
    clock, chance = clients.client.clock, clients.client.chance
    services, network = _http_services(configuration, clock, clients.stack)
    client, served = clients.client, clients.served_resources
    live = new_live_scheduler(
        configuration,
        registry,
        cache,
        client,
        _profile_event_recorders(configuration, clients.event_sink),
        clock=clock,
        chance=chance,
        claims=served.get(kind_of(ResourceClaim)),
        pod_groups=served.get(kind_of(PodGroup)),
        extenders=ExtenderClient(services, client.check_guard) if services else None,
        options=options,
        post=network.post_ok,
        recorder=monitor.metrics,
        observer=monitor.metrics,
        timings=monitor.timings,
    )
    live.engine.bind_request_factory.reservations = options.settings.resource_reservation.namespace
    if uses_bind_requests(configuration):
        live.engine.bind_request_factory.attempts = options.settings.bind_attempts
        live.engine.bind_request_factory.mutation.add_to(monitor.registry)
        requests = track_bind_requests(
            live,
            clock,
            stale_s=options.settings.stale_request_seconds,
            request_timeout_s=options.settings.request_timeout_seconds,
        )
        register_stale_requests(monitor.registry, lambda: len(requests.stale))
        if all(_binds_through_requests(profile) for profile in configuration.profiles):
            live.all_by_binder = True
            live.bindings.cycle.limit_concurrency(_MAX_CONCURRENT_BIND_REQUESTS)
    live.writes.crash_point = clients.crash_points
    clients.event_sink.should_limit_senders = partial(_should_limit_event_senders, live, clients.event_sink)
    clients.stack.callback(live.engine.close)
    return live


def _should_limit_event_senders(live: LiveScheduler, sink: EventSink) -> bool:
    """Whether few senders send events, in favour of bindings in flight. With the binder, which writes events too and
    takes longer, only while few events wait: with batched wake-ups, few senders send few events each time."""
    if live.pods_at_binder and sink.waiting <= _MAX_QUEUED_EVENTS:
        return True
    return live.is_writing and not live.max_event_delay_s()


def _max_wakeup_delay_s(live: LiveScheduler, sink: EventSink) -> float:
    delay_s = live.max_event_delay_s()
    return delay_s if sink.waiting <= _MAX_QUEUED_EVENTS else min(delay_s, _MAX_WAKEUP_DELAY_BUSY_S)


def _http_services(
    configuration: Configuration, clock: LoopClock, stack: AsyncExitStack
) -> tuple[Mapping[ExtenderConfig, HttpService], HttpService]:
    """HTTP services outside the cluster: one for each extender, and one for posts of plugins."""
    agent = f"bayplan/{__version__}"
    services, network = (
        extender_transports(configuration.extenders, clock, user_agent=agent),
        HttpService(clock, user_agent=agent),
    )
    for service in (*services.values(), network):
        stack.push_async_callback(service.close)
    return services, network


def _informers(
    client: Client,
    served: ServedResources,
    watched: Sequence[ObjectKind],
    handle_event: EventHandler,
    requests: Sequence[Selection],
    *,
    only_latest: bool = False,
) -> InformerSet:
    """One watch for each watched kind that the API server serves, and for BindRequests one for each of `requests`.

    `only_latest`: skip intermediate states. The binder changes each pod twice within milliseconds; only the binding
    matters."""
    selections: dict[type[KubeObject], Sequence[Selection]] = {Pod: (_NOT_ENDED_PODS,), BindRequest: requests}
    return InformerSet(
        client.informer(resource, handle_event, selection=selection, only_latest=only_latest and kind.struct is Pod)
        for kind in watched
        if (resource := served.get(kind)) is not None
        for selection in selections.get(kind.struct, (EVERYTHING,))
    )


def _profile_event_recorders(configuration: Configuration, sink: EventSink) -> ProfileEvents:
    client = sink.client
    return ProfileEvents(
        {
            name: EventRecorder(name, host=platform.node(), clock=client.clock, chance=client.chance, post=sink.post)
            for name in (profile.scheduler_name for profile in configuration.profiles)
        }
    )
