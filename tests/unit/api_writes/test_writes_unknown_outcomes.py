"""Every write of the engines and the binder with a response that leaves its outcome unknown.

The API server is the embedded one. Five kinds of answers: a 5xx or a 404 after the write, a connection that is cut
after the write, and a connection that is cut, or a 5xx with Retry-After, before a write that the server gets later. The
table is that of `docs/unknown-outcomes.md`; a test compares the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bayplan.api_writes.pod_statuses import PodStatuses
from bayplan.api_writes.writes import ApiWrites
from bayplan.app import build_batch_engine
from bayplan.batch.config.scheduler_conf import load_conf
from bayplan.batch.evaluation.shard_filter import ShardStatus
from bayplan.batch.live.default_queues import ensure_default_queues
from bayplan.batch.live.eviction import PodEvictor
from bayplan.batch.live.gate_removal import FIRST_PAUSE_S, GateRemovals
from bayplan.batch.live.node_shard import NodeShardSync
from bayplan.batch.live.observer import NoBatchObserver
from bayplan.batch.live.options import BatchOptions
from bayplan.batch.live.run_loop_factory import build_event_handlers
from bayplan.batch.live.status_updater import SessionStatusUpdater
from bayplan.batch.model.tasks import QUEUE_ALLOCATION_GATE
from bayplan.batch.session.outcome import GroupOutcome
from bayplan.binder.gpu.reservations import DeviceNotReserved
from bayplan.binder.informer_cache import InformerCache
from bayplan.binder.plugin import BinderHandle
from bayplan.binder.plugins import gpu_sharing
from bayplan.binder.status_updater import BindFailed
from bayplan.cache import Cache
from bayplan.client import LEASES, REQUEST_TIMEOUT_S, LeaderElector
from bayplan.client.http.connection import HttpResponse
from bayplan.client.http.response_parser import ResponseHead
from bayplan.clock import ManualClock
from bayplan.codec.quantity import Quantity
from bayplan.devices import claim_intents as devices
from bayplan.devices.claims import FINALIZER
from bayplan.devices.extended_resources import find_special_claim, new_special_claim
from bayplan.errors import ApiError, Forbidden, Invalid, NotFound, ServerError, TooManyRequests, Unreachable
from bayplan.framework.api.status import SUCCESS, unschedulable
from bayplan.framework.runtime.bind_request_factory import BindRequestFactory
from bayplan.intents.pod_intents import AnnotatePod, BindPod, CreateBindRequest, DeleteBindRequest, DeletePod
from bayplan.objects.core import ContainerExtendedResourceRequest, Node, Pod
from bayplan.objects.kai.bind_request import HANDLED_BY_BAYPLAN, HANDLED_BY_LABEL, BindRequest, BindRequestStatus
from bayplan.objects.kai.gpu_sharing import DEVICE_INDEX_ANNOTATION as DEVICE_ID
from bayplan.objects.kai.gpu_sharing import GROUP_LABEL
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import AllocationResult, ResourceClaim
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim
from bayplan.objects.volcano import types as volcano
from bayplan.objects.volcano.definitions import volcano_definitions
from bayplan.objects.workloads import PodGroup
from bayplan.scheduler.pod_groups.group_statuses import GroupStatuses
from bayplan.volumes.claims import SELECTED_NODE
from bayplan.volumes.volume_intents import SetSelectedNode, SetVolumeClaimRef, WaitForVolumes, with_claim_ref
from support.builders.batch_engines import GANGS
from support.harness.live_batch import RecordedBatchEvents
from support.harness.live_scheduler import RecordedEvents
from support.harness.reconciler import (
    CLAIMS,
    CONFIG_MAPS,
    DEFINITIONS,
    PODS,
    REQUESTS,
    RESERVATIONS,
    ReconcilerHarness,
    Tree,
    run_with_reconciler,
)
from support.harness.write_sites import clients_of_other_names, write_sites

DOCS = Path(__file__).parents[3] / "docs" / "unknown-outcomes.md"
KINDS = ("5xx after the write", "answer lost", "write lands later", "5xx with Retry-After")
WRONG_NOT_FOUND = "404 after the write"
Work = Callable[[], Awaitable[Any]]


class SkippingClock(ManualClock):
    """Sleeping takes no time and moves the clock on."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)


@dataclass
class Faults:
    """Replaces the response to the first write whose method and path match `hits`."""

    harness: ReconcilerHarness
    kind: str
    hits: str
    late: list[Work] = field(default_factory=list)
    hit: int = 0
    sends: int = 0

    async def __aenter__(self) -> Faults:
        self._once = self.harness.client.transport._try_once
        self.harness.client.transport._try_once = self._send_with_fault  # type: ignore[method-assign]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.harness.client.transport._try_once = self._once  # type: ignore[method-assign]

    async def _send_with_fault(self, request: Any, timeout_s: float) -> HttpResponse:
        if not re.fullmatch(self.hits, f"{request.method} {request.path.partition('?')[0]}"):
            return await self._once(request, timeout_s)
        self.sends += 1
        if self.hit:
            return await self._once(request, timeout_s)
        self.hit += 1
        if self.kind in ("write lands later", "5xx with Retry-After"):
            self.late.append(lambda: self._once(request, timeout_s))
        else:
            assert (await self._once(request, timeout_s)).status < 400
        if self.kind == WRONG_NOT_FOUND:
            return HttpResponse(ResponseHead(404, b"HTTP/1.1 404 Not Found\r\n\r\n"), b"")
        if self.kind in ("write lands later", "answer lost"):
            raise Unreachable("the connection was cut", sent=True)
        retry_after = b"Retry-After: 1\r\n" if self.kind == "5xx with Retry-After" else b""
        return HttpResponse(ResponseHead(503, b"HTTP/1.1 503 Unavailable\r\n" + retry_after + b"\r\n"), b"")

    async def deliver(self) -> None:
        """Deliver the delayed request to the server; its response reaches no client."""
        for work in self.late:
            await asyncio.gather(work(), return_exceptions=True)


@dataclass
class World:
    """The objects under test that write, on one API server."""

    harness: ReconcilerHarness
    writes: ApiWrites
    clock: SkippingClock

    async def read(self, struct: type[Any], name: str, namespace: str = "default", **how: Any) -> Any:
        return await self.harness.client.get(struct, namespace, name, **how)

    async def pod(self, name: str = "web", **meta: Any) -> Pod:
        await self.harness.pod(name, **meta)
        found: Pod = await self.read(Pod, name)
        return found

    async def claim(self, **status: Any) -> ResourceClaim:
        tree: Tree = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "gpu"}}
        request = {"name": "one", "exactly": {"deviceClassName": "gpu"}}
        await self.harness.make(CLAIMS, {**tree, "spec": {"devices": {"requests": [request]}}})
        if status:
            await self.harness.patch(CLAIMS, "gpu", {"metadata": {"finalizers": [FINALIZER]}})
            await self.harness.patch(CLAIMS, "gpu", {"status": status}, sub="status")
        found: ResourceClaim = await self.read(ResourceClaim, "gpu", resource=CLAIMS)
        return found


