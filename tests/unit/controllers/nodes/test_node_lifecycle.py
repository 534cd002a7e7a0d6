"""Silent nodes: their taints, the eviction of their pods, and its rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bayplan.client import CORE_EVENTS, Client
from bayplan.clock import LoopClock, ManualClock
from bayplan.controllers import ControllerManager, NodePool
from bayplan.controllers.core.api_types import NODE_LEASES, NODES, PODS, PodFields, PodSpecFields, Tree
from bayplan.controllers.kubelet.node_status import conditions, new_lease
from bayplan.controllers.nodes.node_health import unknown_conditions, wanted_taints, with_taints
from bayplan.controllers.nodes.taint_eviction import toleration_s
from bayplan.objects.core import Node, NodeSpec, NodeStatus, Taint, Toleration
from bayplan.objects.meta import Condition, ObjectMeta
from support.harness.async_tests import async_test
from support.harness.controllers import ControllersHarness, advance_until
from support.harness.embedded_cluster import run_embedded_cluster

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("node-lifecycle-controller", "taint-eviction-controller", "pod-garbage-collector-controller")


class _TestClock(ManualClock):
    """Clock of the controllers under test; the fixture's own requests use the system clock."""


@asynccontextmanager
async def silent_nodes(folder: Path, count: int) -> AsyncIterator[tuple[ControllersHarness, ManualClock]]:
    """Nodes with one heartbeat and none after it. Time stands still until the test advances it."""
    clock = _TestClock(datetime.now(UTC))
    async with run_embedded_cluster(folder) as cluster, cluster.client() as setup_client:
        harness = ControllersHarness(cluster, setup_client)
        for manifest in NodePool("node", count).nodes():
            name = manifest["metadata"]["name"]
            created = await harness.make(
                NODES, {**manifest, "status": {**manifest["status"], "conditions": conditions(clock.now())}}
            )
            body = new_lease(name, created["metadata"]["uid"], clock.now())
            await setup_client.create(NODE_LEASES, body, namespace="kube-node-lease")
        target = setup_client.target
        loop_clock: LoopClock = clock
        async with Client(target, clock=loop_clock, chance=setup_client.chance, qps=-1.0) as client:
            controllers = ControllerManager(client, only=NAMES)
            running = asyncio.create_task(controllers.run())
            try:
                await controllers.wait_synced()
                yield harness, clock
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


def taints(found: Tree) -> set[tuple[str, str]]:
    return {(each["key"].rpartition("/")[2], each["effect"]) for each in found["spec"].get("taints") or ()}


def ready(found: Tree) -> str:
    return next(each["status"] for each in found["status"]["conditions"] if each["type"] == "Ready")


async def renew(harness: ControllersHarness, clock: ManualClock, *names: str) -> None:
    for name in names:
        moment = clock.now().strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
        await harness.client.patch(NODE_LEASES, {"spec": {"renewTime": moment}}, namespace="kube-node-lease", name=name)


@async_test
async def test_a_silent_node_becomes_unknown_and_its_pods_are_evicted_after_their_toleration(tmp_path: Path) -> None:
    async with silent_nodes(tmp_path, 3) as (harness, clock):
        stays = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
        for name, seconds in (("soon", 5), ("never", None)):
            toleration = stays if seconds is None else {**stays, "tolerationSeconds": seconds}
            spec = {"nodeName": "node-0", "containers": [{"name": "c", "image": "none"}], "tolerations": [toleration]}
            await harness.make(PODS, {"metadata": {"name": name}, "spec": {**spec, "terminationGracePeriodSeconds": 0}})
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await harness.patch_pod("never", {"status": running})

        async def unknown() -> bool:
            await renew(harness, clock, "node-1", "node-2")
            return ready(await harness.get(NODES, "node-0")) == "Unknown"

        await advance_until(clock, unknown, step_s=5.0)
        assert ready(await harness.get(NODES, "node-1")) == "True"

        async def tainted() -> bool:
            await renew(harness, clock, "node-1", "node-2")
            found = taints(await harness.get(NODES, "node-0"))
            return found == {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}

        await advance_until(clock, tainted, step_s=0.2)

        async def pods_evicted() -> bool:
            await renew(harness, clock, "node-1", "node-2")
            return [each["metadata"]["name"] for each in await harness.pods()] == ["never"]

        await advance_until(clock, pods_evicted)

        async def reported() -> bool:
            found = [each for each in await harness.list(CORE_EVENTS) if each["reason"] == "NodeNotReady"]
            kinds = {(each["involvedObject"]["kind"], each["type"]) for each in found}
            return kinds == {("Node", "Normal"), ("Pod", "Warning")}

        await harness.until(reported, "a normal event of the node and a warning of its ready pod")
        reported_conditions = conditions(clock.now())
        await harness.client.patch(
            NODES, {"status": {"conditions": reported_conditions}}, name="node-0", subresource="status"
        )
        await renew(harness, clock, "node-0")

        async def recovered() -> bool:
            await renew(harness, clock, "node-0", "node-1", "node-2")
            return not taints(await harness.get(NODES, "node-0"))

        await advance_until(clock, recovered, step_s=0.1)


