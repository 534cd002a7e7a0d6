"""What is wrong is said on the object, nothing is lost, and sessions go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_corner import VOLCANO, BatchCorner
from cluster.run import Cluster
from fault_proxy import Fault, faulty, refusal
from scheduling import condition, until


@pytest.fixture
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchCorner]:
    mine = BatchCorner(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def test_every_third_write_is_refused(cluster: Cluster, corner: BatchCorner, tmp_path: Path) -> None:
    corner.add_nodes(3, cpu="8")
    with faulty(cluster, tmp_path) as proxy:
        count = iter(range(1_000_000))
        refused = proxy.add(
            Fault(
                lambda ask: ask.method not in ("GET", "HEAD") and next(count) % 3 == 2,
                refuse=refusal(500, "InternalError", "not this one"),
            )
        )
        with corner.scheduling(f"--kubeconfig={proxy.kubeconfig()}"):
            names = corner.gang("job", 20)
            other = corner.gang("other", 4, minimum=2)
            corner.bound([*names, *other])
            corner.start(*names, *other)
            corner.reaches("job", "Running")
            corner.reaches("other", "Running")
            assert all(corner.nodes_of([*names, *other]))
            assert any(ask.is_binding for ask in refused.seen)
            until(
                lambda: any("failed to bind" in each for name in (*names, *other) for each in corner.told(name)),
                "whoever lost a binding says so",
            )
    corner.fits()


def test_what_is_wrong_with_objects_is_said_on_them(corner: BatchCorner) -> None:
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
    with corner.scheduling():
        fine = corner.gang("fine", 2)
        corner.bound(fine)  # nobody else is held up

        def says(name: str, text: str) -> None:
            until(
                lambda: text in condition(corner.api.pod(name)).get("message", ""),
                f"{name} says: {text}",
                why=lambda: str(condition(corner.api.pod(name))),
            )

        says("lost-w-0", 'is in queue "nowhere", which does not exist')
        says("unknown-w-0", "does not exist; the pod waits until it does")
        says("alone", "the pod names no pod group by the annotation")
        until(lambda: any("nowhere" in each for each in corner.told("lost")), "the group is told about its queue")
        until(
            lambda: any("minResources.cpu" in each for each in corner.told("odd")), "the group is told about its amount"
        )
        for name in (looped, other):
            until(
                lambda name=name: any("are below themselves" in each for each in queue_events(corner, name)),  # type: ignore[misc]
                f"{name} is told that it is below itself",
            )
        corner.group("unknown", 1)
        corner.api.patch("PodGroup", "lost", {"spec": {"queue": "default"}})
        corner.bound(["lost-w-0", "unknown-w-0"])  # mended, they go on
        assert corner.phase("empty") in ("Inqueue", "Pending")
        until(
            lambda: any("pod group is not ready, 1 minAvailable" in each for each in corner.told("empty")),
            "the group without pods is told what it waits for",
        )


def test_a_queue_that_is_deleted_with_jobs_in_it(corner: BatchCorner) -> None:
    corner.add_nodes(1, cpu="8")
    queue = corner.queue("gone")
    with corner.scheduling():
        first = corner.gang("first", 2, queue=queue)
        corner.bound(first)
        corner.api.delete("Queue", queue)
        late = corner.gang("late", 1, queue=queue)
        until(lambda: any("does not exist" in each for each in corner.reasons(late)), "the late one is told why")
        other = corner.gang("other", 1)
        corner.bound(other)
        assert all(corner.nodes_of(first))
        corner.queue("gone")
        corner.bound(late)


def queue_events(corner: BatchCorner, name: str) -> list[str]:
    """Events of objects without a namespace lie in `default`."""
    found = corner.api._ask("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [each.get("note", "") for each in found if each["regarding"]["name"] == name]