DEVICE = {"request": "one", "driver": "d", "pool": "p", "device": "gpu-0"}
ALLOCATION = {"devices": {"results": [DEVICE]}}
OTHER_CONDITION = {"type": "Other", "status": "True", "reason": "Yes", "message": ""}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def reserved_for(pod: Pod) -> Tree:
    return {"allocation": ALLOCATION, "reservedFor": [{"resource": "pods", "name": pod.name, "uid": pod.uid}]}


Check = Callable[[], Awaitable[bool]]
Prepared = tuple[Work, Check]
ROWS: dict[str, tuple[str, Callable[[World], Awaitable[Prepared]]]] = {}


def row(name: str, hits: str) -> Callable[[Callable[[World], Awaitable[Prepared]]], None]:
    """Register one write: its row in the docs and its request. The function prepares the write and a check of the
    state."""

    def enter(prepare: Callable[[World], Awaitable[Prepared]]) -> None:
        ROWS[name] = hits, prepare

    return enter


@row("binding", r"POST .*/pods/web/binding")
async def _(world: World) -> Prepared:
    pod = await world.pod()

    async def is_bound() -> bool:
        return await world.harness.node_of() == "n1"

    return lambda: world.writes.perform(BindPod(pod, "n1")), is_bound


@row("BindRequest", r"POST .*/bindrequests")
async def _(world: World) -> Prepared:
    pod = await world.pod()
    tree = {"apiVersion": REQUESTS.api_version, "kind": "BindRequest", "metadata": {"name": "web"}}
    tree["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": pod.uid}]  # type: ignore[index]
    request = msgspec.convert({**tree, "spec": {"podName": "web", "selectedNode": "n1"}}, BindRequest)

    async def is_made() -> bool:
        found = await world.read(BindRequest, "web", resource=REQUESTS)
        return bool(found.is_for(pod) and found.spec.selected_node == "n1" and found.is_active)

    return lambda: world.writes.perform(CreateBindRequest(pod, request)), is_made


@row("deletion of a BindRequest", r"DELETE .*/bindrequests/web")
async def _(world: World) -> Prepared:
    await world.harness.request(None)
    request = await world.read(BindRequest, "web", resource=REQUESTS)
    answers: list[object] = []

    async def delete() -> None:
        for _ in range(2):  # `BindRequestTracker.run_periodic_checks` tries it again every five seconds
            try:
                await world.writes.perform(DeleteBindRequest(request, on_deleted=answers.append))
            except (ServerError, Unreachable):
                assert answers == []  # the pod keeps its node until then
            else:
                return

    async def is_gone() -> bool:
        return await world.harness.find(REQUESTS, "web") is None and answers == [None]

    return delete, is_gone


@row("eviction", r"DELETE .*/pods/web")
async def _(world: World) -> Prepared:
    pod = await world.pod()

    async def is_gone() -> bool:
        return await world.harness.find(PODS, "web") is None

    return lambda: world.writes.perform(DeletePod(pod)), is_gone


@row("annotation of a pod", r"PATCH .*/pods/web")
async def _(world: World) -> Prepared:
    pod = await world.pod()

    async def write() -> None:
        await world.writes.perform(AnnotatePod(pod, {"gpu": "1"}))
        # A later attempt chooses another device: the first patch must not come back.
        await world.writes.perform(AnnotatePod(await world.read(Pod, "web"), {"gpu": "2"}))

    async def is_latest() -> bool:
        return bool((await world.read(Pod, "web")).metadata.annotations["gpu"] == "2")

    return write, is_latest


@row("PersistentVolume claimRef", r"PATCH .*/persistentvolumes/v")
async def _(world: World) -> Prepared:
    capacity = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    local = {"local": {"path": "/x"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [_ON_N1]}}}
    await world.harness.make(
        _resource(PersistentVolume), {**_tree("PersistentVolume", "v"), "spec": {**capacity, **local}}
    )
    claim = await _volume_claim(world)
    volume = with_claim_ref(await world.read(PersistentVolume, "v", ""), claim)

    async def is_reserved() -> bool:
        return bool((await world.read(PersistentVolume, "v", "")).spec.claim_ref.uid == claim.metadata.uid)

    return lambda: world.writes.perform(SetVolumeClaimRef(volume)), is_reserved


@row("PersistentVolumeClaim selected-node", r"PATCH .*/persistentvolumeclaims/c")
async def _(world: World) -> Prepared:
    claim = await _volume_claim(world)
    meta = msgspec.structs.replace(claim.metadata, annotations={SELECTED_NODE: "n1"})
    chosen = msgspec.structs.replace(claim, metadata=meta)

    async def is_chosen() -> bool:
        found = await world.read(PersistentVolumeClaim, "c")
        return bool(found.metadata.annotations.get(SELECTED_NODE) == "n1")

    return lambda: world.writes.perform(SetSelectedNode(chosen)), is_chosen


@row("ResourceClaim finalizer", r"PATCH .*/resourceclaims/gpu")
async def _(world: World) -> Prepared:
    return await _reservation(world)


@row("ResourceClaim allocation and reservation", r"PATCH .*/resourceclaims/gpu/status")
async def _(world: World) -> Prepared:
    return await _reservation(world)


@row("ResourceClaim for extended resources", r"POST .*/resourceclaims")
async def _(world: World) -> Prepared:
    pod = await world.pod()
    wanted = new_special_claim(pod)
    made: list[ResourceClaim] = []

    async def create() -> None:
        made.append(await world.writes.perform(devices.CreateSpecialClaim(wanted, pod)))

    async def is_only_one() -> bool:
        found = await world.harness.client.list(CLAIMS)
        return [each.name for each in found.items if isinstance(each, ResourceClaim)] == [made[0].name]

    return create, is_only_one


@row("claim for extended resources in the pod's status", r"PATCH .*/pods/web/status")
async def _(world: World) -> Prepared:
    pod = await world.pod()

    async def record() -> None:
        await world.writes.perform(devices.RecordSpecialClaim(pod, "first", (_USE,)))
        await world.writes.perform(devices.RecordSpecialClaim(pod, "second", (_USE,)))  # the next attempt

    async def is_latest() -> bool:
        found = (await world.read(Pod, "web")).status.extended_resource_claim_status
        return bool(found.resource_claim_name == "second")

    return record, is_latest


