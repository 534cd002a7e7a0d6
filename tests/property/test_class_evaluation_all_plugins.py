"""Class evaluation on clusters where every shipped plugin has an effect.

Pods differ in every field that a plugin reads: volumes and claims, devices by claim and by resource, features of the
kubelet, node affinity, tolerations with values and effects, node names, containers, images and ports. Volumes, classes,
slices and claims are added, changed and removed between two pods. Preempting pods wait for their node while other pods
are placed, and are tried again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from bayplan.framework.api.extension_points import FILTER, SCORE
from bayplan.objects.core import Node, Pod, Taint
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceSlice
from bayplan.plugins.node_declared_features import RESTART_ALL_CONTAINERS, USER_NAMESPACES_WITH_HOST_NETWORK
from bayplan.plugins.node_unschedulable import UNSCHEDULABLE
from bayplan.scheduler.cycle.schedule_result import ScheduleResult
from support.builders.devices import device, exactly, first_of, make_allocation, make_slice, subrequest
from support.builders.devices import make_claim as make_device_claim
from support.builders.devices import make_class as make_device_class
from support.builders.volumes import (
    make_attachment,
    make_claim,
    make_class,
    make_csi_node,
    make_volume,
    owner_references,
)
from support.harness.engine_histories import (
    DEFAULT,
    HEAD,
    PREFERRED,
    RACK,
    REQUIRED,
    STEPS,
    ZONE,
    History,
    decision_fields,
    run_history,
)

FOO = "example.com/foo"
OWN = "own"  # the name of a claim that is created for each pod
MODEL_X = 'device.attributes["gpu.example.com"].model == "x"'
COUNTING = (
    HEAD
    + """
- schedulerName: default-scheduler
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy: {type: LeastAllocated, resources: [{name: cpu, weight: 1}, {name: example.com/foo, weight: 5}]}
  - name: NodeResourcesBalancedAllocation
    args: {resources: [{name: cpu, weight: 1}, {name: example.com/foo, weight: 1}]}
"""
)
SEVERAL = (
    COUNTING
    + """
- schedulerName: pinned
  pluginConfig:
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchExpressions: [{key: disk, operator: In, values: [ssd]}]
  - name: DefaultPreemption
    args: {minCandidateNodesPercentage: 100}
"""
)
Spec = dict[str, Any]
Facet = Callable[[random.Random, Spec], None]

# requirements of pods ------------------------------------------------------------------------------------------


def nothing_special(chance: random.Random, spec: Spec) -> None:
    """Pods that share most of their results."""


def a_node_by_name(chance: random.Random, spec: Spec) -> None:
    spec["nodeName"] = chance.choice(["n0", "n1", "n2"])


def some_nodes(chance: random.Random, spec: Spec) -> None:
    """By expressions, by the names of nodes, or by preference; with or without a node selector."""
    number = str(chance.randint(0, 2))
    expressions = [
        {"key": "disk", "operator": chance.choice(["In", "NotIn"]), "values": ["ssd"]},
        {"key": RACK, "operator": chance.choice(["Exists", "DoesNotExist"])},
        {"key": RACK, "operator": chance.choice(["Gt", "Lt"]), "values": [number]},
    ]
    term: dict[str, Any] = {"matchExpressions": [chance.choice(expressions)]}
    if chance.random() < 0.2:
        term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [f"n{number}"]}]
    affinity: dict[str, Any] = {REQUIRED: {"nodeSelectorTerms": [term]}}
    if chance.random() < 0.5:
        affinity = {PREFERRED: [{"weight": chance.choice([1, 50]), "preference": term}]}
    spec.setdefault("affinity", {})["nodeAffinity"] = affinity


def a_toleration(value: str, effect: str, chance: random.Random, spec: Spec) -> None:
    spec["tolerations"] = [{"key": "gpu", "operator": "Equal", "value": value, "effect": effect}]
    if chance.random() < 0.3:
        spec["tolerations"].append({"key": "gpu", "operator": "Exists", "effect": "PreferNoSchedule"})


def closed_nodes(chance: random.Random, spec: Spec) -> None:
    spec["tolerations"] = [chance.choice([{"key": UNSCHEDULABLE.key, "operator": "Exists"}, {"operator": "Exists"}])]


def two_images(where: str, chance: random.Random, spec: Spec) -> None:
    """The same images, in containers, init containers or volumes."""
    spec["containers"][0]["image"], second = chance.choice([("app:1", "app:2"), ("app:2", "app:1")])
    match where:
        case "beside":
            spec["containers"].append({"name": "d", "image": second})
        case "before":
            spec["initContainers"] = [{"name": "d", "image": second}]
        case _:
            spec.setdefault("volumes", []).append({"name": "d", "image": {"reference": second}})


def ports(chance: random.Random, spec: Spec) -> None:
    spec["containers"][0]["ports"] = [
        {
            "hostPort": chance.choice([8080, 9090]),
            "protocol": chance.choice(["TCP", "UDP"]),
            "hostIP": chance.choice(["", "10.0.0.1"]),
        }
    ]


def features(chance: random.Random, spec: Spec) -> None:
    which = chance.choice(["users", "restart", "both"])
    if which != "restart":
        spec |= {"hostNetwork": True, "hostUsers": False}
    if which != "users":
        spec["containers"][0]["restartPolicyRules"] = [{"action": "RestartAllContainers"}]


def claims(names: list[str], chance: random.Random, spec: Spec) -> None:
    for name in chance.sample(names, chance.randint(1, min(2, len(names)))):
        volume = {"name": name, "persistentVolumeClaim": {"claimName": name}}
        spec.setdefault("volumes", []).append(volume)


def a_claim_of_its_own(chance: random.Random, spec: Spec) -> None:  # noqa: ARG001
    spec.setdefault("volumes", []).append({"name": OWN, "ephemeral": {}})


def a_disk(chance: random.Random, spec: Spec) -> None:
    disk = {"pdName": chance.choice(["one", "two"]), "readOnly": chance.random() < 0.3}
    spec.setdefault("volumes", []).append({"name": "disk", "gcePersistentDisk": disk})


def devices(name: str, chance: random.Random, spec: Spec) -> None:  # noqa: ARG001
    """By a claim: the pod's own, or one that other pods use too."""
    spec["resourceClaims"] = [{"name": "dev", "resourceClaimName": name}]


