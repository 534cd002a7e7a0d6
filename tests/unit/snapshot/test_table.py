"""What a plugin sees: complete and restricted tables, single nodes, forks, and pods as columns."""

from __future__ import annotations

import numpy as np
import pytest

from bayplan.objects.core import ContainerPort
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.ports import HostPort
from bayplan.objects.storage import StorageClass
from bayplan.snapshot import Catalog, ImageState, InternTables, NodeColumns, NodeTable, PodInfo, Snapshot
from bayplan.snapshot.labels import LabelColumns
from support.builders.framework import make_node, make_pod, make_snapshot, taint
from support.builders.volumes import claim_volume

GPU = "x.io/gpu"


@pytest.fixture
def snapshot() -> Snapshot:
    nodes = [
        make_node("a", labels={"zone": "z1"}, allocatable={"cpu": "4", GPU: "2"}, taints=[taint("t")]),
        make_node("b", labels={"zone": "z2"}, unschedulable=True, images={"app:1": 10}, features=["F"]),
        make_node("c", labels={}, allocatable={"cpu": "1"}, taints=[taint("t"), taint("u")]),
    ]
    pods = [
        make_pod("p", node="a", requests={"cpu": "1", GPU: "1"}, host_ports=(80,)),
        make_pod("q", node="a", labels={"app": "web"}, volumes=(claim_volume("data"),)),
        make_pod("r", node="c", host_ports=(ContainerPort(host_port=80, host_ip="10.0.0.1"),)),
    ]
    return make_snapshot(nodes, pods)


# complete and restricted tables


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0], [1], []], ids=str)
def test_a_restricted_table_keeps_its_own_order(snapshot: Snapshot, rows: list[int]) -> None:
    whole, table = snapshot.table, NodeTable(snapshot.nodes, np.array(rows, dtype=np.intp))
    port = HostPort("0.0.0.0", "TCP", 80)
    questions = {
        "cpu": lambda t: t.allocatable("cpu"),
        "gpus asked for": lambda t: t.requested(GPU),
        "unknown resource": lambda t: t.requested("nobody/has"),
        "nonzero cpu": lambda t: t.nonzero_cpu,
        "nonzero memory": lambda t: t.nonzero_memory,
        "pods": lambda t: t.pod_count,
        "cordoned": lambda t: t.unschedulable,
        "zone": lambda t: t.label_ids("zone"),
        "in z1": lambda t: t.where_label_in("zone", ["z1", "z9"]),
        "zone ends in 2": lambda t: t.where_label("zone", lambda value: value.endswith("2")),
        "named": lambda t: t.where_named(["a", "c", "nobody"]),
        "tainted twice": lambda t: t.where_taints(lambda taints: len(taints) == 2),
        "taints": lambda t: t.count_taints(len),
        "features": lambda t: t.where_features(lambda features: "F" in features),
        "port": lambda t: t.where_port_taken(port),
        "image size": lambda t: t.image("app:1")[0],
    }
    for name, ask in questions.items():
        expected = ask(whole)
        assert ask(table).tolist() == [expected[row] for row in rows], name
    assert table.names == [whole.names[row] for row in rows]
    assert [view.name for view in table] == table.names
    assert len(table) == len(rows)


def test_values_of_a_whole_table(snapshot: Snapshot) -> None:
    table = snapshot.table
    assert table.is_whole
    assert table.rows.tolist() == [0, 1, 2]
    assert table.allocatable("cpu").tolist() == [4000, 8000, 1000]
    assert table.requested(GPU).tolist() == [1, 0, 0]
    assert table.nonzero_cpu.tolist() == [1100, 0, 100]
    assert table.pod_count.tolist() == [2, 0, 1]
    assert table.unschedulable.tolist() == [False, True, False]
    assert table.where_label_in("zone", ["z1"]).tolist() == [True, False, False]
    assert table.where_label("zone", lambda _: True).tolist() == [
        True,
        True,
        False,
    ]  # a row without the key is not evaluated
    assert table.where_named(["c"]).tolist() == [False, False, True]
    assert table.count_taints(len).tolist() == [1, 0, 2]
    assert table.where_features(lambda features: "F" in features).tolist() == [False, True, False]
    assert [column.tolist() for column in table.image("app:1")] == [[0, 10, 0], [0, 1, 0]]
    assert [column.tolist() for column in table.image("nobody:1")] == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("port", "taken"),
    [
        pytest.param(HostPort("0.0.0.0", "TCP", 80), [True, False, True], id="any-address-meets-all"),
        pytest.param(HostPort("10.0.0.1", "TCP", 80), [True, False, True], id="same-address-or-any"),
        pytest.param(HostPort("10.0.0.2", "TCP", 80), [True, False, False], id="another-address"),
        pytest.param(HostPort("0.0.0.0", "UDP", 80), [False, False, False], id="another-protocol"),
        pytest.param(HostPort("0.0.0.0", "TCP", 81), [False, False, False], id="another-port"),
    ],
)
def test_taken_ports(snapshot: Snapshot, port: HostPort, taken: list[bool]) -> None:
    assert snapshot.table.where_port_taken(port).tolist() == taken


