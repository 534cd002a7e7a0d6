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
from bayplan.framework.api.plugin import amounts_alone, row_alone

_SHIPPED = "bayplan.plugins."


class Role:
    """What a plugin does in one profile, and what it says about itself."""

    def __init__(self, plugin: Any, points: frozenset[str], weight: int) -> None:
        self.plugin = plugin
        self.name: str = plugin.name
        self.weight = weight
        self.pre_filters, self.filters = PRE_FILTER.key in points, FILTER.key in points
        self.pre_scores, self.scores = PRE_SCORE.key in points, SCORE.key in points
        self.signs = hasattr(plugin, "signature")
        self.signs_anew = self.signs and bool(getattr(plugin, "signs_anew", False))
        self.outside = not type(plugin).__module__.startswith(_SHIPPED)  # then whatever it does is watched for its time
        self.looks_at_pods = bool(getattr(plugin, "looks_at_pods", True))
        self.filters_tables = hasattr(plugin, "filter_nodes")
        self.filters_one = hasattr(plugin, "filter")
        self.scores_tables = hasattr(plugin, "score_nodes")
        self.scores_one = hasattr(plugin, "score")
        self.wants_rows_left = bool(getattr(plugin, "per_row", False)) or not self.filters_tables
        self.normalizes = hasattr(plugin, "normalize")
        self.compares = bool(getattr(plugin, "compares_candidates", False))
        self.moves = hasattr(plugin, "scores_depend_on")
        self.groups = self.compares and hasattr(plugin, "score_groups")
        depends_on = getattr(type(plugin), "depends_on", None)
        self.watches = depends_on is not row_alone and depends_on is not amounts_alone
        self.sees_amounts = depends_on is amounts_alone
        self.sits_out: Callable[[Cycle], bool] | None = getattr(plugin, "sits_out", None)
        self.depends_on: Callable[[Cycle], Hashable] = getattr(plugin, "depends_on", _anything)

    def sitting_out(self, points: frozenset[str]) -> Role:
        """The same plugin in the eyes of pods that it has nothing to say about: never asked, whatever happens."""
        quiet = Role(self.plugin, points, self.weight)
        quiet.sits_out = _always
        quiet.watches = quiet.moves = quiet.looks_at_pods = quiet.outside = False
        return quiet


def _always(cycle: Cycle) -> bool:  # noqa: ARG001
    return True


def _anything(cycle: Cycle) -> Hashable:  # noqa: ARG001
    """What a plugin depends on that does not say: it has changed since, whenever that was."""
    return object()
