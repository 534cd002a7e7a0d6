"""Pods with shared evaluation results get exactly the decisions of a full evaluation.

Histories are random: pods of a few templates are placed, forgotten and removed; nodes are added, removed, and change
labels, taints and images; owners, services and namespaces change. Some clusters have amounts that floats cannot
represent, some have several profiles, and some have third-party plugins with complete, partial or no traits, or that
raise.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from bayplan.framework.equivalence.class_evaluation import ClassEvaluation
from bayplan.framework.equivalence.plugin_evaluation import PluginEvaluation
from bayplan.framework.equivalence.top_rows import GroupedTopRows
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import convert
from bayplan.snapshot import Snapshot
from support.harness.engine_histories import DEFAULT, HEAD, HOST, PREFERRED, REQUIRED, STEPS, ZONE, History, run_history

SILENT = (
    HEAD
    + """
- schedulerName: default-scheduler
  plugins:
    filter: {enabled: [{name: Picky}]}
    multiPoint: {enabled: [{name: Moody}, {name: Plain}]}
"""
)
SEVERAL = (
    DEFAULT
    + """
- schedulerName: packing
  percentageOfNodesToScore: 40
  plugins:
    multiPoint: {enabled: [{name: InPlace, weight: 3}, {name: Compares, weight: 2}, {name: Wordy}, {name: Refuses}]}
    score: {disabled: [{name: ImageLocality}], enabled: [{name: TaintToleration, weight: 7}]}
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 3}, {name: memory, weight: 1}]}}
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints:
      - {maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}
      - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}
- schedulerName: narrowing
  plugins:
    multiPoint: {enabled: [{name: Plain}, {name: Narrows}, {name: Wordy}, {name: Moody}]}
  pluginConfig:
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 0, ignorePreferredTermsOfExistingPods: true}
"""
)
BREAKING = (
    HEAD
    + """
- schedulerName: default-scheduler
  plugins:
    multiPoint: {enabled: [{name: Brittle}, {name: InPlace}]}
"""
)


RETICENT = (
    HEAD
    + """
- schedulerName: default-scheduler
  plugins:
    multiPoint: {enabled: [{name: Reticent, weight: 4}]}
