"""Class evaluation of pods that differ in a single field that some plugin reads.

Independently drawn templates differ in many fields, so an incomplete signature would still distinguish them by the
rest. Here the two templates differ only in a toleration, the kind of the owner, a policy of a constraint, the protocol
of a port: a signature without that field would give one pod the results of the other.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.objects.core import Node
from bayplan.objects.kinds import convert
from bayplan.objects.workloads import ReplicaSet, StatefulSet
from bayplan.plugins.node_declared_features import RESTART_ALL_CONTAINERS, USER_NAMESPACES_WITH_HOST_NETWORK
from support.harness.engine_histories import HOST, PREFERRED, RACK, REQUIRED, ZONE, History

Tree = dict[str, Any]
Change = Callable[[Tree, Tree], None]  # of metadata and spec
STEPS = 24


def owned(api_version: str, kind: str, name: str = "r") -> Change:
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": name, "controller": True}
    return lambda metadata, _: metadata.update(ownerReferences=[owner])


def constrained(**fields: Any) -> Change:
    """Another value in every constraint."""

    def change(_: Tree, spec: Tree) -> None:
        for constraint in spec.get("topologySpreadConstraints", ()):
            constraint.update(fields)

    return change


def related(**fields: Any) -> Change:
    """Another value in every inter-pod affinity term."""

    def change(_: Tree, spec: Tree) -> None:
        for term in spec.get("affinity", {}).values():
            for each in (
                *term.get(REQUIRED, ()),
                *(weighted["podAffinityTerm"] for weighted in term.get(PREFERRED, ())),
            ):
                each.update(fields)

    return change


def container(**fields: Any) -> Change:
    return lambda _, spec: spec["containers"][0].update(fields)


def on_disks(how: Tree) -> Change:
    return lambda _, spec: spec.setdefault("affinity", {}).update(nodeAffinity=how)


def another_feature(_: Tree, spec: Tree) -> None:
    spec["hostUsers"] = True
    spec["containers"][0]["restartPolicyRules"] = [{"action": "RestartAllContainers"}]


SSD = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
CHANGES: dict[str, Change] = {
    "namespace": lambda metadata, _: metadata.update(namespace="ml"),
    "a label that is selected": lambda metadata, _: metadata["labels"].update(app="a1"),
    "a label that is compared": lambda metadata, _: metadata["labels"].update(rev="2"),
    "owner": owned("apps/v1", "ReplicaSet"),
    "name of the owner": owned("apps/v1", "StatefulSet", "other"),
    "kind of the owner": owned("apps/v1", "ReplicaSet", "owner"),
    "version of the owner": owned("example.com/v1", "StatefulSet", "owner"),
    "tolerates everything": lambda _, spec: spec.update(tolerations=[{"operator": "Exists"}]),
    "tolerates a key": lambda _, spec: spec.update(tolerations=[{"key": "gpu", "operator": "Exists"}]),
    "operator of a toleration": lambda _, spec: spec["tolerations"][0].update(operator="Exists"),
    "tolerates another value": lambda _, spec: spec["tolerations"][0].update(value="no"),
    "tolerates another effect": lambda _, spec: spec["tolerations"][0].update(effect="PreferNoSchedule"),
    "node selector": lambda _, spec: spec.update(nodeSelector={"disk": "hdd"}),
    "nodes that are required": on_disks({REQUIRED: {"nodeSelectorTerms": [SSD]}}),
    "nodes that are preferred": on_disks({PREFERRED: [{"weight": 5, "preference": SSD}]}),
    "skew": constrained(maxSkew=3),
    "constraints that are preferred": constrained(whenUnsatisfiable="ScheduleAnyway"),
    "number of domains": constrained(minDomains=4),
    "taints do not count": constrained(nodeTaintsPolicy="Ignore"),
    "affinity does not count": constrained(nodeAffinityPolicy="Ignore"),
    "labels that are compared": constrained(matchLabelKeys=["rev"]),
    "whom constraints count": constrained(labelSelector={"matchLabels": {"app": "a1"}}),
    "namespaces of terms": related(namespaces=["ml"]),
    "topology of terms": related(topologyKey=RACK),
    "whom terms are about": related(labelSelector={"matchLabels": {"app": "a1"}}),
    "which image is there twice": container(image="app:2"),
    "another image": container(image="app:3"),
    "a container without an image": lambda _, spec: spec["containers"].append({"name": "f"}),
    "port": container(ports=[{"hostPort": 81, "protocol": "TCP"}]),
    "protocol of the port": container(ports=[{"hostPort": 80, "protocol": "UDP"}]),
    "address of the port": container(ports=[{"hostPort": 80, "protocol": "TCP", "hostIP": "10.0.0.1"}]),
    "no requests": container(resources={}),
    "what is counted for no requests": container(resources={"requests": {"cpu": "100m", "memory": "200Mi"}}),
    "feature of the kubelet": another_feature,
    "overhead": lambda _, spec: spec.update(overhead={"cpu": "900m"}),
    "an init container": lambda _, spec: spec.update(
        initContainers=[{"name": "d", "resources": {"requests": {"memory": "3Gi"}}}]
    ),
}


class Twins(History):
    """Pods of two templates in turn, of which the second is the first with one change; they are deleted soon."""

    def __init__(self, chance: random.Random, change: Change, *, own: bool, required: bool) -> None:
        self.change, self.own, self.required = change, own, required
        self.first: Tree = {}
        super().__init__(chance, templates=2, nodes=10)
        for _ in range(6):
            self.change_owners()

    def template(self, number: int) -> Tree:
        if number == 0:
            self.first = self.with_something_of_everything()
            return self.first
        second = copy.deepcopy(self.first)
        self.change(second["metadata"], second["spec"])
        return second

    def with_something_of_everything(self) -> Tree:
        """Constraints of its own, or an owner, whose pods get the default constraints."""
        pick, selector = self.chance.choice, {"matchLabels": {"app": "a0"}}
        ports = [{"hostPort": 80, "protocol": "TCP"}] if self.chance.random() < 0.5 else []
        container: Tree = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": "50m"}}, "ports": ports}
        if self.chance.random() < 0.5:
            container["resources"] = {}
        others = [{"name": name, "image": image} for name, image in (("d", "app:1"), ("e", "app:2"))]
        spec: Tree = {"containers": [container, *others], "hostNetwork": True, "hostUsers": False}
        spec["tolerations"] = [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]
        metadata: Tree = {"namespace": "default", "labels": {"app": "a0", "rev": "1"}}
        owned("apps/v1", "StatefulSet", "owner")(metadata, spec)
        term = {"topologyKey": ZONE, "labelSelector": selector}
        wanted = {PREFERRED: [{"weight": 10, "podAffinityTerm": term}]}
        if self.own:
            skew = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule" if self.required else "ScheduleAnyway"}
            policies = {"nodeTaintsPolicy": "Honor", "nodeAffinityPolicy": "Honor", "labelSelector": selector}
            keys = self.chance.sample([ZONE, HOST, RACK], pick([1, 2]))
            spec["topologySpreadConstraints"] = [{"topologyKey": key, **skew, **policies} for key in keys]
        elif self.required:
            wanted = {REQUIRED: [{**term, "topologyKey": HOST}]}
        spec["affinity"] = {"podAntiAffinity": wanted}
        return {"metadata": metadata, "spec": spec}

    def node(self, name: str) -> Node:
        node, pick = super().node(name), self.chance.choice
        taints = tuple(replace(taint, value=pick(["yes", "no"])) for taint in node.spec.taints)
        features = [each for each in (RESTART_ALL_CONTAINERS, USER_NAMESPACES_WITH_HOST_NETWORK) if pick([1, 1, 1, 0])]
        status = replace(node.status, declared_features=tuple(features))
        return replace(node, spec=replace(node.spec, taints=taints), status=status)

    def step(self) -> None:
        if len(self.placed) > 6:
            self.leave(self.placed.pop(self.chance.choice(sorted(self.placed))))
        super().step()

    def change_owners(self) -> None:
        """Owners of one name and several kinds, which select different pods."""
        app = {"app": self.chance.choice(["a0", "a1"])}
        metadata = {"name": "owner", "uid": "owner", "namespace": "default"}
        selecting = {"metadata": metadata, "spec": {"selector": {"matchLabels": app}}}
        if self.chance.random() < 0.5:
            super().change_owners()
        else:
            self.each("upsert", convert(selecting, self.chance.choice([ReplicaSet, StatefulSet])))


@pytest.mark.parametrize("what", CHANGES)
def test_pods_that_differ_in_one_field_get_their_own_results(what: str) -> None:
    shared = 0
    for number, (own, required) in enumerate([(True, True), (True, False), (False, True), (False, False)]):
        history = Twins(random.Random(900 + number), CHANGES[what], own=own, required=required)
        for _ in range(STEPS):
            history.step()
        shared += history.shared
    assert shared > STEPS, "sharing is what is tested here"
