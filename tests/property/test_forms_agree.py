"""A plugin that evaluates all rows at once agrees with its naive twin on each node.

Twins are in `naive`, one module per plugin; each of them is tested. Whole tables, narrowed tables and forks of one row
must give the same results, because the framework uses all three.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import naive
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.status import SUCCESS, Code
from bayplan.framework.runtime.filtering import FilterPoints
from bayplan.framework.runtime.registry import RegisteredPlugin
from bayplan.plugins import default_plugins
from bayplan.plugins.bind_request_binder import BindRequestBinder
from bayplan.snapshot import NodeTable, Snapshot
from naive.twin import Case, Twin
from support.builders.framework import (
    FakeHandle,
    FilterResult,
    filter_result,
    make_cycle,
    make_filtering,
    make_plugin,
    make_scoring,
    make_snapshot,
)

TWINS = [
    module.TWIN
    for found in pkgutil.iter_modules(naive.__path__, "naive.")
    if hasattr(module := import_module(found.name), "TWIN")
]
FILTERS = [pytest.param(twin, id=twin.plugin.name) for twin in TWINS if twin.filter is not None]
SCORERS = [pytest.param(twin, id=twin.plugin.name) for twin in TWINS if twin.scores is not None]
relaxed = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def snapshot_of(case: Case) -> Snapshot:
    return make_snapshot(case.cluster.nodes, case.cluster.pods, case.cluster.objects)


def filtering_of(twin: Twin, case: Case, snapshot: Snapshot) -> FilterPoints:
    return make_filtering(make_plugin(twin.plugin, args=case.args, handle=FakeHandle(snapshot.catalog)))


def draw_case(data: st.DataObject, twin: Twin) -> Case:
    return data.draw(twin.cases, label="case")


def verdicts(filtering: FilterPoints, cycle: Cycle) -> dict[str, FilterResult]:
    """The results of PreFilter and Filter for each node; if PreFilter fails, no node is evaluated."""
    outcome, names = filtering.pre_filter(cycle), cycle.snapshot.nodes.names
    if outcome.status.code is Code.ERROR:
        return dict.fromkeys(names, filter_result(outcome.status))
    diagnosis = filtering.run_filters(cycle, outcome)
    return {name: filter_result(diagnosis.status(row)) for row, name in enumerate(names)}


@pytest.mark.parametrize("twin", FILTERS)
@given(data=st.data())
@relaxed
def test_filters_agree_on_every_node(twin: Twin, data: st.DataObject) -> None:
    case = draw_case(data, twin)
    snapshot = snapshot_of(case)
    filtering, cycle = filtering_of(twin, case, snapshot), make_cycle(case.pod, snapshot)
    assert twin.filter is not None
    assert verdicts(filtering, cycle) == {node.name: twin.filter(case, node) for node in case.cluster.nodes}


@pytest.mark.parametrize("twin", FILTERS)
@given(data=st.data())
@relaxed
def test_a_narrowed_table_and_a_fork_are_filtered_alike(twin: Twin, data: st.DataObject) -> None:
    case = draw_case(data, twin)
    snapshot = snapshot_of(case)
    filtering, cycle = filtering_of(twin, case, snapshot), make_cycle(case.pod, snapshot)
    if not filtering.pre_filter(cycle).status.ok:
        return
    whole = filtering.filter_table(cycle, snapshot.table)
    rows = data.draw(st.permutations(range(len(snapshot))), label="rows")[: data.draw(st.integers(1, len(snapshot)))]
    narrowed = filtering.filter_table(cycle, NodeTable(snapshot.nodes, np.array(rows)))
    assert [narrowed.status(position) for position in range(len(rows))] == [whole.status(row) for row in rows]
    for row in rows:
        fork = NodeTable(snapshot.nodes.fork([row]))
        assert filtering.filter_table(cycle.clone(), fork).status(0) == whole.status(row)


@pytest.mark.parametrize("twin", [each for each in FILTERS if hasattr(each.values[0].plugin, "filter")])
@given(data=st.data())
@relaxed
def test_a_filter_of_one_node_agrees_with_that_of_all(twin: Twin, data: st.DataObject) -> None:
    case = draw_case(data, twin)
    snapshot = snapshot_of(case)
    plugin = make_plugin(twin.plugin, args=case.args, handle=FakeHandle(snapshot.catalog))
    filtering, cycle = make_filtering(plugin), make_cycle(case.pod, snapshot)
    outcome = filtering.pre_filter(cycle)
    if not outcome.status.ok or plugin.name in cycle.skip_filter:
        return
    whole = filtering.filter_table(cycle, snapshot.table)
    for row, node in enumerate(snapshot.table):
        alone = plugin.filter(cycle, node)
        assert (alone.by(plugin.name) if alone else SUCCESS) == whole.status(row)


@pytest.mark.parametrize("twin", [each for each in SCORERS if hasattr(each.values[0].plugin, "score")])
@given(data=st.data())
@relaxed
def test_a_score_of_one_node_is_its_score_among_all(twin: Twin, data: st.DataObject) -> None:
    case = draw_case(data, twin)
    snapshot = snapshot_of(case)
    plugin = make_plugin(twin.plugin, args=case.args, handle=FakeHandle(snapshot.catalog))
    cycle = make_cycle(case.pod, snapshot)
    make_filtering(plugin).pre_filter(cycle)
    assert [plugin.score(cycle, node) for node in snapshot.table] == plugin.score_nodes(cycle, snapshot.table).tolist()


@pytest.mark.parametrize("twin", SCORERS)
@given(data=st.data())
@relaxed
def test_scorers_agree_on_every_feasible_node(twin: Twin, data: st.DataObject) -> None:
    case = draw_case(data, twin)
    snapshot = snapshot_of(case)
    rows = data.draw(st.lists(st.sampled_from(range(len(snapshot))), min_size=1, unique=True), label="feasible")
    plugin = make_plugin(twin.plugin, args=case.args, handle=FakeHandle(snapshot.catalog))
    cycle = make_cycle(case.pod, snapshot)
    verdicts(make_filtering(plugin), cycle)  # some plugins score results of their filter
    table = NodeTable(snapshot.nodes, np.array(rows)) if len(rows) < len(snapshot) else snapshot.table
    scores = make_scoring(plugin).score(cycle, table)
    assert scores.status.ok, scores.status
    vector = scores.by_plugin.get(plugin.name)
    found = None if vector is None else dict(zip(table.names, vector.tolist(), strict=True))
    assert twin.scores is not None
    assert found == twin.scores(case, [node.node for node in table])


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in default_plugins()])
def test_every_column_plugin_has_a_twin(entry: RegisteredPlugin) -> None:
    if entry.plugin is BindRequestBinder:
        return  # it depends on the binder, not on the cluster: test_bind_failure_filter.py has its naive twin
    twins = [twin for twin in TWINS if twin.plugin is entry.plugin]
    assert any(twin.filter is not None for twin in twins) == hasattr(entry.plugin, "filter_nodes")
    assert any(twin.scores is not None for twin in twins) == hasattr(entry.plugin, "score_nodes")
