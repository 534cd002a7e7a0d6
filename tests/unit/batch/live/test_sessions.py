"""What a live batch engine writes, and what it makes of refusals, on the manual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batch_builders import make_group, make_member, make_queue
from batch_world import GANGS
from bayplan.batch.live.options import BatchOptions
from bayplan.batch.live.telling import GROUPLESS
from bayplan.batch.outcome import GroupOutcome
from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.quantity import Quantity
from bayplan.objects.volcano import PodGroup, PodGroupStatus, QueueStatus
from bayplan.testing.builders import make_node
from builders import changed
from live_batch_rig import BatchRig, batch_running
from wire_server import on_loop, status, until

NODE = make_node("n", cpu=4)
GROUP = make_group("job", min_member=2)
SHARED = GANGS.replace("  - name: gang\n", "  - name: gang\n  - name: proportion\n")
PODS = [make_member("job-w-0", requests={"cpu": "1"}), make_member("job-w-1", requests={"cpu": "1"})]


def ours(*pods: Pod) -> list[Pod]:
    """As the API server shows pods that wait for Volcano."""
    return [changed(pod, spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending")) for pod in pods]


def conditions(rig: BatchRig, name: str) -> list[dict[str, Any]]:
    patches = rig.sent("PATCH", f"/pods/{name}/status")
    return [each for patch in patches for each in patch["status"].get("conditions", [])]


@on_loop
async def test_a_gang_is_bound_and_its_group_is_told() -> None:
    async with batch_running(NODE, make_queue(), GROUP, *ours(*PODS)) as rig:
        outcome = await rig.session()
        assert rig.bound() == {"job-w-0": "n", "job-w-1": "n"}
        assert rig.events.about("Scheduled")[:1] == [("default/job-w-0", "Successfully assigned default/job-w-0 to n")]
        (written,) = rig.sent("PATCH", "/podgroups/job")
        assert written["status"]["phase"] == outcome.groups["default/job"].status.phase
        assert written["metadata"]["resourceVersion"]
        (told,) = rig.sent("PATCH", "/queues/q/status")
        assert told["metadata"].keys() == {"uid", "resourceVersion"}
        assert told["status"] == {"allocated": {"cpu": "2", "memory": "0", "pods": "2"}}
        await rig.session()
        assert len(rig.sent("POST", "/binding")) == 2  # nobody is bound twice
        assert len(rig.sent("PATCH", "/podgroups/job")) == 1  # nor told what was told


@on_loop
async def test_of_two_statuses_of_one_version_the_later_names_the_version_that_the_earlier_made() -> None:
    """The watch has not shown the first when the second is written; neither is refused, and neither lands late."""
    async with batch_running(make_queue(), GROUP) as rig:
        await rig.live.catch_up()
        telling, group = rig.live.telling, rig.live.engine.cache.catalog.table(PodGroup)["default/job"]
        for phase in ("Inqueue", "Running"):
            found = GroupOutcome(status=PodGroupStatus(phase=phase), changed=True)
            telling._write_group(group, found)
            await asyncio.sleep(0)
        await until(lambda: len(rig.sent("PATCH", "/podgroups/job")) == 2)
        versions = [each["metadata"]["resourceVersion"] for each in rig.sent("PATCH", "/podgroups/job")]
        assert versions == [group.metadata.resource_version, "9"]


@on_loop
async def test_a_status_that_was_answered_with_404_is_written_again_by_the_next_session() -> None:
    async with batch_running(NODE, make_queue(), GROUP, *ours(*PODS)) as rig:
        await rig.live.catch_up()
        telling, group = rig.live.telling, rig.live.engine.cache.catalog.table(PodGroup)["default/job"]
        rig.refuse("PATCH", "/podgroups/job", status(404, "NotFound"))
        for _ in range(2):
            telling._write_group(group, GroupOutcome(status=PodGroupStatus(phase="Inqueue"), changed=True))
            await rig.live.writes.drain()
        assert len(rig.sent("PATCH", "/podgroups/job")) == 2


@on_loop
async def test_a_status_of_an_older_version_is_refused_and_written_again_by_the_next_session() -> None:
    async with batch_running(NODE, make_queue(), GROUP, *ours(*PODS)) as rig:
        rig.refuse("PATCH", "/podgroups/job", status(409, "Conflict"))
        await rig.session()
        first = rig.sent("PATCH", "/podgroups/job")[0]["metadata"]["resourceVersion"]
        rig.hear(changed(GROUP, metadata={"labels": {"another": "version"}}))
        await rig.session()
        versions = [each["metadata"]["resourceVersion"] for each in rig.sent("PATCH", "/podgroups/job")]
        assert versions[0] == first != versions[-1]


@on_loop
async def test_a_refused_binding_gives_the_room_back_and_is_tried_again() -> None:
    async with batch_running(NODE, make_queue(), GROUP, *ours(*PODS)) as rig:
        rig.refuse("POST", "/job-w-1/binding", status(409, "Conflict"))
        await rig.session()
        assert rig.live.engine.cache.pod_count == 1
        told = conditions(rig, "job-w-1")[-1]
        assert (told["reason"], told["status"]) == ("SchedulerError", "False")
        assert told["message"].startswith("failed to bind to node n: ")
        assert [key for key, _ in rig.events.about("FailedScheduling")] == ["default/job-w-1"]
        await rig.session()
        assert len(rig.sent("POST", "/job-w-1/binding")) == 2
        assert rig.live.engine.cache.pod_count == 2


@on_loop
async def test_a_binding_that_is_refused_again_for_the_same_reason_is_reported_once() -> None:
    async with batch_running(NODE, make_queue(), GROUP, *ours(*PODS)) as rig:
        rig.refuse("POST", "/job-w-1/binding", *[status(403, "Forbidden", "not you")] * 4)
        for _ in range(4):
            await rig.session()
        assert len(rig.sent("POST", "/job-w-1/binding")) == 4
        assert len(conditions(rig, "job-w-1")) == 1
        assert [key for key, _ in rig.events.about("FailedScheduling")] == ["default/job-w-1"]


@on_loop
async def test_a_pod_that_goes_on_its_way_leaves_no_trace() -> None:
    async with batch_running(NODE, make_queue(), GROUP, *ours(*PODS)) as rig:
        await rig.session()
        rig.hear_gone(*ours(PODS[0]))
        await rig.live.catch_up()
        assert [pod.name for pod in rig.live.engine.cache.pods()] == ["job-w-1"]


@on_loop
async def test_why_a_pod_waits_is_written_once() -> None:
    big = make_group("big", min_member=1)
    pod = make_member("big-w-0", "big", requests={"cpu": "9"})
    async with batch_running(NODE, make_queue(), big, *ours(pod)) as rig:
        await rig.session()
        await rig.session()
        said = conditions(rig, "big-w-0")
        assert [each["message"] for each in said] == ["0/1 nodes are unavailable: 1 Insufficient cpu."]
        assert len(rig.events.about("FailedScheduling")) == 1
        assert len([key for key, _ in rig.events.about("Unschedulable") if key == "default/big"]) == 1


@on_loop
async def test_two_events_of_one_reason_are_recorded_once_each() -> None:
    """A group that is not let in has an event of the plugin that refuses it, and one of the session."""
    group = make_group("job", min_resources={"cpu": Quantity.of(9)})
    async with batch_running(NODE, make_queue(), group, *ours(make_member("job-w-0")), conf=SHARED) as rig:
        for _ in range(4):
            await rig.session()
        notes = [note for _, note in rig.events.about("Unschedulable")]
        assert len(notes) == len(set(notes)) == 2, notes


@on_loop
async def test_what_is_misplaced_is_told_on_the_object() -> None:
    lost = make_group("lost", queue="nowhere")
    pods = ours(make_member("lost-w-0", "lost"), make_member("orphan-w-0", "orphan"), make_member("alone", ""))
    async with batch_running(NODE, make_queue(), lost, *pods) as rig:
        await rig.session()
        await rig.session()
        assert (
            "default/lost",
            'pod group default/lost is in queue "nowhere", which does not exist; create it, or name another',
        ) in (rig.events.about("Misconfigured"))
        assert "which does not exist" in conditions(rig, "lost-w-0")[-1]["message"]
        assert "default/orphan that the pod names does not exist" in conditions(rig, "orphan-w-0")[-1]["message"]
        assert conditions(rig, "alone")[-1]["message"] == GROUPLESS


@on_loop
async def test_all_that_is_wrong_with_an_object_is_one_event() -> None:
    """Of two with one reason people would see the first: events are a series whatever their notes say."""
    amounts = {"cpu": Quantity.parse("-3"), "memory": Quantity.parse("-1Gi")}
    odd = make_group("odd", min_resources=amounts, queue="nowhere")
    async with batch_running(NODE, make_queue(), odd, *ours(make_member("odd-w-0", "odd"))) as rig:
        await rig.session()
        await rig.session()
        ((name, note),) = rig.events.about("Misconfigured")
        assert name == "default/odd"
        assert all(words in note for words in ('queue "nowhere"', "minResources.cpu", "minResources.memory"))


@pytest.mark.parametrize("phase", ["Pending", "Inqueue"])
@on_loop
async def test_a_group_is_told_that_its_queue_is_closed_each_time_anew(phase: str) -> None:
    shut = changed(make_queue(), status=QueueStatus(state="Closed"))
    group = make_group("job", phase=phase, min_resources={"cpu": Quantity.of(1)})
    sentence = "its queue q is Closed, and lets nobody start until it is opened"
    async with batch_running(shut, group, conf=SHARED) as rig:
        await rig.session()  # without a pod: its controller waits for the group to be let in
        assert rig.events.about("Misconfigured") == [("default/job", sentence)] * (phase == "Pending")
        rig.hear(*ours(make_member("job-w-0", requests={"cpu": "1"})))
        await rig.session()
        await rig.session()
        assert rig.events.about("Misconfigured") == [("default/job", sentence)]
        rig.hear(make_queue())
        await rig.session()
        rig.hear(shut)
        await rig.session()
        assert rig.events.about("Misconfigured") == [("default/job", sentence)] * 2


@on_loop
async def test_a_closed_queue_is_no_hindrance_where_no_plugin_looks() -> None:
    shut = changed(make_queue(), status=QueueStatus(state="Closed"))
    big = make_member("big-w-0", "big", requests={"cpu": "9"})
    async with batch_running(NODE, shut, GROUP, make_group("big"), *ours(*PODS, big)) as rig:
        await rig.session()
        assert rig.bound() == {"job-w-0": "n", "job-w-1": "n"}
        assert rig.events.about("Misconfigured") == []


@on_loop
async def test_only_nodes_that_selectors_name_are_used() -> None:
    nodes = [make_node("a", cpu=4, labels={"pool": "x"}), make_node("b", cpu=4, labels={"pool": "batch"})]
    options = BatchOptions(node_selector=("pool:batch",))
    async with batch_running(*nodes, make_queue(), GROUP, *ours(*PODS), options=options) as rig:
        await rig.session()
        assert set(rig.bound().values()) == {"b"}
