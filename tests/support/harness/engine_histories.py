"""Histories for two engines, one with equivalence classes and one without.

Used by the properties of `framework.equivalence`. Every decision must be equal in all its fields, and so must its
record. A history is random and repeatable: pods of a few templates are placed, forgotten and removed; nodes are added,
removed and changed; objects come and go. A subclass overrides the objects, or the steps.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from bayplan.app import configured, known_plugins
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.objects.core import Namespace, Node, Pod, Service
from bayplan.objects.kinds import convert
from bayplan.objects.workloads import ReplicaSet
from bayplan.scheduler.cycle.schedule_result import ScheduleResult, SchedulingDecision
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import PodInfo
from bayplan.testing.conformance.scenario_cluster import first_by_name
from support.fakes.third_party_plugins import THIRD_PARTY_PLUGINS

ZONE, HOST, RACK = "topology.kubernetes.io/zone", "kubernetes.io/hostname", "rack"
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
STEPS = 160

HEAD = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
"""
DEFAULT = HEAD + "- schedulerName: default-scheduler\n"


class History:
    """The same events for several engines."""

    def __init__(
        self, chance: random.Random, *, profiles: str = DEFAULT, large: bool = False, nodes: int = 9, templates: int = 5
    ) -> None:
        self.chance = chance
        self.large = large
        registry = known_plugins().with_plugins(*THIRD_PARTY_PLUGINS)
        self.engines = [
            PodEngine(
                configured(profiles, registry),
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
        self.templates = [self.template(number) for number in range(templates)]
        self.count = 0
        self.shared = 0  # placed pods, as the engines know them
        for name in ("default", "ml"):
            self.each("upsert", convert({"metadata": {"name": name, "labels": {"team": name}}}, Namespace))
        for number in range(chance.randint(nodes // 2, nodes)):
            self.add_node(f"n{number}")

    def each(self, method: str, *arguments: Any) -> None:
        for engine in self.engines:
            getattr(engine.cache, method)(*arguments)

    # objects ----------------------------------------------------------------------------------------------------

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
        spec["schedulerName"] = pick(list(self.engines[0].scheduler_names))
        metadata: dict[str, Any] = {"namespace": pick(["default", "ml"]), "labels": {"app": f"a{number % 2}"}}
        if draw() < 0.4:  # then the default constraints use the selectors of its owner and its services
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
            metadata["ownerReferences"] = [owner]
        return {"metadata": metadata, "spec": spec}

    def pod(self) -> Pod:
        template = self.chance.choice(self.templates)
        self.count += 1
        metadata = {**template["metadata"], "name": f"p{self.count}", "uid": f"u{self.count}"}
        return convert({"metadata": metadata, "spec": template["spec"]}, Pod)

    # steps ------------------------------------------------------------------------------------------------------

    def add_node(self, name: str) -> None:
        self.nodes[name] = self.node(name)
        self.each("add_node", self.nodes[name])

    def step(self) -> None:
        draw = self.chance.random()
        if draw < 0.70:
            self.place()
        elif draw < 0.82 and self.placed:
            self.leave(self.placed.pop(self.chance.choice(sorted(self.placed))))
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
        elif draw < 0.98:
            labels = {"team": self.chance.choice(["ml", "web"])}
            self.each("upsert", convert({"metadata": {"name": "default", "labels": labels}}, Namespace))
        else:
            self.change_owners()

    def change_owners(self) -> None:
        """Change the selector of a Service or a ReplicaSet, or delete it."""
        app = {"app": self.chance.choice(["a0", "a1"])}
        metadata = {"namespace": self.chance.choice(["default", "ml"])}
        service = {"metadata": {"name": "s", **metadata}, "spec": {"selector": app}}
        replicas = {"metadata": {"name": "r", "uid": "r", **metadata}, "spec": {"selector": {"matchLabels": app}}}
        owner = self.chance.choice([convert(service, Service), convert(replicas, ReplicaSet)])
        self.each("upsert" if self.chance.random() < 0.7 else "delete", owner)

    def relabel(self, uid: str) -> None:
        pod = self.placed[uid]
        changed = replace(pod, metadata=replace(pod.metadata, labels={"app": self.chance.choice(["a0", "a1", "z"])}))
        if self.chance.random() < 0.2:
            leaving = datetime(2026, 1, 1, tzinfo=UTC)
            changed = replace(changed, metadata=replace(changed.metadata, deletion_timestamp=leaving))
        self.each("add_pod" if self.engines[0].cache.is_assumed(uid) else "update_pod", changed)
        self.placed[uid] = changed

    def leave(self, pod: Pod) -> None:
        """Forget or delete a pod."""
        assumed = self.engines[0].cache.is_assumed(pod.uid)
        self.each("forget" if assumed and self.chance.random() < 0.5 else "remove_pod", pod)

    def place(self) -> None:
        pod = self.pod()
        self.decided(pod)
        for engine in self.engines:  # a nomination would disable sharing in both engines
            engine.nominator.delete_nomination(pod.uid)

    def decided(self, pod: Pod, infos: Sequence[PodInfo] = ()) -> list[ScheduleResult]:
        """Decide a pod with each engine, and check that the decisions are equal.

        `infos`: the pod as each engine knows it already.
        """
        known: Sequence[Pod | PodInfo] = infos or [pod for _ in self.engines]
        both = [engine.place(each) for engine, each in zip(self.engines, known, strict=True)]
        shared, alone = both
        self.shared += shared.decision.class_evaluation is not None
        assert (shared.node, shared.status) == (alone.node, alone.status)
        assert decision_fields(shared.decision.with_details()) == decision_fields(alone.decision)
        records = [engine.records.latest(pod.key) for engine in self.engines]
        assert records[0] == records[1]
        if shared.node is not None:
            self.placed[pod.uid] = pod.bound_to(shared.node)
        return both


def decision_fields(decision: SchedulingDecision) -> dict[str, Any]:
    """All fields of a decision."""
    answer: dict[str, Any] = {"node": decision.node, "message": decision.message}
    answer |= {"victims": decision.victims, "nominate": decision.nominated_node_name, "writes": decision.writes}
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


def run_history(history: History, *, at_least_shared: float = 0.5) -> Counter[str]:
    """Run the history; return the reasons why pods were not evaluated by class."""
    for _ in range(STEPS):
        history.step()
    assert history.count > STEPS // 3
    engine = history.engines[0]
    long_ways: Counter[str] = Counter()
    for name in engine.scheduler_names:
        classes = engine.equivalence_classes(name)
        assert classes is not None
        long_ways += classes.full_evaluations
    assert sum(long_ways.values()) < (1 - at_least_shared) * history.count, "sharing is what is tested here"
    return long_ways
