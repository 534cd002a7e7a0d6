"""Pod group cycle: all pods of a group are placed or none, and the group's condition is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bayplan.objects.core import Pod, PodSchedulingGroup
from bayplan.objects.meta import Condition, ObjectMeta
from bayplan.objects.workloads import GangPolicy, PodGroup, PodGroupSchedulingPolicy, PodGroupSpec, PodGroupStatus
from bayplan.queue import QueuedPodInfo
from bayplan.queue.queued_pod import SubQueue
from bayplan.scheduler.pod_groups.group_attempts import GroupAttemptResult, GroupAttempts
from support.builders.framework import make_node, make_pod, replace_fields
from support.fakes.http_server import status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_scheduler import LiveSchedulerHarness, conditions, run_live_scheduler

GATES = ("GenericWorkload", "GangScheduling")
NODE = make_node("n", cpu="2")
WAITS = (
    "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, one or more plugins asked to "
    "wait and no plugin rejected pod"
)


def gang(count: int, *conditions: Condition) -> PodGroup:
    policy = PodGroupSchedulingPolicy(gang=GangPolicy(min_count=count))
    meta = ObjectMeta(name="gang", namespace="default", uid="uid-of-gang", generation=3)
    return PodGroup(metadata=meta, spec=PodGroupSpec(scheduling_policy=policy), status=PodGroupStatus(conditions))


def member(name: str, **fields: Any) -> Pod:
    return replace_fields(
        make_pod(name, **fields), spec={"scheduling_group": PodSchedulingGroup(pod_group_name="gang")}
    )


def written_conditions(harness: LiveSchedulerHarness) -> list[tuple[str, str, str]]:
    """Every condition that was written to the group."""
    written = [patch["status"]["conditions"][-1] for patch in harness.sent("PATCH", "/podgroups/gang/status")]
    return [(each["status"], each["reason"], each["message"]) for each in written]


@async_test
async def test_all_are_placed_at_once() -> None:
    async with run_live_scheduler(NODE, gang(2), member("a", cpu="1"), member("b", cpu="1"), gates=GATES) as harness:
        assert harness.bound() == {"a": "n", "b": "n"}
        (patch,) = harness.sent("PATCH", "/podgroups/gang/status")
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


@async_test
async def test_pods_without_their_group_stay_gated() -> None:
    a, b = member("a"), member("b")
    async with run_live_scheduler(NODE, a, gates=GATES) as harness:
        assert harness.pool(a) is SubQueue.UNSCHEDULABLE  # there is no such group
        harness.deliver(gang(2))
        await harness.idle()
        assert (harness.pool(a), harness.bound(), conditions(harness)) == (SubQueue.UNSCHEDULABLE, {}, [])
        harness.deliver(b)
        await harness.idle()
        assert harness.bound() == {"a": "n", "b": "n"}


@async_test
async def test_no_pod_is_placed_if_too_few_fit() -> None:
    pods = [member(name, cpu="1") for name in "abc"]
    async with run_live_scheduler(NODE, gang(3), *pods, gates=GATES) as harness:
        assert harness.bound() == {}
        assert harness.live.engine.cache.pod_count == 0
        assert written_conditions(harness) == [("False", "Unschedulable", "pod group is unschedulable")]
        notes = {event.about: event.note for event in harness.events.recorded}
        assert notes.keys() == {"a", "b", "c"}
        assert sorted(notes.values())[-2:] == [WAITS, WAITS]
        assert sorted(notes.values())[0].startswith("0/1 nodes are available: 1 Insufficient cpu.")
        harness.deliver(make_node("second", cpu="2"))
        harness.clock.advance(30)
        await harness.idle()
        assert harness.bound().keys() == {"a", "b", "c"}
        assert written_conditions(harness)[-1][:2] == ("True", "Scheduled")


@async_test
async def test_a_status_that_is_refused_is_written_again_though_nothing_happens() -> None:
    group = gang(2)
    async with run_live_scheduler(NODE, group, gates=GATES) as harness:
        harness.objects["/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups/gang"] = group
        harness.fail_next("PATCH", "/podgroups/gang/status", status(403, "Forbidden"))
        harness.deliver(member("a", cpu="1"))
        harness.deliver(member("b", cpu="1"))
        await harness.idle()
        assert harness.bound() == {"a": "n", "b": "n"}
        assert len(written_conditions(harness)) == 1
        await wait_until(lambda: len(written_conditions(harness)) == 2, tick=lambda: harness.clock.advance(0.5))
        await harness.idle()
        assert [each[0] for each in written_conditions(harness)] == ["True", "True"]
        assert harness.live.pod_group_cycle is not None
        assert harness.live.pod_group_cycle.statuses.next_retry_s() is None


@async_test
async def test_a_scheduled_group_keeps_its_condition() -> None:
    before = Condition("PodGroupScheduled", "True", "Scheduled", "")
    async with run_live_scheduler(
        NODE, gang(2, before), member("a", cpu="2"), member("b", cpu="2"), gates=GATES
    ) as harness:
        assert harness.bound() == {}
        assert written_conditions(harness) == []


@async_test
async def test_a_group_with_two_scheduler_names_is_an_error() -> None:
    profiles = (
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles: [{schedulerName: default-scheduler}, {schedulerName: other}]"
    )
    pods = member("a"), member("b", scheduler_name="other")
    async with run_live_scheduler(NODE, gang(2), *pods, gates=GATES, config=profiles) as harness:
        assert harness.bound() == {}
        (note,) = {event.note for event in harness.events.recorded}
        assert note.startswith("all pods in a single pod group should have the same .spec.schedulerName set, got: ")
        assert {each["reason"] for each in conditions(harness)} == {"SchedulerError"}
        assert written_conditions(harness)[-1][:2] == ("False", "SchedulerError")


@async_test
async def test_all_pods_of_a_group_wait_for_preemption() -> None:
    weak = [make_pod(f"weak-{number}", node="n", cpu="1", priority=0) for number in range(2)]
    strong = [member(name, cpu="1", priority=10) for name in "ab"]
    async with run_live_scheduler(NODE, *weak, gang(2), *strong, gates=GATES) as harness:
        assert harness.bound() == {}
        assert {each["status"].get("nominatedNodeName") for each in harness.sent("PATCH", "/pods/a/status")} == {"n"}
        waiting = "pod group is unschedulable, pod group is waiting for preemption to complete"
        assert written_conditions(harness) == [("False", "Unschedulable", waiting)]
        await harness.wait_for_request("DELETE", "", times=1)


@async_test
async def test_without_the_feature_gate_pods_of_groups_are_scheduled_one_by_one() -> None:
    async with run_live_scheduler(NODE, gang(3), member("a", cpu="1")) as harness:
        assert harness.bound() == {"a": "n"}
        assert written_conditions(harness) == []


@async_test
async def test_a_failed_write_of_the_group_status_stops_nothing() -> None:
    async with run_live_scheduler(NODE, gates=GATES) as harness:
        harness.fail_next("PATCH", "/podgroups/gang/status", status(500, "InternalError"))
        harness.deliver(gang(1), member("a"))
        await wait_until(lambda: harness.bound() == {"a": "n"})


@async_test
async def test_a_bug_in_an_attempt_costs_every_pod_of_the_group_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_live_scheduler(NODE, gates=GATES) as harness:
        group_cycle = harness.live.pod_group_cycle
        assert group_cycle is not None
        attempts, failures = type(group_cycle.groups), [ValueError("a bug")]
        try_members = attempts.try_members

        async def fail_once(groups: GroupAttempts, members: Sequence[QueuedPodInfo]) -> GroupAttemptResult:
            if failures:
                raise failures.pop()
            return await try_members(groups, members)

        monkeypatch.setattr(attempts, "try_members", fail_once)
        pods = [member(name, cpu="1") for name in "ab"]
        harness.deliver(gang(2), *pods)
        await wait_until(lambda: len(conditions(harness)) == 2)
        assert {each["message"] for each in conditions(harness)} == {"ValueError: a bug"}
        await harness.idle()
        assert harness.live.queue.in_flight() == []
        harness.clock.advance(2)
        await wait_until(lambda: harness.bound() == {"a": "n", "b": "n"})
