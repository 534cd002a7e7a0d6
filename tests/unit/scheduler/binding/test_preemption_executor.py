"""Preemption: the order of evictions and reports, and that the preemptor is always woken."""

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
from support.harness.live_scheduler import LiveSchedulerHarness, RecordedEvent, conditions, run_live_scheduler

NODE = make_node("n", cpu="2")
WEAK = make_pod("weak", cpu="2", node="n", priority=1)
STRONG = make_pod("strong", cpu="2", priority=9)
HALVES = [make_pod(f"half-{number}", cpu="1", node="n", priority=1) for number in range(2)]
NOTE = f"Preempted by pod {STRONG.uid} on node n"


def eviction_requests(harness: LiveSchedulerHarness) -> list[str]:
    """The API requests for victims, in order."""
    found = [
        each for each in harness.server.requests if "strong" not in each.path and not each.path.endswith("/binding")
    ]
    return [f"{each.method} {each.path.removeprefix('/api/v1/namespaces/default/pods/')}" for each in found]


def preempted(name: str, note: str = NOTE) -> RecordedEvent:
    return RecordedEvent(name, "Normal", "Preempted", "Preempting", note, "strong")


async def delete(harness: LiveSchedulerHarness, *pods: Pod) -> None:
    for pod in pods:
        harness.deliver_deletion(pod)
    await wait_until(lambda: all(harness.live.engine.cache.pod(pod.uid) is None for pod in pods))


