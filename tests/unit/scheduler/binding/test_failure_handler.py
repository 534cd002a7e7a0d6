"""Failure handler: events and statuses of a pod that was not placed, their order, and where the pod waits."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from bayplan.app import known_plugins
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource
from bayplan.framework.api.status import pending, unschedulable
from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.meta import Condition
from bayplan.queue.queued_pod import SubQueue
from support.builders.framework import CREATED, make_node, make_pod, replace_fields
from support.fakes.http_server import NoAnswer, Request, ServerAnswer, status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_scheduler import LiveSchedulerHarness, RecordedEvent, conditions, run_live_scheduler

FULL = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: "
NO_VICTIMS = FULL + "1 No preemption victims found for incoming pod."
UNRESOLVABLE = FULL + "1 Preemption is not helpful for scheduling."

SMALL = make_node("small", cpu="1")
TAKEN = make_pod("taken", node="small", cpu="1", priority=5)
LARGE = make_pod("large", cpu="1")


def failed_event(message: str) -> RecordedEvent:
    return RecordedEvent("large", "Warning", "FailedScheduling", "Scheduling", message)


@async_test
async def test_a_failure_records_an_event_and_writes_a_condition() -> None:
    async with run_live_scheduler(SMALL, TAKEN, LARGE) as harness:
        assert harness.events.recorded == [failed_event(NO_VICTIMS)]
        (patch,) = harness.sent("PATCH", "/pods/large/status")
        assert patch == {
            "metadata": {"uid": LARGE.uid, "resourceVersion": harness.latest(LARGE).metadata.resource_version},
            "status": {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": NO_VICTIMS,
                        "observedGeneration": 0,
                        "lastProbeTime": None,
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ]
            },
        }
        assert harness.pool(LARGE) is SubQueue.UNSCHEDULABLE


def with_condition(pod: Pod, message: str, *, false: bool = True, **status_: Any) -> Pod:
    condition = Condition(
        "PodScheduled", "False" if false else "True", "Unschedulable" if false else "", message, CREATED
    )
    return replace_fields(pod, status=PodStatus(phase="Pending", conditions=(condition,), **status_))


@async_test
async def test_a_status_that_the_pod_already_has_is_not_written() -> None:
    async with run_live_scheduler(SMALL, TAKEN, with_condition(LARGE, NO_VICTIMS)) as harness:
        assert harness.attempts(LARGE) == 1
        assert harness.events.recorded == []
        assert harness.sent("PATCH") == []


@pytest.mark.parametrize(
    ("before", "moves"),
    [
        pytest.param(with_condition(LARGE, "older reason"), False, id="another reason keeps the time"),
        pytest.param(with_condition(LARGE, "", false=False), True, id="another status is a transition"),
    ],
)
def test_last_transition_time_of_a_condition(before: Pod, moves: bool) -> None:
    @async_test
    async def test() -> None:
        async with run_live_scheduler(SMALL, TAKEN, before) as harness:
            (condition,) = conditions(harness)
            assert ("lastTransitionTime" in condition) == moves

    test()


@async_test
async def test_a_failed_nomination_is_cleared() -> None:
    async with run_live_scheduler(
        SMALL, TAKEN, with_condition(LARGE, NO_VICTIMS, nominated_node_name="small")
    ) as harness:
        assert harness.sent("PATCH") == [{"metadata": {"uid": LARGE.uid}, "status": {"nominatedNodeName": None}}]
        assert harness.live.engine.nominator.node_of(LARGE.uid) is None


@async_test
async def test_a_written_status_is_not_written_again_before_the_watch_shows_it() -> None:
    async with run_live_scheduler(SMALL, TAKEN, LARGE) as harness:
        harness.live.activate(LARGE)
        await wait_until(lambda: harness.attempts(LARGE) == 2)
        await harness.idle()
        assert harness.events.recorded == [failed_event(NO_VICTIMS)]
        assert len(harness.sent("PATCH")) == 1


@async_test
async def test_attempts_that_fail_for_the_same_reason_write_once_and_another_reason_is_written() -> None:
    async with run_live_scheduler(SMALL, TAKEN, LARGE) as harness:
        harness.deliver(with_condition(LARGE, NO_VICTIMS))  # as the API server shows it after the patch
        for attempt in range(2, 6):
            harness.clock.advance(360)  # the flush of unschedulable pods
            harness.live.activate(LARGE)
            await wait_until(lambda attempt=attempt: harness.attempts(LARGE) == attempt)  # type: ignore[misc]
            await harness.idle()
        assert harness.events.recorded == [failed_event(NO_VICTIMS)]
        assert len(harness.sent("PATCH")) == 1
        harness.deliver(make_node("other", cpu="1", unschedulable=True))
        harness.live.activate(LARGE)
        await wait_until(lambda: len(harness.events.recorded) == 2)
        await harness.idle()
        assert harness.events.recorded[1].note == conditions(harness)[1]["message"]
        assert harness.events.recorded[1].note.startswith("0/2 nodes are available")


@async_test
async def test_a_status_that_could_not_be_written_is_written_at_the_next_attempt() -> None:
    async with run_live_scheduler(SMALL, TAKEN) as harness:
        harness.fail_next("PATCH", "/status", status(403, "Forbidden", "not you"))
        harness.deliver(LARGE)
        await harness.wait_for_request("PATCH", "/status")
        await harness.idle()
        harness.live.activate(LARGE)
        await harness.wait_for_request("PATCH", "/status", 2)
        first, second = harness.sent("PATCH", "/status")
        assert first["status"]["conditions"][0]["message"] == second["status"]["conditions"][0]["message"]


@async_test
async def test_statuses_are_written_in_the_order_of_the_attempts() -> None:
    """The first patch is refused for a while; the second one, with another message, must not overtake it."""
    async with run_live_scheduler(SMALL, TAKEN) as harness:
        harness.objects["/api/v1/namespaces/default/pods/large"] = LARGE
        harness.fail_next("PATCH", "/status", *[status(500, "InternalError")] * 2)
        harness.deliver(LARGE)
        await harness.wait_for_request("PATCH", "/status")
        await wait_until(lambda: harness.clock.sleepers >= 2)  # the patch waits, and so does the connection sweeper
        harness.deliver(make_node("other", cpu="1", unschedulable=True))
        harness.live.activate(LARGE)
        await wait_until(lambda: len(harness.events.recorded) == 2)
        assert len(harness.sent("PATCH", "/status")) == 1
        await wait_until(lambda: len(harness.sent("PATCH", "/status")) == 4, tick=lambda: harness.clock.advance(0.01))
        messages = [each["message"][:22] for each in conditions(harness)]
        assert messages == ["0/1 nodes are availabl"] * 3 + ["0/2 nodes are availabl"]


@async_test
async def test_a_failure_is_written_before_the_binding_of_a_later_attempt() -> None:
    """The node has capacity again before the failure of the first attempt is written."""
    async with run_live_scheduler(SMALL, TAKEN) as harness:
        gate = asyncio.Event()

        async def late(request: Request) -> ServerAnswer:
            await gate.wait()
            return harness.answer(request)

        harness.server.route = lambda request: late(request) if request.method == "PATCH" else harness.answer(request)
        harness.deliver(LARGE)
        await harness.wait_for_request("PATCH", "/status")
        harness.deliver_deletion(TAKEN)
        await wait_until(lambda: harness.live.engine.cache.is_assumed(LARGE.uid))
        await asyncio.sleep(0.01)
        assert harness.bound() == {}
        gate.set()
        await harness.wait_for_request("POST", "/binding")


@pytest.mark.parametrize(
    ("refusal", "tries"),
    [
        pytest.param(status(500, "InternalError"), 4, id="server error"),
        pytest.param(status(503, "ServiceUnavailable"), 4, id="unavailable"),
        pytest.param(status(409, "Conflict"), 4, id="conflict"),
        pytest.param(status(403, "Forbidden"), 1, id="forbidden"),
        pytest.param(status(404, "NotFound"), 1, id="deleted"),
    ],
)
def test_number_of_tries_of_a_status_write(refusal: Any, tries: int) -> None:
    @async_test
    async def test() -> None:
        async with run_live_scheduler(SMALL, TAKEN) as harness:
            harness.objects["/api/v1/namespaces/default/pods/large"] = LARGE
            harness.fail_next("PATCH", "/status", *[refusal] * 9)
            harness.deliver(LARGE)
            await harness.wait_for_request("PATCH", "/status")
            await wait_until(lambda: not harness.live.writes.busy, tick=lambda: harness.clock.advance(0.05))
            assert len(harness.sent("PATCH", "/status")) == tries

    test()


@async_test
async def test_a_condition_is_written_to_the_newer_version_after_a_conflict() -> None:
    async with run_live_scheduler(SMALL, TAKEN) as harness:
        harness.objects["/api/v1/namespaces/default/pods/large"] = replace_fields(
            LARGE, metadata={"resource_version": "77"}
        )
        harness.fail_next("PATCH", "/status", status(409, "Conflict"))
        harness.deliver(LARGE)
        await wait_until(lambda: harness.count("PATCH", "/status") == 2, tick=lambda: harness.clock.advance(0.05))
        await wait_until(lambda: not harness.live.writes.busy)
        first, second = harness.sent("PATCH", "/status")
        assert first["metadata"]["resourceVersion"] == harness.latest(LARGE).metadata.resource_version
        assert second == {**first, "metadata": {"uid": LARGE.uid, "resourceVersion": "77"}}


@async_test
async def test_no_condition_is_written_to_a_pod_that_was_bound_meanwhile() -> None:
    async with run_live_scheduler(SMALL, TAKEN) as harness:
        harness.objects["/api/v1/namespaces/default/pods/large"] = replace_fields(LARGE, spec={"node_name": "n"})
        harness.fail_next("PATCH", "/status", status(409, "Conflict"))
        harness.deliver(LARGE)
        await harness.wait_for_request("PATCH", "/status")
        await wait_until(lambda: not harness.live.writes.busy, tick=lambda: harness.clock.advance(0.05))
        assert harness.count("PATCH", "/status") == 1


@async_test
async def test_without_nodes_a_pod_backs_off_as_after_an_error() -> None:
    async with run_live_scheduler(LARGE) as harness:
        (condition,) = conditions(harness)
        assert (condition["reason"], condition["message"]) == ("Unschedulable", "no nodes available to schedule pods")
        assert harness.pool(LARGE) is SubQueue.ERROR_BACKOFF


class Answers:
    """A filter and a Reserve with the answers of the test."""

    name = "Answers"
    events_to_register = ()
    filter_answer: Any = None
    reserve_answer: Any = None

    def filter(self, cycle: Any, node: Any) -> Any:  # noqa: ARG002
        return _given(self.filter_answer)

    def reserve(self, cycle: Any, node_name: str) -> Any:  # noqa: ARG002
        return _given(self.reserve_answer)

    def unreserve(self, cycle: Any, node_name: str) -> None: ...


def _given(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


WITH_ANSWERS = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{plugins: {multiPoint: {enabled: [{name: Answers}]}}}]
"""


