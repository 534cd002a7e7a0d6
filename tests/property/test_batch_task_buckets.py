"""Task buckets computed on arrays equal those computed bucket by bucket for every task."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.tasks import Task
from bayplan.batch.plugins.task_topology.buckets import AFFINITY, Bucket, JobBuckets, TaskTopologySpec, role_of
from bayplan.batch.plugins.task_topology.plugin import TaskTopologyPlugin, count_excluded_tasks
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session, tasks_of
from support.builders.batch_scores import scores

ROLES = ("a", "b", "c")

groups = st.lists(st.lists(st.sampled_from(ROLES), min_size=1, max_size=3, unique=True).map(tuple), max_size=3)
tasks = st.lists(
    st.tuples(st.sampled_from(ROLES), st.sampled_from(["", "", "n1", "n2"]), st.integers(1, 3)), max_size=14
)


def task(number: int, role: str, node: str, cpu: int) -> Task:
    notes = {"volcano.sh/task-spec": role}
    return Task(make_member(f"{role}-{number:02}", node=node, requests={"cpu": cpu}, annotations=notes))


def plainly_built(topology: TaskTopologySpec, waiting: list[Task]) -> list[list[str]]:
    """One bucket at a time, as the rules describe it."""
    together = {frozenset((a, b)) for group in topology.affinity for a in group for b in group if a != b}
    apart = {frozenset((a, b)) for group in topology.anti_affinity for a in group for b in group if a != b}
    together |= {frozenset(group) for group in topology.affinity if len(group) == 1}
    apart |= {frozenset(group) for group in topology.anti_affinity if len(group) == 1}
    found: list[tuple[list[Task], Counter[str]]] = []
    by_node: dict[str, int] = {}
    for each in waiting:
        role, best = role_of(each), None
        if each.node_name:
            best = by_node.get(each.node_name)
        else:
            ranked = []
            for index, (members, roles) in enumerate(found):
                likes = sum(count * (frozenset((role, other)) in together) for other, count in roles.items())
                likes -= sum(count * (frozenset((role, other)) in apart) for other, count in roles.items())
                weight = sum(member.resreq.milli_cpu + 1 for member in members if not member.node_name)
                ranked.append((-likes, weight, index))
            if ranked and min(ranked)[0] <= 0:
                best = min(ranked)[2]
        if best is None:
            best = len(found)
            found.append(([], Counter()))
            if each.node_name:
                by_node[each.node_name] = best
        found[best][0].append(each)
        found[best][1][role] += 1
    return [[member.name for member in members] for members, _ in found]


@given(groups, groups, st.permutations(ROLES), tasks)
def test_buckets_equal_those_of_the_naive_rule(
    together: list[tuple[str, ...]], apart: list[tuple[str, ...]], order: list[str], made: list[tuple[str, str, int]]
) -> None:
    topology = TaskTopologySpec(tuple(together), tuple(apart), tuple(order[:2]))
    everybody = [task(number, *each) for number, each in enumerate(made)]
    buckets = JobBuckets(topology, everybody, {})
    concerned = sorted(
        (each for each in everybody if role_of(each) in buckets.priority),
        key=lambda each: (
            not each.node_name,
            each.node_name,
            *((0, 0, "") if each.node_name else (*(-rank for rank in buckets.importance(each)), each.name)),
        ),
    )
    told: list[list[str]] = [[] for _ in buckets.buckets]
    for each in concerned:
        bucket = buckets.bucket_of(each)
        assert bucket is not None
        told[bucket.index].append(each.name)
    assert told == plainly_built(topology, concerned)
    assert buckets.largest == max((len(names) for names in told), default=0)


def plainly_left_out(task: Task, bucket: Bucket, room: Amounts) -> int:
    """Remove one companion after the other until the rest fits."""
    remains = bucket.request.clone()
    if remains.less_equal(room):
        return 0
    count = 0
    for uid, other in bucket.waiting.items():
        if uid == task.uid:
            continue
        remains.sub_unchecked(other.resreq)
        count += 1
        if remains.less_equal(room):
            break
    return count


sizes = st.tuples(st.integers(0, 4), st.integers(0, 3))


@given(st.lists(sizes, min_size=1, max_size=6), st.lists(sizes, min_size=1, max_size=4))
def test_companions_are_left_out_one_by_one(asked: list[tuple[int, int]], offered: list[tuple[int, int]]) -> None:
    notes = {"volcano.sh/task-spec": "a"}
    pods = [
        make_member(f"a-{number}", requests={"cpu": cpu, "x.y/z": extra}, annotations=notes)
        for number, (cpu, extra) in enumerate(asked)
    ]
    nodes = [
        make_node(f"n{number}", allocatable={"cpu": cpu, "memory": "1", "pods": 9, "x.y/z": extra})
        for number, (cpu, extra) in enumerate(offered)
    ]
    group = make_group(annotations={AFFINITY: "a"})
    with open_session(TaskTopologyPlugin, nodes=nodes, pods=pods, objects=[group]) as session:
        (bucket,) = session.plugins["task-topology"]._jobs["default/job"].buckets
        for task in tasks_of(session, *(pod.metadata.name for pod in pods)):
            fitting = [node for node in session.nodes if not node.idle.less_partly(task.resreq)]
            found = count_excluded_tasks(task, bucket, session.nodes)
            assert [found[node.row] for node in fitting] == [
                plainly_left_out(task, bucket, node.idle) for node in fitting
            ]
            too_small = {node.name for node in session.nodes} - {node.name for node in fitting}
            assert {name for name, score in scores(session, task.name).items() if not score} >= too_small
