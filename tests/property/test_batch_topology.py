"""Gangs in a network topology: trying likely hypernodes first, against trying all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.batch.actions import topology_allocate
from bayplan.batch.actions.topology_allocate import TopologyAllocator
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.session import Session
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.objects.volcano.types import (
    ExactMatch,
    HyperNode,
    HyperNodeSpec,
    MemberSelector,
    MemberSpec,
    NetworkTopology,
)
from bayplan.testing.builders import make_node
from support.builders.batch import NOW, make_group, make_member
from support.builders.batch_engines import build_engine

CONF = """\
actions: "allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: network-topology-aware
"""

World = tuple[list[Node], list[Pod], list[KubeObject]]


def place(name: str, tier: int, kind: str, members: list[str]) -> HyperNode:
    listed = tuple(MemberSpec(kind, MemberSelector(exact_match=ExactMatch(member))) for member in members)
    return HyperNode(metadata=ObjectMeta(name=name), spec=HyperNodeSpec(tier, "", listed))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Leaf hypernodes of one to three nodes below two parents; some nodes are full, or about to be free."""
    objects: list[KubeObject] = []
    nodes: list[Node] = []
    pods: list[Pod] = []
    leaves = [f"s{number}" for number in range(draw(st.integers(3, 6)))]
    for leaf in leaves:
        names = [f"{leaf}-n{number}" for number in range(draw(st.integers(1, 3)))]
        nodes += [make_node(name, cpu=draw(st.integers(1, 4))) for name in names]
        objects.append(place(leaf, 1, "Node", names))
    objects += [place("t0", 2, "HyperNode", leaves[:2]), place("t1", 2, "HyperNode", leaves[2:])]
    objects.append(make_group("old", phase="Running", min_member=1))
    for number, node in enumerate(nodes):
        if draw(st.booleans()):
            pod = make_member(f"old-w-{number}", "old", node=node.name)
            gone = {"deletion_timestamp": NOW} if draw(st.booleans()) else {}
            pods.append(replace(pod, metadata=replace(pod.metadata, **gone)))
    for number in range(draw(st.integers(1, 3))):
        name, size = f"job{number}", draw(st.integers(1, 4))
        mode = draw(st.sampled_from(["hard", "hard", "soft"]))
        topology = NetworkTopology(mode, draw(st.sampled_from([1, 2])) if mode == "hard" else None)
        least = draw(st.integers(1, size))
        objects.append(make_group(name, phase="Inqueue", min_member=least, network_topology=topology))
        pods += [_member(draw, f"{name}-w-{task}", name) for task in range(size)]
    return nodes, pods, objects


def _member(draw: st.DrawFn, name: str, group: str) -> Pod:
    role = draw(st.sampled_from(["", "worker"]))
    annotations = {"volcano.sh/task-spec": role} if role else {}
    return make_member(name, group, requests={"cpu": draw(st.integers(1, 2))}, annotations=annotations)


@contextmanager
def trying(*, few: bool) -> Iterator[None]:
    """Equally good nodes are taken in their order, because a different number of trials would change random choices."""
    by_few = TopologyAllocator._try_ranked_hypernodes
    with (
        patch.object(Session, "tie_break", lambda *given: int(given[-1][0])),
        patch.object(TopologyAllocator, "_try_ranked_hypernodes", by_few if few else lambda *_: None),
    ):
        yield


def _told(outcome: SessionResult) -> tuple[object, ...]:
    return (
        outcome.binds,
        outcome.pipelined,
        outcome.allocated,
        outcome.groups,
        outcome.messages,
        outcome.events,
        outcome.faults,
    )


@settings(max_examples=120, deadline=None)
@given(worlds(), st.sampled_from([1, 8]))
def test_trying_few_hypernodes_changes_nothing(world: World, in_vain: int) -> None:
    nodes, pods, objects = world
    with trying(few=False):
        plain = build_engine(conf=CONF, nodes=nodes, pods=pods, objects=objects).run_session()
    with trying(few=True), patch.object(topology_allocate, "_MAX_FAILED_TRIALS", in_vain):
        quick = build_engine(conf=CONF, nodes=nodes, pods=pods, objects=objects).run_session()
    assert _told(quick) == _told(plain)
