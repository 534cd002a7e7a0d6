"""Pods placed one after another, each assumed before the next, with changes to the cluster in between."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from bayplan.cache import Cache
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.status import Code
from bayplan.framework.equivalence.class_evaluation import ClassEvaluation
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import convert
from bayplan.scheduler.cycle.scheduling_cycle import SchedulingDecision
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import IntVector, NodeTable, Snapshot
from bayplan.testing.conformance.scenario_cluster import build_scenario_engine

MAX_NODES_WITH_TOTALS = 16
"""Clusters up to this size tell every total."""


def answer_series(scenario: dict[str, Any], registry: Registry, *, share: bool = True) -> dict[str, Any]:
    """Where each scheduled pod goes. `share`: pods that are alike share their evaluation, as they do in earnest."""
    series = _PlacementSeries(build_scenario_engine(scenario, registry, share=share))
    for step in scenario["steps"]:
        series.take(step)
    return {"name": scenario.get("name", ""), "placed": series.placed}


class _PlacementSeries:
    def __init__(self, one: PodEngine) -> None:
        self.placed: list[dict[str, Any]] = []
        self._engine = one
        self._pods = {pod.key: pod for pod in one.cache.pods()}

    def take(self, step: dict[str, Any]) -> None:
        cache = self._engine.cache
        if "schedule" in step:
            self.placed.append(self._schedule(convert(step["schedule"], Pod)))
        elif "addNode" in step:
            cache.add_node(convert(step["addNode"], Node))
        elif "setNode" in step:
            cache.update_node(convert(step["setNode"], Node))
        elif "dropNode" in step:
            cache.remove_node(step["dropNode"])
        elif "dropPod" in step:
            self._drop(step["dropPod"])
        elif "relabel" in step:
            self._relabel(step["relabel"], step["labels"])

    def _schedule(self, pod: Pod) -> dict[str, Any]:
        framework = self._engine.framework(pod.scheduler_name)
        cycle = self._engine.begin(pod)
        standing = self._engine.class_evaluation(cycle)
        if standing is not None:
            return self._schedule_shared(framework, cycle, standing)
        outcome = framework.filter_points.pre_filter(cycle)
        if outcome.status.code is Code.ERROR:
            return {"pod": pod.key, "message": outcome.status.message}
        diagnosis = framework.filter_points.run_filters(cycle, outcome)
        rows = np.flatnonzero(diagnosis.rows_with(Code.SUCCESS))
        if not len(rows):
            return {"pod": pod.key, "message": diagnosis.sentence()}
        nodes = NodeTable(cycle.snapshot.nodes, rows)
        return self._place(framework, cycle, nodes, framework.score_points.score(cycle, nodes).total)

    def _schedule_shared(self, framework: Framework, cycle: Cycle, standing: ClassEvaluation) -> dict[str, Any]:
        """The same from what pods like this one know already."""
        if not standing.feasible.any():
            return {"pod": cycle.pod.key, "message": standing.diagnosis().sentence()}
        standing.lend_state(cycle)
        nodes = cycle.snapshot.table.restricted_to(standing.feasible)
        return self._place(framework, cycle, nodes, standing.scores().total)

    def _place(self, framework: Framework, cycle: Cycle, nodes: NodeTable, total: IntVector) -> dict[str, Any]:
        names = nodes.names
        best = int(total.max())
        tied = sorted(name for position, name in enumerate(names) if total[position] == best)
        told: dict[str, Any] = {"pod": cycle.pod.key, "node": tied[0], "score": best}
        if len(tied) > 1:
            told["tie"] = True
        if len(cycle.snapshot) <= MAX_NODES_WITH_TOTALS:
            told["total"] = {name: int(total[position]) for position, name in enumerate(names)}
        if self._depends_on_history(framework, cycle, dict(zip(names, total.tolist(), strict=True))):
            told["history"] = True
        placed = self._engine.commit(framework, cycle, SchedulingDecision(tied[0], nodes=nodes))
        if placed.node is not None:
            self._pods[cycle.pod.key] = cycle.pod.bound_to(tied[0])
        return told

    def _depends_on_history(self, framework: Framework, cycle: Cycle, totals: dict[str, int]) -> bool:
        """Whether a snapshot made anew would have scored otherwise: image counts are as old as their row, and the
        size of an image is what the first node said that ever reported it."""
        anew = Cycle(cycle.info, self._snapshot_anew())
        outcome = framework.filter_points.pre_filter(anew)
        diagnosis = framework.filter_points.run_filters(anew, outcome)
        nodes = NodeTable(anew.snapshot.nodes, np.flatnonzero(diagnosis.rows_with(Code.SUCCESS)))
        return totals != dict(zip(nodes.names, framework.score_points.score(anew, nodes).total.tolist(), strict=True))

    def _snapshot_anew(self) -> Snapshot:
        """The cluster with images as a cache would see them that met all nodes just now, by name."""
        snapshot = self._engine.cache.snapshot()
        fresh = Cache()
        for node in sorted(snapshot.nodes.nodes, key=lambda node: node.name):
            fresh.add_node(node)
        newcomer = fresh.snapshot().nodes
        for row, name in enumerate(snapshot.nodes.names):
            snapshot.nodes.set_images(row, newcomer.images[newcomer.index[name]])
        return snapshot

    def _drop(self, key: str) -> None:
        pod = self._pods.pop(key, None)
        if pod is not None:
            self._engine.cache.remove_pod(pod)

    def _relabel(self, key: str, labels: dict[str, str]) -> None:
        """The API server shows the pod, bound and with other labels."""
        pod = self._pods.get(key)
        if pod is None:
            return
        changed = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))
        if self._engine.cache.is_assumed(pod.uid):
            self._engine.cache.add_pod(changed)
        else:
            self._engine.cache.update_pod(changed)
        self._pods[key] = changed