@row("removal of a reservation", r"PATCH .*/resourceclaims/gpu/status")
async def _(world: World) -> Prepared:
    pod = await world.pod()
    claim = await world.claim(**reserved_for(pod))

    async def unreserve() -> None:
        world.writes.submit(devices.UnreserveClaim(claim, pod))
        # The next attempt reserves the claim again: it waits for the release, which must not revert that.
        await world.writes.perform(devices.ReserveClaim(claim, pod, NOW))

    async def is_reserved() -> bool:
        found = await world.read(ResourceClaim, "gpu", resource=CLAIMS)
        return [user.uid for user in found.status.reserved_for] == [pod.uid]

    return unreserve, is_reserved


@row("deallocation of a claim", r"PATCH .*/resourceclaims/gpu/status")
async def _(world: World) -> Prepared:
    claim = await world.claim(allocation=ALLOCATION)

    async def is_free() -> bool:
        return (await world.read(ResourceClaim, "gpu", resource=CLAIMS)).status.allocation is None

    return lambda: world.writes.perform(devices.DeallocateClaim(claim)), is_free


@row("deletion of a claim", r"DELETE .*/resourceclaims/gpu")
async def _(world: World) -> Prepared:
    claim = await world.claim()

    async def is_gone() -> bool:
        return await world.harness.find(CLAIMS, "gpu") is None

    return lambda: world.writes.perform(devices.DeleteClaim(claim)), is_gone


@row("status of a pod", r"PATCH .*/pods/web/status")
async def _(world: World) -> Prepared:
    pod = await world.pod()
    statuses = PodStatuses(
        world.harness.client, world.writes, {pod.uid: pod}, clock=world.clock, chance=world.harness.client.chance
    )

    async def write() -> None:
        task = statuses.set_unschedulable(pod, "Unschedulable", "no node fits", "n1")
        assert task is not None
        await asyncio.wait([task])

    async def is_written() -> bool:
        found = await world.read(Pod, "web")
        conditions = [(each.type, each.message) for each in found.status.conditions]
        return found.status.nominated_node_name == "n1" and ("PodScheduled", "no node fits") in conditions

    return write, is_written


