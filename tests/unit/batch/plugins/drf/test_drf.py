from __future__ import annotations

import pytest

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.queues import HIERARCHY, HIERARCHY_WEIGHTS
from bayplan.batch.plugins.drf.hierarchy import ShareTree, is_saturated
from bayplan.batch.plugins.drf.plugin import DrfPlugin
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.volcano.types import Queue, QueueSpec, QueueStatus
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue, open_session, task_names, tasks_of
from support.builders.batch_engines import build_engine

NODE = make_node("n", allocatable={"cpu": "10", "memory": "10Gi", "pods": "100"})
GROUPS = [make_group("a", phase="Running"), make_group("b", phase="Running")]


def test_the_job_with_the_smaller_dominant_share_comes_first() -> None:
    pods = [
        make_member("a-0", "a", node="n", requests={"cpu": "1", "memory": "3Gi"}),
        make_member("b-0", "b", node="n", requests={"cpu": "2", "memory": "1Gi"}),
    ]
    with open_session(DrfPlugin, nodes=[NODE], pods=pods, objects=GROUPS) as session:
        a, b = session.jobs["default/a"], session.jobs["default/b"]
        assert (session.compare_jobs(a, b), session.compare_jobs(b, a), session.compare_jobs(a, a)) == (1, -1, 0)


@pytest.mark.parametrize("compared_before", [True, False])
@pytest.mark.parametrize("how", ["allocate", "pipeline"])
def test_shares_follow_placements_and_their_undo(how: str, compared_before: bool) -> None:
    pods = [make_member("a-0", "a", node="n"), make_member("a-1", "a"), make_member("b-0", "b", node="n")]
    with open_session(DrfPlugin, nodes=[NODE], pods=pods, objects=GROUPS) as session:
        a, b = session.jobs["default/a"], session.jobs["default/b"]
        if compared_before:
            assert session.compare_jobs(a, b) == 0
        (waiting,) = tasks_of(session, "a-1")
        statement = session.statement()
        assert statement.pipeline(waiting, "n") if how == "pipeline" else statement.allocate(waiting, "n")
        assert session.compare_jobs(a, b) == 1
        statement.discard()
        assert session.compare_jobs(a, b) == 0


@pytest.mark.parametrize("compared_before", [True, False])
def test_shares_follow_evictions(compared_before: bool) -> None:
    pods = [make_member("a-0", "a", node="n"), make_member("b-0", "b", node="n")]
    with open_session(DrfPlugin, nodes=[NODE], pods=pods, objects=GROUPS) as session:
        a, b = session.jobs["default/a"], session.jobs["default/b"]
        if compared_before:
            assert session.compare_jobs(a, b) == 0
        statement = session.statement()
        statement.evict(tasks_of(session, "a-0")[0], "test")
        assert session.compare_jobs(a, b) == -1
        statement.discard()
        assert session.compare_jobs(a, b) == 0


@pytest.mark.parametrize(
    ("theirs", "victims"),
    [
        pytest.param(1, [], id="the-victims-share-would-be-smaller"),
        pytest.param(2, ["b-0"], id="the-shares-would-be-equal"),
        pytest.param(3, ["b-0", "b-1"], id="until-the-shares-are-equal"),
    ],
)
def test_only_jobs_with_at_least_the_preemptors_share_lose_tasks(theirs: int, victims: list[str]) -> None:
    pods = [make_member(f"b-{number}", "b", node="n") for number in range(theirs)] + [make_member("a-0", "a")]
    with open_session(DrfPlugin, nodes=[NODE], pods=pods, objects=GROUPS) as session:
        preemptor, *running = tasks_of(session, "a-0", *(f"b-{number}" for number in range(theirs)))
        assert task_names(session.preemptable(preemptor, running)) == victims


# Hierarchy of queues


def in_tree(name: str, path: str, weights: str) -> Queue:
    meta = ObjectMeta(name=name, annotations={HIERARCHY: path, HIERARCHY_WEIGHTS: weights})
    return Queue(metadata=meta, spec=QueueSpec(weight=1), status=QueueStatus(state="Open"))


CONF = """\
actions: "allocate"
tiers:
- plugins:
  - name: drf
    enableHierarchy: true
"""


@pytest.mark.parametrize(
    ("weights", "first"),
    [
        pytest.param(("100/50", "100/50"), "r", id="smaller-share"),
        pytest.param(("100/75", "100/25"), "q", id="by-weight"),
        pytest.param(("100/0.1", "100/nonsense"), "r", id="weights-are-at-least-one"),
    ],
)
def test_queues_by_weighted_share(weights: tuple[str, str], first: str) -> None:
    queues = [in_tree("q", "root/a", weights[0]), in_tree("r", "root/b", weights[1])]
    groups = [make_group("a", phase="Inqueue"), make_group("b", phase="Inqueue", queue="r")]
    pods = [make_member(f"a-{number}", "a", node="n") for number in range(4)]
    pods += [make_member(f"b-{number}", "b", node="n") for number in range(3)]
    pods += [make_member("a-w", "a"), make_member("b-w", "b")]
    with build_engine(conf=CONF, nodes=[NODE], pods=pods, objects=[*queues, *groups]).session() as session:
        q, r = session.queues["q"], session.queues["r"]
        assert session.queue_order(q, r) is (first == "q")
        assert session.queue_order(r, q) is (first == "r")


