"""`check_forms_agree` lets honest plugins pass and finds each way in which one can contradict itself."""

# ruff: noqa: ARG002  (plugins are told more than these need)

from __future__ import annotations

from collections.abc import Iterator
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

# As little as the plugins here look at: what is not drawn need not be shrunk.
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
FEW = clusters(NODES, PODS, max_nodes=3, max_pods=2)


EXAMPLES = 30


class Tried:
    """Clusters as in `FEW`, and how many of them were drawn: a check that looks at none finds nothing either."""

    def __init__(self) -> None:
        self.count = 0
        self.clusters = FEW.map(self._counted)

    def _counted(self, cluster: RandomCluster) -> RandomCluster:
        self.count += 1
        return cluster


def few(plugin: type[Any], **options: Any) -> int:
    """On how many clusters its forms agree."""
    tried = Tried()
    check_forms_agree(plugin, pods=PODS, clusters=tried.clusters, max_examples=EXAMPLES, **options)
    return tried.count


def few_shared(plugin: type[Any]) -> int:
    """On how many clusters what it shares is right."""
    tried = Tried()
    check_sharing_agrees(plugin, pods=PODS, clusters=tried.clusters, max_examples=EXAMPLES)
    return tried.count


class Honest:
    """Both forms, with state, normalising and two reasons."""

    name = "Honest"

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


class OtherOrder(Honest):
    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        status = super().filter(cycle, node)
        return status and Status(status.code, reversed(status.reasons))


class Unused:
    """Stays out of every attempt, and would fail in it."""

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


@pytest.mark.parametrize("plugin", [Honest, Unused, Narrowing, NodePorts, TaintToleration], ids=lambda each: each.name)
def test_honest_plugins_pass(plugin: type[Any]) -> None:
    assert few(plugin) >= EXAMPLES


class OtherWords(Honest):
    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        found = super().filter(cycle, node)
        return unresolvable("too slow") if self._is_slow(node) else found


class OtherScores(Honest):
    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        return node.allocatable("memory")


class ForgetsTheRows:
    """Answers for the first rows of the snapshot whatever part of it the table is; right about a single row."""

    name = "ForgetsTheRows"

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        table = nodes if len(nodes) == 1 else cycle.snapshot.table
        yield Rejection(table.unschedulable[: len(nodes)], "cordoned")


class KnowsNoForks:
    """Looks rows up in the snapshot: on a fork that is another node's row."""

    name = "KnowsNoForks"

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        yield Rejection(cycle.snapshot.nodes.unschedulable[nodes.rows], "cordoned")


class ComparesTooEarly:
    """Normalises inside the score: what a node gets depends on its neighbours."""

    name = "ComparesTooEarly"

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        return default_normalize(nodes.allocatable("cpu"))


class Raises:
    name = "Raises"

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        raise KeyError(node.labels["disk"])


