"""Composition of the binder: as a process, or as a part of a process that schedules as well."""

from __future__ import annotations

import asyncio
import logging
import platform
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayplan import __version__
from bayplan.api_writes.pod_status_messages import ProfileEvents
from bayplan.api_writes.writes import ApiWrites
from bayplan.app.api_clients import ApiClients
from bayplan.app.insecure_serving import insecure_server
from bayplan.app.process_lifecycle import EngineProcess, LeaderLease
from bayplan.binder.binder import PLUGIN_TIMEOUT_S, Binder
from bayplan.binder.cancellable_waits import CancellableWaits, CancellableWrites
from bayplan.binder.controller import WORKERS, BinderController
from bayplan.binder.gpu.reservations import GpuReservations
from bayplan.binder.informer_cache import InformerCache
from bayplan.binder.plugin import BinderHandle
from bayplan.binder.plugin_registry import BinderPlugins, PluginChange, read_choices
from bayplan.binder.plugins import default_binder_plugins
from bayplan.binder.plugins.gpu_sharing import GpuSharingBinderPlugin
from bayplan.binder.reconcile import BindRequestReconciler
from bayplan.binder.status_updater import StatusUpdater
from bayplan.client import EVERYTHING, REQUEST_TIMEOUT_S, Client, ConnectionConfig, Informer, InformerSet, Selection
from bayplan.clock import LoopClock, SystemClock
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.feature_gates import RELEASE
from bayplan.config.model import LeaderElection
from bayplan.config.reservation_settings import ReservationSettings
from bayplan.framework.runtime.plugin_call import plugin_call_of_frame
from bayplan.framework.runtime.plugin_discovery import PluginKind, installed_plugins, plugins_in_folder
from bayplan.objects import core, resource, storage
from bayplan.objects.kai.bind_request import BINDER_LEASE_NAME, HANDLED_BY_BAYPLAN, HANDLED_BY_LABEL, BindRequest
from bayplan.objects.kai.gpu_sharing import GROUP_LABEL
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.scheduler.plugin_handle import NoWrites
from bayplan.server import ServerViews, build_routes, election_check, handlers_check
from bayplan.telemetry.binder_metrics import BinderMetrics
from bayplan.telemetry.events import EventRecorder
from bayplan.telemetry.metrics import MetricsRegistry
from bayplan.telemetry.process_metrics import LeaderMetrics, ProcessMetrics, RequestMetrics, add_build_info
from bayplan.telemetry.watchdog import watched_loop

log = logging.getLogger(__name__)

BINDER_NAME = BINDER_LEASE_NAME
LEASE_NAMESPACE = "kube-system"
STOP_S = 20.0

_REQUESTS = kind_of(BindRequest)
_STRUCTS: tuple[type[KubeObject], ...] = (
    core.Pod,
    core.Node,
    storage.PersistentVolume,
    storage.PersistentVolumeClaim,
    storage.StorageClass,
    storage.CsiNode,
    storage.CsiDriver,
    storage.CsiStorageCapacity,
    resource.ResourceClaim,
)
_KINDS = (_REQUESTS, *(kind_of(struct) for struct in _STRUCTS))
_UNASSIGNED_PODS = Selection(field_selector="spec.nodeName=")
_OWN_BIND_REQUESTS = Selection(label_selector=f"{HANDLED_BY_LABEL}={HANDLED_BY_BAYPLAN}")


def known_binder_plugins(folders: Iterable[Path] = (), *, trust_writable: bool = False) -> BinderPlugins:
    """Every plugin that the binder can run: shipped, installed, and from folders."""
    plugins = default_binder_plugins().with_plugins(*installed_plugins(PluginKind.BINDER_PLUGIN))
    for folder in folders:
        plugins = plugins.with_plugins(
            *plugins_in_folder(folder, PluginKind.BINDER_PLUGIN, trust_writable=trust_writable)
        )
    return plugins


def binder_lease(*, leader_elect: bool, namespace: str = LEASE_NAMESPACE) -> LeaderElection:
    return LeaderElection(leader_elect=leader_elect, resource_name=BINDER_NAME, resource_namespace=namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderSettings:
    plugins: BinderPlugins = field(default_factory=default_binder_plugins)
    plugin_changes: Mapping[str, PluginChange] = field(default_factory=dict)
    workers: int = WORKERS
    plugin_limit_s: float = PLUGIN_TIMEOUT_S
    """Timeout of one plugin call."""
    request_timeout_s: float = REQUEST_TIMEOUT_S
    """Timeout of requests to the API server."""
    stop_s: float = STOP_S
    """Timeout for writes in flight when the binder stops."""
    handles_all_requests: bool = False
    """Handle requests of other schedulers too, not only those with Bayplan's label."""
    lease: LeaderElection = field(default_factory=lambda: binder_lease(leader_elect=True))
    reservations: ReservationSettings = field(default_factory=ReservationSettings)
    qps: float = 2000.0
    burst: int = 4000

    @classmethod
    def from_settings(cls, own: BayplanSettings, place: str, plugins: BinderPlugins, **more: Any) -> BinderSettings:
        """The binder's settings in the file of `--settings`, whose path is `place`."""
        return cls.from_tree(
            own.binder_plugins,
            f"{place}: binderPlugins",
            plugins,
            workers=own.binder_workers,
            plugin_limit_s=own.binder_plugin_seconds,
            request_timeout_s=own.request_timeout_seconds,
            stop_s=own.stop_seconds,
            reservations=own.resource_reservation,
            **more,
        )

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], place: str, plugins: BinderPlugins, **more: Any) -> BinderSettings:
        """`tree`: binderPlugins of a settings file."""
        choices = read_choices(tree, place)
        _validate_plugin_arguments(plugins, choices)  # report errors before connecting to the API server
        return cls(plugins=plugins, plugin_changes=choices, **more)


