"""The traits of a plugin: what its answers depend on, and which calls the framework may leave out.

A plugin declares them in its class attribute `traits`. The defaults are safe: a plugin without traits is evaluated in
full for every pod. Pods of one equivalence class share the answers of a plugin that declares what these depend on
(`framework.equivalence`). The framework reads the traits once, when it builds a profile or a batch session.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bayplan.framework.api.cycle import Cycle
from bayplan.snapshot import IntVector, NodeTable, RowVector


class ScoreGroups(NamedTuple):
    """Final scores of a table whose rows fall into few groups with equal scores."""

    scores: Sequence[int] | IntVector  # of each group, normalized
    of_row: RowVector  # the group of each row
    lowest: int  # among the groups that have a row
    highest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginTraits:
    """What a plugin declares about itself. The functions get the plugin first, so they can be methods of its class."""

    depends_on: Callable[[Any, Cycle], Hashable] | None = None
    """Returns a value that changes whenever an answer about an unchanged row may change. `row_local`: no answer does.
    None: the plugin is evaluated in full for every pod."""

    scores_depend_on: Callable[[Any, Cycle], Hashable] | None = None
    """The same for scores that depend on more than the filter does, called while the plugin scores. `depends_on` then
    covers the filter, and PreScore while that returns Skip."""

    not_applicable: Callable[[Any, Cycle], bool] | None = None
    """Whether the plugin skips both PreFilter and PreScore for this pod. Saves both calls for pods that share this."""

    looks_at_pods: bool = True
    """Whether answers about a row depend on its pods. False: they depend only on its node."""

    compares_candidates: bool = False
    """Whether scores depend on which nodes are candidates."""

    score_groups: Callable[[Any, Cycle, NodeTable], ScoreGroups | None] | None = None
    """Returns the final scores of a table by groups of rows, for a plugin that compares candidates. If it returns None,
    the framework calls `score_nodes`."""

    loops_over_rows: bool = False
    """Whether the whole-table filter loops over nodes. It then gets only the rows that other filters accepted."""

    signature_may_change: bool = False
    """Whether the signature of a pod may change although the pod does not. It is then called at every attempt."""

    reserves_only_filtered_pods: bool = False
    """Whether the plugin reserves nothing for pods that it skips at PreFilter. Reserve is not called for these."""

    filters_before_binding: bool = False
    """Whether the plugin must not bind a pod to a node that its own filter rejects. A profile that has the plugin at
    Bind also has it at PreFilter and Filter, whatever the configuration lists there."""

    binds_every_pod: bool = False
    """Whether the plugin never returns Skip at Bind. The scheduler warns about Bind plugins listed behind it."""

    @property
    def is_row_local(self) -> bool:
        """Whether answers about unchanged rows never change."""
        return self.depends_on in (row_local, amounts_local)


_DEFAULTS = PluginTraits()


def traits_of(plugin: object) -> PluginTraits:
    """Return the traits that a plugin declares, or the defaults."""
    traits: PluginTraits = getattr(plugin, "traits", _DEFAULTS)
    return traits


def row_local(plugin: object, cycle: Cycle) -> Hashable:  # noqa: ARG001
    """`depends_on=row_local`: the answer about a row depends on the pod and on that row, on nothing else."""
    return ()


def amounts_local(plugin: object, cycle: Cycle) -> Hashable:  # noqa: ARG001
    """Like `row_local`, and only on the row's allocatable and requested amounts: equal amounts get equal answers."""
    return ()
