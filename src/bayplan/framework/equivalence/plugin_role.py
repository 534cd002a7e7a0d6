"""What does a plugin do in one profile, and what does it say about itself?

Found out once a profile, when equivalence classes are set up, so that nobody looks for methods in a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import (
    FILTER,
    PRE_FILTER,
    PRE_SCORE,
    SCORE,
)
from bayplan.framework.api.plugin import amounts_local, row_local

_SHIPPED_PACKAGE = "bayplan.plugins."


class PluginRole:
    """What a plugin does in one profile, and what it says about itself."""

    def __init__(self, plugin: Any, points: frozenset[str], weight: int) -> None:
        self.plugin = plugin
        self.name: str = plugin.name
        self.weight = weight
        self.pre_filters, self.filters = PRE_FILTER.key in points, FILTER.key in points
        self.pre_scores, self.scores = PRE_SCORE.key in points, SCORE.key in points
        self.has_signature = hasattr(plugin, "signature")
        self.signs_anew = self.has_signature and bool(getattr(plugin, "signs_anew", False))
        self.is_external = not type(plugin).__module__.startswith(
            _SHIPPED_PACKAGE
        )  # then whatever it does is watched for its time
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
        """The same plugin in the eyes of pods that it has nothing to say about: never asked, whatever happens."""
        quiet = PluginRole(self.plugin, points, self.weight)
        quiet.sits_out = _always_true
        quiet.checks_dependencies = quiet.has_scores_version = quiet.looks_at_pods = quiet.is_external = False
        return quiet


def _always_true(cycle: Cycle) -> bool:  # noqa: ARG001
    return True


def _always_changed(cycle: Cycle) -> Hashable:  # noqa: ARG001
    """What a plugin depends on that does not say: it has changed since, whenever that was."""
    return object()