@row("status of a PodGroup of scheduling.k8s.io", r"PATCH .*/podgroups/g/status")
async def _(world: World) -> Prepared:
    groups = _resource(PodGroup)
    tree: Tree = {"apiVersion": groups.api_version, "kind": "PodGroup", "metadata": {"name": "g"}}
    await world.harness.make(groups, {**tree, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
    statuses, known = GroupStatuses(world.writes, groups, world.clock, asyncio.Event()), await world.read(PodGroup, "g")
    status = {"conditions": [{**OTHER_CONDITION, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    await world.harness.patch(groups, "g", {"status": status}, sub="status")

    async def write() -> None:
        statuses.write(known, unschedulable("no node fits"))
        await world.writes.drain()
        statuses.write(known, SUCCESS)  # the next attempt, before the watch shows the status

    async def is_latest() -> bool:
        found = (await world.harness.get(groups, "g"))["status"]["conditions"]
        return [(each["type"], each["status"]) for each in found] == [("Other", "True"), ("PodGroupScheduled", "True")]

    return write, is_latest


@row("status of a BindRequest", r"PATCH .*/bindrequests/web/status")
async def _(world: World) -> Prepared:
    await world.harness.request(await world.harness.pod(), backoffLimit=1)
    request = await world.read(BindRequest, "web", resource=REQUESTS)
    reports = world.harness.reconciler._status_updater

    async def is_given_up() -> bool:
        return bool((await world.read(BindRequest, "web", resource=REQUESTS)).has_failed)

    return lambda: reports.write_result(request, BindFailed("no"), 0.0), is_given_up


@row("GPU reservation pod", rf"POST /api/v1/namespaces/{RESERVATIONS}/pods")
async def _(world: World) -> Prepared:
    pod = await world.pod()
    node = await world.read(Node, "n1", "")
    made: list[Pod] = []

    async def reserve() -> None:
        made.append(await world.harness.reservations._create_reservation(pod, node, "g"))

    async def is_only_one() -> bool:
        found = await world.harness.client.list(PODS)
        return [each.name for each in found.items if each.namespace == RESERVATIONS] == [made[0].name]

    return reserve, is_only_one


@row("GPU group label", r"PATCH .*/pods/web")
async def _(world: World) -> Prepared:
    pod = await world.pod()

    async def is_labelled() -> bool:
        labels = (await world.read(Pod, "web")).labels
        return labels.get(GROUP_LABEL) == "g" and labels.get(HANDLED_BY_LABEL) == HANDLED_BY_BAYPLAN

    return lambda: world.harness.reservations._add_group_label(pod, "g", several=False), is_labelled


@row("removal of a GPU group label", r"PATCH .*/pods/web")
async def _(world: World) -> Prepared:
    pod = await world.pod(labels={GROUP_LABEL: "g", HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN})

    async def unlabel() -> None:
        await world.harness.reservations._remove_group_labels(pod, ["g"])
        # the next attempt
        await world.harness.reservations._add_group_label(await world.read(Pod, "web"), "g", several=False)

    async def is_labelled() -> bool:
        return (await world.read(Pod, "web")).labels.get(GROUP_LABEL) == "g"

    return unlabel, is_labelled


@row("ConfigMap of a shared GPU", r"PATCH .*/configmaps/m")
async def _(world: World) -> Prepared:
    pod = await world.pod()
    ctx = BinderHandle(world.harness.client, world.writes, world.clock, InformerCache(world.harness.client))
    await gpu_sharing.upsert_config_map(ctx, pod, "m", {"device": "0"})

    async def write() -> None:
        await gpu_sharing.upsert_config_map(ctx, pod, "m", {"device": "1"})
        await gpu_sharing.upsert_config_map(ctx, pod, "m", {"device": "2"})  # the next attempt

    async def is_latest() -> bool:
        return bool((await world.harness.get(CONFIG_MAPS, "m"))["data"] == {"device": "2"})

    return write, is_latest


@row("creation of the ConfigMap of a shared GPU", r"POST .*/configmaps")
async def _(world: World) -> Prepared:
    pod = await world.pod()
    ctx = BinderHandle(world.harness.client, world.writes, world.clock, InformerCache(world.harness.client))

    async def write() -> None:
        await gpu_sharing.upsert_config_map(ctx, pod, "m", {"device": "1"})
        await gpu_sharing.upsert_config_map(ctx, pod, "m", {"device": "2"})  # the next attempt

    async def is_latest() -> bool:
        return bool((await world.harness.get(CONFIG_MAPS, "m"))["data"] == {"device": "2"})

    return write, is_latest


@row("annotation of a pod by a plugin of the binder", r"PATCH .*/pods/web")
async def _(world: World) -> Prepared:
    pod = await world.pod()
    ctx = BinderHandle(world.harness.client, world.writes, world.clock, InformerCache(world.harness.client))

    async def write() -> None:
        await ctx.annotate(pod, {"gpu": "1"})
        await ctx.annotate(await world.read(Pod, "web"), {"gpu": "2"})  # the next attempt

    async def is_latest() -> bool:
        return bool((await world.read(Pod, "web")).metadata.annotations["gpu"] == "2")

    return write, is_latest


@row("conditions of a victim", r"PATCH .*/pods/web/status")
async def _(world: World) -> Prepared:
    pod = await world.pod(finalizers=["example.com/kept"])
    engine = build_batch_engine(load_conf(GANGS), Cache(), clock=world.clock, chance=world.harness.client.chance)
    statuses = PodStatuses(
        world.harness.client, world.writes, {}, clock=world.clock, chance=world.harness.client.chance
    )
    following = build_event_handlers(engine, BatchOptions())
    evictions = PodEvictor(following, world.writes, statuses, RecordedBatchEvents(), NoBatchObserver(), world.clock)

    async def evict() -> None:
        evictions.start(pod, "preempt")

    async def is_written() -> bool:
        found = await world.read(Pod, "web")
        messages = [each.message for each in found.status.conditions if each.type == "DisruptionTarget"]
        return messages == ["Pod is evicted, because of preempt"] and found.terminating

    return evict, is_written


@row("status of a PodGroup", r"PATCH .*/podgroups/g")
async def _(world: World) -> Prepared:
    telling, groups = await _status_updater(world), _resource(volcano.PodGroup)
    await world.harness.make(groups, _volcano_tree("PodGroup", "g", minMember=1))

    async def write() -> None:
        for running in (1, 2):  # two sessions
            status = volcano.PodGroupStatus(phase="Running", running=running)
            telling._update_group(await world.read(volcano.PodGroup, "g"), GroupOutcome(status, changed=True))
            await world.writes.drain()

    async def is_latest() -> bool:
        return bool((await world.read(volcano.PodGroup, "g")).status.running == 2)

    return write, is_latest


@row("status of a Queue", r"PATCH .*/queues/q/status")
async def _(world: World) -> Prepared:
    telling, queues = await _status_updater(world), _resource(volcano.Queue)
    await world.harness.make(queues, _volcano_tree("Queue", "q", weight=1))

    async def write() -> None:
        for amount in ("1", "2"):  # two sessions
            telling._update_queue(await world.read(volcano.Queue, "q", ""), {"cpu": Quantity.parse(amount)})
            await world.writes.drain()

    async def is_latest() -> bool:
        return bool((await world.harness.get(queues, "q"))["status"]["allocated"] == {"cpu": "2"})

    return write, is_latest


@row("status of a NodeShard", r"PATCH .*/nodeshards/s/status")
async def _(world: World) -> Prepared:
    await _define_volcano(world)
    shards, client = _resource(volcano.NodeShard), world.harness.client
    await world.harness.make(
        shards, {**_tree("NodeShard", "s"), "apiVersion": shards.api_version, "spec": {"nodesDesired": []}}
    )
    engine = build_batch_engine(load_conf(GANGS), Cache(), clock=world.clock, chance=client.chance)
    sharding = NodeShardSync(engine, client, world.writes, shards, world.clock, "s", is_hard=True)

    async def write() -> None:
        for node in ("n1", "n2"):  # two sessions
            mine = await world.read(volcano.NodeShard, "s", "")
            world.writes.start(sharding._write_status(mine, ShardStatus(frozenset([node]))), "saying it")
            await world.writes.drain()

    async def is_latest() -> bool:
        return bool((await world.read(volcano.NodeShard, "s", "")).status.nodes_in_use == ("n2",))

    return write, is_latest


@row("creation of the queues root and default", r"POST .*/queues")
async def _(world: World) -> Prepared:
    return await _first_queues(world)


@row("state of the queues root and default", r"PATCH .*/queues/root/status")
async def _(world: World) -> Prepared:
    return await _first_queues(world)


@row("removal of a scheduling gate", r"PATCH .*/pods/web")
async def _(world: World) -> Prepared:
    pod = await world.pod(spec={"schedulingGates": [{"name": QUEUE_ALLOCATION_GATE}]})
    removals = GateRemovals(world.harness.client, world.writes, world.clock)

    async def remove() -> None:
        for _ in range(2):  # two sessions
            removals.start(pod)
            await world.writes.drain()
            world.clock.advance(FIRST_PAUSE_S)

    async def is_removed() -> bool:
        return not (await world.read(Pod, "web")).spec.scheduling_gates

    return remove, is_removed


@row("condition of a pod by the binder", r"PATCH .*/pods/web/status")
async def _(world: World) -> Prepared:
    pod, reports = await world.pod(), world.harness.reconciler._status_updater

    async def write() -> None:
        await reports._write_condition(pod, "False", "BindingError", "no")
        await world.writes.perform(BindPod(pod, "n1"))  # the next attempt
        await reports._write_condition(await world.read(Pod, "web"), "True", "Bound", "bound to node n1")

    async def is_bound() -> bool:
        conditions = (await world.read(Pod, "web")).status.conditions
        return [each.status for each in conditions if each.type == "PodBound"] == ["True"]

    return write, is_bound


@row("deletion of a GPU reservation", rf"DELETE /api/v1/namespaces/{RESERVATIONS}/pods/.*")
async def _(world: World) -> Prepared:
    pod, reservations = await world.pod(), world.harness.reservations
    node = await world.read(Node, "n1", "")
    made = await reservations._create_reservation(pod, node, "g")
    await world.harness.patch(
        PODS, made.name, {"metadata": {"annotations": {DEVICE_ID: "GPU-0"}}}, namespace=RESERVATIONS
    )

    async def delete() -> None:
        await reservations.sync_group("g")  # it has no users
        with pytest.raises(DeviceNotReserved, match="still terminating"):
            await reservations.reserve(pod, node, "g", several=False)  # the next attempt

    async def is_going() -> bool:
        return bool((await world.read(Pod, made.name, RESERVATIONS)).terminating)

    return delete, is_going


@row("deletion of a user of a GPU that is not reserved", r"DELETE .*/pods/web")
async def _(world: World) -> Prepared:
    await world.pod(labels={GROUP_LABEL: "g", HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}, spec={"nodeName": "n1"})
    await world.harness.patch(PODS, "web", {"status": {"phase": "Running"}}, sub="status")

    async def is_gone() -> bool:
        return await world.harness.find(PODS, "web") is None

    return lambda: world.harness.reservations.sync_group("g"), is_gone


@row("deletion of the ConfigMap of a shared GPU", r"DELETE .*/configmaps/m")
async def _(world: World) -> Prepared:
    pod = await world.pod()
    ctx = BinderHandle(world.harness.client, world.writes, world.clock, InformerCache(world.harness.client))
    await gpu_sharing.upsert_config_map(ctx, pod, "m", {"device": "0"})

    async def write() -> None:
        with contextlib.suppress(ServerError, Unreachable):
            await gpu_sharing.delete_config_maps(ctx, pod, ["m"])  # the attempt is rolled back
        await gpu_sharing.upsert_config_map(ctx, pod, "m", {"device": "0"})  # the next attempt, with the same device

    async def is_there() -> bool:
        return bool((await world.harness.get(CONFIG_MAPS, "m"))["data"] == {"device": "0"})

    return write, is_there


@row("Lease", r"PUT .*/leases/kube-scheduler")
async def _(world: World) -> Prepared:
    election = LeaderElector(world.harness.client, identity="me", namespace="default")
    await election.acquire()

    async def renew() -> None:
        await election._try()  # the response is lost
        await election._try()
        assert election.leading

    async def is_leader() -> bool:
        found = await world.harness.get(LEASES, "kube-scheduler")
        return bool(found["spec"]["holderIdentity"] == "me" and found["spec"]["leaseTransitions"] == 0)

    return renew, is_leader


_USE = ContainerExtendedResourceRequest(
    container_name="main", resource_name="example.com/gpu", request_name="request-0"
)
_ON_N1 = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}


def _tree(kind: str, name: str) -> Tree:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}


def _resource(struct: type[KubeObject]) -> Any:
    from bayplan.client import resource_of
    from bayplan.objects.kinds import kind_of

    return resource_of(kind_of(struct))


def _volcano_tree(kind: str, name: str, **spec: Any) -> Tree:
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec}


async def _define_volcano(world: World) -> None:
    for each in volcano_definitions():
        if each["spec"]["names"]["kind"] in ("PodGroup", "Queue", "NodeShard"):
            await world.harness.make(DEFINITIONS, each)


async def _status_updater(world: World) -> SessionStatusUpdater:
    await _define_volcano(world)
    client, statuses = (
        world.harness.client,
        PodStatuses(world.harness.client, world.writes, {}, clock=world.clock, chance=world.harness.client.chance),
    )
    engine = build_batch_engine(load_conf(GANGS), Cache(), clock=world.clock, chance=client.chance)
    groups, queues = _resource(volcano.PodGroup), _resource(volcano.Queue)
    return SessionStatusUpdater(
        build_event_handlers(engine, BatchOptions()),
        client,
        world.writes,
        statuses,
        RecordedBatchEvents(),
        groups,
        queues,
    )


async def _first_queues(world: World) -> Prepared:
    await _define_volcano(world)
    queues = _resource(volcano.Queue)

    async def make() -> None:
        await ensure_default_queues(world.harness.client, queues, world.clock, known=lambda _: True)
        # An administrator closes it: the first patch must not open it again.
        await world.harness.patch(queues, "root", {"status": {"state": "Closed"}}, sub="status")

    async def is_closed() -> bool:
        states = [(await world.harness.get(queues, name))["status"]["state"] for name in ("root", "default")]
        return states == ["Closed", "Open"]

    return make, is_closed


async def _volume_claim(world: World) -> PersistentVolumeClaim:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    await world.harness.make(_resource(PersistentVolumeClaim), {**_tree("PersistentVolumeClaim", "c"), "spec": spec})
    found: PersistentVolumeClaim = await world.read(PersistentVolumeClaim, "c")
    return found


async def _reservation(world: World) -> Prepared:
    pod, claim = await world.pod(), await world.claim()
    allocation = msgspec.convert(ALLOCATION, AllocationResult)

    async def is_reserved() -> bool:
        found = await world.read(ResourceClaim, "gpu", resource=CLAIMS)
        users = [user.uid for user in found.status.reserved_for]
        return users == [pod.uid] and FINALIZER in found.metadata.finalizers

    return lambda: world.writes.perform(devices.ReserveClaim(claim, pod, NOW, allocation)), is_reserved


@pytest.mark.parametrize("kind", KINDS)
def test_a_reservation_is_not_deleted_while_a_create_of_it_may_land(tmp_path: Path, kind: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        clock = harness.reservations._confirmed.clock = SkippingClock()
        pod = await World(harness, ApiWrites(harness.client, RecordedEvents(), clock=clock), clock).pod()
        node = await harness.client.get(Node, "", "n1")
        async with Faults(harness, kind, rf"POST /api/v1/namespaces/{RESERVATIONS}/pods") as faults:
            made = await harness.reservations._create_reservation(pod, node, "g")
            await harness.reservations.sync_group("g")  # it has no users
            assert "deletionTimestamp" not in (await harness.get(PODS, made.name, RESERVATIONS))["metadata"]
            await faults.deliver()
        clock.advance(REQUEST_TIMEOUT_S)
        await harness.reservations.sync_group("g")
        left = await harness.find(PODS, made.name, RESERVATIONS)
        assert left is None or "deletionTimestamp" in left["metadata"]

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reservation_that_has_ended_is_not_deleted_while_a_create_of_it_may_land(tmp_path: Path, kind: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        clock = harness.reservations._confirmed.clock = SkippingClock()
        pod = await World(harness, ApiWrites(harness.client, RecordedEvents(), clock=clock), clock).pod()
        node = await harness.client.get(Node, "", "n1")
        async with Faults(harness, kind, rf"POST /api/v1/namespaces/{RESERVATIONS}/pods") as faults:
            made = await harness.reservations._create_reservation(pod, node, "g")
            await harness.patch(PODS, made.name, {"status": {"phase": "Failed"}}, sub="status", namespace=RESERVATIONS)
            for _ in range(2):
                with pytest.raises(DeviceNotReserved, match="it is created again after its deletion"):
                    await harness.reservations._create_reservation(pod, node, "g")
                await faults.deliver()
            assert (await harness.get(PODS, made.name, RESERVATIONS))["metadata"]["uid"] == made.uid
            clock.advance(REQUEST_TIMEOUT_S)
            with pytest.raises(DeviceNotReserved, match="it is created again after its deletion"):
                await harness.reservations._create_reservation(pod, node, "g")
            assert (await harness.reservations._create_reservation(pod, node, "g")).uid != made.uid

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_reservation_that_is_deleted_late_gives_no_device_to_the_next_attempt(
    tmp_path: Path, kind: str
) -> None:
    """It reports its device after the timeout, before its DELETE reaches the API server."""

    async def test(harness: ReconcilerHarness) -> None:
        clock = harness.reservations._confirmed.clock = SkippingClock()
        pod = await World(harness, ApiWrites(harness.client, RecordedEvents(), clock=clock), clock).pod()
        node = await harness.client.get(Node, "", "n1")
        async with Faults(harness, kind, rf"DELETE /api/v1/namespaces/{RESERVATIONS}/pods/.*") as faults:
            with pytest.raises(DeviceNotReserved, match="has not reported"):
                await harness.reservations.reserve(pod, node, "g", several=False)
            assert faults.hit == 1
            (made,) = [each for each in (await harness.client.list(PODS)).items if each.namespace == RESERVATIONS]
            report = {"metadata": {"annotations": {DEVICE_ID: "GPU-0"}}}
            await harness.patch(PODS, made.name, report, namespace=RESERVATIONS)
            with pytest.raises(DeviceNotReserved, match="still terminating"):
                await harness.reservations.reserve(pod, node, "g", several=False)
            await faults.deliver()

    run_with_reconciler(tmp_path, test, patience_s=0.0)


def test_an_existing_label_is_not_removed_by_an_earlier_attempt(tmp_path: Path) -> None:
    """The next attempt writes the same label, which does not change the version that the removal has."""

    async def test(harness: ReconcilerHarness) -> None:
        clock = harness.reservations._confirmed.clock = SkippingClock()
        world = World(harness, ApiWrites(harness.client, RecordedEvents(), clock=clock), clock)
        pod = await world.pod(labels={GROUP_LABEL: "g", HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN})
        async with Faults(harness, "write lands later", r"PATCH .*/pods/web") as faults:
            get, failures = harness.client.get, [Unreachable("the server is away")]

            async def failing(*args: Any, **how: Any) -> Any:
                if faults.hit and failures:
                    raise failures.pop()
                return await get(*args, **how)

            harness.client.get = failing  # type: ignore[method-assign]
            with contextlib.suppress(Unreachable):
                await harness.reservations._remove_group_labels(pod, ["g"])
            await harness.reservations._add_group_label(await world.read(Pod, "web"), "g", several=False)
            await faults.deliver()
        assert (await world.read(Pod, "web")).labels.get(GROUP_LABEL) == "g"

    run_with_reconciler(tmp_path, test)


async def refused_attempt(world: World, request: BindRequest, attempt: int) -> None:
    status = {"phase": "Failed", "reason": "no", "failedAttempts": attempt}
    await world.harness.patch(REQUESTS, request.name, {"status": status}, sub="status")


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_is_neither_deleted_nor_replaced_while_a_create_of_it_may_land(tmp_path: Path, kind: str) -> None:
    """Its node is free when it is given up, but a late create would still bind the pod there."""

    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock)
        world = World(harness, writes, clock)
        pod, desk = await world.pod(), BindRequestFactory(clock, attempts=1)
        answers: list[object] = []
        async with Faults(harness, kind, r"POST .*/bindrequests") as faults:
            start_s = clock.monotonic_s()
            made = await writes.perform(CreateBindRequest(pod, desk.request(pod, "n1", {})))
            await refused_attempt(world, made, 1)
            await writes.perform(DeleteBindRequest(made, on_deleted=answers.append, postponed=answers.append))
            assert answers == [start_s + REQUEST_TIMEOUT_S]
            with pytest.raises(ApiError, match="an earlier create of it, whose outcome is unknown"):
                await writes.perform(CreateBindRequest(pod, desk.request(pod, "n2", {})))
            await faults.deliver()
            found = await world.read(BindRequest, "web", resource=REQUESTS)
            assert (found.metadata.uid, found.has_failed) == (made.metadata.uid, True)
        clock.advance(REQUEST_TIMEOUT_S)
        again = await writes.perform(CreateBindRequest(pod, desk.request(pod, "n2", {})))
        assert again.spec.selected_node == "n2"
        await writes.perform(DeleteBindRequest(again, on_deleted=answers.append, postponed=answers.append))
        assert answers[1:] == [None]

    run_with_reconciler(tmp_path, test)


def test_a_request_whose_create_had_a_response_is_replaced_at_once(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock)
        world = World(harness, writes, clock)
        pod, desk = await world.pod(), BindRequestFactory(clock, attempts=1)
        made = await writes.perform(CreateBindRequest(pod, desk.request(pod, "n1", {})))
        await refused_attempt(world, made, 1)
        again = await writes.perform(CreateBindRequest(pod, desk.request(pod, "n2", {})))
        assert again.spec.selected_node == "n2"

    run_with_reconciler(tmp_path, test)


def test_a_late_create_for_a_deleted_pod_is_replaced_by_that_of_the_next_pod_of_its_name(tmp_path: Path) -> None:
    """The binder carries out no request for another uid, so there is no need to wait."""

    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock)
        world = World(harness, writes, clock)
        pod, desk = await world.pod(), BindRequestFactory(clock, attempts=1)
        async with Faults(harness, "write lands later", r"POST .*/bindrequests") as faults:
            await writes.perform(CreateBindRequest(pod, desk.request(pod, "n1", {})))
            await harness.client.delete(PODS, name="web", namespace="default")
            with contextlib.suppress(NotFound):  # the garbage collector may be faster
                await harness.client.delete(REQUESTS, name="web", namespace="default")
            await faults.deliver()
        second = await world.pod()
        made = await writes.perform(CreateBindRequest(second, desk.request(second, "n2", {})))
        assert made.is_for(second)

    run_with_reconciler(tmp_path, test)


def test_a_late_status_of_a_request_reverts_no_later_one(tmp_path: Path) -> None:
    """The engine has freed the node of a request that was given up, so it must not become live again."""

    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        harness.reconciler._status_updater._confirmed.clock = clock
        world = World(harness, ApiWrites(harness.client, RecordedEvents(), clock=clock), clock)
        await harness.request(await harness.pod(), backoffLimit=2)
        reports = harness.reconciler._status_updater
        async with Faults(harness, "write lands later", r"PATCH .*/bindrequests/web/status") as faults:
            for reason in ("first", "second"):
                request = await world.read(BindRequest, "web", resource=REQUESTS)
                await reports.write_result(request, BindFailed(reason), 0.1)
            await faults.deliver()
        found = await world.read(BindRequest, "web", resource=REQUESTS)
        assert found.status == BindRequestStatus("Failed", "second", 2)
        assert found.has_failed

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("is_given_up", [False, True], ids=["annotated", "given up"])
def test_a_status_is_written_to_the_current_version(tmp_path: Path, is_given_up: bool) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), backoffLimit=2)
        known = await harness.client.get(BindRequest, "default", "web", resource=REQUESTS)
        await harness.patch(REQUESTS, "web", {"metadata": {"annotations": {"x": "y"}}})
        if is_given_up:
            status = {"phase": "Failed", "reason": "by the next leader", "failedAttempts": 2}
            await harness.patch(REQUESTS, "web", {"status": status}, sub="status")
        await harness.reconciler._status_updater.write_result(known, BindFailed("first"), 0.1)
        assert (await harness.status())["reason"] == ("by the next leader" if is_given_up else "first")

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reservation_waits_for_each_release_of_its_claim(tmp_path: Path, kind: str) -> None:
    """The release for another pod starts later and ends first."""

    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock, claims=CLAIMS)
        world = World(harness, writes, clock)
        pod, other = await world.pod("a"), await world.pod("b")
        users = [{"resource": "pods", "name": each.name, "uid": each.uid} for each in (pod, other)]
        claim = await world.claim(allocation=ALLOCATION, reservedFor=users)
        may_go_on, perform = asyncio.Event(), writes._claim_writes._patch

        def slow(found: ResourceClaim, patch: Tree, **how: Any) -> Any:
            async def wait() -> ResourceClaim:
                if pod.uid in str(patch) and "$patch" in str(patch):
                    await may_go_on.wait()
                return await perform(found, patch, **how)

            return wait()

        writes._claim_writes._patch = slow  # type: ignore[method-assign]
        async with Faults(harness, kind, r"PATCH .*/resourceclaims/gpu/status") as faults:
            faults.hit = 1  # for the release of the other pod, which has a response
            writes.submit(devices.UnreserveClaim(claim, pod))
            await asyncio.sleep(0)
            writes.submit(devices.UnreserveClaim(claim, other))
            while len(writes._tasks) > 1:
                await asyncio.sleep(0)
            faults.hit = 0
            fresh = await world.read(ResourceClaim, "gpu", resource=CLAIMS)
            reserved = asyncio.ensure_future(writes.perform(devices.ReserveClaim(fresh, pod, NOW)))
            for _ in range(100):
                await asyncio.sleep(0)
            may_go_on.set()
            await reserved
            await writes.drain()
            await faults.deliver()
        found = await world.read(ResourceClaim, "gpu", resource=CLAIMS)
        assert [user.uid for user in found.status.reserved_for] == [pod.uid]

    run_with_reconciler(tmp_path, test)


