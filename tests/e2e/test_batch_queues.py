"""Queues on a cluster: shares, reclaim, hierarchies, and preemption inside one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.run import Cluster
from support.e2e.batch_harness import GANGS, BatchSchedulerHarness
from support.e2e.scheduler_process import node_name, wait_until

CAPACITY = """
actions: "enqueue, allocate, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: predicates
  - name: capacity
    enableHierarchy: true
  - name: nodeorder
"""


@pytest.fixture
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def _started(corner: BatchSchedulerHarness, names: list[str]) -> None:
    corner.wait_bound(names)
    corner.start(*names)


def test_a_queue_gets_its_share_back_from_another(corner: BatchSchedulerHarness) -> None:
    corner.add_nodes(2, cpu="4")
    greedy, late = corner.queue("greedy"), corner.queue("late")
    with corner.run_batch():
        first = corner.gang("first", 8, minimum=1, queue=greedy)
        _started(corner, first)
        wait_until(
            lambda: corner.api.get("Queue", greedy)["status"].get("allocated", {}).get("cpu") == "8",
            "the queue says what it holds",
        )
        second = corner.gang("second", 4, minimum=4, queue=late)
        corner.wait_bound(second)
        left = [name for name in first if name in corner.api.pods()]
        assert len(left) == 4  # half of the cluster, and not one more
        assert any("Pod is evicted, because of reclaim" in each for name in first for each in corner.event_notes(name))
        corner.start(*second)
        corner.wait_for_phase("second", "Running")
        allocated = {"cpu": "4"}
        wait_until(
            lambda: corner.api.get("Queue", late)["status"].get("allocated", {}).get("cpu") == allocated["cpu"],
            "the other queue says what it holds",
        )
    corner.check_no_overcommit()


def test_queues_below_queues_share_what_their_parent_has(corner: BatchSchedulerHarness) -> None:
    corner.add_nodes(1, cpu="4")
    amount = {"cpu": "4", "memory": "16Gi"}
    team = corner.queue("team", deserved=amount, capability=amount)
    one, two = (
        corner.queue(name, parent=team, deserved={"cpu": "2", "memory": "8Gi"}, capability=amount)
        for name in ("one", "two")
    )
    with corner.run_batch(conf=CAPACITY):
        first = corner.gang("first", 4, minimum=1, queue=one)
        _started(corner, first)
        second = corner.gang("second", 2, queue=two)
        corner.wait_bound(second)  # a sibling gets back what it deserves
        pods = corner.api.pods()
        assert len([name for name in first if name in pods]) == 2
        corner.start(*second)
        corner.add_nodes(1, cpu="4")
        above = corner.gang("above", 1, queue=one)
        beside = corner.gang("beside", 1)
        corner.wait_bound(beside)
        wait_until(lambda: any(corner.reasons(above)), "the one above is told that it waits")
        assert not any(corner.nodes_of(above))  # no more than the parent may have, though there is a node
    corner.check_no_overcommit()


def test_who_is_more_important_goes_first_within_a_queue(corner: BatchSchedulerHarness) -> None:
    corner.add_nodes(1, cpu="4")
    high = corner.priority("high", 1000)
    queue = corner.queue("only")
    with corner.run_batch():
        weak = corner.gang("weak", 4, minimum=1, queue=queue)
        _started(corner, weak)
        strong = corner.gang("strong", 2, queue=queue, priorityClassName=high, group={"priorityClassName": high})
        corner.wait_bound(strong)
        pods = corner.api.pods()
        assert len([name for name in weak if name in pods and node_name(pods[name])]) == 2
        assert any("Pod is evicted, because of preempt" in each for name in weak for each in corner.event_notes(name))
    corner.check_no_overcommit()


def test_a_gang_keeps_its_minimum(corner: BatchSchedulerHarness) -> None:
    """With gang's veto nobody falls below what it needs to run."""
    corner.add_nodes(1, cpu="4")
    high = corner.priority("high", 1000)
    queue = corner.queue("only")
    conf = GANGS.replace("    enablePreemptable: false\n", "")
    with corner.run_batch(conf=conf):
        weak = corner.gang("weak", 4, minimum=3, queue=queue)
        _started(corner, weak)
        strong = corner.gang(
            "strong", 2, minimum=1, queue=queue, priorityClassName=high, group={"priorityClassName": high}
        )
        wait_until(lambda: any(corner.nodes_of(strong)), "one of the strong has a node")
        pods = corner.api.pods()
        assert len([name for name in weak if name in pods and node_name(pods[name])]) == 3
    corner.check_no_overcommit()


@pytest.mark.parametrize("verb", ["batch", "run"])
def test_who_is_held_for_the_queue_is_let_go(corner: BatchSchedulerHarness, verb: str) -> None:
    scheduling = {"batch": corner.run_batch, "run": corner.run_combined}[verb]
    corner.add_nodes(1, cpu="8")
    gate = "scheduling.volcano.sh/queue-allocation-gate"
    narrow = corner.queue("narrow", capability={"cpu": "1", "memory": "8Gi"})
    corner.group("held", 1, narrow)
    for number in range(2):
        pod = corner.member("held", number, schedulingGates=[{"name": gate}])
        pod["metadata"]["annotations"][gate] = "true"
        corner.api.create(pod)
    names = ["held-w-0", "held-w-1"]

    def gated() -> list[str]:
        return [name for name in names if corner.api.pods()[name]["spec"].get("schedulingGates")]

    with scheduling(conf=CAPACITY):
        corner.wait_bound(corner.gang("beside", 1))
        assert gated() == names  # without the feature gate nobody touches them
    with scheduling("--feature-gates=SchedulingGatesQueueAdmission=true", conf=CAPACITY):
        wait_until(lambda: any(corner.nodes_of(names)), "one has a node")
        corner.wait_bound(corner.gang("later", 1))
        assert len(gated()) == 1  # the queue has room for one
        (first,) = [name for name in names if name not in gated()]
        corner.api.delete("Pod", first)
        names.remove(first)
        corner.wait_bound(names)