def _validate_plugin_arguments(plugins: BinderPlugins, choices: Mapping[str, PluginChange]) -> None:
    """Build the plugins as a start does, and drop them: only plugins can validate their arguments. The handle has a
    real client, of a server that does not exist: a factory cannot await responses. It may start tasks on the loop."""
    clock = SystemClock()
    unused_client = Client(ConnectionConfig(server="http://unused.invalid"), clock=clock, chance=random.Random())
    handle = BinderHandle(unused_client, NoWrites(), clock, InformerCache(unused_client))

    async def build() -> None:
        plugins.build(handle, choices)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(build())
    else:
        plugins.build(handle, choices)


class _BinderLoop:
    """The binder as an `EngineLoop`. The informers call its handlers directly, so no events are pending."""

    def __init__(self, binder: BinderController) -> None:
        self.binder = binder
        self.ready = asyncio.Event()

    async def handle_pending_events(self) -> None: ...

    async def handle_events(self) -> None:
        await asyncio.Event().wait()

    async def run(self) -> None:
        self.ready.set()
        await self.binder.run()

    def stop_scheduling(self) -> None:
        """`drain` starts no new binding."""

    async def drain(self) -> None:
        await self.binder.drain()

    @property
    def has_open_writes(self) -> bool:
        return self.binder.has_open_writes

    async def abandon(self) -> None: ...


