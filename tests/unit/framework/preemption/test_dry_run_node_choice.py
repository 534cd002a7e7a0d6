"""After a dry run: extenders, the choice of a node, and intents."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bayplan.errors import BayplanError
from bayplan.framework.api.preemption_extender import NamedVictims
from bayplan.framework.api.status import Status, error
from bayplan.framework.preemption.dry_run import (
    is_terminating_by_preemption,
    nominations_to_clear,
    pick_one_node,
    victim_evictions,
)
from bayplan.framework.preemption.extenders import run_extenders
from bayplan.framework.preemption.victims import Victims
from bayplan.objects.core import Pod
from bayplan.objects.meta import Condition
from bayplan.snapshot import PodInfo
from support.builders.framework import make_pod, replace_fields
from support.builders.preemption import NOW, high_priority_pod, nodes_with_pods, running_pod

# choice of a node


def group(*pods: Pod, violations: int = 0) -> Victims:
    return Victims(pods, violations)


@pytest.mark.parametrize(
    ("a", "b", "best"),
    [
        pytest.param(
            group(running_pod("x", priority=1), violations=1),
            group(running_pod("y", priority=9), running_pod("z", priority=9)),
            "b",
            id="1 fewest violations, whatever else",
        ),
        pytest.param(
            group(running_pod("x", priority=9)),
            group(running_pod("y", priority=8), running_pod("z", priority=8)),
            "b",
            id="2 lowest priority of the first victim",
        ),
        pytest.param(
            group(running_pod("x", priority=9), running_pod("w", priority=5)),
            group(running_pod("y", priority=9), running_pod("z", priority=4)),
            "b",
            id="3 smallest sum",
        ),
        pytest.param(
            group(running_pod("x", priority=-9), running_pod("w", priority=-9)),
            group(running_pod("y", priority=-9)),
            "b",
            id="3 negative priorities do not make more victims cheaper",
        ),
        pytest.param(
            group(running_pod("x", priority=-(2**31)), running_pod("w", priority=-(2**31))),
            group(running_pod("y", priority=-(2**31))),
            "b",
            id="4 fewest victims",
        ),
        pytest.param(
            group(running_pod("x", started=5), running_pod("w", started=9)),
            group(running_pod("y", started=6), running_pod("z", started=6)),
            "b",
            id="5 latest earliest start",
        ),
        pytest.param(
            group(running_pod("x", priority=2, started=5), running_pod("w", priority=1, started=9)),
            group(running_pod("y", priority=2, started=6), running_pod("z", priority=1, started=1)),
            "b",
            id="5 only those of the highest priority count",
        ),
        pytest.param(group(running_pod("x", started=5)), group(running_pod("y")), "b", id="5 not started is now"),
        pytest.param(
            group(running_pod("x", started=5, terminating=True)),
            group(running_pod("y", started=4)),
            "a",
            id="5 terminating ones count",
        ),
        pytest.param(
            group(running_pod("x", started=5)), group(running_pod("y", started=5)), "a", id="6 the first in order"
        ),
    ],
)
def test_the_cheapest_node(a: Victims, b: Victims, best: str) -> None:
    snapshot = nodes_with_pods(None, None)
    assert pick_one_node({"b": b, "a": a}, snapshot, NOW) == best
    if best == "a" or a != b:
        assert pick_one_node({"a": a, "b": b}, snapshot, NOW) == best


def test_the_first_of_equal_nodes_in_visiting_order_is_chosen() -> None:
    snapshot = nodes_with_pods(None, None, None)
    snapshot.order = snapshot.order[::-1].copy()
    same = group(running_pod("x", started=1))
    assert pick_one_node({"a": same, "b": same}, snapshot, NOW) == "b"


# intents


def condition_of(status: str = "True", reason: str = "PreemptionByScheduler", message: str = "") -> Condition:
    return Condition(type="DisruptionTarget", status=status, reason=reason, message=message)


def test_only_running_victims_are_evicted_and_the_last_is_marked() -> None:
    victims = group(
        running_pod("x"),
        running_pod("gone", terminating=True),
        running_pod("y"),
        running_pod("leaving", terminating=True),
    )
    intents = victim_evictions(high_priority_pod(), "a", victims, "DefaultPreemption")
    assert [(intent.victim.name, intent.is_last) for intent in intents] == [("x", False), ("y", True)]
    assert (
        victim_evictions(high_priority_pod(), "a", group(running_pod("gone", terminating=True)), "DefaultPreemption")
        == ()
    )


def test_texts_of_an_eviction() -> None:
    (intent,) = victim_evictions(
        high_priority_pod(scheduler_name="tight"), "a", group(running_pod("x")), "DefaultPreemption"
    )
    condition = intent.condition
    assert (condition.type, condition.status, condition.reason) == ("DisruptionTarget", "True", "PreemptionByScheduler")
    assert condition.message == "tight: preempting to accommodate a higher priority pod"
    assert intent.note(in_memory=False) == "Preempted by pod uid-default-vip on node a"
    assert intent.note(in_memory=True) == "Preempted by pod uid-default-vip on node a (in kube-scheduler memory)."
    assert (intent.event_type, intent.event_reason, intent.event_action) == ("Normal", "Preempted", "Preempting")
    assert (intent.waiting_message, intent.cancel_message) == ("preempted", "preempted by DefaultPreemption")


def test_the_condition_carries_the_victims_generation() -> None:
    victim = replace_fields(running_pod("x"), metadata={"generation": 7})
    (intent,) = victim_evictions(high_priority_pod(), "a", group(victim), "DefaultPreemption")
    assert intent.condition.observed_generation == 7


SAME = "default-scheduler: preempting to accommodate a higher priority pod"


@pytest.mark.parametrize(
    ("condition", "already"),
    [
        pytest.param(None, False, id="nothing there"),
        pytest.param(condition_of(message=SAME), True, id="the same"),
        pytest.param(condition_of("False", message=SAME), False, id="another status"),
        pytest.param(condition_of(reason="EvictionByEvictionAPI", message=SAME), False, id="another reason"),
        pytest.param(condition_of(message="tight: preempting"), False, id="another message"),
    ],
)
def test_an_equal_condition_is_not_written_again(condition: Condition | None, already: bool) -> None:
    (intent,) = victim_evictions(high_priority_pod(), "a", group(running_pod("x", told=condition)), "DefaultPreemption")
    assert intent.has_disruption_condition is already


@pytest.mark.parametrize(
    ("pod", "leaves"),
    [
        pytest.param(running_pod("x", told=condition_of(), terminating=True), True, id="preempted and terminating"),
        pytest.param(running_pod("x", told=condition_of()), False, id="not terminating yet"),
        pytest.param(running_pod("x", terminating=True), False, id="terminating for another reason"),
        pytest.param(running_pod("x", told=condition_of("False"), terminating=True), False, id="no longer true"),
        pytest.param(
            running_pod("x", told=condition_of(reason="DeletionByTaintManager"), terminating=True),
            False,
            id="other reason",
        ),
    ],
)
def test_pods_that_terminate_because_of_preemption(pod: Pod, leaves: bool) -> None:
    assert is_terminating_by_preemption(pod) is leaves


def test_lower_priority_pods_lose_their_nomination() -> None:
    waiting = [
        make_pod("weaker", priority=5, nominated="a"),
        make_pod("equal", priority=100, nominated="a"),
        make_pod("not-written-yet", priority=5),
    ]
    intents = nominations_to_clear(high_priority_pod(), map(PodInfo, waiting))
    assert [intent.pod.name for intent in intents] == ["weaker"]


# extenders


class FakeExtender:
    """An extender with a configured answer that records its calls."""

    def __init__(
        self, answer: Mapping[str, NamedVictims] | Exception, *, ignorable: bool = False, interested: bool = True
    ) -> None:
        self.name, self.ignorable = "http://extender", ignorable
        self.calls: list[Mapping[str, Victims]] = []
        self._answer, self._interested = answer, interested

    def supports_preemption(self, pod: Pod) -> bool:  # noqa: ARG002
        return self._interested

    def process_preemption(
        self,
        pod: Pod,  # noqa: ARG002
        candidates: Mapping[str, Victims],
    ) -> Mapping[str, NamedVictims]:
        self.calls.append(candidates)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


X, Y = running_pod("x", node="a"), running_pod("y", node="b")
OFFERED = {"a": group(X), "b": group(Y)}
ONLY_B = {"b": NamedVictims((Y.uid,), 2)}
EMPTY_A = {"a": NamedVictims(()), **ONLY_B}
NOBODY = {"b": NamedVictims(("uid-missing",))}
NOWHERE = {"zz": NamedVictims((Y.uid,))}


def ask(*extenders: FakeExtender) -> Mapping[str, Victims] | Status:
    return run_extenders(OFFERED, high_priority_pod(), extenders, nodes_with_pods(X, Y).nodes)


@pytest.mark.parametrize(
    ("extender", "left"),
    [
        pytest.param(FakeExtender(ONLY_B), {"b": group(Y, violations=2)}, id="strikes a node off, recounts another"),
        pytest.param(FakeExtender(ONLY_B, interested=False), OFFERED, id="is not interested"),
        pytest.param(FakeExtender({}), {}, id="leaves nothing"),
        pytest.param(FakeExtender(BayplanError("down"), ignorable=True), OFFERED, id="fails, but may be ignored"),
        pytest.param(FakeExtender(EMPTY_A, ignorable=True), {"b": group(Y, violations=2)}, id="no victims, ignorable"),
        pytest.param(FakeExtender(NOBODY, ignorable=True), OFFERED, id="unknown victim, ignorable"),
    ],
)
def test_an_extender_reduces_candidates(extender: FakeExtender, left: Mapping[str, Victims]) -> None:
    assert ask(extender) == left


@pytest.mark.parametrize(
    ("extender", "text"),
    [
        pytest.param(FakeExtender(BayplanError("down")), "down", id="fails"),
        pytest.param(FakeExtender(EMPTY_A), 'expected at least one victim pod on node "a"', id="no victims"),
        pytest.param(
            FakeExtender(NOBODY),
            "extender: http://extender claims to preempt pod (UID: &{uid-missing}) on node: b, "
            "but the pod is not found on that node",
            id="unknown victim",
        ),
        pytest.param(FakeExtender(NOWHERE), 'nodeinfo not found for node name "zz"', id="unknown node"),
    ],
)
def test_a_failing_extender_ends_the_preemption(extender: FakeExtender, text: str) -> None:
    assert ask(extender) == error(text)


def test_each_extender_gets_the_remaining_candidates() -> None:
    first, second, third = FakeExtender(ONLY_B), FakeExtender({}), FakeExtender(ONLY_B)
    assert ask(first, second, third) == {}
    assert second.calls == [{"b": group(Y, violations=2)}]
    assert third.calls == []
