"""Queues on a cluster: shares, reclaim, hierarchies, and preemption inside one queue."""

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
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def _started(harness: BatchSchedulerHarness, names: list[str]) -> None:
    harness.wait_bound(names)
    harness.start(*names)


def test_a_queue_gets_its_share_back_from_another(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(2, cpu="4")
    greedy, late = harness.queue("greedy"), harness.queue("late")
    with harness.run_batch():
        first = harness.gang("first", 8, minimum=1, queue=greedy)
        _started(harness, first)
        wait_until(
            lambda: harness.api.get("Queue", greedy)["status"].get("allocated", {}).get("cpu") == "8",
            "the queue says what it holds",
        )
        second = harness.gang("second", 4, minimum=4, queue=late)
        harness.wait_bound(second)
        left = [name for name in first if name in harness.api.pods()]
        assert len(left) == 4  # half of the cluster, and not one more
        assert any("Pod is evicted, because of reclaim" in each for name in first for each in harness.event_notes(name))
        harness.start(*second)
        harness.wait_for_phase("second", "Running")
        allocated = {"cpu": "4"}
        wait_until(
            lambda: harness.api.get("Queue", late)["status"].get("allocated", {}).get("cpu") == allocated["cpu"],
            "the other queue says what it holds",
        )
    harness.check_no_overcommit()


def test_queues_below_queues_share_what_their_parent_has(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(1, cpu="4")
    amount = {"cpu": "4", "memory": "16Gi"}
    team = harness.queue("team", deserved=amount, capability=amount)
    one, two = (
        harness.queue(name, parent=team, deserved={"cpu": "2", "memory": "8Gi"}, capability=amount)
        for name in ("one", "two")
    )
    with harness.run_batch(conf=CAPACITY):
        first = harness.gang("first", 4, minimum=1, queue=one)
        _started(harness, first)
        second = harness.gang("second", 2, queue=two)
        harness.wait_bound(second)  # a sibling gets back its deserved share
        pods = harness.api.pods()
        assert len([name for name in first if name in pods]) == 2
        harness.start(*second)
        harness.add_nodes(1, cpu="4")
        above = harness.gang("above", 1, queue=one)
        beside = harness.gang("beside", 1)
        harness.wait_bound(beside)
        wait_until(lambda: any(harness.reasons(above)), "the pod above the limit has a reason")
        assert not any(harness.nodes_of(above))  # limited by the capability of the parent, though a node has room
    harness.check_no_overcommit()


def test_higher_priority_preempts_within_a_queue(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(1, cpu="4")
    high = harness.priority("high", 1000)
    queue = harness.queue("only")
    with harness.run_batch():
        weak = harness.gang("weak", 4, minimum=1, queue=queue)
        _started(harness, weak)
        strong = harness.gang("strong", 2, queue=queue, priorityClassName=high, group={"priorityClassName": high})
        harness.wait_bound(strong)
        pods = harness.api.pods()
        assert len([name for name in weak if name in pods and node_name(pods[name])]) == 2
        assert any("Pod is evicted, because of preempt" in each for name in weak for each in harness.event_notes(name))
    harness.check_no_overcommit()


def test_a_gang_keeps_its_minimum(harness: BatchSchedulerHarness) -> None:
    """With the veto of gang no job falls below its minimum."""
    harness.add_nodes(1, cpu="4")
    high = harness.priority("high", 1000)
    queue = harness.queue("only")
    conf = GANGS.replace("    enablePreemptable: false\n", "")
    with harness.run_batch(conf=conf):
        weak = harness.gang("weak", 4, minimum=3, queue=queue)
        _started(harness, weak)
        strong = harness.gang(
            "strong", 2, minimum=1, queue=queue, priorityClassName=high, group={"priorityClassName": high}
        )
        wait_until(lambda: any(harness.nodes_of(strong)), "one of the strong has a node")
        pods = harness.api.pods()
        assert len([name for name in weak if name in pods and node_name(pods[name])]) == 3
    harness.check_no_overcommit()


@pytest.mark.parametrize("verb", ["batch", "run"])
def test_pods_with_the_queue_admission_gate_are_released(harness: BatchSchedulerHarness, verb: str) -> None:
    scheduling = {"batch": harness.run_batch, "run": harness.run_combined}[verb]
    harness.add_nodes(1, cpu="8")
    gate = "scheduling.volcano.sh/queue-allocation-gate"
    narrow = harness.queue("narrow", capability={"cpu": "1", "memory": "8Gi"})
    harness.group("held", 1, narrow)
    for number in range(2):
        pod = harness.member("held", number, schedulingGates=[{"name": gate}])
        pod["metadata"]["annotations"][gate] = "true"
        harness.api.create(pod)
    names = ["held-w-0", "held-w-1"]

    def gated() -> list[str]:
        return [name for name in names if harness.api.pods()[name]["spec"].get("schedulingGates")]

    with scheduling(conf=CAPACITY):
        harness.wait_bound(harness.gang("beside", 1))
        assert gated() == names  # without the feature gate the pods keep their scheduling gate
    with scheduling("--feature-gates=SchedulingGatesQueueAdmission=true", conf=CAPACITY):
        wait_until(lambda: any(harness.nodes_of(names)), "one has a node")
        harness.wait_bound(harness.gang("later", 1))
        assert len(gated()) == 1  # the queue has room for one
        (first,) = [name for name in names if name not in gated()]
        harness.api.delete("Pod", first)
        names.remove(first)
        harness.wait_bound(names)
