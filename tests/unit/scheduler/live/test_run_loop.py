"""Run loop: slices, floods of events, timers and wake-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from bayplan.api_writes.observer import NoSchedulerObserver
from bayplan.app import known_plugins
from bayplan.clock import ManualClock
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.handle import Handle
from bayplan.objects.core import Pod
from bayplan.objects.volumes import AzureDisk
from bayplan.queue import SchedulingQueue
from bayplan.queue.queued_pod import SubQueue
from bayplan.scheduler.binding import binding_cycle
from bayplan.scheduler.live.run_loop import SLICE_S, LiveScheduler
from support.builders.framework import make_node, make_pod
from support.builders.volumes import claim_volume, make_claim, make_csi_node, make_volume, volume_pod
from support.fakes.http_server import NoAnswer
from support.harness.async_tests import async_test, count_loop_turns, wait_until
from support.harness.live_scheduler import LiveSchedulerHarness, run_live_scheduler

NODE = make_node("n", cpu="100")


@async_test
async def test_pods_are_bound_in_the_order_of_priority() -> None:
    pods = [make_pod(f"p{number}", cpu="1", priority=number) for number in range(5)]
    async with run_live_scheduler(NODE, *pods) as harness:
        assert list(harness.bound()) == ["p4", "p3", "p2", "p1", "p0"]


@async_test
async def test_ties_are_broken_at_random_or_in_order() -> None:
    """Pods without requests give all nodes the same score."""
    nodes = [make_node(f"n{number}") for number in range(8)]
    config = (
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n"
        "- plugins: {multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: NodeName}, "
        "{name: ImageLocality}, {name: DefaultBinder}]}}\n"
    )
    taken = {}
    for ties in ("drawn", "inOrder"):
        async with run_live_scheduler(*nodes, config=config, settings=BayplanSettings(ties=ties)) as harness:  # type: ignore[arg-type]
            harness.deliver(*(make_pod(f"p{number}") for number in range(12)))
            await harness.wait_for_request("POST", "/binding", 12)
            taken[ties] = {pod.spec.node_name for pod in harness.live.engine.cache.pods()}
    assert taken["inOrder"] == {"n0"}
    assert len(taken["drawn"]) > 1


@async_test
async def test_no_attempt_runs_before_all_queued_events_are_handled() -> None:
    """The pod is delivered before the pods that fill the node: its attempt must count them."""
    full = [make_pod(f"old-{number}", cpu="1", node="n") for number in range(100)]
    async with run_live_scheduler(NODE, make_pod("new", cpu="1"), *full) as harness:
        assert harness.bound() == {}


class Ticking(ManualClock):
    """A clock that advances with every reading."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s = step_s

    def monotonic_s(self) -> float:
        self._elapsed_s += self.step_s
        return self._elapsed_s


def slow_down(harness: LiveSchedulerHarness, step_s: float = SLICE_S) -> None:
    """From now on every reading of the clock takes a slice."""
    ticking = Ticking(step_s)
    ticking._elapsed_s = harness.clock.monotonic_s()
    harness.live.clock = harness.live.event_queue.clock = ticking


@async_test
async def test_other_tasks_run_between_attempts() -> None:
    async with run_live_scheduler(NODE) as harness:
        slow_down(harness)
        async with count_loop_turns() as turns:
            harness.deliver(*(make_pod(f"p{number}", cpu="1") for number in range(20)))
            await harness.wait_for_request("POST", "/binding", 20)
            assert turns() >= 20


@async_test
async def test_other_tasks_run_between_pod_events() -> None:
    """A new pod wakes no other pod, so its event has no slices of its own."""
    async with run_live_scheduler(NODE) as harness:
        harness.live.stop_scheduling()
        slow_down(harness)
        async with count_loop_turns() as turns:
            harness.deliver(*(make_pod(f"p{number}", cpu="1") for number in range(20)))
            await wait_until(lambda: not harness.live.event_queue.waiting)
            assert turns() >= 20
        assert harness.live.queue.counts()["active"] == 20


@async_test
async def test_a_flood_of_events_does_not_block_attempts() -> None:
    async with run_live_scheduler(NODE) as harness:
        slow_down(harness)
        harness.deliver(make_pod("p", cpu="1"))
        number = 0

        def flood() -> None:
            nonlocal number
            number += 1
            for extra in range(200):
                harness.live.handle_event(None, make_node(f"more-{number}-{extra}", cpu="1"))

        flood()
        while not harness.bound():
            flood()
            await asyncio.sleep(0)
        assert harness.live.event_queue.waiting


