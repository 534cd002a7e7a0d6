# ruff: noqa: ARG002
"""Harness of the binder on an embedded API server. A test makes single attempts and delivers watch events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bayplan.api_writes.pod_status_messages import ProfileEvents
from bayplan.api_writes.writes import ApiWrites
from bayplan.binder.binder import PLUGIN_TIMEOUT_S, Binder
from bayplan.binder.cancellable_waits import WAIT_EVENT_AFTER_S, CancellableWaits, CancellableWrites
from bayplan.binder.controller import BinderController
from bayplan.binder.gpu.reservations import GpuReservations
from bayplan.binder.informer_cache import InformerCache
from bayplan.binder.plugin import BinderHandle
from bayplan.binder.reconcile import BindRequestReconciler
from bayplan.binder.status_updater import StatusUpdater
from bayplan.client import MERGE_PATCH, Client, GroupVersionResource, Selection, resource_of
from bayplan.config.reservation_settings import ReservationSettings
from bayplan.errors import BayplanError, NotFound
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kai.bind_request_definition import bind_request_definition
from bayplan.objects.kai.gpu_sharing import GROUP_LABEL
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.telemetry.binder_metrics import BinderMetrics
from bayplan.telemetry.events import Event, EventRecorder
from bayplan.telemetry.metrics import MetricsRegistry
from support.harness.embedded_cluster import run_embedded_cluster

Tree = dict[str, Any]
REQUESTS = resource_of(kind_of(BindRequest))
PODS = resource_of(kind_of(Pod))
NODES = resource_of(kind_of(Node))
CLAIMS = resource_of(kind_of(ResourceClaim))
CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
NAMESPACES = GroupVersionResource("", "v1", "namespaces", namespaced=False)
DEFINITIONS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
NAMESPACE = "default"
RESERVATIONS = "kai-resource-reservation"


@dataclass
class CrashPointLog:
    """Records the crash points that were reached, and runs the test's functions at them."""

    reached: list[str] = field(default_factory=list)
    at: dict[str, Callable[[], None]] = field(default_factory=dict)

    def __call__(self, step: str) -> None:
        self.reached.append(step)
        self.at.get(step, lambda: None)()


