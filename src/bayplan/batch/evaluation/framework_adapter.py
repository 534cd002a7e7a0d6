"""Adapters that use kube-scheduler plugins as predicates and node scores of a session.

`FrameworkFilters` calls PreFilter and Filter plugins for one class of tasks and keeps the answers current.
`FrameworkScores` does the same for PreScore, Score and NormalizeScore. Both read the session's snapshot. A filter is
called for all rows once, then only for changed rows, and for all rows again when its other dependencies change.

A plugin that raises or returns an invalid answer is reported and ignored for that call.

Volcano collects plain "unschedulable" answers and stops at the first other rejection of a node.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.batch.evaluation.node_points import FaultRecorder, check_rejection
from bayplan.batch.evaluation.score_columns import ScoreColumn, ScoreError
from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.fit_errors import POD_NUMBER_EXCEEDED, UNRESOLVABLE_CODES
from bayplan.batch.model.nodes import FloatVector
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import combination_numbers
from bayplan.framework.api.extension_points import FILTER, PRE_FILTER, PRE_SCORE, SCORE
from bayplan.framework.api.plugin_traits import traits_of
from bayplan.framework.api.status import SKIP, SUCCESS, Code, Status, error, unschedulable
from bayplan.framework.runtime.filtering import call_pre_filter
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS, to_status
from bayplan.objects.core import ReplicationController, Service
from bayplan.objects.workloads import ReplicaSet, StatefulSet
from bayplan.snapshot import BoolVector, IntVector, NodeTable, Snapshot

AFFINITY, SPREAD = "InterPodAffinity", "PodTopologySpread"
_TOO_MANY_PODS = unschedulable(POD_NUMBER_EXCEEDED)
_UNRESOLVABLE_CODES = np.array([code in UNRESOLVABLE_CODES for code in Code], dtype=np.bool_)
_SELECTOR_KINDS = (Service, ReplicationController, ReplicaSet, StatefulSet)


def cached_plugin(handle: BatchHandle, owner: str, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """A framework plugin with defaulted arguments, kept between sessions."""
    key = f"{owner}/{name} {arguments}"
    return handle.keep(key, lambda: _build_plugin(handle, name, arguments))


def _build_plugin(handle: BatchHandle, name: str, arguments: Mapping[str, Any] | None) -> Any:
    entry = handle.framework_plugins.get(name)
    assert entry is not None, f"the framework ships {name}"
    if entry.args is None:
        return entry.build(None, handle)
    args = entry.args.apply_defaults(msgspec.convert(dict(arguments or {}), entry.args.struct))
    return entry.build(args, handle)


def limit_affinity_rows(affinity: Any, snapshot: Snapshot) -> None:
    """Limit InterPodAffinity's events to rows that have pods with such terms when the session opens.

    Volcano lists those nodes once per session. On other nodes it does not see the terms of pods placed meanwhile.
    """
    pods = snapshot.pods
    rows, terms = pods.rows[: pods.slots], pods.affinities[: pods.slots]
    affinity.affinity_events = np.zeros(len(snapshot), dtype=np.bool_)
    affinity.anti_affinity_events = np.zeros(len(snapshot), dtype=np.bool_)
    affinity.affinity_events[rows[terms >= 0]] = True
    for number, each in pods.affinity_terms():
        if each.required_anti:
            affinity.anti_affinity_events[rows[terms == number]] = True


class FrameworkSignatures:
    """Signatures of tasks that the framework's plugins treat alike, in one session.

    Labels are left out of affinity and spread signatures while no pod in the session has terms or constraints.
    Otherwise pods of one gang, which differ in labels, would share nothing.
    """

    def __init__(self, session: Session, plugins: Iterable[Any]) -> None:
        self._session = session
        self._plugins = list({id(plugin): plugin for plugin in plugins}.values())
        self._uses_labels: bool | None = None
        self._known: dict[Hashable, int | None] = {}
        # short numbers instead of long signatures, because they compare and hash fast
        self._numbers: dict[Hashable, int] = {}

    def signature(self, task: Task) -> int | None:
        key: Hashable = task.template or self._session.templates.template_number(task)
        if self._uses_labels is not False and self.uses_labels:
            meta = task.pod.metadata
            key = (key, meta.namespace, frozenset(meta.labels.items()), meta.controller)
        if key not in self._known:
            signed = self._compute_signature(task)
            number = None if signed is None else self._numbers.setdefault(signed, len(self._numbers))
            self._known[key] = number
        return self._known[key]

    def _compute_signature(self, task: Task) -> Hashable | None:
        parts: list[Hashable] = []
        for plugin in self._plugins:
            if plugin.name in (AFFINITY, SPREAD) and not self.uses_labels:
                continue
            signature = getattr(plugin, "signature", None)
            try:
                part = signature(task.pod) if signature is not None else None
                hash(part)
            except PLUGIN_EXCEPTIONS as fault:
                self._session.record_plugin_fault(plugin.name, fault, "signature")
                part = None
            if part is None:
                return None
            parts.append(part)
        return tuple(parts)

    @property
    def uses_labels(self) -> bool:
        if self._uses_labels is None:
            self._uses_labels = self._any_affinity_or_spread()
        return self._uses_labels

    def _any_affinity_or_spread(self) -> bool:
        session = self._session
        if session.snapshot.pods.affinity_users or any(session.catalog.table(kind) for kind in _SELECTOR_KINDS):
            return True
        return any(
            task.info.affinity is not None or task.pod.spec.topology_spread_constraints
            for task in session.waiting_templates.values()
        )


class FilterColumn:
    """The answers of one filter on all rows, for one class of tasks."""

    __slots__ = ("_record_fault", "active", "codes", "looks_at_pods", "plugin", "reasons")

    def __init__(self, plugin: Any, count: int, record_fault: FaultRecorder) -> None:
        self.plugin = plugin
        self._record_fault = record_fault
        self.active = False
        self.looks_at_pods = traits_of(plugin).looks_at_pods
        self.codes: npt.NDArray[np.int8] = np.zeros(count, dtype=np.int8)
        self.reasons: dict[str, BoolVector] = {}  # in the order of the filter

    def evaluate(self, cycle: Cycle) -> None:
        self.codes[:] = 0
        self.reasons = {}
        if self.active:
            self._call_plugin(cycle, cycle.snapshot.table)

    def refresh(self, cycle: Cycle, rows: Sequence[int]) -> None:
        where = np.array(rows, dtype=np.intp)
        if self.codes[where].any():
            self.codes[where] = 0
            for mask in self.reasons.values():
                mask[where] = False
        self._call_plugin(cycle, NodeTable(cycle.snapshot.nodes, where))

    def _call_plugin(self, cycle: Cycle, table: NodeTable) -> None:
        try:
            self._record_rejections(cycle, table)
        except PLUGIN_EXCEPTIONS as fault:
            self._record_fault(self.plugin.name, fault)
            self.codes[table.rows] = 0
            for mask in self.reasons.values():
                mask[table.rows] = False

    def _record_rejections(self, cycle: Cycle, table: NodeTable) -> None:
        rows = table.rows
        for rejection in self.plugin.filter_nodes(cycle, table):
            check_rejection(rejection, len(rows))
            if not rejection.mask.any():
                continue
            code = rejection.status_code
            hit = rows[rejection.mask]
            if code in UNRESOLVABLE_CODES:
                self.codes[hit] = code
            else:
                before = self.codes[hit]
                self.codes[hit] = np.where(before == 0, code, before)
            mask = self.reasons.get(rejection.reason)
            if mask is None:
                mask = self.reasons[rejection.reason] = np.zeros(len(self.codes), dtype=np.bool_)
            mask[hit] = True

    def status(self, row: int) -> Status:
        return Status(Code(int(self.codes[row])), tuple(text for text, mask in self.reasons.items() if mask[row]))


class FrameworkFilters:
    """PreFilter and Filter of the framework's plugins for one class of tasks: a `RowPredicateResults`."""

    def __init__(self, session: Session, task: Task, pre_filters: Sequence[Any], filters: Sequence[Any]) -> None:
        self._session = session
        self._snapshot: Snapshot = session.snapshot
        count = session.nodes.accounts.count
        self.cycle = Cycle(task.info, self._snapshot)
        self._pre_filters = {plugin.name: (plugin, traits_of(plugin)) for plugin in pre_filters}
        self._columns = [FilterColumn(plugin, count, session.fault_recorder(FILTER.key)) for plugin in filters]
        self._watching = [name for name, (_, traits) in self._pre_filters.items() if not traits.is_row_local]
        self._dependency_values: dict[str, Hashable] = {}
        self._ran = False
        self._full_evaluation = False  # a filter was called for all rows since the last refresh
        self._refused: Status | None = None
        self._full: BoolVector = np.zeros(count, dtype=np.bool_)
        self.rejected: BoolVector = np.zeros(count, dtype=np.bool_)
        self.unresolvable: BoolVector = np.zeros(count, dtype=np.bool_)
        self._evaluated = False

    # PreFilter --------------------------------------------------------------------------------------------------

    def pre_filter(self) -> Status | None:
        """Run PreFilter. Plugins are called again only when their dependencies may have changed."""
        stale = set(self._pre_filters)
        if self._ran:
            dependency_values = self._dependency_values
            found = [name for name in self._watching if self._dependency_value(name) != dependency_values[name]]
            if not found:
                return self._refused
            if self._refused is None:
                stale = set(found)
        self._refused = None
        self._ran = True
        for name, (plugin, _) in self._pre_filters.items():
            if name not in stale:
                continue
            status = self._run_pre_filter(plugin)
            self._dependency_values[name] = self._dependency_value(name)
            if status.code is Code.SKIP:
                self.cycle.skip_filter.add(name)
            elif status.ok:
                self.cycle.skip_filter.discard(name)
            else:
                self._refused = error(f"plugin {name} pre-predicates failed {status.message}")
                self._ran = False  # the plugins after it were not called
                return self._refused
            self._evaluate(name)
        return None

    def _run_pre_filter(self, plugin: Any) -> Status:
        """Run PreFilter of one plugin. A failing plugin is skipped: its Filter would miss the PreFilter state."""
        try:
            if is_not_applicable(plugin, self.cycle):
                return SKIP
            result = call_pre_filter(plugin, self.cycle)
            return result if isinstance(result, Status) else SUCCESS  # the plugin's Filter rejects the same nodes
        except PLUGIN_EXCEPTIONS as fault:
            self._session.record_plugin_fault(plugin.name, fault, PRE_FILTER.key)
            return SKIP

    def _dependency_value(self, name: str) -> Hashable:
        plugin, traits = self._pre_filters[name]
        if traits.depends_on is None:
            return object()
        try:
            return traits.depends_on(plugin, self.cycle)
        except PLUGIN_EXCEPTIONS as fault:
            self._session.record_plugin_fault(name, fault, "depends_on")
            return object()

    # Filter -----------------------------------------------------------------------------------------------------

    def refresh(self, task: Task, touched: Sequence[int] | None) -> bool:  # noqa: ARG002
        self.pre_filter()
        if not self._evaluated or touched is None:
            self._evaluated = True
            for column in self._columns:
                self._evaluate(column.plugin.name)
            self._full_evaluation = False
            self._combine_columns(None)
            return True
        if self._full_evaluation:
            self._full_evaluation = False
            self._refresh_rows(touched)
            self._combine_columns(None)
            return True
        if touched:
            self._refresh_rows(touched)
            self._combine_columns(touched)
        return False

    def _evaluate(self, name: str) -> None:
        if not self._evaluated:
            return
        for column in self._columns:
            if column.plugin.name == name:
                column.active = name not in self.cycle.skip_filter
                column.evaluate(self.cycle)
                self._full_evaluation = True

    def _refresh_rows(self, touched: Sequence[int]) -> None:
        for column in self._columns:
            if column.active and column.looks_at_pods and touched:
                column.refresh(self.cycle, touched)

    def _combine_columns(self, rows: Sequence[int] | None) -> None:
        accounts, pod_count = self._session.nodes.accounts, self._snapshot.nodes.pod_count
        if rows is None:
            count = accounts.count
            self._full = accounts.max_tasks <= pod_count[:count]
            self.rejected = self._full.copy()
            self.unresolvable = np.zeros(count, dtype=np.bool_)
            for column in self._columns:
                if column.active and column.codes.any():
                    self.rejected |= column.codes != 0
                    self.unresolvable |= _UNRESOLVABLE_CODES[column.codes]
            return
        active = [column.codes for column in self._columns if column.active]
        for row in rows:
            codes = [code for column in active if (code := column.item(row))]
            self._full[row] = full = accounts.max_tasks.item(row) <= pod_count.item(row)
            self.rejected[row] = full or bool(codes)
            self.unresolvable[row] = bool(codes) and any(_UNRESOLVABLE_CODES[code] for code in codes)

    def keys(self) -> IntVector:
        """Equal for rows with equal answers."""
        masks = [self._full]
        for column in self._columns:
            if column.active:
                masks += column.reasons.values()
        return combination_numbers(masks, len(self.rejected))

    def statuses(self, row: int) -> tuple[Status, ...]:
        found: list[Status] = [_TOO_MANY_PODS] if self._full[row] else []
        for column in self._columns:
            if column.active and column.codes[row]:
                found.append(column.status(row))
                if found[-1].code in UNRESOLVABLE_CODES:
                    break
        return tuple(found)


