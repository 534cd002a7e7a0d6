"""What is wrong is said on the object, nothing is lost, and sessions go on."""

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
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def test_every_third_write_is_refused(cluster: Cluster, corner: BatchSchedulerHarness, tmp_path: Path) -> None:
    corner.add_nodes(3, cpu="8")
    with run_fault_proxy(cluster, tmp_path) as proxy:
        count = iter(range(1_000_000))
        refused = proxy.add(
            ProxyFault(
                lambda ask: ask.method not in ("GET", "HEAD") and next(count) % 3 == 2,
                refuse=refusal(500, "InternalError", "not this one"),
            )
        )
        with corner.run_batch(f"--kubeconfig={proxy.kubeconfig()}"):
            names = corner.gang("job", 20)
            other = corner.gang("other", 4, minimum=2)
            corner.wait_bound([*names, *other])
            corner.start(*names, *other)
            corner.wait_for_phase("job", "Running")
            corner.wait_for_phase("other", "Running")
            assert all(corner.nodes_of([*names, *other]))
            assert any(ask.is_binding for ask in refused.seen)
            # A binding that was refused with a 5xx is sent again: no pod has to lose it, so that no event is certain.
    corner.check_no_overcommit()


def test_what_is_wrong_with_objects_is_said_on_them(corner: BatchSchedulerHarness) -> None:
    corner.add_nodes(1, cpu="8")
    looped = corner.queue("looped")
    corner.api.patch("Queue", looped, {"spec": {"parent": f"{looped}-other"}})
    other = corner.queue("looped-other", parent=looped)
    corner.group("lost", 1, queue="nowhere")
    corner.group("empty", 1)
    corner.api.create(corner.member("lost", 0), corner.member("unknown", 0))
    alone = corner.pod("alone", schedulerName="volcano")
    corner.api.create(alone)
    odd = {"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": {"name": "odd", "namespace": corner.namespace}}
    corner.api.create({**odd, "spec": {"minMember": 1, "queue": "default", "minResources": {"cpu": "-3"}}})
    with corner.run_batch():
        fine = corner.gang("fine", 2)
        corner.wait_bound(fine)  # nobody else is held up

        def says(name: str, text: str) -> None:
            wait_until(
                lambda: text in condition(corner.api.pod(name)).get("message", ""),
                f"{name} says: {text}",
                why=lambda: str(condition(corner.api.pod(name))),
            )

        says("lost-w-0", 'is in queue "nowhere", which does not exist')
        says("unknown-w-0", "does not exist; the pod waits until it is created")
        says("alone", "the pod has no pod group in the annotation")
        wait_until(
            lambda: any("nowhere" in each for each in corner.event_notes("lost")), "the group is told about its queue"
        )
        wait_until(
            lambda: any("minResources.cpu" in each for each in corner.event_notes("odd")),
            "the group is told about its amount",
        )
        for name in (looped, other):
            wait_until(
                lambda name=name: any("cycle of parents" in each for each in events_at_large(corner, name)),  # type: ignore[misc]
                f"{name} is told that it is below itself",
            )
        corner.group("unknown", 1)
        corner.api.patch("PodGroup", "lost", {"spec": {"queue": "default"}})
        corner.wait_bound(["lost-w-0", "unknown-w-0"])  # mended, they go on
        assert corner.phase("empty") in ("Inqueue", "Pending")
        wait_until(
            lambda: any("pod group is not ready, 1 minAvailable" in each for each in corner.event_notes("empty")),
            "the group without pods is told what it waits for",
        )


def test_a_queue_that_is_deleted_with_jobs_in_it(corner: BatchSchedulerHarness) -> None:
    corner.add_nodes(1, cpu="8")
    queue = corner.queue("gone")
    with corner.run_batch():
        first = corner.gang("first", 2, queue=queue)
        corner.wait_bound(first)
        corner.api.delete("Queue", queue)
        late = corner.gang("late", 1, queue=queue)
        wait_until(lambda: any("does not exist" in each for each in corner.reasons(late)), "the late one is told why")
        other = corner.gang("other", 1)
        corner.wait_bound(other)
        assert all(corner.nodes_of(first))
        corner.queue("gone")
        corner.wait_bound(late)


def test_a_parent_queue_that_is_deleted_is_told_to_its_children_and_to_all_who_wait(
    corner: BatchSchedulerHarness,
) -> None:
    corner.add_nodes(1, cpu="8")
    parent = corner.queue("par")
    child = corner.queue("kid", parent=parent)
    with corner.run_batch(conf=IN_A_TREE):
        corner.wait_bound(corner.gang("runs", 1, queue=child))
        corner.api.delete("Queue", parent)
        late = corner.gang("late", 1)  # in another queue
        why = (
            f"the parent {parent} of queue {child} does not exist; create it, or give {child} another parent; "
            "no queue gets anything until this is fixed"
        )
        wait_until(lambda: any(why in each for each in events_at_large(corner, child)), "the child is told")
        wait_until(lambda: any(why in each for each in corner.event_notes("late")), "the group that waits is told")
        assert not any(corner.nodes_of(late))
        assert not any(why in each for each in corner.event_notes("runs"))
        corner.queue("par")
        corner.wait_bound(late)
        assert sum(why in each for each in corner.event_notes("late")) == 1


def test_hypernodes_that_cannot_be_used_are_told_so_and_so_are_groups_that_wait_for_them(
    corner: BatchSchedulerHarness,
) -> None:
    nodes = corner.add_nodes(1, cpu="8")
    odd = corner.hyper_node("odd", 1, nodes)
    corner.api.patch("HyperNode", odd, {"spec": {"members": [pattern("node-[")]}})
    with corner.run_batch(conf=IN_A_TREE):
        close = corner.gang("close", 1, group={"networkTopology": {"mode": "hard", "highestTierAllowed": 1}})
        unreadable = 'the pattern "node-[" cannot be read'
        wait_until(lambda: any(unreadable in each for each in events_at_large(corner, odd)), "the hypernode is told")
        wait_until(
            lambda: any(unreadable in each for each in corner.event_notes("close")),
            "the group is told what may be missing",
        )
        top = corner.hyper_node("top", 2, [odd], kind="HyperNode")
        corner.api.patch("HyperNode", top, {"spec": {"members": [child(top)]}})
        cycle = f"hypernodes form a cycle: {top} > {top}; remove one of them"
        wait_until(lambda: any(cycle in each for each in events_at_large(corner, top)), "the one below itself is told")
        wait_until(lambda: any(cycle in each for each in corner.event_notes("close")), "the group is told why it waits")
        assert not any(corner.nodes_of(close))
        corner.wait_bound(corner.gang("loose", 1))  # nobody else is held up
        corner.api.patch("HyperNode", top, {"spec": {"members": [child(odd)]}})
        corner.api.patch("HyperNode", odd, {"spec": {"members": [pattern(nodes[0])]}})
        corner.wait_bound(close)


def pattern(text: str) -> Tree:
    return {"type": "Node", "selector": {"regexMatch": {"pattern": text}}}


def child(name: str) -> Tree:
    return {"type": "HyperNode", "selector": {"exactMatch": {"name": name}}}


def events_at_large(corner: BatchSchedulerHarness, name: str) -> list[str]:
    """Events of objects without a namespace lie in `default`."""
    found = corner.api._ask("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [each.get("note", "") for each in found if each["regarding"]["name"] == name]
