"""The incremental cache against one that recomputes everything.

Any history of events, observed by snapshots with different refresh times: nodes that are added, changed, removed and
added again, pods that arrive before their node, assumed pods that are confirmed on another node or forgotten. A
snapshot shows the state at its last refresh only, whatever happens to the cache or to forks of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.cache import Cache, PodSwap
from bayplan.errors import CacheError
from bayplan.objects.core import (
    Affinity,
    ContainerStatus,
    Node,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    ResourceRequirements,
)
from bayplan.objects.meta import Condition, LabelSelector
from bayplan.objects.ports import HostPort
from bayplan.snapshot import NamespacedLabels, NodeColumns, NodeTable, PodInfo, Snapshot
from naive.cache import NaiveCache, NaiveSnapshot, Refused
from support.builders.framework import make_node, make_pod, replace_fields, taint
from support.builders.volumes import claim_volume

NODES = ("n0", "n1", "n2", "n3")
PODS = range(6)
SNAPSHOTS = range(3)
ZONE = "topology.kubernetes.io/zone"
KEYS = (ZONE, "disk", "nobody-has-this")

# objects --------------------------------------------------------------------------------------------------------


def _anti(app: str) -> Affinity:
    near = PodAffinityTerm(topology_key=ZONE, label_selector=LabelSelector(match_labels={"app": app}))
    return Affinity(pod_anti_affinity=PodAffinity(required=(near,)))


NODE_SHAPES = st.fixed_dictionaries(
    {
        "labels": st.dictionaries(st.sampled_from((ZONE, "disk")), st.sampled_from(("a", "b", "c")), max_size=2),
        "taints": st.sampled_from(((), (taint("x"),), (taint("y"), taint("x")))),
        "features": st.sampled_from(((), ("F",))),
        "unschedulable": st.booleans(),
        "images": st.dictionaries(st.sampled_from(("app:1", "db:1")), st.sampled_from((10, 20)), max_size=2),
        "allocatable": st.sampled_from(({"cpu": "4", "pods": "9"}, {"cpu": "2", "x.io/gpu": "1"}, {"y.io/fpga": "3"})),
    }
)
POD_SHAPES = st.fixed_dictionaries(
    {
        "labels": st.sampled_from(({}, {"app": "web"}, {"app": "db"})),
        "requests": st.sampled_from(({}, {"cpu": "250m"}, {"memory": "1Gi", "x.io/gpu": "1"}, {"z.io/npu": "2"})),
        "host_ports": st.sampled_from(((), (80,), (80, 443))),
        "affinity": st.sampled_from((None, None, _anti("web"), _anti("db"))),
        "volumes": st.sampled_from(((), (claim_volume("c"),), (claim_volume("c"), claim_volume("d")))),
        "terminating": st.booleans(),
    }
)

_RESIZED = ContainerStatus(name="main", resources=ResourceRequirements(requests={"cpu": "2", "x.io/gpu": "3"}))
_AS_ASKED = ContainerStatus(name="main", resources=ResourceRequirements(requests={"cpu": "250m"}))
VERSIONS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    (
        {"metadata": {"annotations": {"received": "Regular"}}},
        {"metadata": {"annotations": {}}},
        {"metadata": {"labels": {"app": "web"}}},
        {"metadata": {"deletion_timestamp": datetime(2026, 1, 1, tzinfo=UTC)}},
        {"status": {"conditions": (Condition(type="PodBound", status="True"),)}},
        {"status": {"conditions": (Condition(type="PodResizePending", reason="Infeasible"),)}},
        {"status": {"container_statuses": (_RESIZED,)}},
        {"status": {"container_statuses": (_AS_ASKED,)}},
        {"status": {"container_statuses": (ContainerStatus(name="main"),)}},
        {"status": {"phase": "Running"}},
    )
)
"""Fields in which two versions of a pod may differ, with and without an effect on columns."""

# events ---------------------------------------------------------------------------------------------------------

NODE_NAMES = st.sampled_from(NODES)
OPERATIONS = st.one_of(
    st.tuples(st.just("put_node"), NODE_NAMES, NODE_SHAPES),
    st.tuples(st.just("drop_node"), NODE_NAMES),
    st.tuples(st.sampled_from(("assume", "add", "update")), st.sampled_from(PODS), NODE_NAMES, POD_SHAPES),
    st.tuples(st.sampled_from(("forget", "remove")), st.sampled_from(PODS), st.booleans()),
    st.tuples(st.just("tell_again"), st.sampled_from(PODS), VERSIONS),
    st.tuples(st.just("refresh"), st.sampled_from(SNAPSHOTS)),
    st.tuples(st.just("without"), st.sets(st.sampled_from(PODS), max_size=4), st.sampled_from(SNAPSHOTS)),
)
HISTORIES = st.lists(OPERATIONS, min_size=12, max_size=48)


class World:
    """A cache and its naive twin, with the same operations."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.twin = NaiveCache()
        self.snapshots = [self.cache.snapshot() for _ in SNAPSHOTS]
        self.twins = [NaiveSnapshot() for _ in SNAPSHOTS]
        self.shown = [self.twin.refresh(twin) for twin in self.twins]

    def tell(self, operation: tuple[Any, ...]) -> None:
        """Either both accept the operation, or both refuse it and are unchanged."""
        match operation:
            case ("refresh", number):
                self.refresh(number)
            case ("without", numbers, number):
                self._without({make_pod(f"p{each}").uid for each in numbers}, number)
            case ("put_node", name, shape):
                self._both("add_node", "put_node", make_node(name, **shape))
            case ("drop_node", name):
                self._both("remove_node", "drop_node", name)
            case ("tell_again", number, fields):
                self._tell_again(make_pod(f"p{number}").uid, fields)
            case (verb, number, str() as node, shape):
                self._both(_OF_CACHE[verb], verb, make_pod(f"p{number}", node=node, **shape))
            case (verb, number, bool() as exact):
                self._both(_OF_CACHE[verb], verb, self._known(number, exact=exact))

    def refresh(self, number: int) -> None:
        snapshot = self.snapshots[number]
        assert observed(snapshot) == self.shown[number], "a snapshot changed between refreshes"
        self.cache.refresh(snapshot)
        self.shown[number] = self.twin.refresh(self.twins[number])
        assert observed(snapshot) == self.shown[number]

    def _without(self, uids: set[str], number: int) -> None:
        """Pods are removed temporarily, a snapshot is taken, and they are added again."""
        self.cache.remove_temporarily(uids)
        with self.twin.aside(uids):
            self.refresh(number)
        self.cache.restore_removed(uids)

    def _tell_again(self, uid: str, fields: dict[str, Any]) -> None:
        """Another version of an existing pod. The conditions of a confirmed pod are visible at once."""
        known = self.twin.pods.get(uid)
        if known is not None and uid not in self.twin.assumed:
            self._both("update_pod", "update", replace_fields(known, **fields))
        elif known is not None and "status" not in fields:
            self._both("add_pod", "add", replace_fields(known, **fields))

    def _known(self, number: int, *, exact: bool) -> Pod:
        """A pod as an event refers to it: completely, or only by its uid."""
        pod = make_pod(f"p{number}")
        return self.twin.pods.get(pod.uid, pod) if exact else pod

    def _both(self, mine: str, its: str, *arguments: Any) -> None:
        try:
            getattr(self.twin, its)(*arguments)
        except Refused:
            with pytest.raises(CacheError):
                self._apply(mine, *arguments)
        else:
            self._apply(mine, *arguments)

    def _apply(self, verb: str, item: Any) -> None:
        getattr(self.cache, verb)(PodInfo(item) if verb == "assume" else item)


