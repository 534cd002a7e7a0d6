from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.session import Session
from bayplan.objects.core import Pod
from bayplan.objects.volcano.types import SubGroupPolicy
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import GANGS, build_engine

READY = {"phase": "Inqueue"}


def terminating(pod: Pod) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp=datetime(2024, 1, 1, tzinfo=UTC)))


def gang(count: int, name: str = "job", **pod: Any) -> list[Pod]:
    return [make_member(f"{name}-w-{number}", name, **pod) for number in range(count)]


def test_a_gang_starts_completely_or_not_at_all() -> None:
    nodes = [make_node("a", cpu=2), make_node("b", cpu=1)]
    whole = build_engine(nodes=nodes, pods=gang(3), objects=[make_group(min_member=3)]).run_session()
    assert len(whole.binds) == 3
    short = build_engine(nodes=nodes, pods=gang(4), objects=[make_group(min_member=4)]).run_session()
    assert not short.binds
    assert not short.pipelined
    reasons = sorted(message.reason for message in short.messages.values())
    assert reasons == ["Schedulable", "Schedulable", "Schedulable", "Unschedulable"]


def test_a_pipelined_gang_keeps_its_resources_until_the_session_closes() -> None:
    pods = [*gang(2), terminating(make_member("old", "", node="a"))]
    groups = [make_group(min_member=2), make_group("later", min_member=1, created=datetime(2025, 1, 1, tzinfo=UTC))]
    cluster = {"nodes": [make_node("a", cpu=2)], "pods": [*pods, make_member("later-w-0", "later")]}
    outcome = build_engine(**cluster, objects=groups).run_session()
    assert not outcome.binds
    assert sorted([*outcome.pipelined, *outcome.allocated]) == ["default/job-w-0", "default/job-w-1"]
    assert "default/later-w-0" in outcome.messages


def test_elastic_tasks_wait_for_other_gangs() -> None:
    """After its minimum a job gets one task per turn, and jobs that are not ready go first."""
    pods = [*gang(3), *gang(1, "other")]
    groups = [make_group(), make_group("other", created=datetime(2025, 1, 1, tzinfo=UTC))]
    outcome = build_engine(nodes=[make_node("a", cpu=3)], pods=pods, objects=groups).run_session()
    assert set(outcome.binds) == {"default/job-w-0", "default/job-w-1", "default/other-w-0"}


def test_a_pending_group_is_skipped_if_enqueue_is_configured_and_admitted_otherwise() -> None:
    cluster: dict[str, Any] = {"nodes": [make_node("a")], "pods": gang(1), "objects": [make_group()]}
    late = GANGS.replace("enqueue, allocate, backfill", "allocate, enqueue")
    assert not build_engine(conf=late, **cluster).run_session().binds
    alone = GANGS.replace("enqueue, allocate, backfill", "allocate")
    assert build_engine(conf=alone, **cluster).run_session().binds


def test_gated_and_best_effort_tasks_are_not_allocated() -> None:
    pods = [make_member("gated", gates=["example.com/hold"]), make_member("empty", requests={}), make_member("plain")]
    alone = GANGS.replace("enqueue, allocate, backfill", "allocate")
    outcome = build_engine(conf=alone, nodes=[make_node("a")], pods=pods, objects=[make_group()]).run_session()
    assert set(outcome.binds) == {"default/plain"}


def test_the_nominated_node_is_tried_first() -> None:
    pod = make_member("p")
    nominated = replace(pod, status=replace(pod.status, nominated_node_name="b"))
    nodes = [make_node("a", cpu=64), make_node("b", cpu=2)]
    cluster: dict[str, Any] = {"nodes": nodes, "objects": [make_group()]}
    assert build_engine(**cluster, pods=[pod]).run_session().binds == {"default/p": "a"}
    assert build_engine(**cluster, pods=[nominated]).run_session().binds == {"default/p": "b"}


def role(name: str, role: str, cpu: str) -> Pod:
    return make_member(name, annotations={"volcano.sh/task-spec": role}, requests={"cpu": cpu})


def test_a_role_that_failed_once_is_not_tried_again() -> None:
    pods = [role("job-w-0", "w", "9"), role("job-w-1", "w", "1"), role("job-p-2", "ps", "1")]
    outcome = build_engine(nodes=[make_node("a", cpu=2)], pods=pods, objects=[make_group(min_member=0)]).run_session()
    assert set(outcome.binds) == {"default/job-p-2"}
    assert outcome.messages["default/job-w-1"].message == (
        "Task job-w-1 with role spec w has already predicated failed, skip"
    )


