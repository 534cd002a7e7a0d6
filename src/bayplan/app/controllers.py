"""How do controllers run on an API server? One client with a limit of its own, and a lease if there may be others."""

from __future__ import annotations

import asyncio
import platform
import random
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from bayplan import __version__
from bayplan.app.health_server import health_server, insecure_server
from bayplan.client import (
    Client,
    ConnectionConfig,
    ElectionTimings,
    LeaderElector,
)
from bayplan.clock import LoopClock, SystemClock
from bayplan.config.feature_gates import RELEASE
from bayplan.controllers import ControllerManager, FakeKubelet, NodeTemplate, PodBehavior
from bayplan.objects.volcano.constants import SCHEDULER
from bayplan.server import Check, ServerViews, build_routes, election_check
from bayplan.telemetry.metrics import MetricsRegistry
from bayplan.telemetry.process_metrics import ProcessMetrics, add_build_info

LEASE_NAME = "kube-controller-manager"
LEASE_NAMESPACE = "kube-system"


class ControllersProcess:
    """The controllers, and whether they may work."""

    def __init__(self, controllers: ControllerManager, election: LeaderElector | None) -> None:
        self.controllers = controllers
        self.election = election

    async def run(self) -> None:
        """Work until cancelled, from when the lease is held; `LeaseLost` when it is held no longer."""
        if self.election is None:
            await self.controllers.run()
            return
        await self.election.acquire()
        holding = asyncio.ensure_future(self.election.renew_until_lost())
        working = asyncio.ensure_future(self.controllers.run())
        try:
            await asyncio.wait((holding, working), return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            holding.cancel()
            answers = await asyncio.gather(holding, return_exceptions=True)
            self.election.report_unsent()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    async def synced(self) -> None:
        """Return when everything that existed has been heard of."""
        await self.controllers.synced()


@asynccontextmanager
async def controllers_process(
    target: ConnectionConfig,
    *,
    only: Collection[str] | None = None,
    schedulers: tuple[str, ...] = (SCHEDULER,),
    inherits: bool = True,
    qps: float = 200.0,
    burst: int = 400,
    leader_elect: bool = False,
    lease_name: str = LEASE_NAME,
    lease_namespace: str = LEASE_NAMESPACE,
    listen_address: str = "",
    health_address: str = "",
    clock: LoopClock | None = None,
    chance: random.Random | None = None,
) -> AsyncIterator[ControllersProcess]:
    """Controllers on an API server. `only`: their names. `schedulers`: of sessions: whose pods get groups, the first of
    them that of jobs that name none. `inherits`: their groups get annotations of who owns the pods. `leader_elect`:
    work only while holding a lease. `listen_address`: where health and metrics are served, if they are;
    `health_address`: where health alone is."""
    clock, chance = clock or SystemClock(), chance or random.Random()
    agent = f"bayplan/{__version__}/controllers"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(target, clock=clock, chance=chance, user_agent=agent, qps=qps, burst=burst)
        )
        election: LeaderElector | None = None
        if leader_elect:
            patience_s = ElectionTimings().renew_s / 2  # a request that gets no answer must leave time for another one
            lease_client = await stack.enter_async_context(
                Client(target, clock=clock, chance=chance, user_agent=agent, timeout_s=patience_s)
            )
            identity = f"{platform.node()}_{uuid.UUID(int=chance.getrandbits(128), version=4)}"
            election = LeaderElector(lease_client, identity=identity, name=lease_name, namespace=lease_namespace)
            client.set_guard(election)
        registry = MetricsRegistry() if listen_address else None
        controllers = ControllerManager(
            client, only=only, schedulers=schedulers, inherits=inherits, counted_in=registry
        )
        process = ControllersProcess(controllers, election)
        if registry is not None:
            await stack.enter_async_context(_serve_health(process, registry, listen_address, clock))
        if health_address != listen_address:
            await stack.enter_async_context(health_server(health_address, _checks(process), clock))
        yield process


@asynccontextmanager
async def _serve_health(
    process: ControllersProcess, registry: MetricsRegistry, address: str, clock: LoopClock
) -> AsyncIterator[None]:
    """Over plain HTTP, as vc-controller-manager does: whether the controllers live, and what they count."""
    metrics = ProcessMetrics(registry, started_at=clock.now().timestamp())
    add_build_info(registry, version=__version__, emulated=RELEASE)
    views = ServerViews(metrics=registry, healthz=_checks(process), started_at=metrics.started_at)
    async with insecure_server(address, build_routes(views, clock), clock):
        yield


def _checks(process: ControllersProcess) -> list[Check]:
    election = process.election
    return [election_check("controllers", election.overdue_s)] if election is not None else []


@asynccontextmanager
async def fake_kubelet(
    target: ConnectionConfig,
    *,
    count: int,
    template: NodeTemplate,
    first: int = 0,
    habits: PodBehavior | None = None,
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
            client, count=count, template=template, first=first, leases=leases, habits=habits or PodBehavior()
        )