@async_test
async def test_an_event_that_cannot_be_handled_stops_no_other_event() -> None:
    async with run_live_scheduler(NODE) as harness:
        moves = harness.live.event_handlers.moves

        def broken(old: Any, new: Any) -> Any:
            if new.name == "bad":
                raise ValueError("a bug")
            return moves(old, new)

        harness.live.event_handlers.moves = broken  # type: ignore[method-assign]
        harness.deliver(make_node("bad"), make_node("good"))
        await wait_until(lambda: harness.live.engine.cache.node("good"))
        assert harness.live.engine.cache.node("bad") is None
        harness.deliver(make_pod("p", cpu="1"))
        await harness.idle()
        assert list(harness.bound()) == ["p"], "it goes on scheduling"


@async_test
async def test_an_event_that_takes_many_slices_is_finished_without_another_event() -> None:
    async with run_live_scheduler(NODE) as harness:
        finished = []

        class Slow:
            def start(self, _: SchedulingQueue) -> Iterator[None]:
                for _ in range(100):
                    harness.clock.advance(2 * SLICE_S)
                    yield
                finished.append(True)

        harness.live.event_handlers.moves = lambda *_: iter([Slow()])  # type: ignore[assignment,method-assign,misc]
        harness.live.handle_event(None, make_node("another"))
        await wait_until(lambda: finished)
        assert harness.live.is_idle


@async_test
async def test_pods_wait_in_the_queue_at_the_limit_of_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding_cycle, "_MAX_WRITES_IN_FLIGHT", 10)
    monkeypatch.setattr(binding_cycle, "_RESUME_WRITES_IN_FLIGHT", 8)
    async with run_live_scheduler(NODE) as harness:
        slow_down(harness)  # so that every binding starts before the next pod is popped
        turns = asyncio.Semaphore(0)

        async def in_turn(request: Any) -> Any:
            await turns.acquire()
            return harness.answer(request)

        harness.server.route = in_turn
        harness.deliver(*(make_pod(f"p{number}", cpu="1") for number in range(15)))
        await harness.wait_for_request("POST", "/binding", 10)
        await wait_until(lambda: not harness.live.event_queue.waiting)
        assert harness.live.queue.counts()["active"] == 5
        urgent = make_pod("urgent", cpu="1", priority=100)
        harness.deliver(urgent)
        await wait_until(lambda: harness.pool(urgent) is SubQueue.ACTIVE)
        for _ in range(2):
            turns.release()
        await wait_until(lambda: harness.live.bindings.cycle.writes_in_flight == 8)
        await wait_until(lambda: not harness.live.event_queue.waiting)
        assert harness.live.queue.counts()["active"] == 6, "eight writes are not below the limit"
        turns.release()
        await harness.wait_for_request("POST", "/binding", 11)
        assert "urgent" in harness.bound()