@pytest.mark.parametrize(
    ("answers", "reason", "message", "pool", "rejectors"),
    [
        pytest.param(
            {"filter_answer": unschedulable("no")},
            "Unschedulable",
            "0/1 nodes are available: 1 no. no new claims to deallocate, preemption: 0/1 nodes are available: "
            "1 No preemption victims found for incoming pod.",
            SubQueue.UNSCHEDULABLE,
            ({"Answers"}, set()),
            id="a filter rejects",
        ),
        pytest.param(
            {"filter_answer": pending("soon")},
            "Unschedulable",
            "0/1 nodes are available: 1 soon. no new claims to deallocate, preemption: 0/1 nodes are available: "
            "1 Preemption is not helpful for scheduling.",
            SubQueue.UNSCHEDULABLE,
            ({"Answers"}, {"Answers"}),
            id="a filter waits for something outside",
        ),
        pytest.param(
            {"filter_answer": RuntimeError("oops")},
            "SchedulerError",
            'running "Answers" filter plugin: RuntimeError: oops',
            SubQueue.ERROR_BACKOFF,
            (set(), set()),
            id="a filter breaks",
        ),
        pytest.param(
            {"reserve_answer": unschedulable("taken")},
            "Unschedulable",
            "0/1 nodes are available: 1 taken.",
            SubQueue.UNSCHEDULABLE,
            ({"Answers"}, set()),
            id="Reserve rejects",
        ),
        pytest.param(
            {"reserve_answer": pending("later")},
            "Unschedulable",
            "0/1 nodes are available: 1 later.",
            SubQueue.UNSCHEDULABLE,
            ({"Answers"}, {"Answers"}),
            id="Reserve waits for something outside",
        ),
        pytest.param(
            {"reserve_answer": RuntimeError("oops")},
            "SchedulerError",
            'running Reserve plugin "Answers": RuntimeError: oops',
            SubQueue.ERROR_BACKOFF,
            (set(), set()),
            id="Reserve breaks",
        ),
    ],
)
def test_rejecting_plugins(
    answers: dict[str, Any], reason: str, message: str, pool: SubQueue, rejectors: tuple[set[str], set[str]]
) -> None:
    @async_test
    async def test() -> None:
        plugin = type("Answers", (Answers,), answers)
        registry = known_plugins().with_plugins(plugin)
        async with run_live_scheduler(SMALL, LARGE, config=WITH_ANSWERS, registry=registry) as harness:
            (condition,) = conditions(harness)
            assert condition["reason"] == reason
            assert condition["message"].startswith(message)
            assert harness.pool(LARGE) is pool
            queued = harness.live.queue.get(LARGE.key)
            assert queued is not None
            assert (set(queued.unschedulable_plugins), set(queued.pending_plugins)) == rejectors
            assert harness.live.engine.cache.pod_count == 0

    test()


