"""Nodes that fall silent, the taints that say so, the pods that must leave, and how fast."""

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
from bayplan.controllers.core.api_types import (
    NODE_LEASES,
    NODES,
    PODS,
    PodFields,
    PodSpecFields,
    Tree,
)
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


class _Watches(ManualClock):
    """Watches and requests go by the machine's time, everything else by the test's."""


@asynccontextmanager
async def silent_world(folder: Path, count: int) -> AsyncIterator[tuple[ControllersHarness, ManualClock]]:
    """Nodes that were well once and of which nothing is heard; time stands still until it is moved."""
    clock = _Watches(datetime.now(UTC))
    async with run_embedded_cluster(folder) as cluster, cluster.client() as asking:
        world = ControllersHarness(cluster, asking)
        for manifest in NodePool("node", count).nodes():
            name = manifest["metadata"]["name"]
            made = await world.make(
                NODES, {**manifest, "status": {**manifest["status"], "conditions": conditions(clock.now())}}
            )
            body = new_lease(name, made["metadata"]["uid"], clock.now())
            await asking.create(NODE_LEASES, body, namespace="kube-node-lease")
        target = asking.target
        loop_clock: LoopClock = clock
        async with Client(target, clock=loop_clock, chance=asking.chance, qps=-1.0) as client:
            controllers = ControllerManager(client, only=NAMES)
            running = asyncio.create_task(controllers.run())
            try:
                await controllers.synced()
                yield world, clock
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


def taints(found: Tree) -> set[tuple[str, str]]:
    return {(each["key"].rpartition("/")[2], each["effect"]) for each in found["spec"].get("taints") or ()}


def ready(found: Tree) -> str:
    return next(each["status"] for each in found["status"]["conditions"] if each["type"] == "Ready")


async def renew(world: ControllersHarness, clock: ManualClock, *names: str) -> None:
    for name in names:
        moment = clock.now().strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
        await world.client.patch(NODE_LEASES, {"spec": {"renewTime": moment}}, namespace="kube-node-lease", name=name)


@async_test
async def test_a_node_that_falls_silent_is_unknown_and_its_pods_leave_when_their_time_is_over(tmp_path: Path) -> None:
    async with silent_world(tmp_path, 3) as (world, clock):
        stays = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
        for name, seconds in (("soon", 5), ("never", None)):
            toleration = stays if seconds is None else {**stays, "tolerationSeconds": seconds}
            spec = {"nodeName": "node-0", "containers": [{"name": "c", "image": "none"}], "tolerations": [toleration]}
            await world.make(PODS, {"metadata": {"name": name}, "spec": {**spec, "terminationGracePeriodSeconds": 0}})
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await world.patch_pod("never", {"status": running})

        async def unknown() -> bool:
            await renew(world, clock, "node-1", "node-2")
            return ready(await world.get(NODES, "node-0")) == "Unknown"

        await advance_until(clock, unknown, step_s=5.0)
        assert ready(await world.get(NODES, "node-1")) == "True"

        async def tainted() -> bool:
            await renew(world, clock, "node-1", "node-2")
            found = taints(await world.get(NODES, "node-0"))
            return found == {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}

        await advance_until(clock, tainted, step_s=0.2)

        async def left() -> bool:
            await renew(world, clock, "node-1", "node-2")
            return [each["metadata"]["name"] for each in await world.pods()] == ["never"]

        await advance_until(clock, left)

        async def reported() -> bool:
            found = [each for each in await world.list(CORE_EVENTS) if each["reason"] == "NodeNotReady"]
            kinds = {(each["involvedObject"]["kind"], each["type"]) for each in found}
            return kinds == {("Node", "Normal"), ("Pod", "Warning")}

        await world.until(reported, "a normal event of the node and a warning of its ready pod")
        told = conditions(clock.now())
        await world.client.patch(NODES, {"status": {"conditions": told}}, name="node-0", subresource="status")
        await renew(world, clock, "node-0")

        async def well() -> bool:
            await renew(world, clock, "node-0", "node-1", "node-2")
            return not taints(await world.get(NODES, "node-0"))

        await advance_until(clock, well, step_s=0.1)