def test_reclaim_between_queues_of_a_hierarchy() -> None:
    queues = [in_tree("q", "root/a", "1/1"), in_tree("r", "root/b", "1/1")]
    groups = [make_group("a", phase="Inqueue"), make_group("b", phase="Inqueue", queue="r")]
    pods = [make_member("a-0", "a", node="n"), make_member("a-1", "a"), make_member("a-2", "a")]
    pods += [make_member(f"b-{number}", "b", node="n") for number in range(4)] + [make_member("b-9", "b")]
    with build_engine(conf=CONF, nodes=[NODE], pods=pods, objects=[*queues, *groups]).session() as session:
        reclaimer, *theirs = tasks_of(session, "a-1", "b-0", "b-1")
        q, r = session.queues["q"], session.queues["r"]
        assert task_names(session.reclaimable(reclaimer, theirs)) == ["b-0", "b-1"]  # each task alone: 2 against 3
        assert session.queue_order(q, r), "the comparison changes nothing"
        statement = session.statement()
        for task in theirs:
            statement.evict(task, "test")
        assert session.reclaimable(reclaimer, tasks_of(session, "b-2")) == []  # 2 against 1


def test_missing_weights_are_reported() -> None:
    objects = [in_tree("q", "root/a/b", "1/2"), make_group("a", phase="Inqueue")]
    with build_engine(conf=CONF, nodes=[NODE], objects=objects).session() as session:
        assert session.faults == [
            'drf: queue q: hierarchy weights "1/2" are fewer than the parts of "root/a/b"; 1 is used'
        ]


@pytest.mark.parametrize("weight", ["foo", "NaN", "0", "-2", "1_0", ""])
def test_invalid_weights_are_reported(weight: str) -> None:
    objects = [in_tree("q", "root/a", f"1/{weight}"), make_group("a", phase="Inqueue")]
    with build_engine(conf=CONF, nodes=[NODE], objects=objects).session() as session:
        assert session.faults == [
            f'drf: queue q: "{weight}" in hierarchy weights "1/{weight}" is not a number above 0; 1 is used'
        ]


def test_an_invalid_weight_is_one() -> None:
    tree = ShareTree(Amounts(milli_cpu=10.0), lambda amounts: amounts.milli_cpu / 10)
    for name, weight in (("a", "NaN"), ("b", "1")):
        tree.add_job(name, f"root/{name}", f"1/{weight}", Amounts(milli_cpu=9.0))
        tree.set_job(name, Amounts(milli_cpu=2.0), 0.2)
    assert tree.compare("root/a", "root/b") == 0


def test_a_queue_outside_of_the_tree_is_ordered_by_name() -> None:
    objects = [in_tree("r", "root/a", "1/1"), make_queue("s"), make_group("a", queue="r", phase="Inqueue")]
    with build_engine(conf=CONF, nodes=[NODE], objects=objects).session() as session:
        r, s = session.queues["r"], session.queues["s"]
        assert session.queue_order(r, s) is not session.queue_order(s, r)  # by name


TOTAL = Amounts.of({"cpu": "10", "memory": "10Gi"})


def _share(amounts: Amounts) -> float:
    return max(amounts.milli_cpu / TOTAL.milli_cpu, amounts.memory / TOTAL.memory)


def _tree(**jobs: tuple[str, str, str]) -> ShareTree:
    """Build a tree of jobs, given as (path, held cpu, requested cpu)."""
    tree = ShareTree(TOTAL, _share)
    for name, (path, held, wanted) in jobs.items():
        tree.add_job(name, path, "/".join("1" * 4), Amounts.of({"cpu": wanted}))
        allocated = Amounts.of({"cpu": held})
        tree.set_job(name, allocated, _share(allocated))
    return tree


def test_unsaturated_children_count_as_much_as_the_poorest() -> None:
    shares = _tree(a=("root/x/a", "1", "9"), b=("root/x/b", "3", "9"), c=("root/y", "2", "9")).shares()
    assert shares["root/x"] == pytest.approx(0.2)  # twice the 0.1 of a
    assert shares["root/y"] == pytest.approx(0.2)


def test_a_saturated_child_counts_in_full() -> None:
    shares = _tree(a=("root/x/a", "1", "1"), b=("root/x/b", "3", "9")).shares()
    assert shares["root/x"] == pytest.approx(0.4)


def test_saturated_queues_come_last() -> None:
    tree = _tree(a=("root/x", "1", "1"), b=("root/y", "3", "9"))
    assert tree.compare("root/x", "root/y") == 1.0
    tree.set_job("b", Amounts.of({"cpu": "9"}), 0.9)  # the cluster is full, so no queue can get more
    assert tree.compare("root/x", "root/y") < 0


@pytest.mark.parametrize(
    ("held", "wanted", "demanding", "saturated"),
    [
        pytest.param({}, {"cpu": "1"}, {"cpu"}, False, id="holds-nothing"),
        pytest.param({"cpu": "1"}, {"cpu": "2"}, {"cpu"}, False, id="wants-more"),
        pytest.param({"cpu": "2"}, {"cpu": "2"}, {"cpu"}, True, id="holds-its-request"),
        pytest.param({"cpu": "1"}, {"cpu": "2"}, set(), True, id="resource-exhausted"),
        pytest.param({"cpu": "1"}, {"memory": "2"}, {"memory"}, False, id="holds-an-unrequested-resource"),
    ],
)
def test_saturation(held: dict[str, str], wanted: dict[str, str], demanding: set[str], saturated: bool) -> None:
    assert is_saturated(Amounts.of(held), Amounts.of(wanted), frozenset(demanding)) is saturated
