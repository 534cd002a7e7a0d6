"""Composition root: turns configuration, cluster and clock into a running engine. Wiring and nothing else."""

from __future__ import annotations

import logging
import platform
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from bayplan import __version__
from bayplan.admission.job_validation import job_faults
from bayplan.admission.volcano_defaults import with_job_defaults
from bayplan.api_writes.pod_status_messages import ProfileEvents
from bayplan.app.api_clients import Wiring
from bayplan.app.bind_request_watch import RequestWatch
from bayplan.app.page_source import Heard
from bayplan.app.process_lifecycle import SchedulerProcess
from bayplan.app.secure_serving import Monitor, monitored
from bayplan.app.wakeup_batching import Pace
from bayplan.batch.actions import default_actions
from bayplan.batch.cluster_state import DEFAULT_SCHEDULER
from bayplan.batch.config.conf_file import ConfFile
from bayplan.batch.config.scheduler_conf import BatchConfiguration
from bayplan.batch.config.scheduler_conf import load as load_batch
from bayplan.batch.config.scheduler_conf import load_default as load_default_batch
from bayplan.batch.engine import BatchEngine
from bayplan.batch.handle import Outside, Reply
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
    Offered,
    Selection,
    Service,
    Target,
    find_target,
)
from bayplan.clock import Clock, LoopClock, SystemClock
from bayplan.config.feature_gates import GROUPS, Features
from bayplan.config.load import load, load_default
from bayplan.config.model import Configuration, Extender, Profile
from bayplan.config.serving_flags import ProcessOptions
from bayplan.controllers import FakeKubelet, NodeTemplate, PodHabits
from bayplan.explain.engine_dispatch import BinderLook
from bayplan.framework.runtime.nominator import NominationLedger
from bayplan.framework.runtime.plugin_discovery import (
    Kind,
    found_in,
    installed,
    looks,
    with_installed_plugins,
    with_plugins_from,
)
from bayplan.framework.runtime.registry import Registry
from bayplan.memory import freeze_memory, keep_frozen
from bayplan.objects.core import Node, Pod
from bayplan.objects.defaults import admitted
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import KINDS, kind_of
from bayplan.objects.kinds import Kind as ObjectKind
from bayplan.objects.manifests import load_manifests
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.volcano.types import DEFAULT_QUEUE
from bayplan.objects.workloads import PodGroup
from bayplan.plugins import default_plugins
from bayplan.plugins.bind_request_binder import BindRequestBinder
from bayplan.plugins.gpu import gpu_policies
from bayplan.plugins.gpu_sharing import GpuSharing
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.live.bind_request_handlers import follow_requests
from bayplan.scheduler.live.cache_comparer import compare
from bayplan.scheduler.live.extender_client import Extenders, services_for
from bayplan.scheduler.live.plugin_reloader import PluginSource, Reloading
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.scheduler.live.scheduler_factory import live_scheduler
from bayplan.telemetry.binder_metrics import show_stale
from bayplan.telemetry.events import EventRecorder

__all__ = [
    "batch_configured",
    "build_batch_engine",
    "build_engine",
    "configured",
    "fake_kubelet",
    "filled_cache",
    "find_target",
    "freeze_memory",
    "job_faults",
    "known_actions",
    "known_batch_plugins",
    "known_plugins",
    "plugin_source",
    "read_objects",
    "scheduler_process",
    "usage_collector",
    "with_job_defaults",
]


log = logging.getLogger(__name__)

_NOT_WATCHED = {"PodGroup", "ResourceQuota", "PriorityClass", "BindRequest"}
_WATCHED = tuple(kind for kind in KINDS if not kind.group.endswith("volcano.sh") and kind.name not in _NOT_WATCHED)
"""What the pod engine reads of a cluster."""

_REQUESTS_AT_ONCE = 16
"""Further ones would need connections of their own, and no pod is bound sooner for them: the binder is slower."""
_EVENTS_BESIDE_THE_BINDER, _LEEWAY_WITH_MORE_S = 1500, 0.05
"""So many events may wait for the binder's sake. With more, news are not let wait for long: each event is answered."""
_LIVING = Selection(field_selector="status.phase!=Succeeded,status.phase!=Failed")


