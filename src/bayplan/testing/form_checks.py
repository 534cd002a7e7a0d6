"""Does a plugin say the same of a node whichever way it is asked?

The framework asks about whole tables, about tables narrowed to some rows in any order, about forks of one row (while
preemption tries things out), and about single nodes. An answer may depend on the node, the pod and what PreFilter or
PreScore prepared, never on which other nodes are in the table. Asked by `check_forms_agree` on random clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bayplan.clock import ManualClock
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import (
    FILTER,
    PRE_FILTER,
    PRE_SCORE,
    SCORE,
)
from bayplan.framework.api.status import Code, Status
from bayplan.framework.runtime.filtering import Filtering
from bayplan.framework.runtime.nominator import NominationLedger
from bayplan.framework.runtime.plugin_call import Boundary
from bayplan.framework.runtime.scoring import Scoring
from bayplan.snapshot import NodeTable
from bayplan.telemetry.plugin_timings import PluginTimings

Begin = Callable[[], Cycle]
"""Starts an attempt; every question gets one of its own, because state stays in it."""


class OneNodeForm:
    """A plugin with both forms, of which only the one about one node is to be seen."""

    def __init__(self, plugin: Any) -> None:
        self.name: str = plugin.name
        for method in ("pre_filter", "filter", "pre_score", "score", "normalize"):
            if hasattr(plugin, method):
                setattr(self, method, getattr(plugin, method))


def disagreements(plugin: Any, begin: Begin, rows: Sequence[int]) -> Iterator[str]:
    """Where a plugin contradicts itself about a cluster, each time as a sentence. `rows`: which to narrow to."""
    whole = judged(plugin, begin())
    yield from _broken(plugin, whole)
    if FILTER.extended_by(plugin):
        yield from _filters_differ(plugin, begin, whole, rows)
    fits = [row for row, status in enumerate(whole) if status.ok]
    if SCORE.extended_by(plugin) and fits:
        yield from _scores_differ(plugin, begin, fits, [row for row in rows if row in fits])


def twins_differ(plugin: Any, begin: Begin, twin: Any, twin_begin: Begin) -> Iterator[str]:
    """Where two plugins that shall be alike are not: statuses of all nodes, final scores of those that fit."""
    names = begin().snapshot.nodes.names
    mine, theirs = judged(plugin, begin()), judged(twin, twin_begin())
    for name, one, other in zip(names, mine, theirs, strict=True):
        if _words(one) != _words(other):
            yield f"of {name} {plugin.name} says {one}, but {twin.name} says {other}"
    fits = [row for row, status in enumerate(mine) if status.ok]
    if not fits or not SCORE.extended_by(plugin):
        return
    one_score, other_score = final_scores(plugin, begin(), fits), final_scores(twin, twin_begin(), fits)
    if one_score != other_score:
        where = [names[row] for row in fits]
        yield f"of {where} {plugin.name} gives {one_score}, but {twin.name} gives {other_score}"


# filters


def judged(plugin: Any, cycle: Cycle) -> list[Status]:
    """What PreFilter and Filter say of every row."""
    filtering = _filtering(plugin)
    outcome = filtering.pre_filter(cycle)
    if not outcome.status.ok and not outcome.status.rejected:
        return [outcome.status] * len(cycle.snapshot)
    diagnosis = filtering.diagnose(cycle, outcome)
    return [diagnosis.status(row) for row in range(len(cycle.snapshot))]


def _filters_differ(plugin: Any, begin: Begin, whole: Sequence[Status], rows: Sequence[int]) -> Iterator[str]:
    if has_form(plugin, "filter") and has_form(plugin, "filter_nodes"):
        single = judged(OneNodeForm(plugin), begin())
        yield from _told(plugin, begin, "filter", range(len(whole)), single, "filter_nodes", whole)
    filtering, cycle = _filtering(plugin), begin()
    outcome = filtering.pre_filter(cycle)
    if not outcome.status.ok or outcome.names is not None:
        return
    columns = cycle.snapshot.nodes
    narrowed = filtering.judge_table(cycle, NodeTable(columns, np.array(rows, dtype=np.intp)))
    some = [narrowed.status(place) for place in range(len(rows))]
    everywhere = [whole[row] for row in rows]
    yield from _told(plugin, begin, f"a table of rows {list(rows)}", rows, some, "the whole table", everywhere)
    forks = [filtering.judge_table(cycle.clone(), NodeTable(columns.fork([row]))).status(0) for row in rows]
    yield from _told(plugin, begin, "a fork of the row", rows, forks, "the whole table", everywhere)


def _told(
    plugin: Any,
    begin: Begin,
    one_way: str,
    rows: Sequence[int],
    one: Sequence[Status],
    other_way: str,
    other: Sequence[Status],
) -> Iterator[str]:
    names = begin().snapshot.nodes.names
    for row, mine, theirs in zip(rows, one, other, strict=True):
        if (mine.code, mine.reasons) != (theirs.code, theirs.reasons):
            yield f"{plugin.name} says of {names[row]}, by {one_way}, {mine}, but by {other_way} {theirs}"


def _broken(plugin: Any, statuses: Sequence[Status]) -> Iterator[str]:
    for status in {status for status in statuses if status.code is Code.ERROR}:
        yield f"{plugin.name} fails: {status.message}"


def _words(status: Status) -> tuple[Code, list[str]]:
    """What counts of a twin's status. The order of a node's reasons does not: a sentence counts them."""
    return status.code, sorted(status.reasons)


# scores


def final_scores(plugin: Any, cycle: Cycle, rows: Sequence[int]) -> list[int] | str:
    """The normalised scores of some rows; a sentence where the plugin failed or stays out of it."""
    _filtering(plugin).pre_filter(cycle)
    scores = _scoring(plugin).score(cycle, _table(cycle, rows))
    if not scores.status.ok:
        return scores.status.message
    vector = scores.by_plugin.get(plugin.name)
    return "nothing" if vector is None else [int(score) for score in vector]


def _scores_differ(plugin: Any, begin: Begin, fits: Sequence[int], some: Sequence[int]) -> Iterator[str]:
    cycle = begin()
    final = final_scores(plugin, cycle, fits)
    if isinstance(final, str):
        if plugin.name not in cycle.skip_score:
            yield f"{plugin.name} fails: {final}"
        return
    if has_form(plugin, "score") and has_form(plugin, "score_nodes"):
        single = final_scores(OneNodeForm(plugin), begin(), fits)
        if single != final:
            yield f"{plugin.name} gives {single} by score, but {final} by score_nodes"
    if has_form(plugin, "score_nodes") and some:
        whole = dict(zip(fits, plugin.score_nodes(cycle, _table(cycle, fits)).tolist(), strict=True))
        narrowed = plugin.score_nodes(cycle, _table(cycle, some)).tolist()
        if narrowed != [whole[row] for row in some]:
            names = [cycle.snapshot.nodes.names[row] for row in some]
            yield (
                f"{plugin.name} gives {names} {narrowed} in a table of their own, but {[whole[row] for row in some]} "
                "among all; compare nodes with each other in pre_score or normalize"
            )


def has_form(plugin: Any, method: str) -> bool:
    return callable(getattr(plugin, method, None))


def _table(cycle: Cycle, rows: Sequence[int]) -> NodeTable:
    return NodeTable(cycle.snapshot.nodes, np.array(rows, dtype=np.intp))


def _filtering(plugin: Any) -> Filtering:
    pre_filters = [plugin] if PRE_FILTER.extended_by(plugin) else []
    filters = [plugin] if FILTER.extended_by(plugin) else []
    return Filtering(pre_filters, filters, Boundary(ManualClock(), PluginTimings()), NominationLedger())


def _scoring(plugin: Any) -> Scoring:
    pre_scores = [plugin] if PRE_SCORE.extended_by(plugin) else []
    return Scoring(pre_scores, [plugin], {plugin.name: 1}, Boundary(ManualClock(), PluginTimings()))