@async_test
async def test_a_victim_gets_a_condition_and_is_deleted_and_the_preemptor_is_bound() -> None:
    async with run_live_scheduler(NODE, WEAK, STRONG) as harness:
        assert eviction_requests(harness) == ["PATCH weak/status", "DELETE weak"]
        (victim_patch,) = harness.sent("PATCH", "/weak/status")
        assert victim_patch == {
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
        (patch,) = harness.sent("PATCH", "/strong/status")
        assert patch["status"]["nominatedNodeName"] == "n"
        assert patch["status"]["conditions"][0]["message"] == "0/1 nodes are available: 1 Insufficient cpu."
        assert harness.live.engine.nominator.node_of(STRONG.uid) == "n"
        assert harness.pool(STRONG) is SubQueue.UNSCHEDULABLE
        await delete(harness, WEAK)
        await harness.wait_for_request("POST", "/binding")
        assert harness.bound() == {"strong": "n"}
        assert harness.live.engine.nominator.node_of(STRONG.uid) is None


@async_test
async def test_the_last_victim_is_deleted_after_the_nomination_is_written_and_the_other_victims_are_deleted() -> None:
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
        first = eviction_requests(harness)
        assert [each.split()[0] for each in first] == ["PATCH", "DELETE"]
        gate.set()
        await harness.idle()
        assert len(eviction_requests(harness)) == 4


@async_test
async def test_a_victim_that_has_the_condition_is_only_deleted() -> None:
    patch = Condition(
        "DisruptionTarget",
        "True",
        "PreemptionByScheduler",
        "default-scheduler: preempting to accommodate a higher priority pod",
    )
    weak = replace_fields(WEAK, status=PodStatus(phase="Running", conditions=(patch,)))
    async with run_live_scheduler(NODE, weak, STRONG) as harness:
        assert eviction_requests(harness) == ["DELETE weak"]


@async_test
async def test_a_victim_disappears_while_the_preemptor_is_held_back() -> None:
    """The deletion event comes before the eviction, while no event wakes the preemptor; no other event will come."""
    async with run_live_scheduler(NODE, WEAK) as harness:
        gate = asyncio.Event()

        async def missing(_: Request) -> Any:
            await gate.wait()
            return status(404, "NotFound", 'pods "weak" not found')

        harness.server.route = lambda request: missing(request) if "/weak" in request.path else harness.answer(request)
        hold(harness)
        harness.deliver(STRONG)
        await harness.wait_for_request("PATCH", "/weak/status")
        await delete(harness, WEAK)
        assert harness.pool(STRONG) is SubQueue.UNSCHEDULABLE
        gate.set()
        await harness.wait_for_request("POST", "/binding")
        assert preempted("weak") not in harness.events.recorded


def hold(harness: LiveSchedulerHarness) -> None:
    """Keep the preemptor from noticing that the last victim terminates."""
    plugin = harness.live.engine.framework("default-scheduler").profile.instances["DefaultPreemption"]
    plugin.on_waiting_for_victim = lambda *_: None


@async_test
async def test_a_victim_that_the_server_has_deleted_and_the_watch_has_not_shown() -> None:
    """The deletion event will come and wakes the preemptor; an earlier attempt would only evict the victim again."""
    async with run_live_scheduler(NODE, WEAK) as harness:
        harness.fail_next("PATCH", "/weak/status", status(404, "NotFound", 'pods "weak" not found'))
        harness.deliver(STRONG)
        await harness.wait_for_request("PATCH", "/strong/status")
        await harness.idle()
        assert harness.pool(STRONG) is SubQueue.UNSCHEDULABLE
        assert eviction_requests(harness) == ["PATCH weak/status", "GET weak"]
        await delete(harness, WEAK)
        await harness.wait_for_request("POST", "/binding")


@pytest.mark.parametrize("code", [404, 409], ids=["deleted", "another pod of the name"])
def test_a_victim_that_is_deleted_before_its_eviction(code: int) -> None:
    @async_test
    async def test() -> None:
        async with run_live_scheduler(NODE, WEAK) as harness:
            at_server(harness, replace_fields(WEAK, metadata={"uid": "another"}))
            harness.fail_next("DELETE", "/weak", status(code, "NotFound" if code == 404 else "Conflict"))
            harness.deliver(STRONG)
            await harness.wait_for_request("DELETE", "/weak")
            await harness.idle()
            assert preempted("weak") not in harness.events.recorded
            await delete(harness, WEAK)
            await harness.wait_for_request("POST", "/binding")

    test()


def at_server(harness: LiveSchedulerHarness, *pods: Pod) -> None:
    """The API server has these pods."""
    harness.objects.update({f"/api/v1/namespaces/default/pods/{pod.name}": pod for pod in pods})


def refuse_deletions(harness: LiveSchedulerHarness, *names: str, code: int = 403) -> None:
    """The API server refuses every deletion of these pods."""

    def route(request: Request) -> Any:
        refused = request.method == "DELETE" and request.path.rsplit("/", 1)[1] in names
        return status(code, "Forbidden", "a webhook says no") if refused else harness.answer(request)

    harness.server.route = route


def deletions(harness: LiveSchedulerHarness) -> list[str]:
    return [each.split()[1] for each in eviction_requests(harness) if each.startswith("DELETE")]


async def advance(harness: LiveSchedulerHarness, seconds: float) -> None:
    """Advance the clock in steps, so that due work is done in between."""
    for _ in range(int(seconds / 0.1)):
        harness.clock.advance(0.1)
        await asyncio.sleep(0.001)
    await harness.idle()


@async_test
async def test_after_an_error_the_last_victim_is_not_deleted_and_the_preemptor_is_retried_after_its_backoff() -> None:
    async with run_live_scheduler(NODE, *HALVES) as harness:
        at_server(harness, *HALVES)
        refuse_deletions(harness, *(pod.name for pod in HALVES))
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "")
        await harness.idle()
        assert [each.split()[0] for each in eviction_requests(harness)] == ["PATCH", "DELETE", "GET"]
        assert harness.pool(STRONG) is SubQueue.ERROR_BACKOFF
        assert harness.attempts(STRONG) == 1
        plugin = harness.live.engine.framework("default-scheduler").profile.instances["DefaultPreemption"]
        assert not plugin.is_preempting(STRONG.uid)
        assert not harness.live.engine.nominator.terminating_victims
        await wait_until(lambda: harness.attempts(STRONG) == 2, tick=lambda: harness.clock.advance(0.1))
        assert harness.clock.monotonic_s() >= 1.0