def devices_by_resource(chance: random.Random, spec: Spec) -> None:
    spec["containers"][0]["resources"]["requests"][FOO] = chance.choice(["1", "2"])


FACETS: list[Facet] = [
    nothing_special,
    a_node_by_name,
    some_nodes,
    some_nodes,
    partial(a_toleration, "yes", ""),
    partial(a_toleration, "yes", "NoSchedule"),
    partial(a_toleration, "no", ""),
    closed_nodes,
    partial(two_images, "beside"),
    partial(two_images, "before"),
    partial(two_images, "mounted"),
    ports,
    features,
    partial(claims, ["zonal"]),
    partial(claims, ["near"]),
    partial(claims, ["attached-0", "attached-1", "attached-2"]),
    partial(claims, ["exclusive", "waiting", "unknown"]),
    a_claim_of_its_own,
    a_disk,
    partial(devices, OWN),
    partial(devices, OWN),
    partial(devices, "shared"),
    devices_by_resource,
    devices_by_resource,
]

# cluster --------------------------------------------------------------------------------------------------------


class Furnished(History):
    """A cluster with everything that shipped plugins read, and a template for each of `facets`."""

    facets: ClassVar[list[Facet]] = FACETS
    plain = 0.7  # so many request little else, or hardly any pod would reach the last filter
    device_counts = (1, 2, 4)

    def __init__(self, chance: random.Random, **options: Any) -> None:
        self.version = 0
        self.waiting: dict[str, Pod] = {}  # pods that were nominated to a node
        self.held: dict[str, list[ScheduleResult]] = {}
        self.said: set[tuple[str, str]] = set()  # plugins with an effect on a decision, with the extension point
        super().__init__(chance, templates=len(self.facets), **options)
        for change in (self.change_volumes, self.change_claims, self.change_devices):
            change(everything=True)

    def node(self, name: str) -> Node:
        node, draw = super().node(name), self.chance.random
        taints = tuple(
            Taint(key="gpu", value=self.chance.choice(["yes", "no"]), effect=effect)
            for effect in ("NoSchedule", "PreferNoSchedule")
            if draw() < 0.25
        )
        declared = [each for each in (RESTART_ALL_CONTAINERS, USER_NAMESPACES_WITH_HOST_NETWORK) if draw() < 0.7]
        room = dict(node.status.allocatable) | ({FOO: "3"} if draw() < 0.3 else {})
        return replace(
            node,
            spec=replace(node.spec, taints=taints, unschedulable=draw() < 0.15),
            status=replace(node.status, allocatable=room, declared_features=tuple(declared)),
        )

    def template(self, number: int) -> dict[str, Any]:
        template, chance = super().template(number), self.chance
        spec = template["spec"]
        if chance.random() < self.plain:
            kept = {"containers", "priority", "schedulerName"}
            template["spec"] = spec = {key: value for key, value in spec.items() if key in kept}
            spec["containers"][0].pop("ports", None)
        self.facets[number](chance, spec)
        if chance.random() < 0.3:
            chance.choice(self.facets)(chance, spec)
        template["metadata"]["namespace"] = "default"
        return template

    def pod(self) -> Pod:
        """A pod, with the claims that are created for it alone."""
        pod = super().pod()
        if any(volume.ephemeral is not None for volume in pod.spec.volumes) and self.chance.random() < 0.9:
            self.each("upsert", make_claim(f"{pod.name}-{OWN}", owners=owner_references(pod)))
        if not any(each.resource_claim_name == OWN for each in pod.spec.resource_claims):
            return pod
        either = first_of(subrequest(1, MODEL_X), subrequest(1))  # so that nodes have different scores
        wanted = self.chance.choice(
            [exactly(2), exactly(1, MODEL_X), first_of(subrequest(2), subrequest(1)), either, either]
        )
        self.each("upsert", make_device_claim(wanted, name=f"{pod.name}-{OWN}"))
        claim = replace(pod.spec.resource_claims[0], resource_claim_name=f"{pod.name}-{OWN}")
        return replace(pod, spec=replace(pod.spec, resource_claims=(claim,)))

    # events ---------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        draw = self.chance.random()
        if draw < 0.06:
            self.change_volumes()
        elif draw < 0.1:
            self.change_claims()
        elif draw < 0.16:
            self.change_devices()
        else:
            super().step()

    def change(self, *choices: KubeObject, everything: bool) -> None:
        """All of these exist now; or one of them is added, changed or removed."""
        if everything:
            for each in choices:
                self.each("upsert", each)
        else:
            self.each("upsert" if self.chance.random() < 0.75 else "delete", self.chance.choice(choices))

    def newer(self) -> str:
        self.version += 1
        return str(self.version)

    def change_volumes(self, *, everything: bool = False) -> None:
        pick, names, version = self.chance.choice, sorted(self.nodes), self.newer()
        self.change(
            make_volume("zonal", labels={ZONE: pick(["a", "b", "a__b"])}, version=version),
            make_volume("near", near={RACK: pick(["1", "2"])}, version=version),
            *(make_volume(f"attached-{each}", handle=f"h{each}", driver="d", version=version) for each in range(3)),
            make_volume("exclusive", version=version),
            *(make_volume(f"free-{each}", near={ZONE: pick("abc")}, version=version) for each in range(3)),
            make_class(topologies=pick([(), ({ZONE: "a"},), ({RACK: "1"},)])),
            *(make_csi_node(name, d=pick([0, 1, 2])) for name in names),
            make_attachment("there", pick(names), "attached-1", attacher="d"),
            everything=everything,
        )

    def change_claims(self, *, everything: bool = False) -> None:
        version = self.newer()
        bound = ("zonal", "near", "attached-0", "attached-1", "attached-2")
        self.change(
            *(make_claim(name, volume=name, version=version) for name in bound),
            make_claim("exclusive", volume="exclusive", modes=["ReadWriteOncePod"], version=version),
            make_claim("waiting", version=version),
            everything=everything,
        )

    def change_devices(self, *, everything: bool = False) -> None:
        pick, names = self.chance.choice, sorted(self.nodes)
        here = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
        taken = make_allocation({"device": "d0", "pool": pick(names)}, nodeSelector={"nodeSelectorTerms": [here]})
        self.change(
            *map(self.slice_of, names),
            make_device_class("gpu", "device.driver == 'gpu.example.com'"),
            make_device_class("foo", "device.driver == 'gpu.example.com'", extended_resource_name=FOO),
            make_device_claim(exactly(1), name="shared", allocation=pick([None, taken]), version=self.newer()),
            everything=everything,
        )
        if everything and self.chance.random() < 0.5:  # a resource that is backed by devices later
            self.each("delete", make_device_class("foo"))

    def slice_of(self, node: str) -> ResourceSlice:
        """Devices of two models; some nodes have only one of them."""
        models = self.chance.choice(["x", "y", "xy"])
        count = self.chance.choice(self.device_counts)
        some = [device(f"d{number}", model=self.chance.choice(models)) for number in range(count)]
        return make_slice(*some, node=node)

    def add_node(self, name: str) -> None:
        super().add_node(name)
        self.each("upsert", make_csi_node(name, d=self.chance.choice([1, 2])))
        self.each("upsert", self.slice_of(name))

    def leave(self, pod: Pod) -> None:
        """Release what was reserved for the pod."""
        for engine, placed in zip(self.engines, self.held.pop(pod.uid), strict=True):
            assert placed.assumed is not None
            if not placed.assumed.unreserve_and_forget(engine.cache):
                engine.cache.remove_pod(pod)

    def place(self) -> None:
        """A new pod, or one that waits for a node; its victims are deleted soon, or still exist at the next attempt."""
        retried = self.waiting and self.chance.random() < 0.4
        pod = self.waiting.pop(self.chance.choice(sorted(self.waiting))) if retried else self.pod()
        shared, alone = self.decided(pod)
        self.listen(alone)
        if shared.node is not None:
            self.held[pod.uid] = [shared, alone]
        elif shared.decision.nominated_node_name:
            status = replace(pod.status, nominated_node_name=shared.decision.nominated_node_name)
            self.waiting[pod.uid] = replace(pod, status=status)
            if self.chance.random() < 0.7:
                self.evict(shared.decision.victims)
        if len(self.waiting) > 2 or (self.waiting and self.chance.random() < 0.3):
            self.give_up(self.chance.choice(sorted(self.waiting)))

    def give_up(self, uid: str) -> None:
        """The nomination ends: the pod was deleted, or its status is not updated yet."""
        if self.chance.random() < 0.7:
            del self.waiting[uid]
        for engine in self.engines:
            engine.nominator.delete_nomination(uid)

    def evict(self, keys: tuple[str, ...]) -> None:
        for pod in [pod for pod in self.placed.values() if pod.key in keys]:
            self.leave(self.placed.pop(pod.uid))

    def listen(self, placed: ScheduleResult) -> None:
        answer = decision_fields(placed.decision)
        self.said |= {("filter", name) for name in answer.get("rejectors", ())}
        scores = answer.get("scores", {}).values()
        for name in {name for given in scores for name in given}:
            if len({given[name] for given in scores}) > 1:
                self.said.add(("score", name))