def test_a_claim_for_extended_resources_that_is_created_late_has_no_devices(tmp_path: Path) -> None:
    """It is deleted with its pod; the next attempt may use it."""

    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock, claims=CLAIMS)
        pod = await World(harness, writes, clock).pod()
        async with Faults(harness, "write lands later", r"POST .*/resourceclaims") as faults:
            made = await writes.perform(devices.CreateSpecialClaim(new_special_claim(pod), pod))
            await writes.perform(devices.DeleteClaim(made))
            await faults.deliver()
        (found,) = (await harness.client.list(CLAIMS)).items
        assert isinstance(found, ResourceClaim)
        assert find_special_claim(pod, [found]) is found
        assert found.status.allocation is None
        assert [each.uid for each in found.metadata.owner_references] == [pod.uid]

    run_with_reconciler(tmp_path, test)


def test_a_config_map_that_is_created_late_is_updated_by_the_next_attempt(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock)
        pod = await World(harness, writes, clock).pod()
        ctx = BinderHandle(harness.client, writes, clock, InformerCache(harness.client))
        async with Faults(harness, "write lands later", r"POST .*/configmaps") as faults:
            with contextlib.suppress(Unreachable):
                await gpu_sharing.upsert_config_map(ctx, pod, "m", {"device": "0"})
            await gpu_sharing.delete_config_maps(ctx, pod, ["m"])  # the attempt is rolled back
            await faults.deliver()
            await gpu_sharing.upsert_config_map(ctx, pod, "m", {"device": "1"})
            await faults.deliver()
        assert (await harness.get(CONFIG_MAPS, "m"))["data"] == {"device": "1"}

    run_with_reconciler(tmp_path, test)


