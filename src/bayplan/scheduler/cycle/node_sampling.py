"""Node sampling: how many nodes an attempt evaluates, and where its search starts.

The default is all nodes: evaluation by column is cheap, and the chosen node is the best of all. An explicit
`percentageOfNodesToScore` samples as kube-scheduler does. A profile with an extender, or with a plugin that evaluates
one node at a time, samples too unless the configuration sets a percentage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bayplan.config.model import Configuration
from bayplan.framework.api.diagnosis import NOT_EVALUATED, Diagnosis
from bayplan.framework.api.status import Code
from bayplan.framework.runtime.framework import Framework
from bayplan.snapshot import RowVector

MIN_FEASIBLE_NODES_TO_FIND = 100
_MIN_FEASIBLE_NODES_PERCENTAGE = 5


def num_feasible_nodes_to_find(count: int, percentage: int) -> int:
    """How many feasible nodes are enough among `count` candidates. Percentage 0 means adaptive."""
    if count < MIN_FEASIBLE_NODES_TO_FIND:
        return count
    if percentage == 0:
        percentage = max(_MIN_FEASIBLE_NODES_PERCENTAGE, 50 - count // 125)
    return min(count, max(MIN_FEASIBLE_NODES_TO_FIND, count * percentage // 100))


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How many nodes are evaluated (None: all; 0: an adaptive number), and the reason if not all."""

    percentage: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.percentage is None:
            return "all"
        return "adaptive sample" if self.percentage == 0 else f"{self.percentage}%"


SAMPLE_ALL_NODES = SampleSize()


def sample_size_for(configuration: Configuration, own: int | None, framework: Framework) -> SampleSize:
    """The sample size of a profile. `own`: the profile's own percentage."""
    if own:
        return SampleSize(own, "the profile sets percentageOfNodesToScore")
    if own is not None:
        return SampleSize(0, "the profile sets percentageOfNodesToScore to 0")
    if configuration.percentage_of_nodes_to_score:
        return SampleSize(configuration.percentage_of_nodes_to_score, "the configuration sets percentageOfNodesToScore")
    if configuration.extenders:
        urls = ", ".join(extender.url_prefix for extender in configuration.extenders)
        return SampleSize(0, f"the configuration has extenders: {urls}")
    slow = _per_node_plugins(framework)
    if slow:
        described = ", ".join(f"{name} ({' and '.join(points)})" for name, points in slow.items())
        return SampleSize(0, f"these plugins answer for one node at a time: {described}")
    return SAMPLE_ALL_NODES


def _per_node_plugins(framework: Framework) -> dict[str, list[str]]:
    """Plugins that are called once for each pod and node, with their extension points."""
    found: dict[str, list[str]] = {}
    for name in framework.filter_points.per_node_plugins:
        if not hasattr(framework.profile.instances[name], "signature"):  # with a signature, pods share its answers
            found.setdefault(name, []).append("filter")
    for name in framework.score_points.per_node_plugins:
        found.setdefault(name, []).append("score")
    return found


@dataclass(slots=True)
class NodeSampler:
    """Row at which the next search starts: kube-scheduler's nextStartNodeIndex, one for each scheduler."""

    start: int = 0

    def visit_order(self, candidates: RowVector) -> RowVector:
        turn = self.start % max(len(candidates), 1)
        return np.concatenate((candidates[turn:], candidates[:turn]))

    def take_sample(self, diagnosis: Diagnosis, visit_order: RowVector, wanted: int) -> RowVector:
        """The first `wanted` feasible rows in visit order. Rows from the next feasible one on become not evaluated."""
        feasible = diagnosis.rows_with(Code.SUCCESS)[visit_order]
        hits = np.flatnonzero(feasible)
        seen = len(visit_order) if len(hits) <= wanted else int(hits[wanted])
        self.advance(seen, diagnosis.eligible_count)
        self._discard(diagnosis, visit_order[seen:])
        chosen: RowVector = visit_order[:seen][feasible[:seen]]
        return chosen

    def advance(self, looked_at: int, nodes: int) -> None:
        self.start = (self.start + looked_at) % max(nodes, 1)

    @staticmethod
    def _discard(diagnosis: Diagnosis, rows: RowVector) -> None:
        diagnosis.verdicts.codes[rows] = NOT_EVALUATED
        for reason in diagnosis.verdicts.reasons:
            reason.mask[rows] = False
        for mask in diagnosis.verdicts.plugins.values():
            mask[rows] = False
        for row in rows.tolist():
            diagnosis.overrides.pop(row, None)
        remaining = {plugin for plugin, mask in diagnosis.verdicts.plugins.items() if mask.any()}
        remaining |= {status.plugin for status in diagnosis.overrides.values()}
        removed = diagnosis.verdicts.plugins.keys() - remaining
        diagnosis.unschedulable_plugins -= removed
        diagnosis.pending_plugins -= removed
