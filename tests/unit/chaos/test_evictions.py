"""Evictions in pools of uniform pods: one victim for each preemptor, on the node on which it runs."""

from __future__ import annotations

import pytest

from chaos.invariants.evictions import PREEMPTOR_LABEL, UNIFORM_LABEL, Evictions
from chaos.objects import Tree
from support.builders.chaos_histories import EventHistory, node, pod


def _scenario(victims: int, preemptor_node: str = "n", *, outage: bool = False) -> tuple[EventHistory, list[str]]:
    """Three equal pods on a node, some of which are evicted for one preemptor that runs somewhere."""
    story = EventHistory(Evictions)
    low = [pod(f"low-{number}", labels={UNIFORM_LABEL: "s"}) for number in range(3)]
    urgent = pod("urgent", labels={PREEMPTOR_LABEL: "s"}, priority=1000)
    story.add(0, node(), *low)
    for each in low:
        story.bind(1, each, "n")
    story.add(2, urgent)
    for each in low[:victims]:
        story.change(3, each, metadata={"deletionTimestamp": "now"})
        story.delete(4, each)
    story.bind(5, urgent, preemptor_node)
    if outage:
        story.world.acts.outages.append((2.5, 3.5))
    return story, _judged(story)


def _judged(story: EventHistory) -> list[str]:
    (checker,) = story.invariants.checkers
    assert isinstance(checker, Evictions)
    return [*story.names(), *(each.invariant for each in checker.judge_scenario("s", 1.0, 6.0))]


@pytest.mark.parametrize(
    ("victims", "on", "violated"),
    [
        pytest.param(1, "n", [], id="one victim"),
        pytest.param(2, "n", ["needless-eviction"], id="one too many"),
        pytest.param(1, "m", ["needless-eviction"], id="the preemptor runs elsewhere"),
    ],
)
def test_victims_are_counted(victims: int, on: str, violated: list[str]) -> None:
    assert _scenario(victims, on)[1] == violated


def test_a_surplus_after_an_outage_is_counted_and_allowed() -> None:
    story, violated = _scenario(2, outage=True)
    assert violated == []
    (checker,) = story.invariants.checkers
    assert isinstance(checker, Evictions)
    assert checker.allowed == 1


def _leave(story: EventHistory, tree: Tree) -> None:
    story.change(20, tree, metadata={"deletionTimestamp": "now"})


def test_only_uniform_pods_may_be_evicted() -> None:
    story = EventHistory(Evictions)
    one = pod("one")
    story.add(0, node(), one)
    story.bind(1, one, "n")
    _leave(story, one)
    assert story.names() == ["needless-eviction"]


def test_deletions_by_the_driver_are_no_evictions() -> None:
    story = EventHistory(Evictions)
    one = pod("one")
    story.add(0, node(), one)
    story.bind(1, one, "n")
    story.world.acts.deleted[one["metadata"]["uid"]] = 19.0
    _leave(story, one)
    assert story.names() == []


def test_a_waiting_pod_that_vanishes_is_found() -> None:
    story = EventHistory(Evictions)
    one = pod("one")
    story.add(0, one)
    story.delete(1, one)
    assert story.names() == ["needless-eviction"]