class RecordingMetrics(BinderMetrics):
    """The binder's metrics, which also record the results of attempts in order."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.results: list[str] = []
        super().__init__(self.registry)

    def observe_attempt(self, result: str, seconds: float) -> None:
        self.results.append(result)
        super().observe_attempt(result, seconds)


@dataclass
class ReconcilerHarness:
    client: Client
    view: InformerCache
    reconciler: BindRequestReconciler
    reservations: GpuReservations
    waits: CancellableWaits
    steps: CrashPointLog
    events: list[Event]
    metrics: RecordingMetrics

    @property
    def attempts(self) -> list[str]:
        """Results of the attempts, as the metrics count them."""
        return self.metrics.results

    def scraped(self, name: str) -> dict[str, float]:
        """One metric as Prometheus reads it: values by labels."""
        lines = b"".join(self.metrics.registry.render()).decode().splitlines()
        found = (line.rpartition(" ") for line in lines if line.split("{")[0].split(" ")[0] == name)
        return {head.removeprefix(name).strip("{}"): float(value) for head, _, value in found}

    async def make(self, resource: GroupVersionResource, tree: Tree, namespace: str = NAMESPACE) -> Tree:
        space = namespace if resource.namespaced else ""
        found: Tree = msgspec.json.decode(await self.client.create(resource, tree, namespace=space))
        return found

    async def pod(self, name: str = "web", **meta: Any) -> Tree:
        return await self.make(PODS, pod_tree(name, **meta))

    async def request(self, pod: Tree | None, node: str = "n1", *, name: str = "web", **spec: Any) -> Tree:
        """Create a request as an engine does; `pod`: None for one without an owner."""
        meta: Tree = {"name": name, "annotations": spec.pop("annotations", {})}
        if pod is not None:
            owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
            meta["ownerReferences"] = [owner]
        tree = {"apiVersion": REQUESTS.api_version, "kind": "BindRequest", "metadata": meta}
        return await self.make(
            REQUESTS, {**tree, "spec": {"podName": name, "selectedNode": node, "backoffLimit": 3, **spec}}
        )

    async def sync(self, name: str = "web") -> float | None:
        """Deliver an event of the request and make one attempt."""
        await self.deliver_event(BindRequest, name)
        return await self.reconciler.reconcile((NAMESPACE, name))

    @asynccontextmanager
    async def run_binder(self, *, workers: int = 1) -> AsyncIterator[BinderController]:
        """Run the whole binder with informers, as a new process without memory."""
        self.reconciler._status_updater._status_before_mark.clear()
        live = BinderController(
            self.view,
            self.reconciler,
            self.reservations,
            waits=self.waits,
            clock=self.client.clock,
            chance=random.Random(0),
            workers=workers,
        )
        informer = self.client.informer(REQUESTS, live.handle_event, on_undecodable=live.report_unreadable)
        live.unreadable = informer.undecodable
        members = self.client.informer(PODS, live.handle_gpu_pod_event, selection=Selection(label_selector=GROUP_LABEL))
        watching = asyncio.gather(informer.run(), members.run())
        working: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(informer.wait_synced(), members.wait_synced())
                working = asyncio.ensure_future(live.run())
                yield live
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def until_phase(self, phase: str, name: str = "web") -> Tree:
        """Wait until the request has this phase."""
        while (found := await self.status(name)).get("phase") != phase:
            await asyncio.sleep(0.02)
        return found

    async def deliver_event(self, struct: type[KubeObject], name: str, namespace: str = NAMESPACE) -> None:
        kind = kind_of(struct)
        space = namespace if kind.namespaced else ""
        self.view.handle_event(None, await self.client.get(struct, space, name, resource=resource_of(kind)))

    async def get(self, resource: GroupVersionResource, name: str, namespace: str = NAMESPACE) -> Tree:
        return await self.client.get_raw(resource, namespace if resource.namespaced else "", name)

    async def find(self, resource: GroupVersionResource, name: str, namespace: str = NAMESPACE) -> Tree | None:
        try:
            return await self.get(resource, name, namespace)
        except NotFound:
            return None

    async def status(self, name: str = "web") -> Tree:
        found: Tree = (await self.get(REQUESTS, name)).get("status", {})
        return found

    async def node_of(self, name: str = "web") -> str:
        return str((await self.get(PODS, name))["spec"].get("nodeName", ""))

    async def patch(
        self, resource: GroupVersionResource, name: str, body: Tree, *, sub: str = "", namespace: str = NAMESPACE
    ) -> None:
        space = namespace if resource.namespaced else ""
        await self.client.patch(resource, body, name=name, namespace=space, subresource=sub, kind=MERGE_PATCH)

    @property
    def reasons(self) -> list[str]:
        """Reasons of the recorded events."""
        return [each.reason for each in self.events]


def pod_tree(name: str, **meta: Any) -> Tree:
    spec = meta.pop("spec", {})
    container = {"name": "main", "image": "example.com/main:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **meta},
        "spec": {"containers": [container], "schedulerName": "nobody", "terminationGracePeriodSeconds": 0, **spec},
    }


def node_tree(name: str, **labels: str) -> Tree:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


@asynccontextmanager
async def run_reconciler(
    folder: Path,
    *plugins: Any,
    nodes: Sequence[str] = ("n1", "n2"),
    definition: Tree | None = None,
    limit_s: float = PLUGIN_TIMEOUT_S,
    patience_s: float = 30.0,
    reserving: ReservationSettings | None = None,
    takes_all: bool = False,
    claims: GroupVersionResource | None = CLAIMS,
    notice_s: float = WAIT_EVENT_AFTER_S,
) -> AsyncIterator[ReconcilerHarness]:
    """Run a binder with these plugins on a server with these nodes; `claims`: the resource of device claims."""
    async with run_embedded_cluster(folder) as cluster, cluster.client() as client:
        reserving = reserving or ReservationSettings(allocation_timeout=patience_s)
        await client.create(NAMESPACES, {"metadata": {"name": reserving.namespace}})
        await client.create(DEFINITIONS, definition or bind_request_definition())
        view, steps, events = InformerCache(client), CrashPointLog(), list[Event]()
        clock, chance = client.clock, random.Random(0)
        recorder = EventRecorder("binder", host="here", clock=clock, chance=chance, post=events.append)
        writes = ApiWrites(
            client, ProfileEvents({"binder": recorder}), clock=clock, claims=claims, exists=view.has_pending_pod
        )
        waits = CancellableWaits(view.is_current, notice_s=notice_s)
        handle = BinderHandle(client, CancellableWrites(writes, waits), clock, view, claims, steps, waits)
        reservations = GpuReservations(
            client, view, reserving, takes_all=takes_all, waiting=waits, on_crash_point=steps
        )
        observer = RecordingMetrics()
        carrying_out = Binder(
            handle,
            plugins,
            reservations,
            observer=observer,
            waits=waits,
            is_wanted=view.is_still_current,
            limit_s=limit_s,
            on_crash_point=steps,
        )
        reports = StatusUpdater(client, REQUESTS, view, recorder, clock=clock, chance=chance, observer=observer)
        waits.on_long_wait = reports.record_waiting
        reconciler = BindRequestReconciler(view, carrying_out, reports, clock)
        harness = ReconcilerHarness(client, view, reconciler, reservations, waits, steps, events, observer)
        for name in nodes:
            await harness.make(NODES, node_tree(name))
            await harness.deliver_event(Node, name)
        yield harness


def run_with_reconciler(
    folder: Path, test: Callable[[ReconcilerHarness], Awaitable[None]], *plugins: Any, **options: Any
) -> None:
    """Run a test with a `ReconcilerHarness`."""

    async def run() -> None:
        async with run_reconciler(folder, *plugins, **options) as harness:
            await test(harness)

    asyncio.run(run())


class FailingPlugin:
    """A plugin whose PreBind fails."""

    name = "failing"

    async def pre_bind(self, *_: Any) -> None:
        raise BayplanError("not now")


class RecordingPlugin:
    """Records its calls and raises the given errors."""

    def __init__(self, name: str = "noting", *faults: Exception, calls: list[str] | None = None) -> None:
        self.name = name
        self.faults = list(faults)
        self.calls: list[str] = [] if calls is None else calls
        self.seen: list[dict[str, str]] = []

    async def pre_bind(self, ctx: Any, pod: Any, node: Any, bind_request: BindRequest, state: Any) -> None:
        self.calls.append(f"{self.name} pre_bind")
        self.seen.append(bind_request.metadata.annotations)
        state.plugin_state[self.name] = len(self.calls)
        if self.faults:
            raise self.faults.pop(0)

    async def post_bind(self, ctx: Any, pod: Any, node: Any, bind_request: BindRequest, state: Any) -> None:
        self.calls.append(f"{self.name} post_bind")
        self.seen.append(bind_request.metadata.annotations)

    async def rollback(self, ctx: Any, pod: Any, node: Any, bind_request: BindRequest, state: Any) -> None:
        self.calls.append(f"{self.name} rollback {state.plugin_state.get(self.name)}")
        self.seen.append(bind_request.metadata.annotations)
