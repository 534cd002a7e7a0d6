"""Writes of a live batch engine, and its reaction to refusals, on the manual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bayplan.batch.live.options import BatchOptions
from bayplan.batch.live.status_updater import NO_POD_GROUP_MESSAGE
from bayplan.batch.session.outcome import GroupOutcome
from bayplan.codec.quantity import Quantity
from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.volcano.types import PodGroup, PodGroupStatus, QueueStatus
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import GANGS
from support.builders.framework import replace_fields
from support.fakes.http_server import status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_batch import LiveBatchHarness, run_live_batch

NODE = make_node("n", cpu=4)
GROUP = make_group("job", min_member=2)
SHARED = GANGS.replace("  - name: gang\n", "  - name: gang\n  - name: proportion\n")
PODS = [make_member("job-w-0", requests={"cpu": "1"}), make_member("job-w-1", requests={"cpu": "1"})]


def pending_pods(*pods: Pod) -> list[Pod]:
    """The pods as the API server reports them before Volcano schedules them."""
    return [replace_fields(pod, spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending")) for pod in pods]


def conditions(harness: LiveBatchHarness, name: str) -> list[dict[str, Any]]:
    patches = harness.sent("PATCH", f"/pods/{name}/status")
    return [each for patch in patches for each in patch["status"].get("conditions", [])]


@async_test
async def test_a_gang_is_bound_and_its_group_status_is_written() -> None:
    async with run_live_batch(NODE, make_queue(), GROUP, *pending_pods(*PODS)) as harness:
        outcome = await harness.session()
        assert harness.bound() == {"job-w-0": "n", "job-w-1": "n"}
        assert harness.events.about("Scheduled")[:1] == [
            ("default/job-w-0", "Successfully assigned default/job-w-0 to n")
        ]
        (written,) = harness.sent("PATCH", "/podgroups/job")
        assert written["status"]["phase"] == outcome.groups["default/job"].status.phase
        assert written["metadata"]["resourceVersion"]
        (patch,) = harness.sent("PATCH", "/queues/q/status")
        assert patch["metadata"].keys() == {"uid", "resourceVersion"}
        assert patch["status"] == {"allocated": {"cpu": "2", "memory": "0", "pods": "2"}}
        await harness.session()
        assert len(harness.sent("POST", "/binding")) == 2  # no pod is bound twice
        assert len(harness.sent("PATCH", "/podgroups/job")) == 1  # unchanged statuses are not written


@async_test
async def test_a_second_status_of_one_version_uses_the_version_of_the_first_write() -> None:
    """The watch has not shown the first write when the second is sent. Neither is refused or applied late."""
    async with run_live_batch(make_queue(), GROUP) as harness:
        await harness.live.handle_pending_events()
        telling, group = harness.live.status_updater, harness.live.engine.cache.catalog.table(PodGroup)["default/job"]
        for phase in ("Inqueue", "Running"):
            found = GroupOutcome(status=PodGroupStatus(phase=phase), changed=True)
            telling._update_group(group, found)
            await asyncio.sleep(0)
        await wait_until(lambda: len(harness.sent("PATCH", "/podgroups/job")) == 2)
        versions = [each["metadata"]["resourceVersion"] for each in harness.sent("PATCH", "/podgroups/job")]
        assert versions == [group.metadata.resource_version, "9"]


@async_test
async def test_a_status_that_was_answered_with_404_is_written_again_by_the_next_session() -> None:
    async with run_live_batch(NODE, make_queue(), GROUP, *pending_pods(*PODS)) as harness:
        await harness.live.handle_pending_events()
        telling, group = harness.live.status_updater, harness.live.engine.cache.catalog.table(PodGroup)["default/job"]
        harness.fail_next("PATCH", "/podgroups/job", status(404, "NotFound"))
        for _ in range(2):
            telling._update_group(group, GroupOutcome(status=PodGroupStatus(phase="Inqueue"), changed=True))
            await harness.live.writes.drain()
        assert len(harness.sent("PATCH", "/podgroups/job")) == 2


@async_test
async def test_a_status_of_an_older_version_is_refused_and_written_again_by_the_next_session() -> None:
    async with run_live_batch(NODE, make_queue(), GROUP, *pending_pods(*PODS)) as harness:
        harness.fail_next("PATCH", "/podgroups/job", status(409, "Conflict"))
        await harness.session()
        first = harness.sent("PATCH", "/podgroups/job")[0]["metadata"]["resourceVersion"]
        harness.deliver(replace_fields(GROUP, metadata={"labels": {"another": "version"}}))
        await harness.session()
        versions = [each["metadata"]["resourceVersion"] for each in harness.sent("PATCH", "/podgroups/job")]
        assert versions[0] == first != versions[-1]


@async_test
async def test_a_refused_binding_releases_its_resources_and_is_retried() -> None:
    async with run_live_batch(NODE, make_queue(), GROUP, *pending_pods(*PODS)) as harness:
        harness.fail_next("POST", "/job-w-1/binding", status(409, "Conflict"))
        await harness.session()
        assert harness.live.engine.cache.pod_count == 1
        condition = conditions(harness, "job-w-1")[-1]
        assert (condition["reason"], condition["status"]) == ("SchedulerError", "False")
        assert condition["message"].startswith("failed to bind to node n: ")
        assert [key for key, _ in harness.events.about("FailedScheduling")] == ["default/job-w-1"]
        await harness.session()
        assert len(harness.sent("POST", "/job-w-1/binding")) == 2
        assert harness.live.engine.cache.pod_count == 2


@async_test
async def test_a_binding_that_is_refused_again_for_the_same_reason_is_reported_once() -> None:
    async with run_live_batch(NODE, make_queue(), GROUP, *pending_pods(*PODS)) as harness:
        harness.fail_next("POST", "/job-w-1/binding", *[status(403, "Forbidden", "not you")] * 4)
        for _ in range(4):
            await harness.session()
        assert len(harness.sent("POST", "/job-w-1/binding")) == 4
        assert len(conditions(harness, "job-w-1")) == 1
        assert [key for key, _ in harness.events.about("FailedScheduling")] == ["default/job-w-1"]


@async_test
async def test_a_pod_deleted_during_its_binding_is_forgotten() -> None:
    async with run_live_batch(NODE, make_queue(), GROUP, *pending_pods(*PODS)) as harness:
        await harness.session()
        harness.deliver_deletion(*pending_pods(PODS[0]))
        await harness.live.handle_pending_events()
        assert [pod.name for pod in harness.live.engine.cache.pods()] == ["job-w-1"]


@async_test
async def test_the_condition_of_a_pending_pod_is_written_once() -> None:
    big = make_group("big", min_member=1)
    pod = make_member("big-w-0", "big", requests={"cpu": "9"})
    async with run_live_batch(NODE, make_queue(), big, *pending_pods(pod)) as harness:
        await harness.session()
        await harness.session()
        written = conditions(harness, "big-w-0")
        assert [each["message"] for each in written] == ["0/1 nodes are unavailable: 1 Insufficient cpu."]
        assert len(harness.events.about("FailedScheduling")) == 1
        assert len([key for key, _ in harness.events.about("Unschedulable") if key == "default/big"]) == 1


@async_test
async def test_two_events_of_one_reason_are_recorded_once_each() -> None:
    """A group that is not admitted has an event of the rejecting plugin, and one of the session."""
    group = make_group("job", min_resources={"cpu": Quantity.of(9)})
    async with run_live_batch(NODE, make_queue(), group, *pending_pods(make_member("job-w-0")), conf=SHARED) as harness:
        for _ in range(4):
            await harness.session()
        notes = [note for _, note in harness.events.about("Unschedulable")]
        assert len(notes) == len(set(notes)) == 2, notes


@async_test
async def test_misconfigured_objects_get_an_event() -> None:
    lost = make_group("lost", queue="nowhere")
    pods = pending_pods(make_member("lost-w-0", "lost"), make_member("orphan-w-0", "orphan"), make_member("alone", ""))
    async with run_live_batch(NODE, make_queue(), lost, *pods) as harness:
        await harness.session()
        await harness.session()
        assert (
            "default/lost",
            'pod group default/lost is in queue "nowhere", which does not exist; create it or use another queue',
        ) in (harness.events.about("Misconfigured"))
        assert "which does not exist" in conditions(harness, "lost-w-0")[-1]["message"]
        assert "default/orphan that the pod names does not exist" in conditions(harness, "orphan-w-0")[-1]["message"]
        assert conditions(harness, "alone")[-1]["message"] == NO_POD_GROUP_MESSAGE


@async_test
async def test_all_problems_of_an_object_are_one_event() -> None:
    """With two events of one reason, users would see only the first: events are grouped whatever their notes are."""
    amounts = {"cpu": Quantity.parse("-3"), "memory": Quantity.parse("-1Gi")}
    odd = make_group("odd", min_resources=amounts, queue="nowhere")
    async with run_live_batch(NODE, make_queue(), odd, *pending_pods(make_member("odd-w-0", "odd"))) as harness:
        await harness.session()
        await harness.session()
        ((name, note),) = harness.events.about("Misconfigured")
        assert name == "default/odd"
        assert all(words in note for words in ('queue "nowhere"', "minResources.cpu", "minResources.memory"))


@pytest.mark.parametrize("phase", ["Pending", "Inqueue"])
@async_test
async def test_a_group_gets_an_event_each_time_its_queue_is_closed(phase: str) -> None:
    shut = replace_fields(make_queue(), status=QueueStatus(state="Closed"))
    group = make_group("job", phase=phase, min_resources={"cpu": Quantity.of(1)})
    sentence = "its queue q is Closed and admits no job until it is opened"
    async with run_live_batch(shut, group, conf=SHARED) as harness:
        await harness.session()  # without a pod: its controller waits until the group is admitted
        assert harness.events.about("Misconfigured") == [("default/job", sentence)] * (phase == "Pending")
        harness.deliver(*pending_pods(make_member("job-w-0", requests={"cpu": "1"})))
        await harness.session()
        await harness.session()
        assert harness.events.about("Misconfigured") == [("default/job", sentence)]
        harness.deliver(make_queue())
        await harness.session()
        harness.deliver(shut)
        await harness.session()
        assert harness.events.about("Misconfigured") == [("default/job", sentence)] * 2


@async_test
async def test_a_closed_queue_is_ignored_without_a_plugin_that_checks_it() -> None:
    shut = replace_fields(make_queue(), status=QueueStatus(state="Closed"))
    big = make_member("big-w-0", "big", requests={"cpu": "9"})
    async with run_live_batch(NODE, shut, GROUP, make_group("big"), *pending_pods(*PODS, big)) as harness:
        await harness.session()
        assert harness.bound() == {"job-w-0": "n", "job-w-1": "n"}
        assert harness.events.about("Misconfigured") == []


@async_test
async def test_only_selected_nodes_are_used() -> None:
    nodes = [make_node("a", cpu=4, labels={"pool": "x"}), make_node("b", cpu=4, labels={"pool": "batch"})]
    options = BatchOptions(node_selector=("pool:batch",))
    async with run_live_batch(*nodes, make_queue(), GROUP, *pending_pods(*PODS), options=options) as harness:
        await harness.session()
        assert set(harness.bound().values()) == {"b"}