def test_a_condition_that_is_applied_after_the_binding_changes_nothing(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock)
        world = World(harness, writes, clock)
        pod = await world.pod()
        statuses = PodStatuses(harness.client, writes, {pod.uid: pod}, clock=clock, chance=harness.client.chance)
        async with Faults(harness, "write lands later", r"PATCH .*/pods/web/status") as faults:
            assert statuses.set_unschedulable(pod, "Unschedulable", "no node fits", None) is not None
            await writes.drain()
            await writes.perform(BindPod(pod, "n1"))
            await faults.deliver()
        conditions = {each.type: each.status for each in (await world.read(Pod, "web")).status.conditions}
        assert conditions["PodScheduled"] == "True"

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_victim_counts_as_deleted_after_an_unknown_outcome(tmp_path: Path, kind: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock)
        pod = await World(harness, writes, clock).pod()
        async with Faults(harness, kind, r"DELETE .*/pods/web"):
            assert await writes.perform(DeletePod(pod)) is True

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_victim_is_read_before_it_counts_as_gone(tmp_path: Path, is_deleted: bool) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock)
        pod = await World(harness, writes, clock).pod(finalizers=["example.com/stays"])
        delete = harness.client.delete

        async def not_found(*args: Any, **more: Any) -> None:
            if is_deleted:
                await delete(*args, **more)
            raise NotFound("not found", code=404)

        harness.client.delete = not_found  # type: ignore[method-assign]
        if is_deleted:
            assert await writes.perform(DeletePod(pod)) is True
        else:
            with pytest.raises(NotFound):
                await writes.perform(DeletePod(pod))

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("code", [403, 422, 429])
def test_a_victim_is_read_before_it_counts_as_staying(tmp_path: Path, code: int) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock)
        pod = await World(harness, writes, clock).pod()
        delete = harness.client.delete

        async def refused(*args: Any, **more: Any) -> None:
            with contextlib.suppress(NotFound):
                await delete(*args, **more)
            raise {403: Forbidden, 422: Invalid, 429: TooManyRequests}[code]("not so", code=code)

        harness.client.delete = refused  # type: ignore[method-assign]
        if code == 429:  # the server refused it: accepted as the outcome after some tries
            with pytest.raises(TooManyRequests):
                await writes.perform(DeletePod(pod))
        else:
            assert await writes.perform(DeletePod(pod)) is True

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("kind", [*KINDS, WRONG_NOT_FOUND])
@pytest.mark.parametrize("name", ROWS)
def test_the_outcome_is_known_when_the_write_returns(tmp_path: Path, name: str, kind: str) -> None:
    hits, prepare = ROWS[name]

    async def test(harness: ReconcilerHarness) -> None:
        clock = SkippingClock()
        writes = ApiWrites(harness.client, RecordedEvents(), clock=clock, claims=CLAIMS)
        harness.reservations._confirmed.clock = harness.reconciler._status_updater._confirmed.clock = clock
        work, is_done = await prepare(World(harness, writes, clock))
        async with Faults(harness, kind, hits) as faults:
            await work()
            await writes.drain()
            assert faults.hit == 1
            assert await is_done()
            await faults.deliver()
        assert await is_done()  # a delayed write changes nothing

    run_with_reconciler(tmp_path, test)