class FrameworkScores:
    """PreScore, Score and NormalizeScore of the framework's plugins for one class of tasks: a `RowScores`."""

    def __init__(self, session: Session, task: Task, plugins: Sequence[tuple[Any, int]]) -> None:
        self._snapshot = session.snapshot
        self._record_fault = session.fault_recorder(SCORE.key)
        self._cycle = Cycle(task.info, self._snapshot)
        self._columns = [(number, ScoreColumn(plugin, weight)) for number, (plugin, weight) in enumerate(plugins)]
        self._live = self._columns  # columns that score, or may begin to
        self._active: list[ScoreColumn] = []
        self._not_applicable: set[int] = set()  # columns that are not applicable to the pod
        self._compares = True
        self._dependency_values: dict[int, Hashable] = {}
        self._candidates: BoolVector | None = None
        self._watching = [not column.traits.is_row_local for _, column in self._columns]
        self.values: FloatVector = np.zeros(session.nodes.accounts.count)
        self.failed: BoolVector | None = None

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> bool | Status:  # noqa: ARG002
        full = self._candidates is None or touched is None
        same = not full and (not self._compares or bool((candidates == self._candidates).all()))
        try:
            for number, column in self._columns if full else self._live:
                full |= self._refresh_column_safely(number, column, candidates, touched, same=same)
        except ScoreError as fault:
            self._candidates = None
            return error(str(fault) or "a score is out of range")
        if full or not same:
            self._update_active()
        if full or not same or not self._compares:
            self._candidates = candidates.copy()
        if full or touched is None:
            self.values = np.zeros(len(candidates))
            for column in self._active:
                self.values += column.weighted
            return True
        for row in touched:
            self.values[row] = sum([column.weighted.item(row) for column in self._active])
        return False

    def _update_active(self) -> None:
        """Update the columns to refresh, and whether any of them compares candidates."""
        self._live = [(number, column) for number, column in self._columns if column.active or self._watching[number]]
        self._active = [column for _, column in self._live if column.active]
        self._compares = any(
            column.traits.compares_candidates or (column.active and column.normalizes)
            for number, column in self._live
            if number not in self._not_applicable
        )

    def _refresh_column_safely(
        self, number: int, column: ScoreColumn, candidates: BoolVector, touched: Sequence[int] | None, *, same: bool
    ) -> bool:
        """Refresh one column. A failing plugin scores 0 until its next full evaluation."""
        try:
            return self._refresh_column(number, column, candidates, touched, same=same)
        except ScoreError:
            raise
        except PLUGIN_EXCEPTIONS as fault:
            self._record_fault(column.plugin.name, fault)
            column.active = False
            self._not_applicable.add(number)
            self._dependency_values[number] = None
            return True

    def _refresh_column(
        self, number: int, column: ScoreColumn, candidates: BoolVector, touched: Sequence[int] | None, *, same: bool
    ) -> bool:
        """Update one plugin's scores. True when more than the touched rows may have changed."""
        stale = number not in self._dependency_values or (
            self._watching[number] and self._dependency_value(column) != self._dependency_values[number]
        )
        rows = touched if column.traits.looks_at_pods else ()
        if number in self._not_applicable and not stale and touched is not None:
            return False  # whatever the candidates are
        if stale or touched is None or (column.traits.compares_candidates and (not same or rows)):
            self._evaluate(number, column, candidates)
            return True
        if not column.active:
            return False
        if column.normalizes:
            if rows:
                self._evaluate(number, column, candidates)
                return True
            if not same:
                column.normalize_and_weight(self._cycle, candidates)
                return True
            return False
        if rows:
            column.refresh(self._cycle, rows)
        return False

    def _evaluate(self, number: int, column: ScoreColumn, candidates: BoolVector) -> None:
        plugin = column.plugin
        table = self._snapshot.table.restricted_to(candidates)
        column.active = not is_not_applicable(plugin, self._cycle)
        (self._not_applicable.discard if column.active else self._not_applicable.add)(number)
        if column.active and hasattr(plugin, "pre_score"):
            status = to_status(plugin.pre_score(self._cycle, table), plugin.name, PRE_SCORE)
            if not status.ok and status.code is not Code.SKIP:
                raise ScoreError(status.message)
            column.active = status.ok
        if column.active:
            column.evaluate(self._cycle, candidates)
        self._dependency_values[number] = self._dependency_value(column)

    def _dependency_value(self, column: ScoreColumn) -> Hashable:
        """The dependencies of the scores, while the plugin scores; else those of its applicability."""
        plugin, traits = column.plugin, column.traits
        if traits.depends_on is None:
            return object()
        value = traits.depends_on(plugin, self._cycle)
        if traits.scores_depend_on is None or not column.active:
            return value
        return value, traits.scores_depend_on(plugin, self._cycle)


def is_not_applicable(plugin: Any, cycle: Cycle) -> bool:
    """Whether a plugin declares at once that it is not applicable to the pod."""
    not_applicable = traits_of(plugin).not_applicable
    return not_applicable is not None and not_applicable(plugin, cycle)
