"""Equivalence classes: sharing between pods, bounded caches, and the number of plugin calls."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from bayplan.app import configured, filled_cache, known_plugins
from bayplan.clock import ManualClock
from bayplan.errors import UsageError
from bayplan.framework import (
    SKIP,
    Cycle,
    NodeInfo,
    NodeTable,
    PluginTraits,
    PreFilterResult,
    Rejection,
    StateKey,
    Status,
    row_local,
    unresolvable,
    unschedulable,
)
from bayplan.framework.api.extension_points import SCORE
from bayplan.framework.equivalence.bounded_cache import BoundedCache
from bayplan.framework.equivalence.class_evaluation import ClassEvaluation
from bayplan.framework.equivalence.plugin_role import PluginRole
from bayplan.objects.core import Pod
from bayplan.objects.kinds import convert
from bayplan.objects.resource import DeviceClass
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import IntVector
from support.builders.framework import make_node, make_pod

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {{multiPoint: {{enabled: [{enabled}]}}}}
"""
DEFAULT = "default-scheduler"


class Counted:
    """Its signature is the team label. Counts its calls by pod."""

    name = "Counted"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False)
    calls: ClassVar[Counter[str]] = Counter()

    def signature(self, pod: Pod) -> Hashable:
        return pod.metadata.labels.get("team")

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        self.calls[cycle.pod.metadata.labels.get("team", "")] += len(nodes)
        yield Rejection(np.zeros(len(nodes), np.bool_), "never")


class Silent:
    """Has no signature and reads the pod's name."""

    name = "Silent"
    seen: ClassVar[list[tuple[str, str]]] = []

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        self.seen.append((cycle.pod.name, node.name))
        return unschedulable("named") if node.name == f"n{cycle.pod.name[1:]}" else None


class Breaks:
    """Fails for pods with one name."""

    name = "Breaks"
    traits = PluginTraits(depends_on=row_local)

    def signature(self, pod: Pod) -> Hashable:
        return pod.name == "bad"

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        if cycle.pod.name == "bad":
            raise RuntimeError("no")
        return np.zeros(len(nodes), dtype=np.int64)


class Banned:
    """Rejects the first node for pods that were excluded after they were queued."""

    name = "Banned"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False, signature_may_change=True)
    uids: ClassVar[set[str]] = set()

    def signature(self, pod: Pod) -> Hashable:
        return None if pod.uid in self.uids else ()

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        if cycle.pod.uid in self.uids:
            yield Rejection(nodes.where_named(("n0",)), "banned")


@pytest.fixture(autouse=True)
def _reset_calls() -> None:
    Banned.uids.clear()
    Counted.calls.clear()
    Silent.seen.clear()


def engine(*plugins: type[Any], nodes: int = 4) -> PodEngine:
    registry = known_plugins().with_plugins(*plugins)
    config = CONFIG.format(enabled=", ".join(f"{{name: {plugin.name}}}" for plugin in plugins))
    cache = filled_cache([make_node(f"n{number}", cpu="64") for number in range(nodes)])
    return PodEngine(configured(config, registry), registry, cache, clock=ManualClock(), chance=random.Random(0))


def cached_count(of: PodEngine) -> int:
    classes = of.equivalence_classes(DEFAULT)
    assert classes is not None
    return len(classes)


def test_an_evaluation_of_a_single_pod_is_not_cached() -> None:
    on = engine()
    on.place(make_pod("a", requests={"cpu": "1"}))
    on.place(make_pod("b", requests={"cpu": "2"}))
    assert cached_count(on) == 0
    on.place(make_pod("c", requests={"cpu": "1"}))
    assert cached_count(on) == 1


def test_pods_with_one_equal_signature_share_that_plugin_evaluation() -> None:
    on = engine(Counted)
    for number in range(8):
        on.place(make_pod(f"p{number}", requests={"cpu": f"{100 + number}m"}, labels={"team": "red"}))
    assert Counted.calls["red"] == 2 * 4, "once on its own, once to be kept; then never again"