class BinderProcess(EngineProcess):
    """A binder with its lease. When cancelled, it finishes its writes. It releases the lease only if no write is
    open."""

    def __init__(
        self, binder: BinderController, informers: InformerSet, election: LeaderLease | None, *, stop_s: float = STOP_S
    ) -> None:
        loop = _BinderLoop(binder)
        super().__init__(loop, informers, election, drain_timeout_s=stop_s)
        self.binder = binder
        self.ready = loop.ready
        """Set when the binder works: the informers have synced, and it leads."""
        self._work: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Acquire the lease and work until cancelled or drained. Raises `LeaseLost` when the lease is lost."""
        self._work = asyncio.ensure_future(self.run_until_stopped())
        try:
            await asyncio.shield(self._work)
        except asyncio.CancelledError:
            await self.drain()
            raise
        finally:
            self._work.cancel()

    async def drain(self) -> None:
        """Start no new binding and finish the writes in flight, while the lease is held."""
        self.stop()
        if self._work is not None:
            await asyncio.wait([self._work])


class BinderMonitor:
    def __init__(
        self, clock: LoopClock, registry: MetricsRegistry | None = None, *, leader: LeaderMetrics | None = None
    ) -> None:
        """`leader`: the gauge of the process, if it also has engines. They then count requests and memory."""
        alone = leader is None
        self.registry = registry or MetricsRegistry()
        self.metrics = BinderMetrics(self.registry)
        self._leader = LeaderMetrics(self.registry) if leader is None else leader
        self.registry.collect(self._gather)
        self._process: BinderProcess | None = None
        self._requests = RequestMetrics(self.registry) if alone else None
        self.started_at = clock.now().timestamp()
        if alone:
            self.started_at = ProcessMetrics(self.registry, started_at=self.started_at).started_at
            add_build_info(self.registry, version=__version__, emulated=RELEASE)

    def observer(self, target: ConnectionConfig) -> Any:
        return self._requests.observer(target.url.netloc) if self._requests is not None else None

    def attach(self, process: BinderProcess) -> None:
        self._process = process
        self.metrics.set_phases(process.binder.phases)

    def views(self) -> ServerViews:
        return ServerViews(
            metrics=self.registry,
            healthz=[election_check(BINDER_NAME, self._overdue_s)],
            readyz=[handlers_check(lambda: self._process is not None and self._process.informers.synced)],
            started_at=self.started_at,
        )

    def _gather(self) -> None:
        election = self._process.election if self._process is not None else None
        if election is not None:
            self._leader.set_leading(BINDER_NAME, leads=election.leading)

    def _overdue_s(self) -> float:
        election = self._process.election if self._process is not None else None
        return election.overdue_s() if election is not None else 0.0


@asynccontextmanager
async def serve_binder_health(monitor: BinderMonitor, address: str, clock: LoopClock) -> AsyncIterator[None]:
    """Serve health and metrics on an address; no server if it is empty."""
    if not address:
        yield
        return
    async with insecure_server(address, dict(build_routes(monitor.views(), clock)), clock):
        yield


@asynccontextmanager
async def binder_process(
    settings: BinderSettings,
    target: ConnectionConfig,
    *,
    monitor: BinderMonitor | None = None,
    identity: str = "",
    watchdog_s: float = 0.0,
    clock: LoopClock | None = None,
    chance: random.Random | None = None,
) -> AsyncIterator[BinderProcess]:
    """A binder on a cluster, with clients of its own."""
    clock, chance = clock or SystemClock(), chance or random.Random()
    monitor = monitor or BinderMonitor(clock)
    async with AsyncExitStack() as stack:
        if watchdog_s:
            await stack.enter_async_context(watched_loop(watchdog_s, plugin_call_of_frame))
        clients = await ApiClients.connect(
            target,
            stack,
            _KINDS,
            clock=clock,
            chance=chance,
            observer=monitor.observer(target),
            qps=settings.qps,
            burst=settings.burst,
            needed=(_REQUESTS,),
        )
        binder = _wire_binder(settings, clients, monitor, clock, chance)
        watches = {
            kind: clients.client.informer(
                served,
                binder.handle_event,
                selection=_selection(kind.struct, settings),
                on_undecodable=binder.report_unreadable if kind is _REQUESTS else None,
            )
            for kind in _KINDS
            if (served := clients.served_resources.get(kind)) is not None
        }
        binder.unreadable = watches[_REQUESTS].undecodable
        informers = InformerSet((*watches.values(), *_gpu_sharing_pod_informers(settings, clients, binder)))
        election = await clients.build_election([(settings.lease, BINDER_NAME)], identity)
        process = BinderProcess(binder, informers, election, stop_s=settings.stop_s)
        monitor.attach(process)
        yield process


def _gpu_sharing_pod_informers(
    settings: BinderSettings, clients: ApiClients, binder: BinderController
) -> Iterator[Informer]:
    """The watch on pods that share devices, if that plugin is enabled; it has no events without such pods."""
    pods = clients.served_resources.get(kind_of(core.Pod))
    if pods is not None and any(
        name == GpuSharingBinderPlugin.name for name, _ in settings.plugins.choices(settings.plugin_changes)
    ):
        yield clients.client.informer(
            pods, binder.handle_gpu_pod_event, selection=Selection(label_selector=GROUP_LABEL)
        )


def _selection(struct: type[KubeObject], settings: BinderSettings) -> Selection:
    if struct is BindRequest:
        return EVERYTHING if settings.handles_all_requests else _OWN_BIND_REQUESTS
    return _UNASSIGNED_PODS if struct is core.Pod else EVERYTHING


def _wire_binder(
    settings: BinderSettings, clients: ApiClients, monitor: BinderMonitor, clock: LoopClock, chance: random.Random
) -> BinderController:
    client = clients.client
    claims = clients.served_resources.get(kind_of(resource.ResourceClaim))
    view = InformerCache(client)
    waits = CancellableWaits(view.is_current)
    recorder = EventRecorder(
        BINDER_NAME, host=platform.node(), clock=clock, chance=chance, post=clients.event_sink.post_core
    )
    writes = ApiWrites(
        client,
        ProfileEvents({BINDER_NAME: recorder}),
        clock=clock,
        claims=claims,
        exists=view.has_pending_pod,
        request_timeout_s=settings.request_timeout_s,
    )
    handle = BinderHandle(client, CancellableWrites(writes, waits), clock, view, claims, clients.crash_points, waits)
    reservations = GpuReservations(
        client,
        view,
        settings.reservations,
        writes.confirmed,
        takes_all=settings.handles_all_requests,
        waiting=waits,
        on_crash_point=clients.crash_points,
        recorder=recorder,
    )
    pod_binder = Binder(
        handle,
        settings.plugins.build(handle, settings.plugin_changes),
        reservations,
        observer=monitor.metrics,
        waits=waits,
        is_wanted=view.is_still_current,
        limit_s=settings.plugin_limit_s,
        on_crash_point=clients.crash_points,
    )
    requests = clients.served_resources.get(_REQUESTS)
    assert requests is not None
    reports = StatusUpdater(
        client, requests, view, recorder, writes.confirmed, clock=clock, chance=chance, observer=monitor.metrics
    )
    waits.on_long_wait = reports.record_waiting
    reconciler = BindRequestReconciler(view, pod_binder, reports, clock)
    workers = settings.workers
    return BinderController(
        view, reconciler, reservations, waits=waits, clock=clock, chance=chance, workers=workers, writes=writes
    )
