"""Class evaluation with optional plugins: those for the binder, and the policies for shared GPUs."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.app import known_plugins
from bayplan.clock import ManualClock
from bayplan.framework.api.extension_points import FILTER, SCORE
from bayplan.framework.runtime.profile import Profile
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai import gpu_sharing as kai
from bayplan.plugins.bind_request_binder import BindRequestBinder
from bayplan.plugins.gpu import gpu_policies
from bayplan.plugins.gpu.fragmentation_policy import GpuFragmentation
from bayplan.plugins.gpu.gpu_requests import GPU_COUNT, GPU_MODEL, GpuMilliRequest, request_annotations
from bayplan.plugins.gpu_sharing import GpuSharing
from bayplan.scheduler.cycle.schedule_result import ScheduleResult
from bayplan.snapshot import PodInfo
from support.harness.engine_histories import HEAD, STEPS, History, decision_fields, run_history


def with_plugin(name: str) -> str:
    typical = [{"gpuMilli": 500, "gpuCount": 1, "pods": 3}, {"gpuMilli": 1000, "gpuCount": 2}]
    profile: dict[str, Any] = {"schedulerName": "default-scheduler"}
    profile["plugins"] = {"multiPoint": {"enabled": [{"name": name}]}}
    if name == GpuFragmentation.name:
        profile["pluginConfig"] = [{"name": name, "args": {"typicalPods": typical}}]
    return f"{HEAD}- {json.dumps(profile)}\n"


def profile_of(history: History) -> Profile:
    return history.engines[0].framework("default-scheduler").profile


class Handed(History):
    """Bindings fail, and the pods are tried again as the queue has kept them, without a change."""

    def __init__(self, chance: random.Random) -> None:
        self.given_up: dict[str, tuple[Pod, list[PodInfo]]] = {}
        self.left_out = self.blocked = 0
        super().__init__(chance, profiles=with_plugin(BindRequestBinder.name), nodes=6, templates=3)

    def template(self, number: int) -> dict[str, Any]:  # noqa: ARG002
        """Pods that are equal for every other plugin, so a pod with a failed binding would share results with one
        without.
        """
        template = super().template(0)
        kept = {"containers", "schedulerName"}
        return {**template, "spec": {key: value for key, value in template["spec"].items() if key in kept}}

    def step(self) -> None:
        if self.chance.random() < 0.15:
            pause_s = self.chance.choice([5, 40, 700])
            for engine in self.engines:
                clock = engine._clock
                assert isinstance(clock, ManualClock)
                clock.advance(pause_s)
        else:
            super().step()

    def place(self) -> None:
        if self.given_up and self.chance.random() < 0.5:
            pod, infos = self.given_up.pop(self.chance.choice(sorted(self.given_up)))
            self.count += 1  # a normal attempt
        else:
            pod = self.pod()
            infos = [engine.prepare(pod) for engine in self.engines]
        both = self.decided(pod, infos)
        answer = decision_fields(both[1].decision)
        self.left_out += BindRequestBinder.name in answer.get("rejectors", ())
        self.blocked += "bindings of the pod failed" in answer["message"]
        if both[0].node is None or self.chance.random() < 0.75:
            self.give_up(pod, infos, both)

    def give_up(self, pod: Pod, infos: list[PodInfo], both: list[ScheduleResult]) -> None:
        self.placed.pop(pod.uid, None)
        for engine, placed in zip(self.engines, both, strict=True):
            if placed.assumed is not None and placed.node is not None:
                placed.assumed.unreserve_and_forget(engine.cache)
                engine.bind_request_factory.failures.record_failure(pod.uid, placed.node, "no")
            engine.nominator.delete_nomination(pod.uid)
        self.given_up[pod.uid] = pod, infos


class Refused(History):
    """Records which plugins rejected pods: a plugin without a rejection is not tested."""

    def __init__(self, chance: random.Random, plugin: str) -> None:
        self.said: set[str] = set()
        super().__init__(chance, profiles=with_plugin(plugin), nodes=8, templates=8)

    def decided(self, pod: Pod, infos: Any = ()) -> list[ScheduleResult]:
        both = super().decided(pod, infos)
        self.said |= set(decision_fields(both[1].decision).get("rejectors", ()))
        return both

    def with_devices(self, node: Node, number: dict[str, str], labels: dict[str, str]) -> Node:
        """A node with devices that every other plugin accepts."""
        return replace(
            node,
            metadata=replace(node.metadata, labels={**node.metadata.labels, **labels}),
            spec=replace(node.spec, taints=(), unschedulable=False),
            status=replace(node.status, allocatable={**node.status.allocatable, **number}),
        )

    def plain_spec(self, spec: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in spec.items() if key in ("containers", "schedulerName")}
        kept["containers"][0].pop("ports", None)
        return kept


class SharedGpus(Refused):
    """Nodes with devices of two models, and pods that request a part of one, one or two, or none."""

    def node(self, name: str) -> Node:
        node, pick = super().node(name), self.chance.choice
        if self.chance.random() < 0.2:
            return node
        return self.with_devices(node, {GPU_COUNT: pick(["1", "2", "4"])}, {GPU_MODEL: pick(["T4", "A10"])})

    def template(self, number: int) -> dict[str, Any]:
        template = super().template(number)
        asks = [
            GpuMilliRequest(),
            GpuMilliRequest(250, 1),
            GpuMilliRequest(600, 1),
            GpuMilliRequest(1000, 1),
            GpuMilliRequest(1000, 2),
            GpuMilliRequest(250, 1, "T4"),
        ]
        annotations = request_annotations(self.chance.choice(asks))
        if self.chance.random() < 0.05:
            annotations = {GPU_COUNT: "many"}
        metadata = {**template["metadata"], "annotations": annotations}
        return {"metadata": metadata, "spec": self.plain_spec(template["spec"])}


class PartsOfGpus(Refused):
    """The same with KAI's annotations: a fraction of a device, an amount of its memory, or whole ones."""

    def node(self, name: str) -> Node:
        node, pick = super().node(name), self.chance.choice
        if self.chance.random() < 0.2:
            return node
        labels = pick([{kai.GPU_MEMORY_LABEL: "16384"}, {kai.GPU_MEMORY_LABEL: "40960"}, {}])
        return self.with_devices(node, {kai.GPU: pick(["1", "2", "4"])}, labels)

    def template(self, number: int) -> dict[str, Any]:
        template = super().template(number)
        spec = self.plain_spec(template["spec"])
        asks: list[dict[str, str]] = [
            {},
            {kai.FRACTION_ANNOTATION: "0.5"},
            {kai.FRACTION_ANNOTATION: "0.3"},
            {kai.FRACTION_ANNOTATION: "0.6", kai.DEVICE_COUNT_ANNOTATION: "2"},
            {kai.MEMORY_ANNOTATION: "12000"},
        ]
        annotations = self.chance.choice(asks) if self.chance.random() > 0.05 else {kai.FRACTION_ANNOTATION: "2"}
        if not annotations and self.chance.random() < 0.5:
            resources = spec["containers"][0].setdefault("resources", {})
            resources["requests"] = {**resources.get("requests", {}), kai.GPU: "1"}
        return {"metadata": {**template["metadata"], "annotations": annotations}, "spec": spec}


