"""The steps of the dry run: importance, budgets, victims, and the end of the search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.status import Code, Status, error, unschedulable
from bayplan.framework.preemption.dry_run import DryRun, PreemptionSearchResult, candidate_count, resolvable_rows
from bayplan.framework.preemption.victims import (
    CompiledBudget,
    Victims,
    compile_budgets,
    more_important,
    split_by_budget_violation,
)
from bayplan.framework.runtime.filtering import FilterPoints
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.objects.core import Pod
from bayplan.objects.meta import LabelSelector, LabelSelectorRequirement
from bayplan.objects.workloads import PodDisruptionBudget
from bayplan.plugins.node_resources.fit import NodeResourcesFit
from bayplan.snapshot import NodeInfo, NodeTable, PodInfo, Snapshot
from bayplan.telemetry.plugin_timings import PluginTimings
from support.builders.framework import FakeNominations, make_cycle, make_filtering, make_plugin, make_pod, make_snapshot
from support.builders.preemption import NOW, app_selector, budget, high_priority_pod, node, nodes_with_pods, running_pod


def dry_run(
    pod: Pod, snapshot: Snapshot, *plugins: Any, budgets: Sequence[PodDisruptionBudget] = (), filters: Any = None
) -> DryRun:
    """A dry run after PreFilter, with NodeResourcesFit unless other plugins are given."""
    filtering = filters or make_filtering(*(make_plugin(plugin) for plugin in plugins or (NodeResourcesFit,)))
    cycle = make_cycle(pod, snapshot)
    filtering.pre_filter(cycle)
    return DryRun(cycle, filtering, compile_budgets(budgets), NOW)


def names(found: Victims | Status) -> list[str]:
    assert isinstance(found, Victims), found
    return [pod.name for pod in found.pods]


# importance


@pytest.mark.parametrize(
    ("one", "other", "is_more"),
    [
        pytest.param(running_pod("x", priority=2), running_pod("y", priority=1), True, id="higher priority"),
        pytest.param(
            running_pod("x", priority=1), running_pod("y", priority=2, started=0), False, id="lower priority, older"
        ),
        pytest.param(running_pod("x", priority=None), running_pod("y", priority=-1), True, id="no priority is zero"),
        pytest.param(running_pod("x", started=1), running_pod("y", started=2), True, id="started earlier"),
        pytest.param(running_pod("x", started=1), running_pod("y", started=1), False, id="started together"),
        pytest.param(running_pod("x", started=1), running_pod("y"), True, id="started against not yet"),
        pytest.param(running_pod("x"), running_pod("y", started=1), False, id="not yet against started"),
        pytest.param(running_pod("x"), running_pod("y"), True, id="neither yet: the one asked about"),
        pytest.param(running_pod("y"), running_pod("x"), True, id="neither yet: the other way round, too"),
        pytest.param(
            running_pod("x"), running_pod("y", started=7200), True, id="not yet is now, before a start to come"
        ),
        pytest.param(running_pod("x", started=7200), running_pod("y"), False, id="a start to come is after now"),
    ],
)
def test_importance(one: Pod, other: Pod, is_more: bool) -> None:
    assert more_important(NOW)(PodInfo(one), PodInfo(other)) is is_more


# budgets


@pytest.mark.parametrize(
    "selector",
    [
        pytest.param(None, id="none"),
        pytest.param(LabelSelector(), id="empty"),
        pytest.param(
            LabelSelector(match_expressions=(LabelSelectorRequirement("app", "Near", ("web",)),)), id="malformed"
        ),
    ],
)
def test_budgets_that_cover_no_pod(selector: LabelSelector | None) -> None:
    assert compile_budgets([budget(selector=selector)]) == ()


def labelled(name: str, namespace: str = "default", **labels: str) -> PodInfo:
    return PodInfo(make_pod(name, namespace=namespace, labels=labels))


@pytest.mark.parametrize(
    ("pods", "budgets", "violating"),
    [
        pytest.param([labelled("x", app="web")], [], [], id="no budget"),
        pytest.param([labelled("x", app="web")], [budget(selector=app_selector("web"))], ["x"], id="nothing allowed"),
        pytest.param(
            [labelled("x", app="web"), labelled("y", app="web")],
            [budget(selector=app_selector("web"), allowed=1)],
            ["y"],
            id="the first takes what is allowed",
        ),
        pytest.param([labelled("x", app="db")], [budget(selector=app_selector("web"))], [], id="another app"),
        pytest.param(
            [labelled("x", "other", app="web")], [budget(selector=app_selector("web"))], [], id="another namespace"
        ),
        pytest.param(
            [labelled("x")],
            [budget(selector=LabelSelector(match_expressions=(LabelSelectorRequirement("app", "DoesNotExist"),)))],
            [],
            id="a pod without labels is covered by none",
        ),
        pytest.param(
            [labelled("x", app="web"), labelled("y", app="web")],
            [budget(selector=app_selector("web"), allowed=1, disrupted=["x"])],
            [],
            id="one that was counted already takes nothing",
        ),
        pytest.param(
            [labelled("x", app="web", tier="1"), labelled("y", tier="1")],
            [budget("p", selector=app_selector("web")), budget("q", selector=LabelSelector({"tier": "1"}), allowed=1)],
            ["x", "y"],
            id="every budget is charged, also after a violation",
        ),
        pytest.param(
            [labelled("x", app="web"), labelled("y", app="db"), labelled("z", app="web")],
            [budget(selector=app_selector("web"))],
            ["x", "z"],
            id="both groups keep their order",
        ),
    ],
)
def test_split_by_budget(pods: list[PodInfo], budgets: list[PodDisruptionBudget], violating: list[str]) -> None:
    against, others = split_by_budget_violation(pods, compile_budgets(budgets))
    assert [info.pod.name for info in against] == violating
    assert [info.pod.name for info in others] == [info.pod.name for info in pods if info.pod.name not in violating]


def test_a_budget_is_compiled_once() -> None:
    (compiled,) = compile_budgets([budget(selector=app_selector("web"), allowed=3, disrupted=["x"])])
    assert (compiled.namespace, compiled.allowed, compiled.disrupted) == ("default", 3, {"x"})
    assert isinstance(compiled, CompiledBudget)


# victims on one node


@pytest.mark.parametrize(
    ("pods", "budgets", "victims", "violations"),
    [
        pytest.param([running_pod("x", cpu="3")], [], ["x"], 0, id="the only one"),
        pytest.param(
            [running_pod("low", priority=1), running_pod("high", priority=5), running_pod("more", priority=9, cpu="2")],
            [],
            ["high", "low"],
            0,
            id="the least important are evicted, listed by importance",
        ),
        pytest.param(
            [running_pod("young", started=9, cpu="2"), running_pod("old", started=1, cpu="2")],
            [],
            ["young"],
            0,
            id="the older stays",
        ),
        pytest.param(
            [running_pod("x", cpu="2", started=1), running_pod("y", cpu="2", started=1)],
            [],
            ["y"],
            0,
            id="equals: the later listed goes",
        ),
        pytest.param(
            [running_pod("x", cpu="2"), running_pod("y", cpu="2")],
            [],
            ["x"],
            0,
            id="not started: the earlier listed goes",
        ),
        pytest.param(
            [running_pod("big", priority=5, cpu="3"), running_pod("small", priority=1)],
            [],
            ["big"],
            0,
            id="who has no room goes though more important",
        ),
        pytest.param(
            [running_pod("strong", priority=100, cpu="2"), running_pod("x", cpu="2")],
            [],
            ["x"],
            0,
            id="equal-priority pods are not evicted",
        ),
        pytest.param(
            [running_pod("x", cpu="2", terminating=True), running_pod("y", cpu="2", started=1)],
            [],
            ["x"],
            0,
            id="who is terminating is one of them",
        ),
        pytest.param(
            [running_pod("kept", priority=1, cpu="2", labels={"app": "web"}), running_pod("x", priority=5, cpu="2")],
            [budget(selector=app_selector("web"))],
            ["x"],
            0,
            id="the covered one is let stay first",
        ),
        pytest.param(
            [running_pod("x", cpu="3", labels={"app": "web"})],
            [budget(selector=app_selector("web"))],
            ["x"],
            1,
            id="a violation is counted",
        ),
        pytest.param(
            [running_pod("covered", priority=1, cpu="3", labels={"app": "web"}), running_pod("free", priority=5)],
            [budget(selector=app_selector("web"))],
            ["covered"],
            1,
            id="only victims are counted",
        ),
        pytest.param(
            [
                running_pod("covered", priority=1, cpu="3", labels={"app": "web"}),
                running_pod("free", priority=5, cpu="3"),
            ],
            [budget(selector=app_selector("web"))],
            ["free", "covered"],
            1,
            id="both groups together are listed by importance",
        ),
    ],
)
def test_victims_on_a_node(
    pods: list[Pod], budgets: list[PodDisruptionBudget], victims: list[str], violations: int
) -> None:
    found = dry_run(high_priority_pod(), make_snapshot([node()], pods), budgets=budgets).victims_on(0)
    assert names(found) == victims
    assert isinstance(found, Victims)
    assert found.violations == violations


def test_equal_pods_are_evicted_in_the_order_of_go() -> None:
    pods = [running_pod(f"{number}", cpu="100m", priority=number % 2, started=0) for number in range(16)]
    found = dry_run(high_priority_pod("1600m"), make_snapshot([node(cpu="1600m")], pods)).victims_on(0)
    assert names(found) == ["9", "1", "15", "3", "13", "5", "11", "7", "8", "0", "10", "6", "12", "4", "14", "2"]


@pytest.mark.parametrize(
    ("pod", "pods", "status"),
    [
        pytest.param(
            high_priority_pod(priority=0),
            [running_pod("x")],
            Status(Code.UNRESOLVABLE, ["No preemption victims found for incoming pod"]),
            id="no lower-priority pod",
        ),
        pytest.param(
            high_priority_pod("4"),
            [running_pod("strong", priority=200), running_pod("x")],
            Status(Code.UNSCHEDULABLE, ["Insufficient cpu"], plugin="NodeResourcesFit"),
            id="not even without all weaker ones",
        ),
    ],
)
def test_nodes_that_do_not_help(pod: Pod, pods: list[Pod], status: Status) -> None:
    assert dry_run(pod, make_snapshot([node()], pods)).victims_on(0) == status


def test_nominated_pods_of_the_node_count() -> None:
    nominated = PodInfo(make_pod("guest", requests={"cpu": "2"}, priority=100))
    plugin = make_plugin(NodeResourcesFit)
    caller = PluginCaller(ManualClock(), PluginTimings())
    filters = FilterPoints([plugin], [plugin], caller, FakeNominations({"a": [nominated]}))
    pods = [running_pod("x", cpu="2", started=1), running_pod("y", cpu="2", started=2)]
    found = dry_run(high_priority_pod(), make_snapshot([node()], pods), filters=filters).victims_on(0)
    assert names(found) == ["x", "y"]


class Brittle:
    """A plugin with pod state that fails when a pod is added or removed."""

    name = "Brittle"
    seen: StateKey[set[str]] = StateKey("Brittle", clone=set)

    def __init__(self, *, breaks_on: str = "", of: str = "") -> None:
        self._breaks_on, self._of = breaks_on, of

    def pre_filter(self, cycle: Cycle) -> None:
        cycle.put(self.seen, set())

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
        return unschedulable("crowded") if "x" in {info.pod.name for info in node.pods} else None

    def add_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> Status | None:  # noqa: ARG002
        return error("no way back") if (self._breaks_on, self._of) == ("add", info.pod.name) else None

    def remove_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> Status | None:  # noqa: ARG002
        evicted = cycle.get(self.seen)
        step = "remove again" if info.pod.name in evicted else "remove"
        evicted.add(info.pod.name)
        return error("stuck") if (self._breaks_on, self._of) == (step, info.pod.name) else None


@pytest.mark.parametrize(
    ("breaks_on", "of", "text"),
    [
        pytest.param("remove", "x", 'running RemovePod on PreFilter plugin "Brittle": stuck', id="taken off"),
        pytest.param("add", "x", 'running AddPod on PreFilter plugin "Brittle": no way back', id="put back"),
        pytest.param(
            "remove again", "x", 'running RemovePod on PreFilter plugin "Brittle": stuck', id="taken off again"
        ),
    ],
)
@pytest.mark.parametrize("covered", [False, True], ids=["free", "covered by a budget"])
def test_a_failing_plugin_excludes_the_node(breaks_on: str, of: str, text: str, covered: bool) -> None:
    snapshot = make_snapshot([node()], [running_pod("x", labels={"app": "web"})])
    budgets = [budget(selector=app_selector("web"))] if covered else []
    found = dry_run(high_priority_pod("1"), snapshot, Brittle(breaks_on=breaks_on, of=of), budgets=budgets).victims_on(
        0
    )
    assert isinstance(found, Status)
    assert (found.code, found.message) == (Code.ERROR, text)


def test_a_dry_run_changes_no_cycle_state() -> None:
    snapshot = make_snapshot([node()], [running_pod("x"), running_pod("y")])
    filtering = make_filtering(Brittle())
    cycle = make_cycle(high_priority_pod("1"), snapshot)
    filtering.pre_filter(cycle)
    assert names(DryRun(cycle, filtering, (), NOW).victims_on(0)) == ["x"]
    assert cycle.get(Brittle.seen) == set()
    assert [info.pod.name for info in snapshot.nodes.pods[0]] == ["x", "y"]


class Forgetful:
    """A filter that accepts the node at the second call: then no victim is needed."""

    name = "Forgetful"

    def filter(self, cycle: Cycle, node: NodeInfo) -> None:  # noqa: ARG002
        return None


def test_a_node_without_victims_is_an_error() -> None:
    found = dry_run(high_priority_pod(), make_snapshot([node()], [running_pod("x")]), Forgetful()).victims_on(0)
    assert found == error('expected at least one victim pod on node "a"')


# the search


@pytest.mark.parametrize(
    ("max_candidates", "offset", "evaluated"),
    [
        pytest.param(4, 0, ["a", "b", "c", "d"], id="all"),
        pytest.param(2, 0, ["a", "b"], id="enough"),
        pytest.param(2, 3, ["d", "a"], id="round the end"),
        pytest.param(1, 2, ["c"], id="one is enough"),
        pytest.param(0, 0, [], id="none wanted: none found, all looked at"),
    ],
)
def test_the_search_stops(max_candidates: int, offset: int, evaluated: list[str]) -> None:
    snapshot = nodes_with_pods(*(running_pod(f"x{letter}", node=letter, cpu="2") for letter in "abcd"))
    found = dry_run(high_priority_pod(), snapshot).search([0, 1, 2, 3], max_candidates=max_candidates, offset=offset)
    assert list(found.candidates) == evaluated
    assert found.statuses == {}


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param("-" * 100 + "f" * 100, id="late, then all"),
        pytest.param("-" * 8 + "f" + "-" * 80 + "f" + "-" * 110, id="few"),
        pytest.param("w" * 90 + "-" * 30 + "f" * 20 + "w" * 60, id="many that violate a budget come first"),
        pytest.param("f-w-" * 50, id="mixed"),
        pytest.param("w" * 200, id="none that violates nothing"),
        pytest.param("-" * 200, id="none at all"),
    ],
)
@pytest.mark.parametrize(("max_candidates", "offset"), [(1, 0), (20, 0), (20, 150), (150, 7)])
def test_a_long_search_ends_where_it_would_row_by_row(pattern: str, max_candidates: int, offset: int) -> None:
    many = [node(f"n{number}", cpu="2") for number in range(200)]
    loads = [
        running_pod(f"x{number}", node=f"n{number}", cpu="2", labels={"app": kind}, priority=500 if kind == "-" else 0)
        for number, kind in enumerate(pattern)
    ]
    search = dry_run(high_priority_pod(), make_snapshot(many, loads), budgets=[budget(selector=app_selector("w"))])
    found = search.search(range(200), max_candidates=max_candidates, offset=offset)
    rows = [*range(offset, 200), *range(offset)]
    seen = "".join(pattern[row] for row in rows)
    enough = (end for end in range(1, 201) if "f" in seen[:end] and end - seen[:end].count("-") >= max_candidates)
    evaluated = rows[: next(enough, 200)]
    free, against = ([f"n{row}" for row in evaluated if pattern[row] == kind] for kind in "fw")
    assert list(found.candidates) == free[:max_candidates] + against[:max_candidates]
    assert list(found.statuses) == [row for row in evaluated if pattern[row] == "-"]


class Tally:
    """A filter that counts its calls."""

    name = "Tally"

    def __init__(self) -> None:
        self.calls = 0

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:  # noqa: ARG002
        self.calls += 1
        yield Rejection(nodes.pod_count > 3, "crowded")


def test_rows_are_tried_at_once() -> None:
    many = [node(f"n{number}") for number in range(300)]
    loads = [running_pod(f"x{number}-{each}", node=f"n{number}") for number in range(300) for each in range(5)]
    tally = Tally()
    found = dry_run(high_priority_pod(), make_snapshot(many, loads), tally).search(
        range(300), max_candidates=300, offset=7
    )
    assert {name: len(victims.pods) for name, victims in found.candidates.items()} == {each.name: 2 for each in many}
    assert tally.calls == 1 + 5, "once without all weaker pods, and once a round"


def test_equal_pods_are_evicted_in_the_same_order_in_a_batch() -> None:
    pods = [running_pod(f"{number}", cpu="100m", priority=number % 2, started=0) for number in range(16)]
    search = dry_run(high_priority_pod("1600m"), make_snapshot([node(cpu="1600m")], pods))
    assert search.search([0], max_candidates=1, offset=0).candidates == {"a": search.victims_on(0)}


@pytest.mark.parametrize(
    ("apps", "max_candidates", "candidates"),
    [
        pytest.param(
            "wwf", 2, ["c", "a", "b"], id="continues until one without violations, which is then listed first"
        ),
        pytest.param("wwwf", 2, ["d", "a", "b"], id="keeps no more violating ones than wanted"),
        pytest.param("wfw", 2, ["b", "a"], id="both kinds count"),
        pytest.param("www", 2, ["a", "b"], id="only violating ones: all are looked at"),
    ],
)
def test_a_search_needs_one_candidate_without_violations(apps: str, max_candidates: int, candidates: list[str]) -> None:
    loads = [
        running_pod(f"x{letter}", node=letter, cpu="2", labels={"app": kind})
        for letter, kind in zip("abcd", apps, strict=False)
    ]
    search = dry_run(high_priority_pod(), nodes_with_pods(*loads), budgets=[budget(selector=app_selector("w"))])
    found = search.search(range(len(apps)), max_candidates=max_candidates, offset=0)
    assert list(found.candidates) == candidates


def test_the_message_counts_nodes_that_do_not_help_and_nodes_not_evaluated() -> None:
    snapshot = nodes_with_pods(
        running_pod("x", priority=500, cpu="2"), None, running_pod("z", node="c", priority=500, cpu="2")
    )
    found = dry_run(high_priority_pod(), snapshot).search([0, 2], max_candidates=2, offset=0)
    assert found.candidates == {}
    assert found.errors == ""
    assert found.sentence(snapshot.nodes.names) == (
        "0/3 nodes are available: 1 Preemption is not helpful for scheduling, "
        "2 No preemption victims found for incoming pod."
    )


@pytest.mark.parametrize(
    ("statuses", "faults"),
    [
        pytest.param([], "", id="none"),
        pytest.param([unschedulable("full")], "", id="no error"),
        pytest.param([error("boom"), unschedulable("full")], "boom", id="one"),
        pytest.param([error("boom"), error("bang")], "[boom, bang]", id="several"),
        pytest.param([error("boom"), error("boom")], "boom", id="each text once"),
    ],
)
def test_errors_as_one_text(statuses: list[Status], faults: str) -> None:
    assert PreemptionSearchResult(statuses=dict(enumerate(statuses))).errors == faults


@pytest.mark.parametrize(
    ("nodes", "percentage", "absolute", "max_candidates"),
    [
        pytest.param(5000, 10, 100, 500, id="a share"),
        pytest.param(500, 10, 100, 100, id="at least so many"),
        pytest.param(7, 10, 100, 7, id="never more than nodes"),
        pytest.param(19, 10, 0, 1, id="rounded down"),
        pytest.param(9, 10, 0, 0, id="down to none"),
    ],
)
def test_number_of_candidates(nodes: int, percentage: int, absolute: int, max_candidates: int) -> None:
    assert candidate_count(nodes, percentage=percentage, absolute=absolute) == max_candidates


def test_resolvable_rows_are_in_visiting_order() -> None:
    snapshot = nodes_with_pods(None, None, None, None)
    snapshot.order = snapshot.order[::-1].copy()
    diagnosis = Diagnosis(snapshot.nodes.names)
    for row, code in enumerate((Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.PENDING, Code.UNSCHEDULABLE)):
        diagnosis.override(row, Status(code))
    assert resolvable_rows(diagnosis, snapshot) == [3, 0]


def test_nodes_without_a_status_help_if_the_pod_was_rejected_as_a_whole() -> None:
    snapshot = nodes_with_pods(None, None, None)
    diagnosis = Diagnosis(snapshot.nodes.names)
    assert resolvable_rows(diagnosis, snapshot) == []
    diagnosis.absent = unschedulable("not now")
    diagnosis.override(1, Status(Code.UNRESOLVABLE))
    assert resolvable_rows(diagnosis, snapshot) == [0, 2]
