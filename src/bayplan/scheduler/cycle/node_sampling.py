"""How many nodes to look at, and from where.

By default all of them: whole columns make that cheap, and the best node is then really the best. An explicit
`percentageOfNodesToScore` samples as kube-scheduler does, and so does a profile where looking is not cheap (an
extender, a plugin that only knows one node at a time) unless the configuration says otherwise.
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
    """How many feasible nodes are enough among `count` candidates; percentage 0 means adaptive."""
    if count < MIN_FEASIBLE_NODES_TO_FIND:
        return count
    if percentage == 0:
        percentage = max(_MIN_FEASIBLE_NODES_PERCENTAGE, 50 - count // 125)
    return min(count, max(MIN_FEASIBLE_NODES_TO_FIND, count * percentage // 100))


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How many nodes are looked at (None: all of them; 0: an adaptive number), and why not all."""

    percentage: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.percentage is None:
            return "all"
        return "adaptive sample" if self.percentage == 0 else f"{self.percentage}%"


SAMPLE_ALL_NODES = SampleSize()


def sample_size_for(configuration: Configuration, own: int | None, framework: Framework) -> SampleSize:
    """The share that a profile looks at; `own` is the percentage that it states itself."""
    if own:
        return SampleSize(own, "the profile says so")
    if own is not None:
        return SampleSize(0, "the profile sets percentageOfNodesToScore to 0")
    if configuration.percentage_of_nodes_to_score:
        return SampleSize(configuration.percentage_of_nodes_to_score, "the configuration says so")
    if configuration.extenders:
        urls = ", ".join(extender.url_prefix for extender in configuration.extenders)
        return SampleSize(0, f"extenders have to be asked: {urls}")
    slow = _per_node_plugins(framework)
    if slow:
        named = ", ".join(f"{name} ({' and '.join(points)})" for name, points in slow.items())
        return SampleSize(0, f"these plugins answer for one node at a time: {named}")
    return SAMPLE_ALL_NODES


def _per_node_plugins(framework: Framework) -> dict[str, list[str]]:
    """Plugins that are asked about each node for every pod, with the points where they are."""
    found: dict[str, list[str]] = {}
    for name in framework.filter_points.per_node_plugins:
        if not hasattr(framework.profile.instances[name], "signature"):  # else pods share what it said
            found.setdefault(name, []).append("filter")
    for name in framework.score_points.per_node_plugins:
        found.setdefault(name, []).append("score")
    return found


@dataclass(slots=True)
class NodeSampler:
    """Where the next search starts. kube-scheduler's rotating index, one a scheduler."""

    start: int = 0

    def visit_order(self, candidates: RowVector) -> RowVector:
        """The candidates in the order of this search."""
        turn = self.start % max(len(candidates), 1)
        return np.concatenate((candidates[turn:], candidates[:turn]))

    def take_sample(self, diagnosis: Diagnosis, way: RowVector, wanted: int) -> RowVector:
        """The first `wanted` feasible rows of the way; rows from the next feasible one on were not looked at."""
        feasible = diagnosis.rows_with(Code.SUCCESS)[way]
        hits = np.flatnonzero(feasible)
        seen = len(way) if len(hits) <= wanted else int(hits[wanted])
        self.advance(seen, diagnosis.eligible_count)
        self._forget(diagnosis, way[seen:])
        chosen: RowVector = way[:seen][feasible[:seen]]
        return chosen

    def advance(self, looked_at: int, nodes: int) -> None:
        self.start = (self.start + looked_at) % max(nodes, 1)

    @staticmethod
    def _forget(diagnosis: Diagnosis, rows: RowVector) -> None:
        diagnosis.verdicts.codes[rows] = NOT_EVALUATED
        for reason in diagnosis.verdicts.reasons:
            reason.mask[rows] = False
        for mask in diagnosis.verdicts.plugins.values():
            mask[rows] = False
        for row in rows.tolist():
            diagnosis.overrides.pop(row, None)
        kept = {plugin for plugin, mask in diagnosis.verdicts.plugins.items() if mask.any()}
        kept |= {status.plugin for status in diagnosis.overrides.values()}
        gone = diagnosis.verdicts.plugins.keys() - kept
        diagnosis.unschedulable_plugins -= gone
        diagnosis.pending_plugins -= gone