@pytest.mark.parametrize(("cached", "bound"), [("true", 0), ("false", 2)])
def test_infeasible_nodes_of_a_role_are_cached_unless_disabled(cached: str, bound: int) -> None:
    """The large task fits b only; a small task of the same role could use a."""
    conf = f"{GANGS}configurations:\n- name: allocate\n  arguments:\n    predicateErrorCacheEnable: {cached}\n"
    pods = [role("job-w-0", "w", "3"), role("job-w-1", "w", "2")]
    nodes = [make_node("a", cpu=2), make_node("b", cpu=4)]
    outcome = build_engine(conf=conf, nodes=nodes, pods=pods, objects=[make_group(min_member=2)]).run_session()
    assert len(outcome.binds) == bound


class Quota:
    """Limits every queue to two tasks."""

    name = "quota"

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._count = dict.fromkeys(session.queues, 0)
        jobs = session.jobs
        session.add_allocatable_fn(self.name, lambda queue, _: self._count[queue.name] < 2)
        session.add_overused_fn(self.name, lambda queue: self._count[queue.name] >= 2)

        def change_count(by: int) -> Any:
            def apply(task: Any) -> None:
                self._count[jobs[task.job].queue] += by

            return apply

        session.add_event_handler(self.name, allocate=change_count(1), deallocate=change_count(-1))


def test_a_queue_at_its_quota_does_not_block_other_queues() -> None:
    conf = GANGS.replace("  - name: gang\n", "  - name: gang\n  - name: quota\n")
    pods = [*gang(4), *gang(1, "other")]
    outcome = build_engine(
        conf=conf,
        nodes=[make_node("a")],
        pods=pods,
        objects=[make_queue("z"), make_group(), make_group("other", queue="z")],
        plugins=default_batch_plugins().with_plugins(Quota),
    ).run_session()
    assert sorted(key.split("-")[0] for key in outcome.binds) == ["default/job", "default/job", "default/other"]


def ring(name: str, number: str) -> Pod:
    return make_member(name, labels={"ring": number})


def test_sub_groups_start_completely_and_at_least_the_minimum() -> None:
    policy = SubGroupPolicy(name="ring", match_label_keys=("ring",), sub_group_size=2, min_sub_groups=1)
    pods = [ring("job-w-0", "0"), ring("job-w-1", "0"), ring("job-w-2", "1"), ring("job-w-3", "1")]
    group = make_group(min_member=2, sub_group_policy=(policy,))
    tight = build_engine(nodes=[make_node("a", cpu=3)], pods=pods, objects=[group]).run_session()
    assert set(tight.binds) == {"default/job-w-0", "default/job-w-1"}
    roomy = build_engine(nodes=[make_node("a", cpu=4)], pods=pods, objects=[group]).run_session()
    assert len(roomy.binds) == 4


def test_a_second_allocate_ignores_bound_sub_groups() -> None:
    policy = SubGroupPolicy(name="ring", match_label_keys=("ring",), sub_group_size=2)
    pods = [ring(f"job-w-{number}", str(number % 2)) for number in range(4)]
    group = make_group(min_member=4, sub_group_policy=(policy,))
    nodes = [make_node("a", cpu=4), make_node("b", cpu=4)]
    once, twice = (
        build_engine(
            conf=GANGS.replace('"enqueue, allocate, backfill"', actions), nodes=nodes, pods=pods, objects=[group]
        )
        for actions in ('"enqueue, allocate"', '"enqueue, allocate, allocate"')
    )
    done = twice.run_session()
    assert len(done.binds) == 4
    assert [event.text for event in done.events] == [event.text for event in once.run_session().events]
    assert done.messages == {}


def test_a_session_yields_between_statements() -> None:
    pods = [*gang(1, "one"), *gang(1, "two")]
    engine = build_engine(nodes=[make_node("a")], pods=pods, objects=[make_group("one"), make_group("two")])
    outcome = SessionResult()
    bound = [len(outcome.binds) for _ in engine.run_session_steps(outcome)]
    assert sorted(set(bound)) == [0, 1, 2]
    assert bound == sorted(bound)
