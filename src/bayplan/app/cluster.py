"""Composition of API server, controllers, nodes and scheduler to one cluster in one process.

The composition root of `bayplan cluster up`, of the demo and of `bayplan.Cluster`. Components inside talk to the API
server as any client does, but without sockets; other clients use HTTPS. As in a real cluster, components affect each
other only through API objects.
Cost: under a second to start with some nodes, and about a millisecond for each node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from dataclasses import replace as replace_value
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from bayplan import __version__
from bayplan.admission.webhooks import GPU_WEBHOOKS
from bayplan.apiserver.auth.credentials import ClusterCredentials
from bayplan.apiserver.embedded import EmbeddedCluster
from bayplan.apiserver.http.in_process import InProcessServer
from bayplan.apiserver.requests import RequestUser
from bayplan.apiserver.storage.sqlite_backend import DataSync
from bayplan.app import freeze_memory
from bayplan.app.batch import BatchSettings
from bayplan.app.binder import BinderProcess, BinderSettings, binder_lease, binder_process, known_binder_plugins
from bayplan.app.combined import combined_process
from bayplan.app.configuration import configured, plugin_source
from bayplan.app.process_lifecycle import SchedulerProcess
from bayplan.app.scheduler import gpu_sharing_schedulers, scheduler_process, uses_bind_requests
from bayplan.app.webhook_manager import register_webhooks, webhook_manifests
from bayplan.client import Client, ConnectionConfig, Secret
from bayplan.clock import LoopClock, SystemClock
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.model import Configuration
from bayplan.config.serving_flags import ProcessOptions, ServingFlags
from bayplan.controllers import CLEANUP_CONTROLLERS, ControllerManager, FakeKubelet, PodBehavior, make_default_class
from bayplan.controllers.core.api_types import NAMESPACES, SERVICE_ACCOUNTS
from bayplan.controllers.volcano.crds import create_crds, missing_crds
from bayplan.errors import AlreadyExists
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.kai.bind_request_definition import bind_request_definition
from bayplan.objects.volcano.constants import SCHEDULER
from bayplan.scheduler.live.plugin_reloader import PluginSource

log = logging.getLogger(__name__)

_UNLIMITED_QPS = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSetup:
    configuration: Configuration
    registry: Registry
    plugins: PluginSource | None = None
    """The source of plugins, if they are reloaded when their files change."""
    batch: BatchSettings | None = None
    """Settings of the batch engine in the same process, for gangs and queues; None: there is no batch engine."""
    bayplan_settings: BayplanSettings = field(default_factory=BayplanSettings)
    """The content of the file of `--settings`."""
    binder: BinderSettings | None = None
    """Settings of the binder; None: there are no BindRequests, because engines bind their pods themselves."""

    @classmethod
    def from_text(
        cls,
        config: str | None = None,
        folders: Sequence[Path] = (),
        *,
        plugins: Sequence[type] = (),
        trust_writable: bool = False,
        batch: BatchSettings | None = None,
        own: BayplanSettings | None = None,
        place: str = "--settings",
    ) -> SchedulerSetup:
        """From the text of a KubeSchedulerConfiguration, plugin folders and plugin classes. `place`: the name of the
        settings in error messages."""
        own = own or BayplanSettings()
        source = plugin_source(config, folders, trust_writable=trust_writable)
        registry = source.registry().with_plugins(*plugins)
        configuration = configured(config, registry)
        needs_binder = uses_bind_requests(configuration) or (batch is not None and batch.bayplan_settings.bind_requests)
        return cls(
            configuration=configuration,
            registry=registry,
            plugins=source if folders and not plugins else None,
            batch=batch,
            bayplan_settings=own,
            binder=_binder_settings(own, place, folders, trust_writable=trust_writable) if needs_binder else None,
        )

    def without_leader_election(self) -> Configuration:
        """The configuration for a cluster with one scheduler: no leader election and no rate limit."""
        configuration = self.configuration
        return replace(
            configuration,
            leader_election=replace(configuration.leader_election, leader_elect=False),
            client_connection=replace(configuration.client_connection, kubeconfig="", qps=_UNLIMITED_QPS),
        )

    def batch_without_leader_election(self) -> BatchSettings | None:
        batch = self.batch
        return None if batch is None else replace_value(batch, lease=replace(batch.lease, leader_elect=False))


def _binder_settings(
    own: BayplanSettings, place: str, folders: Sequence[Path], *, trust_writable: bool
) -> BinderSettings:
    """Settings of a binder without leader election and without rate limit."""
    return BinderSettings.from_settings(
        own,
        place,
        known_binder_plugins(folders, trust_writable=trust_writable),
        lease=binder_lease(leader_elect=False),
        qps=_UNLIMITED_QPS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The components of a cluster."""

    credentials: ClusterCredentials
    host: str = "127.0.0.1"
    port: int = 0
    data: Path | None = None
    """The file that stores the objects; None: memory."""
    data_sync: DataSync = "full"
    """Durability of a committed write: see `EmbeddedCluster`."""
    users: Mapping[str, RequestUser] = field(default_factory=dict)
    client_authority: Path | None = None
    nodes: Sequence[dict[str, Any]] = ()
    """Node manifests, as `nodes_of` builds them from pools."""
    pod_lifecycle: PodBehavior = field(default_factory=PodBehavior)
    scheduler: SchedulerSetup | None = None
    """None: the cluster has no scheduler."""
    controllers: bool = True
    """Whether all controllers run; False: only those of `CLEANUP_CONTROLLERS`."""
    page_address: str = ""
    """The loopback address of the page, which the scheduler serves; empty: no page."""
    owns_process: bool = False
    """Whether the process belongs to the cluster alone. Long-lived objects are then excluded from garbage
    collection."""