def test_a_plugin_without_signature_is_evaluated_for_each_pod_while_the_rest_share() -> None:
    on = engine(Counted, Silent)
    placed = [on.place(make_pod(f"p{number}", labels={"team": "red"})) for number in range(4)]
    assert Counted.calls["red"] == 2 * 4
    assert Counter(pod for pod, _ in Silent.seen) == {f"p{number}": 4 for number in range(4)}
    assert all(each.node != f"n{number}" for number, each in enumerate(placed))
    details = placed[-1].decision.with_details()
    assert details.diagnosis is not None
    assert details.diagnosis.status(3).reasons == ("named",)


def test_a_one_node_plugin_is_called_for_remaining_rows_only() -> None:
    on = engine(Silent)
    on.cache.add_node(make_node("special", labels={"disk": "ssd"}))
    on.place(make_pod("p9", node_selector={"disk": "ssd"}))
    assert Silent.seen == [("p9", "special")]


def test_a_failing_plugin_is_named_and_the_rest_continue() -> None:
    on = engine(Breaks)
    assert on.place(make_pod("good")).node is not None
    bad = on.place(make_pod("bad"))
    assert bad.node is None
    assert 'plugin "Breaks" failed with: RuntimeError: no' in bad.status.message
    assert on.place(make_pod("good-again")).node is not None