def known_plugins(folders: Iterable[Path] = (), *, trust_writable: bool = False) -> Registry:
    """Every plugin that can be named in a configuration: shipped, installed, and from folders."""
    registry = with_installed_plugins(default_plugins().with_plugins(*gpu_policies(), GpuSharing))
    for folder in folders:
        registry = with_plugins_from(registry, folder, trust_writable=trust_writable)
    return registry


def known_batch_plugins(folders: Iterable[Path] = (), *, trust_writable: bool = False) -> PluginSet:
    """Every plugin that a tier can name: shipped, installed, and from folders."""
    plugins = default_batch_plugins().with_plugins(*installed(Kind.BATCH_PLUGIN))
    for folder in folders:
        plugins = plugins.with_plugins(*found_in(folder, Kind.BATCH_PLUGIN, trust_writable=trust_writable))
    return plugins


def known_actions(folders: Iterable[Path] = (), *, trust_writable: bool = False) -> ActionSet:
    """Every action that a session can run: shipped, installed, and from folders. Made anew: an action remembers."""
    actions = default_actions().with_classes(*installed(Kind.ACTION))
    for folder in folders:
        actions = actions.with_classes(*found_in(folder, Kind.ACTION, trust_writable=trust_writable))
    return actions


def plugin_source(
    text: str | None, folders: Sequence[Path], *, trust_writable: bool = False, features: Features | None = None
) -> PluginSource:
    """The plugins of folders for the configuration of a text, to be loaded as often as their files change."""
    return PluginSource(
        lambda: looks(folders),
        lambda: known_plugins(folders, trust_writable=trust_writable),
        lambda registry: configured(text, registry, features),
    )


def configured(text: str | None, registry: Registry, features: Features | None = None) -> Configuration:
    """A configuration from the text of a file, or the default one; `features`: which gates are on."""
    kinds = registry.args_kinds
    gates = [name for name, _, on in (features or Features()).all() if on]
    return load(text, args_kinds=kinds, gates=gates) if text is not None else load_default(kinds, gates)


def batch_configured(text: str | None, actions: ActionSet | None = None) -> BatchConfiguration:
    """The batch engine's configuration from the text of a file, or the built-in one; `actions`: what it may name."""
    if text is None:
        return load_default_batch()
    return load_batch(text) if actions is None else load_batch(text, tuple(actions))


def build_engine(
    configuration: Configuration,
    registry: Registry,
    cache: Cache,
    *,
    clock: Clock | None = None,
    seed: int | None = None,
) -> PodEngine:
    """A pod engine on a cache. `seed` makes ties fall the same way every time."""
    return PodEngine(configuration, registry, cache, clock=clock or SystemClock(), chance=random.Random(seed))


@asynccontextmanager
async def scheduler_process(
    configuration: Configuration,
    registry: Registry,
    target: Target,
    *,
    clock: LoopClock | None = None,
    chance: random.Random | None = None,
    identity: str = "",
    plugins: PluginSource | None = None,
    options: ProcessOptions | None = None,
    set_verbosity: Callable[[int], None] | None = None,
    pace: Pace | None = None,
) -> AsyncIterator[SchedulerProcess]:
    """A pod engine on a cluster. Clients have limits of their own: decisions, events, the lease, and who may see what.

    `plugins`: where they come from, if they are to be loaded again when they change. `set_verbosity`: of the log.
    `pace`: of the loop that it runs on, where it has one of its own.
    """
    clock, chance = clock or SystemClock(), chance or random.Random()
    options = options or ProcessOptions()
    settings = options.settings
    connection, lease = configuration.client_connection, configuration.leader_election
    async with AsyncExitStack() as stack:
        monitor, page = await stack.enter_async_context(
            monitored(configuration, target, options, clock=clock, chance=chance, set_verbosity=set_verbosity)
        )
        watched = watched_kinds(options, configuration)
        wiring = await Wiring.to(
            target,
            stack,
            watched,
            clock=clock,
            chance=chance,
            observer=monitor.observer(target),
            qps=connection.qps,
            burst=connection.burst,
            needed=[kind for kind in watched if kind.struct is BindRequest],
        )
        live = wired_scheduler(configuration, registry, Cache(), wiring, monitor, options, clock=clock, chance=chance)
        if pace is not None:
            pace.leeway_s = partial(_leeway_s, live, wiring.sink)
        names = [profile.scheduler_name for profile in configuration.profiles]
        following = await RequestWatch.of(live.requests, wiring, names)
        hear = monitor.showcase.heard(live.hear)
        informers = _informers(
            wiring.client, wiring.offered, watched, hear, following.selections, only_latest=live.all_by_binder
        )
        election = await wiring.candidate(
            [(lease, configuration.profiles[0].scheduler_name)], identity, options.serving.secure_port
        )
        reloading = () if plugins is None else (Reloading(live, plugins, clock, settings.plugin_poll_seconds).run,)
        process = SchedulerProcess(
            live,
            informers,
            election,
            told=wiring.sink.drained,
            patience_s=settings.stop_seconds,
            when_synced=keep_frozen,
            before_deciding=(*wiring.before_deciding(live.bindings.at_once), *following.before_deciding(live.hear)),
            describe=lambda known: compare(live, known.objects("nodes"), known.objects("pods")).lines(),
            beside=(*reloading, *following.beside(clock)),
            page_url=page,
        )
        monitor.show(process, live, binder=BinderLook.of(wiring.client, settings, lease))
        yield process


