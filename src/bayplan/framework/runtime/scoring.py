"""Answers one question: which of the feasible nodes is best?

Asked once an attempt when at least two nodes fit. Every score plugin gives each node 0 to 100, after its own
normalising; the total is the weighted sum. Cost: one vector a plugin over the feasible rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import NORMALIZE, PRE_SCORE, SCORE
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import (
    SUCCESS,
    Code,
    Status,
    error,
)
from bayplan.framework.runtime.plugin_call import PluginCaller, status_text
from bayplan.snapshot import IntVector, NodeTable

_MAX_INT64 = 2**63 - 1
_MIN_INT64 = -(2**63)


@dataclass(slots=True)
class TotalScores:
    """Totals and their parts, one entry a row of the table that was scored."""

    total: IntVector
    by_plugin: dict[str, IntVector] = field(default_factory=dict)  # normalised and weighted
    status: Status = SUCCESS


class ScorePoints:
    """PreScore, Score and normalising of one profile."""

    def __init__(
        self, pre_scores: Sequence[Any], scores: Sequence[Any], weights: dict[str, int], boundary: PluginCaller
    ) -> None:
        self._pre_scores = tuple(pre_scores)
        self._scores = tuple(scores)
        self._weights = weights
        self._boundary = boundary

    @property
    def has_score_plugins(self) -> bool:
        return bool(self._scores)

    @property
    def per_node_plugins(self) -> tuple[str, ...]:
        """Plugins that have to be asked about each node on its own, which is not cheap."""
        return tuple(plugin.name for plugin in self._scores if not hasattr(plugin, "score_nodes"))

    def score(self, cycle: Cycle, nodes: NodeTable) -> TotalScores:
        """Totals for the table. Without any score plugin every node gets 1."""
        now_s, took = self._boundary.now_s, self._boundary.points.observe
        start_s = now_s()
        status = self.pre_score(cycle, nodes)
        scoring_s = now_s()
        took(PRE_SCORE.metric_label, scoring_s - start_s, status.code.label)
        if not status.ok:
            return TotalScores(np.zeros(len(nodes), dtype=np.int64), status=status)
        scores = self._sum(cycle, nodes) if self._scores else TotalScores(np.ones(len(nodes), dtype=np.int64))
        took(SCORE.metric_label, now_s() - scoring_s, scores.status.code.label)
        return scores

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status:
        for plugin in self._pre_scores:
            try:
                if cycle.plugin_error is not None:
                    cycle.plugin_error.raise_if_same_call(plugin, PRE_SCORE, nodes.rows)
                status = self._boundary.call_for_status(plugin, PRE_SCORE, plugin.pre_score, cycle, nodes)
            except PluginFault as fault:
                status = error(fault.text)
            if status.code is Code.SKIP:
                cycle.skip_score.add(plugin.name)
                continue
            self._boundary.points.count(plugin.name, PRE_SCORE.metric_label)
            if not status.ok:
                return error(f'running PreScore plugin "{plugin.name}": {status_text(status)}').by(plugin.name)
        return SUCCESS

    def _sum(self, cycle: Cycle, nodes: NodeTable) -> TotalScores:
        scores = TotalScores(np.zeros(len(nodes), dtype=np.int64))
        for plugin in self._scores:
            if plugin.name in cycle.skip_score:
                continue
            self._boundary.points.count(plugin.name, SCORE.metric_label, len(nodes))
            try:
                weighted = self._call(plugin, cycle, nodes) * self._weights[plugin.name]
            except PluginFault as fault:
                scores.status = error(fault.text).by(plugin.name)
                return scores
            scores.by_plugin[plugin.name] = weighted
            scores.total += weighted
        return scores

    def _call(self, plugin: Any, cycle: Cycle, nodes: NodeTable) -> IntVector:
        """The normalised score of one plugin, checked."""
        try:
            raw = self._raw(plugin, cycle, nodes)
        except PluginFault as fault:
            text = f'running Score plugins: plugin "{plugin.name}" failed with: {fault.text}'
            raise PluginFault(plugin.name, SCORE.key, text) from fault
        try:
            final = self._normalize(plugin, cycle, nodes, raw)
        except PluginFault as fault:
            text = f'running Normalize on Score plugins: plugin "{plugin.name}" failed with: {fault.text}'
            raise PluginFault(plugin.name, SCORE.key, text) from fault
        wrong = (final < 0) | (final > MAX_SCORE)
        if wrong.any():
            raise PluginFault(
                plugin.name,
                SCORE.key,
                f'applying score defaultWeights on Score plugins: plugin "{plugin.name}" returns an invalid score '
                f"{final[wrong.argmax()]}, it should in the range of [0, {MAX_SCORE}] after normalizing",
            )
        return final

    def _raw(self, plugin: Any, cycle: Cycle, nodes: NodeTable) -> IntVector:
        if cycle.plugin_error is not None:
            cycle.plugin_error.raise_if_same_call(plugin, SCORE, nodes.rows)
        if hasattr(plugin, "score_nodes"):
            return self._boundary.call(plugin, SCORE, _all_scores, plugin, cycle, nodes)
        return self._boundary.call(plugin, SCORE, _scores_one_by_one, plugin, cycle, nodes)

    def _normalize(self, plugin: Any, cycle: Cycle, nodes: NodeTable, raw: IntVector) -> IntVector:
        if not hasattr(plugin, "normalize"):
            return raw
        if cycle.plugin_error is not None:
            cycle.plugin_error.raise_if_same_call(plugin, NORMALIZE, nodes.rows)
        return self._boundary.call(plugin, NORMALIZE, _normalized_scores, plugin, cycle, nodes, raw)


def _all_scores(plugin: Any, cycle: Cycle, nodes: NodeTable) -> IntVector:
    return _checked(plugin.score_nodes(cycle, nodes), plugin.name, len(nodes))


def _normalized_scores(plugin: Any, cycle: Cycle, nodes: NodeTable, raw: IntVector) -> IntVector:
    return _checked(plugin.normalize(cycle, nodes, raw), plugin.name, len(nodes))


def _scores_one_by_one(plugin: Any, cycle: Cycle, nodes: NodeTable) -> IntVector:
    scores = []
    for node in nodes:
        score = plugin.score(cycle, node)
        if isinstance(score, Status):
            raise PluginFault(plugin.name, SCORE.key, status_text(score))
        if not isinstance(score, int | np.integer) or not -_MAX_INT64 <= score <= _MAX_INT64:
            raise PluginFault(plugin.name, SCORE.key, f"a score is a whole number of 64 bits; got {score!r}")
        scores.append(score)
    return np.array(scores, dtype=np.int64)


def _checked(vector: object, plugin: str, count: int) -> IntVector:
    if not isinstance(vector, np.ndarray) or not np.issubdtype(vector.dtype, np.integer) or vector.shape != (count,):
        raise invalid_scores_error(vector, plugin, count)
    return vector.astype(np.int64, copy=False)


def invalid_scores_error(answer: object, plugin: str, count: int) -> PluginFault:
    """The fault of a plugin that answered this where scores of so many nodes were needed."""
    if isinstance(answer, Status):
        return PluginFault(plugin, SCORE.key, status_text(answer))
    shape = getattr(answer, "shape", None)
    kind = getattr(answer, "dtype", type(answer).__name__)
    return PluginFault(plugin, SCORE.key, f"{count} whole numbers are needed, one a node; got shape {shape} of {kind}")


def default_normalize(scores: IntVector, *, reverse: bool = False) -> IntVector:
    """Stretch so that the largest becomes 100; reversed: the largest becomes 0. kube-scheduler's usual way."""
    largest = int(scores.max(initial=0))
    if largest == 0:
        return np.full(len(scores), MAX_SCORE, dtype=np.int64) if reverse else scores
    stretched: IntVector = np.sign(scores) * (MAX_SCORE * np.abs(scores) // largest)  # towards zero, as in Go
    return MAX_SCORE - stretched if reverse else stretched


def top_positions(total: IntVector, first: int, count: int) -> list[int]:
    """The positions of the highest totals, `first` at the head; of equal ones the earlier first."""
    found, held = [first], [total.item(first)]
    total[first] = _MIN_INT64
    for _ in range(min(count, len(total)) - 1):
        position = int(total.argmax())
        found.append(position)
        held.append(total.item(position))
        total[position] = _MIN_INT64
    for position, value in zip(found, held, strict=True):
        total[position] = value
    return found