class Gate:
    """A PreEnqueue plugin with the answers of the test. It is called again for each new node."""

    name = "Gate"
    events_to_register = (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)
    answer: Any = None
    calls = 0

    def pre_enqueue(self, pod: Pod) -> Any:  # noqa: ARG002
        type(self).calls += 1
        return _given(type(self).answer)


@async_test
async def test_a_failing_gate_is_reported_once_until_its_answer_changes() -> None:
    plugin: Any = type("Gate", (Gate,), {"answer": RuntimeError("oops")})
    registry = known_plugins().with_plugins(plugin)
    async with run_live_scheduler(
        SMALL, LARGE, config=WITH_ANSWERS.replace("Answers", "Gate"), registry=registry
    ) as harness:

        async def call_again(answer: Any) -> None:
            plugin.answer, before = answer, plugin.calls
            harness.deliver(make_node(f"node-{before}", unschedulable=True))
            await wait_until(lambda: plugin.calls > before)
            await harness.idle()

        first = 'running PreEnqueue plugin "Gate": RuntimeError: oops'
        for _ in range(3):
            assert [each.note.partition(" (")[0] for each in harness.events.recorded] == [first]
            (condition,) = conditions(harness)
            assert (condition["reason"], condition["status"]) == ("SchedulerError", "False")
            assert condition["message"] == harness.events.recorded[0].note
            assert harness.pool(LARGE) is SubQueue.UNSCHEDULABLE
            await call_again(RuntimeError("oops"))
        await call_again(KeyError("rack"))
        assert "KeyError: 'rack'" in conditions(harness)[-1]["message"]
        for _ in range(2):
            await call_again(unschedulable("not yet"))
        written = [(each["reason"], each["message"]) for each in conditions(harness)]
        assert len(written) == len(harness.events.recorded) == 3
        assert written[-1] == ("Unschedulable", "not yet")
        await call_again(None)
        await harness.wait_for_request("POST", "/binding")
        assert len(conditions(harness)) == 3


