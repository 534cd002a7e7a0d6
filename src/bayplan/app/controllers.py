"""Composition of the controllers on an API server: a client with a rate limit, and a lease for several replicas."""

from __future__ import annotations

import asyncio
import platform
import random
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from bayplan import __version__
from bayplan.app.insecure_serving import health_server, insecure_server
from bayplan.client import Client, ConnectionConfig, ElectionTimings, LeaderElector
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
    def __init__(self, controllers: ControllerManager, election: LeaderElector | None) -> None:
        self.controllers = controllers
        self.election = election

    async def run(self) -> None:
        """Acquire the lease and work until cancelled. Raises `LeaseLost` when the lease is lost."""
        if self.election is None:
            await self.controllers.run()
            return
        await self.election.acquire()
        renewal = asyncio.ensure_future(self.election.renew_until_lost())
        work = asyncio.ensure_future(self.controllers.run())
        try:
            await asyncio.wait((renewal, work), return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            renewal.cancel()
            results = await asyncio.gather(renewal, return_exceptions=True)
            self.election.report_unsent()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def wait_synced(self) -> None:
        """Return when all informers have synced."""
        await self.controllers.wait_synced()


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
    """Controllers on an API server. `only`: their names. `schedulers`: schedulers whose pods get PodGroups; the first
    is the default of jobs. `inherits`: PodGroups inherit annotations of the pods' owners. `leader_elect`: work only
    while renewal a lease. `listen_address`: serves health and metrics; `health_address`: serves health only."""
    clock, chance = clock or SystemClock(), chance or random.Random()
    agent = f"bayplan/{__version__}/controllers"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(target, clock=clock, chance=chance, user_agent=agent, qps=qps, burst=burst)
        )
        election: LeaderElector | None = None
        if leader_elect:
            request_timeout_s = ElectionTimings().renew_s / 2  # a lost request must leave time for a retry
            lease_client = await stack.enter_async_context(
                Client(target, clock=clock, chance=chance, user_agent=agent, timeout_s=request_timeout_s)
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
    """Serve health and metrics over plain HTTP, as vc-controller-manager does."""
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
    """A fake kubelet on an API server. Leases use a client without rate limit: the renewal interval bounds their
    number."""
    clock, chance = SystemClock(), random.Random(seed)
    async with (
        Client(target, clock=clock, chance=chance, user_agent="bayplan-kubelet", qps=qps, burst=burst) as client,
        Client(target, clock=clock, chance=chance, user_agent="bayplan-kubelet", qps=-1.0, connections=8) as leases,
    ):
        yield FakeKubelet(
            client, count=count, template=template, first=first, leases=leases, habits=habits or PodBehavior()
        )
