"""Nodes in the cache: visiting order, images, and the rows that a snapshot copies."""

from __future__ import annotations

import pytest

from bayplan.cache import Cache
from bayplan.cache.node_tree import NodeTree, zone_of
from bayplan.errors import CacheError
from bayplan.objects.core import Node
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.storage import StorageClass
from bayplan.snapshot import Snapshot
from bayplan.snapshot.journal import ChangeJournal
from support.builders.framework import make_node, make_pod, taint

REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
OLD_REGION, OLD_ZONE = "failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone"


def in_zone(name: str, zone: str) -> Node:
    return make_node(name, labels={ZONE: zone})


def visited(snapshot: Snapshot) -> list[str]:
    return [snapshot.nodes.names[row] for row in snapshot.order.tolist()]


# visiting order


@pytest.mark.parametrize(
    ("labels", "zone"),
    [
        pytest.param({}, ("", ""), id="nowhere"),
        pytest.param({REGION: "r", ZONE: "z"}, ("r", "z"), id="both"),
        pytest.param({ZONE: "z"}, ("", "z"), id="zone-alone"),
        pytest.param({REGION: "r"}, ("r", ""), id="region-alone"),
        pytest.param({OLD_ZONE: "old", ZONE: "new"}, ("", "old"), id="the-older-label-wins"),
        pytest.param({OLD_REGION: "old", ZONE: "new"}, ("old", "new"), id="each-label-for-itself"),
        pytest.param({OLD_ZONE: "", ZONE: "new"}, ("", ""), id="empty-is-a-value"),
    ],
)
def test_zone_of_a_node(labels: dict[str, str], zone: tuple[str, str]) -> None:
    assert zone_of(make_node(labels=labels)) == zone


def test_nodes_alternate_between_zones_in_order_of_arrival() -> None:
    tree = NodeTree()
    for name, zone in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a"), ("c1", "c"), ("b2", "b")):
        tree.add(in_zone(name, zone))
    assert list(tree.names()) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_an_empty_zone_is_skipped() -> None:
    tree = NodeTree()
    for name, zone in (("a1", "a"), ("b1", "b"), ("b2", "b")):
        tree.add(in_zone(name, zone))
    tree.remove(in_zone("a1", "a"))
    tree.add(in_zone("a1", "a"))
    assert list(tree.names()) == ["b1", "a1", "b2"]


def test_a_node_that_changes_zone_goes_to_the_end_of_the_new_one() -> None:
    tree = NodeTree()
    for name, zone in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        tree.add(in_zone(name, zone))
    tree.update(in_zone("a1", "a"), in_zone("a1", "b"))
    assert list(tree.names()) == ["a2", "b1", "a1"]


def test_other_labels_do_not_change_the_order() -> None:
    tree = NodeTree()
    for name in ("x", "y"):
        tree.add(make_node(name))
    tree.update(make_node("x"), make_node("x", labels={"disk": "ssd"}))
    assert list(tree.names()) == ["x", "y"]


def test_removing_an_unknown_node_is_ignored() -> None:
    tree = NodeTree()
    tree.remove(in_zone("x", "a"))
    assert list(tree.names()) == []


def test_a_snapshot_keeps_its_order_until_nodes_come_or_go() -> None:
    cache = Cache()
    for name, zone in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        cache.add_node(in_zone(name, zone))
    snapshot = cache.snapshot()
    cache.update_node(in_zone("a1", "b"))
    cache.refresh(snapshot)
    assert visited(snapshot) == ["a1", "b1", "a2"]
    cache.add_node(in_zone("c1", "c"))
    cache.refresh(snapshot)
    assert visited(snapshot) == ["a2", "b1", "c1", "a1"]


# nodes


def test_an_unknown_node_cannot_be_removed() -> None:
    with pytest.raises(CacheError, match='node "a" is not in the cache, so it cannot be removed'):
        Cache().remove_node("a")


def test_upsert_and_delete_of_a_node() -> None:
    cache = Cache()
    cache.upsert(make_node("a", cpu=1))
    changed = make_node("a", cpu=2)
    cache.upsert(changed)
    assert (cache.node("a"), cache.node_count) == (changed, 1)
    cache.delete(changed)
    cache.delete(changed)  # an unknown node is ignored
    assert cache.node_count == 0


