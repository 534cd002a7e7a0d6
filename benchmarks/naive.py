"""Decisions in plain Python by the naive twins: their time, and a check that they equal the engine's decisions.

The engine runs a profile whose filters and scores are the naive twins of the tests: one node at a time, on API objects,
without columns, without sharing between pods. It decides on the cluster that the measured engine has just filled, so
both are compared: the same feasible nodes and the same totals, or the benchmark stops. As in kube-scheduler, a twin is
skipped for pods that do not concern it. Cost: about a second a pod and five thousand nodes.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from importlib import import_module
from time import perf_counter_ns
from typing import Any

import numpy as np

import naive as twins
from bayplan.app import known_plugins
from bayplan.cache import Cache
from bayplan.errors import BayplanError
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.status import SKIP, Code, Status
from bayplan.framework.runtime.registry import RegisteredPlugin, Registry
from bayplan.objects.core import Node, Pod
from bayplan.scheduler.cycle.schedule_result import SchedulingDecision
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import IntVector, NodeInfo, NodeTable
from benchmarks.decision_timing import Latencies, engine_on
from benchmarks.naive_counts import CountedAffinity, CountedSpread, image_scores
from benchmarks.naive_snapshot import NaiveSnapshot
from naive import preemption
from naive.dynamic_resources import score as device_score
from naive.node_ports import ports
from naive.storage import claim_names
from naive.twin import Twin, spread_to_100
from support.builders.framework import FEASIBLE, FilterResult

SNAPSHOT: StateKey[NaiveSnapshot] = StateKey("plain/snapshot")
SCORES: StateKey[dict[str, dict[str, int]]] = StateKey("plain/scores")
EVALUATORS: StateKey[dict[str, Callable[[Node], FilterResult]]] = StateKey("plain/judges")

_STORAGE = frozenset({"VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"})
_CODES: Mapping[str, Code] = {code.label: code for code in Code}
_CANDIDATES_PERCENT, _CANDIDATES_AT_LEAST = 10, 100
"""On how many nodes preemption looks for victims before it chooses: the defaults of DefaultPreemption."""


class DecisionMismatch(BayplanError):
    """The naive twins and the engine decide differently about a pod."""


# plugins


class NaivePlugin:
    """A naive twin as a plugin."""

    name: str
    twin: Twin

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @classmethod
    def factory(cls, args: object, handle: Handle) -> NaivePlugin:  # noqa: ARG003
        return cls(handle)

    def _snapshot(self, cycle: Cycle) -> NaiveSnapshot:
        snapshot = cycle.find(SNAPSHOT)
        if snapshot is None:
            devices = self._handle.devices
            devices.sync(self._handle.catalog)
            snapshot = NaiveSnapshot(cycle.pod, cycle.snapshot, devices)
            cycle.put(SNAPSHOT, snapshot)
            cycle.put(EVALUATORS, {})
            cycle.put(SCORES, {})
        return snapshot


class NaiveFilter(NaivePlugin):
    def pre_filter(self, cycle: Cycle) -> Status | None:
        judge = evaluator_for(self.twin, self._snapshot(cycle))
        if judge is None:
            return SKIP
        cycle.get(EVALUATORS)[self.name] = judge
        return None

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        found = cycle.get(EVALUATORS)[self.name](node.node)
        return None if found == FEASIBLE else Status(_CODES[found[0]], found[1])


class NaiveScore(NaivePlugin):
    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:
        found = scores_of(self.twin, self._snapshot(cycle), [node.node for node in nodes])
        if found is None:
            return SKIP
        cycle.get(SCORES)[self.name] = found
        return None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        found = cycle.get(SCORES)[self.name]
        return np.array([found[name] for name in nodes.names], dtype=np.int64)


def evaluator_for(twin: Twin, snapshot: NaiveSnapshot) -> Callable[[Node], FilterResult] | None:
    """The evaluator of nodes for the pod, or None if the twin skips the pod."""
    name, pod = twin.plugin.name, snapshot.case.pod
    if name == "PodTopologySpread":
        spread = CountedSpread(snapshot.case)
        return None if spread.is_idle else spread.judge
    if name == "InterPodAffinity":
        affinity = CountedAffinity(snapshot.case)
        return None if affinity.is_idle else affinity.judge
    if name == "NodePorts" and not any(ports(pod)):
        return None
    if name in _STORAGE and not any(claim_names(pod, with_ephemeral=True)):
        return None
    if name == "DynamicResources" and not pod.spec.resource_claims:
        return None
    judge = twin.filter
    assert judge is not None
    if name in _STORAGE:
        return lambda node: judge(snapshot.with_storage_of(node), node)
    if name == "DynamicResources":
        return lambda node: judge(snapshot.with_devices_of(node), node)
    return partial(judge, snapshot.case)


def scores_of(twin: Twin, snapshot: NaiveSnapshot, feasible: Sequence[Node]) -> dict[str, int] | None:
    """Normalised scores, or None if the twin skips the pod."""
    if twin.plugin.name == "ImageLocality":
        return image_scores(snapshot.case, feasible)
    if twin.plugin.name == "DynamicResources":
        if not snapshot.case.pod.spec.resource_claims:
            return None
        return spread_to_100({node.name: device_score(snapshot.with_devices_of(node), node) for node in feasible})
    assert twin.scores is not None
    return twin.scores(snapshot.case, feasible)


# the profile


@cache
def _twins() -> dict[str, Twin]:
    found = (import_module(each.name) for each in pkgutil.iter_modules(twins.__path__, "naive."))
    return {module.TWIN.plugin.name: module.TWIN for module in found if hasattr(module, "TWIN")}


@cache
def naive_registry() -> Registry:
    """The default registry, with the naive twin in place of each plugin that has one."""
    return Registry({entry.name: _plain(entry) for entry in known_plugins()})


def _plain(entry: RegisteredPlugin) -> RegisteredPlugin:
    twin = _twins().get(entry.name)
    if twin is None:
        return entry
    forms = [*([NaiveFilter] if twin.filter else []), *([NaiveScore] if twin.scores else [])]
    plugin: type[Any] = type(f"NaivePlugin{entry.name}", tuple(forms), {"name": entry.name, "twin": twin})
    return RegisteredPlugin(entry.name, plugin, entry.args)


def naive_engine(cache: Cache, plugin: type[Any] | None = None) -> PodEngine:
    """An engine on a cluster with the twins as its only plugins, and with a plugin that is its own twin."""
    return engine_on(cache, share=False, plugin=plugin, registry=naive_registry())


# decisions


def decide_with_twins(measured: PodEngine, pods: Sequence[Pod], plugin: type[Any] | None = None) -> Latencies:
    """Decide pods by twins on the measured engine's cluster; the engine must decide equally then assumes them."""
    engine = naive_engine(measured.cache, plugin)
    took = []
    for pod in pods:
        start = perf_counter_ns()
        plain = engine.try_pod(pod)
        took.append((perf_counter_ns() - start) / 1e3)
        agree(plain, measured.try_pod(pod), pod)
        measured.place(pod)
    return Latencies(took)


