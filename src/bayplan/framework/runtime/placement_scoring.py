"""Answers two questions about a pod group as a whole: on which sets of nodes may it be tried, and which is best?

Asked once a group each, the second only where several sets can take it. Every plugin gives each placement 0 to 100,
after its own normalising; the total is the weighted sum. The words are kube-scheduler's.
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
    """A pod group as plugins are told of it: it need not exist."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A placement that can take the group. `assigned`: nodes by the keys of the pods that would go there."""

    placement: Placement
    assigned: Mapping[str, str]


class PlacementPoints:
    """PlacementGenerate, PlacementScore and normalising of one profile."""

    def __init__(
        self, generators: Sequence[Any], scorers: Sequence[Any], weights: Mapping[str, int], boundary: PluginCaller
    ) -> None:
        self._generators = tuple(generators)
        self._scorers = tuple(scorers)
        self._weights = weights
        self._boundary = boundary

    def placements(self, cycle: Cycle, group: PodGroupRef) -> Sequence[Placement] | Status:
        """Where the group may be tried: anywhere, unless a plugin has something to say. A profile has one at most."""
        start_s = self._boundary.now_s()
        found = self._run_generate(cycle, group)
        self._observe(PLACEMENT_GENERATE, start_s, found)
        return found

    def _run_generate(self, cycle: Cycle, group: PodGroupRef) -> Sequence[Placement] | Status:
        if not self._generators:
            return (Placement(_ALL_NODES, frozenset(cycle.snapshot.nodes.names)),)
        plugin = self._generators[0]
        try:
            found = self._boundary.call(plugin, PLACEMENT_GENERATE, _placements_of, plugin, cycle, group)
        except PluginFault as fault:
            return error(fault.text).by(plugin.name)
        if isinstance(found, Status):
            return found if found.rejected else error(status_text(found)).by(plugin.name)
        return found or Status(Code.UNSCHEDULABLE, (NO_PLACEMENTS,), plugin=plugin.name)

    def totals(self, cycle: Cycle, group: PodGroupRef, candidates: Sequence[PlacementCandidate]) -> list[int] | Status:
        """One number a candidate: the higher the better. Without any plugin all are alike."""
        start_s = self._boundary.now_s()
        found = self._run_score(cycle, group, candidates)
        self._observe(PLACEMENT_SCORE, start_s, found)
        return found

    def _run_score(
        self, cycle: Cycle, group: PodGroupRef, candidates: Sequence[PlacementCandidate]
    ) -> list[int] | Status:
        totals = [0] * len(candidates)
        for plugin in self._scorers:
            try:
                stage = "running PlacementScore plugins"
                scores = self._boundary.call(plugin, PLACEMENT_SCORE, _scores_of, plugin, cycle, group, candidates)
                stage = "running NormalizePlacementScore on PlacementScore plugins"
                if hasattr(plugin, "normalize_placements"):
                    ask = self._boundary.call
                    scores = ask(plugin, NORMALIZE_PLACEMENTS, _normalized_by, plugin, cycle, group, scores)
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

    def _observe(self, point: ExtensionPoint, start_s: float, found: object) -> None:
        code = found.code if isinstance(found, Status) else Code.SUCCESS
        self._boundary.points.observe(point.metric_label, self._boundary.now_s() - start_s, code.label)


def _placements_of(plugin: Any, cycle: Cycle, group: PodGroupRef) -> tuple[Placement, ...] | Status:
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


def _scores_of(plugin: Any, cycle: Cycle, group: PodGroupRef, candidates: Sequence[PlacementCandidate]) -> list[int]:
    ask = plugin.score_placement
    return _checked_scores(
        plugin, [ask(cycle, group, each.placement, each.assigned) for each in candidates], len(candidates)
    )


def _normalized_by(plugin: Any, cycle: Cycle, group: PodGroupRef, scores: list[int]) -> list[int]:
    return _checked_scores(plugin, plugin.normalize_placements(cycle, group, scores), len(scores))


def _checked_scores(plugin: Any, answer: Any, count: int) -> list[int]:
    """Scores, checked: one for each placement, and nothing else."""
    if isinstance(answer, Status):
        raise PluginFault(plugin.name, PLACEMENT_SCORE.key, status_text(answer))
    if not isinstance(answer, Sequence | np.ndarray) or len(answer) != count:
        raise PluginFault(
            plugin.name, PLACEMENT_SCORE.key, f"{count} scores are needed, one a placement; got {answer!r}"
        )
    for score in answer:
        if isinstance(score, Status):
            raise PluginFault(plugin.name, PLACEMENT_SCORE.key, status_text(score))
        if not isinstance(score, int | np.integer):
            raise PluginFault(plugin.name, PLACEMENT_SCORE.key, f"a score is a whole number; got {score!r}")
    return [int(score) for score in answer]
