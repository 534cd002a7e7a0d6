"""Binding cycle: the steps and their order, waits at Permit, and what a failure at each step undoes."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest

from bayplan.app import known_plugins
from bayplan.client import worker_slot
from bayplan.errors import LeaseLost
from bayplan.framework import SKIP, Cycle, PermitWait, PreBindPreFlightResult, pending, unschedulable
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod
from bayplan.queue.queued_pod import SubQueue
from bayplan.scheduler.binding.pre_bind_tasks import PreBindTasks
from support.builders.framework import make_node, make_pod, replace_fields
from support.fakes.http_server import NoAnswer, Reply, status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_scheduler import LiveSchedulerHarness, RecordedEvent, conditions, run_live_scheduler

NODE = make_node("n", cpu="4")
POD = make_pod("p", cpu="1")
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint: {enabled: [{name: First}, {name: Second}]}
    bind: {disabled: [{name: DefaultBinder}], enabled: [{name: First}, {name: Second}, {name: DefaultBinder}]}
"""
STEPS = ("reserve", "permit", "preflight", "pre_bind", "bind")


class Spy:
    """Records the calls of every point from Reserve on, and returns the answers of the test."""

    name = "Spy"
    log: list[str]
    answers: dict[str, Any]
    events_to_register = ()

    def _record(self, point: str) -> Any:
        self.log.append(f"{point} {self.name}")
        answer = self.answers.get(f"{point} {self.name}", SKIP if point == "bind" else None)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def reserve(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return self._record("reserve")

    def unreserve(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
        self._record("unreserve")

    def permit(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return self._record("permit")

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return self._record("preflight")

    async def pre_bind(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        answer = self._record("pre_bind")
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return None
        return answer

    async def bind(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return self._record("bind")

    async def post_bind(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
        self._record("post_bind")


def spies(log: list[str], **answers: Any) -> Registry:
    """A registry with two spies. Answers are keyed by point and plugin: `spies(log, permit_First=PermitWait(5))`."""
    known = {key.rpartition("_")[0] + " " + key.rpartition("_")[2]: value for key, value in answers.items()}
    kinds = [type(name, (Spy,), {"name": name, "log": log, "answers": known}) for name in ("First", "Second")]
    return known_plugins().with_plugins(*kinds)


def way(log: list[str]) -> list[str]:
    return [each.replace("First", "1").replace("Second", "2") for each in log]


@async_test
async def test_all_steps_in_order() -> None:
    log: list[str] = []
    async with run_live_scheduler(NODE, POD, config=CONFIG, registry=spies(log)) as harness:
        points = ("reserve", "permit", "preflight", "pre_bind", "bind", "post_bind")
        assert way(log) == [f"{point} {number}" for point in points for number in (1, 2)]
        assert harness.bound() == {"p": "n"}
        assert harness.sent("POST", "/binding")[0]["metadata"]["uid"] == POD.uid
        assert harness.events.recorded == [
            RecordedEvent("p", "Normal", "Scheduled", "Binding", "Successfully assigned default/p to n")
        ]
        # PreBind has work, so the nomination is written first; the API server clears it at the binding.
        assert harness.sent("PATCH") == [{"metadata": {"uid": POD.uid}, "status": {"nominatedNodeName": "n"}}]
        assert harness.live.queue.in_flight() == []
        assert harness.live.engine.cache.is_assumed(POD.uid)


@async_test
async def test_the_first_bind_plugin_that_does_not_skip_binds() -> None:
    log: list[str] = []
    registry = spies(log, bind_First=SKIP, bind_Second=None, preflight_First=SKIP, preflight_Second=SKIP)
    async with run_live_scheduler(NODE, POD, config=CONFIG, registry=registry) as harness:
        assert way(log)[-4:] == ["bind 1", "bind 2", "post_bind 1", "post_bind 2"]
        assert harness.server.requests == []
        assert harness.events.recorded[0].reason == "Scheduled"


@async_test
async def test_a_pod_that_every_bind_plugin_skips_is_not_bound() -> None:
    log: list[str] = []
    config = CONFIG.replace(", {name: DefaultBinder}]}", "]}")
    async with run_live_scheduler(NODE, POD, config=config, registry=spies(log)) as harness:
        assert way(log)[-2:] == ["unreserve 2", "unreserve 1"]
        assert conditions(harness)[0]["reason"] == "SchedulerError"
        assert harness.pool(POD) is SubQueue.ERROR_BACKOFF


UNDONE = ["unreserve 2", "unreserve 1"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["breaks", "refuses"])
def test_a_failure_at_any_step_undoes_everything(step: str, kind: str) -> None:
    answer: Any = ValueError("oops") if kind == "breaks" else unschedulable("no")
    words = {
        "reserve": 'running Reserve plugin "Second": ',
        "permit": 'running Permit plugin "Second": ',
        "preflight": 'running PreBindPreFlight "Second": ',
        "pre_bind": 'running PreBind plugin "Second": ',
        "bind": 'running Bind plugin "Second": ',
    }
    fits_nowhere = kind == "refuses" and step in ("reserve", "permit")

    @async_test
    async def test() -> None:
        log: list[str] = []
        async with run_live_scheduler(
            NODE, POD, config=CONFIG, registry=spies(log, **{f"{step}_Second": answer})
        ) as harness:
            assert way(log)[-3:] == [f"{step} 2", *UNDONE]
            assert harness.bound() == {}
            assert harness.live.engine.cache.pod_count == 0
            assert harness.live.queue.in_flight() == []
            condition = conditions(harness)[0]
            if kind == "breaks" or step == "preflight":
                assert condition["reason"] == "SchedulerError"
                assert condition["message"].startswith(words[step] + ("ValueError: oops" if kind == "breaks" else "no"))
            else:
                assert condition["reason"] == "Unschedulable"
                assert condition["message"] == ("0/1 nodes are available: 1 no." if fits_nowhere else "no")
            assert harness.pool(POD) is (SubQueue.UNSCHEDULABLE if fits_nowhere else SubQueue.ERROR_BACKOFF)
            queued = harness.live.queue.get(POD.key)
            assert queued is not None
            assert queued.rejectors == ({"Second"} if fits_nowhere else set())
            assert queued.consecutive_errors == (0 if fits_nowhere else 1)

    test()


@async_test
async def test_a_pod_whose_binding_failed_is_retried_after_its_backoff() -> None:
    async with run_live_scheduler(NODE) as harness:
        harness.fail_next("POST", "/binding", status(409, "Conflict", "pod p is already assigned to node"))
        harness.deliver(POD)
        await harness.wait_for_request("PATCH", "/status")
        assert conditions(harness)[0]["message"] == (
            'running Bind plugin "DefaultBinder": pod p is already assigned to node'
        )
        await harness.idle()
        harness.clock.advance(2)
        await harness.wait_for_request("POST", "/binding", 2)
        await wait_until(lambda: len(harness.events.recorded) == 2)
        assert harness.events.recorded[-1].reason == "Scheduled"


# events of a failed binding


@async_test
async def test_a_failed_binding_wakes_pods_that_wait_for_its_capacity() -> None:
    small = make_node("n", cpu="1")
    async with run_live_scheduler(small) as harness:
        hang = asyncio.Event()

        async def slow(_: Any) -> Any:
            await hang.wait()
            return status(409, "Conflict", "no")

        harness.server.route = lambda request: (
            slow(request) if request.path.endswith("/binding") else harness.answer(request)
        )
        harness.deliver(POD)
        await harness.wait_for_request("POST", "/binding")
        other = make_pod("other", cpu="1")
        harness.deliver(other)
        await wait_until(lambda: harness.pool(other) is SubQueue.UNSCHEDULABLE)
        harness.server.route = harness.answer
        hang.set()
        await wait_until(lambda: len(harness.sent("POST", "/binding")) == 2)
        assert harness.sent("POST", "/binding")[1]["metadata"]["name"] == "other"


class Guard:
    """Makes every pod wait at Permit. Declares no events, so every event wakes the pods that it rejected."""

    name = "Guard"
    patience: ClassVar[dict[str, float]]

    def permit(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return PermitWait(self.patience["Guard"])


GUARDED = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{plugins: {multiPoint: {enabled: [{name: Guard}]}}}]
"""


def guarded(wait_s: float = 60.0) -> dict[str, Any]:
    guard = type("Guard", (Guard,), {"patience": {"Guard": wait_s}})
    return {"config": GUARDED, "registry": known_plugins().with_plugins(guard)}


async def waits(harness: LiveSchedulerHarness, pod: Pod = POD) -> Any:
    harness.deliver(pod)
    await wait_until(lambda: harness.live.engine.waiting_pods.get(pod.uid))
    return harness.live.engine.waiting_pods.get(pod.uid)


@async_test
async def test_a_pod_is_bound_when_permit_allows_it() -> None:
    async with run_live_scheduler(NODE, **guarded()) as harness:
        waiting = await waits(harness)
        await harness.wait_for_request("PATCH", "/status")
        assert harness.sent("PATCH")[0]["status"] == {"nominatedNodeName": "n"}
        assert harness.bound() == {}
        waiting.allow("Guard")
        await harness.wait_for_request("POST", "/binding")
        assert harness.live.engine.waiting_pods.get(POD.uid) is None


@async_test
async def test_a_pod_is_requeued_when_permit_rejects_it() -> None:
    async with run_live_scheduler(NODE, **guarded()) as harness:
        waiting = await waits(harness)
        waiting.reject("Guard", "changed my mind")
        await wait_until(lambda: conditions(harness))
        await harness.idle()
        (condition,) = conditions(harness)
        assert (condition["reason"], condition["message"]) == (
            "Unschedulable",
            "0/1 nodes are available: 1 changed my mind.",
        )
        # Its own removal is an event that its plugin would wake it for; it stays unschedulable.
        assert harness.pool(POD) is SubQueue.UNSCHEDULABLE
        assert harness.sent("PATCH")[-1]["status"]["nominatedNodeName"] is None
        queued = harness.live.queue.get(POD.key)
        assert queued is not None
        assert queued.unschedulable_plugins == {"Guard"}
        harness.deliver(make_node("another"))
        await wait_until(lambda: harness.live.engine.waiting_pods.get(POD.uid))


@async_test
async def test_post_bind_holds_no_slot_of_binding_writes() -> None:
    slots = []

    class SlotReader:
        name = "SlotReader"

        async def post_bind(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
            slots.append(worker_slot.get())

    config = GUARDED.replace("Guard", "SlotReader")
    async with run_live_scheduler(NODE, config=config, registry=known_plugins().with_plugins(SlotReader)) as harness:
        harness.deliver(POD)
        await wait_until(lambda: slots)
        assert slots == [nullcontext]


@async_test
async def test_a_pod_that_fails_before_its_wait_at_permit_waits_no_longer() -> None:
    class RefusingGuard(Guard):
        patience: ClassVar[dict[str, float]] = {"Guard": 60.0}

        def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
            return unschedulable("no")

        async def pre_bind(self, cycle: Cycle, node_name: str) -> Any: ...

    registry = known_plugins().with_plugins(RefusingGuard)
    async with run_live_scheduler(NODE, config=GUARDED, registry=registry) as harness:
        harness.deliver(POD)
        await wait_until(lambda: conditions(harness))
        assert harness.live.engine.waiting_pods.get(POD.uid) is None
        assert harness.live.engine.waiting_pods.next_deadline_s() is None


@async_test
async def test_a_pod_is_requeued_when_permit_times_out() -> None:
    async with run_live_scheduler(NODE, **guarded(5.0)) as harness:
        await waits(harness)
        await harness.wait_for_request("PATCH", "/status")
        await wait_until(lambda: not harness.live.writes.busy)
        harness.clock.advance(5)
        await wait_until(lambda: conditions(harness))
        assert conditions(harness)[0]["message"] == (
            "0/1 nodes are available: 1 rejected due to timeout after waiting 5s at plugin Guard."
        )
        await harness.idle()
        assert harness.pool(POD) is SubQueue.UNSCHEDULABLE


@async_test
async def test_an_expired_wait_does_not_keep_the_loop_busy_while_its_status_is_written() -> None:
    async with run_live_scheduler(NODE, **guarded(5.0)) as harness:
        harness.fail_next("PATCH", "/status", NoAnswer())
        await waits(harness)
        await harness.wait_for_request("PATCH", "/status")
        harness.clock.advance(6)
        waiting = harness.live.engine.waiting_pods.get(POD.uid)
        assert waiting is not None
        await wait_until(lambda: waiting.outcome is not None)
        assert harness.live.engine.waiting_pods.next_deadline_s() is None


@async_test
async def test_events_during_a_wait_at_permit_count_when_the_pod_is_rejected() -> None:
    async with run_live_scheduler(NODE, **guarded()) as harness:
        waiting = await waits(harness)
        harness.deliver(make_node("another"))
        await wait_until(lambda: harness.live.engine.cache.node("another") is not None)
        waiting.reject("Guard", "not there")
        await wait_until(
            lambda: (found := harness.live.engine.waiting_pods.get(POD.uid)) is not None and found is not waiting
        )
        assert [each["message"] for each in conditions(harness)] == ["0/1 nodes are available: 1 not there."]
        assert [pod.name for pod in harness.live.queue.in_flight()] == ["p"]
        assert harness.clock.monotonic_s() == 0, "no other event woke it"


@async_test
async def test_a_pod_is_deleted_while_it_waits_at_permit() -> None:
    async with run_live_scheduler(NODE, **guarded()) as harness:
        await waits(harness)
        harness.deliver_deletion(POD)
        await harness.idle()
        assert harness.live.engine.cache.pod_count == 0
        assert harness.live.queue.in_flight() == []
        assert harness.pool(POD) is None
        assert harness.bound() == {}
        assert harness.events.recorded[-1].note == "0/1 nodes are available: 1 removed."


@async_test
async def test_stopping_rejects_pods_at_permit() -> None:
    async with run_live_scheduler(NODE, **guarded()) as harness:
        await waits(harness)
        harness.live.stop_scheduling()
        await harness.live.drain()
        (condition,) = conditions(harness)
        assert condition["reason"] == "SchedulerError"
        assert condition["message"] == "waiting on permit for pod: the scheduler stops"
        assert harness.live.engine.cache.pod_count == 0


# deleted pods and nodes


@async_test
async def test_a_pod_is_deleted_during_its_binding() -> None:
    async with run_live_scheduler(NODE) as harness:
        gate = asyncio.Event()

        async def late(_: Any) -> Any:
            await gate.wait()
            return status(404, "NotFound", 'pods "p" not found')

        harness.server.route = lambda request: (
            late(request) if request.path.endswith("/binding") else harness.answer(request)
        )
        harness.deliver(POD)
        await harness.wait_for_request("POST", "/binding")
        harness.deliver_deletion(POD)
        await wait_until(lambda: harness.live.engine.cache.pod_count == 0)  # its capacity is free at once
        gate.set()
        await harness.idle()
        assert harness.pool(POD) is None
        assert harness.sent("PATCH") == []


@async_test
async def test_a_pod_starts_to_terminate_during_its_binding() -> None:
    async with run_live_scheduler(NODE) as harness:
        gate = asyncio.Event()

        async def late(_: Any) -> Any:
            await gate.wait()
            return status(409, "Conflict", "pod p is being deleted, cannot be assigned to a host")

        harness.server.route = lambda request: (
            late(request) if request.path.endswith("/binding") else harness.answer(request)
        )
        harness.deliver(POD)
        await harness.wait_for_request("POST", "/binding")
        harness.deliver(make_pod("p", cpu="1", terminating=True))
        await wait_until(lambda: harness.live.engine.cache.pod_count == 0)
        gate.set()
        await harness.idle()
        harness.clock.advance(3)
        await wait_until(lambda: harness.pool(POD) is None)
        await harness.idle()
        assert harness.events.recorded[-1].note == "skip schedule deleting pod: default/p"
        assert len(harness.sent("POST", "/binding")) == 1


@async_test
async def test_a_node_is_deleted_during_the_binding_of_its_pods() -> None:
    async with run_live_scheduler(NODE) as harness:
        gate = asyncio.Event()

        async def late(_: Any) -> Any:
            await gate.wait()
            return Reply(201, {})

        harness.server.route = lambda request: (
            late(request) if request.path.endswith("/binding") else harness.answer(request)
        )
        harness.deliver(POD)
        await harness.wait_for_request("POST", "/binding")
        harness.deliver_deletion(NODE)
        await wait_until(lambda: harness.live.engine.cache.node("n") is None)
        gate.set()
        await harness.idle()
        harness.deliver(replace_fields(POD, spec={"node_name": "n"}))
        await harness.idle()
        harness.deliver(NODE)
        await harness.idle()
        assert [info.pod.name for info in harness.live.engine.snapshot().nodes.pods[0]] == ["p"]


# lost responses


@pytest.mark.parametrize("landed", [True, False], ids=["it was done", "it was not done"])
def test_a_binding_with_a_lost_response_is_read_back(landed: bool) -> None:
    @async_test
    async def test() -> None:
        async with run_live_scheduler(NODE) as harness:
            found = replace_fields(POD, spec={"node_name": "n" if landed else ""})
            harness.objects["/api/v1/namespaces/default/pods/p"] = found
            harness.fail_next("GET", "/pods/p", status(503, "ServiceUnavailable"), status(500, "InternalError"))
            harness.fail_next("POST", "/binding", Reply(raw=b"", close=True))
            harness.deliver(POD)
            await harness.wait_for_request("POST", "/binding")
            await wait_until(lambda: harness.count("GET", "/pods/p"))
            # the pod keeps its capacity until the outcome is known
            assert harness.live.engine.cache.is_assumed(POD.uid)
            await wait_until(lambda: harness.count("GET", "/pods/p") == 3, tick=lambda: harness.clock.advance(0.05))
            assert harness.live.engine.cache.is_assumed(POD.uid)
            if not landed:  # then it is sent again
                await wait_until(
                    lambda: harness.count("POST", "/binding") == 2, tick=lambda: harness.clock.advance(0.05)
                )
            await harness.idle()
            assert harness.events.recorded[-1].reason == "Scheduled"
            assert harness.live.engine.cache.is_assumed(POD.uid)
            assert harness.count("POST", "/binding") == (1 if landed else 2)

    test()


@async_test
async def test_a_failed_binding_that_the_watch_shows_as_done() -> None:
    """The pod is on its node: nothing is undone, and its status does not report a failure."""
    async with run_live_scheduler(NODE) as harness:
        gate = asyncio.Event()

        async def late(_: Any) -> Any:
            await gate.wait()
            return status(409, "Conflict", "already assigned")

        harness.server.route = lambda request: (
            late(request) if request.path.endswith("/binding") else harness.answer(request)
        )
        harness.deliver(POD)
        await harness.wait_for_request("POST", "/binding")
        harness.deliver(replace_fields(POD, spec={"node_name": "n"}))
        await wait_until(lambda: not harness.live.engine.cache.is_assumed(POD.uid))
        gate.set()
        await harness.idle()
        assert harness.live.engine.cache.pod_count == 1
        assert harness.pool(POD) is None
        assert harness.sent("PATCH") == []


@async_test
async def test_after_the_lease_is_lost_no_binding_is_sent_and_the_capacity_is_free() -> None:
    class Lost:
        def check(self) -> None:
            raise LeaseLost("another process leads")

        async def hold_back(self) -> None:
            self.check()

    async with run_live_scheduler(NODE) as harness:
        harness.client.set_guard(Lost())
        harness.deliver(POD)
        await wait_until(lambda: harness.pool(POD) is SubQueue.ERROR_BACKOFF)
        assert harness.server.requests == []
        assert harness.live.engine.cache.pod_count == 0


# PreBind


@async_test
async def test_pods_in_pre_bind_do_not_block_other_bindings() -> None:
    log: list[str] = []
    gate = asyncio.Event()
    registry = spies(log, pre_bind_First=gate)
    roomy = make_node("n", cpu="200")
    slow = [make_pod(f"slow-{number}", cpu="1", scheduler_name="slow") for number in range(70)]
    config = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: slow
  plugins: {multiPoint: {enabled: [{name: First}]}}
"""
    async with run_live_scheduler(roomy, config=config, registry=registry) as harness:
        harness.deliver(*slow)
        await wait_until(lambda: log.count("pre_bind First") == 70)
        harness.deliver(make_pod("quick", cpu="1"))
        await harness.wait_for_request("POST", "/binding")
        assert harness.bound() == {"quick": "n"}
        gate.set()
        await harness.wait_for_request("POST", "/binding", 71)


@async_test
async def test_concurrent_pre_bind_plugins_end_with_the_first_failure() -> None:
    log: list[str] = []
    registry = spies(
        log,
        preflight_First=PreBindPreFlightResult(allow_parallel=True),
        preflight_Second=PreBindPreFlightResult(allow_parallel=True),
        pre_bind_First=asyncio.Event(),  # never set
        pre_bind_Second=ValueError("oops"),
    )
    async with run_live_scheduler(NODE, POD, config=CONFIG, registry=registry) as harness:
        assert way(log)[-4:] == ["pre_bind 1", "pre_bind 2", *UNDONE]
        assert conditions(harness)[0]["message"].startswith('running PreBind plugin "Second": ValueError: oops')


@pytest.mark.parametrize("point", ["pre_bind", "bind"])
def test_a_plugin_whose_awaited_task_is_cancelled_fails_the_attempt(point: str) -> None:
    """The binding itself was not cancelled, so the pod is unreserved and retried."""

    async def test() -> None:
        log: list[str] = []
        registry = spies(log, **{f"{point}_First": asyncio.CancelledError()})
        async with run_live_scheduler(NODE, POD, config=CONFIG, registry=registry) as harness:
            assert way(log)[-3:] == [f"{point} 1", *UNDONE]
            assert "CancelledError" in conditions(harness)[0]["message"]
            assert not harness.live.engine.cache.is_assumed(POD.uid)
            assert harness.pool(POD) is SubQueue.ERROR_BACKOFF

    async_test(test)()


async def completed(value: Any) -> Any:
    return value


@async_test
async def test_a_pod_in_pre_bind_can_be_cancelled_until_the_result_is_read() -> None:
    pre_binds = PreBindTasks()
    assert not pre_binds.cancel("u", "too early")
    work = asyncio.ensure_future(pre_binds.run("u", completed(pending())))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the work is done, and the waiting task has not run yet
    assert pre_binds.cancel("u", "preempted by DefaultPreemption")
    assert (await work).message == "preempted by DefaultPreemption"
    assert not pre_binds.cancel("u", "too late")


@async_test
async def test_pods_that_a_plugin_activates_are_tried_when_the_cycle_ends_and_when_the_pod_is_bound() -> None:
    blocked = make_pod("blocked", cpu="1", labels={"blocked": "yes"})

    class Opens:
        name = "Opens"
        events_to_register = ()
        opened: list[str] = []

        def filter(self, cycle: Cycle, node: Any) -> Any:  # noqa: ARG002
            self.opened.append(cycle.pod.name)
            return unschedulable("closed") if cycle.pod.labels else None

        def reserve(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
            cycle.pods_to_activate[blocked.key] = blocked

        def unreserve(self, cycle: Cycle, node_name: str) -> None: ...

        async def post_bind(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
            cycle.pods_to_activate[blocked.key] = blocked

    config = CONFIG.partition("profiles")[0] + "profiles: [{plugins: {multiPoint: {enabled: [{name: Opens}]}}}]"
    async with run_live_scheduler(
        NODE, blocked, config=config, registry=known_plugins().with_plugins(Opens)
    ) as harness:
        Opens.opened.clear()
        harness.deliver(POD)
        await wait_until(lambda: Opens.opened.count("blocked") == 2)
        assert Opens.opened[:2] == ["p", "blocked"]