def watched_kinds(options: ProcessOptions, configuration: Configuration) -> tuple[ObjectKind, ...]:
    """What the pod engine reads of a cluster, with the feature gates and the plugins that are on."""
    groups = (kind_of(PodGroup),) if options.serving.features.enabled(GROUPS) else ()
    return (*_WATCHED, *groups, *((kind_of(BindRequest),) if uses_bind_requests(configuration) else ()))


def uses_bind_requests(configuration: Configuration) -> bool:
    """Whether some profile has its pods bound by the binder."""
    return any(_by_binder(profile) for profile in configuration.profiles)


def sharing_schedulers(configuration: Configuration) -> list[str]:
    """The schedulers whose pods may share GPUs: those that give parts out, and have the binder see to it."""
    sharing = (each for each in configuration.profiles if GpuSharing.name in each.plugins.enabled_names())
    return [each.scheduler_name for each in sharing if _by_binder(each)]


def _by_binder(profile: Profile) -> bool:
    return BindRequestBinder.name in profile.plugins.enabled_names()


def wired_scheduler(
    configuration: Configuration,
    registry: Registry,
    cache: Cache,
    wiring: Wiring,
    monitor: Monitor,
    options: ProcessOptions,
    *,
    clock: LoopClock,
    chance: random.Random,
) -> LiveScheduler:
    """A live pod engine that writes through the clients of a process, and is counted by its monitor."""
    services, network = _services(configuration, clock, wiring.stack)
    client, offered = wiring.client, wiring.offered
    live = live_scheduler(
        configuration,
        registry,
        cache,
        client,
        _speakers(configuration, wiring.sink),
        clock=clock,
        chance=chance,
        claims=offered.get(kind_of(ResourceClaim)),
        pod_groups=offered.get(kind_of(PodGroup)),
        extenders=Extenders(services, may_write=client.may_write) if services else None,
        options=options,
        post=network.answered,
        recorder=monitor.metrics,
        observer=monitor.metrics,
        timings=monitor.timings,
    )
    live.engine.desk.reservations = options.settings.resource_reservation.namespace
    if uses_bind_requests(configuration):
        live.engine.desk.attempts = options.settings.bind_attempts
        live.engine.desk.mutation.add_to(monitor.registry)
        requests = follow_requests(
            live,
            clock,
            stale_s=options.settings.stale_request_seconds,
            request_timeout_s=options.settings.request_timeout_seconds,
        )
        show_stale(monitor.registry, lambda: len(requests.stale))
        if all(_by_binder(profile) for profile in configuration.profiles):
            live.all_by_binder = True
            live.bindings.narrow(_REQUESTS_AT_ONCE)
    live.writes.reached = wiring.reached
    wiring.sink.gives_way = partial(_binding_goes_first, live, wiring.sink)
    wiring.stack.callback(live.engine.close)
    return live