@async_test
async def test_a_failing_gate_is_reported_only_by_the_leader() -> None:
    plugin: Any = type("Gate", (Gate,), {"answer": RuntimeError("oops")})
    registry = known_plugins().with_plugins(plugin)
    gone = make_pod("gone")
    config = WITH_ANSWERS.replace("Answers", "Gate")
    async with run_live_scheduler(SMALL, LARGE, gone, config=config, registry=registry, decide=False) as harness:
        await wait_until(lambda: harness.live.is_idle and len(harness.live.queue) == 2)
        harness.deliver_deletion(gone)
        await wait_until(lambda: len(harness.live.queue) == 1)
        assert harness.events.recorded == []
        assert harness.server.requests == []
        elected = asyncio.ensure_future(harness.live.run())
        await harness.wait_for_request("PATCH", "/pods/large/status")
        elected.cancel()
        assert [each.about for each in harness.events.recorded] == ["large"]


@async_test
async def test_reports_of_a_failing_gate_for_many_pods_are_made_in_slices() -> None:
    plugin: Any = type("Gate", (Gate,), {"answer": RuntimeError("oops")})
    registry = known_plugins().with_plugins(plugin)
    turn, reported_at = 0, []

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def slow(*_: Any) -> None:
        reported_at.append(turn)
        harness.clock.advance(1)  # longer than a slice

    async with run_live_scheduler(SMALL, config=WITH_ANSWERS.replace("Answers", "Gate"), registry=registry) as harness:
        harness.events.record = slow  # type: ignore[method-assign]
        ticker = asyncio.ensure_future(turns())
        harness.deliver(*(make_pod(f"pod-{number}") for number in range(5)))
        await wait_until(lambda: len(reported_at) == 5)
        ticker.cancel()
        assert len(set(reported_at)) == 5


