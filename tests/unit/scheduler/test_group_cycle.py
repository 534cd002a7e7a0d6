"""Pods of a group get their places together, or none of them does; and the group is told."""

from __future__ import annotations

from typing import Any

from bayplan.objects.core import Pod, PodSchedulingGroup
from bayplan.objects.meta import Condition, ObjectMeta
from bayplan.objects.workloads import GangPolicy, PodGroup, PodGroupSchedulingPolicy, PodGroupSpec, PodGroupStatus
from bayplan.queueing.queued import Pool
from builders import changed, make_node, make_pod
from live_rig import Rig, conditions, running
from wire_server import on_loop, status, until

GATES = ("GenericWorkload", "GangScheduling")
NODE = make_node("n", cpu="2")
WAITS = (
    "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, one or more plugins asked to "
    "wait and no plugin rejected pod"
)


def gang(count: int, *told: Condition) -> PodGroup:
    policy = PodGroupSchedulingPolicy(gang=GangPolicy(min_count=count))
    meta = ObjectMeta(name="gang", namespace="default", uid="uid-of-gang", generation=3)
    return PodGroup(metadata=meta, spec=PodGroupSpec(scheduling_policy=policy), status=PodGroupStatus(told))


def member(name: str, **fields: Any) -> Pod:
    return changed(make_pod(name, **fields), spec={"scheduling_group": PodSchedulingGroup(pod_group_name="gang")})


def stands(rig: Rig) -> list[tuple[str, str, str]]:
    """Every condition that was written to the group."""
    told = [patch["status"]["conditions"][-1] for patch in rig.sent("PATCH", "/podgroups/gang/status")]
    return [(each["status"], each["reason"], each["message"]) for each in told]


@on_loop
async def test_all_are_placed_at_once() -> None:
    async with running(NODE, gang(2), member("a", cpu="1"), member("b", cpu="1"), gates=GATES) as rig:
        assert rig.bound() == {"a": "n", "b": "n"}
        (patch,) = rig.sent("PATCH", "/podgroups/gang/status")
        assert patch == {
            "metadata": {"uid": "uid-of-gang", "resourceVersion": "2"},
            "status": {
                "conditions": [
                    {
                        "type": "PodGroupScheduled",
                        "status": "True",
                        "reason": "Scheduled",
                        "message": "",
                        "observedGeneration": 3,
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ]
            },
        }


@on_loop
async def test_who_is_too_early_is_not_let_in() -> None:
    a, b = member("a"), member("b")
    async with running(NODE, a, gates=GATES) as rig:
        assert rig.pool(a) is Pool.PARKED  # there is no such group
        rig.hear(gang(2))
        await rig.idle()
        assert (rig.pool(a), rig.bound(), conditions(rig)) == (Pool.PARKED, {}, [])
        rig.hear(b)
        await rig.idle()
        assert rig.bound() == {"a": "n", "b": "n"}


@on_loop
async def test_nobody_takes_a_place_where_not_enough_find_one() -> None:
    pods = [member(name, cpu="1") for name in "abc"]
    async with running(NODE, gang(3), *pods, gates=GATES) as rig:
        assert rig.bound() == {}
        assert rig.live.engine.cache.pod_count == 0
        assert stands(rig) == [("False", "Unschedulable", "pod group is unschedulable")]
        said = {event.about: event.note for event in rig.events.told}
        assert said.keys() == {"a", "b", "c"}
        assert sorted(said.values())[-2:] == [WAITS, WAITS]
        assert sorted(said.values())[0].startswith("0/1 nodes are available: 1 Insufficient cpu.")
        rig.hear(make_node("second", cpu="2"))
        rig.clock.advance(30)
        await rig.idle()
        assert rig.bound().keys() == {"a", "b", "c"}
        assert stands(rig)[-1][:2] == ("True", "Scheduled")


@on_loop
async def test_a_status_that_is_refused_is_written_again_though_nothing_happens() -> None:
    group = gang(2)
    async with running(NODE, group, gates=GATES) as rig:
        rig.objects["/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups/gang"] = group
        rig.refuse("PATCH", "/podgroups/gang/status", status(403, "Forbidden"))
        rig.hear(member("a", cpu="1"))
        rig.hear(member("b", cpu="1"))
        await rig.idle()
        assert rig.bound() == {"a": "n", "b": "n"}
        assert len(stands(rig)) == 1
        await until(lambda: len(stands(rig)) == 2, tick=lambda: rig.clock.advance(0.5))
        await rig.idle()
        assert [each[0] for each in stands(rig)] == ["True", "True"]
        assert rig.live.groups is not None
        assert rig.live.groups.statuses.next_retry_s() is None


@on_loop
async def test_a_group_that_was_scheduled_stays_so() -> None:
    before = Condition("PodGroupScheduled", "True", "Scheduled", "")
    async with running(NODE, gang(2, before), member("a", cpu="2"), member("b", cpu="2"), gates=GATES) as rig:
        assert rig.bound() == {}
        assert stands(rig) == []


@on_loop
async def test_all_of_a_group_have_one_scheduler() -> None:
    profiles = (
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles: [{schedulerName: default-scheduler}, {schedulerName: other}]"
    )
    pods = member("a"), member("b", scheduler_name="other")
    async with running(NODE, gang(2), *pods, gates=GATES, config=profiles) as rig:
        assert rig.bound() == {}
        (told,) = {event.note for event in rig.events.told}
        assert told.startswith("all pods in a single pod group should have the same .spec.schedulerName set, got: ")
        assert {each["reason"] for each in conditions(rig)} == {"SchedulerError"}
        assert stands(rig)[-1][:2] == ("False", "SchedulerError")


@on_loop
async def test_room_is_made_for_all_before_anybody_goes() -> None:
    weak = [make_pod(f"weak-{number}", node="n", cpu="1", priority=0) for number in range(2)]
    strong = [member(name, cpu="1", priority=10) for name in "ab"]
    async with running(NODE, *weak, gang(2), *strong, gates=GATES) as rig:
        assert rig.bound() == {}
        assert {each["status"].get("nominatedNodeName") for each in rig.sent("PATCH", "/pods/a/status")} == {"n"}
        waiting = "pod group is unschedulable, pod group is waiting for preemption to complete"
        assert stands(rig) == [("False", "Unschedulable", waiting)]
        await rig.asked("DELETE", "", times=1)


@on_loop
async def test_without_the_gate_they_are_pods_like_others() -> None:
    async with running(NODE, gang(3), member("a", cpu="1")) as rig:
        assert rig.bound() == {"a": "n"}
        assert stands(rig) == []


@on_loop
async def test_a_group_that_cannot_be_told_stops_nothing() -> None:
    async with running(NODE, gates=GATES) as rig:
        rig.refuse("PATCH", "/podgroups/gang/status", status(500, "InternalError"))
        rig.hear(gang(1), member("a"))
        await until(lambda: rig.bound() == {"a": "n"})