_OF_CACHE = {"assume": "assume", "add": "add_pod", "update": "update_pod", "forget": "forget", "remove": "remove_pod"}

# contents that plugins can read --------------------------------------------------------------------------------


def observed(snapshot: Snapshot) -> dict[str, Any]:
    """All results of a snapshot's methods, by node name."""
    table = snapshot.table
    names = list(table.names)
    return {
        "nodes": {name: _node_view(snapshot, table, row) for row, name in enumerate(names)},
        "order": [names[row] for row in snapshot.order.tolist()],
        "claims": dict(snapshot.pods.claim_users),
        "terms": {terms for _, terms in snapshot.pods.affinity_terms()},
    }


def _node_view(snapshot: Snapshot, table: NodeTable, row: int) -> dict[str, Any]:
    node = table[row]
    resources = snapshot.vocabulary.resources.names
    allocatable = {name: int(table.allocatable(name)[row]) for name in resources}
    requested = {name: int(table.requested(name)[row]) for name in resources}
    return {
        "node": node.node,
        "labels": {key: value for key in KEYS if (value := table.label(key).value_of(row)) is not None},
        "taints": _interned(table, "where_taints", row),
        "features": _interned(table, "where_features", row),
        "unschedulable": bool(table.unschedulable[row]),
        "allocatable": {name: amount for name, amount in allocatable.items() if amount},
        "requested": {name: amount for name, amount in requested.items() if amount},
        "nonzero": (int(table.nonzero_cpu[row]), int(table.nonzero_memory[row])),
        "count": int(table.pod_count[row]),
        "pods": sorted(info.uid for info in node.pods),
        "objects": {info.uid: info.pod for info in node.pods},
        "ports": _ports(snapshot.nodes, row),
        "images": _images(table, row),
        "kinds": _kinds(snapshot, row),
        "terms": Counter(
            terms
            for number, terms in snapshot.pods.affinity_terms()
            for _ in range(_count(snapshot, snapshot.pods.with_affinity(number), row))
        ),
        "terminating": _count(snapshot, _terminating(snapshot), row),
    }