def test_pods_with_failed_bindings_get_their_own_results() -> None:
    left_out = blocked = 0
    for seed in range(1000, 1006):
        history = Handed(random.Random(seed))
        run_history(history, at_least_shared=0.2)
        assert history.shared > STEPS // 10, "too few pods shared results"
        left_out, blocked = left_out + history.left_out, blocked + history.blocked
    assert left_out > 20, "what is never met is not tested"
    assert blocked > 5


@pytest.mark.parametrize("policy", [each.name for each in gpu_policies()])
def test_sharing_changes_nothing_about_shared_gpus(policy: str) -> None:
    said: set[str] = set()
    for seed in range(1100, 1103):
        history = SharedGpus(random.Random(seed), policy)
        run_history(history)
        assert history.shared > STEPS // 3, "too few pods shared results"
        said |= history.said
    assert policy in said, "the plugin rejected no pod"


def test_sharing_changes_nothing_about_parts_of_gpus() -> None:
    said: set[str] = set()
    for seed in range(1200, 1203):
        history = PartsOfGpus(random.Random(seed), GpuSharing.name)
        run_history(history)
        assert history.shared > STEPS // 8, "too few pods shared results"
        said |= history.said
    assert GpuSharing.name in said, "the plugin rejected no pod"


def test_every_shipped_filter_and_score_plugin_is_covered() -> None:
    """By the histories of this file, and by those of the other files for plugins of the default profile."""
    usual = profile_of(History(random.Random(0)))
    lived_with = {plugin.name for point in (FILTER, SCORE) for plugin in usual.at(point)}
    lived_with |= {BindRequestBinder.name, GpuSharing.name, *(each.name for each in gpu_policies())}
    methods = ("filter", "filter_nodes", "score", "score_nodes")
    shipped = {entry.name for entry in known_plugins() if any(hasattr(entry.plugin, method) for method in methods)}
    assert shipped == lived_with
