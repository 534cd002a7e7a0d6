"""Room for a stronger pod: who is told what and in which order, and that the preemptor never sleeps through it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from bayplan.app import known_plugins
from bayplan.framework import Cycle, PermitWait, unschedulable
from bayplan.framework.api.plugin import PostFilterResult
from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.meta import Condition
from bayplan.queue.queued_pod import SubQueue
from support.builders.framework import make_node, make_pod, replace_fields
from support.fakes.http_server import NoAnswer, Reply, Request, status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_scheduler import (
    LiveSchedulerHarness,
    RecordedEvent,
    conditions,
    run_live_scheduler,
)

NODE = make_node("n", cpu="2")
WEAK = make_pod("weak", cpu="2", node="n", priority=1)
STRONG = make_pod("strong", cpu="2", priority=9)
HALVES = [make_pod(f"half-{number}", cpu="1", node="n", priority=1) for number in range(2)]
NOTE = f"Preempted by pod {STRONG.uid} on node n"


def evicted(harness: LiveSchedulerHarness) -> list[str]:
    """What was asked of the API about victims, in order."""
    found = [
        each for each in harness.server.requests if "strong" not in each.path and not each.path.endswith("/binding")
    ]
    return [f"{each.method} {each.path.removeprefix('/api/v1/namespaces/default/pods/')}" for each in found]


def preempted(name: str, note: str = NOTE) -> RecordedEvent:
    return RecordedEvent(name, "Normal", "Preempted", "Preempting", note, "strong")


async def gone(harness: LiveSchedulerHarness, *pods: Pod) -> None:
    for pod in pods:
        harness.deliver_deletion(pod)
    await wait_until(lambda: all(harness.live.engine.cache.pod(pod.uid) is None for pod in pods))


@async_test
async def test_a_victim_is_told_and_deleted_and_the_preemptor_gets_its_room() -> None:
    async with run_live_scheduler(NODE, WEAK, STRONG) as harness:
        assert evicted(harness) == ["PATCH weak/status", "DELETE weak"]
        (told,) = harness.sent("PATCH", "/weak/status")
        assert told == {
            "metadata": {"uid": WEAK.uid},
            "status": {
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "PreemptionByScheduler",
                        "message": "default-scheduler: preempting to accommodate a higher priority pod",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ]
            },
        }
        assert harness.sent("DELETE")[0]["preconditions"] == {"uid": WEAK.uid}
        assert preempted("weak") in harness.events.recorded
        (said,) = harness.sent("PATCH", "/strong/status")
        assert said["status"]["nominatedNodeName"] == "n"
        assert said["status"]["conditions"][0]["message"] == "0/1 nodes are available: 1 Insufficient cpu."
        assert harness.live.engine.nominator.node_of(STRONG.uid) == "n"
        assert harness.pool(STRONG) is SubQueue.UNSCHEDULABLE
        await gone(harness, WEAK)
        await harness.wait_for_request("POST", "/binding")
        assert harness.bound() == {"strong": "n"}
        assert harness.live.engine.nominator.node_of(STRONG.uid) is None


@async_test
async def test_the_last_victim_goes_when_the_nomination_is_written_and_the_others_are_told() -> None:
    async with run_live_scheduler(NODE, *HALVES) as harness:
        gate = asyncio.Event()

        async def late(request: Request) -> Any:
            await gate.wait()
            return harness.answer(request)

        harness.server.route = lambda request: (
            late(request) if request.path.endswith("/strong/status") else harness.answer(request)
        )
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "")
        await asyncio.sleep(0.01)
        first = evicted(harness)
        assert [each.split()[0] for each in first] == ["PATCH", "DELETE"]
        gate.set()
        await harness.idle()
        assert len(evicted(harness)) == 4


@async_test
async def test_a_victim_whose_status_says_so_is_only_deleted() -> None:
    said = Condition(
        "DisruptionTarget",
        "True",
        "PreemptionByScheduler",
        "default-scheduler: preempting to accommodate a higher priority pod",
    )
    weak = replace_fields(WEAK, status=PodStatus(phase="Running", conditions=(said,)))
    async with run_live_scheduler(NODE, weak, STRONG) as harness:
        assert evicted(harness) == ["DELETE weak"]


@async_test
async def test_a_victim_that_goes_by_itself_while_the_preemptor_is_held_back() -> None:
    """Its going is told before anybody asked it to go, when the preemptor hears nothing; no other event will come."""
    async with run_live_scheduler(NODE, WEAK) as harness:
        gate = asyncio.Event()

        async def missing(_: Request) -> Any:
            await gate.wait()
            return status(404, "NotFound", 'pods "weak" not found')

        harness.server.route = lambda request: missing(request) if "/weak" in request.path else harness.answer(request)
        hold(harness)
        harness.deliver(STRONG)
        await harness.wait_for_request("PATCH", "/weak/status")
        await gone(harness, WEAK)
        assert harness.pool(STRONG) is SubQueue.UNSCHEDULABLE
        gate.set()
        await harness.wait_for_request("POST", "/binding")
        assert preempted("weak") not in harness.events.recorded


def hold(harness: LiveSchedulerHarness) -> None:
    """Let the preemptor not notice that the last victim leaves."""
    plugin = harness.live.engine.framework("default-scheduler").profile.instances["DefaultPreemption"]
    plugin.on_waiting_for_victim = lambda *_: None


@async_test
async def test_a_victim_that_is_gone_at_the_server_and_not_yet_for_us() -> None:
    """Its going is still to be told, and wakes the preemptor; to try before would only evict it again."""
    async with run_live_scheduler(NODE, WEAK) as harness:
        harness.fail_next("PATCH", "/weak/status", status(404, "NotFound", 'pods "weak" not found'))
        harness.deliver(STRONG)
        await harness.wait_for_request("PATCH", "/strong/status")
        await harness.idle()
        assert harness.pool(STRONG) is SubQueue.UNSCHEDULABLE
        assert evicted(harness) == ["PATCH weak/status"]
        await gone(harness, WEAK)
        await harness.wait_for_request("POST", "/binding")


@pytest.mark.parametrize("code", [404, 409], ids=["gone", "a namesake"])
def test_a_victim_that_is_gone_before_it_is_deleted(code: int) -> None:
    @async_test
    async def test() -> None:
        async with run_live_scheduler(NODE, WEAK) as harness:
            at_server(harness, replace_fields(WEAK, metadata={"uid": "another"}))
            harness.fail_next("DELETE", "/weak", status(code, "NotFound" if code == 404 else "Conflict"))
            harness.deliver(STRONG)
            await harness.wait_for_request("DELETE", "/weak")
            await harness.idle()
            assert preempted("weak") not in harness.events.recorded
            await gone(harness, WEAK)
            await harness.wait_for_request("POST", "/binding")

    test()


def at_server(harness: LiveSchedulerHarness, *pods: Pod) -> None:
    """The API server has these pods."""
    harness.objects.update({f"/api/v1/namespaces/default/pods/{pod.name}": pod for pod in pods})


def refuse_deletions(harness: LiveSchedulerHarness, *names: str, code: int = 403) -> None:
    """The API server refuses to delete these pods, each time."""

    def route(request: Request) -> Any:
        refused = request.method == "DELETE" and request.path.rsplit("/", 1)[1] in names
        return status(code, "Forbidden", "a webhook says no") if refused else harness.answer(request)

    harness.server.route = route


def deletions(harness: LiveSchedulerHarness) -> list[str]:
    return [each.split()[1] for each in evicted(harness) if each.startswith("DELETE")]


async def passing(harness: LiveSchedulerHarness, seconds: float) -> None:
    """Let time pass; whatever is due in between happens."""
    for _ in range(int(seconds / 0.1)):
        harness.clock.advance(0.1)
        await asyncio.sleep(0.001)
    await harness.idle()


@async_test
async def test_an_error_leaves_the_last_victim_alone_and_the_preemptor_is_tried_after_its_backoff() -> None:
    async with run_live_scheduler(NODE, *HALVES) as harness:
        at_server(harness, *HALVES)
        refuse_deletions(harness, *(pod.name for pod in HALVES))
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "")
        await harness.idle()
        assert [each.split()[0] for each in evicted(harness)] == ["PATCH", "DELETE", "GET"]
        assert harness.pool(STRONG) is SubQueue.ERROR_BACKOFF
        assert harness.attempts(STRONG) == 1
        plugin = harness.live.engine.framework("default-scheduler").profile.instances["DefaultPreemption"]
        assert not plugin.is_preempting(STRONG.uid)
        assert not harness.live.engine.nominator.terminating_victims
        await wait_until(lambda: harness.attempts(STRONG) == 2, tick=lambda: harness.clock.advance(0.1))
        assert harness.clock.monotonic_s() >= 1.0


@async_test
async def test_a_victim_whose_deletion_was_accepted_leaves_though_that_of_another_is_refused() -> None:
    thirds = [make_pod(f"third-{number}", cpu="1", node="m", priority=1) for number in range(3)]
    async with run_live_scheduler(make_node("m", cpu="3"), *thirds) as harness:
        at_server(harness, *thirds)
        refuse_deletions(harness, "third-1")
        harness.deliver(make_pod("strong", cpu="3", priority=9))
        await harness.wait_for_request("DELETE", "", 2)
        await harness.idle()
        accepted = set(deletions(harness)) - {"third-1"}
        leaving = {pod.name for pod in thirds if harness.live.engine.nominator.is_victim(pod.uid)}
        assert accepted == leaving != set()
        await passing(harness, 8.0)
        assert set(deletions(harness)) - {"third-1"} == leaving, "no other victim goes for a pod that finds no room"


@async_test
async def test_a_victim_leaves_though_a_weaker_nomination_cannot_be_cleared() -> None:
    middle = replace_fields(
        make_pod("middle", cpu="2", priority=5),
        spec={"preemption_policy": "Never"},
        status=PodStatus(phase="Pending", nominated_node_name="n"),
    )
    async with run_live_scheduler(NODE, WEAK, middle) as harness:
        harness.fail_next("PATCH", "/middle/status", status(403, "Forbidden"))
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "/weak")
        await harness.idle()
        assert harness.sent("PATCH", "/middle/status")[-1]["status"] == {"nominatedNodeName": None}
        assert harness.live.engine.nominator.is_victim(WEAK.uid)
        await passing(harness, 5.0)
        assert deletions(harness) == ["weak"]


@pytest.mark.parametrize("code", [403, 429, 500], ids=["refused", "busy", "failing webhook"])
def test_a_victim_that_cannot_be_deleted_is_left_alone_for_longer_and_longer(code: int) -> None:
    @async_test
    async def test() -> None:
        async with run_live_scheduler(NODE, WEAK) as harness:
            at_server(harness, WEAK)
            refuse_deletions(harness, "weak", code=code)
            harness.deliver(STRONG)
            await wait_until(lambda: harness.live.engine.nominator.refused, tick=lambda: harness.clock.advance(0.5))
            first = len(deletions(harness))
            assert first <= 4
            counts = []
            for _ in range(6):
                for _ in range(600):
                    harness.clock.advance(1.0)
                    for _ in range(3):
                        await asyncio.sleep(0)
                await wait_until(lambda: harness.live.is_idle)
                counts.append(len(deletions(harness)))
            rounds = [(after - before) / first for before, after in pairwise(counts)]
            assert max(rounds) <= 2, rounds
            assert sum(rounds[-3:]) > 0, "it is tried again from time to time"

    test()


@async_test
async def test_a_victim_that_is_there_after_a_conflict_was_not_deleted() -> None:
    """A 409 is no proof that the uid is another one: a webhook may answer it, too."""
    async with run_live_scheduler(NODE, WEAK) as harness:
        at_server(harness, WEAK)
        harness.fail_next("DELETE", "/weak", status(409, "Conflict"))
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "/weak")
        await harness.idle()
        assert not harness.live.engine.nominator.terminating_victims
        await wait_until(lambda: harness.count("DELETE", "/weak") == 2, tick=lambda: harness.clock.advance(0.1))


@async_test
async def test_another_victim_goes_where_the_first_is_refused() -> None:
    other = make_pod("other", cpu="2", node="m", priority=2)
    async with run_live_scheduler(NODE, make_node("m", cpu="2"), WEAK, other) as harness:
        at_server(harness, WEAK, other)
        refuse_deletions(harness, "weak")
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "/weak")
        await wait_until(lambda: deletions(harness)[-1] == "other", tick=lambda: harness.clock.advance(0.1))
        assert deletions(harness) == ["weak", "other"]


@async_test
async def test_a_weaker_nomination_is_cleared_and_an_error_there_has_the_preemptor_tried_again() -> None:
    middle = replace_fields(
        make_pod("middle", cpu="2", priority=5), status=PodStatus(phase="Pending", nominated_node_name="n")
    )
    async with run_live_scheduler(NODE, WEAK) as harness:
        harness.fail_next("PATCH", "/middle/status", *[status(403, "Forbidden")] * 2)
        harness.fail_next("PATCH", "/weak/status", *[status(500, "InternalError")] * 8, NoAnswer())
        harness.deliver(middle)
        await harness.wait_for_request("PATCH", "/middle/status")
        harness.deliver(STRONG)
        await wait_until(
            lambda: (
                {"metadata": {"uid": middle.uid}, "status": {"nominatedNodeName": None}}
                in harness.sent("PATCH", "/middle/status")
            ),
            tick=lambda: harness.clock.advance(0.01),
        )
        await wait_until(lambda: harness.attempts(STRONG) > 1, tick=lambda: harness.clock.advance(0.01))
        assert harness.count("PATCH", "/middle/status") == 2, "its condition and its nomination, both refused"
        assert harness.sent("DELETE") == [], "the room is not made yet"


# victims that never reached the API


class Holds:
    """Holds weak pods at Permit."""

    name = "Holds"
    cured_by = ()

    def permit(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return PermitWait(600) if cycle.pod.priority < 5 else None


class Prepares:
    """Takes its time with weak pods before they are bound."""

    name = "Prepares"
    cured_by = ()
    gate = None

    async def pre_bind(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
        if cycle.pod.priority < 5:
            await asyncio.get_running_loop().create_future()


def config(plugin: str) -> str:
    return f"""
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{{plugins: {{multiPoint: {{enabled: [{{name: {plugin}}}]}}}}}}]
"""


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        pytest.param(Holds, "waiting on permit for pod: preempted", id="at Permit"),
        pytest.param(Prepares, "preempted by DefaultPreemption", id="in PreBind"),
    ],
)
def test_a_victim_on_its_way_is_stopped_in_memory(plugin: Any, message: str) -> None:
    pod = make_pod("weak", cpu="2", priority=1)

    @async_test
    async def test() -> None:
        async with run_live_scheduler(
            NODE, config=config(plugin.name), registry=known_plugins().with_plugins(plugin)
        ) as harness:
            harness.deliver(pod)
            await wait_until(lambda: harness.live.engine.cache.is_assumed(pod.uid))
            await wait_until(
                lambda: (
                    harness.live.engine.waiting_pods.get(pod.uid) or pod.uid in harness.live.binding_cycles.pre_binds
                )
            )
            harness.deliver(STRONG)
            await harness.wait_for_request("POST", "/binding")
            assert harness.bound() == {"strong": "n"}
            assert preempted("weak", NOTE + " (in kube-scheduler memory).") in harness.events.recorded
            assert harness.sent("DELETE") == []
            told = [each for each in conditions(harness) if each["reason"] == "SchedulerError"]
            assert [each["message"] for each in told] == [message]
            assert harness.pool(pod) in (SubQueue.BACKOFF, SubQueue.ERROR_BACKOFF, SubQueue.UNSCHEDULABLE)

    test()


@async_test
async def test_a_victim_that_permit_has_just_let_go_is_deleted() -> None:
    pod = make_pod("weak", cpu="2", priority=1)
    async with run_live_scheduler(
        NODE, config=config("Holds"), registry=known_plugins().with_plugins(Holds)
    ) as harness:
        harness.deliver(pod)
        await wait_until(lambda: harness.live.engine.waiting_pods.get(pod.uid))
        waiting = harness.live.engine.waiting_pods.get(pod.uid)
        assert waiting is not None
        waiting.on_outcome = None  # whoever waits for the outcome has not had a turn yet
        waiting.allow("Holds")
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "/weak")
        await wait_until(lambda: preempted("weak") in harness.events.recorded)


@async_test
async def test_other_intents_of_post_filter_are_carried_out_too() -> None:
    class Frees:
        name = "Frees"
        cured_by = ()

        def filter(self, cycle: Cycle, node: Any) -> Any:  # noqa: ARG002
            return unschedulable("closed")

        def post_filter(self, cycle: Cycle, diagnosis: Any) -> PostFilterResult:  # noqa: ARG002
            return PostFilterResult(unschedulable("opening"), writes=("open",))

    done: list[object] = []
    async with run_live_scheduler(
        NODE, config=config("Frees"), registry=known_plugins().with_plugins(Frees)
    ) as harness:

        async def perform(intent: object) -> None:
            done.append(intent)

        harness.live.writes.perform = perform  # type: ignore[method-assign]
        pod = make_pod("p", cpu="1")
        harness.deliver(pod)
        await wait_until(lambda: done)
        await harness.idle()
        assert done == ["open"]
        assert harness.pool(pod) is SubQueue.UNSCHEDULABLE
        (told,) = conditions(harness)
        assert told["message"].endswith(", opening")


@async_test
async def test_the_preemptor_is_tried_again_when_its_victim_may_be_deleted() -> None:
    """Nothing else happens meanwhile: no event comes."""
    async with run_live_scheduler(NODE, WEAK) as harness:
        harness.fail_next("PATCH", "/weak/status", status(403, "Forbidden"))
        harness.deliver(STRONG)
        await harness.wait_for_request("PATCH", "/weak/status")
        await wait_until(lambda: deletions(harness), tick=lambda: harness.clock.advance(0.1))
        await harness.idle()
        assert evicted(harness) == ["PATCH weak/status", "PATCH weak/status", "DELETE weak"]
        assert 10.0 <= harness.clock.monotonic_s() < 13.0


@async_test
async def test_the_server_answers_late_and_the_watch_is_quicker() -> None:
    async with run_live_scheduler(NODE, WEAK) as harness:
        gate = asyncio.Event()

        async def late(_: Request) -> Any:
            await gate.wait()
            return Reply(200, {})

        harness.server.route = lambda request: late(request) if request.method == "DELETE" else harness.answer(request)
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "/weak")
        await gone(harness, WEAK)
        await harness.wait_for_request("POST", "/binding")
        gate.set()
        await harness.idle()
        assert harness.bound() == {"strong": "n"}
        assert evicted(harness) == ["PATCH weak/status", "DELETE weak"]
        assert harness.pool(STRONG) is None


@pytest.mark.parametrize("is_gone", [True, False], ids=["the-preemptor-went", "the-preemptor-waits"])
def test_after_a_refusal_the_preemptor_is_reported_when_a_deletion_was_accepted(is_gone: bool) -> None:
    @async_test
    async def test() -> None:
        async with run_live_scheduler(NODE, WEAK) as harness:
            harness.fail_next("PATCH", "/weak/status", status(403, "Forbidden"))
            harness.deliver(STRONG)
            await harness.wait_for_request("PATCH", "/weak/status")
            accepted = asyncio.Event()

            async def late(_: Request) -> Any:
                await accepted.wait()
                return Reply(200, {})

            harness.server.route = lambda request: (
                late(request) if request.method == "DELETE" else harness.answer(request)
            )
            await wait_until(lambda: harness.count("DELETE", "/weak") == 1, tick=lambda: harness.clock.advance(0.1))
            before, reported = len(conditions(harness)), len(harness.events.recorded)
            if is_gone:
                harness.deliver_deletion(STRONG)
                await harness.live.handle_pending_events()
            accepted.set()
            await harness.idle()
            assert len(conditions(harness)) - before == (0 if is_gone else 1)
            reasons = [each.reason for each in harness.events.recorded[reported:]]
            assert reasons == (["Preempted"] if is_gone else ["Preempted", "FailedScheduling"])

    test()
