"""Role of a plugin in one profile: its points, its weight and its traits.

Built once for each profile, when its equivalence classes are set up. Scheduling attempts then look up no methods.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import FILTER, PRE_FILTER, PRE_SCORE, SCORE
from bayplan.framework.api.plugin_traits import ScoreGroups, amounts_local, traits_of
from bayplan.snapshot import NodeTable

_SHIPPED_PACKAGE = "bayplan.plugins."


class PluginRole:
    """Points, weight and traits of a plugin in one profile."""

    def __init__(self, plugin: Any, points: frozenset[str], weight: int) -> None:
        self.plugin = plugin
        self.name: str = plugin.name
        self.weight = weight
        self.pre_filters, self.filters = PRE_FILTER.key in points, FILTER.key in points
        self.pre_scores, self.scores = PRE_SCORE.key in points, SCORE.key in points
        self.has_signature = hasattr(plugin, "signature")
        traits = traits_of(plugin)
        self.signature_may_change = self.has_signature and traits.signature_may_change
        # the calls of an external plugin are timed
        self.is_external = not type(plugin).__module__.startswith(_SHIPPED_PACKAGE)
        self.looks_at_pods = traits.looks_at_pods
        self.filters_tables = hasattr(plugin, "filter_nodes")
        self.filters_one = hasattr(plugin, "filter")
        self.scores_tables = hasattr(plugin, "score_nodes")
        self.scores_one = hasattr(plugin, "score")
        self.needs_remaining_rows = traits.loops_over_rows or not self.filters_tables
        self.normalizes = hasattr(plugin, "normalize")
        self.compares_candidates = traits.compares_candidates
        self.checks_dependencies = not traits.is_row_local
        self.reads_amounts_only = traits.depends_on is amounts_local
        self.depends_on: Callable[[Cycle], Hashable] = MethodType(traits.depends_on or _always_changed, plugin)
        self.scores_depend_on: Callable[[Cycle], Hashable] | None = _method(traits.scores_depend_on, plugin)
        self.not_applicable: Callable[[Cycle], bool] | None = _method(traits.not_applicable, plugin)
        self.score_groups: Callable[[Cycle, NodeTable], ScoreGroups | None] | None = (
            _method(traits.score_groups, plugin) if traits.compares_candidates else None
        )

    def as_not_applicable(self, points: frozenset[str]) -> PluginRole:
        """Build the role of the plugin for pods that it has nothing to evaluate for. It is never called."""
        role = PluginRole(self.plugin, points, self.weight)
        role.not_applicable = _always_true
        role.scores_depend_on = None
        role.checks_dependencies = role.looks_at_pods = role.is_external = False
        return role


def _method(function: Callable[..., Any] | None, plugin: Any) -> Any:
    return None if function is None else MethodType(function, plugin)


def _always_true(cycle: Cycle) -> bool:  # noqa: ARG001
    return True


def _always_changed(plugin: Any, cycle: Cycle) -> Hashable:  # noqa: ARG001
    """The default of `depends_on`: a value that always differs from the last one."""
    return object()