def _binding_goes_first(live: LiveScheduler, sink: EventSink) -> bool:
    """Whether few are to send events, for the sake of bindings that are on their way. The binder writes them too, and
    takes longer; where answers are let gather few senders send few events each time, so too many must not heap up."""
    if live.with_the_binder and sink.waiting <= _EVENTS_BESIDE_THE_BINDER:
        return True
    return live.is_writing and not live.leeway_s()


def _leeway_s(live: LiveScheduler, sink: EventSink) -> float:
    leeway_s = live.leeway_s()
    return leeway_s if sink.waiting <= _EVENTS_BESIDE_THE_BINDER else min(leeway_s, _LEEWAY_WITH_MORE_S)


def _services(
    configuration: Configuration, clock: LoopClock, stack: AsyncExitStack
) -> tuple[Mapping[Extender, Service], Service]:
    """What is asked outside the cluster: each extender, and whatever plugins post to."""
    agent = f"bayplan/{__version__}"
    services, network = services_for(configuration.extenders, clock, user_agent=agent), Service(clock, user_agent=agent)
    for service in (*services.values(), network):
        stack.push_async_callback(service.close)
    return services, network


def _informers(
    client: Client,
    offered: Offered,
    watched: Sequence[ObjectKind],
    hear: Heard,
    requests: Sequence[Selection],
    *,
    only_latest: bool = False,
) -> Informers:
    """One watch for each kind that matters here and that the API server has, and of BindRequests one for each of
    `requests`.

    `only_latest`: the binder changes each pod twice within milliseconds, and that it is bound is all there is to it."""
    selections: dict[type[KubeObject], Sequence[Selection]] = {Pod: (_LIVING,), BindRequest: requests}
    return Informers(
        client.informer(
            resource,
            hear,
            selection=selection,
            only_latest=only_latest and kind.struct is Pod,
        )
        for kind in watched
        if (resource := offered.get(kind)) is not None
        for selection in selections.get(kind.struct, (EVERYTHING,))
    )


def _speakers(configuration: Configuration, sink: EventSink) -> ProfileEvents:
    """Every profile speaks in its own name."""
    client = sink.client
    return ProfileEvents(
        {
            name: EventRecorder(name, host=platform.node(), clock=client.clock, chance=client.chance, post=sink.post)
            for name in (profile.scheduler_name for profile in configuration.profiles)
        }
    )


def build_batch_engine(
    configuration: BatchConfiguration | Path,
    cache: Cache,
    *,
    plugins: PluginSet | None = None,
    actions: ActionSet | None = None,
    framework_plugins: Registry | None = None,
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
        configuration if isinstance(configuration, BatchConfiguration) else load_default_batch(),
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


def read_objects(paths: Iterable[Path]) -> list[KubeObject]:
    """The objects of files and folders, completed as an API server completes what it stores.

    Documents whose kind a scheduler does not look at are passed over; an object that a server would refuse is an
    `ObjectError` that names its place.
    """
    loaded = load_manifests(paths)
    return list(admitted(loaded.objects, loaded.places))


def filled_cache(objects: Iterable[KubeObject]) -> Cache:
    """A cache that has seen the objects; pods without a node are left to whoever schedules them."""
    cache = Cache()
    for item in objects:
        if isinstance(item, Node):
            cache.add_node(item)
        elif isinstance(item, Pod):
            if item.spec.node_name and item.status.phase not in ("Succeeded", "Failed"):
                cache.add_pod(item)
        else:
            cache.put(item)
    return cache


@asynccontextmanager
async def fake_kubelet(
    target: Target,
    *,
    count: int,
    template: NodeTemplate,
    first: int = 0,
    habits: PodHabits | None = None,
    qps: float = 100.0,
    burst: int = 200,
    seed: int | None = None,
) -> AsyncIterator[FakeKubelet]:
    """A fake kubelet on an API server. Leases go their own way: their number is bounded by the time between two."""
    clock, chance = SystemClock(), random.Random(seed)
    async with (
        Client(target, clock=clock, chance=chance, user_agent="bayplan-kubelet", qps=qps, burst=burst) as client,
        Client(target, clock=clock, chance=chance, user_agent="bayplan-kubelet", qps=-1.0, connections=8) as leases,
    ):
        yield FakeKubelet(
            client, count=count, template=template, first=first, leases=leases, habits=habits or PodHabits()
        )
