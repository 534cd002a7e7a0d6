"""`check_forms_agree` accepts consistent plugins and finds every kind of self-contradiction."""

# ruff: noqa: ARG002  (plugin methods have more parameters than these use)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.errors import UsageError
from bayplan.framework import (
    SKIP,
    Cycle,
    IntVector,
    NodeInfo,
    NodeTable,
    PluginTraits,
    Pod,
    PreFilterResult,
    Rejection,
    Status,
    default_normalize,
    unresolvable,
    unschedulable,
)
from bayplan.plugins.node_ports import NodePorts
from bayplan.plugins.taint_toleration import TaintToleration
from bayplan.testing import (
    Harness,
    RandomCluster,
    check_forms_agree,
    check_sharing_agrees,
    clusters,
    label_sets,
    nodes,
    pods,
)

# Only the fields that these plugins read are drawn, because every drawn field must be shrunk.
PODS = pods(
    labels=label_sets({"app": ["web", "db"]}),
    cpu=None,
    memory=None,
    priority=None,
    host_ports=st.sampled_from(([], [80])),
    node_selector={},
    tolerations=[],
)
NODES = nodes(
    labels=label_sets({"disk": ["ssd", "hdd"]}),
    zone="",
    cpu=st.sampled_from(("500m", "2", "4")),
    memory="1Gi",
    capacity={},
    taints=st.sampled_from(([], ["gpu"])),
)
FEW_CLUSTERS = clusters(NODES, PODS, max_nodes=3, max_pods=2)


EXAMPLES = 30


