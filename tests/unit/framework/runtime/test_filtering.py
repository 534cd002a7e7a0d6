"""PreFilter and Filter: calls of plugins, their results, and the diagnosis."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from bayplan.clock import ManualClock
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.extension_points import FILTER, PRE_FILTER
from bayplan.framework.api.plugin import PreFilterResult, Rejection
from bayplan.framework.api.plugin_traits import PluginTraits
from bayplan.framework.api.status import SKIP, SUCCESS, Code, Status, error, pending, unresolvable, unschedulable
from bayplan.framework.runtime.filtering import FilterPoints, PreFilterSummary
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.objects.core import Pod
from bayplan.plugins.node_resources.fit import NodeResourcesFit
from bayplan.snapshot import NodeColumns, NodeInfo, NodeTable, PodInfo, Snapshot
from bayplan.telemetry.plugin_timings import PluginTimings
from support.builders.framework import FakeNominations, make_cycle, make_node, make_plugin, make_pod, make_snapshot

NODES = ("a", "b", "c")


class Early:
    """A PreFilter with a configured result, and a Filter that records the nodes of its calls."""

    def __init__(self, name: str, result: Any = None, *, refuses: str = "", with_status: Status | None = None) -> None:
        self.name = name
        self.result = result
        self.refuses = refuses.split()
        self.with_status = with_status or unschedulable(f"{name} says no")
        self.calls: list[str] = []
        self.pre_filters = 0

    def pre_filter(self, cycle: Cycle) -> Any:  # noqa: ARG002
        self.pre_filters += 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
        self.calls.append(node.name)
        return self.with_status if node.name in self.refuses else None


class Table:
    """A Filter in the whole-table form."""

    def __init__(self, name: str, *rejections: tuple[str, Rejection | str]) -> None:
        self.name = name
        self.rejections = rejections
        self.calls: list[list[str]] = []

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterable[Rejection]:  # noqa: ARG002
        self.calls.append(list(nodes.names))
        for names, reason in self.rejections:
            mask = np.array([name in names.split() for name in nodes.names], dtype=np.bool_)
            yield (
                Rejection(mask, reason)
                if isinstance(reason, str)
                else Rejection(mask, reason.reason, reason.resolvable, reason.code)
            )


class PerRow(Table):
    traits = PluginTraits(loops_over_rows=True)


def no(reason: str, *, resolvable: bool = True, code: Code | None = None) -> Rejection:
    return Rejection(np.zeros(0, dtype=np.bool_), reason, resolvable, code)


def filtering(*plugins: Any, nominations: FakeNominations | None = None) -> FilterPoints:
    return FilterPoints(
        [plugin for plugin in plugins if PRE_FILTER.extended_by(plugin)],
        [plugin for plugin in plugins if FILTER.extended_by(plugin)],
        PluginCaller(ManualClock(), PluginTimings()),
        nominations or FakeNominations(),
    )


def cluster() -> Snapshot:
    return make_snapshot([make_node(name) for name in NODES])


def run(*plugins: Any, pod: Pod | None = None, nominations: FakeNominations | None = None) -> Diagnosis:
    runner, cycle = filtering(*plugins, nominations=nominations), make_cycle(pod or make_pod(), cluster())
    return runner.run_filters(cycle, runner.pre_filter(cycle))


def pre_filter(*plugins: Any) -> tuple[PreFilterSummary, Cycle]:
    cycle = make_cycle(make_pod(), cluster())
    return filtering(*plugins).pre_filter(cycle), cycle


def by_node(diagnosis: Diagnosis) -> dict[str, tuple[str, str, str]]:
    return {name: (status.code.label, status.plugin, status.message) for name, status in diagnosis.by_node()}


OK = ("Success", "", "")


# PreFilter


def test_skip_keeps_the_filter_of_the_same_plugin_out() -> None:
    skipped, calls = Early("Skipped", SKIP, refuses="a b c"), Early("Asked")
    diagnosis = run(skipped, calls)
    assert skipped.calls == []
    assert calls.calls == ["a", "b", "c"]
    assert by_node(diagnosis) == dict.fromkeys(NODES, OK)


def test_an_unresolvable_answer_ends_it_at_once() -> None:
    skipped, first, second = Early("Skipped", SKIP), Early("First", unresolvable("never")), Early("Second")
    outcome, cycle = pre_filter(skipped, first, second)
    assert outcome.status == unresolvable("never").by("First")
    assert second.pre_filters == 0
    assert cycle.skip_filter == {"Skipped"}


def test_after_an_unschedulable_status_prefilter_goes_on_and_the_last_one_counts() -> None:
    plugins = Early("First", unschedulable("one")), Early("Second", unschedulable("two")), Early("Third")
    outcome, _ = pre_filter(*plugins)
    assert outcome.status == unschedulable("two").by("Second")
    assert plugins[2].pre_filters == 1
    assert pre_filter(*plugins, Early("Last", unresolvable("never")))[0].status.plugin == "Last"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        pytest.param(error("broke"), "broke", id="error"),
        pytest.param(pending("later"), "later", id="pending-is-not-for-here"),
        pytest.param(Status(Code.WAIT, ("wait",)), "wait", id="wait-is-not-for-here"),
        pytest.param(ValueError("boom"), r"ValueError: boom \(test_filtering.py:\d+\)", id="raises"),
        pytest.param("yes", "returned 'yes', which is not a Status", id="nonsense"),
    ],
)
def test_anything_else_is_an_error_that_names_the_plugin(result: Any, text: str) -> None:
    later = Early("Later")
    outcome, _ = pre_filter(Early("Odd", result), later)
    assert outcome.status.code is Code.ERROR
    assert outcome.status.plugin == "Odd"
    assert re.fullmatch(f'running PreFilter plugin "Odd": {text}', outcome.status.message)
    assert later.pre_filters == 0


def test_a_rejection_by_prefilter_is_the_status_of_all_nodes() -> None:
    calls = Early("Asked")
    diagnosis = run(Early("First", unschedulable("pod is odd")), calls)
    assert calls.calls == []
    assert by_node(diagnosis) == {}
    assert diagnosis.status(0) == unschedulable("pod is odd").by("First")
    assert diagnosis.sentence() == "0/3 nodes are available: pod is odd."
    assert diagnosis.unschedulable_plugins == {"First"}
    assert diagnosis.rows_with(Code.UNSCHEDULABLE).tolist() == [True, True, True]


def narrow(*names: str) -> PreFilterResult:
    return PreFilterResult(frozenset(names))


def test_only_narrowed_nodes_are_evaluated() -> None:
    calls = Early("Asked", refuses="b")
    diagnosis = run(Early("One", narrow("b", "nobody")), calls)
    assert calls.calls == ["b"]
    assert by_node(diagnosis) == {"b": ("Unschedulable", "Asked", "Asked says no")}
    assert diagnosis.status(0) == unresolvable("node(s) didn't satisfy plugin(s) [One]")
    assert diagnosis.unschedulable_plugins == {"One", "Asked"}
    assert diagnosis.sentence() == "0/3 nodes are available: 1 Asked says no, 2 node(s) didn't satisfy plugin(s) [One]."


def test_several_that_narrow_are_intersected() -> None:
    outcome, _ = pre_filter(Early("Two", narrow("a", "b")), Early("One", narrow("b", "c")), Early("All"))
    assert outcome.names == {"b"}
    assert outcome.narrowed_by == {"One", "Two"}
    diagnosis = run(Early("Two", narrow("a", "b")), Early("One", narrow("b", "c")))
    assert diagnosis.status(0).message == "node(s) didn't satisfy plugin(s) [One Two]"


@pytest.mark.parametrize(
    ("plugins", "text"),
    [
        pytest.param([Early("One", narrow())], "node(s) didn't satisfy plugin One", id="one"),
        pytest.param(
            [Early("Two", narrow("a")), Early("One", narrow("b"))],
            "node(s) didn't satisfy plugin(s) [One Two] simultaneously",
            id="two",
        ),
    ],
)
def test_an_empty_intersection_is_a_rejection_by_all_narrowing_plugins(plugins: list[Early], text: str) -> None:
    later = Early("Later", refuses="a")
    diagnosis = run(*plugins, later)
    assert diagnosis.status(0) == unresolvable(text)
    assert later.pre_filters == 0
    assert diagnosis.unschedulable_plugins == {plugin.name for plugin in plugins}
    assert diagnosis.sentence() == f"0/3 nodes are available: {text}."


def test_narrowing_to_unknown_names() -> None:
    calls = Early("Asked")
    diagnosis = run(Early("One", narrow("x", "y")), calls)
    assert calls.calls == []
    assert diagnosis.sentence() == "0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [One]."


def test_a_narrowing_plugin_is_no_rejector_of_an_unresolvable_pod() -> None:
    diagnosis = run(Early("One", narrow("a")), Early("Never", unresolvable("never")))
    assert diagnosis.unschedulable_plugins == {"Never"}


def test_a_narrowing_plugin_is_a_rejector_of_an_unschedulable_pod() -> None:
    diagnosis = run(Early("One", narrow("a")), Early("NotNow", unschedulable("not now")))
    assert diagnosis.unschedulable_plugins == {"One", "NotNow"}


# Filter


def test_the_first_filter_that_fails_gives_the_reasons() -> None:
    first, second = Table("First", ("a", "too small")), Table("Second", ("a b", "too far"))
    assert by_node(run(first, second)) == {
        "a": ("Unschedulable", "First", "too small"),
        "b": ("Unschedulable", "Second", "too far"),
        "c": OK,
    }


def test_one_plugin_may_have_several_reasons_for_a_node() -> None:
    diagnosis = run(Table("Many", ("a b", "Insufficient cpu"), ("a", "Insufficient memory")))
    assert by_node(diagnosis)["a"] == ("Unschedulable", "Many", "Insufficient cpu, Insufficient memory")
    assert diagnosis.histogram() == {"Insufficient cpu": 2, "Insufficient memory": 1}


def test_a_node_is_unresolvable_if_one_of_its_reasons_is() -> None:
    for reasons in ((no("soft"), no("hard", resolvable=False)), (no("hard", resolvable=False), no("soft"))):
        diagnosis = run(Table("Many", *(("a", reason) for reason in reasons)))
        assert diagnosis.status(0).code is Code.UNRESOLVABLE
        assert set(diagnosis.status(0).reasons) == {"soft", "hard"}


def test_fit_reports_all_insufficient_resources() -> None:
    fit = make_plugin(NodeResourcesFit)
    pod = make_pod(requests={"cpu": "100", "memory": "100Gi"})
    assert by_node(run(fit, pod=pod))["a"] == (
        "UnschedulableAndUnresolvable",
        fit.name,
        "Insufficient cpu, Insufficient memory",
    )


def test_a_one_node_filter_is_called_for_remaining_nodes_only() -> None:
    calls = Early("Asked", refuses="c", with_status=unresolvable("not here", "nor there"))
    diagnosis = run(Table("First", ("a", "no")), calls)
    assert calls.calls == ["b", "c"]
    assert by_node(diagnosis)["c"] == ("UnschedulableAndUnresolvable", "Asked", "not here, nor there")


def test_many_nodes_with_one_reason_cost_one_reason() -> None:
    diagnosis = run(Early("Asked", refuses="a b c"))
    assert [reason.text for reason in diagnosis.verdicts.reasons] == ["Asked says no"]
    assert diagnosis.histogram() == {"Asked says no": 3}


def test_a_per_row_filter_gets_only_remaining_rows() -> None:
    walker, whole = PerRow("Walker", ("b", "walked into it")), Table("Whole")
    diagnosis = run(Table("First", ("a", "no")), walker, whole)
    assert walker.calls == [["b", "c"]]
    assert whole.calls == [["a", "b", "c"]]
    assert by_node(diagnosis)["b"] == ("Unschedulable", "Walker", "walked into it")
    assert by_node(diagnosis)["c"] == OK


def test_no_filter_runs_when_no_node_is_left() -> None:
    later = Table("Later")
    run(Table("First", ("a b c", "no")), later)
    assert later.calls == []


def test_a_pending_status_is_recorded() -> None:
    diagnosis = run(Table("Outside", ("a", no("not ready", code=Code.PENDING))), Table("Other", ("b", "no")))
    assert diagnosis.status(0).code is Code.PENDING
    assert diagnosis.pending_plugins == {"Outside"}
    assert diagnosis.unschedulable_plugins == {"Outside", "Other"}


SKIPPED = 'running "Odd" filter plugin: returned Skip, which is not allowed at Filter'


@pytest.mark.parametrize(
    ("plugin", "text"),
    [
        pytest.param(
            Table("Odd", ("a", no("no state", code=Code.ERROR))), 'running "Odd" filter plugin: no state', id="table"
        ),
        pytest.param(
            Early("Odd", refuses="a", with_status=error("broke")), 'running "Odd" filter plugin: broke', id="one"
        ),
        pytest.param(Early("Odd", refuses="a", with_status=SKIP), SKIPPED, id="skip"),
    ],
)
def test_an_error_names_the_plugin(plugin: Any, text: str) -> None:
    diagnosis = run(plugin)
    assert diagnosis.status(0).code is Code.ERROR
    assert diagnosis.status(0).message == text
    assert "Odd" not in diagnosis.unschedulable_plugins


class Nonsense:
    name = "Odd"

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Any:  # noqa: ARG002
        return self.answer(len(nodes))


def _raise(_: int) -> Any:
    raise KeyError("zone")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(lambda _: ["no"], "yielded 'no', which is not a Rejection", id="no-rejection"),
        pytest.param(
            lambda n: [Rejection(np.ones(n + 1, dtype=np.bool_), "x")],
            r"a mask of 3 booleans is needed, one for each node; got shape \(4,\) of bool",
            id="wrong-length",
        ),
        pytest.param(
            lambda n: [Rejection(np.ones(n, dtype=np.int64), "x")],  # type: ignore[arg-type]
            r"a mask of 3 booleans is needed, one for each node; got shape \(3,\) of int64",
            id="wrong-type",
        ),
        pytest.param(
            lambda n: [Rejection([True] * n, "x")],  # type: ignore[arg-type]
            "a mask of 3 booleans is needed, one for each node; got list",
            id="a-list",
        ),
        pytest.param(
            lambda n: [Rejection(np.ones(n, dtype=np.bool_), "x", code=Code.SKIP)],
            r"<Code.SKIP: 5> cannot reject a node",
            id="wrong-code",
        ),
        pytest.param(lambda _: 7, "filter_nodes yields Rejections; got int", id="not-iterable"),
        pytest.param(lambda _: None, "filter_nodes yields Rejections; got None", id="nothing"),
        pytest.param(
            lambda n: np.ones(n, dtype=np.bool_),
            r"filter_nodes yields Rejections; got shape \(3,\) of bool",
            id="a-mask-alone",
        ),
        pytest.param(_raise, r"KeyError: 'zone' \(test_filtering.py:\d+\)", id="raises"),
    ],
)
def test_an_invalid_filter_result_is_an_error_on_every_node(answer: Callable[[int], Any], text: str) -> None:
    diagnosis = run(Nonsense(answer))
    for row in range(3):
        assert diagnosis.status(row).code is Code.ERROR
        assert diagnosis.status(row).plugin == "Odd"
        assert re.fullmatch(f'running "Odd" filter plugin: {text}', diagnosis.status(row).message)


def test_filtering_one_row_does_not_evaluate_other_rows() -> None:
    calls = Early("Asked")
    runner, cycle = filtering(calls), make_cycle(make_pod(), cluster())
    diagnosis = runner.run_filters(cycle, PreFilterSummary(), only=np.array([1]))
    assert calls.calls == ["b"]
    assert [name for name, _ in diagnosis.by_node()] == ["b"]


# nominated pods

SLOTS: StateKey[list[int]] = StateKey("Slots", clone=list)


class Room:
    """Limits the pods of a node, and counts pods in its own state."""

    name = "Room"

    def __init__(self, room: int) -> None:
        self.room = room
        self.judged: list[int] = []

    def pre_filter(self, cycle: Cycle) -> None:
        cycle.put(SLOTS, [0])

    def add_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> None:
        assert info in node.pods
        cycle.get(SLOTS)[0] += 1

    def remove_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> None:
        assert info not in node.pods
        cycle.get(SLOTS)[0] -= 1

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        assert cycle.get(SLOTS)[0] in (0, len(node.pods))
        self.judged.append(len(node.pods))
        return unschedulable("full") if len(node.pods) >= self.room else None


def nominated_pods(**nodes: list[Pod]) -> FakeNominations:
    return FakeNominations({name: [PodInfo(pod) for pod in pods] for name, pods in nodes.items()})


@pytest.mark.parametrize(
    ("nominated_pod", "counted"),
    [
        pytest.param(make_pod("g", priority=5), True, id="equal-priority"),
        pytest.param(make_pod("g", priority=9), True, id="higher"),
        pytest.param(make_pod("g", priority=4), False, id="lower"),
        pytest.param(make_pod("pod", priority=9), False, id="the-pod-itself"),
    ],
)
def test_nominated_pods_count(nominated_pod: Pod, counted: bool) -> None:
    diagnosis = run(Room(1), pod=make_pod("pod", priority=5), nominations=nominated_pods(b=[nominated_pod]))
    expected = ("Unschedulable", "Room", "full") if counted else OK
    assert by_node(diagnosis) == {"a": OK, "b": expected, "c": OK}
    assert diagnosis.unschedulable_plugins == ({"Room"} if counted else set())


def test_a_node_must_fit_with_and_without_nominated_pods() -> None:
    room = Room(2)
    assert by_node(run(room, nominations=nominated_pods(b=[make_pod("g")])))["b"] == OK
    assert sorted(room.judged) == [0, 0, 0, 1]


class Crowded:
    """Rejects nodes by their own pods only, so that all may be evaluated at once."""

    name = "Crowded"

    def __init__(self, broken_on: str = "") -> None:
        self.broken_on = broken_on
        self.calls: list[list[str]] = []

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterable[Rejection]:  # noqa: ARG002
        self.calls.append(list(nodes.names))
        crowds = [list(nodes.columns.pods[row]) for row in nodes.rows.tolist()]
        if any(crowds) and self.broken_on in nodes.names:
            raise RuntimeError("cannot count")
        yield Rejection(np.array([len(crowd) == 1 for crowd in crowds], dtype=np.bool_), "crowded")
        yield Rejection(np.array([len(crowd) > 1 for crowd in crowds], dtype=np.bool_), "packed")


def test_all_nodes_with_nominated_pods_are_evaluated_at_once() -> None:
    crowded = Crowded()
    nominations = nominated_pods(c=[make_pod("g"), make_pod("h")], b=[make_pod("i")], gone=[make_pod("j")])
    diagnosis = run(crowded, nominations=nominations)
    assert by_node(diagnosis) == {
        "a": OK,
        "b": ("Unschedulable", "Crowded", "crowded"),
        "c": ("Unschedulable", "Crowded", "packed"),
    }
    assert crowded.calls == [["a", "b", "c"], ["c", "b"]]
    assert diagnosis.histogram() == {"crowded": 1, "packed": 1}


def test_after_an_error_each_node_is_evaluated_separately() -> None:
    crowded = Crowded(broken_on="c")
    diagnosis = run(crowded, nominations=nominated_pods(c=[make_pod("g")], b=[make_pod("h")]))
    assert by_node(diagnosis)["b"] == ("Unschedulable", "Crowded", "crowded")
    assert diagnosis.status(2).code is Code.ERROR
    assert crowded.calls == [["a", "b", "c"], ["c", "b"], ["c"], ["b"]]


def test_a_pod_that_needs_nominated_pods_does_not_fit() -> None:
    class WantsCompany(Room):
        def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
            return None if node.pods else unschedulable("lonely")

    diagnosis = run(WantsCompany(9), nominations=nominated_pods(b=[make_pod("g")]))
    assert by_node(diagnosis)["b"] == ("Unschedulable", "Room", "lonely")


def test_nominated_pods_of_unknown_or_skipped_nodes_do_not_matter() -> None:
    nominations = nominated_pods(gone=[make_pod("g")], b=[make_pod("h")])
    diagnosis = run(Early("One", narrow("a")), Room(1), nominations=nominations)
    assert by_node(diagnosis) == {"a": OK}


def test_the_plugin_that_rejects_with_nominated_pods_is_the_rejector() -> None:
    full = Room(1)
    after = Table("After", ("b", "no"))
    diagnosis = run(full, after, nominations=nominated_pods(b=[make_pod("g")]))
    assert by_node(diagnosis)["b"] == ("Unschedulable", "Room", "full")
    assert diagnosis.unschedulable_plugins == {"Room"}
    assert diagnosis.histogram() == {"full": 1}


def test_a_failing_add_pod_is_an_error() -> None:
    class Breaks(Room):
        def add_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> Any:  # noqa: ARG002
            return error("lost count")

    diagnosis = run(Breaks(9), nominations=nominated_pods(b=[make_pod("g")]))
    assert diagnosis.status(1) == error('running AddPod on PreFilter plugin "Room": lost count').by("Room")


def test_adding_and_removing_pods_on_a_fork() -> None:
    room = Room(1)
    runner, cycle = filtering(room), make_cycle(make_pod(), cluster())
    runner.pre_filter(cycle)
    trial: Cycle = cycle.clone()
    fork: NodeColumns = cycle.snapshot.nodes.fork([0])
    nominated_pod = PodInfo(make_pod("g"))
    assert runner.add_pod(trial, fork, nominated_pod) == SUCCESS
    assert runner.filter_fork(trial, fork) == unschedulable("full").by("Room")
    assert runner.remove_pod(trial, fork, nominated_pod) == SUCCESS
    assert runner.filter_fork(trial, fork) == SUCCESS
    assert cycle.get(SLOTS) == [0]


def test_add_pod_is_not_called_on_a_skipped_plugin() -> None:
    class Skips(Room):
        def pre_filter(self, cycle: Cycle) -> Any:  # noqa: ARG002
            return SKIP

    runner, cycle = filtering(Skips(0)), make_cycle(make_pod(), cluster())
    runner.pre_filter(cycle)
    fork = cycle.snapshot.nodes.fork([0])
    assert runner.add_pod(cycle, fork, PodInfo(make_pod("g"))) == SUCCESS
    assert runner.filter_fork(cycle, fork) == SUCCESS


def test_filtering_a_fork_counts_its_nominated_pods() -> None:
    runner = filtering(Room(1), nominations=nominated_pods(a=[make_pod("g")]))
    cycle = make_cycle(make_pod(), cluster())
    runner.pre_filter(cycle)
    assert runner.filter_fork(cycle, cycle.snapshot.nodes.fork([0])).message == "full"
    assert runner.filter_fork(cycle, cycle.snapshot.nodes.fork([1])) == SUCCESS


def test_an_add_pod_that_raises_is_an_error_too() -> None:
    class Raises(Room):
        def add_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> Any:  # noqa: ARG002
            raise KeyError("count")

    status = run(Raises(9), nominations=nominated_pods(b=[make_pod("g")])).status(1)
    assert status.code is Code.ERROR
    assert status.message.startswith(
        "running AddPod on PreFilter plugin \"Room\": KeyError: 'count' (test_filtering.py:"
    )
