"""Score step of the scheduling cycle: computes the totals of the feasible nodes.

Called once for each attempt if at least two nodes fit. Every score plugin gives each node 0 to 100, after its own
normalization. The total is the weighted sum. Cost: one vector for each plugin over the feasible rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import NORMALIZE, PRE_SCORE, SCORE
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import SUCCESS, Code, Status, error
from bayplan.framework.runtime.plugin_call import PluginCaller, status_text
from bayplan.snapshot import IntVector, NodeTable

_MAX_INT64 = 2**63 - 1
_MIN_INT64 = -(2**63)


@dataclass(slots=True)
class TotalScores:
    """Totals and the scores of each plugin, one entry for each row of the table."""

    total: IntVector
    by_plugin: dict[str, IntVector] = field(default_factory=dict)  # normalized and weighted
    status: Status = SUCCESS


class ScorePoints:
    """PreScore, Score and NormalizeScore of one profile."""

    def __init__(
        self, pre_scores: Sequence[Any], scores: Sequence[Any], weights: dict[str, int], caller: PluginCaller
    ) -> None:
        self._pre_scores = tuple(pre_scores)
        self._scores = tuple(scores)
        self._weights = weights
        self._caller = caller

    @property
    def has_score_plugins(self) -> bool:
        return bool(self._scores)

    @property
    def per_node_plugins(self) -> tuple[str, ...]:
        """Names of the plugins that are called for each node separately, which is expensive."""
        return tuple(plugin.name for plugin in self._scores if not hasattr(plugin, "score_nodes"))

    def score(self, cycle: Cycle, nodes: NodeTable) -> TotalScores:
        """Return totals for the table. Without score plugins every node gets 1."""
        now_s, observe = self._caller.now_s, self._caller.points.observe
        start_s = now_s()
        status = self.pre_score(cycle, nodes)
        scoring_s = now_s()
        observe(PRE_SCORE.metric_label, scoring_s - start_s, status.code.label)
        if not status.ok:
            return TotalScores(np.zeros(len(nodes), dtype=np.int64), status=status)
        scores = self._sum(cycle, nodes) if self._scores else TotalScores(np.ones(len(nodes), dtype=np.int64))
        observe(SCORE.metric_label, now_s() - scoring_s, scores.status.code.label)
        return scores

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status:
        for plugin in self._pre_scores:
            try:
                if cycle.plugin_error is not None:
                    cycle.plugin_error.raise_if_same_call(plugin, PRE_SCORE, nodes.rows)
                status = self._caller.call_for_status(plugin, PRE_SCORE, plugin.pre_score, cycle, nodes)
            except PluginFault as fault:
                status = error(fault.text)
            if status.code is Code.SKIP:
                cycle.skip_score.add(plugin.name)
                continue
            self._caller.points.count(plugin.name, PRE_SCORE.metric_label)
            if not status.ok:
                return error(f'running PreScore plugin "{plugin.name}": {status_text(status)}').by(plugin.name)
        return SUCCESS

    def _sum(self, cycle: Cycle, nodes: NodeTable) -> TotalScores:
        scores = TotalScores(np.zeros(len(nodes), dtype=np.int64))
        for plugin in self._scores:
            if plugin.name in cycle.skip_score:
                continue
            self._caller.points.count(plugin.name, SCORE.metric_label, len(nodes))
            try:
                weighted = self._call(plugin, cycle, nodes) * self._weights[plugin.name]
            except PluginFault as fault:
                scores.status = error(fault.text).by(plugin.name)
                return scores
            scores.by_plugin[plugin.name] = weighted
            scores.total += weighted
        return scores

    def _call(self, plugin: Any, cycle: Cycle, nodes: NodeTable) -> IntVector:
        """Return the checked and normalized scores of one plugin."""
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
        invalid = (final < 0) | (final > MAX_SCORE)
        if invalid.any():
            raise PluginFault(
                plugin.name,
                SCORE.key,
                f'applying score defaultWeights on Score plugins: plugin "{plugin.name}" returns an invalid score '
                f"{final[invalid.argmax()]}, it should in the range of [0, {MAX_SCORE}] after normalizing",
            )
        return final

    def _raw(self, plugin: Any, cycle: Cycle, nodes: NodeTable) -> IntVector:
        if cycle.plugin_error is not None:
            cycle.plugin_error.raise_if_same_call(plugin, SCORE, nodes.rows)
        if hasattr(plugin, "score_nodes"):
            return self._caller.call(plugin, SCORE, _all_scores, plugin, cycle, nodes)
        return self._caller.call(plugin, SCORE, _scores_one_by_one, plugin, cycle, nodes)

    def _normalize(self, plugin: Any, cycle: Cycle, nodes: NodeTable, raw: IntVector) -> IntVector:
        if not hasattr(plugin, "normalize"):
            return raw
        if cycle.plugin_error is not None:
            cycle.plugin_error.raise_if_same_call(plugin, NORMALIZE, nodes.rows)
        return self._caller.call(plugin, NORMALIZE, _normalized_scores, plugin, cycle, nodes, raw)


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
            raise PluginFault(plugin.name, SCORE.key, f"a score must be a 64-bit integer; got {score!r}")
        scores.append(score)
    return np.array(scores, dtype=np.int64)


def _checked(vector: object, plugin: str, count: int) -> IntVector:
    if not isinstance(vector, np.ndarray) or not np.issubdtype(vector.dtype, np.integer) or vector.shape != (count,):
        raise invalid_scores_error(vector, plugin, count)
    return vector.astype(np.int64, copy=False)


def invalid_scores_error(result: object, plugin: str, count: int) -> PluginFault:
    if isinstance(result, Status):
        return PluginFault(plugin, SCORE.key, status_text(result))
    shape = getattr(result, "shape", None)
    kind = getattr(result, "dtype", type(result).__name__)
    return PluginFault(
        plugin, SCORE.key, f"{count} integers are needed, one for each node; got shape {shape} of {kind}"
    )


def default_normalize(scores: IntVector, *, reverse: bool = False) -> IntVector:
    """Scale so that the largest score becomes 100, or 0 if reversed: kube-scheduler's DefaultNormalizeScore."""
    largest = int(scores.max(initial=0))
    if largest == 0:
        return np.full(len(scores), MAX_SCORE, dtype=np.int64) if reverse else scores
    stretched: IntVector = np.sign(scores) * (MAX_SCORE * np.abs(scores) // largest)  # rounds towards zero, as in Go
    return MAX_SCORE - stretched if reverse else stretched


def top_positions(total: npt.NDArray[np.int64 | np.float64], first: int, count: int) -> list[int]:
    """Return the positions of the highest totals, `first` at the head.

    Of equal totals the earlier position comes first. Positions with minus infinity are left out.
    """
    lowest = _MIN_INT64 if total.dtype.kind == "i" else -np.inf
    found, totals = [first], [total.item(first)]
    total[first] = lowest
    for _ in range(min(count, len(total)) - 1):
        position = int(total.argmax())
        value = total.item(position)
        if value == lowest:
            break
        found.append(position)
        totals.append(value)
        total[position] = lowest
    for position, value in zip(found, totals, strict=True):
        total[position] = value
    return found
