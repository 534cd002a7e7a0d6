"""Scheduler configurations of simulation policies, as profiles for any scheduler.

`bayplan simulate --show-config` prints one; `bayplan scheduler --config` runs it on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from bayplan.app.configuration import configured, known_plugins
from bayplan.config.model import Configuration
from bayplan.errors import UsageError
from bayplan.framework.runtime.registry import Registry
from bayplan.plugins.gpu.best_fit_policy import GpuBestFit
from bayplan.plugins.gpu.clustering_policy import GpuClustering
from bayplan.plugins.gpu.dot_product_policy import GpuDotProduct
from bayplan.plugins.gpu.fragmentation_policy import GpuFragmentation
from bayplan.plugins.gpu.packing_policy import GpuPacking
from bayplan.plugins.gpu.random_policy import GpuRandom
from bayplan.plugins.gpu.typical_pods import GpuPodShape, TypicalPods
from bayplan.sim.traces.trace_files import TracePod

POLICIES = {
    "random": GpuRandom.name,
    "dotprod": GpuDotProduct.name,
    "gpuclustering": GpuClustering.name,
    "gpupacking": GpuPacking.name,
    "bestfit": GpuBestFit.name,
    "fgd": GpuFragmentation.name,
}
"""Short names of the published policies, in their order, with their plugins."""

PUBLISHED_NAMES = dict(
    zip(POLICIES, ("01-Random", "02-DotProd", "03-GpuClustering", "04-GpuPacking", "05-BestFit", "06-FGD"), strict=True)
)

_FIT_PLUGIN = "NodeResourcesFit"
_MAX_WEIGHT = 1000


def pod_shape(pod: TracePod) -> GpuPodShape:
    return GpuPodShape(pod.cpu_milli, pod.gpu_request.milli, pod.gpu_request.count, pod.gpu_request.models)


def parse_policy(text: str) -> dict[str, int]:
    """Parse policies with weights: `fgd`, or `fgd:2+bestfit:1`, which adds the scores of both."""
    weights: dict[str, int] = {}
    for part in text.split("+"):
        name, _, weight = part.partition(":")
        if name not in POLICIES:
            raise UsageError(f'unknown policy "{name}"; expected one of: {", ".join(POLICIES)}')
        if weight and not (weight.isascii() and weight.isdigit() and 1 <= int(weight) <= _MAX_WEIGHT):
            raise UsageError(f'the weight of a policy is a whole number from 1 to {_MAX_WEIGHT}; got "{weight}"')
        if name in weights:
            raise UsageError(f'"{text}" names {name} twice; give it one weight')
        weights[name] = int(weight or 1)
    return weights


def policy_manifest(policy: str, pods: Iterable[TracePod]) -> dict[str, Any]:
    """The KubeSchedulerConfiguration of a policy; FGD derives the typical pods from `pods`.

    With several policies the last one chooses the devices.
    """
    weights = {POLICIES[name]: weight for name, weight in parse_policy(policy).items()}
    enabled = {"enabled": [{"name": _FIT_PLUGIN}]}
    scorers = [{"name": plugin, **({"weight": weight} if weight > 1 else {})} for plugin, weight in weights.items()]
    profile: dict[str, Any] = {
        "schedulerName": "default-scheduler",
        "plugins": {
            "multiPoint": {"disabled": [{"name": "*"}], "enabled": scorers},
            "queueSort": {"enabled": [{"name": "PrioritySort"}]},
            "preFilter": enabled,
            "filter": enabled,
            "bind": {"enabled": [{"name": "DefaultBinder"}]},
        },
    }
    if GpuFragmentation.name in weights:
        profile["pluginConfig"] = [{"name": GpuFragmentation.name, "args": {"typicalPods": _typical_pods(pods)}}]
    return _manifest(profile)


def default_manifest() -> dict[str, Any]:
    """The default profile of a scheduler, with GPU sharing in addition."""
    return _manifest({"plugins": {"multiPoint": {"enabled": [{"name": GpuBestFit.name}]}}})


def _manifest(profile: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "profiles": [profile]}


def _typical_pods(pods: Iterable[TracePod]) -> list[dict[str, Any]]:
    return [
        {
            "cpuMilli": shape.cpu_milli,
            "gpuMilli": shape.gpu_milli,
            "gpuCount": shape.gpu_count,
            "gpuModels": shape.models,
            "pods": count,
        }
        for shape, count in TypicalPods.of(map(pod_shape, pods)).counts
    ]


def policy_configuration(policy: str, pods: Iterable[TracePod]) -> tuple[Configuration, Registry]:
    """The decoded configuration of a policy, with the registry of its plugins."""
    registry = known_plugins()
    return configured(yaml.safe_dump(policy_manifest(policy, pods)), registry), registry