def _interned(table: NodeTable, question: str, row: int) -> Any:
    """The single value of the row according to the table."""
    seen: list[Any] = []

    def is_here(value: Any) -> bool:
        def same(other: Any) -> bool:
            return bool(other == value)

        return bool(getattr(table, question)(same)[row])

    getattr(table, question)(lambda value: seen.append(value) or False)
    (found,) = {value for value in seen if is_here(value)}
    return found


def _ports(columns: NodeColumns, row: int) -> set[HostPort]:
    """From the index by port, which must agree with the set of the row."""
    found = {
        HostPort(address, protocol, port)
        for (protocol, port), rows in columns.port_rows.items()
        for address in rows.get(row, ())
    }
    assert found == columns.ports[row]
    return found


def _images(table: NodeTable, row: int) -> dict[str, tuple[int, int]]:
    found = {}
    for name in table.columns.image_rows:
        size, count = (int(column[row]) for column in table.image(name))
        if count:
            found[name] = (size, count)
    assert found == {name: (state.size_bytes, state.node_count) for name, state in table[row].images.items()}
    return found


def _kinds(snapshot: Snapshot, row: int) -> Counter[tuple[str, frozenset[tuple[str, str]]]]:
    seen: list[NamespacedLabels] = []
    snapshot.pods.matching(object(), lambda kind: seen.append(kind) or False)
    counts: Counter[tuple[str, frozenset[tuple[str, str]]]] = Counter()
    for kind in set(seen):
        mask = snapshot.pods.matching(("same", kind), kind.__eq__)
        counts[kind.namespace, frozenset(kind.labels.items())] += _count(snapshot, mask, row)
    return +counts


def _terminating(snapshot: Snapshot) -> Any:
    pods = snapshot.pods
    return pods.terminating[: pods.slots] & (pods.rows[: pods.slots] >= 0)


def _count(snapshot: Snapshot, mask: Any, row: int) -> int:
    return int(snapshot.pods.count_by_row(mask, len(snapshot))[row])


def uses(cache: Cache) -> dict[str, dict[Any, int]]:
    """Reference count of each interned value."""
    vocabulary = cache.vocabulary
    return {
        name: {value: count for number, value in interner.items() if (count := interner._use_count[number])}
        for name, interner in (
            ("taints", vocabulary.taints),
            ("features", vocabulary.features),
            ("kinds", vocabulary.kinds),
            ("affinities", vocabulary.affinities),
        )
    }


# properties -----------------------------------------------------------------------------------------------------


@given(HISTORIES)
@settings(max_examples=120)
def test_a_refreshed_snapshot_equals_a_new_one(history: list[tuple[Any, ...]]) -> None:
    world = World()
    for operation in history:
        world.tell(operation)
    for number in SNAPSHOTS:
        world.refresh(number)
    assert {pod.uid: pod for pod in world.cache.pods()} == world.twin.pods
    assert {uid for uid in world.twin.pods if world.cache.is_assumed(uid)} == world.twin.assumed


@given(HISTORIES)
@settings(max_examples=40)
def test_snapshots_of_different_ages_agree_after_a_refresh(history: list[tuple[Any, ...]]) -> None:
    world = World()
    for operation in history:
        world.tell(operation)
    for snapshot in world.snapshots:
        world.cache.refresh(snapshot)
    fresh, *aged = [_without_history(observed(each)) for each in (world.cache.snapshot(), *world.snapshots)]
    assert all(each == fresh for each in aged)