@async_test
async def test_a_victim_whose_deletion_was_accepted_terminates_although_another_deletion_is_refused() -> None:
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
        await advance(harness, 8.0)
        assert set(deletions(harness)) - {"third-1"} == leaving, (
            "no other victim is deleted for a pod that will not fit"
        )


@async_test
async def test_a_victim_is_deleted_although_a_lower_nomination_cannot_be_cleared() -> None:
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
        await advance(harness, 5.0)
        assert deletions(harness) == ["weak"]


@pytest.mark.parametrize("code", [403, 429, 500], ids=["refused", "busy", "failing webhook"])
def test_a_victim_that_cannot_be_deleted_is_excluded_for_a_growing_pause(code: int) -> None:
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
            assert sum(rounds[-3:]) > 0, "it is retried from time to time"

    test()


@async_test
async def test_a_victim_that_exists_after_a_conflict_was_not_deleted() -> None:
    """A 409 does not prove that the uid differs: a webhook may return it, too."""
    async with run_live_scheduler(NODE, WEAK) as harness:
        at_server(harness, WEAK)
        harness.fail_next("DELETE", "/weak", status(409, "Conflict"))
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "/weak")
        await harness.idle()
        assert not harness.live.engine.nominator.terminating_victims
        await wait_until(lambda: harness.count("DELETE", "/weak") == 2, tick=lambda: harness.clock.advance(0.1))


@async_test
async def test_another_victim_is_evicted_when_the_first_is_refused() -> None:
    other = make_pod("other", cpu="2", node="m", priority=2)
    async with run_live_scheduler(NODE, make_node("m", cpu="2"), WEAK, other) as harness:
        at_server(harness, WEAK, other)
        refuse_deletions(harness, "weak")
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "/weak")
        await wait_until(lambda: deletions(harness)[-1] == "other", tick=lambda: harness.clock.advance(0.1))
        assert deletions(harness) == ["weak", "other"]


@async_test
async def test_a_weaker_nomination_is_not_cleared_again_for_an_eviction_that_is_refused_again() -> None:
    middle = replace_fields(
        make_pod("middle", cpu="2", priority=5),
        spec={"preemption_policy": "Never"},
        status=PodStatus(phase="Pending", nominated_node_name="n"),
    )
    cleared = {"metadata": {"uid": middle.uid}, "status": {"nominatedNodeName": None}}
    async with run_live_scheduler(NODE, WEAK, middle) as harness:
        at_server(harness, WEAK)
        refuse_deletions(harness, "weak")
        harness.deliver(STRONG)
        await wait_until(lambda: len(deletions(harness)) == 3, tick=lambda: harness.clock.advance(0.5))
        await harness.idle()
        assert harness.sent("PATCH", "/middle/status").count(cleared) == 1
        harness.server.route = harness.answer
        await wait_until(lambda: len(deletions(harness)) == 4, tick=lambda: harness.clock.advance(0.5))
        await harness.idle()
        assert harness.sent("PATCH", "/middle/status").count(cleared) == 2, "the room is made now"


@async_test
async def test_a_lower_nomination_is_cleared_and_an_error_there_retries_the_preemptor() -> None:
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
        assert harness.sent("DELETE") == [], "the nomination is cleared first"


# victims in their binding cycle


