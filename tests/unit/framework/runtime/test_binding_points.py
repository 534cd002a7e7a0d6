"""Reserve, Permit, PreBind, Bind, PostBind, and pods that wait at Permit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from bayplan.clock import ManualClock
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import BIND, PERMIT, POST_BIND, PRE_BIND, RESERVE, ExtensionPoint
from bayplan.framework.api.plugin import PermitWait, PreBindPreFlightResult
from bayplan.framework.api.status import SKIP, SUCCESS, Code, Status, error, pending, unresolvable, unschedulable
from bayplan.framework.runtime.binding_points import MAX_PERMIT_WAIT_S, BindingPoints
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.framework.runtime.waiting_pods import WaitingPodsMap
from bayplan.snapshot import PodInfo
from bayplan.telemetry.plugin_timings import PluginTimings
from support.builders.framework import make_cycle, make_pod

T = TypeVar("T")


class Says:
    """A plugin of every binding point with configured results, which records its calls."""

    def __init__(self, name: str, log: list[str], answer: Any = None, **answers: Any) -> None:
        self.name = name
        self.log = log
        self.answer = answer
        self.answers = answers

    def _say(self, what: str) -> Any:
        self.log.append(f"{what} {self.name}")
        answer = self.answers.get(what, self.answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def reserve(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return self._say("reserve")

    def unreserve(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return self._say("unreserve")

    def permit(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return self._say("permit")

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return self._say("preflight")

    async def pre_bind(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        await asyncio.sleep(0)
        return self._say("pre_bind")

    async def bind(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return self._say("bind")

    async def post_bind(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return self._say("post_bind")


def committing(point: ExtensionPoint, *plugins: Any) -> BindingPoints:
    return BindingPoints({point: plugins}, PluginCaller(ManualClock(), PluginTimings()))


def cycle() -> Cycle:
    return make_cycle(make_pod())


def awaited(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


async def side_by_side(awaitables: Sequence[Awaitable[Status]]) -> Sequence[Status]:
    return await asyncio.gather(*awaitables)


# Reserve


def test_reserve_runs_in_order_and_unreserve_in_reverse() -> None:
    log: list[str] = []
    points = committing(RESERVE, *(Says(name, log) for name in "AB"))
    assert points.reserve(cycle(), "n") == SUCCESS
    points.unreserve(cycle(), "n")
    assert log == ["reserve A", "reserve B", "unreserve B", "unreserve A"]


def test_after_a_failure_unreserve_runs_for_all_plugins() -> None:
    log: list[str] = []
    plugins = Says("A", log), Says("B", log, reserve=unschedulable("taken")), Says("C", log)
    status = committing(RESERVE, *plugins).reserve(cycle(), "n")
    assert status == unschedulable("taken").by("B")
    assert log == ["reserve A", "reserve B", "unreserve C", "unreserve B", "unreserve A"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(error("broke"), 'running Reserve plugin "A": broke', id="error"),
        pytest.param(
            SKIP, 'running Reserve plugin "A": returned Skip, which is not allowed here', id="skip-is-not-for-here"
        ),
        pytest.param(
            OSError("gone"), r'running Reserve plugin "A": OSError: gone \(test_binding_points.py:\d+\)', id="raises"
        ),
    ],
)
def test_a_failing_reserve_is_an_error(answer: Any, text: str) -> None:
    status = committing(RESERVE, Says("A", [], reserve=answer)).reserve(cycle(), "n")
    assert status.code is Code.ERROR
    assert status.plugin == "A"
    assert re.fullmatch(text, status.message)


def test_a_failing_unreserve_does_not_stop_the_rest() -> None:
    log: list[str] = []
    committing(RESERVE, Says("A", log), Says("B", log, unreserve=ValueError("x"))).unreserve(cycle(), "n")
    assert log == ["unreserve B", "unreserve A"]


# Permit


def test_waits_are_collected_and_bounded() -> None:
    log: list[str] = []
    plugins = Says("A", log, PermitWait(30.0)), Says("B", log), Says("C", log, PermitWait(1e9))
    outcome = committing(PERMIT, *plugins).permit(cycle(), "n")
    assert outcome.status == SUCCESS
    assert outcome.waits == {"A": 30.0, "C": MAX_PERMIT_WAIT_S}
    assert MAX_PERMIT_WAIT_S == 900


@pytest.mark.parametrize("answer", [unschedulable("no"), unresolvable("no"), pending("no")], ids=lambda s: s.code.label)
def test_a_rejection_ends_permit_and_waits_with_it(answer: Status) -> None:
    log: list[str] = []
    plugins = Says("A", log, PermitWait(30.0)), Says("B", log, answer), Says("C", log)
    outcome = committing(PERMIT, *plugins).permit(cycle(), "n")
    assert outcome.status == answer.by("B")
    assert outcome.waits == {}
    assert log == ["permit A", "permit B"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(error("broke"), 'running Permit plugin "A": broke', id="error"),
        pytest.param(
            Status(Code.WAIT),
            'running Permit plugin "A": returned Wait, which is not allowed here',
            id="wait-without-a-time",
        ),
        pytest.param("yes", "running Permit plugin \"A\": returned 'yes', which is not a Status", id="nonsense"),
    ],
)
def test_a_failing_permit_is_an_error(answer: Any, text: str) -> None:
    outcome = committing(PERMIT, Says("A", [], answer)).permit(cycle(), "n")
    assert outcome.status == error(text).by("A")


# PreBind

PARALLEL, ALONE = PreBindPreFlightResult(allow_parallel=True), PreBindPreFlightResult()


@pytest.mark.parametrize(
    ("answers", "groups", "skipped"),
    [
        pytest.param([PARALLEL, PARALLEL, PARALLEL], [["A", "B", "C"]], set(), id="together"),
        pytest.param([ALONE, ALONE, ALONE], [["A"], ["B"], ["C"]], set(), id="one-by-one"),
        pytest.param([PARALLEL, ALONE, PARALLEL], [["A"], ["B"], ["C"]], set(), id="one-alone-splits"),
        pytest.param([PARALLEL, PARALLEL, ALONE], [["A", "B"], ["C"]], set(), id="alone-at-the-end"),
        pytest.param([PARALLEL, SKIP, PARALLEL], [["A"], ["C"]], {"B"}, id="a-skipped-one-splits-too"),
        pytest.param([SKIP, SKIP, SKIP], [], {"A", "B", "C"}, id="nothing-to-do"),
        pytest.param([None, SUCCESS, PARALLEL], [["A"], ["B"], ["C"]], set(), id="plain-success-means-alone"),
    ],
)
def test_groups_of_prebind(answers: list[Any], groups: list[list[str]], skipped: set[str]) -> None:
    plugins = [Says(name, [], preflight=answer) for name, answer in zip("ABC", answers, strict=True)]
    about = cycle()
    plan = committing(PRE_BIND, *plugins).plan_pre_bind(about, "n")
    assert [[plugin.name for plugin in group] for group in plan.groups] == groups
    assert about.skip_pre_bind == skipped
    assert plan.has_work is bool(groups)
    assert plan.status == SUCCESS


def test_a_plugin_without_preflight_always_has_work() -> None:
    class Plain:
        name = "Plain"

        async def pre_bind(self, cycle: Cycle, node_name: str) -> None: ...

    plan = committing(PRE_BIND, Plain()).plan_pre_bind(cycle(), "n")
    assert [[plugin.name for plugin in group] for group in plan.groups] == [["Plain"]]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(error("broke"), 'running PreBindPreFlight "A": broke', id="error"),
        pytest.param(unschedulable("no"), 'running PreBindPreFlight "A": no', id="a-rejection-is-not-for-here"),
        pytest.param(
            OSError("x"), r'running PreBindPreFlight "A": OSError: x \(test_binding_points.py:\d+\)', id="raises"
        ),
    ],
)
def test_preflight_that_fails(answer: Any, text: str) -> None:
    plan = committing(PRE_BIND, Says("A", [], preflight=answer)).plan_pre_bind(cycle(), "n")
    assert plan.status.code is Code.ERROR
    assert re.fullmatch(text, plan.status.message)


def test_prebind_runs_group_by_group_and_stops_at_a_failure() -> None:
    log: list[str] = []
    plugins = [
        Says("A", log, preflight=PARALLEL),
        Says("B", log, preflight=PARALLEL, pre_bind=unschedulable("volume is gone")),
        Says("C", log, preflight=ALONE),
    ]
    points, about = committing(PRE_BIND, *plugins), cycle()
    plan = points.plan_pre_bind(about, "n")
    log.clear()
    status = awaited(points.pre_bind(about, "n", plan, side_by_side))
    assert status == unschedulable("volume is gone").by("B")
    assert log == ["pre_bind A", "pre_bind B"]


def test_a_failing_prebind_names_the_step() -> None:
    points, about = committing(PRE_BIND, Says("A", [], pre_bind=TimeoutError("slow"))), cycle()
    status = awaited(points.pre_bind(about, "n", points.plan_pre_bind(about, "n"), side_by_side))
    assert status.code is Code.ERROR
    assert re.fullmatch(
        r'running PreBind plugin "A": TimeoutError: slow \(test_binding_points.py:\d+\)', status.message
    )


def test_prebind_with_nothing_to_do_succeeds() -> None:
    points, about = committing(PRE_BIND), cycle()
    assert awaited(points.pre_bind(about, "n", points.plan_pre_bind(about, "n"), side_by_side)) == SUCCESS


# Bind


@pytest.mark.parametrize(
    ("answers", "status", "calls"),
    [
        pytest.param([None, None], SUCCESS, 1, id="first-decides"),
        pytest.param([SKIP, None], SUCCESS, 2, id="skip-goes-on"),
        pytest.param([SKIP, SKIP], Status(Code.SKIP, plugin="B"), 2, id="all-skip-is-a-failure"),
        pytest.param([SKIP, unschedulable("no")], unschedulable("no").by("B"), 2, id="rejected"),
        pytest.param([error("broke"), None], error('running Bind plugin "A": broke').by("A"), 1, id="error"),
        pytest.param([], Status(Code.SKIP), 0, id="nobody"),
    ],
)
def test_the_first_that_does_not_skip_binds(answers: list[Any], status: Status, calls: int) -> None:
    log: list[str] = []
    plugins = [Says(name, log, answer) for name, answer in zip("AB", answers, strict=False)]
    assert awaited(committing(BIND, *plugins).bind(cycle(), "n")) == status
    assert len(log) == calls


def test_a_failing_postbind_has_no_effect() -> None:
    log: list[str] = []
    points = committing(POST_BIND, Says("A", log, ValueError("x")), Says("B", log))
    awaited(points.post_bind(cycle(), "n"))
    assert log == ["post_bind A", "post_bind B"]


# waiting pods


def test_a_pod_proceeds_when_all_plugins_allow_it() -> None:
    settled: list[Status] = []
    pod = make_pod()
    waiting = WaitingPodsMap().add(pod, {"A": 10.0, "B": 20.0}, now_s=100.0)
    waiting.on_outcome = settled.append
    assert waiting.pending_plugins() == ["A", "B"]
    waiting.allow("A")
    assert (waiting.outcome, settled) == (None, [])
    waiting.allow("nobody")
    waiting.allow("B")
    waiting.allow("B")
    assert settled == [SUCCESS]


def test_the_first_outcome_wins() -> None:
    waiting = WaitingPodsMap().add(make_pod(), {"A": 10.0}, now_s=0.0)
    waiting.reject("A", "no")
    waiting.allow("A")
    waiting.preempt("B", "preempted")
    assert waiting.outcome == unschedulable("no").by("A")


def test_being_preempted_is_an_error() -> None:
    waiting = WaitingPodsMap().add(make_pod(), {"A": 10.0}, now_s=0.0)
    waiting.preempt("DefaultPreemption", "preempted by DefaultPreemption")
    assert waiting.outcome == error("preempted by DefaultPreemption").by("DefaultPreemption")


@pytest.mark.parametrize(
    ("wait_s", "text"), [(300.0, "5m0s"), (1.5, "1.5s"), (0.25, "250ms"), (900.0, "15m0s")], ids=str
)
def test_a_permit_timeout_rejects_the_pod(wait_s: float, text: str) -> None:
    waiting = WaitingPodsMap().add(make_pod(), {"A": wait_s, "Slow": 1e6}, now_s=50.0)
    waiting.expire(50.0 + wait_s - 0.001)
    assert waiting.outcome is None
    waiting.expire(50.0 + wait_s)
    assert waiting.outcome == unschedulable(f"rejected due to timeout after waiting {text} at plugin A").by("A")


def test_waiting_pods_by_uid() -> None:
    waiting = WaitingPodsMap()
    assert waiting.next_deadline_s() is None
    one, two = make_pod("one"), make_pod("two")
    waiting.add(one, {"A": 10.0}, now_s=0.0)
    waiting.add(two, {"A": 5.0}, now_s=1.0)
    assert waiting.next_deadline_s() == 6.0
    found = waiting.get(one.uid)
    assert found is not None
    assert found.pod is one
    assert [each.pod for each in waiting.all()] == [one, two]
    waiting.remove(two.uid)
    waiting.remove(two.uid)
    assert waiting.get(two.uid) is None
    assert waiting.next_deadline_s() == 10.0


# nominations


def test_a_pod_waits_for_one_node_at_a_time() -> None:
    nominator = Nominator()
    one, two = PodInfo(make_pod("one")), PodInfo(make_pod("two"))
    nominator.nominate(one, "a")
    nominator.nominate(two, "a")
    assert list(nominator.on_node("a")) == [one, two]
    nominator.nominate(one, "b")
    assert (list(nominator.on_node("a")), list(nominator.on_node("b"))) == ([two], [one])
    assert sorted(nominator.nodes()) == ["a", "b"]
    assert nominator.node_of(one.uid) == "b"
    nominator.nominate(one, "")
    nominator.delete_nomination(two.uid)
    nominator.delete_nomination("nobody")
    assert list(nominator.nodes()) == []
    assert nominator.node_of(one.uid) is None
    assert list(nominator.on_node("a")) == []
