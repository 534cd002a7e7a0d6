from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from bayplan.batch.evaluation.node_search import NodeSearch
from bayplan.batch.evaluation.rejected_rows import fit_errors_of, group_rows_by_statuses
from bayplan.framework.api.status import unresolvable, unschedulable
from bayplan.testing.builders import make_node, make_pod
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import build_engine

FULL, TAINTED = unschedulable("full"), unresolvable("tainted")


def test_fit_errors_count_rows_by_reason_and_mark_unresolvable_rows() -> None:
    errors = fit_errors_of(group_rows_by_statuses([(0, (FULL,)), (2, (FULL, TAINTED)), (3, (FULL,))]), 4)
    assert (errors.count, dict(errors.reasons)) == (3, {"full": 3, "tainted": 1})
    assert errors.unresolvable is not None
    assert errors.unresolvable.tolist() == [False, False, True, False]
    assert errors.text() == "0/3 nodes are unavailable: 1 tainted, 3 full."


def test_without_unresolvable_rows_there_is_no_mask() -> None:
    assert fit_errors_of(group_rows_by_statuses([(0, (FULL,))]), 1).unresolvable is None


def test_grouped_rejections_equal_those_of_single_rows() -> None:
    nodes = [
        make_node("small", cpu=1),
        make_node("tainted", cpu=8, taints=["gpu:NoSchedule"]),
        make_node("cordoned", cpu=8, unschedulable=True),
        make_node("crowded", cpu=8, capacity={"pods": 1}),
        make_node("tiny", cpu=1, memory="1Mi"),
    ]
    pods = [make_member("p", requests={"cpu": "2", "memory": "1Gi"}), make_pod("x", cpu=0, node="crowded")]
    with build_engine(nodes=nodes, pods=pods, objects=[make_group()]).session() as session:
        (task,) = session.jobs["default/job"].tasks.values()
        assert session.pre_predicate(task) is None
        evaluation = session.evaluate_class(task)
        found = {
            int(row): [status.message for status in statuses]
            for statuses, rows in evaluation.rejections(task, session.nodes.rows, with_room=True)
            for row in rows
        }
        assert found == {
            0: ["Insufficient cpu"],
            1: ["node(s) had untolerated taint(s)"],
            2: ["node(s) were unschedulable"],
            3: ["Insufficient pods"],
            4: ["Insufficient cpu"],
        }
        single = {row: [each.message for each in evaluation.statuses(task, row)] for row in range(5)}
        assert single[3] == ["node(s) pod number exceeded"]
        assert (single[1], single[2], single[0]) == (found[1], found[2], [])


def test_failures_of_a_role_keep_their_first_reasons() -> None:
    notes = {"volcano.sh/task-spec": "w"}
    pods = [make_member(f"job-w-{number}", annotations=notes, requests={"cpu": "3"}) for number in range(2)]
    nodes = [make_node("a", cpu=2), make_node("b", cpu=4)]
    with build_engine(nodes=nodes, pods=pods, objects=[make_group()]).session() as session:
        first, second = session.jobs["default/job"].tasks.values()
        search = NodeSearch(session, caches_failures=True)
        for task in (first, second):
            assert session.pre_predicate(task) is None
        evaluation = session.evaluate_class(first)
        feasible = search.feasible(first, evaluation, None)
        assert feasible.tolist() == [False, True]
        search.note_failures(first, evaluation, feasible, None)
        session.statement().allocate(first, "b")
        evaluation = session.evaluate_class(second)
        assert not search.feasible(second, evaluation, None).any()
        assert search.explain(second, evaluation, None).text() == "0/2 nodes are unavailable: 2 Insufficient cpu."
        one = np.array([True, False])
        assert search.explain(second, evaluation, one).count == 1


def test_another_role_does_not_inherit_failures() -> None:
    pod = make_member("job-w-0", annotations={"volcano.sh/task-spec": "w"}, requests={"cpu": "3"})
    other = replace(make_member("job-p-1", annotations={"volcano.sh/task-spec": "ps"}), status=make_member("x").status)
    with build_engine(nodes=[make_node("a", cpu=2)], pods=[pod, other], objects=[make_group()]).session() as session:
        big, small = session.jobs["default/job"].tasks.values()
        search = NodeSearch(session, caches_failures=True)
        evaluation = session.evaluate_class(big)
        search.note_failures(big, evaluation, search.feasible(big, evaluation, None), None)
        assert search.feasible(small, session.evaluate_class(small), None).any()