def test_restricting_twice(snapshot: Snapshot) -> None:
    once = snapshot.table.restricted_to(np.array([True, False, True]))
    twice = once.restricted_to(np.array([False, True]))
    assert once.names == ["a", "c"]
    assert not once.is_whole
    assert twice.names == ["c"]
    assert twice[0].name == "c"


def test_one_node(snapshot: Snapshot) -> None:
    node = snapshot.table[0]
    assert (node.name, node.node.name, dict(node.labels)) == ("a", "a", {"zone": "z1"})
    assert (node.allocatable("cpu"), node.requested("cpu"), node.free("cpu")) == (4000, 1000, 3000)
    assert (node.allocatable("nobody/has"), node.free(GPU)) == (0, 1)
    assert node.taints == (taint("t"),)
    assert node.ports == {HostPort("0.0.0.0", "TCP", 80)}
    assert [info.uid for info in node.pods] == ["uid-default-p", "uid-default-q"]
    assert dict(snapshot.table[1].images) == {"app:1": ImageState(10, 1)}


def test_an_empty_cluster_has_empty_columns() -> None:
    table = make_snapshot().table
    assert len(table) == 0
    assert table.allocatable("cpu").tolist() == []
    assert table.where_label_in("zone", ["a"]).tolist() == []
    assert table.where_taints(lambda _: True).tolist() == []
    assert table.where_port_taken(HostPort("0.0.0.0", "TCP", 80)).tolist() == []


# columns


def test_either_of_two_pods_on_one_port_frees_it() -> None:
    columns = NodeColumns(InternTables())
    row = columns.add_row(make_node())
    first, second = (PodInfo(make_pod(name, host_ports=(80,))) for name in ("first", "second"))
    columns.add_pod(row, first)
    columns.add_pod(row, second)
    columns.remove_pod(row, first)
    assert columns.ports[row] == set()
    assert columns.port_rows == {}
    columns.remove_pod(row, second)
    assert columns.pods[row] == []


def test_the_last_pod_takes_the_position_of_a_removed_one() -> None:
    columns = NodeColumns(InternTables())
    row = columns.add_row(make_node())
    infos = [PodInfo(make_pod(name)) for name in "abcd"]
    for info in infos:
        columns.add_pod(row, info)
    columns.remove_pod(row, infos[1])
    assert [info.pod.name for info in columns.pods[row]] == ["a", "d", "c"]


def test_rows_grow_beyond_the_first_capacity() -> None:
    columns = NodeColumns(InternTables(), capacity=1)
    for number in range(40):
        row = columns.add_row(make_node(f"n{number}", allocatable={"cpu": str(number)}))
        columns.add_pod(row, PodInfo(make_pod(f"p{number}", requests={f"r.io/{number % 7}": "1", "cpu": "1"})))
    table = NodeTable(columns)
    assert table.allocatable("cpu").tolist() == [1000 * number for number in range(40)]
    assert table.requested("r.io/3").tolist() == [int(number % 7 == 3) for number in range(40)]
    assert table.pod_count.tolist() == [1] * 40


def test_a_reused_row_starts_empty() -> None:
    columns = NodeColumns(InternTables())
    row = columns.add_row(make_node("a", allocatable={"cpu": "1", GPU: "8"}))
    columns.add_pod(row, PodInfo(make_pod(requests={"cpu": "1"}, host_ports=(80,))))
    columns.drop_row(row)
    columns.add_row(make_node("b", allocatable={"cpu": "2"}))
    (node,) = NodeTable(columns)
    assert (node.allocatable(GPU), node.requested("cpu"), node.ports, node.pods) == (0, 0, set(), [])
    assert NodeTable(columns).nonzero_cpu.tolist() == [0]