@async_test
async def test_a_node_without_status_becomes_unknown_after_the_startup_grace(tmp_path: Path) -> None:
    async with silent_nodes(tmp_path, 2) as (harness, clock):
        (manifest,) = NodePool("new", 1).nodes()
        await harness.make(NODES, manifest)
        started, silent_s = clock.monotonic_s(), 0.0

        async def unknown() -> bool:
            nonlocal silent_s
            await renew(harness, clock, "node-0", "node-1")
            found = await harness.get(NODES, "new-0")
            if found["status"].get("conditions"):
                return True
            assert taints(found) <= {("not-ready", "NoSchedule")}, "the API server adds this taint to every new node"
            silent_s = clock.monotonic_s() - started
            return False

        await advance_until(clock, unknown, step_s=0.5)
        assert silent_s >= 59
        found = await harness.get(NODES, "new-0")
        assert {each["reason"] for each in found["status"]["conditions"]} == {"NodeStatusNeverUpdated"}

        async def tainted() -> bool:
            await renew(harness, clock, "node-0", "node-1")
            found = taints(await harness.get(NODES, "new-0"))
            return found == {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}

        await advance_until(clock, tainted, step_s=0.5)


@async_test
async def test_no_pod_is_evicted_when_all_nodes_are_silent(tmp_path: Path) -> None:
    async with silent_nodes(tmp_path, 2) as (harness, clock):

        async def unknown() -> bool:
            nodes = await harness.list(NODES)
            return all(("unreachable", "NoSchedule") in taints(each) for each in nodes)

        await advance_until(clock, unknown, step_s=5.0)
        started = clock.monotonic_s()

        async def not_evicted_for_long() -> bool:
            evicting = [("unreachable", "NoExecute") in taints(each) for each in await harness.list(NODES)]
            return not any(evicting) and clock.monotonic_s() - started > 120

        await advance_until(clock, not_evicted_for_long, step_s=5.0)
        assert [each["metadata"]["name"] for each in await harness.list(NODES)] == ["node-0", "node-1"]


@async_test
async def test_pods_of_a_deleted_node_are_deleted_after_the_quarantine(tmp_path: Path) -> None:
    async with silent_nodes(tmp_path, 1) as (harness, clock):
        spec = {"nodeName": "node-0", "containers": [{"name": "c", "image": "none"}]}
        await harness.make(PODS, {"metadata": {"name": "p"}, "spec": spec})
        await harness.delete(NODES, "node-0")

        async def pods_deleted() -> bool:
            await renew(harness, clock)
            return not await harness.pods()

        started = clock.monotonic_s()
        await advance_until(clock, pods_deleted, step_s=4.0)
        assert clock.monotonic_s() - started >= 40


# Pure functions.


def node(*reported_conditions: tuple[str, str], taints_: tuple[Taint, ...] = (), cordoned: bool = False) -> Node:
    status = NodeStatus(conditions=tuple(Condition(type=kind, status=value) for kind, value in reported_conditions))
    return Node(metadata=ObjectMeta(name="n"), spec=NodeSpec(taints=taints_, unschedulable=cordoned), status=status)


@pytest.mark.parametrize(
    ("found", "evicting", "expected"),
    [
        pytest.param(node(("Ready", "True")), True, set(), id="well"),
        pytest.param(
            node(("Ready", "False")), True, {("not-ready", "NoSchedule"), ("not-ready", "NoExecute")}, id="ill"
        ),
        pytest.param(node(("Ready", "Unknown")), False, {("unreachable", "NoSchedule")}, id="silent, no hurry"),
        pytest.param(node(), True, set(), id="never heard of"),
        pytest.param(node(("Ready", "True"), cordoned=True), True, {("unschedulable", "NoSchedule")}, id="cordoned"),
        pytest.param(
            node(("Ready", "True"), ("DiskPressure", "True")), True, {("disk-pressure", "NoSchedule")}, id="full"
        ),
    ],
)
def test_wanted_taints(found: Node, evicting: bool, expected: set[tuple[str, str]]) -> None:
    wanted = {(key.rpartition("/")[2], effect) for key, effect in wanted_taints(found, evicting=evicting)}
    assert wanted == expected


def test_foreign_taints_stay() -> None:
    managed, foreign = (
        Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"),
        Taint(key="a", value="b", effect="NoExecute"),
    )
    found = with_taints(node(("Ready", "True"), taints_=(managed, foreign)), set(), NOW)
    assert found == [{"key": "a", "value": "b", "effect": "NoExecute"}]
    assert with_taints(node(("Ready", "True"), taints_=(foreign,)), set(), NOW) is None


def test_unknown_conditions() -> None:
    reported_conditions = unknown_conditions(node(("Ready", "True"), ("MemoryPressure", "Unknown")), NOW)
    assert [(each["type"], each["reason"]) for each in reported_conditions] == [
        ("Ready", "NodeStatusUnknown"),
        ("DiskPressure", "NodeStatusNeverUpdated"),
        ("PIDPressure", "NodeStatusNeverUpdated"),
    ]


A, B = Taint(key="a", effect="NoExecute"), Taint(key="b", effect="NoExecute")


@pytest.mark.parametrize(
    ("tolerations", "taints_", "expected"),
    [
        ((), (A,), 0.0),
        ((Toleration(key="a", operator="Exists"),), (A,), float("inf")),
        ((Toleration(key="a", operator="Exists", toleration_seconds=30),), (A,), 30.0),
        ((Toleration(key="a", operator="Exists", toleration_seconds=30),), (A, B), 0.0),
        ((Toleration(key="a", operator="Exists", toleration_seconds=-1),), (A,), 0.0),
        (
            (
                Toleration(key="a", operator="Exists", toleration_seconds=30),
                Toleration(operator="Exists", toleration_seconds=10),
            ),
            (A, B),
            10.0,
        ),
    ],
)
def test_toleration_seconds(tolerations: tuple[Toleration, ...], taints_: tuple[Taint, ...], expected: float) -> None:
    assert toleration_s(PodFields(spec=PodSpecFields(tolerations=tolerations)), taints_) == expected
