"""The reasons of a node keep the order of the filter, independent of earlier evaluations of other nodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import pytest

from bayplan.framework import Cycle, NodeInfo, NodeTable, PluginTraits, Rejection, Status, row_local, unschedulable
from bayplan.framework.equivalence.plugin_evaluation import MAX_SINGLE_ROWS
from bayplan.objects.core import Pod
from bayplan.testing import Harness, make_node, make_pod

NODES = [make_node(name) for name in "abcdef"]


class Signed:
    traits = PluginTraits(depends_on=row_local)

    def signature(self, pod: Pod) -> Hashable:
        return pod.namespace


class OneByOne(Signed):
    """Its reasons, their order and their number depend on the number of pods."""

    name = "OneByOne"

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
        answers = (None, ("x", "y"), ("y", "x"), ("y",), ("x", "x", "y"), ("z", "y", "x"))
        reasons = answers[len(node.pods) % len(answers)]
        return None if reasons is None else unschedulable(*reasons)


class WhatHolds(Signed):
    """Yields only reasons of the table's rows, so different tables have different reasons."""

    name = "WhatHolds"

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:  # noqa: ARG002
        for count in (5, 3, 4, 1, 2):
            mask = nodes.pod_count >= count
            if mask.any():
                yield Rejection(mask, f"{count % 4} or more")


class InWords(Signed):
    """Returns a new reason at each call."""

    name = "InWords"

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
        return unschedulable(f"has {len(node.pods)}") if len(node.pods) > 1 else None


def reported(cluster: Harness, pod: Pod) -> tuple[str, dict[str, Status], list[tuple[str, str, int]]]:
    """Return the message, the statuses and the reasons of the record."""
    decision = cluster.decide(pod)
    assert decision.diagnosis is not None
    record = cluster.engine.records.latest(pod.key)
    assert record is not None
    reasons = [(reason.plugin, reason.text, reason.nodes) for reason in record.reasons]
    return decision.message, dict(decision.diagnosis.by_node()), reasons


def pods_on(arrivals: str) -> list[Pod]:
    return [make_pod(f"p{number}", node=node) for number, node in enumerate(arrivals)]


@pytest.mark.parametrize("together", [1, MAX_SINGLE_ROWS + 1], ids=["row by row", "a few rows at once"])
@pytest.mark.parametrize("plugin", [OneByOne, WhatHolds, InWords])
def test_history_does_not_matter(plugin: type[Any], together: int) -> None:
    arrivals = pods_on("abacabdabacabefabacabcde")
    pod = make_pod("new")
    shared, alone = (Harness([plugin], nodes=NODES, share=share) for share in (True, False))
    for _ in range(2):  # stored at the second time
        shared.decide(pod)
    for start in range(0, len(arrivals), together):
        for cluster in (shared, alone):
            cluster.add(*arrivals[start : start + together])
        assert reported(shared, pod) == reported(alone, pod)


@pytest.mark.parametrize("share", [True, False])
def test_the_reasons_of_a_node_keep_their_order(share: bool) -> None:
    cluster = Harness([OneByOne], nodes=NODES, pods=pods_on("abbcccddddeeeee"), share=share)
    sentence, statuses, reasons = reported(cluster, make_pod("new", node_selector={"no": "where"}))
    assert "didn't match" in sentence
    sentence, statuses, reasons = reported(cluster, make_pod("new"))
    assert {name: status.reasons for name, status in statuses.items()} == {
        "a": ("x", "y"),
        "b": ("y", "x"),
        "c": ("y",),
        "d": ("x", "x", "y"),
        "e": ("z", "y", "x"),
        "f": (),
    }
    assert reasons == [("OneByOne", "y", 5), ("OneByOne", "x", 4), ("OneByOne", "z", 1)]
    cluster.add(make_pod("last", node="f"))
    sentence, _, _ = reported(cluster, make_pod("new"))
    assert sentence.startswith("0/6 nodes are available: 1 z, 6 x, 6 y."), "who says it twice counts twice"


def test_changing_reason_texts_do_not_accumulate() -> None:
    cluster = Harness([InWords], nodes=NODES)
    for number in range(300):
        cluster.add(make_pod(f"p{number}", node="a"))
        cluster.decide(make_pod("new"))
    cycle = cluster.engine.begin(make_pod("new"))
    standing = cluster.engine.class_evaluation(cycle)
    assert standing is not None
    (part,) = (part for part in standing._filters if part.role.name == "InWords")
    assert len(part.reasons) < 200
