"""Pods that share their evaluation get exactly what they would get on their own.

Two engines live through the same history on two caches, one with equivalence classes and one without; every decision
must be the same in everything it says. Histories are random: pods of a few templates placed and removed, nodes that
come, go, change labels, taints and images, services and namespaces that change. Some clusters have amounts that floats
cannot hold, some have plugins from outside that say nothing about what they look at.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from bayplan.app import configured, known_plugins
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.framework import SKIP, Cycle, Key, NodeTable, NodeView, Rejection, Status, unschedulable
from bayplan.objects.core import Namespace, Node, Pod, Service
from bayplan.objects.kinds import convert
from bayplan.scheduler.cycle import Decision
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import IntVector
from bayplan.testing.conformance.world import first_by_name

ZONE, HOST, RACK = "topology.kubernetes.io/zone", "kubernetes.io/hostname", "rack"
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
STEPS = 160


OUTSIDE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    filter: {enabled: [{name: Picky}]}
    multiPoint: {enabled: [{name: Moody}, {name: Plain}]}
"""


class Picky:
    """One node at a time, and by the name of the pod, which nobody else looks at."""

    name = "Picky"

    def filter(self, cycle: Cycle, node: NodeView) -> Status | None:
        if (len(cycle.pod.name) + len(node.pods)) % 3 == 0 and node.name.endswith("1"):
            return unschedulable("not today")
        return None


class Moody:
    """All nodes at once, with something to say before and after, and again by the name of the pod."""

    name = "Moody"
    MOOD: Key[int] = Key("Mood")

    def pre_filter(self, cycle: Cycle) -> None:
        cycle.put(self.MOOD, int(cycle.pod.name[1:]) % 5)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        yield Rejection(nodes.pod_count % 5 == cycle.get(self.MOOD), "bad mood", resolvable=False)

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        return None if cycle.get(self.MOOD) else SKIP

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        return nodes.pod_count * cycle.get(self.MOOD) + len(nodes)

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        return np.minimum(scores - scores.min(), 100)


class Plain:
    """Signs, and says nothing else: it is asked about every row each time."""

    name = "Plain"

    def signature(self, pod: Pod) -> Hashable:
        return pod.namespace

    def filter(self, cycle: Cycle, node: NodeView) -> Status | None:
        crowded = cycle.pod.namespace == "ml" and len(cycle.snapshot.nodes.pods[0]) > 3 and node.row == 1
        return unschedulable("the first node is full") if crowded else None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        return np.full(len(nodes), len(cycle.snapshot.nodes.pods[0]) % 100)


