"""A whole cluster in one process on virtual time, with a record of every request that reaches its API server.

    async with virtual_cluster(tmp_path) as world:
        await world.create(PODS, {...})
        await world.sleep(600)
        assert world.writes_since(60) == []

The API server, `bayplan run --binder` with its leases, the controllers and fake nodes are clients of one
`InProcessServer`. No request crosses a socket, so that ten minutes take as long as the work in them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bayplan.apiserver.embedded import EmbeddedCluster, credentials_for
from bayplan.apiserver.http.handler_chain import HandlerChain
from bayplan.apiserver.http.in_process import InProcessServer
from bayplan.apiserver.http.responses import ApiResponse, WatchResponse
from bayplan.apiserver.http.server import RawRequest
from bayplan.app import configured, known_plugins
from bayplan.app.batch import BatchSettings
from bayplan.app.binder import BinderSettings, binder_lease
from bayplan.app.combined import CombinedEngines, combined_process
from bayplan.batch.config.scheduler_conf import load_conf
from bayplan.batch.live.options import LOCK_NAMESPACE, BatchOptions
from bayplan.batch.live.run_loop import BatchRunLoop
from bayplan.client import Client, ConnectionConfig, GroupVersionResource, Secret
from bayplan.codec.go_duration import GoDuration
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.feature_gates import parse_feature_gates
from bayplan.config.serving_flags import ProcessOptions, ServingFlags
from bayplan.controllers import ControllerManager, FakeKubelet, PodBehavior
from bayplan.controllers.core.api_types import NAMESPACES
from bayplan.controllers.volcano.crds import create_crds, missing_crds
from bayplan.objects.kai.bind_request_definition import bind_request_definition
from bayplan.scheduler.live.run_loop import LiveScheduler
from support.harness.virtual_time import LoopTimeClock

Tree = dict[str, Any]
KUBELET, TEST = "kubelet", "test"


@dataclass(frozen=True, slots=True)
class RecordedWrite:
    """One request that changes something, as the API server received it."""

    at_s: float
    agent: str
    method: str
    path: str
    body: bytes

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s {self.agent}: {self.method} {self.path} {self.body[:400].decode()}"


@dataclass(slots=True)
class _RecordingHandler:
    """A gateway that keeps a record of the writes."""

    gateway: HandlerChain
    writes: list[RecordedWrite] = field(default_factory=list)

    async def __call__(self, raw: RawRequest) -> ApiResponse | WatchResponse:
        if raw.method not in ("GET", "HEAD"):
            now_s = asyncio.get_running_loop().time()
            self.writes.append(
                RecordedWrite(now_s, raw.headers.get("User-Agent", ""), raw.method, raw.path, await raw.body())
            )
        return await self.gateway(raw)


@dataclass(slots=True)
class VirtualCluster:
    """Requests to the cluster, and its records."""

    client: Client
    engines: CombinedEngines
    _recorded: _RecordingHandler

    @property
    def pods(self) -> LiveScheduler:
        return self.engines.pods

    @property
    def batch(self) -> BatchRunLoop:
        return self.engines.batch

    def writes_since(self, at_s: float) -> list[RecordedWrite]:
        """Writes after this time, except those of leases, of nodes and of the test itself."""
        return [
            each
            for each in self._recorded.writes
            if each.at_s > at_s and each.agent not in (KUBELET, TEST) and "/leases" not in each.path
        ]

    def lease_renewals_since(self, at_s: float) -> list[RecordedWrite]:
        return [each for each in self._recorded.writes if each.at_s > at_s and "/leases" in each.path]

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def create(self, resource: GroupVersionResource, body: Tree, *, namespace: str = "default") -> Tree:
        assert resource.kind is not None
        whole = {"apiVersion": resource.api_version, "kind": resource.kind.name, **body}
        made = await self.client.create(resource, whole, namespace=namespace if resource.namespaced else "")
        found: Tree = msgspec.json.decode(made)
        return found

    async def get(self, resource: GroupVersionResource, name: str, *, namespace: str = "default") -> Tree:
        return await self.client.get_raw(resource, namespace if resource.namespaced else "", name)

    async def list(self, resource: GroupVersionResource, *, namespace: str = "default") -> list[Tree]:
        path = resource.path(namespace if resource.namespaced else "")
        answer = await self.client.transport.request("GET", path)
        found: list[Tree] = msgspec.json.decode(answer.body)["items"]
        return found


@contextlib.asynccontextmanager
async def virtual_cluster(
    folder: Path,
    *,
    nodes: Sequence[Tree] = (),
    conf: str | None = None,
    period_s: float = 1.0,
    gates: Sequence[str] = (),
    seed: int = 0,
) -> AsyncIterator[VirtualCluster]:
    """`conf`: a volcano-scheduler.conf; `period_s`: time between sessions; `gates`: enabled feature gates; `seed`: of
    every random choice.
    """
    clock, chance = LoopTimeClock(), random.Random(seed)
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            EmbeddedCluster(credentials_for(folder, "127.0.0.1"), clock=clock, chance=chance)
        )
        recorded = _RecordingHandler(server.handler_chain())
        door = InProcessServer(recorded, lambda: server.store.version)  # type: ignore[arg-type]
        stack.callback(door.close)
        target = ConnectionConfig(server="http://inside", token=Secret(server.credentials.token), in_process=door)

        async def client(agent: str) -> Client:
            made = Client(target, clock=clock, chance=chance, user_agent=agent, qps=-1.0)
            return await stack.enter_async_context(made)

        own = await client(TEST)
        await create_crds(own, [*await missing_crds(own), bind_request_definition()])
        await own.create(NAMESPACES, {"metadata": {"name": LOCK_NAMESPACE}})
        kubelet = FakeKubelet(await client(KUBELET), nodes=nodes, habits=PodBehavior(starts_after_s=0.0))
        controllers = ControllerManager(await client("controllers"))
        registry, settings = known_plugins(), BayplanSettings(watchdog_seconds=0, bind_requests=True)
        features = parse_feature_gates(f"{name}=true" for name in gates)
        batch = BatchSettings(
            bayplan_settings=settings,
            conf=load_conf(conf) if conf else None,
            options=BatchOptions(schedule_period=GoDuration.of_seconds(period_s)),
        )
        process = await stack.enter_async_context(
            combined_process(
                configured(None, registry, features),
                registry,
                batch,
                target,
                clock=clock,
                chance=chance,
                options=ProcessOptions(settings=settings, serving=ServingFlags(secure_port=0, features=features)),
                binder=BinderSettings(lease=binder_lease(leader_elect=True)),
            )
        )
        tasks = [asyncio.create_task(each.run()) for each in (kubelet, controllers, process)]
        try:
            await kubelet.ready()
            await controllers.wait_synced()
            assert isinstance(process.engine_loop, CombinedEngines)
            yield VirtualCluster(own, process.engine_loop, recorded)
            for task in tasks:
                assert not task.done(), task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