class InProcessCluster:
    """A cluster in this process: an API server, the cleanup controllers, and the components of the plan."""

    def __init__(
        self, plan: ClusterOptions, *, clock: LoopClock | None = None, chance: random.Random | None = None
    ) -> None:
        self.plan = plan
        self._clock = clock or SystemClock()
        self._chance = chance or random.Random()
        self._stack = AsyncExitStack()
        self._running: list[asyncio.Task[Any]] = []
        self._failed: asyncio.Future[None] | None = None
        self._server: EmbeddedCluster | None = None
        self._connection: ConnectionConfig | None = None
        self.kubelet: FakeKubelet | None = None
        self.controllers: ControllerManager | None = None
        self.scheduler: SchedulerProcess | None = None
        self.binder: BinderProcess | None = None

    async def __aenter__(self) -> InProcessCluster:
        try:
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._end()

    @property
    def url(self) -> str:
        return self._require_server.url

    @property
    def port(self) -> int:
        return self._require_server.port

    @property
    def page_url(self) -> str:
        """The URL of the page on this machine; empty without one."""
        return self.scheduler.page_url if self.scheduler is not None else ""

    @property
    def target(self) -> ConnectionConfig:
        """The connection over HTTPS as administrator, for other processes."""
        credentials = self.plan.credentials
        return ConnectionConfig(server=self.url, ca_file=str(credentials.authority), token=Secret(credentials.token))

    @property
    def in_process_target(self) -> ConnectionConfig:
        """The connection within this process, as administrator."""
        assert self._connection is not None, "the cluster is not started"
        return self._connection

    def client(self, user_agent: str = f"bayplan/{__version__}", **options: Any) -> Client:
        """A client in this process, without rate limits. The caller closes it."""
        options = {"qps": _UNLIMITED_QPS, **options}
        return Client(self.in_process_target, clock=self._clock, chance=self._chance, user_agent=user_agent, **options)

    def write_kubeconfig(self, path: Path, name: str) -> None:
        self._require_server.write_kubeconfig(path, name)

    async def ready(self) -> None:
        """Return when every node is Ready, and controllers and scheduler have synced."""
        waiting: list[Coroutine[Any, Any, None]] = []
        if self.kubelet is not None:
            waiting.append(self.kubelet.ready())
        if self.controllers is not None:
            waiting.append(self.controllers.wait_synced())
        if self.scheduler is not None:
            waiting.append(self.scheduler.informers.wait_synced())
        if self.binder is not None:
            waiting.append(self.binder.informers.wait_synced())
        await self.wait_unless_failed(asyncio.gather(*waiting))

    async def wait_unless_failed(self, work: asyncio.Future[Any]) -> None:
        """Await `work`. If a component of the cluster fails first, raise its exception."""
        assert self._failed is not None
        try:
            await asyncio.wait((work, self._failed), return_when=asyncio.FIRST_COMPLETED)
            for each in (self._failed, work):
                if each.done():
                    each.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work])

    # Start and stop.

    @property
    def _require_server(self) -> EmbeddedCluster:
        assert self._server is not None, "the cluster is not started"
        return self._server

    async def _start(self) -> None:
        plan = self.plan
        self._failed = asyncio.get_running_loop().create_future()
        self._server = await self._stack.enter_async_context(
            EmbeddedCluster(
                plan.credentials,
                host=plan.host,
                port=plan.port,
                data=plan.data,
                data_sync=plan.data_sync,
                users=plan.users,
                client_authority=plan.client_authority,
                clock=self._clock,
            )
        )
        server = self._server
        in_process_server = InProcessServer(server.handler_chain(), lambda: server.store.version)
        self._stack.callback(in_process_server.close)
        self._connection = ConnectionConfig(
            server="http://inside",
            ca_file=str(plan.credentials.authority),
            token=Secret(plan.credentials.token),
            in_process=in_process_server,
        )
        if plan.scheduler is not None:
            await self._create_definitions(plan.scheduler)
            await self._prepare_gpu_sharing(plan.scheduler)
            self.scheduler = await self._scheduler(plan.scheduler, self._connection)
            self._run("scheduler", self.scheduler.run())
        if plan.scheduler is not None and plan.scheduler.binder is not None:
            binder = binder_process(plan.scheduler.binder, self._connection, clock=self._clock, chance=self._chance)
            self.binder = await self._stack.enter_async_context(binder)
            self._run("binder", self.binder.run())
        client = await self._stack.enter_async_context(self.client("bayplan-controllers"))
        batch = plan.scheduler.batch if plan.scheduler is not None else None
        schedulers = batch.options.scheduler_name if batch is not None else (SCHEDULER,)
        only = None if plan.controllers else CLEANUP_CONTROLLERS
        self.controllers = ControllerManager(client, only=only, schedulers=schedulers)
        self._run("controllers", self.controllers.run())
        if plan.controllers:
            await make_default_class(client)
        if plan.nodes:
            client = await self._stack.enter_async_context(self.client("bayplan-kubelet"))
            self.kubelet = FakeKubelet(client, nodes=plan.nodes, habits=plan.pod_lifecycle)
            self._run("nodes", self.kubelet.run())

    async def _create_definitions(self, setup: SchedulerSetup) -> None:
        """Create the CRDs that the scheduler waits for: no other client can, before there is a kubeconfig."""
        async with self.client() as client:
            missing = await missing_crds(client) if setup.batch is not None else []
            await create_crds(client, missing)
            if setup.binder is not None:
                await create_crds(client, [bind_request_definition()])

    async def _prepare_gpu_sharing(self, setup: SchedulerSetup) -> None:
        """Create what GPU sharing needs: webhooks, and the namespace and service account of reservation pods."""
        schedulers = gpu_sharing_schedulers(setup.configuration)
        if setup.binder is None or not schedulers:
            return
        namespace, account = setup.binder.reservations.namespace, setup.binder.reservations.service_account_name
        async with self.client() as client:
            with contextlib.suppress(AlreadyExists):  # from an earlier run with a data file
                await client.create(NAMESPACES, {"metadata": {"name": namespace}})
            with contextlib.suppress(AlreadyExists):
                await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": account}}, namespace=namespace)
            # The embedded API server calls these webhooks in process: no address has to be served.
            await register_webhooks(
                client, webhook_manifests(GPU_WEBHOOKS, service="bayplan", namespace=namespace, sharing=schedulers)
            )

    async def _scheduler(self, setup: SchedulerSetup, target: ConnectionConfig) -> SchedulerProcess:
        # No metrics port: nothing scrapes it. No watchdog: code that blocks a notebook or a test must not end it.
        own = replace(setup.bayplan_settings, watchdog_seconds=0, page_address=self.plan.page_address)
        options = ProcessOptions(settings=own, serving=ServingFlags(secure_port=0))
        parts: dict[str, Any] = {"clock": self._clock, "chance": self._chance, "options": options}
        parts["plugins"], batch = setup.plugins, setup.batch_without_leader_election()
        process = await self._stack.enter_async_context(
            scheduler_process(setup.without_leader_election(), setup.registry, target, **parts)
            if batch is None
            else combined_process(setup.without_leader_election(), setup.registry, batch, target, **parts)
        )
        process.on_synced = freeze_memory if self.plan.owns_process else lambda: None
        return process

    def _run(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._on_task_done)
        self._running.append(task)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        """Record that a component ended. Without a cancellation this is a failure of the cluster."""
        if task.cancelled():
            return
        fault = task.exception() or RuntimeError(f"the {task.get_name()} of the cluster ended unexpectedly")
        log.error("the %s of the cluster failed: %s", task.get_name(), fault, exc_info=task.exception())
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(fault)

    async def _end(self) -> None:
        for task in reversed(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        await self._stack.aclose()
        if self._failed is not None and self._failed.done():
            self._failed.exception()  # already raised to the waiting caller
