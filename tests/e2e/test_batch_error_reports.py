"""Errors are reported on the object that causes them, no pod is lost, and sessions continue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.api import Tree
from cluster.run import Cluster
from support.builders.batch_engines import GANGS
from support.e2e.batch_harness import VOLCANO, BatchSchedulerHarness
from support.e2e.scheduler_process import condition, wait_until
from support.fakes.fault_proxy import ProxyFault, refusal, run_fault_proxy

IN_A_TREE = GANGS.replace("nodeorder\n", "capacity\n    enableHierarchy: true\n  - name: network-topology-aware\n")


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def test_every_third_write_is_refused(cluster: Cluster, harness: BatchSchedulerHarness, tmp_path: Path) -> None:
    harness.add_nodes(3, cpu="8")
    with run_fault_proxy(cluster, tmp_path) as proxy:
        count = iter(range(1_000_000))
        refused = proxy.add(
            ProxyFault(
                lambda ask: ask.method not in ("GET", "HEAD") and next(count) % 3 == 2,
                refuse=refusal(500, "InternalError", "not this one"),
            )
        )
        with harness.run_batch(f"--kubeconfig={proxy.kubeconfig()}"):
            names = harness.gang("job", 20)
            other = harness.gang("other", 4, minimum=2)
            harness.wait_bound([*names, *other])
            harness.start(*names, *other)
            harness.wait_for_phase("job", "Running")
            harness.wait_for_phase("other", "Running")
            assert all(harness.nodes_of([*names, *other]))
            assert any(ask.is_binding for ask in refused.seen)
            # A binding with a 5xx response is sent again; the pod may be bound already, so no event is certain.
    harness.check_no_overcommit()


def test_errors_are_reported_on_the_objects(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(1, cpu="8")
    looped = harness.queue("looped")
    harness.api.patch("Queue", looped, {"spec": {"parent": f"{looped}-other"}})
    other = harness.queue("looped-other", parent=looped)
    harness.group("lost", 1, queue="nowhere")
    harness.group("empty", 1)
    harness.api.create(harness.member("lost", 0), harness.member("unknown", 0))
    alone = harness.pod("alone", schedulerName="volcano")
    harness.api.create(alone)
    odd = {"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": {"name": "odd", "namespace": harness.namespace}}
    harness.api.create({**odd, "spec": {"minMember": 1, "queue": "default", "minResources": {"cpu": "-3"}}})
    with harness.run_batch():
        fine = harness.gang("fine", 2)
        harness.wait_bound(fine)  # no other job is blocked

        def says(name: str, text: str) -> None:
            wait_until(
                lambda: text in condition(harness.api.pod(name)).get("message", ""),
                f"{name} says: {text}",
                why=lambda: str(condition(harness.api.pod(name))),
            )

        says("lost-w-0", 'is in queue "nowhere", which does not exist')
        says("unknown-w-0", "does not exist; the pod waits until it is created")
        says("alone", "the pod has no pod group in the annotation")
        wait_until(
            lambda: any("nowhere" in each for each in harness.event_notes("lost")),
            "the group has an event about its queue",
        )
        wait_until(
            lambda: any("minResources.cpu" in each for each in harness.event_notes("odd")),
            "the group has an event about its amount",
        )
        for name in (looped, other):
            wait_until(
                lambda name=name: any("cycle of parents" in each for each in events_at_large(harness, name)),  # type: ignore[misc]
                f"{name} has an event about the cycle",
            )
        harness.group("unknown", 1)
        harness.api.patch("PodGroup", "lost", {"spec": {"queue": "default"}})
        harness.wait_bound(["lost-w-0", "unknown-w-0"])  # scheduled after the correction
        assert harness.phase("empty") in ("Inqueue", "Pending")
        wait_until(
            lambda: any("pod group is not ready, 1 minAvailable" in each for each in harness.event_notes("empty")),
            "the group without pods has an event",
        )


def test_a_queue_that_is_deleted_with_jobs_in_it(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(1, cpu="8")
    queue = harness.queue("gone")
    with harness.run_batch():
        first = harness.gang("first", 2, queue=queue)
        harness.wait_bound(first)
        harness.api.delete("Queue", queue)
        late = harness.gang("late", 1, queue=queue)
        wait_until(lambda: any("does not exist" in each for each in harness.reasons(late)), "the late pod has a reason")
        other = harness.gang("other", 1)
        harness.wait_bound(other)
        assert all(harness.nodes_of(first))
        harness.queue("gone")
        harness.wait_bound(late)


def test_a_deleted_parent_queue_is_reported_on_its_children_and_their_pending_jobs(
    harness: BatchSchedulerHarness,
) -> None:
    harness.add_nodes(1, cpu="8")
    parent = harness.queue("par")
    child = harness.queue("kid", parent=parent)
    with harness.run_batch(conf=IN_A_TREE):
        harness.wait_bound(harness.gang("runs", 1, queue=child))
        harness.api.delete("Queue", parent)
        late = harness.gang("late", 1)  # in another queue
        why = (
            f"the parent {parent} of queue {child} does not exist; create it, or give {child} another parent; "
            "no queue gets anything until this is fixed"
        )
        wait_until(
            lambda: any(why in each for each in events_at_large(harness, child)), "the child queue has the event"
        )
        wait_until(lambda: any(why in each for each in harness.event_notes("late")), "the pending group has the event")
        assert not any(harness.nodes_of(late))
        assert not any(why in each for each in harness.event_notes("runs"))
        harness.queue("par")
        harness.wait_bound(late)
        assert sum(why in each for each in harness.event_notes("late")) == 1


def test_unusable_hypernodes_are_reported_on_them_and_on_groups_that_need_them(harness: BatchSchedulerHarness) -> None:
    nodes = harness.add_nodes(1, cpu="8")
    odd = harness.hyper_node("odd", 1, nodes)
    harness.api.patch("HyperNode", odd, {"spec": {"members": [pattern("node-[")]}})
    with harness.run_batch(conf=IN_A_TREE):
        close = harness.gang("close", 1, group={"networkTopology": {"mode": "hard", "highestTierAllowed": 1}})
        unreadable = 'the pattern "node-[" is invalid'
        wait_until(
            lambda: any(unreadable in each for each in events_at_large(harness, odd)), "the hypernode has the event"
        )
        wait_until(
            lambda: any(unreadable in each for each in harness.event_notes("close")),
            "the group has an event about the hypernode",
        )
        top = harness.hyper_node("top", 2, [odd], kind="HyperNode")
        harness.api.patch("HyperNode", top, {"spec": {"members": [child(top)]}})
        cycle = f"hypernodes form a cycle: {top} > {top}; remove one of them"
        wait_until(
            lambda: any(cycle in each for each in events_at_large(harness, top)), "the queue in the cycle has the event"
        )
        wait_until(
            lambda: any(cycle in each for each in harness.event_notes("close")), "the pending group has the event"
        )
        assert not any(harness.nodes_of(close))
        harness.wait_bound(harness.gang("loose", 1))  # no other job is blocked
        harness.api.patch("HyperNode", top, {"spec": {"members": [child(odd)]}})
        harness.api.patch("HyperNode", odd, {"spec": {"members": [pattern(nodes[0])]}})
        harness.wait_bound(close)


def pattern(text: str) -> Tree:
    return {"type": "Node", "selector": {"regexMatch": {"pattern": text}}}


def child(name: str) -> Tree:
    return {"type": "HyperNode", "selector": {"exactMatch": {"name": name}}}


def events_at_large(harness: BatchSchedulerHarness, name: str) -> list[str]:
    """Events of cluster-scoped objects are in namespace `default`."""
    found = harness.api._ask("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [each.get("note", "") for each in found if each["regarding"]["name"] == name]