SCANNED = (
    "api_writes",
    "bind_requests",
    "scheduler",
    "batch",
    "binder",
    "plugins",
    "volumes",
    "devices",
    "framework",
    "cache",
    "queue",
    "client/election/lease_lock.py",
)
"""Folders and files with the writes of the engines and the binder. Events, which `client/event_sink.py` sends, have no
row."""

ROWS_OF_INTENTS: dict[type, tuple[str, ...]] = {
    BindPod: ("binding",),
    DeletePod: ("eviction",),
    AnnotatePod: ("annotation of a pod", "annotation of a pod by a plugin of the binder"),
    CreateBindRequest: ("BindRequest",),
    DeleteBindRequest: ("deletion of a BindRequest",),
    SetVolumeClaimRef: ("PersistentVolume claimRef",),
    SetSelectedNode: ("PersistentVolumeClaim selected-node",),
    WaitForVolumes: (),
    devices.ReserveClaim: ("ResourceClaim finalizer", "ResourceClaim allocation and reservation"),
    devices.CreateSpecialClaim: ("ResourceClaim for extended resources",),
    devices.RecordSpecialClaim: ("claim for extended resources in the pod's status",),
    devices.UnreserveClaim: ("removal of a reservation",),
    devices.DeallocateClaim: ("deallocation of a claim",),
    devices.DeleteClaim: ("deletion of a claim",),
    devices.WaitForDevices: (),
}