class History:
    """The same events for several engines."""

    def __init__(self, chance: random.Random, *, outside: bool = False, large: bool = False, nodes: int = 9) -> None:
        self.chance = chance
        self.large = large
        registry = known_plugins().with_plugins(Picky, Moody, Plain)
        self.engines = [
            PodEngine(
                configured(OUTSIDE if outside else None, registry),
                registry,
                Cache(),
                clock=ManualClock(),
                chance=random.Random(0),
                tie_break=first_by_name,
                share=share,
            )
            for share in (True, False)
        ]
        self.nodes: dict[str, Node] = {}
        self.placed: dict[str, Pod] = {}
        self.templates = [self.template(number) for number in range(5)]
        self.count = 0
        for name in ("default", "ml"):
            self.each("put", convert({"metadata": {"name": name, "labels": {"team": name}}}, Namespace))
        for number in range(chance.randint(nodes // 2, nodes)):
            self.add_node(f"n{number}")

    def each(self, method: str, *arguments: Any) -> None:
        for engine in self.engines:
            getattr(engine.cache, method)(*arguments)

    # what there is ----------------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        pick = self.chance.choice
        labels = {HOST: name, "disk": pick(["ssd", "hdd"])}
        if self.chance.random() < 0.8:
            labels[ZONE] = pick(["a", "b", "c"])
        if self.chance.random() < 0.6:
            labels[RACK] = pick(["1", "2"])
        taints = [{"key": "gpu", "value": "yes", "effect": pick(["NoSchedule", "PreferNoSchedule"])}]
        images = [{"names": [f"app:{number}"], "sizeBytes": number * 300_000_000} for number in (1, 2)]
        return convert(
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {
                    "taints": taints if self.chance.random() < 0.3 else [],
                    "unschedulable": self.chance.random() < 0.1,
                },
                "status": {
                    "allocatable": {
                        "cpu": pick(["2", "4", "8"]),
                        "memory": pick(["4Gi", "8Gi", "96Ti"] if self.large else ["4Gi", "8Gi"]),
                        "pods": pick(["4", "20"]),
                    },
                    "images": self.chance.sample(images, self.chance.randint(0, 2)),
                },
            },
            Node,
        )

    def template(self, number: int) -> dict[str, Any]:
        pick, draw = self.chance.choice, self.chance.random
        container: dict[str, Any] = {
            "name": "c",
            "image": pick(["app:1", "app:2", "app:3"]),
            "resources": {"requests": {"cpu": pick(["100m", "500m", "1"]), "memory": pick(["128Mi", "1Gi"])}},
        }
        if draw() < 0.2:
            container["ports"] = [{"hostPort": 8080, "containerPort": 80}]
        spec: dict[str, Any] = {"containers": [container], "priority": pick([0, 10])}
        if draw() < 0.3:
            spec["tolerations"] = [{"key": "gpu", "operator": "Exists"}]
        if draw() < 0.3:
            spec["nodeSelector"] = {"disk": "ssd"}
        term = {"topologyKey": pick([ZONE, HOST, RACK]), "labelSelector": {"matchLabels": {"app": pick(["a0", "a1"])}}}
        if draw() < 0.25:
            term["namespaceSelector"] = {"matchLabels": {"team": "ml"}}
        affinity: dict[str, Any] = {}
        if draw() < 0.4:
            affinity[pick(["podAffinity", "podAntiAffinity"])] = {REQUIRED: [term]}
        elif draw() < 0.5:
            affinity[pick(["podAffinity", "podAntiAffinity"])] = {PREFERRED: [{"weight": 10, "podAffinityTerm": term}]}
        if affinity:
            spec["affinity"] = affinity
        if draw() < 0.5:
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": pick([1, 2]),
                    "topologyKey": key,
                    "whenUnsatisfiable": pick(["DoNotSchedule", "ScheduleAnyway"]),
                    "labelSelector": {"matchLabels": {"app": f"a{number % 2}"}},
                }
                for key in self.chance.sample([ZONE, HOST, RACK], pick([1, 1, 2]))
            ]
        labels = {"app": f"a{number % 2}"}
        return {"metadata": {"namespace": pick(["default", "ml"]), "labels": labels}, "spec": spec}

    def pod(self) -> Pod:
        template = self.chance.choice(self.templates)
        self.count += 1
        metadata = {**template["metadata"], "name": f"p{self.count}", "uid": f"u{self.count}"}
        return convert({"metadata": metadata, "spec": template["spec"]}, Pod)

    # what happens -----------------------------------------------------------------------------------------------

    def add_node(self, name: str) -> None:
        self.nodes[name] = self.node(name)
        self.each("add_node", self.nodes[name])

    def step(self) -> None:
        draw = self.chance.random()
        if draw < 0.72:
            self.place()
        elif draw < 0.82 and self.placed:
            self.each("remove_pod", self.placed.pop(self.chance.choice(sorted(self.placed))))
        elif draw < 0.87 and self.placed:
            self.relabel(self.chance.choice(sorted(self.placed)))
        elif draw < 0.91 and self.nodes:
            name = self.chance.choice(sorted(self.nodes))
            self.nodes[name] = self.node(name)
            self.each("update_node", self.nodes[name])
        elif draw < 0.94:
            self.add_node(f"m{self.count}")
        elif draw < 0.97 and len(self.nodes) > 2:
            name = self.chance.choice(sorted(self.nodes))
            del self.nodes[name]
            self.each("remove_node", name)
        elif draw < 0.985:
            labels = {"team": self.chance.choice(["ml", "web"])}
            self.each("put", convert({"metadata": {"name": "default", "labels": labels}}, Namespace))
        else:
            selector = {"app": self.chance.choice(["a0", "a1"])}
            service = {"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": selector}}
            self.each("put", convert(service, Service))

    def relabel(self, uid: str) -> None:
        pod = self.placed[uid]
        changed = replace(pod, metadata=replace(pod.metadata, labels={"app": self.chance.choice(["a0", "a1", "z"])}))
        if self.chance.random() < 0.2:
            leaving = datetime(2026, 1, 1, tzinfo=UTC)
            changed = replace(changed, metadata=replace(changed.metadata, deletion_timestamp=leaving))
        self.each("add_pod" if self.engines[0].cache.is_assumed(uid) else "update_pod", changed)
        self.placed[uid] = changed

    def place(self) -> None:
        pod = self.pod()
        shared, alone = (engine.place(pod) for engine in self.engines)
        assert told(shared.decision.in_detail()) == told(alone.decision)
        for engine in self.engines:  # a nomination would take both engines off the shared way
            engine.nominations.withdraw(pod.uid)
        if shared.node is not None:
            self.placed[pod.uid] = pod.bound_to(shared.node)


def told(decision: Decision) -> dict[str, Any]:
    """Everything that a decision says."""
    answer: dict[str, Any] = {"node": decision.node, "message": decision.message, "victims": decision.victims}
    if decision.diagnosis is not None:
        answer["statuses"] = dict(decision.diagnosis.by_node())
        answer["rejectors"] = decision.diagnosis.unschedulable_plugins
    if decision.nodes is not None and decision.scores is not None:
        names = decision.nodes.names
        answer["scores"] = {
            name: {plugin: int(vector[position]) for plugin, vector in decision.scores.by_plugin.items()}
            for position, name in enumerate(names)
        }
        answer["total"] = dict(zip(names, decision.scores.total.tolist(), strict=True))
    return answer


def live(history: History) -> Counter[str]:
    """Live through it; what kept pods from being helped."""
    for _ in range(STEPS):
        history.step()
    assert history.count > STEPS // 2
    classes = history.engines[0].classes("default-scheduler")
    assert classes is not None
    assert sum(classes.long_ways.values()) < history.count // 2, "sharing is what is tested here"
    return classes.long_ways


@pytest.mark.parametrize("seed", range(24))
def test_sharing_changes_nothing(seed: int) -> None:
    assert not live(History(random.Random(seed))), "nothing shipped stands in the way"


@pytest.mark.parametrize("seed", range(6))
def test_on_larger_clusters(seed: int) -> None:
    assert not live(History(random.Random(100 + seed), nodes=90))


@pytest.mark.parametrize("seed", range(6))
def test_with_amounts_that_floats_cannot_hold(seed: int) -> None:
    assert not live(History(random.Random(200 + seed), large=True))


@pytest.mark.parametrize("seed", range(12))
def test_with_plugins_that_say_nothing_about_themselves(seed: int) -> None:
    assert not live(History(random.Random(300 + seed), outside=True))
