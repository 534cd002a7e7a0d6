from __future__ import annotations

from typing import Any

import pytest

from bayplan.batch.model.hypernodes import TOP_HYPERNODE, build_hypernode_tree, missing_members, unreadable_members
from bayplan.objects.core import Node
from bayplan.objects.meta import LabelSelector, ObjectMeta
from bayplan.objects.volcano.types import ExactMatch, HyperNode, HyperNodeSpec, MemberSelector, MemberSpec, RegexMatch
from bayplan.testing.builders import make_node
from support.builders.batch import open_session

NODES: list[Node] = [make_node(f"n{number}", labels={"rack": f"r{number // 2}"}) for number in range(4)]
WAITING = "; jobs that ask for a network topology wait until this is corrected"


def nodes_named(*names: str) -> list[MemberSpec]:
    return [MemberSpec("Node", MemberSelector(exact_match=ExactMatch(name))) for name in names]


def children(*names: str) -> list[MemberSpec]:
    return [MemberSpec("HyperNode", MemberSelector(exact_match=ExactMatch(name))) for name in names]


def hyper(name: str, tier: int, members: list[MemberSpec], tier_name: str = "") -> HyperNode:
    return HyperNode(metadata=ObjectMeta(name=name), spec=HyperNodeSpec(tier, tier_name, tuple(members)))


TREE = [
    hyper("s0", 1, nodes_named("n0", "n1"), "leaf"),
    hyper("s1", 1, nodes_named("n2", "n3"), "leaf"),
    hyper("s2", 2, children("s0", "s1"), "spine"),
]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param(MemberSelector(exact_match=ExactMatch("n1")), {"n1"}, id="exact"),
        pytest.param(MemberSelector(regex_match=RegexMatch("[01]")), {"n0", "n1"}, id="unanchored-pattern"),
        pytest.param(MemberSelector(regex_match=RegexMatch("(")), set(), id="a-broken-pattern"),
        pytest.param(MemberSelector(label_match=LabelSelector({"rack": "r1"})), {"n2", "n3"}, id="labels"),
        pytest.param(MemberSelector(label_match=LabelSelector()), set(), id="empty-labels-match-no-node"),
        pytest.param(
            MemberSelector(exact_match=ExactMatch("n0"), regex_match=RegexMatch("3")), {"n0", "n3"}, id="several-add-up"
        ),
    ],
)
def test_nodes_that_a_member_selector_matches(selector: MemberSelector, expected: set[str]) -> None:
    places, fault = build_hypernode_tree([hyper("s0", 1, [MemberSpec("Node", selector)])], NODES)
    assert not fault
    assert places["s0"].nodes == expected


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_the_order_of_objects_does_not_matter(order: list[int]) -> None:
    places, fault = build_hypernode_tree([TREE[number] for number in order], NODES)
    assert not fault
    assert places["s2"].nodes == {"n0", "n1", "n2", "n3"}
    assert places["s2"].children == {"s0", "s1"}
    assert (places["s0"].parent, places["s1"].parent, places["s2"].parent) == ("s2", "s2", "")


@pytest.mark.parametrize(
    ("objects", "problem", "names"),
    [
        pytest.param(
            [*TREE, hyper("s3", 3, children("s0"))],
            "hypernode s0 is a member of s2 and of s3; remove it from one of them",
            ("s2", "s3"),
            id="two-parents",
        ),
        pytest.param(
            [hyper("a", 2, children("b")), hyper("b", 1, children("a"))],
            "hypernodes form a cycle: a > b > a; remove one of them",
            ("a", "b"),
            id="cycle",
        ),
        pytest.param(
            [*TREE, hyper("s3", 3, children("s0")), hyper("s4", 1, [])],
            "hypernode s0 is a member of s2 and of s3; remove it from one of them",
            ("s2", "s3"),
            id="not-over-with-the-next",
        ),
    ],
)
def test_contradicting_hypernodes_are_reported(objects: list[HyperNode], problem: str, names: tuple[str, ...]) -> None:
    """Reported once, wherever the search starts, with all hypernodes that could be corrected."""
    assert build_hypernode_tree(objects, NODES)[1] == {problem + WAITING: names}


def test_all_contradictions_are_reported() -> None:
    rings = [hyper(name, 2, children(name)) for name in ("a", "b")]
    assert list(build_hypernode_tree(rings, NODES)[1].values()) == [("a",), ("b",)]


def test_a_member_of_unknown_type_matches_no_node() -> None:
    odd = hyper("s0", 1, [MemberSpec("Rack", MemberSelector(exact_match=ExactMatch("n1")))])
    assert build_hypernode_tree([odd], NODES)[0]["s0"].nodes == set()
    sentence = 'hypernode s0: the member type "Rack" is unknown; use Node or HyperNode; the member matches no node'
    assert unreadable_members([odd]) == {sentence: ("s0",)}
    assert missing_members([odd], []) == {}


def tree_of(objects: list[HyperNode]) -> Any:
    return open_session(nodes=NODES, objects=objects)


def test_a_session_adds_a_root_above_everything() -> None:
    with tree_of(TREE) as session:
        tree = session.hyper_nodes
        assert (tree.top.tier, tree.top.children, tree["s2"].parent) == (3, {"s2"}, TOP_HYPERNODE)
        assert tree.nodes_of(TOP_HYPERNODE).names == ["n0", "n1", "n2", "n3"]
        assert tree.nodes_of("s1").names == ["n2", "n3"]
        assert list(tree.nodes_of("nowhere")) == []
        assert tree.tiers == [1, 2, 3]
        assert tree.tier_names == {"leaf": 1, "spine": 2}
        assert tree.leaf_of("n2") == "s1"
    with tree_of([]) as session:
        assert session.hyper_nodes.top.tier == 1


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        ("s0", "s1", "s2"),
        ("s0", "s0", "s0"),
        ("s0", "s2", "s2"),
        ("", "s1", "s1"),
        ("s1", "", "s1"),
        ("s2", TOP_HYPERNODE, TOP_HYPERNODE),
    ],
)
def test_lowest_common_ancestor(left: str, right: str, common: str) -> None:
    with tree_of(TREE) as session:
        assert session.hyper_nodes.lowest_common(left, right) == common


def test_a_member_without_an_object_holds_no_nodes_and_has_no_tier() -> None:
    with tree_of([hyper("s2", 2, children("ghost"))]) as session:
        tree = session.hyper_nodes
        assert tree["ghost"].parent == "s2"
        assert list(tree.nodes_of("ghost")) == []
        assert tree.tiers == [2, 3]


def test_a_tree_with_a_contradiction_is_not_ready() -> None:
    with tree_of([*TREE, hyper("s3", 3, children("s0"))]) as session:
        assert not session.hyper_nodes.ready
        assert session.faults == ["hypernode s0 is a member of s2 and of s3; remove it from one of them" + WAITING]
