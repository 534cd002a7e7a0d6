"""Composition of the pod engine: configuration, cluster and clock become a running scheduler."""

from __future__ import annotations

import platform
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from bayplan import __version__
from bayplan.api_writes.pod_status_messages import ProfileEvents
from bayplan.app.api_clients import Wiring
from bayplan.app.bind_request_watch import RequestWatch
from bayplan.app.page_source import Heard
from bayplan.app.process_lifecycle import SchedulerProcess
from bayplan.app.secure_serving import Monitor, monitored
from bayplan.app.wakeup_batching import Pace
from bayplan.cache import Cache
from bayplan.client import (
    EVERYTHING,
    Client,
    EventSink,
    Informers,
    Offered,
    Selection,
    Service,
    Target,
)
from bayplan.clock import Clock, LoopClock, SystemClock
from bayplan.config.feature_gates import GROUPS
from bayplan.config.model import Configuration, Extender, Profile
from bayplan.config.serving_flags import ProcessOptions
from bayplan.explain.engine_dispatch import BinderLook
from bayplan.framework.runtime.registry import Registry
from bayplan.memory import keep_frozen
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import KINDS, kind_of
from bayplan.objects.kinds import Kind as ObjectKind
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.workloads import PodGroup
from bayplan.plugins.bind_request_binder import BindRequestBinder
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

_NOT_WATCHED = {"PodGroup", "ResourceQuota", "PriorityClass", "BindRequest"}

_WATCHED = tuple(kind for kind in KINDS if not kind.group.endswith("volcano.sh") and kind.name not in _NOT_WATCHED)
"""What the pod engine reads of a cluster."""

_REQUESTS_AT_ONCE = 16
"""Further ones would need connections of their own, and no pod is bound sooner for them: the binder is slower."""

_EVENTS_BESIDE_THE_BINDER, _LEEWAY_WITH_MORE_S = 1500, 0.05
"""So many events may wait for the binder's sake. With more, news are not let wait for long: each event is answered."""

_LIVING = Selection(field_selector="status.phase!=Succeeded,status.phase!=Failed")


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
