"""Log lines of sessions at Volcano's levels of `-v`: each level adds lines to those of the levels below."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.session import Session
from bayplan.testing import BatchHarness, Gang, make_gang, make_node
from bayplan.testing.batch_harness import BatchResult
from support.harness.log_capture import log_at


def gangs() -> list[Gang]:
    return [make_gang("fits", 2, cpu=1), make_gang("huge", 1, cpu=9), make_gang("late", 1, cpu=1, priority=-1)]


def session_at(verbosity: int, *plugins: type[Any]) -> tuple[str, BatchResult]:
    nodes = [make_node("small", cpu=4), make_node("wide", cpu=8)]
    with log_at(verbosity) as written, BatchHarness(plugins, nodes=nodes, gangs=gangs()) as harness:
        result = harness.run()
    return written.getvalue(), result


def lines_with(text: str, *parts: str) -> list[str]:
    return [line for line in text.splitlines() if all(part in line for part in parts)]


NO_NODE = '"Task found no node" task="default/huge-0" job="default/huge" reason="0/2 nodes are unavailable'
COMPARED = ('"Plugin answered" point="job_order" plugin="priority"', "default/late")


@pytest.mark.parametrize("verbosity", [0, 3])
def test_below_level_four_plugins_and_searches_are_not_logged(verbosity: int) -> None:
    text, result = session_at(verbosity)
    assert set(result.bound) == {"fits-0", "fits-1", "late-0"}
    assert text == ""


def test_level_three_logs_pipelined_tasks() -> None:
    nodes, going = [make_node("n", cpu=2)], make_gang("going", 1, cpu=2, on="n", pod={"terminating": True})
    with log_at(3) as written, BatchHarness(nodes=nodes, gangs=[going, make_gang("next", 1, cpu=2)]) as harness:
        assert harness.run().pipelined == {"next-0": "n"}
    (line,) = lines_with(written.getvalue(), '"Pipelined task to a node with releasing resources"')
    assert line.endswith('task="default/next-0" node="n"')


def test_level_four_logs_answers_of_plugins_and_fit_errors() -> None:
    text, _ = session_at(4)
    assert len(lines_with(text, NO_NODE, "Insufficient cpu")) == 1
    assert lines_with(text, *COMPARED)
    assert lines_with(text, '"Plugin answered" point="job_ready" plugin="gang" about=["default/fits"] answer=true')
    assert len(lines_with(text, '"Allocated task" task="default/fits-0"')) == 1
    assert len(lines_with(text, '"Open session"', "jobs=3 queues=1 nodes=2")) == 1
    assert len(lines_with(text, '"Queue" queue="default"')) == 1
    (job,) = lines_with(text, '"Job" job="default/fits"')
    assert 'tasks={"Binding":2}' in job
    assert not lines_with(text, "Enter ")
    assert not lines_with(text, "Scores")


def test_level_five_logs_actions_and_scores() -> None:
    text, result = session_at(5)
    assert lines_with(text, NO_NODE)
    assert lines_with(text, *COMPARED)
    (refused,) = lines_with(text, '"Nodes rejected task" task="default/huge-0"')
    assert refused.endswith('reasons=["Insufficient cpu"] nodes=["small","wide"]')
    for action in ("Enqueue", "Allocate", "Backfill"):
        entered, left = text.index(f'"Enter {action} ..."'), text.index(f'"Leaving {action} ..."')
        assert entered < left
    assert text.index('"Leaving Enqueue ..."') < text.index('"Enter Allocate ..."') < text.index(NO_NODE)
    (scores,) = lines_with(text, '"Scores of nodes" task="default/fits-0"')
    assert '"small":' in scores
    assert '"wide":' in scores
    assert scores.endswith(f'chosen="{result.bound["fits-0"]}"')
    assert len(lines_with(text, '"Scores by plugin" task="default/fits-0" node="wide"', '"nodeorder":')) == 1


class AllAnswers:
    """Returns answers of every supported type."""

    name = "outspoken"

    def __init__(self, arguments: Any) -> None:
        """Ignores its arguments."""

    def on_session_open(self, session: Session) -> None:
        session.add_preemptable_fn(self.name, lambda _, candidates: (each for each in candidates))
        session.add_victim_tasks_fns(self.name, [lambda _: [], lambda running: list(running)])
        session.add_job_enqueueable_fn(self.name, lambda _: Vote.PERMIT)
        session.add_best_node_fn(self.name, lambda _, by_score: by_score[max(by_score)][0])


def test_answers_are_logged_without_consuming_iterators() -> None:
    nodes, low = [make_node("n", cpu=2)], make_gang("low", 2, cpu=1, on="n", min_member=1, priority=1)
    high = make_gang("high", 1, cpu=1, priority=9, min_resources={"cpu": "1"})
    actions = ("enqueue", "allocate", "preempt", "shuffle")
    found = []
    for verbosity in (0, 5):
        with (
            log_at(verbosity) as written,
            BatchHarness([AllAnswers], nodes=nodes, gangs=[low, high], actions=actions) as harness,
        ):
            result = harness.run()
        found.append((result.bound, result.evicted, result.pipelined, result.faults))
    assert found[0] == found[1]
    text = written.getvalue()
    assert lines_with(text, 'point="preemptable" plugin="outspoken"', 'answer="generator"')
    assert len(lines_with(text, 'point="victim_tasks" plugin="outspoken"')) == 2
    assert lines_with(text, 'point="job_enqueueable" plugin="outspoken" about=["default/high"] answer="PERMIT"')
    assert lines_with(text, '"Task is to be evicted" task="default/low-')
