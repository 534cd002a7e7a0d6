"""Filter step of the scheduling cycle: finds the node rows that can run a pod, and the reasons of all other rows.

The scheduling cycle calls it once for each attempt, preemption calls it for forks of one row. Filters run in the
profile's order; a row keeps the reasons of the first plugin that rejects it. Cost: one pass over the columns for each
plugin. Only plugins with the one-node form loop over nodes in Python, on the remaining rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import NOT_EVALUATED, Diagnosis, FilterReasonRows, FilterResults
from bayplan.framework.api.extension_points import ADD_POD, FILTER, PRE_FILTER, REMOVE_POD
from bayplan.framework.api.handle import PodNominator
from bayplan.framework.api.plugin import PreFilterResult, Rejection
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.plugin_traits import traits_of
from bayplan.framework.api.status import SUCCESS, Code, Status, error, unresolvable
from bayplan.framework.runtime.plugin_call import PluginCaller, invalid_status_error, status_text, to_status
from bayplan.snapshot import BoolVector, NodeColumns, NodeInfo, NodeTable, PodInfo, RowVector

_ACCEPTED_FROM_FILTER = frozenset({Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.PENDING})


@dataclass(slots=True)
class PreFilterSummary:
    """Result of PreFilter.

    `names`: the only candidate nodes (None: all); `narrowed_by`: the plugins that limited them.
    """

    status: Status = SUCCESS
    names: frozenset[str] | None = None
    narrowed_by: set[str] = field(default_factory=set)


class FilterPoints:
    """PreFilter and Filter of one profile."""

    def __init__(
        self, pre_filters: Sequence[Any], filters: Sequence[Any], caller: PluginCaller, nominations: PodNominator
    ) -> None:
        self._pre_filters = tuple(pre_filters)
        self._filters = tuple(filters)
        self._looping = {plugin.name for plugin in filters if traits_of(plugin).loops_over_rows}
        self._extensions = tuple(plugin for plugin in pre_filters if hasattr(plugin, "add_pod"))
        self._caller = caller
        self._nominations = nominations

    @property
    def per_node_plugins(self) -> tuple[str, ...]:
        """Names of the plugins that are called for each node separately, which is expensive."""
        return tuple(plugin.name for plugin in self._filters if not hasattr(plugin, "filter_nodes"))

    @property
    def has_nominations(self) -> bool:
        return bool(self._nominations.nodes())

    def pre_filter(self, cycle: Cycle) -> PreFilterSummary:
        """Call every PreFilter plugin.

        An unresolvable status ends the loop, an unschedulable one is returned at its end.
        """
        start_s = self._caller.now_s()
        summary = self._run_pre_filter(cycle)
        took_s = self._caller.now_s() - start_s
        self._caller.points.observe(PRE_FILTER.metric_label, took_s, summary.status.code.label)
        return summary

    def _run_pre_filter(self, cycle: Cycle) -> PreFilterSummary:
        summary = PreFilterSummary()
        count = self._caller.points.count
        cached, cycle.pre_filter_results = cycle.pre_filter_results or {}, None
        for plugin in self._pre_filters:
            result = cached.get(plugin.name) or self._call_pre_filter(plugin, cycle)
            if isinstance(result, PreFilterResult) or result.code is not Code.SKIP:
                count(plugin.name, PRE_FILTER.metric_label)
            if isinstance(result, PreFilterResult):
                if self._restrict_nodes(summary, plugin.name, result.node_names):
                    return summary
                continue
            if result.code is Code.SKIP:
                cycle.skip_filter.add(plugin.name)
            elif result.code is Code.UNRESOLVABLE:
                return PreFilterSummary(result)  # plugins that narrowed the nodes before are not the cause
            elif result.code is Code.UNSCHEDULABLE:
                summary.status = result
            elif not result.ok:
                summary.status = error(f'running PreFilter plugin "{plugin.name}": {status_text(result)}').by(
                    plugin.name
                )
                return summary
        return summary

    def _call_pre_filter(self, plugin: Any, cycle: Cycle) -> PreFilterResult | Status:
        try:
            if cycle.plugin_error is not None:
                cycle.plugin_error.raise_if_same_call(plugin, PRE_FILTER)
            return self._caller.call(plugin, PRE_FILTER, call_pre_filter, plugin, cycle)
        except PluginFault as fault:
            return error(fault.text).by(plugin.name)

    @staticmethod
    def _restrict_nodes(summary: PreFilterSummary, plugin: str, names: frozenset[str]) -> bool:
        """Intersect the candidate nodes. Returns true if none is left and the pod is rejected."""
        summary.narrowed_by.add(plugin)
        summary.names = names if summary.names is None else summary.names & names
        if summary.names:
            return False
        plugins = sorted(summary.narrowed_by)
        text = (
            f"node(s) didn't satisfy plugin {plugins[0]}"
            if len(plugins) == 1
            else f"node(s) didn't satisfy plugin(s) [{' '.join(plugins)}] simultaneously"
        )
        summary.status = unresolvable(text)
        return True

    def run_filters(self, cycle: Cycle, summary: PreFilterSummary, *, only: RowVector | None = None) -> Diagnosis:
        """Return the status of every candidate row. `only` limits the filters to some rows (a nominated node)."""
        snapshot = cycle.snapshot
        diagnosis = Diagnosis(snapshot.nodes.names)
        if cycle.allowed_rows is not None:
            diagnosis.eligible_rows = np.zeros(diagnosis.node_count, dtype=np.bool_)
            diagnosis.eligible_rows[cycle.allowed_rows] = True
        if summary.status.rejected:
            diagnosis.absent = summary.status
            diagnosis.pre_filter_message = summary.status.message
            diagnosis.record(summary.status)
            diagnosis.unschedulable_plugins |= summary.narrowed_by
            return diagnosis
        rows = self.candidates(snapshot.table, summary)
        if rows is not None:
            plugins = " ".join(sorted(summary.narrowed_by))
            diagnosis.absent = unresolvable(f"node(s) didn't satisfy plugin(s) [{plugins}]")
            diagnosis.unschedulable_plugins |= summary.narrowed_by
        if only is not None:
            rows = only if rows is None else np.intersect1d(only, rows)
        table = NodeTable(snapshot.nodes, rows)
        self._set_verdicts(diagnosis, table, self.filter_table(cycle, table))
        self._filter_with_nominated_pods(cycle, diagnosis)
        diagnosis.record_rejectors()
        return diagnosis

    @staticmethod
    def candidates(table: NodeTable, summary: PreFilterSummary) -> RowVector | None:
        """Return the rows that PreFilter has left; None for all rows."""
        return None if summary.names is None else np.flatnonzero(table.where_named(summary.names))

    @staticmethod
    def _set_verdicts(diagnosis: Diagnosis, table: NodeTable, results: FilterResults) -> None:
        """Expand the results of a table to all rows of the snapshot."""
        if table.is_whole:
            diagnosis.verdicts = results
        else:
            all_verdicts = FilterResults(np.full(diagnosis.node_count, NOT_EVALUATED, dtype=np.int8))
            all_verdicts.codes[table.rows] = results.codes

            def expand(mask: BoolVector) -> BoolVector:
                expanded = np.zeros(diagnosis.node_count, dtype=np.bool_)
                expanded[table.rows] = mask
                return expanded

            all_verdicts.reasons = [
                FilterReasonRows(reason.plugin, reason.text, expand(reason.mask)) for reason in results.reasons
            ]
            all_verdicts.plugins = {plugin: expand(mask) for plugin, mask in results.plugins.items()}
            diagnosis.verdicts = all_verdicts

    def filter_table(self, cycle: Cycle, table: NodeTable) -> FilterResults:
        """Return the filter results of each entry, without nominated pods."""
        results = FilterResults.empty(len(table))
        remaining = np.ones(len(table), dtype=np.bool_)
        for plugin in self._filters:
            if plugin.name in cycle.skip_filter:
                continue
            self._caller.points.count(plugin.name, FILTER.metric_label, len(table))
            if not self._apply(plugin, cycle, table, remaining, results):
                break
        return results

    def _apply(
        self, plugin: Any, cycle: Cycle, table: NodeTable, remaining: BoolVector, results: FilterResults
    ) -> bool:
        """Apply one plugin to the remaining rows. Returns false if no row is left."""
        try:
            if cycle.plugin_error is not None:
                is_per_node = plugin.name in self._looping or not hasattr(plugin, "filter_nodes")
                cycle.plugin_error.raise_if_same_call(
                    plugin, FILTER, table.rows[remaining] if is_per_node else table.rows
                )
            if not hasattr(plugin, "filter_nodes"):
                self._apply_one_by_one(plugin, cycle, table, remaining, results)
            elif plugin.name in self._looping and not remaining.all():
                positions_left = np.flatnonzero(remaining)
                narrowed = table.restricted_to(remaining)
                for rejection in self._caller.call(plugin, FILTER, table_rejections, plugin, cycle, narrowed):
                    mask = np.zeros(len(table), dtype=np.bool_)
                    mask[positions_left[rejection.mask]] = True
                    _reject(results, plugin.name, mask, rejection.reason, rejection.status_code)
            else:
                for rejection in self._caller.call(plugin, FILTER, table_rejections, plugin, cycle, table):
                    mask = rejection.mask & remaining
                    _reject(results, plugin.name, mask, rejection.reason, rejection.status_code)
        except PluginFault as fault:
            _reject(results, plugin.name, remaining.copy(), fault.text, Code.ERROR)
        rejected = results.plugins.get(plugin.name)
        if rejected is not None:
            remaining &= ~rejected
        return bool(remaining.any())

    def _apply_one_by_one(
        self, plugin: Any, cycle: Cycle, table: NodeTable, remaining: BoolVector, results: FilterResults
    ) -> None:
        positions_left = np.flatnonzero(remaining)
        for (code, reasons), rows in self._caller.call(
            plugin, FILTER, filter_one_by_one, plugin, cycle, table, positions_left
        ).items():
            mask = np.zeros(len(table), dtype=np.bool_)
            mask[rows] = True
            if code in _ACCEPTED_FROM_FILTER:
                for text in reasons or ("",):
                    _reject(results, plugin.name, mask, text, code)
            else:
                text = ", ".join(reasons) or f"returned {code.label}, which is not allowed at Filter"
                _reject(results, plugin.name, mask, text, Code.ERROR)

    def _filter_with_nominated_pods(self, cycle: Cycle, diagnosis: Diagnosis) -> None:
        """Filter rows with nominated pods again: the pod must fit both with and without these pods."""
        nodes, nominated = cycle.snapshot.nodes, self._nominations.nodes()
        if not nominated:
            return
        evaluated = diagnosis.verdicts.codes != NOT_EVALUATED
        if np.count_nonzero(evaluated) < len(nominated):  # for a nominated pod: a single row
            rows = [row for row in np.flatnonzero(evaluated).tolist() if nodes.names[row] in nominated]
        else:
            rows = [row for name in nominated if (row := nodes.index.get(name)) is not None and evaluated[row]]
        nominated_by_row = {
            row: nominated_pods for row in rows if (nominated_pods := self._nominated_pods(cycle, nodes.names[row]))
        }
        if not nominated_by_row:
            return
        for row, status in zip(nominated_by_row, self._fork_with_nominated_pods(cycle, nominated_by_row), strict=True):
            if not status.ok:
                diagnosis.override(row, status)

    def _fork_with_nominated_pods(
        self, cycle: Cycle, nominated_by_row: Mapping[int, Sequence[PodInfo]]
    ) -> list[Status]:
        """Return the status of rows with their nominated pods, evaluated together where possible.

        An error does not tell which row caused it, so each row is then evaluated separately.
        """
        nodes = cycle.snapshot.nodes
        if len(nominated_by_row) > 1 and self.is_row_local(cycle):
            fork = nodes.fork(list(nominated_by_row))
            for position, nominated_pods in enumerate(nominated_by_row.values()):
                for nominated_pod in nominated_pods:
                    fork.add_pod(position, nominated_pod)
            results = self.filter_table(cycle.clone(), NodeTable(fork))
            if not (results.codes == Code.ERROR).any():
                return results.statuses()
        return [
            self._add_nominated_pods(cycle, nodes.fork([row]), nominated_pods)
            for row, nominated_pods in nominated_by_row.items()
        ]

    def filter_fork(self, cycle: Cycle, fork: NodeColumns) -> Status:
        """Return the status of a fork of one row, evaluated with and without the pods nominated to it."""
        nominated_pods = self._nominated_pods(cycle, fork.names[0])
        if nominated_pods:
            status = self._add_nominated_pods(cycle, fork.fork([0]), nominated_pods)
            if not status.ok:
                return status
        return self.filter_table(cycle, NodeTable(fork)).status(0)

    def is_row_local(self, cycle: Cycle) -> bool:
        """Whether adding a pod to a row affects that row only: no PreFilter extension is active for this pod."""
        return all(plugin.name in cycle.skip_filter for plugin in self._extensions)

    def nominated_pods_by_node(self, cycle: Cycle) -> dict[str, list[PodInfo]]:
        """Return the pods nominated to each node that count against this pod."""
        return {
            name: nominated_pods
            for name in self._nominations.nodes()
            if (nominated_pods := self._nominated_pods(cycle, name))
        }

    def add_pod(self, cycle: Cycle, fork: NodeColumns, info: PodInfo) -> Status:
        """Add a pod to the fork's row and call the plugins' AddPod."""
        fork.add_pod(0, info)
        return self._call_pod_extension(cycle, "add_pod", info, NodeInfo(fork, 0))

    def remove_pod(self, cycle: Cycle, fork: NodeColumns, info: PodInfo) -> Status:
        """Remove a pod from the fork's row and call the plugins' RemovePod."""
        fork.remove_pod(0, info)
        return self._call_pod_extension(cycle, "remove_pod", info, NodeInfo(fork, 0))

    def _nominated_pods(self, cycle: Cycle, node_name: str) -> list[PodInfo]:
        info = cycle.info
        return [
            nominated_pod
            for nominated_pod in self._nominations.on_node(node_name)
            if nominated_pod.priority >= info.priority and nominated_pod.uid != info.uid
        ]

    def _add_nominated_pods(self, cycle: Cycle, fork: NodeColumns, nominated_pods: Sequence[PodInfo]) -> Status:
        trial = cycle.clone()
        for nominated_pod in nominated_pods:
            status = self.add_pod(trial, fork, nominated_pod)
            if not status.ok:
                return status
        return self.filter_table(trial, NodeTable(fork)).status(0)

    def _call_pod_extension(self, cycle: Cycle, method: str, info: PodInfo, node: NodeInfo) -> Status:
        for plugin in self._extensions:
            if plugin.name in cycle.skip_filter:
                continue
            try:
                call = getattr(plugin, method)
                point = ADD_POD if method == "add_pod" else REMOVE_POD
                status = self._caller.call_for_status(plugin, point, call, cycle, info, node)
            except PluginFault as fault:
                status = error(fault.text).by(plugin.name)
            if not status.ok:
                what = "AddPod" if method == "add_pod" else "RemovePod"
                return error(f'running {what} on PreFilter plugin "{plugin.name}": {status.message}').by(plugin.name)
        return SUCCESS


def call_pre_filter(plugin: Any, cycle: Cycle) -> PreFilterResult | Status:
    result = plugin.pre_filter(cycle)
    return result if isinstance(result, PreFilterResult) else to_status(result, plugin.name, PRE_FILTER)


def filter_one_by_one(
    plugin: Any, cycle: Cycle, table: NodeTable, positions: RowVector
) -> dict[tuple[Code, tuple[str, ...]], list[int]]:
    """Return the rejected positions of a one-node plugin by status. Many nodes share few statuses."""
    rejected_positions: dict[tuple[Code, tuple[str, ...]], list[int]] = {}
    filter_node, columns = plugin.filter, table.columns
    for position, row in zip(positions.tolist(), table.rows[positions].tolist(), strict=True):
        result = filter_node(cycle, NodeInfo(columns, row))
        if result is None:
            continue
        if not isinstance(result, Status) or not isinstance(result.code, Code):
            raise invalid_status_error(result, plugin.name, FILTER)
        code = result.code
        if code is Code.SUCCESS:
            continue
        where = rejected_positions.get((code, result.reasons))
        if where is None:
            rejected_positions[code, result.reasons] = [position]
        else:
            where.append(position)
    return rejected_positions


def table_rejections(plugin: Any, cycle: Cycle, table: NodeTable) -> list[Rejection]:
    result = plugin.filter_nodes(cycle, table)
    if not isinstance(result, Iterable) or isinstance(result, np.ndarray):
        raise PluginFault(plugin.name, FILTER.key, f"filter_nodes yields Rejections; got {_type_text(result)}")
    rejections = list(result)
    for rejection in rejections:
        if not isinstance(rejection, Rejection):
            raise PluginFault(plugin.name, FILTER.key, f"yielded {rejection!r}, which is not a Rejection")
        mask = rejection.mask
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (len(table),):
            raise PluginFault(
                plugin.name,
                FILTER.key,
                f"a mask of {len(table)} booleans is needed, one for each node; got {_type_text(mask)}",
            )
        if rejection.status_code not in _ACCEPTED_FROM_FILTER and rejection.status_code is not Code.ERROR:
            raise PluginFault(plugin.name, FILTER.key, f"{rejection.status_code!r} cannot reject a node")
    return rejections


def _type_text(result: object) -> str:
    if isinstance(result, np.ndarray):
        return f"shape {result.shape} of {result.dtype}"
    return "None" if result is None else type(result).__name__


def _reject(results: FilterResults, plugin: str, mask: BoolVector, text: str, code: Code) -> None:
    """Add one reason of one plugin. A row's code is the gravest of its reasons."""
    if not mask.any():
        return
    if code is Code.ERROR:
        text = f'running "{plugin}" filter plugin: {text}'
    before = results.codes[mask]
    results.codes[mask] = np.where((before == Code.SUCCESS) | (code in (Code.UNRESOLVABLE, Code.ERROR)), code, before)
    mask_before = results.plugins.get(plugin)
    results.plugins[plugin] = mask if mask_before is None else mask_before | mask
    results.reasons.append(FilterReasonRows(plugin, text, mask))