@async_test
async def test_new_bindings_start_although_no_pod_is_bound_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod at the binder has no write in progress, and stays assumed as long as the binder takes."""
    monkeypatch.setattr(binding_cycle, "_MAX_WRITES_IN_FLIGHT", 2)
    monkeypatch.setattr(binding_cycle, "_RESUME_WRITES_IN_FLIGHT", 1)
    async with run_live_scheduler(NODE) as harness:
        slow_down(harness)
        turns = asyncio.Semaphore(0)
        at_the_binder: set[str] = set()

        class IdleTracker:
            def track(self, pod: Pod, on_result: Any) -> None:  # noqa: ARG002
                at_the_binder.add(pod.name)

            def stop_tracking(self) -> None:
                at_the_binder.clear()

        async def in_turn(request: Any) -> Any:
            await turns.acquire()
            return harness.answer(request)

        harness.server.route = in_turn
        harness.live.bindings.cycle.bind_requests = IdleTracker()  # type: ignore[assignment]
        harness.deliver(*(make_pod(f"p{number}", cpu="1") for number in range(5)))
        await harness.wait_for_request("POST", "/binding", 2)
        await wait_until(lambda: not harness.live.event_queue.waiting)
        assert harness.live.queue.counts()["active"] == 3
        for _ in range(5):
            turns.release()
        await harness.wait_for_request("POST", "/binding", 5)
        await wait_until(lambda: len(at_the_binder) == 5)
        assert harness.live.pods_in_binding == 5


@async_test
async def test_backoff_ends_without_any_event() -> None:
    async with run_live_scheduler(make_pod("p", cpu="1")) as harness:  # no nodes: an error
        assert harness.pool(make_pod("p")) is SubQueue.ERROR_BACKOFF
        harness.clock.advance(2)
        await wait_until(lambda: harness.attempts(make_pod("p")) == 2)


@async_test
async def test_a_plugin_may_activate_pods_at_any_time() -> None:
    large = make_pod("large", cpu="200")
    async with run_live_scheduler(NODE, large) as harness:
        assert harness.pool(large) is SubQueue.UNSCHEDULABLE
        harness.live.engine.pods_to_activate[large.key] = large
        harness.live.wake()
        await wait_until(lambda: harness.attempts(large) == 2)


@async_test
async def test_a_pod_that_is_activated_in_post_bind_is_tried_at_once() -> None:
    """No other event wakes the loop then."""
    large = make_pod("large", cpu="200")

    class Calling:
        name = "Calling"

        def __init__(self, handle: Handle) -> None:
            self._handle = handle

        @classmethod
        def factory(cls, args: object, handle: Handle) -> Calling:  # noqa: ARG003
            return cls(handle)

        async def post_bind(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
            self._handle.activate({large.key: large})

    config = (
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n"
        "- plugins: {multiPoint: {enabled: [{name: Calling}]}}\n"
    )
    async with run_live_scheduler(
        NODE, large, config=config, registry=known_plugins().with_plugins(Calling)
    ) as harness:
        assert harness.pool(large) is SubQueue.UNSCHEDULABLE
        assert harness.attempts(large) == 1
        harness.deliver(make_pod("small", cpu="1"))
        await wait_until(lambda: harness.attempts(large) == 2)
        assert [each.about for each in harness.events.recorded] == ["large", "small"]


@async_test
async def test_a_bound_pod_does_not_wake_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    turn = LiveScheduler._run_slice

    async def counted(live: LiveScheduler) -> bool:
        turns.append(live.pods_in_binding)
        return await turn(live)

    monkeypatch.setattr(LiveScheduler, "_run_slice", counted)
    async with run_live_scheduler(NODE) as harness:
        answered = asyncio.Event()

        async def in_turn(request: Any) -> Any:
            await answered.wait()
            return harness.answer(request)

        harness.server.route = in_turn
        harness.deliver(make_pod("p", cpu="1"))
        await harness.wait_for_request("POST", "/binding")
        before = len(turns)
        answered.set()
        await harness.idle()
        for _ in range(10):
            await asyncio.sleep(0)
        assert (turns[before:], harness.live.pods_in_binding) == ([], 0)


@async_test
async def test_without_the_lease_events_are_handled_and_no_attempt_runs() -> None:
    async with run_live_scheduler(NODE, make_pod("p", cpu="1"), decide=False) as harness:
        await wait_until(lambda: harness.live.queue.counts()["active"] == 1)
        assert harness.live.engine.cache.node("n") is not None
        assert harness.server.requests == []


@async_test
async def test_stopping_finishes_bindings_and_starts_no_attempt() -> None:
    async with run_live_scheduler(NODE) as harness:
        gate = asyncio.Event()

        async def late(request: Any) -> Any:
            await gate.wait()
            return harness.answer(request)

        harness.server.route = late
        harness.deliver(make_pod("first", cpu="1"))
        await harness.wait_for_request("POST", "/binding")
        harness.live.stop_scheduling()
        harness.deliver(make_pod("second", cpu="1"))
        draining = asyncio.ensure_future(harness.live.drain())
        await asyncio.sleep(0.01)
        assert not draining.done()
        gate.set()
        await draining
        assert list(harness.bound()) == ["first"]


@async_test
async def test_abandon_ends_at_once() -> None:
    async with run_live_scheduler(NODE) as harness:
        harness.fail_next("POST", "/binding", NoAnswer())
        harness.fail_next("PATCH", "/status", NoAnswer())
        harness.deliver(make_pod("bound", cpu="1"), make_pod("large", cpu="200"))
        await harness.wait_for_request("POST", "/binding")
        await harness.wait_for_request("PATCH", "/status")
        await harness.live.abandon()
        assert not harness.live.bindings.tasks
        assert not harness.live.writes.busy


@async_test
async def test_the_size_of_the_decision_ring_comes_from_the_settings() -> None:
    many = [make_pod(f"p{number}", cpu="1m") for number in range(3)]
    nodes = [make_node(f"{'n' * 200}{number}", cpu="100") for number in range(5)]
    async with run_live_scheduler(*nodes, settings=BayplanSettings(records_mebibytes=1)) as harness:
        harness.deliver(*many)
        await harness.wait_for_request("POST", "/binding", len(many))
        records = harness.live.engine.records
        (first, *_) = records
        for _ in range(2 * (1 << 20) // first.size_bytes):
            records.add(first)
        assert 0.9 * (1 << 20) < records.size_bytes <= 1 << 20


class Failures(NoSchedulerObserver):
    """Records failures of volumes."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def observe_volume_failure(self, stage: str) -> None:
        self.stages.append(stage)


@async_test
async def test_the_observer_is_called_for_volume_failures() -> None:
    disk = make_volume("pv", azure_disk=AzureDisk("d", "u", "Shared"))
    migrated = make_csi_node("n", migrated="kubernetes.io/azure-disk")
    failures = Failures()
    async with run_live_scheduler(NODE, disk, make_claim(volume="pv"), migrated, observer=failures) as harness:
        harness.deliver(volume_pod(claim_volume("claim")))
        await harness.wait_for_request("PATCH", "/status")
        assert failures.stages == ["predicate"]