@async_test
async def test_a_bug_costs_one_attempt() -> None:
    async with run_live_scheduler(SMALL) as harness:
        place, harness.live.engine.place = harness.live.engine.place, _explode  # type: ignore[method-assign]
        harness.deliver(LARGE)
        await harness.wait_for_request("PATCH", "/status")
        (condition,) = conditions(harness)
        assert (condition["reason"], condition["message"]) == ("SchedulerError", "ZeroDivisionError: a bug")
        harness.live.engine.place = place  # type: ignore[method-assign]
        harness.clock.advance(2)
        await harness.wait_for_request("POST", "/binding")


def _explode(_: Any) -> Any:
    raise ZeroDivisionError("a bug")


@async_test
async def test_a_terminating_pod_is_skipped() -> None:
    async with run_live_scheduler(SMALL, make_pod("large", cpu="1", terminating=True)) as harness:
        assert harness.events.recorded == [failed_event("skip schedule deleting pod: default/large")]
        assert harness.server.requests == []
        assert harness.live.queue.in_flight() == []


@async_test
async def test_a_failure_is_not_reported_to_a_later_pod_of_the_same_name() -> None:
    """A pod is deleted and created again during its binding, which then fails."""
    async with run_live_scheduler(SMALL) as harness:
        hanging = NoAnswer()
        harness.fail_next("POST", "/binding", hanging)
        harness.deliver(LARGE)
        await harness.wait_for_request("POST", "/binding")
        harness.deliver_deletion(LARGE)
        harness.deliver(make_pod("large", cpu="8", uid="another"))
        await wait_until(lambda: conditions(harness))
        harness.server.cut()
        await wait_until(lambda: not harness.live.bindings.tasks)
        await harness.idle()
        assert all("Insufficient cpu" in each.note for each in harness.events.recorded)  # the reason of the new pod
        assert all("Insufficient cpu" in each["message"] for each in conditions(harness))


@async_test
async def test_a_jump_of_the_wall_clock_changes_no_backoff() -> None:
    async with run_live_scheduler(SMALL, TAKEN, LARGE) as harness:
        queued = harness.live.queue.get(LARGE.key)
        assert queued is not None
        jump(harness, hours=5)
        harness.deliver_deletion(TAKEN)
        # popped from the backoff queue, since the active queue is empty
        await harness.wait_for_request("POST", "/binding")
        jump(harness, hours=-9)
        other = make_pod("other", cpu="2")
        harness.deliver(other)
        await wait_until(lambda: harness.pool(other) is SubQueue.UNSCHEDULABLE)
        await harness.idle()
        harness.clock.advance(299)
        await harness.idle()
        attempts = harness.live.queue.get(other.key)
        assert attempts is not None
        assert attempts.attempts == 1
        harness.clock.advance(60)
        await wait_until(lambda: attempts.attempts == 2)


def jump(harness: LiveSchedulerHarness, *, hours: int) -> None:
    harness.clock._start += timedelta(hours=hours)