class CountedClusters:
    """`FEW_CLUSTERS` with a counter of the drawn clusters, because a check without clusters finds nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.clusters = FEW_CLUSTERS.map(self._count)

    def _count(self, cluster: RandomCluster) -> RandomCluster:
        self.count += 1
        return cluster


def checked_clusters(plugin: type[Any], **options: Any) -> int:
    """Check a plugin; return the number of checked clusters."""
    counted = CountedClusters()
    check_forms_agree(plugin, pods=PODS, clusters=counted.clusters, max_examples=EXAMPLES, **options)
    return counted.count


def checked_clusters_with_sharing(plugin: type[Any]) -> int:
    """Check the shared results of a plugin; return the number of checked clusters."""
    counted = CountedClusters()
    check_sharing_agrees(plugin, pods=PODS, clusters=counted.clusters, max_examples=EXAMPLES)
    return counted.count


class Consistent:
    """Has both forms, state, normalisation and two reasons."""

    name = "Consistent"

    def pre_filter(self, cycle: Cycle) -> Status | None:
        return SKIP if cycle.pod.labels.get("app") == "db" else None

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        reasons = [*(["slow"] if self._is_slow(node) else []), *(["small"] if node.free("cpu") < 1000 else [])]
        if not reasons:
            return None
        return unresolvable(*reasons) if "slow" in reasons else unschedulable(*reasons)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        yield Rejection(nodes.where_label_in("disk", ["hdd"]), "slow", resolvable=False)
        yield Rejection(nodes.allocatable("cpu") - nodes.requested("cpu") < 1000, "small")

    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        return node.allocatable("cpu") + len(node.pods)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        return nodes.allocatable("cpu") + nodes.pod_count

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:
        return default_normalize(scores)

    @staticmethod
    def _is_slow(node: NodeInfo) -> bool:
        return node.labels.get("disk") == "hdd"


class OtherOrder(Consistent):
    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        status = super().filter(cycle, node)
        return status and Status(status.code, reversed(status.reasons))


class Unused:
    """Skips scoring, and would fail in it."""

    name = "Unused"

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status:
        return SKIP

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        raise AssertionError


class Narrowing:
    name = "Narrowing"

    def pre_filter(self, cycle: Cycle) -> PreFilterResult:
        return PreFilterResult(frozenset({"n0"}))

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        yield Rejection(nodes.unschedulable, "cordoned")


@pytest.mark.parametrize(
    "plugin", [Consistent, Unused, Narrowing, NodePorts, TaintToleration], ids=lambda each: each.name
)
def test_consistent_plugins_pass(plugin: type[Any]) -> None:
    assert checked_clusters(plugin) >= EXAMPLES


class OtherWords(Consistent):
    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        found = super().filter(cycle, node)
        return unresolvable("too slow") if self._is_slow(node) else found


class OtherScores(Consistent):
    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        return node.allocatable("memory")


class IgnoresTableRows:
    """Wrong for narrowed tables: uses the first rows of the snapshot, except for a single row."""

    name = "IgnoresTableRows"

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        table = nodes if len(nodes) == 1 else cycle.snapshot.table
        yield Rejection(table.unschedulable[: len(nodes)], "cordoned")


class IgnoresForks:
    """Wrong for forks: reads rows of the snapshot, where a fork has other row numbers."""

    name = "IgnoresForks"

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        yield Rejection(cycle.snapshot.nodes.unschedulable[nodes.rows], "cordoned")


class NormalisesInScore:
    """Normalises in the score, so that the score of a node depends on the other nodes."""

    name = "NormalisesInScore"

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        return default_normalize(nodes.allocatable("cpu"))


class Raises:
    name = "Raises"

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        raise KeyError(node.labels["disk"])


class ScoresTooHigh:
    name = "ScoresTooHigh"

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        return np.full(len(nodes), 101)


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        pytest.param(
            OtherWords,
            r"Consistent says of n\d, by filter, .*too slow.*, but by filter_nodes .*slow",
            id="filter-forms",
        ),
        pytest.param(OtherOrder, r"by filter, .*'small', 'slow'.* by filter_nodes .*'slow', 'small'", id="order"),
        pytest.param(OtherScores, "by score, but .* by score_nodes", id="score-forms"),
        pytest.param(IgnoresTableRows, "by a table of rows", id="narrowed"),
        pytest.param(IgnoresForks, "by a fork of the row", id="fork"),
        pytest.param(
            NormalisesInScore, "in a table of their own.*compare nodes .* in pre_score or normalize", id="raw"
        ),
        pytest.param(Raises, 'Raises fails: running "Raises" filter plugin: KeyError', id="raises"),
        pytest.param(ScoresTooHigh, "ScoresTooHigh fails: .* invalid score 101", id="out-of-range"),
    ],
)
def test_a_contradiction_is_found(plugin: type[Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        checked_clusters(plugin)


class SingleNode:
    """The single-node form of Consistent."""

    name = "SingleNode"
    pre_filter = Consistent.pre_filter
    filter = Consistent.filter
    score = Consistent.score
    normalize = Consistent.normalize
    _is_slow = staticmethod(Consistent._is_slow)


class ConstantScores(SingleNode):
    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        return 1


class RejectsAll(SingleNode):
    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        return unschedulable("never")


def test_an_equal_twin_passes() -> None:
    filtered: set[str] = set()

    class Recording(SingleNode):
        def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
            filtered.add(node.name)
            return super().filter(cycle, node)

    assert checked_clusters(Consistent, twin=Recording) >= EXAMPLES
    assert filtered == {"n0", "n1", "n2"}, "the twin was called, too"


@pytest.mark.parametrize(
    ("twin", "message"),
    [
        pytest.param(RejectsAll, "of n0 Consistent says .* but SingleNode says .*never", id="statuses"),
        pytest.param(ConstantScores, "Consistent gives .* but SingleNode gives", id="scores"),
    ],
)
def test_a_different_twin_is_found(twin: type[Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        checked_clusters(Consistent, twin=twin)


def test_arguments_reach_the_plugin() -> None:
    factory_args: list[Any] = []

    class LimitsPods:
        name = "LimitsPods"

        def __init__(self, max_pods: int) -> None:
            self._most = max_pods

        @classmethod
        def factory(cls, args: Any, handle: object) -> LimitsPods:  # noqa: ARG003
            factory_args.append(args)
            return cls(args["max_pods"])

        def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
            yield Rejection(nodes.pod_count > self._most, "crowded")

    assert checked_clusters(LimitsPods, args={"max_pods": 1}) >= EXAMPLES
    assert factory_args == [{"max_pods": 1}] * len(factory_args) != []


def test_a_plugin_without_forms_is_an_error() -> None:
    class Orders:
        name = "Orders"

        def less(self, first: object, second: object) -> bool:
            return False

    with pytest.raises(UsageError, match="Orders neither filters nor scores"):
        check_forms_agree(Orders)


def test_a_failing_example_is_short() -> None:
    with pytest.raises(AssertionError) as caught:
        checked_clusters(ScoresTooHigh)
    (note,) = [line for line in "\n".join(caught.value.__notes__).splitlines() if "cluster=" in line]
    assert "'name': 'n0'" in note
    assert "owner_references" not in note


# Shared results


class Signed:
    """Prefers nodes with few pods of the pod's app, and declares its dependencies."""

    name = "Signed"
    traits = PluginTraits(depends_on=lambda _plugin, _cycle: ())

    def signature(self, pod: Pod) -> Any:
        return (pod.labels.get("app"),)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        app = cycle.pod.labels.get("app")
        siblings = [sum(info.pod.labels.get("app") == app for info in node.pods) for node in nodes]
        return np.maximum(0, 100 - 10 * np.array(siblings, dtype=np.int64))


