"""PreBind that is cancelled while it writes: the pod keeps its node and its devices until the outcome is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from bayplan.app import known_plugins
from bayplan.framework import Cycle, PreBindPreFlightResult, unschedulable
from bayplan.framework.api.status import Status
from support.builders.devices import device, make_class, make_slice, protected_claim, using_claim
from support.builders.framework import make_node, make_pod
from support.fakes.http_server import Reply, Request, ServerAnswer
from support.harness.async_tests import async_test, wait_until
from support.harness.live_scheduler import LiveSchedulerHarness, run_live_scheduler

NODE = make_node("n", cpu="4")
DEVICES = (make_slice(device("gpu-0"), node="n"), make_class("gpu"), protected_claim("a"), protected_claim("b"))


FIRST = using_claim(make_pod("first", cpu="3", priority=1), "a")
SECOND = using_claim(make_pod("second", cpu="1", priority=1), "b")
STRONG = make_pod("strong", cpu="2", priority=9)


class Refuses:
    """Fails in PreBind on the test's signal; runs with DynamicResources."""

    name = "Refuses"
    events_to_register = ()
    now: asyncio.Event
    has_failed = False

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> PreBindPreFlightResult:  # noqa: ARG002
        return PreBindPreFlightResult(allow_parallel=True)

    async def pre_bind(self, cycle: Cycle, node_name: str) -> Status | None:  # noqa: ARG002
        if cycle.pod.name != "first":
            return None
        await self.now.wait()
        Refuses.has_failed = True
        return unschedulable("not now")


@dataclass
class World:
    """`gate` opens for the first allocation of claim `a`; `is_cut`: its connections are cut instead."""

    harness: LiveSchedulerHarness
    is_cut: bool
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    requests: int = 0
    writes: list[str] = field(default_factory=list)
    """Changes of claim `a`, in order."""
    trees: dict[str, dict[str, Any]] = field(default_factory=dict)

    def route(self, request: Request) -> Any:
        _, _, name = request.path.partition("/resourceclaims/")
        if not name:
            return self.harness.answer(request)
        name = name.removesuffix("/status")
        if request.method == "PATCH" and name == "a":
            self.requests += 1
            if self.is_cut:
                return Reply(raw=b"", close=True)
            return self._answer_after_gate(name, request)
        return self._answer(name, request)

    async def _answer_after_gate(self, name: str, request: Request) -> ServerAnswer:
        await self.gate.wait()
        return self._answer(name, request)

    def _answer(self, name: str, request: Request) -> ServerAnswer:
        tree = self.trees.setdefault(name, json.loads(msgspec.json.encode(protected_claim(name))))
        if request.method == "PATCH":
            tree["metadata"]["resourceVersion"] = str(int(tree["metadata"]["resourceVersion"]) + 1)
            reserved = request.json["status"].get("reservedFor", [])
            if any("$patch" in each for each in reserved):
                tree["status"]["reservedFor"] = []
            else:
                tree["status"] = request.json["status"]
            if name == "a":
                self.writes.append("reserved" if tree["status"]["reservedFor"] else "withdrawn")
        return Reply(200, msgspec.json.encode(tree))

    @property
    def is_held(self) -> bool:
        return any(each.device == "gpu-0" for each in self.harness.live.engine.cache.devices.in_use._whole)

    async def advance(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.5)):
            self.harness.clock.advance(0.5)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def world(*, is_cut: bool, refuses: bool) -> AsyncIterator[World]:
    """`first` is in PreBind and has sent the allocation of its claim."""
    config = None
    registry = known_plugins()
    if refuses:
        Refuses.now, Refuses.has_failed = asyncio.Event(), False
        registry = registry.with_plugins(Refuses)
        config = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{plugins: {multiPoint: {enabled: [{name: Refuses}]}}}]
"""
    async with run_live_scheduler(NODE, *DEVICES, config=config, registry=registry) as harness:
        made = World(harness, is_cut)
        harness.server.route = made.route
        harness.deliver(FIRST)
        await wait_until(lambda: made.requests)
        yield made


async def cancel(world: World, *, refuses: bool) -> None:
    """A stronger pod preempts `first`, or a plugin beside DynamicResources fails."""
    if refuses:
        Refuses.now.set()
        await wait_until(lambda: Refuses.has_failed)
    else:
        world.harness.deliver(STRONG)
        await wait_until(lambda: any(each.reason == "Preempted" for each in world.harness.events.recorded))
    await asyncio.sleep(0.01)


REASONS = pytest.mark.parametrize("refuses", [False, True], ids=["preempted", "a parallel plugin failed"])


@REASONS
def test_devices_stay_reserved_while_the_outcome_of_their_allocation_is_unknown(refuses: bool) -> None:
    @async_test
    async def test() -> None:
        async with world(is_cut=True, refuses=refuses) as made:
            await cancel(made, refuses=refuses)
            made.harness.deliver(SECOND)
            await made.advance(30.0)
            assert made.is_held
            assert made.harness.bound() == {}
            if refuses:
                made.harness.deliver_deletion(FIRST)
            await wait_until(lambda: "second" in made.harness.bound(), tick=lambda: made.harness.clock.advance(1.0))
            assert made.harness.clock.monotonic_s() > 60.0  # none of the requests can take effect any more

    test()


@REASONS
def test_an_allocation_that_was_written_is_reverted(refuses: bool) -> None:
    @async_test
    async def test() -> None:
        async with world(is_cut=False, refuses=refuses) as made:
            await cancel(made, refuses=refuses)
            made.harness.deliver(SECOND)
            await asyncio.sleep(0.05)
            assert made.is_held
            assert made.harness.bound() == {}
            made.gate.set()
            await wait_until(lambda: len(made.writes) >= 2)
            assert made.writes[:2] == ["reserved", "withdrawn"]
            assert made.is_held  # by the allocation that was written
            assert "second" not in made.harness.bound()

    test()


@REASONS
def test_the_process_ends_without_waiting_for_the_write(refuses: bool) -> None:
    @async_test
    async def test() -> None:
        async with world(is_cut=False, refuses=refuses) as made:
            await cancel(made, refuses=refuses)
            await asyncio.wait_for(made.harness.live.abandon(), 5.0)

    test()