class TooMuch:
    name = "TooMuch"

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        return np.full(len(nodes), 101)


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        pytest.param(
            OtherWords, r"Honest says of n\d, by filter, .*too slow.*, but by filter_nodes .*slow", id="filter-forms"
        ),
        pytest.param(OtherOrder, r"by filter, .*'small', 'slow'.* by filter_nodes .*'slow', 'small'", id="order"),
        pytest.param(OtherScores, "by score, but .* by score_nodes", id="score-forms"),
        pytest.param(ForgetsTheRows, "by a table of rows", id="narrowed"),
        pytest.param(KnowsNoForks, "by a fork of the row", id="fork"),
        pytest.param(ComparesTooEarly, "in a table of their own.*compare nodes .* in pre_score or normalize", id="raw"),
        pytest.param(Raises, 'Raises fails: running "Raises" filter plugin: KeyError', id="raises"),
        pytest.param(TooMuch, "TooMuch fails: .* invalid score 101", id="out-of-range"),
    ],
)
def test_a_contradiction_is_found(plugin: type[Any], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        few(plugin)


class Plain:
    """The same as Honest, one node at a time."""

    name = "Plain"
    pre_filter = Honest.pre_filter
    filter = Honest.filter
    score = Honest.score
    normalize = Honest.normalize
    _is_slow = staticmethod(Honest._is_slow)


class Lazy(Plain):
    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        return 1


class Strict(Plain):
    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        return unschedulable("never")


def test_a_twin_that_is_the_same_passes() -> None:
    judged: set[str] = set()

    class Watched(Plain):
        def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
            judged.add(node.name)
            return super().filter(cycle, node)

    assert few(Honest, twin=Watched) >= EXAMPLES
    assert judged == {"n0", "n1", "n2"}, "the twin was asked too"


@pytest.mark.parametrize(
    ("twin", "words"),
    [
        pytest.param(Strict, "of n0 Honest says .* but Plain says .*never", id="statuses"),
        pytest.param(Lazy, "Honest gives .* but Plain gives", id="scores"),
    ],
)
def test_a_twin_that_differs_is_found(twin: type[Any], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        few(Honest, twin=twin)


def test_arguments_reach_the_plugin() -> None:
    given_: list[Any] = []

    class Wants:
        name = "Wants"

        def __init__(self, most: int) -> None:
            self._most = most

        @classmethod
        def factory(cls, args: Any, handle: object) -> Wants:  # noqa: ARG003
            given_.append(args)
            return cls(args["most"])

        def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
            yield Rejection(nodes.pod_count > self._most, "crowded")

    assert few(Wants, args={"most": 1}) >= EXAMPLES
    assert given_ == [{"most": 1}] * len(given_) != []


def test_a_plugin_without_forms_has_nothing_to_compare() -> None:
    class Orders:
        name = "Orders"

        def less(self, first: object, second: object) -> bool:
            return False

    with pytest.raises(UsageError, match="Orders neither filters nor scores"):
        check_forms_agree(Orders)


def test_a_failing_example_is_short_enough_to_read() -> None:
    with pytest.raises(AssertionError) as caught:
        few(TooMuch)
    (note,) = [line for line in "\n".join(caught.value.__notes__).splitlines() if "cluster=" in line]
    assert "'name': 'n0'" in note
    assert "owner_references" not in note


# sharing


class Signed:
    """Likes nodes with few pods of the pod's app, and says what that depends on."""

    name = "Signed"

    def signature(self, pod: Pod) -> Any:
        return (pod.labels.get("app"),)

    def depends_on(self, cycle: Cycle) -> Any:
        return ()

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        app = cycle.pod.labels.get("app")
        siblings = [sum(info.pod.labels.get("app") == app for info in node.pods) for node in nodes]
        return np.maximum(0, 100 - 10 * np.array(siblings, dtype=np.int64))


class SignsTooLittle(Signed):
    def signature(self, pod: Pod) -> Any:
        return ()


class DependsOnMore(Signed):
    """Looks at the whole cluster and does not say so."""

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        crowded = int(cycle.snapshot.table.pod_count.sum()) % 2
        return np.where(nodes.rows == crowded, 100, 0)


class LooksAtPods(Signed):
    looks_at_pods = False


class Compares(Signed):
    """Scores by how many candidates there are, and says so."""

    compares_candidates = True

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        return np.full(len(nodes), 10 * len(nodes))


class ComparesInSecret(Compares):
    compares_candidates = False


@pytest.mark.parametrize("plugin", [Signed, Compares, Honest], ids=lambda each: each.__name__)
def test_shared_answers_that_are_right_pass(plugin: type[Any]) -> None:
    assert few_shared(plugin) >= EXAMPLES


@pytest.mark.parametrize(
    "plugin", [SignsTooLittle, DependsOnMore, LooksAtPods, ComparesInSecret], ids=lambda each: each.__name__
)
def test_shared_answers_that_are_wrong_are_found(plugin: type[Any]) -> None:
    with pytest.raises(AssertionError, match="with shared results, but"):
        check_sharing_agrees(plugin, pods=PODS, clusters=FEW)


# strategies


@given(cluster=clusters(), pod=pods())
def test_random_clusters_are_sound(cluster: RandomCluster, pod: Pod) -> None:
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
