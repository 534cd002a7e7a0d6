"""Scheduling cycle: nodes that are evaluated, scoring, ties, nominated nodes, sampling and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from bayplan.config.model import ExtenderConfig as ExtenderConfig
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import NOT_EVALUATED, Diagnosis
from bayplan.framework.api.extension_points import FILTER, POST_FILTER, PRE_FILTER, PRE_SCORE, SCORE
from bayplan.framework.api.plugin import PostFilterResult, PreFilterResult, Rejection
from bayplan.framework.api.status import SUCCESS, Code, Status, error, unresolvable, unschedulable
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.profile import Profile
from bayplan.objects.core import Pod
from bayplan.scheduler.cycle.http_extender import ExtenderError, HttpExtender
from bayplan.scheduler.cycle.node_sampling import NodeSampler, SampleSize, num_feasible_nodes_to_find
from bayplan.scheduler.cycle.schedule_result import SchedulingDecision
from bayplan.scheduler.cycle.scheduling_cycle import SchedulingCycle, TieBreak
from bayplan.snapshot import NodeColumns, NodeInfo, NodeTable, RowVector
from support.builders.framework import FakeHandle, make_cycle, make_node, make_pod, make_snapshot

POINTS = (PRE_FILTER, FILTER, POST_FILTER, PRE_SCORE, SCORE)


class Likes:
    """Scores nodes by a table and rejects nodes of a table."""

    def __init__(self, name: str = "Likes", *, refuses: dict[str, Status] | None = None, **scores: int) -> None:
        self.name = name
        self.scores = scores
        self.refuses = refuses or {}
        self.filtered: list[str] = []
        self.scored: list[str] = []

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
        self.filtered.append(node.name)
        return self.refuses.get(node.name)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> Any:  # noqa: ARG002
        self.scored += nodes.names
        return np.array([self.scores.get(name, 0) for name in nodes.names], dtype=np.int64)


class Narrows:
    name = "Narrows"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def pre_filter(self, cycle: Cycle) -> Any:  # noqa: ARG002
        return self.answer


class Helps:
    """A PostFilter."""

    name = "Helps"

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.seen: list[Diagnosis] = []

    def post_filter(self, cycle: Cycle, diagnosis: Diagnosis) -> Any:  # noqa: ARG002
        self.seen.append(diagnosis)
        return self.answer


def first(columns: NodeColumns, rows: RowVector | Sequence[int]) -> int:  # noqa: ARG001
    return 0


def attempts(*plugins: Any, tie_break: TieBreak = first, **fields: Any) -> SchedulingCycle:
    by_point = {point: tuple(each for each in plugins if point.extended_by(each)) for point in POINTS}
    profile = Profile("mine", by_point, {each.name: 1 for each in plugins}, {}, {}, {})
    fields.setdefault("sampler", NodeSampler())
    handle: Any = FakeHandle()
    return SchedulingCycle(Framework(profile, handle), tie_break, handle=handle, waiting_assumed={}, **fields)


def decide(one: SchedulingCycle, *names: str, pod: Pod | None = None) -> SchedulingDecision:
    snapshot = make_snapshot([make_node(name) for name in names])
    return one.schedule_pod(make_cycle(pod or make_pod(), snapshot))


NO = unschedulable("full")


# choosing


def test_the_best_node_wins() -> None:
    decision = decide(attempts(Likes(a=1, b=9, c=5)), "a", "b", "c")
    assert decision.node == "b"
    assert decision.status == SUCCESS
    assert decision.nominated_node_name is None
    assert decision.scores is not None
    assert decision.scores.total.tolist() == [1, 9, 5]


def test_ties_are_left_to_the_tie_break() -> None:
    offered: list[list[str]] = []

    def last(columns: NodeColumns, rows: RowVector | Sequence[int]) -> int:
        offered.append([columns.names[row] for row in rows])
        return len(rows) - 1

    assert decide(attempts(Likes(a=9, b=1, c=9), tie_break=last), "a", "b", "c").node == "c"
    assert offered == [["a", "c"]]


def test_a_single_best_is_not_a_tie() -> None:
    def never(columns: NodeColumns, rows: RowVector | Sequence[int]) -> int:  # noqa: ARG001
        raise AssertionError(rows)

    assert decide(attempts(Likes(a=9, b=1), tie_break=never), "a", "b").node == "a"


def test_one_feasible_node_is_not_scored() -> None:
    likes = Likes(refuses={"a": NO})
    decision = decide(attempts(likes), "a", "b")
    assert decision.node == "b"
    assert decision.scores is None
    assert likes.scored == []
    assert decision.nodes is not None
    assert decision.nodes.names == ["b"]


# no node


def test_no_nodes_at_all() -> None:
    helps = Helps(SUCCESS)
    decision = decide(attempts(Likes(), helps))
    assert decision.node is None
    assert decision.status == unresolvable("no nodes available to schedule pods")
    assert decision.nominated_node_name == ""
    assert helps.seen == []


def test_a_pod_that_fits_nowhere_says_why() -> None:
    decision = decide(attempts(Likes(refuses={"a": NO, "b": unresolvable("never")})), "a", "b")
    assert decision.status.code is Code.UNSCHEDULABLE
    assert decision.message == "0/2 nodes are available: 1 full, 1 never."
    assert decision.nominated_node_name == "", "without a PostFilter the nomination is cleared"


def test_the_message_of_postfilter_is_in_the_diagnosis() -> None:
    helps = Helps(PostFilterResult(unschedulable("nothing helps"), nominated_node_name=None))
    decision = decide(attempts(Likes(refuses={"a": NO}), helps), "a")
    assert decision.message == "0/1 nodes are available: 1 full. nothing helps"
    assert decision.nominated_node_name is None
    assert len(helps.seen) == 1


def test_the_nomination_of_postfilter_is_in_the_decision() -> None:
    victim = make_pod("victim")
    helps = Helps(PostFilterResult(SUCCESS, "a", (victim,), ("evict",)))
    decision = decide(attempts(Likes(refuses={"a": NO}), helps), "a")
    assert decision.node is None
    assert (decision.nominated_node_name, decision.victims, decision.writes) == ("a", ("default/victim",), ("evict",))
    assert decision.message == "0/1 nodes are available: 1 full."


def test_postfilter_runs_after_a_prefilter_rejection_too() -> None:
    helps = Helps(unschedulable("no"))
    decision = decide(attempts(Narrows(unschedulable("odd pod")), helps), "a", "b")
    assert decision.message == "0/2 nodes are available: odd pod. no"
    assert helps.seen[0].rows_with(Code.UNSCHEDULABLE).tolist() == [True, True]


# errors


def test_a_prefilter_error_ends_the_attempt() -> None:
    helps = Helps(SUCCESS)
    decision = decide(attempts(Narrows(error("broke")), Likes(), helps), "a")
    assert decision.status == error('running PreFilter plugin "Narrows": broke').by("Narrows")
    assert decision.nominated_node_name == ""
    assert helps.seen == []


def test_a_filter_error_ends_the_attempt_even_if_other_nodes_fit() -> None:
    helps = Helps(SUCCESS)
    likes = Likes(refuses={"c": error("late"), "b": error("broke")})
    decision = decide(attempts(likes, helps), "a", "b", "c")
    assert decision.node is None
    assert decision.status == error('running "Likes" filter plugin: broke').by("Likes"), "the first in visiting order"
    assert decision.nominated_node_name == ""
    assert helps.seen == []
    assert likes.scored == []


def test_a_score_error_ends_the_attempt() -> None:
    decision = decide(attempts(Likes(a=101)), "a", "b")
    assert decision.status.code is Code.ERROR
    assert "returns an invalid score 101" in decision.message
    assert decision.nominated_node_name == ""


# a nominated node


def test_a_nominated_node_that_fits_is_chosen_without_evaluating_other_nodes() -> None:
    likes = Likes(a=100)
    sampler = NodeSampler(start=1)
    decision = decide(attempts(likes, sampler=sampler), "a", "b", "c", pod=make_pod(nominated="b"))
    assert decision.node == "b"
    assert likes.filtered == ["b"]
    assert likes.scored == []
    assert sampler.start == 1, "the search did not move on"


def test_after_a_nominated_node_that_does_not_fit_all_nodes_are_evaluated() -> None:
    likes = Likes(refuses={"b": NO}, c=50)
    decision = decide(attempts(likes), "a", "b", "c", pod=make_pod(nominated="b"))
    assert decision.node == "c"
    assert likes.filtered == ["b", "a", "b", "c"]


def test_a_nominated_node_that_does_not_exist_is_ignored() -> None:
    assert decide(attempts(Likes(a=5)), "a", "b", pod=make_pod(nominated="missing")).node == "a"


def test_a_nominated_node_is_evaluated_although_prefilter_excluded_it() -> None:
    narrows = Narrows(PreFilterResult(frozenset({"a"})))
    assert decide(attempts(narrows, Likes()), "a", "b", pod=make_pod(nominated="b")).node == "b"


def test_the_rejection_of_a_nominated_node_is_in_the_message() -> None:
    plugins = Narrows(PreFilterResult(frozenset({"a"}))), Likes(refuses={"a": NO, "b": unschedulable("crowded")})
    decision = decide(attempts(*plugins), "a", "b", "c", pod=make_pod(nominated="b"))
    expected = "0/3 nodes are available: 1 crowded, 1 full, 1 node(s) didn't satisfy plugin(s) [Narrows]."
    assert decision.message == expected


def test_an_error_on_the_nominated_node_does_not_end_the_attempt() -> None:
    narrows = Narrows(PreFilterResult(frozenset({"a"})))
    decision = decide(attempts(narrows, Likes(refuses={"b": error("x")})), "a", "b", pod=make_pod(nominated="b"))
    assert decision.node == "a"


def test_a_prefilter_rejection_stops_before_the_nominated_node() -> None:
    likes = Likes()
    decision = decide(attempts(Narrows(unresolvable("never")), likes), "a", pod=make_pod(nominated="a"))
    assert decision.node is None
    assert likes.filtered == []


# sampling


@pytest.mark.parametrize(
    ("count", "percentage", "wanted"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (99, 0, 99),
        (99, 1, 99),
        (100, 0, 100),
        (100, 1, 100),
        (100, 100, 100),
        (999, 50, 499),
        (1000, 0, 420),
        (1000, 5, 100),
        (1000, 40, 400),
        (1000, 70, 700),
        (5000, 0, 500),
        (5000, 1, 100),
        (5000, 100, 5000),
        (6000, 0, 300),
        (15000, 0, 750),
        (5624, 0, 337),
        (5625, 0, 281),
    ],
)
def test_how_many_nodes_are_enough(count: int, percentage: int, wanted: int) -> None:
    assert num_feasible_nodes_to_find(count, percentage) == wanted


def cut(start: int, verdicts: str, wanted: int) -> tuple[list[int], int, Diagnosis]:
    """`verdicts`: F fits, x does not, - was not evaluated."""
    codes = {"F": Code.SUCCESS, "x": Code.UNSCHEDULABLE, "-": NOT_EVALUATED}
    diagnosis = Diagnosis([f"n{row}" for row in range(len(verdicts))])
    diagnosis.verdicts.codes[:] = [codes[each] for each in verdicts]
    diagnosis.verdicts.plugins["P"] = diagnosis.verdicts.codes == Code.UNSCHEDULABLE
    sampler = NodeSampler(start)
    way = sampler.visit_order(np.flatnonzero(diagnosis.verdicts.codes != NOT_EVALUATED))
    rows = sampler.take_sample(diagnosis, way, wanted)
    return rows.tolist(), sampler.start, diagnosis


@pytest.mark.parametrize(
    ("start", "verdicts", "wanted", "rows", "next_start"),
    [
        pytest.param(0, "FFFFF", 2, [0, 1], 2, id="from-the-start"),
        pytest.param(3, "FFFFF", 3, [3, 4, 0], 1, id="around-the-end"),
        pytest.param(0, "xFxFF", 2, [1, 3], 4, id="rejections-are-looked-at"),
        pytest.param(0, "FxxFF", 1, [0], 3, id="up-to-the-next-that-fits"),
        pytest.param(0, "xFxxx", 1, [1], 0, id="the-search-goes-on-while-no-other-fits"),
        pytest.param(0, "xxx", 1, [], 0, id="none"),
        pytest.param(4, "F-F-F", 2, [2, 4], 1, id="only-candidates-count"),
        pytest.param(2, "---", 1, [], 2, id="no-candidates"),
    ],
)
def test_start_and_end_of_a_sample(start: int, verdicts: str, wanted: int, rows: list[int], next_start: int) -> None:
    assert cut(start, verdicts, wanted)[:2] == (rows, next_start)


def test_rows_beyond_a_sample_are_not_evaluated() -> None:
    _, _, diagnosis = cut(1, "xFxFx", 1)
    assert [name for name, _ in diagnosis.by_node()] == ["n1", "n2"]


def test_all_nodes_are_evaluated_by_default() -> None:
    names = [f"n{number}" for number in range(150)]
    likes = Likes(n149=9)
    assert decide(attempts(likes), *names).node == "n149"
    assert len(likes.scored) == 150
    sampled = Likes(n149=9)
    assert decide(attempts(sampled, share=SampleSize(10)), *names).node == "n0"
    assert sampled.scored == names[:100]


def test_samples_rotate() -> None:
    names = [f"n{number}" for number in range(150)]
    likes = Likes()
    one = attempts(likes, share=SampleSize(10))
    decide(one, *names)
    likes.scored.clear()
    decide(one, *names)
    assert likes.scored == [*names[100:], *names[:50]]


class Whole(Likes):
    """The same as a table filter."""

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:  # noqa: ARG002
        yield Rejection(np.array([name in self.refuses for name in nodes.names]), "full")


@pytest.mark.parametrize("refused", [0, 1, 30, 149, 150, 299, 300])
def test_a_per_node_filter_is_called_until_the_sample_is_complete(refused: int) -> None:
    names = [f"n{number}" for number in range(300)]
    refuses, walking, whole = dict.fromkeys(names[:refused], NO), NodeSampler(290), NodeSampler(290)
    likes = Likes(refuses=refuses)
    decision = decide(attempts(likes, sampler=walking, share=SampleSize(10)), *names)
    expected = decide(attempts(Whole(refuses=refuses), sampler=whole, share=SampleSize(10)), *names)
    assert (decision.node, decision.message, walking) == (expected.node, expected.message, whole)
    assert decision.diagnosis is not None
    assert expected.diagnosis is not None
    assert dict(decision.diagnosis.by_node()) == dict(expected.diagnosis.by_node())
    assert decision.diagnosis.unschedulable_plugins == expected.diagnosis.unschedulable_plugins
    looked_at = len(list(decision.diagnosis.by_node()))
    assert looked_at <= len(likes.filtered) <= max(101, 2 * looked_at), "few nodes are evaluated in vain"
    assert len(set(likes.filtered)) == len(likes.filtered)


def test_without_score_plugins_the_first_feasible_node_is_chosen() -> None:
    narrows = Narrows(None)
    one = attempts(narrows)
    assert [decide(one, "a", "b", "c").node for _ in range(4)] == ["a", "b", "c", "a"]


def test_an_attempt_that_needs_an_extender_raises() -> None:
    extender = HttpExtender(ExtenderConfig(url_prefix="http://x", filter_verb="filter"))
    with pytest.raises(ExtenderError, match="extender http://x is configured"):
        decide(attempts(Likes(), extenders=(extender,)), "a")
