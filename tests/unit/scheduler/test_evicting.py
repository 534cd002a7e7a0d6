"""Room for a stronger pod: who is told what and in which order, and that the preemptor never sleeps through it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from bayplan.app import known_plugins
from bayplan.framework import Cycle, Wait, unschedulable
from bayplan.framework.plugin import PostFilterAnswer
from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.meta import Condition
from bayplan.queueing.queued import Pool
from builders import changed, make_node, make_pod
from live_rig import Rig, Told, conditions, running
from wire_server import Hang, Reply, Request, on_loop, status, until

NODE = make_node("n", cpu="2")
WEAK = make_pod("weak", cpu="2", node="n", priority=1)
STRONG = make_pod("strong", cpu="2", priority=9)
HALVES = [make_pod(f"half-{number}", cpu="1", node="n", priority=1) for number in range(2)]
NOTE = f"Preempted by pod {STRONG.uid} on node n"


def evicted(rig: Rig) -> list[str]:
    """What was asked of the API about victims, in order."""
    found = [each for each in rig.server.requests if "strong" not in each.path and not each.path.endswith("/binding")]
    return [f"{each.method} {each.path.removeprefix('/api/v1/namespaces/default/pods/')}" for each in found]


def preempted(name: str, note: str = NOTE) -> Told:
    return Told(name, "Normal", "Preempted", "Preempting", note, "strong")


async def gone(rig: Rig, *pods: Pod) -> None:
    for pod in pods:
        rig.hear_gone(pod)
    await until(lambda: all(rig.live.engine.cache.pod(pod.uid) is None for pod in pods))


@on_loop
async def test_a_victim_is_told_and_deleted_and_the_preemptor_gets_its_room() -> None:
    async with running(NODE, WEAK, STRONG) as rig:
        assert evicted(rig) == ["PATCH weak/status", "DELETE weak"]
        (told,) = rig.sent("PATCH", "/weak/status")
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
        assert rig.sent("DELETE")[0]["preconditions"] == {"uid": WEAK.uid}
        assert preempted("weak") in rig.events.told
        (said,) = rig.sent("PATCH", "/strong/status")
        assert said["status"]["nominatedNodeName"] == "n"
        assert said["status"]["conditions"][0]["message"] == "0/1 nodes are available: 1 Insufficient cpu."
        assert rig.live.engine.nominations.node_of(STRONG.uid) == "n"
        assert rig.pool(STRONG) is Pool.PARKED
        await gone(rig, WEAK)
        await rig.asked("POST", "/binding")
        assert rig.bound() == {"strong": "n"}
        assert rig.live.engine.nominations.node_of(STRONG.uid) is None


@on_loop
async def test_the_last_victim_goes_when_the_nomination_is_written_and_the_others_are_told() -> None:
    async with running(NODE, *HALVES) as rig:
        gate = asyncio.Event()

        async def late(request: Request) -> Any:
            await gate.wait()
            return rig.answer(request)

        rig.server.route = lambda request: (
            late(request) if request.path.endswith("/strong/status") else rig.answer(request)
        )
        rig.hear(STRONG)
        await rig.asked("DELETE", "")
        await asyncio.sleep(0.01)
        first = evicted(rig)
        assert [each.split()[0] for each in first] == ["PATCH", "DELETE"]
        gate.set()
        await rig.idle()
        assert len(evicted(rig)) == 4


@on_loop
async def test_a_victim_whose_status_says_so_is_only_deleted() -> None:
    said = Condition(
        "DisruptionTarget",
        "True",
        "PreemptionByScheduler",
        "default-scheduler: preempting to accommodate a higher priority pod",
    )
    weak = changed(WEAK, status=PodStatus(phase="Running", conditions=(said,)))
    async with running(NODE, weak, STRONG) as rig:
        assert evicted(rig) == ["DELETE weak"]


@on_loop
async def test_a_victim_that_goes_by_itself_while_the_preemptor_is_held_back() -> None:
    """Its going is told before anybody asked it to go, when the preemptor hears nothing; no other event will come."""
    async with running(NODE, WEAK) as rig:
        gate = asyncio.Event()

        async def missing(_: Request) -> Any:
            await gate.wait()
            return status(404, "NotFound", 'pods "weak" not found')

        rig.server.route = lambda request: missing(request) if "/weak" in request.path else rig.answer(request)
        hold(rig)
        rig.hear(STRONG)
        await rig.asked("PATCH", "/weak/status")
        await gone(rig, WEAK)
        assert rig.pool(STRONG) is Pool.PARKED
        gate.set()
        await rig.asked("POST", "/binding")
        assert preempted("weak") not in rig.events.told


def hold(rig: Rig) -> None:
    """Let the preemptor not notice that the last victim leaves."""
    plugin = rig.live.engine.framework("default-scheduler").profile.instances["DefaultPreemption"]
    plugin.waits_for = lambda *_: None


@on_loop
async def test_a_victim_that_is_gone_at_the_server_and_not_yet_for_us() -> None:
    """Its going is still to be told, and wakes the preemptor; to try before would only evict it again."""
    async with running(NODE, WEAK) as rig:
        rig.refuse("PATCH", "/weak/status", status(404, "NotFound", 'pods "weak" not found'))
        rig.hear(STRONG)
        await rig.asked("PATCH", "/strong/status")
        await rig.idle()
        assert rig.pool(STRONG) is Pool.PARKED
        assert evicted(rig) == ["PATCH weak/status", "GET weak"]
        await gone(rig, WEAK)
        await rig.asked("POST", "/binding")


@pytest.mark.parametrize("code", [404, 409], ids=["gone", "a namesake"])
def test_a_victim_that_is_gone_before_it_is_deleted(code: int) -> None:
    @on_loop
    async def test() -> None:
        async with running(NODE, WEAK) as rig:
            at_server(rig, changed(WEAK, metadata={"uid": "another"}))
            rig.refuse("DELETE", "/weak", status(code, "NotFound" if code == 404 else "Conflict"))
            rig.hear(STRONG)
            await rig.asked("DELETE", "/weak")
            await rig.idle()
            assert preempted("weak") not in rig.events.told
            await gone(rig, WEAK)
            await rig.asked("POST", "/binding")

    test()


def at_server(rig: Rig, *pods: Pod) -> None:
    """The API server has these pods."""
    rig.objects.update({f"/api/v1/namespaces/default/pods/{pod.name}": pod for pod in pods})


def refuse_deletions(rig: Rig, *names: str, code: int = 403) -> None:
    """The API server refuses to delete these pods, each time."""

    def route(request: Request) -> Any:
        refused = request.method == "DELETE" and request.path.rsplit("/", 1)[1] in names
        return status(code, "Forbidden", "a webhook says no") if refused else rig.answer(request)

    rig.server.route = route


def deletions(rig: Rig) -> list[str]:
    return [each.split()[1] for each in evicted(rig) if each.startswith("DELETE")]


async def passing(rig: Rig, seconds: float) -> None:
    """Let time pass; whatever is due in between happens."""
    for _ in range(int(seconds / 0.1)):
        rig.clock.advance(0.1)
        await asyncio.sleep(0.001)
    await rig.idle()


@on_loop
async def test_an_error_leaves_the_last_victim_alone_and_the_preemptor_is_tried_after_its_backoff() -> None:
    async with running(NODE, *HALVES) as rig:
        at_server(rig, *HALVES)
        refuse_deletions(rig, *(pod.name for pod in HALVES))
        rig.hear(STRONG)
        await rig.asked("DELETE", "")
        await rig.idle()
        assert [each.split()[0] for each in evicted(rig)] == ["PATCH", "DELETE", "GET"]
        assert rig.pool(STRONG) is Pool.ERROR_BACKOFF
        assert rig.attempts(STRONG) == 1
        plugin = rig.live.engine.framework("default-scheduler").profile.instances["DefaultPreemption"]
        assert not plugin.is_preempting(STRONG.uid)
        assert not rig.live.engine.nominations.leaving
        await until(lambda: rig.attempts(STRONG) == 2, tick=lambda: rig.clock.advance(0.1))
        assert rig.clock.monotonic_s() >= 1.0


@on_loop
async def test_a_victim_whose_deletion_was_accepted_leaves_though_that_of_another_is_refused() -> None:
    thirds = [make_pod(f"third-{number}", cpu="1", node="m", priority=1) for number in range(3)]
    async with running(make_node("m", cpu="3"), *thirds) as rig:
        at_server(rig, *thirds)
        refuse_deletions(rig, "third-1")
        rig.hear(make_pod("strong", cpu="3", priority=9))
        await rig.asked("DELETE", "", 2)
        await rig.idle()
        accepted = set(deletions(rig)) - {"third-1"}
        leaving = {pod.name for pod in thirds if rig.live.engine.nominations.is_leaving(pod.uid)}
        assert accepted == leaving != set()
        await passing(rig, 8.0)
        assert set(deletions(rig)) - {"third-1"} == leaving, "no other victim goes for a pod that finds no room"


@on_loop
async def test_a_victim_leaves_though_a_weaker_nomination_cannot_be_cleared() -> None:
    middle = changed(
        make_pod("middle", cpu="2", priority=5),
        spec={"preemption_policy": "Never"},
        status=PodStatus(phase="Pending", nominated_node_name="n"),
    )
    async with running(NODE, WEAK, middle) as rig:
        rig.refuse("PATCH", "/middle/status", status(403, "Forbidden"))
        rig.hear(STRONG)
        await rig.asked("DELETE", "/weak")
        await rig.idle()
        assert rig.sent("PATCH", "/middle/status")[-1]["status"] == {"nominatedNodeName": None}
        assert rig.live.engine.nominations.is_leaving(WEAK.uid)
        await passing(rig, 5.0)
        assert deletions(rig) == ["weak"]


@pytest.mark.parametrize("code", [403, 429, 500], ids=["refused", "busy", "failing webhook"])
def test_a_victim_that_cannot_be_deleted_is_left_alone_for_longer_and_longer(code: int) -> None:
    @on_loop
    async def test() -> None:
        async with running(NODE, WEAK) as rig:
            at_server(rig, WEAK)
            refuse_deletions(rig, "weak", code=code)
            rig.hear(STRONG)
            await until(lambda: rig.live.engine.nominations.refused, tick=lambda: rig.clock.advance(0.5))
            first = len(deletions(rig))
            assert first <= 4
            counts = []
            for _ in range(6):
                for _ in range(600):
                    rig.clock.advance(1.0)
                    for _ in range(3):
                        await asyncio.sleep(0)
                await until(lambda: rig.live.is_idle)
                counts.append(len(deletions(rig)))
            rounds = [(after - before) / first for before, after in pairwise(counts)]
            assert max(rounds) <= 2, rounds
            assert sum(rounds[-3:]) > 0, "it is tried again from time to time"

    test()


@on_loop
async def test_a_victim_that_is_there_after_a_conflict_was_not_deleted() -> None:
    """A 409 is no proof that the uid is another one: a webhook may answer it, too."""
    async with running(NODE, WEAK) as rig:
        at_server(rig, WEAK)
        rig.refuse("DELETE", "/weak", status(409, "Conflict"))
        rig.hear(STRONG)
        await rig.asked("DELETE", "/weak")
        await rig.idle()
        assert not rig.live.engine.nominations.leaving
        await until(lambda: rig.count("DELETE", "/weak") == 2, tick=lambda: rig.clock.advance(0.1))


@on_loop
async def test_another_victim_goes_where_the_first_is_refused() -> None:
    other = make_pod("other", cpu="2", node="m", priority=2)
    async with running(NODE, make_node("m", cpu="2"), WEAK, other) as rig:
        at_server(rig, WEAK, other)
        refuse_deletions(rig, "weak")
        rig.hear(STRONG)
        await rig.asked("DELETE", "/weak")
        await until(lambda: deletions(rig)[-1] == "other", tick=lambda: rig.clock.advance(0.1))
        assert deletions(rig) == ["weak", "other"]


@on_loop
async def test_a_weaker_nomination_is_not_cleared_again_for_an_eviction_that_is_refused_again() -> None:
    middle = changed(
        make_pod("middle", cpu="2", priority=5),
        spec={"preemption_policy": "Never"},
        status=PodStatus(phase="Pending", nominated_node_name="n"),
    )
    cleared = {"metadata": {"uid": middle.uid}, "status": {"nominatedNodeName": None}}
    async with running(NODE, WEAK, middle) as rig:
        at_server(rig, WEAK)
        refuse_deletions(rig, "weak")
        rig.hear(STRONG)
        await until(lambda: len(deletions(rig)) == 3, tick=lambda: rig.clock.advance(0.5))
        await rig.idle()
        assert rig.sent("PATCH", "/middle/status").count(cleared) == 1
        rig.server.route = rig.answer
        await until(lambda: len(deletions(rig)) == 4, tick=lambda: rig.clock.advance(0.5))
        await rig.idle()
        assert rig.sent("PATCH", "/middle/status").count(cleared) == 2, "the room is made now"


@on_loop
async def test_a_weaker_nomination_is_cleared_and_an_error_there_has_the_preemptor_tried_again() -> None:
    middle = changed(
        make_pod("middle", cpu="2", priority=5), status=PodStatus(phase="Pending", nominated_node_name="n")
    )
    async with running(NODE, WEAK) as rig:
        rig.refuse("PATCH", "/middle/status", *[status(403, "Forbidden")] * 2)
        rig.refuse("PATCH", "/weak/status", *[status(500, "InternalError")] * 8, Hang())
        rig.hear(middle)
        await rig.asked("PATCH", "/middle/status")
        rig.hear(STRONG)
        await until(
            lambda: (
                {"metadata": {"uid": middle.uid}, "status": {"nominatedNodeName": None}}
                in rig.sent("PATCH", "/middle/status")
            ),
            tick=lambda: rig.clock.advance(0.01),
        )
        await until(lambda: rig.attempts(STRONG) > 1, tick=lambda: rig.clock.advance(0.01))
        assert rig.count("PATCH", "/middle/status") == 2, "its condition and its nomination, both refused"
        assert rig.sent("DELETE") == [], "the room is not made yet"


# victims that never reached the API


class Holds:
    """Holds weak pods at Permit."""

    name = "Holds"
    cured_by = ()

    def permit(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return Wait(600) if cycle.pod.priority < 5 else None


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

    @on_loop
    async def test() -> None:
        async with running(NODE, config=config(plugin.name), registry=known_plugins().with_plugins(plugin)) as rig:
            rig.hear(pod)
            await until(lambda: rig.live.engine.cache.is_assumed(pod.uid))
            await until(lambda: rig.live.engine.waiting.get(pod.uid) or pod.uid in rig.live.bindings.pre_binds)
            rig.hear(STRONG)
            await rig.asked("POST", "/binding")
            assert rig.bound() == {"strong": "n"}
            assert preempted("weak", NOTE + " (in kube-scheduler memory).") in rig.events.told
            assert rig.sent("DELETE") == []
            told = [each for each in conditions(rig) if each["reason"] == "SchedulerError"]
            assert [each["message"] for each in told] == [message]
            assert rig.pool(pod) in (Pool.BACKOFF, Pool.ERROR_BACKOFF, Pool.PARKED)

    test()


@on_loop
async def test_a_victim_that_permit_has_just_let_go_is_deleted() -> None:
    pod = make_pod("weak", cpu="2", priority=1)
    async with running(NODE, config=config("Holds"), registry=known_plugins().with_plugins(Holds)) as rig:
        rig.hear(pod)
        await until(lambda: rig.live.engine.waiting.get(pod.uid))
        waiting = rig.live.engine.waiting.get(pod.uid)
        assert waiting is not None
        waiting.on_settled = None  # whoever waits for the outcome has not had a turn yet
        waiting.allow("Holds")
        rig.hear(STRONG)
        await rig.asked("DELETE", "/weak")
        await until(lambda: preempted("weak") in rig.events.told)


@on_loop
async def test_other_intents_of_post_filter_are_carried_out_too() -> None:
    class Frees:
        name = "Frees"
        cured_by = ()

        def filter(self, cycle: Cycle, node: Any) -> Any:  # noqa: ARG002
            return unschedulable("closed")

        def post_filter(self, cycle: Cycle, diagnosis: Any) -> PostFilterAnswer:  # noqa: ARG002
            return PostFilterAnswer(unschedulable("opening"), writes=("open",))

    done: list[object] = []
    async with running(NODE, config=config("Frees"), registry=known_plugins().with_plugins(Frees)) as rig:

        async def perform(intent: object) -> None:
            done.append(intent)

        rig.live.writes.perform = perform  # type: ignore[method-assign]
        pod = make_pod("p", cpu="1")
        rig.hear(pod)
        await until(lambda: done)
        await rig.idle()
        assert done == ["open"]
        assert rig.pool(pod) is Pool.PARKED
        (told,) = conditions(rig)
        assert told["message"].endswith(", opening")


@on_loop
async def test_the_preemptor_is_tried_again_when_its_victim_may_be_deleted() -> None:
    """Nothing else happens meanwhile: no event comes."""
    async with running(NODE, WEAK) as rig:
        rig.refuse("PATCH", "/weak/status", status(403, "Forbidden"))
        rig.hear(STRONG)
        await rig.asked("PATCH", "/weak/status")
        await until(lambda: deletions(rig), tick=lambda: rig.clock.advance(0.1))
        await rig.idle()
        assert evicted(rig) == ["PATCH weak/status", "PATCH weak/status", "DELETE weak"]
        assert 10.0 <= rig.clock.monotonic_s() < 13.0


@on_loop
async def test_the_server_answers_late_and_the_watch_is_quicker() -> None:
    async with running(NODE, WEAK) as rig:
        gate = asyncio.Event()

        async def late(_: Request) -> Any:
            await gate.wait()
            return Reply(200, {})

        rig.server.route = lambda request: late(request) if request.method == "DELETE" else rig.answer(request)
        rig.hear(STRONG)
        await rig.asked("DELETE", "/weak")
        await gone(rig, WEAK)
        await rig.asked("POST", "/binding")
        gate.set()
        await rig.idle()
        assert rig.bound() == {"strong": "n"}
        assert evicted(rig) == ["PATCH weak/status", "DELETE weak"]
        assert rig.pool(STRONG) is None


@pytest.mark.parametrize("is_gone", [True, False], ids=["the-preemptor-went", "the-preemptor-waits"])
def test_after_a_refusal_the_preemptor_is_reported_when_a_deletion_was_accepted(is_gone: bool) -> None:
    @on_loop
    async def test() -> None:
        async with running(NODE, WEAK) as rig:
            rig.refuse("PATCH", "/weak/status", status(403, "Forbidden"))
            rig.hear(STRONG)
            await rig.asked("PATCH", "/weak/status")
            accepted = asyncio.Event()

            async def late(_: Request) -> Any:
                await accepted.wait()
                return Reply(200, {})

            rig.server.route = lambda request: late(request) if request.method == "DELETE" else rig.answer(request)
            await until(lambda: rig.count("DELETE", "/weak") == 1, tick=lambda: rig.clock.advance(0.1))
            before, reported = len(conditions(rig)), len(rig.events.told)
            if is_gone:
                rig.hear_gone(STRONG)
                await rig.live.catch_up()
            accepted.set()
            await rig.idle()
            assert len(conditions(rig)) - before == (0 if is_gone else 1)
            reasons = [each.reason for each in rig.events.told[reported:]]
            assert reasons == (["Preempted"] if is_gone else ["Preempted", "FailedScheduling"])

    test()