def agree(plain: SchedulingDecision, quick: SchedulingDecision, pod: Pod) -> None:
    """Check that the same nodes are feasible, with the same totals."""
    if plain.nodes is None or quick.nodes is None:
        raise DecisionMismatch(
            f"pod {pod.key}: {plain.status.message or plain.node} or {quick.status.message or quick.node}"
        )
    if plain.nodes.names != quick.nodes.names:
        raise DecisionMismatch(
            f"pod {pod.key}: {len(plain.nodes)} or {len(quick.nodes)} nodes are feasible, not the same"
        )
    if plain.scores is None or quick.scores is None:
        if plain.scores is not quick.scores:
            raise DecisionMismatch(f"pod {pod.key}: only one of the two has scored")
        return
    if not np.array_equal(plain.scores.total, quick.scores.total):
        place = int(np.argmax(plain.scores.total != quick.scores.total))
        parts = {
            name: (int(vector[place]), int(quick.scores.by_plugin.get(name, vector * 0)[place]))
            for name, vector in plain.scores.by_plugin.items()
        }
        raise DecisionMismatch(f"pod {pod.key}: {plain.nodes.names[place]} is scored {parts}")


def preempt_with_twins(measured: PodEngine, pods: Sequence[Pod], now: datetime) -> Latencies:
    """Find victims by the twins: filter every node, then remove pods node by node until there are enough candidates."""
    engine = naive_engine(measured.cache)
    took = []
    for pod in pods:
        start = perf_counter_ns()
        found = _preempt(engine, pod, now)
        took.append((perf_counter_ns() - start) / 1e3)
        _same_victims(found, measured.try_pod(pod), pod)
    return Latencies(took)


def _preempt(engine: PodEngine, pod: Pod, now: datetime) -> dict[str, preemption.Outcome]:
    cycle = engine.begin(pod)
    filtering = engine.framework(pod.scheduler_name).filter_points
    diagnosis = filtering.run_filters(cycle, filtering.pre_filter(cycle))
    snapshot = cycle.snapshot
    wanted = max(len(snapshot) * _CANDIDATES_PERCENT // 100, _CANDIDATES_AT_LEAST)
    found: dict[str, preemption.Outcome] = {}
    for row, node in enumerate(snapshot.nodes.nodes[: len(snapshot)]):
        if len(found) >= wanted:
            break
        if diagnosis.status(row).code is not Code.UNSCHEDULABLE:
            continue
        there = [info.pod for info in snapshot.nodes.pods[row]]
        outcome = preemption.victims_on(pod, node, there, (), now)
        if outcome is not None:
            found[node.name] = outcome
    best = preemption.best_node(found, now)
    return {best: found[best]}


def _same_victims(plain: dict[str, preemption.Outcome], quick: SchedulingDecision, pod: Pod) -> None:
    """Check that both remove as many pods of the same priorities; the choice among equal nodes is random."""
    ((victims, _),) = plain.values()
    if not quick.nominated_node_name or len(quick.victims) != len(victims):
        raise DecisionMismatch(f"pod {pod.key}: {len(victims)} victims or {len(quick.victims)}")