@given(st.lists(OPERATIONS | st.tuples(st.just("slice"), st.sampled_from(SNAPSHOTS)), min_size=12, max_size=48))
@settings(max_examples=80)
def test_refreshing_in_slices_leaves_only_changes_between_slices(history: list[tuple[Any, ...]]) -> None:
    world = World()
    cache, snapshots = world.cache, world.snapshots
    slices: dict[int, Iterator[None]] = {}
    changes: dict[int, list[PodSwap]] = {number: [] for number in SNAPSHOTS}

    def check(number: int) -> None:
        cache.refresh(snapshots[number], changes=changes[number])
        assert _agrees(snapshots[number], cache)
        assert _swapped(changes[number]) == Counter(id(info) for info in snapshots[number].pods.infos if info)

    for operation in history:
        match operation:
            case ("slice", number):
                following = slices.get(number) or cache.refresh_in_slices(
                    snapshots[number], changes=changes[number], at_once=1
                )
                slices[number] = following
                if next(following, "over") == "over":
                    del slices[number]
            case ("refresh", number):
                check(number)
            case ("without", numbers, number):
                uids = {make_pod(f"p{each}").uid for each in numbers}
                cache.remove_temporarily(uids)
                check(number)
                cache.restore_removed(uids)
            case _:
                world.tell(operation)
    for number in SNAPSHOTS:
        check(number)


def _swapped(changes: list[PodSwap]) -> Counter[int]:
    """The expected pods after all of this."""
    there: Counter[int] = Counter()
    for before, after in changes:
        there.update({id(after): 1} if after is not None else {})
        there.subtract({id(before): 1} if before is not None else {})
    return +there


def test_a_pod_of_a_refreshed_slice_is_counted_once() -> None:
    cache = Cache()
    cache.add_node(make_node("n"))
    snapshot = cache.snapshot()
    cache.add_pod(make_pod("p", node="n", requests={"cpu": "1"}))
    next(cache.refresh_in_slices(snapshot, at_once=1))
    cache.refresh(snapshot)
    assert observed(snapshot) == observed(cache.snapshot())


def test_refreshing_in_slices_is_complete() -> None:
    cache = Cache()
    snapshot = cache.snapshot()
    for number in range(10):
        cache.add_node(make_node(f"n{number}", images={"app:1": 10}))
        cache.add_pod(make_pod(f"p{number}", node=f"n{number}"))
    assert len(list(cache.refresh_in_slices(snapshot, at_once=4))) == 6
    assert len(list(cache.refresh_in_slices(snapshot, at_once=4))) == 0
    cache.refresh(snapshot)
    assert observed(snapshot) == observed(cache.snapshot())


@pytest.mark.parametrize("taken", range(7))
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda cache: cache.add_pod(make_pod("new", node="n0")), id="pod-on-the-first-row"),
        pytest.param(lambda cache: cache.add_pod(make_pod("new", node="n2")), id="pod-on-the-last-row"),
        pytest.param(lambda cache: cache.remove_pod(make_pod("p0", node="n0")), id="pod-gone"),
        pytest.param(lambda cache: cache.update_node(make_node("n0", labels={"disk": "fast"})), id="node-changed"),
        pytest.param(lambda cache: cache.remove_node("n0"), id="node-gone"),
        pytest.param(lambda cache: cache.add_node(make_node("n3")), id="node-added"),
    ],
)
def test_whatever_changes_between_two_slices_is_seen_by_the_next_refresh(
    taken: int, change: Callable[[Cache], None]
) -> None:
    """Three rows and three pods are six slices: the change comes before each of them, and after the last."""
    cache = Cache()
    snapshot = cache.snapshot()
    for number in range(3):
        cache.add_node(make_node(f"n{number}"))
        cache.add_pod(make_pod(f"p{number}", node=f"n{number}"))
    following = cache.refresh_in_slices(snapshot, at_once=1)
    assert sum(1 for _ in islice(following, taken)) == min(taken, 6)
    change(cache)
    for _ in following:
        pass
    cache.refresh(snapshot)
    assert _agrees(snapshot, cache)


def _agrees(snapshot: Snapshot, cache: Cache) -> bool:
    return _without_history(observed(snapshot)) == _without_history(observed(cache.snapshot()))