def test_an_update_of_an_unknown_node_adds_it_and_an_addition_of_a_known_one_updates_it() -> None:
    cache = Cache()
    cache.update_node(make_node("a"))
    cache.add_node(make_node("a", unschedulable=True))
    assert cache.node_count == 1
    assert cache.snapshot().table.unschedulable.tolist() == [True]
    node = cache.node("a")
    assert node is not None
    assert node.spec.unschedulable
    assert cache.node("b") is None


def test_the_generation_changes_with_every_change() -> None:
    cache = Cache()
    cache.add_node(make_node("a"))
    snapshot = cache.snapshot()
    before = snapshot.generation
    cache.refresh(snapshot)
    assert snapshot.generation == before
    cache.add_pod(make_pod(node="a"))
    cache.refresh(snapshot)
    assert snapshot.generation > before


# images


def image_counts(snapshot: Snapshot, image: str = "app:1") -> dict[str, tuple[int, int]]:
    sizes, counts = snapshot.table.image(image)
    return {name: (int(sizes[row]), int(counts[row])) for row, name in enumerate(snapshot.nodes.names) if counts[row]}


def test_the_first_node_sets_the_size_of_an_image() -> None:
    cache = Cache()
    cache.add_node(make_node("a", images={"app:1": 10}))
    cache.add_node(make_node("b", images={"app:1": 99}))
    assert image_counts(cache.snapshot()) == {"a": (10, 2), "b": (10, 2)}


def test_an_unchanged_row_keeps_its_image_count() -> None:
    cache = Cache()
    cache.add_node(make_node("a", images={"app:1": 10}))
    cache.add_node(make_node("b", images={"app:1": 10}))
    snapshot = cache.snapshot()
    cache.add_node(make_node("c", images={"app:1": 10}))
    cache.refresh(snapshot)
    assert image_counts(snapshot) == {"a": (10, 2), "b": (10, 2), "c": (10, 3)}
    cache.add_pod(make_pod(node="a"))
    cache.refresh(snapshot)
    assert image_counts(snapshot) == {"a": (10, 3), "b": (10, 2), "c": (10, 3)}


def test_a_moved_row_keeps_its_image_count() -> None:
    cache = Cache()
    for name in ("a", "b", "c"):
        cache.add_node(make_node(name, images={"app:1": 10}))
    snapshot = cache.snapshot()
    cache.remove_node("a")  # c takes the row of a
    cache.refresh(snapshot)
    assert image_counts(snapshot) == {"b": (10, 3), "c": (10, 3)}


def test_an_update_of_the_last_node_with_an_image_sets_its_size() -> None:
    cache = Cache()
    cache.add_node(make_node("a", images={"app:1": 10}))
    cache.update_node(make_node("a", images={"app:1": 20}))
    assert image_counts(cache.snapshot()) == {"a": (20, 1)}


def test_an_update_of_one_of_two_nodes_does_not_set_the_size() -> None:
    cache = Cache()
    cache.add_node(make_node("a", images={"app:1": 10}))
    cache.add_node(make_node("b", images={"app:1": 10}))
    cache.update_node(make_node("a", images={"app:1": 20}))
    assert image_counts(cache.snapshot()) == {"a": (10, 2), "b": (10, 2)}


# journals


def test_a_journal_returns_the_numbers_since_a_cursor() -> None:
    journal = ChangeJournal()
    journal.append(1)
    cursor = journal.end
    assert journal.since(cursor) == set()
    journal.append(2)
    journal.append(3)
    journal.append(2)
    assert journal.since(cursor) == {2, 3}
    assert journal.since(0) == {1, 2, 3}


def test_a_journal_returns_none_for_an_old_cursor() -> None:
    journal = ChangeJournal(limit=4)
    for number in range(10):
        journal.append(number)
    assert journal.since(0) is None
    assert journal.since(journal.end) == set()
    assert journal.since(journal.end - 1) == {9}


def test_a_snapshot_that_is_too_far_behind_copies_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.cache.cache.ChangeJournal", lambda: ChangeJournal(limit=8))
    cache = Cache()
    for name in ("a", "b", "c"):
        cache.add_node(make_node(name, labels={"old": "yes"}, images={"app:1": 10}))
    snapshot = cache.snapshot()
    assert snapshot.table.label_ids("old").tolist() == [0, 0, 0]
    for turn in range(30):
        pod = make_pod(f"p{turn}", node="b", requests={"cpu": "100m"})
        cache.add_pod(pod)
        if turn % 3:
            cache.remove_pod(pod)
    cache.update_node(make_node("a"))
    cache.remove_node("c")
    cache.refresh(snapshot)
    assert {node.name: node.requested("cpu") for node in snapshot.table} == {"a": 0, "b": 1000}
    assert sum(info is not None for info in snapshot.pods.infos) == 10
    assert snapshot.table.label_ids("old").tolist() == [-1, 0]