class WaitsAtPermit:
    """Makes weak pods wait at Permit."""

    name = "WaitsAtPermit"
    events_to_register = ()

    def permit(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return PermitWait(600) if cycle.pod.priority < 5 else None


class WaitsInPreBind:
    """Delays weak pods in PreBind."""

    name = "WaitsInPreBind"
    events_to_register = ()
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
        pytest.param(WaitsAtPermit, "waiting on permit for pod: preempted", id="at Permit"),
        pytest.param(WaitsInPreBind, "preempted by DefaultPreemption", id="in PreBind"),
    ],
)
def test_a_victim_in_its_binding_cycle_is_cancelled_in_memory(plugin: Any, message: str) -> None:
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
                    harness.live.engine.waiting_pods.get(pod.uid) or pod.uid in harness.live.bindings.cycle.pre_binds
                )
            )
            harness.deliver(STRONG)
            await harness.wait_for_request("POST", "/binding")
            assert harness.bound() == {"strong": "n"}
            assert preempted("weak", NOTE + " (in kube-scheduler memory).") in harness.events.recorded
            assert harness.sent("DELETE") == []
            victim_patch = [each for each in conditions(harness) if each["reason"] == "SchedulerError"]
            assert [each["message"] for each in victim_patch] == [message]
            assert harness.pool(pod) in (SubQueue.BACKOFF, SubQueue.ERROR_BACKOFF, SubQueue.UNSCHEDULABLE)

    test()


@async_test
async def test_a_victim_that_permit_has_just_allowed_is_deleted() -> None:
    pod = make_pod("weak", cpu="2", priority=1)
    async with run_live_scheduler(
        NODE, config=config("WaitsAtPermit"), registry=known_plugins().with_plugins(WaitsAtPermit)
    ) as harness:
        harness.deliver(pod)
        await wait_until(lambda: harness.live.engine.waiting_pods.get(pod.uid))
        waiting = harness.live.engine.waiting_pods.get(pod.uid)
        assert waiting is not None
        waiting.on_outcome = None  # the task that waits for the outcome has not run yet
        waiting.allow("WaitsAtPermit")
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "/weak")
        await wait_until(lambda: preempted("weak") in harness.events.recorded)


@async_test
async def test_other_intents_of_post_filter_are_performed() -> None:
    class Frees:
        name = "Frees"
        events_to_register = ()

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
        (victim_patch,) = conditions(harness)
        assert victim_patch["message"].endswith(", opening")


@async_test
async def test_the_preemptor_is_retried_when_its_victim_may_be_evicted_again() -> None:
    """No event comes meanwhile."""
    async with run_live_scheduler(NODE, WEAK) as harness:
        harness.fail_next("PATCH", "/weak/status", status(403, "Forbidden"))
        harness.deliver(STRONG)
        await harness.wait_for_request("PATCH", "/weak/status")
        await wait_until(lambda: deletions(harness), tick=lambda: harness.clock.advance(0.1))
        await harness.idle()
        assert eviction_requests(harness) == ["PATCH weak/status", "PATCH weak/status", "DELETE weak"]
        assert 10.0 <= harness.clock.monotonic_s() < 13.0


@async_test
async def test_the_watch_shows_the_deletion_before_the_response_arrives() -> None:
    async with run_live_scheduler(NODE, WEAK) as harness:
        gate = asyncio.Event()

        async def late(_: Request) -> Any:
            await gate.wait()
            return Reply(200, {})

        harness.server.route = lambda request: late(request) if request.method == "DELETE" else harness.answer(request)
        harness.deliver(STRONG)
        await harness.wait_for_request("DELETE", "/weak")
        await delete(harness, WEAK)
        await harness.wait_for_request("POST", "/binding")
        gate.set()
        await harness.idle()
        assert harness.bound() == {"strong": "n"}
        assert eviction_requests(harness) == ["PATCH weak/status", "DELETE weak"]
        assert harness.pool(STRONG) is None


@pytest.mark.parametrize("is_deleted", [True, False], ids=["the-preemptor-went", "the-preemptor-waits"])
def test_after_a_refusal_the_preemptor_is_reported_when_a_deletion_was_accepted(is_deleted: bool) -> None:
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
            if is_deleted:
                harness.deliver_deletion(STRONG)
                await harness.live.handle_pending_events()
            accepted.set()
            await harness.idle()
            assert len(conditions(harness)) - before == (0 if is_deleted else 1)
            reasons = [each.reason for each in harness.events.recorded[reported:]]
            assert reasons == (["Preempted"] if is_deleted else ["Preempted", "FailedScheduling"])

    test()
