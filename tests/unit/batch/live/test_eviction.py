"""Evictions of sessions: conditions, deletion, the mark as terminating, and cancellation when the deletion fails."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from bayplan.batch.session.commit import SessionCommit
from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.meta import Condition, KubeObject, ObjectMeta
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.framework import replace_fields
from support.fakes.http_server import Reply, Request, ServerAnswer, status
from support.harness.async_tests import async_test
from support.harness.live_batch import LiveBatchHarness, run_live_batch
from support.harness.log_capture import log_at

VICTIM = replace_fields(
    make_member("weak-w-0", "weak", node="n", requests={"cpu": "1"}),
    spec={"scheduler_name": "volcano"},
    status=PodStatus(phase="Running"),
)
WORLD = (make_node("n", cpu=1), make_queue(), make_group("weak"), VICTIM)


@async_test
async def test_a_victim_gets_conditions_and_is_terminating_until_it_is_deleted() -> None:
    async with run_live_batch(*WORLD) as harness:
        await harness.session()
        harness.live.evictions.start(VICTIM, "preempt")
        leaving = harness.live.engine.handle.nominator
        assert leaving.terminating_victims_on("n").keys() == {VICTIM.uid}
        await harness.session()
        (farewell,) = harness.sent("PATCH", "/pods/weak-w-0/status")
        kinds = {each["type"]: (each["status"], each["reason"]) for each in farewell["status"]["conditions"]}
        assert kinds == {"Ready": ("False", "Evict"), "DisruptionTarget": ("True", "PreemptionByScheduler")}
        assert len(harness.sent("DELETE", "/pods/weak-w-0")) == 1
        assert ("default/weak-w-0", "Pod is evicted, because of preempt") in harness.events.about("Evict")
        assert ("default/weak", "preempt") in harness.events.about("Evict")
        harness.deliver(replace_fields(VICTIM, metadata={"labels": {"another": "version"}}))
        await harness.session()
        assert leaving.is_victim(VICTIM.uid)  # whatever version of it is shown
        harness.deliver_deletion(VICTIM)
        await harness.live.handle_pending_events()
        assert not leaving.terminating_victims


@async_test
async def test_a_victim_with_conditions_is_deleted_after_several_attempts() -> None:
    async with run_live_batch(*WORLD) as harness:
        harness.fail_next("DELETE", "/pods/weak-w-0", *[status(500, "InternalError")] * 3)
        # the pod still exists
        harness.fail_next("GET", "/pods/weak-w-0", *[Reply(200, msgspec.json.encode(VICTIM))] * 3)
        await harness.session()
        harness.live.evictions.start(VICTIM, "reclaim")
        await harness.session()
        assert len(harness.sent("DELETE", "/pods/weak-w-0")) == 4


@async_test
async def test_the_eviction_of_a_pod_that_cannot_be_deleted_is_cancelled() -> None:
    freed: list[Pod] = []
    async with run_live_batch(*WORLD) as harness:
        harness.live.event_handlers.on_pod_released = freed.append
        harness.fail_next("DELETE", "/pods/weak-w-0", status(403, "Forbidden"))
        harness.fail_next("GET", "/pods/weak-w-0", Reply(200, msgspec.json.encode(VICTIM)))
        await harness.session()
        harness.live.evictions.start(VICTIM, "reclaim")
        await harness.session()
        assert not harness.live.engine.handle.nominator.terminating_victims
        assert [pod.name for pod in freed] == ["weak-w-0"]  # engines that counted on the eviction schedule again


PREEMPTING = """
actions: "allocate, preempt"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: nodeorder
"""


def preemption_objects(*more: KubeObject, nodes: int = 1) -> tuple[KubeObject, ...]:
    """A full node, a preemptable group, and a pending group with a higher priority."""
    weak = replace_fields(VICTIM, spec={"scheduler_name": "volcano", "priority": 1})
    strong = make_member("strong-w-0", "strong", requests={"cpu": "1"})
    return (
        *(make_node(f"n{number}" if number else "n", cpu=1) for number in range(nodes)),
        make_queue(),
        make_group("weak", phase="Running", min_member=0, priority_class_name="low"),
        make_group("strong", phase="Inqueue", min_member=1, priority_class_name="high"),
        PriorityClass(metadata=ObjectMeta(name="low", uid="low"), value=1),
        PriorityClass(metadata=ObjectMeta(name="high", uid="high"), value=9),
        weak,
        replace_fields(strong, spec={"scheduler_name": "volcano", "priority": 9}),
        *more,
    )


def refuse_deletion(harness: LiveBatchHarness) -> None:
    """The API server refuses every deletion of the victim."""

    def route(request: Request) -> ServerAnswer:
        if request.method == "DELETE" and request.path.endswith("/weak-w-0"):
            return status(403, "Forbidden", "a webhook says no")
        is_read = request.method == "GET" and request.path.endswith("/weak-w-0")
        return Reply(200, msgspec.json.encode(VICTIM)) if is_read else harness.answer(request)

    harness.server.route = route


@async_test
async def test_a_victim_that_cannot_be_deleted_is_reported_once_and_retried_with_backoff() -> None:
    async with run_live_batch(*preemption_objects(), conf=PREEMPTING) as harness:
        refuse_deletion(harness)
        counts = []
        for _ in range(4):
            for _ in range(100):
                await harness.session()
                harness.clock.advance(1)
            counts.append(len(harness.sent("DELETE", "/weak-w-0")))
        assert counts[0] <= 5
        assert all(after - before <= 1 for before, after in pairwise(counts))
        assert counts[-1] > counts[0], "it is tried again"
        assert len(harness.sent("PATCH", "/weak-w-0/status")) == 1
        assert len([key for key, _ in harness.events.about("Evict") if key == "default/weak-w-0"]) == 1
        assert harness.events.about("Evict")[1:] == [], "the group loses no pod"


@async_test
async def test_each_of_two_victims_that_cannot_be_deleted_is_reported_once() -> None:
    other = replace_fields(
        make_member("weak-w-1", "weak", node="n", requests={"cpu": "1"}), spec={"scheduler_name": "volcano"}
    )
    async with run_live_batch(*WORLD, other) as harness:
        for pod in (VICTIM, other):
            harness.fail_next("DELETE", f"/{pod.name}", *[status(403, "Forbidden")] * 2)
            harness.fail_next("GET", f"/{pod.name}", *[Reply(200, msgspec.json.encode(pod))] * 2)
        await harness.session()
        for _ in range(2):
            for pod in (VICTIM, other):
                harness.live.evictions.start(pod, "preempt")
                await harness.session()
            harness.clock.advance(10)
        for pod in (VICTIM, other):
            assert len(harness.sent("DELETE", f"/{pod.name}")) == 2
            assert len(harness.sent("PATCH", f"/{pod.name}/status")) == 1


@async_test
async def test_another_victim_is_evicted_when_the_first_cannot_be_deleted() -> None:
    other = replace_fields(
        make_member("weak-w-1", "weak", node="n1", requests={"cpu": "1"}),
        spec={"scheduler_name": "volcano", "priority": 2},
        status=PodStatus(phase="Running"),
    )
    async with run_live_batch(*preemption_objects(other, nodes=2), conf=PREEMPTING) as harness:
        refuse_deletion(harness)
        for _ in range(8):
            await harness.session()
            harness.clock.advance(1)
        assert len(harness.sent("DELETE", "/weak-w-1")) == 1
        assert len(harness.sent("DELETE", "/weak-w-0")) <= 1


@async_test
async def test_a_pod_that_has_the_conditions_is_only_deleted() -> None:
    condition = Condition("DisruptionTarget", "True", "PreemptionByScheduler", "Pod is evicted, because of preempt")
    victim = replace_fields(VICTIM, status=PodStatus(phase="Running", conditions=(condition,)))
    async with run_live_batch(*WORLD[:-1], victim) as harness:
        await harness.session()
        harness.live.evictions.start(victim, "preempt")
        await harness.session()
        assert harness.sent("PATCH", "/weak-w-0/status") == []
        assert len(harness.sent("DELETE", "/weak-w-0")) == 1


@async_test
async def test_an_eviction_outside_the_victim_search_waits_for_the_backoff() -> None:
    """The action shuffle and plugins evict without the search that leaves out refused victims."""
    async with run_live_batch(*WORLD) as harness:
        refuse_deletion(harness)
        await harness.session()
        harness.live.evictions.start(VICTIM, "shuffle")
        await harness.session()
        engine = harness.live.engine
        task = engine.cluster_state.task(VICTIM.uid)
        assert task is not None
        outbox = SessionCommit(
            engine.cluster_state,
            SessionResult(),
            engine.handle.nominator,
            nominated_uids=set(),
            removed_uids=frozenset(),
        )
        assert outbox.evict(task, "shuffle") is False
        harness.clock.advance(10)
        harness.live.evictions.end_pauses()
        assert outbox.evict(task, "shuffle") is True


@pytest.mark.parametrize(("verbosity", "lines"), [(2, 0), (3, 1)])
def test_evictions_are_logged_as_decisions(verbosity: int, lines: int) -> None:
    @async_test
    async def evict() -> None:
        async with run_live_batch(*WORLD) as harness:
            await harness.session()
            harness.live.evictions.start(VICTIM, "preempt")
            await harness.session()

    with log_at(verbosity) as written:
        evict()
    text = '"Successfully evicted pod" pod="default/weak-w-0" node="n" reason="preempt"'
    assert written.getvalue().count(text) == lines