# ids are released, but not reused while a snapshot may contain them


def test_ids_are_reused_only_when_every_snapshot_is_up_to_date() -> None:
    cache = Cache()
    cache.add_node(make_node("a"))
    behind, current = cache.snapshot(), cache.snapshot()
    old = make_pod("old", node="a", labels={"controller-uid": "1"})
    cache.add_pod(old)
    cache.refresh(behind)
    cache.refresh(current)
    cache.remove_pod(old)
    cache.refresh(current)
    cache.add_pod(make_pod("new", node="a", labels={"controller-uid": "2"}))
    cache.refresh(current)
    mask = behind.pods.matching("mine", lambda kind: kind.labels == {"controller-uid": "1"})
    assert int(mask.sum()) == 1  # unchanged
    cache.refresh(behind)
    assert int(behind.pods.matching("mine", lambda kind: kind.labels == {"controller-uid": "1"}).sum()) == 0


def test_unique_labels_do_not_fill_the_intern_tables() -> None:
    cache = Cache()
    cache.add_node(make_node("a"))
    snapshot = cache.snapshot()
    for turn in range(200):
        pod = make_pod(f"p{turn}", node="a", labels={"controller-uid": str(turn)})
        cache.add_pod(pod)
        cache.refresh(snapshot)
        cache.remove_pod(pod)
    cache.refresh(snapshot)
    assert len(cache.vocabulary.kinds) <= 3
    assert cache.vocabulary.kinds.in_use == 0


def test_a_dropped_snapshot_does_not_block_ids() -> None:
    cache = Cache()
    cache.add_node(make_node("a"))
    snapshot, abandoned = cache.snapshot(), cache.snapshot()
    del abandoned
    for turn in range(20):
        pod = make_pod(f"p{turn}", node="a", labels={"turn": str(turn)})
        cache.add_pod(pod)
        cache.refresh(snapshot)
        cache.remove_pod(pod)
    assert len(cache.vocabulary.kinds) <= 3


def test_taint_ids_in_a_snapshot_are_not_reused() -> None:
    cache = Cache()
    cache.add_node(make_node("a"))
    cache.add_node(make_node("b", taints=[taint("old")]))
    behind, current = cache.snapshot(), cache.snapshot()
    cache.remove_node("b")
    cache.refresh(current)
    cache.add_node(make_node("c", taints=[taint("new")]))
    cache.refresh(current)
    assert behind.table.where_taints(lambda taints: taints == (taint("old"),)).tolist() == [False, True]
    assert behind.table.count_taints(len).tolist() == [0, 1]


def test_changed_taints_stay_in_an_old_snapshot() -> None:
    cache = Cache()
    cache.add_node(make_node("a", taints=[taint("old")]))
    cache.add_node(make_node("b"))
    behind, current = cache.snapshot(), cache.snapshot()
    cache.update_node(make_node("a"))
    cache.refresh(current)
    cache.update_node(make_node("b", taints=[taint("new"), taint("newer")]))
    cache.refresh(current)
    assert behind.table.count_taints(len).tolist() == [1, 0]
    assert current.table.count_taints(len).tolist() == [0, 2]


# other objects


def test_other_objects_are_in_the_catalog_and_claims_are_observed() -> None:
    cache = Cache()
    claim = ResourceClaim(metadata=ObjectMeta(name="gpu", namespace="default", uid="u"))
    quick = StorageClass(metadata=ObjectMeta(name="quick"))
    for item in (claim, quick):
        cache.upsert(item)
    assert set(cache.catalog.resource_claims) == {"default/gpu"}
    assert set(cache.catalog.storage_classes) == {"quick"}
    for item in (claim, quick):
        cache.delete(item)
        cache.delete(item)  # a second deletion is ignored
    assert not cache.catalog.resource_claims
    assert not cache.catalog.storage_classes


def test_a_snapshot_reads_the_current_catalog() -> None:
    cache = Cache()
    snapshot = cache.snapshot()
    cache.upsert(StorageClass(metadata=ObjectMeta(name="quick")))
    assert "quick" in snapshot.catalog.storage_classes
