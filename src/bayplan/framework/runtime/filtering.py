"""Answers one question: which node rows may run this pod, and why not the others?

Asked once an attempt by the scheduling cycle, and about forks of one row by preemption. Filters are asked in the
profile's order; a row keeps the reasons of the first plugin that rejects it. Cost: one pass over the columns a
plugin; no Python loop over nodes except for plugins that only have the one-node form, on the rows that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import (
    NOT_EVALUATED,
    Diagnosis,
    FilterReasonRows,
    FilterResults,
)
from bayplan.framework.api.extension_points import (
    ADD_POD,
    FILTER,
    PRE_FILTER,
    REMOVE_POD,
)
from bayplan.framework.api.handle import PodNominator
from bayplan.framework.api.plugin import PreFilterResult, Rejection
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import (
    SUCCESS,
    Code,
    Status,
    error,
    unresolvable,
)
from bayplan.framework.runtime.plugin_call import PluginCaller, invalid_status_error, status_text, to_status
from bayplan.snapshot import BoolVector, NodeColumns, NodeInfo, NodeTable, PodInfo, RowVector

_ACCEPTED_FROM_FILTER = frozenset({Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.PENDING})


@dataclass(slots=True)
class PreFilterSummary:
    """What PreFilter decided. `names`: the only nodes worth looking at (None: all); `narrowed_by`: who said so."""

    status: Status = SUCCESS
    names: frozenset[str] | None = None
    narrowed_by: set[str] = field(default_factory=set)


class FilterPoints:
    """PreFilter and Filter of one profile."""

    def __init__(
        self, pre_filters: Sequence[Any], filters: Sequence[Any], boundary: PluginCaller, nominations: PodNominator
    ) -> None:
        self._pre_filters = tuple(pre_filters)
        self._filters = tuple(filters)
        self._extensions = tuple(plugin for plugin in pre_filters if hasattr(plugin, "add_pod"))
        self._boundary = boundary
        self._nominations = nominations

    @property
    def per_node_plugins(self) -> tuple[str, ...]:
        """Plugins that have to be asked about each node on its own, which is not cheap."""
        return tuple(plugin.name for plugin in self._filters if not hasattr(plugin, "filter_nodes"))

    @property
    def has_nominations(self) -> bool:
        return bool(self._nominations.nodes())

    # PreFilter --------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: Cycle) -> PreFilterSummary:
        """Ask every PreFilter. An unresolvable answer ends it at once, an unschedulable one only at the end."""
        start_s = self._boundary.now_s()
        outcome = self._run_pre_filter(cycle)
        took_s = self._boundary.now_s() - start_s
        self._boundary.points.observe(PRE_FILTER.metric_label, took_s, outcome.status.code.label)
        return outcome

    def _run_pre_filter(self, cycle: Cycle) -> PreFilterSummary:
        outcome = PreFilterSummary()
        count = self._boundary.points.count
        known, cycle.pre_filter_answers = cycle.pre_filter_answers or {}, None
        for plugin in self._pre_filters:
            answer = known.get(plugin.name) or self._call_pre_filter(plugin, cycle)
            if isinstance(answer, PreFilterResult) or answer.code is not Code.SKIP:
                count(plugin.name, PRE_FILTER.metric_label)
            if isinstance(answer, PreFilterResult):
                if self._restrict_nodes(outcome, plugin.name, answer.node_names):
                    return outcome
                continue
            if answer.code is Code.SKIP:
                cycle.skip_filter.add(plugin.name)
            elif answer.code is Code.UNRESOLVABLE:
                return PreFilterSummary(answer)  # whoever narrowed the nodes before has no part in this rejection
            elif answer.code is Code.UNSCHEDULABLE:
                outcome.status = answer
            elif not answer.ok:
                outcome.status = error(f'running PreFilter plugin "{plugin.name}": {status_text(answer)}').by(
                    plugin.name
                )
                return outcome
        return outcome

    def _call_pre_filter(self, plugin: Any, cycle: Cycle) -> PreFilterResult | Status:
        try:
            if cycle.plugin_error is not None:
                cycle.plugin_error.raise_if_same_call(plugin, PRE_FILTER)
            return self._boundary.call(plugin, PRE_FILTER, call_pre_filter, plugin, cycle)
        except PluginFault as fault:
            return error(fault.text).by(plugin.name)

    @staticmethod
    def _restrict_nodes(outcome: PreFilterSummary, plugin: str, names: frozenset[str]) -> bool:
        """Intersect; true when nothing is left and the pod is rejected."""
        outcome.narrowed_by.add(plugin)
        outcome.names = names if outcome.names is None else outcome.names & names
        if outcome.names:
            return False
        who = sorted(outcome.narrowed_by)
        text = (
            f"node(s) didn't satisfy plugin {who[0]}"
            if len(who) == 1
            else f"node(s) didn't satisfy plugin(s) [{' '.join(who)}] simultaneously"
        )
        outcome.status = unresolvable(text)
        return True

    # Filter -----------------------------------------------------------------------------------------------------

    def run_filters(self, cycle: Cycle, outcome: PreFilterSummary, *, only: RowVector | None = None) -> Diagnosis:
        """The status of every candidate row. `only` limits the look to some rows (a nominated node)."""
        snapshot = cycle.snapshot
        diagnosis = Diagnosis(snapshot.nodes.names)
        if cycle.allowed_rows is not None:
            diagnosis.within = np.zeros(diagnosis.node_count, dtype=np.bool_)
            diagnosis.within[cycle.allowed_rows] = True
        if outcome.status.rejected:
            diagnosis.absent = outcome.status
            diagnosis.pre_filter_message = outcome.status.message
            diagnosis.record(outcome.status)
            diagnosis.unschedulable_plugins |= outcome.narrowed_by
            return diagnosis
        rows = self.candidates(snapshot.table, outcome)
        if rows is not None:
            who = " ".join(sorted(outcome.narrowed_by))
            diagnosis.absent = unresolvable(f"node(s) didn't satisfy plugin(s) [{who}]")
            diagnosis.unschedulable_plugins |= outcome.narrowed_by
        if only is not None:
            rows = only if rows is None else np.intersect1d(only, rows)
        table = NodeTable(snapshot.nodes, rows)
        self._keep(diagnosis, table, self.filter_table(cycle, table))
        self._filter_with_nominated_pods(cycle, diagnosis)
        diagnosis.record_rejectors()
        return diagnosis

    @staticmethod
    def candidates(table: NodeTable, outcome: PreFilterSummary) -> RowVector | None:
        """The rows that PreFilter has left; None where these are all."""
        return None if outcome.names is None else np.flatnonzero(table.where_named(outcome.names))

    @staticmethod
    def _keep(diagnosis: Diagnosis, table: NodeTable, verdicts: FilterResults) -> None:
        """Verdicts over a table become verdicts over all rows."""
        if table.is_whole:
            diagnosis.verdicts = verdicts
        else:
            whole = FilterResults(np.full(diagnosis.node_count, NOT_EVALUATED, dtype=np.int8))
            whole.codes[table.rows] = verdicts.codes

            def widened(mask: BoolVector) -> BoolVector:
                wide = np.zeros(diagnosis.node_count, dtype=np.bool_)
                wide[table.rows] = mask
                return wide

            whole.reasons = [
                FilterReasonRows(reason.plugin, reason.text, widened(reason.mask)) for reason in verdicts.reasons
            ]
            whole.plugins = {plugin: widened(mask) for plugin, mask in verdicts.plugins.items()}
            diagnosis.verdicts = whole

    def filter_table(self, cycle: Cycle, table: NodeTable) -> FilterResults:
        """What the filters say of each entry, nominated pods left aside."""
        verdicts = FilterResults.empty(len(table))
        alive = np.ones(len(table), dtype=np.bool_)
        for plugin in self._filters:
            if plugin.name in cycle.skip_filter:
                continue
            self._boundary.points.count(plugin.name, FILTER.metric_label, len(table))
            if not self._apply(plugin, cycle, table, alive, verdicts):
                break
        return verdicts

    def _apply(self, plugin: Any, cycle: Cycle, table: NodeTable, alive: BoolVector, verdicts: FilterResults) -> bool:
        """Let one plugin reject rows that are still alive; false when no row is left."""
        try:
            if cycle.plugin_error is not None:
                walks = getattr(plugin, "per_row", False) or not hasattr(plugin, "filter_nodes")
                cycle.plugin_error.raise_if_same_call(plugin, FILTER, table.rows[alive] if walks else table.rows)
            if not hasattr(plugin, "filter_nodes"):
                self._apply_one_by_one(plugin, cycle, table, alive, verdicts)
            elif getattr(plugin, "per_row", False) and not alive.all():
                left = np.flatnonzero(alive)
                narrowed = table.restricted_to(alive)
                for rejection in self._boundary.call(plugin, FILTER, table_rejections, plugin, cycle, narrowed):
                    mask = np.zeros(len(table), dtype=np.bool_)
                    mask[left[rejection.mask]] = True
                    _reject(verdicts, plugin.name, mask, rejection.reason, rejection.status_code)
            else:
                for rejection in self._boundary.call(plugin, FILTER, table_rejections, plugin, cycle, table):
                    mask = rejection.mask & alive
                    _reject(verdicts, plugin.name, mask, rejection.reason, rejection.status_code)
        except PluginFault as fault:
            _reject(verdicts, plugin.name, alive.copy(), fault.text, Code.ERROR)
        rejected = verdicts.plugins.get(plugin.name)
        if rejected is not None:
            alive &= ~rejected
        return bool(alive.any())

    def _apply_one_by_one(
        self, plugin: Any, cycle: Cycle, table: NodeTable, alive: BoolVector, verdicts: FilterResults
    ) -> None:
        left = np.flatnonzero(alive)
        for (code, reasons), rows in self._boundary.call(
            plugin, FILTER, filter_one_by_one, plugin, cycle, table, left
        ).items():
            mask = np.zeros(len(table), dtype=np.bool_)
            mask[rows] = True
            if code in _ACCEPTED_FROM_FILTER:
                for text in reasons or ("",):
                    _reject(verdicts, plugin.name, mask, text, code)
            else:
                text = ", ".join(reasons) or f"answered {code.label}, which is no answer to filter"
                _reject(verdicts, plugin.name, mask, text, Code.ERROR)

    # nominated pods and forks -----------------------------------------------------------------------------------

    def _filter_with_nominated_pods(self, cycle: Cycle, diagnosis: Diagnosis) -> None:
        """Rows that other pods are waiting for must fit with those pods there as well as without."""
        nodes, nominated = cycle.snapshot.nodes, self._nominations.nodes()
        if not nominated:
            return
        looked_at = diagnosis.verdicts.codes != NOT_EVALUATED
        if np.count_nonzero(looked_at) < len(nominated):  # as for a pod that has a node kept for it: one row
            rows = [row for row in np.flatnonzero(looked_at).tolist() if nodes.names[row] in nominated]
        else:
            rows = [row for name in nominated if (row := nodes.index.get(name)) is not None and looked_at[row]]
        awaited = {row: guests for row in rows if (guests := self._nominated_pods(cycle, nodes.names[row]))}
        if not awaited:
            return
        for row, status in zip(awaited, self._fork_with_nominated_pods(cycle, awaited), strict=True):
            if not status.ok:
                diagnosis.override(row, status)

    def _fork_with_nominated_pods(self, cycle: Cycle, awaited: Mapping[int, Sequence[PodInfo]]) -> list[Status]:
        """What the filters say of rows with the pods that they are kept for: of all at once where that is allowed.

        One that breaks does not say on which row, so then each is asked about alone.
        """
        nodes = cycle.snapshot.nodes
        if len(awaited) > 1 and self.is_row_local(cycle):
            fork = nodes.fork(list(awaited))
            for position, guests in enumerate(awaited.values()):
                for guest in guests:
                    fork.add_pod(position, guest)
            verdicts = self.filter_table(cycle.clone(), NodeTable(fork))
            if not (verdicts.codes == Code.ERROR).any():
                return verdicts.statuses()
        return [self._add_nominated_pods(cycle, nodes.fork([row]), guests) for row, guests in awaited.items()]

    def filter_fork(self, cycle: Cycle, fork: NodeColumns) -> Status:
        """What the filters say of a fork of one row, with and without the pods nominated to it."""
        guests = self._nominated_pods(cycle, fork.names[0])
        if guests:
            status = self._add_nominated_pods(cycle, fork.fork([0]), guests)
            if not status.ok:
                return status
        return self.filter_table(cycle, NodeTable(fork)).status(0)

    def is_row_local(self, cycle: Cycle) -> bool:
        """Whether a pod that is tried on a row matters there alone: nobody has to be told, nobody counts elsewhere."""
        return all(plugin.name in cycle.skip_filter for plugin in self._extensions)

    def nominated_pods_by_node(self, cycle: Cycle) -> dict[str, list[PodInfo]]:
        """Nodes that are judged with other pods nominated to them, and these pods."""
        return {name: guests for name in self._nominations.nodes() if (guests := self._nominated_pods(cycle, name))}

    def add_pod(self, cycle: Cycle, fork: NodeColumns, info: PodInfo) -> Status:
        """Put a pod on the fork's row and tell the plugins."""
        fork.add_pod(0, info)
        return self._call_pod_extension(cycle, "add_pod", info, NodeInfo(fork, 0))

    def remove_pod(self, cycle: Cycle, fork: NodeColumns, info: PodInfo) -> Status:
        """Take a pod off the fork's row and tell the plugins."""
        fork.remove_pod(0, info)
        return self._call_pod_extension(cycle, "remove_pod", info, NodeInfo(fork, 0))

    def _nominated_pods(self, cycle: Cycle, node_name: str) -> list[PodInfo]:
        me = cycle.info
        return [
            guest
            for guest in self._nominations.on_node(node_name)
            if guest.priority >= me.priority and guest.uid != me.uid
        ]

    def _add_nominated_pods(self, cycle: Cycle, fork: NodeColumns, guests: Sequence[PodInfo]) -> Status:
        trial = cycle.clone()
        for guest in guests:
            status = self.add_pod(trial, fork, guest)
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
                status = self._boundary.call_for_status(plugin, point, call, cycle, info, node)
            except PluginFault as fault:
                status = error(fault.text).by(plugin.name)
            if not status.ok:
                what = "AddPod" if method == "add_pod" else "RemovePod"
                return error(f'running {what} on PreFilter plugin "{plugin.name}": {status.message}').by(plugin.name)
        return SUCCESS