def test_pods_share_a_class_while_no_pod_has_affinity() -> None:
    on = engine(nodes=0)
    for number in range(4):
        on.cache.add_node(make_node(f"n{number}", labels={"host": f"n{number}"}))
    for number in range(4):
        on.place(make_pod(f"p{number}", labels={"app": f"a{number}"}))
    assert cached_count(on) == 1
    term = {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": "a1"}}}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    shy = convert({"metadata": {"name": "shy", "namespace": "default", "uid": "shy"}, "spec": spec}, Pod)
    avoided = on.place(shy).node
    assert avoided is not None
    for turn in range(3):
        assert avoided not in fitting(on, f"x{turn}", "a1"), "labels matter while a pod has affinity to them"
        assert avoided in fitting(on, f"y{turn}", "a2")
    on.cache.remove_pod(shy.bound_to(avoided))
    for turn in range(3):
        assert avoided in fitting(on, f"z{turn}", "a1")


def fitting(on: PodEngine, name: str, app: str) -> Sequence[str]:
    """Return the nodes on which a pod with this label fits."""
    nodes = on.try_pod(make_pod(name, labels={"app": app})).with_details().nodes
    assert nodes is not None
    return nodes.names


class Few:
    """Compares candidates, and skips if there are few."""

    name = "Few"
    traits = PluginTraits(depends_on=row_local, compares_candidates=True)

    def signature(self, pod: Pod) -> Hashable:  # noqa: ARG002
        return 1

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        return SKIP if len(nodes) <= 3 else None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:  # noqa: ARG002
        return np.array([100 if name == "n0" else 0 for name in nodes.names])


def test_skipping_some_candidates_does_not_skip_other_candidates() -> None:
    on = engine(Few)
    on.place(make_pod("large", requests={"cpu": "50"}))
    for turn in range(3):
        assert on.try_pod(make_pod(f"tall{turn}", requests={"cpu": "60"})).node is not None
        small = on.try_pod(make_pod(f"small{turn}", requests={"cpu": "1m"}))
        assert small.scores is not None
        assert small.scores.by_plugin["Few"].max() == 100


class Grouped(Few):
    """Scores groups of rows for the whole table."""

    traits = replace(Few.traits, score_groups=lambda _plugin, _cycle, _nodes: None)


class Alone(Grouped):
    """Has the function, and does not compare candidates."""

    traits = replace(Grouped.traits, compares_candidates=False)


@pytest.mark.parametrize(
    ("plugin", "groups"),
    [
        pytest.param(Few(), False, id="compares"),
        pytest.param(Grouped(), True, id="compares-and-scores-groups"),
        pytest.param(Alone(), False, id="does-not-compare"),
    ],
)
def test_only_a_plugin_that_compares_candidates_returns_score_groups(plugin: Any, groups: bool) -> None:
    assert (PluginRole(plugin, frozenset({SCORE.key}), 1).score_groups is not None) is groups


class InPlace:
    """Normalizes in place, as Go plugins do."""

    name = "InPlace"
    traits = PluginTraits(depends_on=row_local)

    def signature(self, pod: Pod) -> Hashable:  # noqa: ARG002
        return 1

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:  # noqa: ARG002
        return nodes.pod_count * 3

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        scores *= 2
        return scores


def test_normalizing_in_place_changes_no_shared_scores() -> None:
    on = engine(InPlace)
    on.place(make_pod("first"))
    for turn in range(4):
        found = on.try_pod(make_pod(f"p{turn}", requests={"cpu": f"{turn % 2 + 1}m"}))
        assert found.scores is not None
        assert found.scores.by_plugin["InPlace"].max() == 6


class Fickle:
    """Accepts one node only, and fails while it changes."""

    name = "Fickle"
    traits = PluginTraits(depends_on=lambda plugin, _cycle: plugin.mood[0])
    mood: ClassVar[list[int]] = [0]

    def signature(self, pod: Pod) -> Hashable:  # noqa: ARG002
        return 1

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:  # noqa: ARG002
        if self.mood[0] == 1:
            raise KeyboardInterrupt
        yield Rejection(np.array([name != "n3" for name in nodes.names]), "only there")


def test_incomplete_evaluations_are_repeated() -> None:
    Fickle.mood[0] = 0
    on = engine(Fickle)
    kinds = [{"cpu": "1m"}, {"cpu": "2m"}]
    for turn in range(6):
        assert on.place(make_pod(f"p{turn}", requests=kinds[turn % 2])).node == "n3"
    Fickle.mood[0] = 1
    with pytest.raises(KeyboardInterrupt):
        on.place(make_pod("interrupted", requests=kinds[0]))
    Fickle.mood[0] = 0
    for turn in range(4):
        assert on.place(make_pod(f"q{turn}", requests=kinds[turn % 2])).node == "n3"


class Unhashable:
    name = "Unhashable"
    traits = PluginTraits(depends_on=row_local)

    def signature(self, pod: Pod) -> Any:
        return [pod.name]

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:  # noqa: ARG002
        return np.zeros(len(nodes), dtype=np.int64)


def test_an_invalid_signature_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    on = engine(Unhashable, Counted)
    for turn in range(4):
        on.prepare(make_pod(f"q{turn}"))
        assert on.place(make_pod(f"p{turn}", labels={"team": "red"})).node is not None
    assert [record.getMessage() for record in caplog.records] == [
        "signature of plugin Unhashable failed; this plugin is evaluated for every pod separately"
    ]
    assert Counted.calls["red"] == 2 * 4, "the rest is still shared"


def test_placed_pods_keep_no_equivalence_class() -> None:
    on = engine()
    for turn in range(3):
        for number in range(3):
            on.place(on.prepare(make_pod(f"p{turn}-{number}")))
        on.cache.upsert(DeviceClass())
    gc.collect()
    own = [each for each in gc.get_objects() if isinstance(each, ClassEvaluation) and each.snapshot is on.snapshot()]
    assert len(own) <= 1


def test_the_signature_of_an_unchanged_pod_may_change() -> None:
    """The pod then shares with no pod of its former class, and the evaluation that it represented is dropped."""
    on = engine(Banned)
    infos = [on.prepare(make_pod(f"p{number}")) for number in range(4)]

    def refused(number: int) -> list[bool]:
        placed = on.place(infos[number])
        assert placed.assumed is not None
        placed.assumed.unreserve_and_forget(on.cache)
        details = placed.decision.with_details()
        assert details.diagnosis is not None
        return [not details.diagnosis.status(row).ok for row in range(4)]

    no_node, first = [False] * 4, [True, False, False, False]
    assert [refused(number) for number in range(4)] == [no_node] * 4
    for number in range(4):  # one of them is the representative of the class
        Banned.uids = {infos[number].uid}
        assert [refused(each) for each in range(4)] == [first if each == number else no_node for each in range(4)]
    Banned.uids = set()
    assert [refused(number) for number in range(4)] == [no_node] * 4


def test_a_changed_device_class_invalidates_all_signatures() -> None:
    on = engine()
    for name in "abc":
        on.place(make_pod(name))
    assert cached_count(on) == 1
    on.cache.upsert(DeviceClass())
    on.place(make_pod("d"))
    assert cached_count(on) == 0


def test_a_bounded_cache_drops_the_least_recently_used_value() -> None:
    shelf: BoundedCache[str] = BoundedCache(2)
    places = {name: shelf.slot(name) for name in "abc"}
    for turn, name in enumerate("aabbaacc"):
        places[name].last_used = turn
        shelf.store(places[name], name)
    assert len(shelf) == 2
    assert [places[name].value for name in "abc"] == ["a", None, "c"]
    assert shelf.slot("a") is places["a"]


def test_a_bounded_cache_drops_keys_too() -> None:
    shelf: BoundedCache[str] = BoundedCache(2)
    first = shelf.slot(0)
    for number in range(1, 5000):
        shelf.slot(number)
    assert shelf.slot(0) is not first


class Narrows:
    """Narrows pods to the nodes of their team. Counts its calls."""

    name = "Narrows"
    calls: ClassVar[Counter[str]] = Counter()
    NODE: StateKey[str] = StateKey("Narrows/node")

    def pre_filter(self, cycle: Cycle) -> PreFilterResult | Status | None:
        self.calls["pre_filter"] += 1
        node = cycle.pod.metadata.labels.get("node")
        cycle.put(self.NODE, node or "any")
        if node == "nowhere":
            return unresolvable("no such team")
        return SKIP if node is None else PreFilterResult(frozenset({node}))

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        assert cycle.get(self.NODE) != "any"
        self.calls["filter_nodes"] += len(nodes)
        yield Rejection(np.zeros(len(nodes), np.bool_), "never")


class NarrowsByTeam(Narrows):
    def signature(self, pod: Pod) -> Hashable:
        return pod.metadata.labels.get("node")


@pytest.mark.parametrize("narrows", [Narrows, NarrowsByTeam], ids=["unsigned", "signed"])
def test_a_narrowed_pod_is_evaluated_once(narrows: type[Narrows]) -> None:
    on = engine(Counted, narrows)
    for number in range(5):
        Narrows.calls.clear()
        Counted.calls.clear()
        placed = on.place(make_pod(f"p{number}", labels={"team": "red", "node": "n2"}))
        assert placed.node == "n2"
        assert Narrows.calls == {"pre_filter": 1, "filter_nodes": 1}
        assert Counted.calls == {"red": 1}, "about one node, not about all of them before"


def test_a_pod_rejected_at_prefilter_is_evaluated_once() -> None:
    on = engine(Counted, Narrows)
    Narrows.calls.clear()
    placed = on.place(make_pod("p", labels={"node": "nowhere"}))
    assert placed.status.message.startswith("0/4 nodes are available: no such team.")
    assert Narrows.calls == {"pre_filter": 1}
    assert not Counted.calls
    assert on.place(make_pod("q")).node, "skipped, and placed as if it were not there"


def test_details_belong_to_the_decision_or_are_dropped() -> None:
    on = engine()
    first, second = (on.place(make_pod(name)).decision for name in "ab")
    with pytest.raises(UsageError, match=r"the details of the decision for n\d are gone.*before the next decision"):
        first.with_details()
    detail = second.with_details()
    assert detail.nodes is not None
    assert len(detail.nodes) == 4
    on.place(make_pod("c"))
    assert detail.with_details() is detail, "what was spelled out stays"
    tried = on.try_pod(make_pod("d"))
    on.place(make_pod("e"))
    assert tried.with_details() is tried
