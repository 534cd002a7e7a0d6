"""Role of a plugin in one profile: its points, its weight and its declarations.

Built once for each profile, when its equivalence classes are set up. Scheduling attempts then look up no methods.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import FILTER, PRE_FILTER, PRE_SCORE, SCORE
from bayplan.framework.api.plugin import amounts_local, row_local

_SHIPPED_PACKAGE = "bayplan.plugins."


class PluginRole:
    """Points, weight and declarations of a plugin in one profile."""

    def __init__(self, plugin: Any, points: frozenset[str], weight: int) -> None:
        self.plugin = plugin
        self.name: str = plugin.name
        self.weight = weight
        self.pre_filters, self.filters = PRE_FILTER.key in points, FILTER.key in points
        self.pre_scores, self.scores = PRE_SCORE.key in points, SCORE.key in points
        self.has_signature = hasattr(plugin, "signature")
        self.signs_anew = self.has_signature and bool(getattr(plugin, "signs_anew", False))
        # the calls of an external plugin are timed
        self.is_external = not type(plugin).__module__.startswith(_SHIPPED_PACKAGE)
        self.looks_at_pods = bool(getattr(plugin, "looks_at_pods", True))
        self.filters_tables = hasattr(plugin, "filter_nodes")
        self.filters_one = hasattr(plugin, "filter")
        self.scores_tables = hasattr(plugin, "score_nodes")
        self.scores_one = hasattr(plugin, "score")
        self.needs_remaining_rows = bool(getattr(plugin, "per_row", False)) or not self.filters_tables
        self.normalizes = hasattr(plugin, "normalize")
        self.compares_candidates = bool(getattr(plugin, "compares_candidates", False))
        self.has_scores_version = hasattr(plugin, "scores_depend_on")
        self.has_score_groups = self.compares_candidates and hasattr(plugin, "score_groups")
        depends_on = getattr(type(plugin), "depends_on", None)
        self.checks_dependencies = depends_on is not row_local and depends_on is not amounts_local
        self.reads_amounts_only = depends_on is amounts_local
        self.sits_out: Callable[[Cycle], bool] | None = getattr(plugin, "sits_out", None)
        self.depends_on: Callable[[Cycle], Hashable] = getattr(plugin, "depends_on", _always_changed)

    def as_not_applicable(self, points: frozenset[str]) -> PluginRole:
        """Build the role of the plugin for pods that it has nothing to evaluate for. It is never called."""
        role = PluginRole(self.plugin, points, self.weight)
        role.sits_out = _always_true
        role.checks_dependencies = role.has_scores_version = role.looks_at_pods = role.is_external = False
        return role


def _always_true(cycle: Cycle) -> bool:  # noqa: ARG001
    return True


def _always_changed(cycle: Cycle) -> Hashable:  # noqa: ARG001
    """The default of `depends_on`: a value that always differs from the last one."""
    return object()