def call_pre_filter(plugin: Any, cycle: Cycle) -> PreFilterResult | Status:
    answer = plugin.pre_filter(cycle)
    return answer if isinstance(answer, PreFilterResult) else to_status(answer, plugin.name, PRE_FILTER)


def filter_one_by_one(
    plugin: Any, cycle: Cycle, table: NodeTable, positions: RowVector
) -> dict[tuple[Code, tuple[str, ...]], list[int]]:
    """Whom a plugin that answers for one node refuses, by what it says: few answers are about many nodes."""
    found: dict[tuple[Code, tuple[str, ...]], list[int]] = {}
    ask, columns = plugin.filter, table.columns
    for position, row in zip(positions.tolist(), table.rows[positions].tolist(), strict=True):
        answer = ask(cycle, NodeInfo(columns, row))
        if answer is None:
            continue
        if not isinstance(answer, Status) or not isinstance(answer.code, Code):
            raise invalid_status_error(answer, plugin.name, FILTER)
        code = answer.code
        if code is Code.SUCCESS:
            continue
        where = found.get((code, answer.reasons))
        if where is None:
            found[code, answer.reasons] = [position]
        else:
            where.append(position)
    return found


def table_rejections(plugin: Any, cycle: Cycle, table: NodeTable) -> list[Rejection]:
    """The rejections of one plugin, checked."""
    answer = plugin.filter_nodes(cycle, table)
    if not isinstance(answer, Iterable) or isinstance(answer, np.ndarray):
        raise PluginFault(plugin.name, FILTER.key, f"filter_nodes yields Rejections; got {_type_text(answer)}")
    rejections = list(answer)
    for rejection in rejections:
        if not isinstance(rejection, Rejection):
            raise PluginFault(plugin.name, FILTER.key, f"yielded {rejection!r}, which is no Rejection")
        mask = rejection.mask
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (len(table),):
            raise PluginFault(
                plugin.name,
                FILTER.key,
                f"a mask of {len(table)} booleans is needed, one a node; got {_type_text(mask)}",
            )
        if rejection.status_code not in _ACCEPTED_FROM_FILTER and rejection.status_code is not Code.ERROR:
            raise PluginFault(plugin.name, FILTER.key, f"{rejection.status_code!r} is no way to reject a node")
    return rejections


def _type_text(answer: object) -> str:
    """What an answer is that should have been something else."""
    if isinstance(answer, np.ndarray):
        return f"shape {answer.shape} of {answer.dtype}"
    return "None" if answer is None else type(answer).__name__


def _reject(verdicts: FilterResults, plugin: str, mask: BoolVector, text: str, code: Code) -> None:
    """Add one reason of one plugin; a row's code is the gravest of its reasons."""
    if not mask.any():
        return
    if code is Code.ERROR:
        text = f'running "{plugin}" filter plugin: {text}'
    before = verdicts.codes[mask]
    verdicts.codes[mask] = np.where((before == Code.SUCCESS) | (code in (Code.UNRESOLVABLE, Code.ERROR)), code, before)
    whole = verdicts.plugins.get(plugin)
    verdicts.plugins[plugin] = mask if whole is None else whole | mask
    verdicts.reasons.append(FilterReasonRows(plugin, text, mask))