@async_test
async def test_a_node_that_never_said_how_it_is_has_a_minute_for_it(tmp_path: Path) -> None:
    async with silent_world(tmp_path, 2) as (world, clock):
        (manifest,) = NodePool("new", 1).nodes()
        await world.make(NODES, manifest)
        started, quiet = clock.monotonic_s(), 0.0

        async def unknown() -> bool:
            nonlocal quiet
            await renew(world, clock, "node-0", "node-1")
            found = await world.get(NODES, "new-0")
            if found["status"].get("conditions"):
                return True
            assert taints(found) <= {("not-ready", "NoSchedule")}, "which the server gives to every new one"
            quiet = clock.monotonic_s() - started
            return False

        await advance_until(clock, unknown, step_s=0.5)
        assert quiet >= 59
        found = await world.get(NODES, "new-0")
        assert {each["reason"] for each in found["status"]["conditions"]} == {"NodeStatusNeverUpdated"}

        async def tainted() -> bool:
            await renew(world, clock, "node-0", "node-1")
            found = taints(await world.get(NODES, "new-0"))
            return found == {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}

        await advance_until(clock, tainted, step_s=0.5)


@async_test
async def test_where_nothing_is_heard_of_any_node_nobody_is_driven_off(tmp_path: Path) -> None:
    async with silent_world(tmp_path, 2) as (world, clock):

        async def unknown() -> bool:
            nodes = await world.list(NODES)
            return all(("unreachable", "NoSchedule") in taints(each) for each in nodes)

        await advance_until(clock, unknown, step_s=5.0)
        started = clock.monotonic_s()

        async def left_alone_for_long() -> bool:
            evicting = [("unreachable", "NoExecute") in taints(each) for each in await world.list(NODES)]
            return not any(evicting) and clock.monotonic_s() - started > 120

        await advance_until(clock, left_alone_for_long, step_s=5.0)
        assert [each["metadata"]["name"] for each in await world.list(NODES)] == ["node-0", "node-1"]


@async_test
async def test_pods_of_a_node_that_is_gone_go_after_a_while(tmp_path: Path) -> None:
    async with silent_world(tmp_path, 1) as (world, clock):
        spec = {"nodeName": "node-0", "containers": [{"name": "c", "image": "none"}]}
        await world.make(PODS, {"metadata": {"name": "p"}, "spec": spec})
        await world.delete(NODES, "node-0")

        async def gone() -> bool:
            await renew(world, clock)
            return not await world.pods()

        started = clock.monotonic_s()
        await advance_until(clock, gone, step_s=4.0)
        assert clock.monotonic_s() - started >= 40


# Pure parts


def node(*told: tuple[str, str], held: tuple[Taint, ...] = (), cordoned: bool = False) -> Node:
    status = NodeStatus(conditions=tuple(Condition(type=kind, status=value) for kind, value in told))
    return Node(metadata=ObjectMeta(name="n"), spec=NodeSpec(taints=held, unschedulable=cordoned), status=status)


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
def test_which_taints_a_node_should_have(found: Node, evicting: bool, expected: set[tuple[str, str]]) -> None:
    wanted = {(key.rpartition("/")[2], effect) for key, effect in wanted_taints(found, evicting=evicting)}
    assert wanted == expected


def test_taints_of_others_are_left_alone() -> None:
    mine, theirs = (
        Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"),
        Taint(key="a", value="b", effect="NoExecute"),
    )
    found = with_taints(node(("Ready", "True"), held=(mine, theirs)), set(), NOW)
    assert found == [{"key": "a", "value": "b", "effect": "NoExecute"}]
    assert with_taints(node(("Ready", "True"), held=(theirs,)), set(), NOW) is None


def test_what_is_said_of_silence() -> None:
    told = unknown_conditions(node(("Ready", "True"), ("MemoryPressure", "Unknown")), NOW)
    assert [(each["type"], each["reason"]) for each in told] == [
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
def test_how_long_a_pod_may_stay(
    tolerations: tuple[Toleration, ...], taints_: tuple[Taint, ...], expected: float
) -> None:
    assert toleration_s(PodFields(spec=PodSpecFields(tolerations=tolerations)), taints_) == expected
