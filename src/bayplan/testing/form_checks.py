"""Checks that a plugin gives the same result for a node in every form of call.

The framework calls plugins with whole tables, tables of some rows in any order, forks of one row (during preemption dry
runs), and single nodes. A result may depend on the node, the pod and the state of PreFilter or PreScore, but not on the
other nodes in the table. Called by `check_forms_agree` on random clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bayplan.clock import ManualClock
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import FILTER, PRE_FILTER, PRE_SCORE, SCORE
from bayplan.framework.api.status import Code, Status
from bayplan.framework.runtime.filtering import FilterPoints
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.framework.runtime.scoring import ScorePoints
from bayplan.snapshot import NodeTable
from bayplan.telemetry.plugin_timings import PluginTimings

CycleFactory = Callable[[], Cycle]
"""Starts a scheduling cycle; each check uses a new one, because plugins store state in it."""


class SingleNodePlugin:
    """A plugin of which only the single-node methods are visible."""

    def __init__(self, plugin: Any) -> None:
        self.name: str = plugin.name
        for method in ("pre_filter", "filter", "pre_score", "score", "normalize"):
            if hasattr(plugin, method):
                setattr(self, method, getattr(plugin, method))


def form_disagreements(plugin: Any, begin: CycleFactory, rows: Sequence[int]) -> Iterator[str]:
    """Yield a sentence for each self-contradiction of a plugin on a cluster. `rows`: rows of the narrowed table."""
    whole = filter_statuses(plugin, begin())
    yield from _plugin_errors(plugin, whole)
    if FILTER.extended_by(plugin):
        yield from _filter_disagreements(plugin, begin, whole, rows)
    fits = [row for row, status in enumerate(whole) if status.ok]
    if SCORE.extended_by(plugin) and fits:
        yield from _score_disagreements(plugin, begin, fits, [row for row in rows if row in fits])


def twin_disagreements(plugin: Any, begin: CycleFactory, twin: Any, twin_begin: CycleFactory) -> Iterator[str]:
    """Yield a sentence for each difference between two plugins: node statuses, and final scores of feasible nodes."""
    names = begin().snapshot.nodes.names
    statuses, twin_statuses = filter_statuses(plugin, begin()), filter_statuses(twin, twin_begin())
    for name, one, other in zip(names, statuses, twin_statuses, strict=True):
        if _comparable_status(one) != _comparable_status(other):
            yield f"of {name} {plugin.name} says {one}, but {twin.name} says {other}"
    fits = [row for row, status in enumerate(statuses) if status.ok]
    if not fits or not SCORE.extended_by(plugin):
        return
    scores, twin_scores = final_scores(plugin, begin(), fits), final_scores(twin, twin_begin(), fits)
    if scores != twin_scores:
        where = [names[row] for row in fits]
        yield f"of {where} {plugin.name} gives {scores}, but {twin.name} gives {twin_scores}"


# Filters


def filter_statuses(plugin: Any, cycle: Cycle) -> list[Status]:
    """Status of every row after PreFilter and Filter."""
    filtering = _filtering(plugin)
    outcome = filtering.pre_filter(cycle)
    if not outcome.status.ok and not outcome.status.rejected:
        return [outcome.status] * len(cycle.snapshot)
    diagnosis = filtering.run_filters(cycle, outcome)
    return [diagnosis.status(row) for row in range(len(cycle.snapshot))]


def _filter_disagreements(
    plugin: Any, begin: CycleFactory, whole: Sequence[Status], rows: Sequence[int]
) -> Iterator[str]:
    if has_form(plugin, "filter") and has_form(plugin, "filter_nodes"):
        single = filter_statuses(SingleNodePlugin(plugin), begin())
        yield from _status_disagreements(plugin, begin, "filter", range(len(whole)), single, "filter_nodes", whole)
    filtering, cycle = _filtering(plugin), begin()
    outcome = filtering.pre_filter(cycle)
    if not outcome.status.ok or outcome.names is not None:
        return
    columns = cycle.snapshot.nodes
    narrowed = filtering.filter_table(cycle, NodeTable(columns, np.array(rows, dtype=np.intp)))
    some = [narrowed.status(position) for position in range(len(rows))]
    everywhere = [whole[row] for row in rows]
    yield from _status_disagreements(
        plugin, begin, f"a table of rows {list(rows)}", rows, some, "the whole table", everywhere
    )
    forks = [filtering.filter_table(cycle.clone(), NodeTable(columns.fork([row]))).status(0) for row in rows]
    yield from _status_disagreements(plugin, begin, "a fork of the row", rows, forks, "the whole table", everywhere)


def _status_disagreements(
    plugin: Any,
    begin: CycleFactory,
    form: str,
    rows: Sequence[int],
    one: Sequence[Status],
    other_form: str,
    other: Sequence[Status],
) -> Iterator[str]:
    names = begin().snapshot.nodes.names
    for row, status, other_status in zip(rows, one, other, strict=True):
        if (status.code, status.reasons) != (other_status.code, other_status.reasons):
            yield f"{plugin.name} says of {names[row]}, by {form}, {status}, but by {other_form} {other_status}"


def _plugin_errors(plugin: Any, statuses: Sequence[Status]) -> Iterator[str]:
    for status in {status for status in statuses if status.code is Code.ERROR}:
        yield f"{plugin.name} fails: {status.message}"


def _comparable_status(status: Status) -> tuple[Code, list[str]]:
    """The compared part of a status. The order of the reasons of a node is ignored."""
    return status.code, sorted(status.reasons)


# Scores


def final_scores(plugin: Any, cycle: Cycle, rows: Sequence[int]) -> list[int] | str:
    """Normalised scores of some rows; a text if the plugin failed or skipped scoring."""
    _filtering(plugin).pre_filter(cycle)
    scores = _scoring(plugin).score(cycle, _table(cycle, rows))
    if not scores.status.ok:
        return scores.status.message
    vector = scores.by_plugin.get(plugin.name)
    return "nothing" if vector is None else [int(score) for score in vector]


def _score_disagreements(plugin: Any, begin: CycleFactory, fits: Sequence[int], some: Sequence[int]) -> Iterator[str]:
    cycle = begin()
    final = final_scores(plugin, cycle, fits)
    if isinstance(final, str):
        if plugin.name not in cycle.skip_score:
            yield f"{plugin.name} fails: {final}"
        return
    if has_form(plugin, "score") and has_form(plugin, "score_nodes"):
        single = final_scores(SingleNodePlugin(plugin), begin(), fits)
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


def _filtering(plugin: Any) -> FilterPoints:
    pre_filters = [plugin] if PRE_FILTER.extended_by(plugin) else []
    filters = [plugin] if FILTER.extended_by(plugin) else []
    return FilterPoints(pre_filters, filters, PluginCaller(ManualClock(), PluginTimings()), Nominator())


def _scoring(plugin: Any) -> ScorePoints:
    pre_scores = [plugin] if PRE_SCORE.extended_by(plugin) else []
    return ScorePoints(pre_scores, [plugin], {plugin.name: 1}, PluginCaller(ManualClock(), PluginTimings()))