def _without_history(view: dict[str, Any]) -> dict[str, Any]:
    """Image counts and the visiting order depend on the time of the refresh, by design."""
    nodes = {name: {**node, "images": set(node["images"])} for name, node in view["nodes"].items()}
    return {**view, "nodes": nodes, "order": sorted(view["order"])}


@given(HISTORIES, st.integers(90, 99), NODE_NAMES, POD_SHAPES)
@settings(max_examples=40)
def test_forgetting_an_assumed_pod_leaves_no_trace(
    history: list[tuple[Any, ...]], number: int, node: str, shape: dict[str, Any]
) -> None:
    world = World()
    for operation in history:
        world.tell(operation)
    world.refresh(0)
    before, used = observed(world.snapshots[0]), uses(world.cache)
    pod = make_pod(f"p{number}", node=node, **{**shape, "host_ports": (8000 + number,)})
    world.cache.assume(PodInfo(pod))
    assert world.cache.is_assumed(pod.uid)
    world.cache.refresh(world.snapshots[1])
    world.cache.forget(pod)
    world.cache.refresh(world.snapshots[0])
    assert _without_history(observed(world.snapshots[0])) == _without_history(before)
    assert uses(world.cache) == used
    assert world.cache.pod(pod.uid) is None


@dataclass
class ForkStep:
    row: int
    add: dict[str, Any] | None  # None: remove some pod


FORK_STEPS = st.lists(st.builds(ForkStep, st.integers(0, 3), st.none() | POD_SHAPES), max_size=8)


@given(HISTORIES, FORK_STEPS, st.permutations(range(len(NODES))))
@settings(max_examples=40)
def test_changes_of_a_fork_do_not_affect_the_cache(
    history: list[tuple[Any, ...]], steps: list[ForkStep], rows: list[int]
) -> None:
    world = World()
    for operation in history:
        world.tell(operation)
    world.refresh(0)
    snapshot = world.snapshots[0]
    chosen = [row for row in rows if row < len(snapshot)]
    if not chosen:
        return
    fork = snapshot.nodes.fork(chosen)
    _same_rows(NodeTable(fork), NodeTable(snapshot.nodes, np.array(chosen)))
    for number, step in enumerate(steps):
        row = step.row % len(chosen)
        if step.add is not None:
            fork.add_pod(row, PodInfo(make_pod(f"tried{number}", node=fork.names[row], **step.add)))
        elif fork.pods[row]:
            fork.remove_pod(row, fork.pods[row][0])
    assert observed(snapshot) == world.shown[0]
    with suppress(CacheError):
        world.cache.add_node(make_node("n0", labels={ZONE: "elsewhere"}))
    assert observed(snapshot) == world.shown[0]


def _same_rows(forked: NodeTable, narrowed: NodeTable) -> None:
    """A fork of some rows equals the same rows of a narrowed table, with the same ids."""
    assert list(forked.names) == list(narrowed.names)
    for key in KEYS:
        assert forked.label_ids(key).tolist() == narrowed.label_ids(key).tolist()
    for resource in forked.columns.vocabulary.resources.names:
        assert forked.requested(resource).tolist() == narrowed.requested(resource).tolist()
        assert forked.allocatable(resource).tolist() == narrowed.allocatable(resource).tolist()
    for port in (80, 443):
        wanted = HostPort("0.0.0.0", "TCP", port)
        assert forked.where_port_taken(wanted).tolist() == narrowed.where_port_taken(wanted).tolist()
    for name in ("app:1", "db:1"):
        assert [each.tolist() for each in forked.image(name)] == [each.tolist() for each in narrowed.image(name)]


@given(st.lists(st.tuples(NODE_NAMES, NODE_SHAPES, st.booleans()), max_size=20))
def test_the_visiting_order_is_a_permutation_in_which_zones_take_turns(
    told: list[tuple[str, dict[str, Any], bool]],
) -> None:
    cache = Cache()
    for name, shape, drop in told:
        if drop and cache.node(name) is not None:
            cache.remove_node(name)
        else:
            cache.add_node(make_node(name, **shape))
    snapshot = cache.snapshot()
    assert sorted(snapshot.order.tolist()) == list(range(len(snapshot)))
    zones = [_zone(snapshot.nodes.nodes[row]) for row in snapshot.order.tolist()]
    turns = [zones[:position].count(zone) for position, zone in enumerate(zones)]
    assert turns == sorted(turns)


def _zone(node: Node) -> str:
    return node.metadata.labels.get(ZONE, "")