ROWS_OF_SITES: dict[str, tuple[str, ...]] = {
    # Writes of intents.
    "api_writes/claim_writes.py:_delete delete": ROWS_OF_INTENTS[devices.DeleteClaim],
    "api_writes/claim_writes.py:create create_typed": ROWS_OF_INTENTS[devices.CreateSpecialClaim],
    "api_writes/claim_writes.py:_patch patch": (),
    "api_writes/claim_writes.py:record patch": ROWS_OF_INTENTS[devices.RecordSpecialClaim],
    "api_writes/guarded_patches.py:patch patch_typed": (),
    "api_writes/bind_request_writes.py:_delete delete": ROWS_OF_INTENTS[DeleteBindRequest],
    "api_writes/bind_request_writes.py:_post create_typed": ROWS_OF_INTENTS[CreateBindRequest],
    "api_writes/writes.py:_annotate patch": ROWS_OF_INTENTS[AnnotatePod],
    "api_writes/writes.py:_bind bind": ROWS_OF_INTENTS[BindPod],
    "api_writes/writes.py:_delete_pod delete": ROWS_OF_INTENTS[DeletePod],
    "api_writes/writes.py:_set_volume_claim_ref patch": ROWS_OF_INTENTS[SetVolumeClaimRef],
    "api_writes/writes.py:_select_node patch": ROWS_OF_INTENTS[SetSelectedNode],
    # Other writes.
    "batch/live/gate_removal.py:_remove_gate patch": ("removal of a scheduling gate",),
    "batch/live/eviction.py:_write_conditions patch": ("conditions of a victim",),
    "batch/live/default_queues.py:_create_and_open create": ("creation of the queues root and default",),
    "batch/live/default_queues.py:_create_and_open patch": ("state of the queues root and default",),
    "batch/live/node_shard.py:_write_status patch": ("status of a NodeShard",),
    "batch/live/status_updater.py:_write_latest patch": ("status of a PodGroup", "status of a Queue"),
    "binder/gpu/reservations.py:_patch_labels patch": ("GPU group label", "removal of a GPU group label"),
    "binder/gpu/reservations.py:_delete delete": (
        "deletion of a GPU reservation",
        "deletion of a user of a GPU that is not reserved",
    ),
    "binder/gpu/reservations.py:_create_reservation create_typed": ("GPU reservation pod",),
    "binder/plugins/gpu_sharing.py:_replace patch": ("ConfigMap of a shared GPU",),
    "binder/plugins/gpu_sharing.py:_delete delete": ("deletion of the ConfigMap of a shared GPU",),
    "binder/plugins/gpu_sharing.py:upsert_config_map create": ("creation of the ConfigMap of a shared GPU",),
    "binder/status_updater.py:_patch_status patch_typed": ("status of a BindRequest",),
    "binder/status_updater.py:_write_condition patch": ("condition of a pod by the binder",),
    "client/election/lease_lock.py:create create": ("Lease",),
    "client/election/lease_lock.py:update update": ("Lease",),
    "scheduler/binding/preemption_executor.py:_delete patch": ("conditions of a victim",),
    "scheduler/pod_groups/group_statuses.py:_send patch": ("status of a PodGroup of scheduling.k8s.io",),
    "api_writes/pod_statuses.py:_patch_waiting patch": ("status of a pod",),
    "api_writes/pod_statuses.py:patch patch": ("status of a pod",),
}


def documented_rows() -> set[str]:
    """The first column of the table."""
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    first, *rows = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    assert (first, rows[0]) == ("write", "---")
    return set(rows[1:])


def test_every_write_of_the_documentation_is_tested() -> None:
    assert documented_rows() == set(ROWS)


def test_every_write_site_has_a_row() -> None:
    """A new write site or intent needs a row in the documentation and a test above."""
    assert write_sites(*SCANNED) == set(ROWS_OF_SITES)
    assert clients_of_other_names(*SCANNED) == set()


def test_every_intent_has_a_row(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        writes = ApiWrites(harness.client, RecordedEvents(), clock=harness.client.clock)
        assert set(writes._performers) == set(ROWS_OF_INTENTS)

    run_with_reconciler(tmp_path, test)


def test_every_row_is_of_a_write_that_is_sent() -> None:
    sent = {row for rows in (*ROWS_OF_INTENTS.values(), *ROWS_OF_SITES.values()) for row in rows}
    assert sent == set(ROWS)
