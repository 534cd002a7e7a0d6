"""Volume filters on columns and indexes agree with a naive evaluation of one node after another."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.plugins.node_volume_limits.plugin import NodeVolumeLimits
from bayplan.plugins.volume_binding.plugin import VolumeBinding
from bayplan.snapshot import NodeTable
from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.binding import AFFINITY_CONFLICT, VOLUME_MISSING, VolumeFinder
from bayplan.volumes.claims import classify_claims
from bayplan.volumes.volume_matcher import CandidateVolumes, reachable, requested_size, volume_size
from support.builders.framework import FakeHandle, make_cycle, make_filtering, make_node, make_plugin, make_snapshot
from support.builders.volumes import (
    HOST,
    ZONE,
    affinity,
    claim_volume,
    make_attachment,
    make_claim,
    make_class,
    make_csi_node,
    make_driver,
    make_storage_capacity,
    make_volume,
    volume_pod,
)

NODES = [
    make_node(f"n{number}", labels={HOST: f"n{number}"} | ({ZONE: "abc"[number % 3]} if number % 4 else {}))
    for number in range(6)
]
places = st.one_of(
    st.none(),
    st.lists(
        st.one_of(
            st.fixed_dictionaries({ZONE: st.lists(st.sampled_from("abx"), min_size=1, max_size=2)}),
            st.fixed_dictionaries({HOST: st.lists(st.sampled_from(["n0", "n1", "n2", "n9"]), min_size=1, max_size=3)}),
            st.fixed_dictionaries({ZONE: st.just(["a"]), HOST: st.just(["n3"])}),
            st.just({}),
        ),
        max_size=2,
    ),
)
sizes = st.sampled_from(["1Gi", "2Gi", "3Gi"])


@st.composite
def free_volumes(draw: st.DrawFn) -> list[Any]:
    found = []
    for number in range(draw(st.integers(0, 6))):
        place = draw(places)
        spec = {} if place is None else {"node_affinity": affinity(*place)}
        found.append(make_volume(f"v{number}", size=draw(sizes), **spec))
    return found


@st.composite
def clusters(draw: st.DrawFn) -> list[Any]:
    topologies = draw(st.sampled_from([(), ({ZONE: ["a"]},), ({HOST: ["n1", "n2"]}, {ZONE: ["b"]})]))
    provisioner = draw(st.sampled_from(["csi.example.com", "kubernetes.io/no-provisioner"]))
    pools = [
        make_storage_capacity(
            f"p{number}", capacity=draw(sizes), near=draw(st.sampled_from([{}, {ZONE: "a"}, {HOST: "n2"}]))
        )
        for number in range(draw(st.integers(0, 3)))
    ]
    drivers = [make_driver()] if draw(st.booleans()) else []
    return [make_class(provisioner=provisioner, topologies=topologies), *drivers, *pools, *draw(free_volumes())]


@settings(max_examples=150, deadline=None)
@given(
    cluster=clusters(),
    waiting=st.lists(sizes, max_size=3),
    bound=st.lists(st.one_of(st.just("gone"), places), max_size=2),
)
def test_columns_agree_with_the_naive_evaluation(cluster: list[Any], waiting: list[str], bound: list[Any]) -> None:
    objects = [*cluster, *(make_claim(f"w{number}", size=size) for number, size in enumerate(waiting))]
    for number, place in enumerate(bound):
        objects.append(make_claim(f"b{number}", volume=f"bound{number}"))
        if place != "gone":
            spec = {} if place is None else {"node_affinity": affinity(*place)}
            objects.append(make_volume(f"bound{number}", phase="Bound", **spec))
    names = [f"w{number}" for number in range(len(waiting))] + [f"b{number}" for number in range(len(bound))]
    pod = volume_pod(*(claim_volume(name, name) for name in names))
    snapshot = make_snapshot(NODES, objects=objects)
    filtering = make_filtering(make_plugin(VolumeBinding, handle=FakeHandle(snapshot.catalog)))
    cycle = make_cycle(pod, snapshot)
    diagnosis = filtering.run_filters(cycle, filtering.pre_filter(cycle))
    got = {name: diagnosis.status(row).reasons for row, name in enumerate(snapshot.nodes.names)}
    assert got == {node.name: one_by_one(pod, node, snapshot.catalog) for node in NODES}


def one_by_one(pod: Any, node: Any, lookup: Any) -> tuple[str, ...]:
    """A new decider for each node, so that no index is used."""
    assumptions = VolumeAssumptions(lookup)
    decider = VolumeFinder(classify_claims(pod, assumptions.claims, lookup), assumptions, lookup)
    missing = affinity_reason = None
    for volume in decider.bound:
        if volume.missing:
            missing = VOLUME_MISSING
        elif not volume.reachable(node.labels, frozenset()):
            affinity_reason = AFFINITY_CONFLICT
        if missing or affinity_reason:
            break
    conflict, _ = decider.find_pod_volumes(node.name, node.labels)
    return tuple(reason for reason in (affinity_reason, conflict, missing) if reason is not None)


@given(volumes=free_volumes(), size=sizes, taken=st.sets(st.sampled_from(["v0", "v1"])))
def test_the_index_finds_a_volume_of_the_same_size_as_a_scan(volumes: list[Any], size: str, taken: set[str]) -> None:
    claim = make_claim(size=size)
    candidates = CandidateVolumes(claim, volumes)
    for node in (*NODES, *NODES):
        found = candidates.find(node.labels, taken)
        fitting = [
            volume_size(volume)
            for volume in volumes
            if volume.name not in taken
            and not volume_size(volume) < requested_size(claim)
            and reachable(volume.spec.node_affinity, node.labels)
        ]
        assert (None if found is None else volume_size(found)) == min(fitting, default=None)


@st.composite
def attached_clusters(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    claims = [make_claim(f"c{number}", volume=f"v{number}") for number in range(5)]
    volumes = [make_volume(f"v{number}", handle=f"h{number}", driver="de"[number % 2]) for number in range(5)]
    limits = [make_csi_node(f"n{row}", d=draw(st.integers(0, 3)), e=draw(st.integers(0, 3))) for row in range(3)]
    attachments = [
        make_attachment(f"a{number}", f"n{draw(st.integers(0, 2))}", f"v{draw(st.integers(0, 4))}", attacher="d")
        for number in range(draw(st.integers(0, 3)))
    ]
    pods = [
        volume_pod(
            *(claim_volume(f"c{number}", f"x{number}") for number in draw(st.sets(st.integers(0, 5), max_size=3))),
            name=f"p{position}",
            node=f"n{draw(st.integers(0, 3))}",
        )
        for position in range(draw(st.integers(0, 6)))
    ]
    return [*claims, *volumes, *limits, *attachments], pods


@settings(deadline=None)
@given(cluster=attached_clusters(), wanted=st.sets(st.integers(0, 4), min_size=1, max_size=3))
def test_bounds_never_hide_a_full_node(cluster: tuple[list[Any], list[Any]], wanted: set[int]) -> None:
    objects, pods = cluster
    snapshot = make_snapshot(NODES[:4], pods, objects)
    plugin = make_plugin(NodeVolumeLimits, handle=FakeHandle(snapshot.catalog))
    cycle = make_cycle(volume_pod(*(claim_volume(f"c{number}", f"w{number}") for number in wanted)), snapshot)
    filtering = make_filtering(plugin)
    whole = filtering.filter_table(cycle, snapshot.table)
    for row in range(4):  # a fork has no columns of bounds: every row is counted
        fork = NodeTable(snapshot.nodes.fork([row]))
        assert whole.status(row) == filtering.filter_table(cycle, fork).status(0)