"""
)


class Crowd(History):
    """Small and large pods that prefer some nodes, on almost full nodes: rows stop being candidates, and each of them
    may change the scores of all other rows, which are normalised.
    """

    def node(self, name: str) -> Node:
        pick = self.chance.choice
        labels = {HOST: name, "disk": pick(["ssd", "hdd"]), "tier": pick("12345")}
        room = {"cpu": pick(["1", "2", "3"]), "memory": "64Gi", "pods": "110"}
        taints = [{"key": key, "effect": "PreferNoSchedule"} for key in self.chance.sample("xyz", pick([0, 1, 3]))]
        tree = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}
        return convert({**tree, "status": {"allocatable": room}}, Node)

    def template(self, number: int) -> dict[str, Any]:
        asked = {"cpu": ["1900m", "900m", "400m", "100m"][number % 4]}
        preferred = [
            {
                "weight": self.chance.choice([1, 10, 90]),
                "preference": {"matchExpressions": [{"key": "tier", "operator": "In", "values": [tier]}]},
            }
            for tier in self.chance.sample("12345", 3)
        ]
        affinity = {"nodeAffinity": {PREFERRED: preferred}}
        container = {"name": "c", "image": "app:1", "resources": {"requests": asked}}
        metadata = {"namespace": "default", "labels": {"app": f"a{number % 2}"}}
        return {"metadata": metadata, "spec": {"containers": [container], "affinity": affinity}}

    def step(self) -> None:
        if self.placed and self.chance.random() < 0.4:
            self.leave(self.placed.pop(self.chance.choice(sorted(self.placed))))
        else:
            self.place()


class Rollout(History):
    """Deployments that spread over nodes with room, and rarely anything else."""

    def node(self, name: str) -> Node:
        labels = {HOST: name, ZONE: self.chance.choice("abc")}
        room = {"cpu": self.chance.choice(["64", "96"]), "memory": "512Gi", "pods": "110"}
        return convert({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": room}}, Node)

    def template(self, number: int) -> dict[str, Any]:
        container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": f"{100 * (number + 1)}m"}}}
        spec: dict[str, Any] = {"containers": [container]}
        keys = self.chance.choice([[], [ZONE], [HOST], [ZONE, HOST], [ZONE, HOST]])
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": self.chance.choice([1, 3]),
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": "a0"}},
            }
            for key in keys
        ]
        return {"metadata": {"namespace": "default", "labels": {"app": f"a{number % 3 % 2}"}}, "spec": spec}

    def step(self) -> None:
        draw = self.chance.random()
        if draw < 0.02:
            super().step()
        elif draw < 0.1 and self.placed:
            self.each("remove_pod", self.placed.pop(self.chance.choice(sorted(self.placed))))
        elif draw < 0.15 and self.placed:
            self.relabel(self.chance.choice(sorted(self.placed)))
        else:
            self.place()


class Strangers(History):
    """Pods that differ in labels, which only matter while there is a pod with affinity or a Service that selects some
    of them.
    """

    def template(self, number: int) -> dict[str, Any]:
        chance = self.chance
        requests = {"cpu": chance.choice(["100m", "200m"]), "memory": "128Mi"}
        spec: dict[str, Any] = {"containers": [{"name": "c", "image": "app:1", "resources": {"requests": requests}}]}
        if number % 4 == 3:
            term = {"topologyKey": chance.choice([ZONE, HOST]), "labelSelector": {"matchLabels": {"app": "a1"}}}
            side, weighted = chance.choice(["podAffinity", "podAntiAffinity"]), {"weight": 10, "podAffinityTerm": term}
            wanted = {REQUIRED: [term]} if chance.random() < 0.5 else {PREFERRED: [weighted]}
            spec["affinity"] = {side: wanted}
        return {"metadata": {"namespace": chance.choice(["default", "ml"]), "labels": {}}, "spec": spec}

    def pod(self) -> Pod:
        chance, self.count = self.chance, self.count + 1
        seldom = chance.random() < 0.1
        template = chance.choice([each for each in self.templates if ("affinity" in each["spec"]) == seldom])
        labels = {"app": chance.choice(["a0", "a1", "a2"]), "number": str(chance.choice([1, 2, self.count]))}
        metadata = {**template["metadata"], "labels": labels, "name": f"p{self.count}", "uid": f"u{self.count}"}
        return convert({"metadata": metadata, "spec": template["spec"]}, Pod)

    def step(self) -> None:
        particular = sorted(uid for uid, pod in self.placed.items() if pod.spec.affinity is not None)
        draw = self.chance.random()
        if particular and draw < 0.2:
            self.leave(self.placed.pop(self.chance.choice(particular)))
        elif draw < 0.3:
            self.change_owners()
        elif draw < 0.4:
            super().step()
        else:
            self.place()


@pytest.mark.parametrize("profiles", [DEFAULT, SEVERAL], ids=["default", "several"])
@pytest.mark.parametrize("seed", range(12))
def test_pods_that_are_distinguished_at_times(seed: int, profiles: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet: Counter[int] = Counter()

    class Watched(ClassEvaluation):
        def __init__(self, snapshot: Snapshot, parts: list[PluginEvaluation], *others: Any, **more: Any) -> None:
            super().__init__(snapshot, parts, *others, **more)
            quiet[sum(part.not_applicable for part in parts)] += 1

    monkeypatch.setattr("bayplan.framework.equivalence.equivalence_classes.ClassEvaluation", Watched)
    run_history(Strangers(random.Random(800 + seed), profiles=profiles, templates=8, nodes=12), at_least_shared=0.1)
    assert quiet[0] + quiet[1], "labels matter at times"
    assert quiet[2], "and at other times they do not"


@pytest.mark.parametrize("seed", range(16))
def test_sharing_changes_nothing(seed: int) -> None:
    assert not run_history(History(random.Random(seed))), "a shipped plugin disables sharing"


@pytest.mark.parametrize("seed", range(6))
def test_on_larger_clusters(seed: int) -> None:
    assert not run_history(History(random.Random(100 + seed), nodes=90))


@pytest.mark.parametrize("profiles", [DEFAULT, RETICENT], ids=["default", "reticent"])
@pytest.mark.parametrize("seed", range(10))
def test_where_nodes_fill_up(seed: int, profiles: str) -> None:
    assert not run_history(Crowd(random.Random(700 + seed), nodes=14, profiles=profiles))


@pytest.mark.parametrize("seed", range(8))
def test_deployments_that_are_spread(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[int] = []

    class Counted(GroupedTopRows):
        def set_total(self, row: int, alone: int) -> None:
            puts.append(row)
            super().set_total(row, alone)

    monkeypatch.setattr("bayplan.framework.equivalence.class_evaluation.GroupedTopRows", Counted)
    assert not run_history(Rollout(random.Random(600 + seed), nodes=40, templates=3))
    assert len(puts) > STEPS // 20, "scores by groups are what is tested here"


@pytest.mark.parametrize("seed", range(4))
def test_with_amounts_that_floats_cannot_hold(seed: int) -> None:
    assert not run_history(History(random.Random(200 + seed), large=True))


@pytest.mark.parametrize("seed", range(8))
def test_plugins_without_traits(seed: int) -> None:
    assert not run_history(History(random.Random(300 + seed), profiles=SILENT))


@pytest.mark.parametrize("seed", range(12))
def test_with_several_profiles_in_one_engine(seed: int) -> None:
    long_ways = run_history(History(random.Random(400 + seed), profiles=SEVERAL, templates=8, nodes=12))
    assert set(long_ways) <= {"NotShareable"}, "pods that are narrowed, and nothing else"


def test_with_plugins_that_raise(caplog: pytest.LogCaptureFixture) -> None:
    told: set[str] = set()
    for seed in range(500, 510):
        history = History(random.Random(seed), profiles=BREAKING, nodes=12)
        run_history(history, at_least_shared=0.1)
        told |= {record.message for record in history.engines[0].records if record.outcome == "error"}
    for words in ("three on the last node", "eighty"):
        assert any(words in message for message in told), "what is never met is not tested"
    for words in ("no signature", "four on the first node"):  # these disable sharing and have no other effect
        assert not any(words in message for message in told)
        assert words in caplog.text
