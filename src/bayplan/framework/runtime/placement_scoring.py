"""Extension points for a pod group as a whole: candidate placements (sets of nodes), and their scores.

Each point runs once for each group; scores are computed only if several placements fit. Every plugin scores each
placement from 0 to 100, after its own normalization. The total is the weighted sum. Messages are kube-scheduler's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import (
    NORMALIZE_PLACEMENTS,
    PLACEMENT_GENERATE,
    PLACEMENT_SCORE,
    ExtensionPoint,
)
from bayplan.framework.api.plugin import MAX_SCORE, Placement
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import Code, Status, error
from bayplan.framework.runtime.plugin_call import PluginCaller, status_text

NO_PLACEMENTS = "no feasible placements found"
_ALL_NODES = ""


@dataclass(frozen=True, slots=True)
class PodGroupRef:
    """Reference to a pod group for plugins. The object need not exist."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A placement on which the group fits. `assigned`: nodes by the keys of the pods."""

    placement: Placement
    assigned: Mapping[str, str]


class PlacementPoints:
    """PlacementGenerate, PlacementScore and normalization of one profile."""

    def __init__(
        self, generators: Sequence[Any], scorers: Sequence[Any], weights: Mapping[str, int], caller: PluginCaller
    ) -> None:
        self._generators = tuple(generators)
        self._scorers = tuple(scorers)
        self._weights = weights
        self._caller = caller

    def placements(self, cycle: Cycle, group: PodGroupRef) -> Sequence[Placement] | Status:
        """Return the placements for the group: all nodes, unless the profile has a plugin. It has at most one."""
        start_s = self._caller.now_s()
        placements = self._run_generate(cycle, group)
        self._observe(PLACEMENT_GENERATE, start_s, placements)
        return placements

    def _run_generate(self, cycle: Cycle, group: PodGroupRef) -> Sequence[Placement] | Status:
        if not self._generators:
            return (Placement(_ALL_NODES, frozenset(cycle.snapshot.nodes.names)),)
        plugin = self._generators[0]
        try:
            placements = self._caller.call(plugin, PLACEMENT_GENERATE, _generate, plugin, cycle, group)
        except PluginFault as fault:
            return error(fault.text).by(plugin.name)
        if isinstance(placements, Status):
            return placements if placements.rejected else error(status_text(placements)).by(plugin.name)
        return placements or Status(Code.UNSCHEDULABLE, (NO_PLACEMENTS,), plugin=plugin.name)

    def totals(self, cycle: Cycle, group: PodGroupRef, candidates: Sequence[PlacementCandidate]) -> list[int] | Status:
        """Return one total for each candidate; higher is better. Without plugins all totals are equal."""
        start_s = self._caller.now_s()
        result = self._run_score(cycle, group, candidates)
        self._observe(PLACEMENT_SCORE, start_s, result)
        return result

    def _run_score(
        self, cycle: Cycle, group: PodGroupRef, candidates: Sequence[PlacementCandidate]
    ) -> list[int] | Status:
        totals = [0] * len(candidates)
        for plugin in self._scorers:
            try:
                stage = "running PlacementScore plugins"
                scores = self._caller.call(plugin, PLACEMENT_SCORE, _score_all, plugin, cycle, group, candidates)
                stage = "running NormalizePlacementScore on PlacementScore plugins"
                if hasattr(plugin, "normalize_placements"):
                    call = self._caller.call
                    scores = call(plugin, NORMALIZE_PLACEMENTS, _normalize, plugin, cycle, group, scores)
            except PluginFault as fault:
                return error(f'{stage}: plugin "{plugin.name}" failed with: {fault.text}').by(plugin.name)
            wrong = next((score for score in scores if not 0 <= score <= MAX_SCORE), None)
            if wrong is not None:
                text = f'applying score defaultWeights on PlacementScore plugins: plugin "{plugin.name}" returns an'
                allowed = f"it should in the range of [0, {MAX_SCORE}] after normalizing"
                return error(f"{text} invalid score {wrong}, {allowed}").by(plugin.name)
            weight = self._weights[plugin.name]
            totals = [total + score * weight for total, score in zip(totals, scores, strict=True)]
        return totals

    def _observe(self, point: ExtensionPoint, start_s: float, result: object) -> None:
        code = result.code if isinstance(result, Status) else Code.SUCCESS
        self._caller.points.observe(point.metric_label, self._caller.now_s() - start_s, code.label)


def _generate(plugin: Any, cycle: Cycle, group: PodGroupRef) -> tuple[Placement, ...] | Status:
    found = plugin.generate_placements(cycle, group)
    if isinstance(found, Status):
        return found.by(plugin.name)
    if not isinstance(found, Iterable):
        raise PluginFault(plugin.name, PLACEMENT_GENERATE.key, f"Placements are needed; got {found!r}")
    placements = tuple(found)
    for each in placements:
        if not isinstance(each, Placement):
            raise PluginFault(plugin.name, PLACEMENT_GENERATE.key, f"Placements are needed; got {each!r}")
    return placements


def _score_all(plugin: Any, cycle: Cycle, group: PodGroupRef, candidates: Sequence[PlacementCandidate]) -> list[int]:
    call = plugin.score_placement
    return _checked_scores(
        plugin, [call(cycle, group, each.placement, each.assigned) for each in candidates], len(candidates)
    )


def _normalize(plugin: Any, cycle: Cycle, group: PodGroupRef, scores: list[int]) -> list[int]:
    return _checked_scores(plugin, plugin.normalize_placements(cycle, group, scores), len(scores))


def _checked_scores(plugin: Any, result: Any, count: int) -> list[int]:
    if isinstance(result, Status):
        raise PluginFault(plugin.name, PLACEMENT_SCORE.key, status_text(result))
    if not isinstance(result, Sequence | np.ndarray) or len(result) != count:
        raise PluginFault(
            plugin.name, PLACEMENT_SCORE.key, f"{count} scores are needed, one for each placement; got {result!r}"
        )
    for score in result:
        if isinstance(score, Status):
            raise PluginFault(plugin.name, PLACEMENT_SCORE.key, status_text(score))
        if not isinstance(score, int | np.integer):
            raise PluginFault(plugin.name, PLACEMENT_SCORE.key, f"a score must be an integer; got {score!r}")
    return [int(score) for score in result]
