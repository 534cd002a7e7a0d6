"""Selectors over columns match the same rows as one node at a time, on every kind of table."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bayplan.objects.core import Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan.objects.meta import LabelSelector, LabelSelectorRequirement
from bayplan.objects.selectors.label_selectors import SelectorError, compile_label_selector
from bayplan.objects.selectors.node_selectors import compile_node_selector, required_node_affinity
from bayplan.snapshot import NodeTable
from bayplan.snapshot.selector_masks import label_selector_mask, node_selector_mask, required_affinity_mask
from support.builders.framework import make_node, make_pod, make_snapshot

KEYS = st.sampled_from(("zone", "disk", "gen"))
LABELS = st.dictionaries(KEYS, st.sampled_from(("a", "b", "1", "5")), max_size=3)
VALUES = st.lists(st.sampled_from(("a", "b", "1", "5", "")), max_size=2).map(tuple)
NODE_LABELS = st.lists(LABELS, min_size=1, max_size=5)
LABEL_SELECTORS = st.builds(
    LabelSelector,
    match_labels=LABELS,
    match_expressions=st.lists(
        st.builds(
            LabelSelectorRequirement,
            key=KEYS,
            operator=st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist")),
            values=VALUES,
        ),
        max_size=2,
    ).map(tuple),
)
_EXPRESSION = st.builds(
    NodeSelectorRequirement,
    key=KEYS,
    operator=st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Nope")),
    values=VALUES,
)
_FIELD = st.builds(
    NodeSelectorRequirement,
    key=st.sampled_from(("metadata.name", "metadata.uid")),
    operator=st.sampled_from(("In", "NotIn", "Exists")),
    values=st.lists(st.sampled_from(("n0", "n1", "n9")), min_size=1, max_size=2).map(tuple),
)
_TERM = st.builds(
    NodeSelectorTerm,
    match_expressions=st.lists(_EXPRESSION, max_size=2).map(tuple),
    match_fields=st.lists(_FIELD, max_size=2).map(tuple),
)
REQUIRED = st.none() | st.builds(NodeSelector, node_selector_terms=st.lists(_TERM, max_size=3).map(tuple))


def tables(labels: list[dict[str, str]]) -> list[NodeTable]:
    """The same nodes whole, reversed, and as a fork."""
    columns = make_snapshot([make_node(f"n{number}", labels=each) for number, each in enumerate(labels)]).nodes
    backwards = np.arange(len(labels))[::-1].copy()
    return [NodeTable(columns), NodeTable(columns, backwards), NodeTable(columns.fork(backwards.tolist()))]


@given(NODE_LABELS, st.none() | LABEL_SELECTORS)
def test_label_selectors(labels: list[dict[str, str]], selector: LabelSelector | None) -> None:
    try:
        matcher = compile_label_selector(selector)
    except SelectorError:
        return
    for table in tables(labels):
        assert label_selector_mask(table, matcher).tolist() == [matcher.matches(node.labels) for node in table]


@given(NODE_LABELS, REQUIRED)
def test_node_selectors(labels: list[dict[str, str]], selector: NodeSelector | None) -> None:
    matcher = compile_node_selector(selector or NodeSelector())
    for table in tables(labels):
        expected = [matcher.matches(node.labels, node.name) for node in table]
        assert node_selector_mask(table, matcher).tolist() == expected


@given(NODE_LABELS, LABELS, REQUIRED)
def test_required_node_affinity(
    labels: list[dict[str, str]], wanted: dict[str, str], terms: NodeSelector | None
) -> None:
    affinity = required_node_affinity(
        make_pod(node_selector=wanted, affinity=Affinity(node_affinity=NodeAffinity(required=terms)))
    )
    for table in tables(labels):
        assert required_affinity_mask(table, affinity).tolist() == [
            affinity.matches(node.labels, node.name) for node in table
        ]


def test_fields_other_than_the_name_are_empty() -> None:
    field = NodeSelectorRequirement(key="metadata.uid", operator="NotIn", values=("x",))
    matcher = compile_node_selector(NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(field,)),)))
    (table, *_) = tables([{}])
    assert node_selector_mask(table, matcher).tolist() == [matcher.matches({}, "n0")] == [True]