class SignsTooLittle(Signed):
    def signature(self, pod: Pod) -> Any:
        return ()


class DependsOnMore(Signed):
    """Reads the whole cluster without declaring it."""

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        crowded = int(cycle.snapshot.table.pod_count.sum()) % 2
        return np.where(nodes.rows == crowded, 100, 0)


class LooksAtPods(Signed):
    traits = replace(Signed.traits, looks_at_pods=False)


class Compares(Signed):
    """Scores by the number of candidates, and declares it."""

    traits = replace(Signed.traits, compares_candidates=True)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        return np.full(len(nodes), 10 * len(nodes))


class ComparesUndeclared(Compares):
    traits = replace(Compares.traits, compares_candidates=False)


@pytest.mark.parametrize("plugin", [Signed, Compares, Consistent], ids=lambda each: each.__name__)
def test_correctly_shared_results_pass(plugin: type[Any]) -> None:
    assert checked_clusters_with_sharing(plugin) >= EXAMPLES


@pytest.mark.parametrize(
    "plugin", [SignsTooLittle, DependsOnMore, LooksAtPods, ComparesUndeclared], ids=lambda each: each.__name__
)
def test_wrongly_shared_results_are_found(plugin: type[Any]) -> None:
    with pytest.raises(AssertionError, match="with shared results, but"):
        check_sharing_agrees(plugin, pods=PODS, clusters=FEW_CLUSTERS)


# Strategies


@given(cluster=clusters(), pod=pods())
def test_random_clusters_are_consistent(cluster: RandomCluster, pod: Pod) -> None:
    names = [node.name for node in cluster.nodes]
    assert names == [f"n{number}" for number in range(len(names))]
    assert [node.labels["kubernetes.io/hostname"] for node in cluster.nodes] == names
    assert {each.spec.node_name for each in cluster.pods} <= set(names)
    assert len({each.uid for each in cluster.pods}) == len(cluster.pods)
    assert list(Harness(nodes=cluster.nodes, pods=cluster.pods).filter(pod)) == names


@given(cluster=clusters(nodes(labels={"rack": "1"}, cpu=3), max_nodes=2, max_pods=0))
def test_values_and_strategies_mix(cluster: RandomCluster) -> None:
    assert {node.labels["rack"] for node in cluster.nodes} == {"1"}
    assert {node.status.allocatable["cpu"] for node in cluster.nodes} == {3}
    assert len(cluster.nodes) <= 2
    assert cluster.pods == ()
