"""Answers a series of placements: each pod is assumed before the next, with cluster changes in between."""

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
from bayplan.scheduler.cycle.schedule_result import SchedulingDecision
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import IntVector, NodeTable, Snapshot
from bayplan.testing.conformance.scenario_cluster import build_scenario_engine

MAX_NODES_WITH_TOTALS = 16
"""Answers of clusters up to this size have the totals of all nodes."""


def answer_series(scenario: dict[str, Any], registry: Registry, *, share: bool = True) -> dict[str, Any]:
    """The node of each scheduled pod. `share`: equal pods share their evaluation, as in production."""
    series = _PlacementSeries(build_scenario_engine(scenario, registry, share=share))
    for step in scenario["steps"]:
        series.run_step(step)
    return {"name": scenario.get("name", ""), "placed": series.placed}


class _PlacementSeries:
    def __init__(self, engine: PodEngine) -> None:
        self.placed: list[dict[str, Any]] = []
        self._engine = engine
        self._pods = {pod.key: pod for pod in engine.cache.pods()}

    def run_step(self, step: dict[str, Any]) -> None:
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
        evaluation = self._engine.class_evaluation(cycle)
        if evaluation is not None:
            return self._schedule_shared(framework, cycle, evaluation)
        outcome = framework.filter_points.pre_filter(cycle)
        if outcome.status.code is Code.ERROR:
            return {"pod": pod.key, "message": outcome.status.message}
        diagnosis = framework.filter_points.run_filters(cycle, outcome)
        rows = np.flatnonzero(diagnosis.rows_with(Code.SUCCESS))
        if not len(rows):
            return {"pod": pod.key, "message": diagnosis.sentence()}
        nodes = NodeTable(cycle.snapshot.nodes, rows)
        return self._place(framework, cycle, nodes, framework.score_points.score(cycle, nodes).total)

    def _schedule_shared(self, framework: Framework, cycle: Cycle, evaluation: ClassEvaluation) -> dict[str, Any]:
        if not evaluation.feasible.any():
            return {"pod": cycle.pod.key, "message": evaluation.diagnosis().sentence()}
        evaluation.lend_state(cycle)
        nodes = cycle.snapshot.table.restricted_to(evaluation.feasible)
        return self._place(framework, cycle, nodes, evaluation.scores().total)

    def _place(self, framework: Framework, cycle: Cycle, nodes: NodeTable, total: IntVector) -> dict[str, Any]:
        names = nodes.names
        best = int(total.max())
        tied = sorted(name for position, name in enumerate(names) if total[position] == best)
        answer: dict[str, Any] = {"pod": cycle.pod.key, "node": tied[0], "score": best}
        if len(tied) > 1:
            answer["tie"] = True
        if len(cycle.snapshot) <= MAX_NODES_WITH_TOTALS:
            answer["total"] = {name: int(total[position]) for position, name in enumerate(names)}
        if self._depends_on_history(framework, cycle, dict(zip(names, total.tolist(), strict=True))):
            answer["history"] = True
        placed = self._engine.commit(cycle, SchedulingDecision(tied[0], nodes=nodes))
        if placed.node is not None:
            self._pods[cycle.pod.key] = cycle.pod.bound_to(tied[0])
        return answer

    def _depends_on_history(self, framework: Framework, cycle: Cycle, totals: dict[str, int]) -> bool:
        """Whether scores from a new snapshot differ.

        Image counts are as old as their row, and the size of an image is that of the node that reported it first.
        """
        new_cycle = Cycle(cycle.info, self._fresh_snapshot())
        outcome = framework.filter_points.pre_filter(new_cycle)
        diagnosis = framework.filter_points.run_filters(new_cycle, outcome)
        nodes = NodeTable(new_cycle.snapshot.nodes, np.flatnonzero(diagnosis.rows_with(Code.SUCCESS)))
        return totals != dict(
            zip(nodes.names, framework.score_points.score(new_cycle, nodes).total.tolist(), strict=True)
        )

    def _fresh_snapshot(self) -> Snapshot:
        """A snapshot whose images are those of a cache that got all nodes just now, in order of name."""
        snapshot = self._engine.cache.snapshot()
        new_cache = Cache()
        for node in sorted(snapshot.nodes.nodes, key=lambda node: node.name):
            new_cache.add_node(node)
        new_nodes = new_cache.snapshot().nodes
        for row, name in enumerate(snapshot.nodes.names):
            snapshot.nodes.set_images(row, new_nodes.images[new_nodes.index[name]])
        return snapshot

    def _drop(self, key: str) -> None:
        pod = self._pods.pop(key, None)
        if pod is not None:
            self._engine.cache.remove_pod(pod)

    def _relabel(self, key: str, labels: dict[str, str]) -> None:
        """Update the labels of a bound pod, as an event of the API server would."""
        pod = self._pods.get(key)
        if pod is None:
            return
        changed = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))
        if self._engine.cache.is_assumed(pod.uid):
            self._engine.cache.add_pod(changed)
        else:
            self._engine.cache.update_pod(changed)
        self._pods[key] = changed