class Served(Furnished):
    """Almost only a resource that nodes have or devices back, and slices that change."""

    facets: ClassVar[list[Facet]] = [nothing_special, devices_by_resource, devices_by_resource, partial(devices, OWN)]
    plain = 1.0
    device_counts = (4, 8, 12)

    def node(self, name: str) -> Node:
        node = super().node(name)
        return replace(node, spec=replace(node.spec, taints=(), unschedulable=False))

    def step(self) -> None:
        if self.chance.random() < 0.25:
            self.change_devices()
        else:
            super().step()


@pytest.mark.parametrize("profiles", [DEFAULT, SEVERAL], ids=["default", "several-profiles"])
def test_sharing_changes_nothing_for_any_pod(profiles: str) -> None:
    said: set[tuple[str, str]] = set()
    for seed in range(700, 710):
        history = Furnished(random.Random(seed), profiles=profiles)
        run_history(history, at_least_shared=0.3)
        assert history.shared > STEPS // 10, "sharing is what is tested here"
        said |= history.said
    profile = history.engines[0].framework("default-scheduler").profile
    assert {name for point, name in said if point == "filter"} >= {plugin.name for plugin in profile.at(FILTER)}
    silent = {"VolumeBinding"}  # scores by storage capacity, which is not enabled in this version
    assert {name for point, name in said if point == "score"} >= {each.name for each in profile.at(SCORE)} - silent


@pytest.mark.parametrize("seed", range(3))
def test_a_device_backed_resource_is_scored_by_the_current_devices(seed: int) -> None:
    history = Served(random.Random(800 + seed), profiles=COUNTING)
    run_history(history, at_least_shared=0)
    assert history.shared > STEPS // 10, "sharing is what is tested here"
    counting = {("score", "NodeResourcesFit"), ("score", "NodeResourcesBalancedAllocation")}
    assert history.said >= {("filter", "DynamicResources"), *counting}