def test_a_fork_can_be_modified(snapshot: Snapshot) -> None:
    fork = snapshot.nodes.fork([2, 0])
    assert fork.names == ["c", "a"]
    fork.remove_pod(1, fork.pods[1][0])
    fork.add_pod(0, PodInfo(make_pod("more", requests={"cpu": "1", "new.io/thing": "3"}, host_ports=(443,))))
    assert NodeTable(fork).requested("cpu").tolist() == [1000, 0]
    assert NodeTable(fork).requested("new.io/thing").tolist() == [3, 0]
    assert NodeTable(fork).where_port_taken(HostPort("0.0.0.0", "TCP", 443)).tolist() == [True, False]
    assert NodeTable(fork).where_port_taken(HostPort("0.0.0.0", "TCP", 80)).tolist() == [True, False]
    assert snapshot.table.requested("cpu").tolist() == [1000, 0, 0]
    assert snapshot.table.requested("new.io/thing").tolist() == [0, 0, 0]
    assert snapshot.table.where_port_taken(HostPort("0.0.0.0", "TCP", 443)).tolist() == [False, False, False]


def test_a_fork_of_a_fork(snapshot: Snapshot) -> None:
    fork = snapshot.nodes.fork([0, 1])
    fork.remove_pod(0, fork.pods[0][0])
    again = fork.fork([0])
    assert again.names == ["a"]
    assert NodeTable(again).requested("cpu").tolist() == [0]
    assert NodeTable(again).label_ids("zone").tolist() == snapshot.table.label_ids("zone").tolist()[:1]


# labels


def test_a_label_column_is_built_on_demand_and_updated() -> None:
    nodes = [make_node("a", labels={"zone": "x"}), make_node("b")]
    columns = LabelColumns(nodes)
    column = columns.column("zone")
    assert (column.value_of(0), column.value_of(1), column.find("x"), column.find("y")) == ("x", None, 0, -1)
    nodes.append(make_node("c", labels={"zone": "y"}))
    columns.put(2, nodes[2])
    columns.put(0, make_node("a"))
    assert [column.value_of(row) for row in range(3)] == [None, None, "y"]
    assert columns.column("zone") is column


def test_a_column_with_mostly_unused_values_is_rebuilt() -> None:
    nodes = [make_node("a", labels={"host": "h0"})]
    columns = LabelColumns(nodes)
    columns.column("host")
    for number in range(200):
        nodes[0] = make_node("a", labels={"host": f"h{number}"})
        columns.put(0, nodes[0])
    assert len(columns.column("host").values) == 200
    columns.forget_stale_values(count=1)
    assert columns.column("host").values == ["h199"]


# pods as columns


def test_pods_are_counted_by_row(snapshot: Snapshot) -> None:
    pods = snapshot.pods
    all_pods = pods.matching("all", lambda _: True)
    assert pods.count_by_row(all_pods, 3).tolist() == [2, 0, 1]
    web = pods.matching("web", lambda kind: kind.labels.get("app") == "web")
    assert pods.count_by_row(web, 3).tolist() == [1, 0, 0]
    assert pods.claim_users == {"default/data": 1}
    assert {info.pod.name for info in pods.on_rows()} == {"p", "q", "r"}


def test_a_cleared_slot_counts_nowhere(snapshot: Snapshot) -> None:
    pods = snapshot.pods
    pods.clear_slot(1)
    pods.clear_slot(1)  # a second call is ignored
    assert pods.count_by_row(pods.matching("all", lambda _: True), 3).tolist() == [1, 0, 1]
    assert pods.claim_users == {}


def test_one_claim_used_by_two_volumes_counts_twice() -> None:
    pod = make_pod("p", node="a", volumes=(claim_volume("data", "one"), claim_volume("data", "two")))
    assert make_snapshot([make_node("a")], [pod]).pods.claim_users == {"default/data": 2}


def test_results_of_old_selectors_are_dropped(snapshot: Snapshot) -> None:
    calls: list[str] = []

    def ask(kind: object) -> bool:
        calls.append("again")
        return bool(kind)

    snapshot.pods.matching("first", ask)
    snapshot.pods.matching("first", ask)
    once = len(calls)
    for number in range(600):
        snapshot.pods.matching(number, lambda _: False)
    snapshot.pods.matching("first", ask)
    assert (once, len(calls)) == (2, 4)  # two kinds, evaluated once each and, after this many selectors, once more


# the catalog


def test_a_catalog_counts_changes_by_kind() -> None:
    quick = StorageClass(metadata=ObjectMeta(name="quick"))
    catalog = Catalog([quick])
    assert catalog.storage_classes["quick"] is quick
    before = catalog.revision(StorageClass)
    catalog.delete(StorageClass(metadata=ObjectMeta(name="nobody")))
    assert catalog.revision(StorageClass) == before
    catalog.delete(quick)
    assert catalog.revision(StorageClass) == before + 1
    assert dict(catalog.storage_classes) == {}


def test_an_unknown_namespace_has_no_labels() -> None:
    assert Catalog().namespace_labels("nowhere") == {}
