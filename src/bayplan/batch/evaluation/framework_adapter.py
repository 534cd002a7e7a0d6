"""The pod engine's plugins as predicates and node scores of a session.

`FrameworkFilters` asks PreFilter and Filter plugins for one class of tasks and keeps the answers up to date;
`FrameworkScores` does the same for PreScore, Score and normalising. Both read the session's snapshot. A filter is asked
about all rows once; after that only about rows that changed, and in full when what it depends on elsewhere has changed.

A plugin that raises or answers nonsense is named, and has no opinion on what it was asked about.

Volcano goes on after a plain "unschedulable" and collects, and ends a node's list at the first graver answer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.batch.evaluation.node_points import FaultRecorder, check_rejection
from bayplan.batch.evaluation.rejected_rows import combination_numbers
from bayplan.batch.evaluation.score_columns import ScoreColumn, ScoreError
from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.fit_errors import POD_NUMBER_EXCEEDED, UNRESOLVABLE_CODES
from bayplan.batch.model.nodes import FloatVector
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import (
    FILTER,
    PRE_FILTER,
    PRE_SCORE,
    SCORE,
)
from bayplan.framework.api.plugin import PreFilterResult, amounts_local, row_local
from bayplan.framework.api.status import (
    SKIP,
    Code,
    Status,
    error,
    unschedulable,
)
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS, to_status
from bayplan.objects.core import ReplicationController, Service
from bayplan.objects.workloads import ReplicaSet, StatefulSet
from bayplan.snapshot import BoolVector, IntVector, NodeTable, Snapshot

AFFINITY, SPREAD = "InterPodAffinity", "PodTopologySpread"
_TOO_MANY_PODS = unschedulable(POD_NUMBER_EXCEEDED)
_UNRESOLVABLE_CODES = np.array([code in UNRESOLVABLE_CODES for code in Code], dtype=np.bool_)
_SELECTOR_KINDS = (Service, ReplicationController, ReplicaSet, StatefulSet)


def cached_plugin(handle: BatchHandle, owner: str, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """A plugin of the framework with arguments as its configuration would have them; kept between sessions."""
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
    """Let InterPodAffinity hear the terms of pods only on rows where somebody has such terms when the session opens.

    Volcano lists those nodes once a session; elsewhere it does not hear what pods want that are placed meanwhile.
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
    """Which tasks the framework's plugins treat alike, in one session.

    What a pod's labels mean to affinity and spread is left out where nobody in sight has terms or constraints: pods of
    one gang differ in labels, and would share nothing.
    """

    def __init__(self, session: Session, plugins: Iterable[Any]) -> None:
        self._session = session
        self._plugins = list({id(plugin): plugin for plugin in plugins}.values())
        self._labels_matter: bool | None = None
        self._known: dict[Hashable, int | None] = {}
        self._numbers: dict[Hashable, int] = {}  # signatures are long; numbers compare and hash at once

    def signature(self, task: Task) -> int | None:
        key: Hashable = task.template or self._session.templates.template_number(task)
        if self._labels_matter is not False and self.uses_labels:
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
        if self._labels_matter is None:
            self._labels_matter = self._any_affinity_or_spread()
        return self._labels_matter

    def _any_affinity_or_spread(self) -> bool:
        session = self._session
        if session.snapshot.pods.affinity_users or any(session.catalog.table(kind) for kind in _SELECTOR_KINDS):
            return True
        return any(
            task.info.affinity is not None or task.pod.spec.topology_spread_constraints
            for task in session.waiting_templates.values()
        )


class FilterColumn:
    """One filter's own answer on every row, for one class of tasks."""

    __slots__ = ("_blame", "active", "codes", "dependency_value", "looks_at_pods", "plugin", "reasons")

    def __init__(self, plugin: Any, count: int, blame: FaultRecorder) -> None:
        self.plugin = plugin
        self._blame = blame
        self.active = False
        self.looks_at_pods = bool(getattr(plugin, "looks_at_pods", True))
        self.codes: npt.NDArray[np.int8] = np.zeros(count, dtype=np.int8)
        self.reasons: dict[str, BoolVector] = {}  # in the order the filter gives them
        self.dependency_value: Hashable = None

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
            self._blame(self.plugin.name, fault)
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
        self._pre_filters = {plugin.name: plugin for plugin in pre_filters}
        self._columns = [FilterColumn(plugin, count, session.fault_recorder(FILTER.key)) for plugin in filters]
        self._watching = [plugin for plugin in pre_filters if not _is_row_local(plugin)]
        self._stamps: dict[str, Hashable] = {}
        self._ran = False
        self._full_evaluation = False  # some filter was asked about all rows since the last refresh
        self._refused: Status | None = None
        self._full: BoolVector = np.zeros(count, dtype=np.bool_)
        self.rejected: BoolVector = np.zeros(count, dtype=np.bool_)
        self.unresolvable: BoolVector = np.zeros(count, dtype=np.bool_)
        self._evaluated = False

    # PreFilter --------------------------------------------------------------------------------------------------

    def pre_filter(self) -> Status | None:
        """What PreFilter says of the task at this moment; asked again only where it may have changed."""
        moved = set(self._pre_filters)
        if self._ran:
            stamps = self._stamps
            found = [plugin.name for plugin in self._watching if self._stamp(plugin) != stamps[plugin.name]]
            if not found:
                return self._refused
            if self._refused is None:
                moved = set(found)
        self._refused = None
        self._ran = True
        for name, plugin in self._pre_filters.items():
            if name not in moved:
                continue
            status = self._run_pre_filter(plugin)
            self._stamps[name] = self._stamp(plugin)
            if status.code is Code.SKIP:
                self.cycle.skip_filter.add(name)
            elif status.ok:
                self.cycle.skip_filter.discard(name)
            else:
                self._refused = error(f"plugin {name} pre-predicates failed {status.message}")
                self._ran = False  # those behind it were not asked
                return self._refused
            self._evaluate(name)
        return None

    def _run_pre_filter(self, plugin: Any) -> Status:
        """Who breaks is passed over: its Filter would miss what PreFilter leaves for it."""
        try:
            if is_not_applicable(plugin, self.cycle):
                return SKIP
            answer = plugin.pre_filter(self.cycle)
            if isinstance(answer, PreFilterResult):  # its Filter says the same again, node by node
                return to_status(None, plugin.name, PRE_FILTER)
            return to_status(answer, plugin.name, PRE_FILTER)
        except PLUGIN_EXCEPTIONS as fault:
            self._session.record_plugin_fault(plugin.name, fault, PRE_FILTER.key)
            return SKIP

    def _stamp(self, plugin: Any) -> Hashable:
        depends = getattr(plugin, "depends_on", None)
        if depends is None:
            return object()
        try:
            stamp: Hashable = depends(self.cycle)
        except PLUGIN_EXCEPTIONS as fault:
            self._session.record_plugin_fault(plugin.name, fault, "depends_on")
            return object()
        return stamp

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
        """Ask a filter about all rows."""
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
        room, pod_count = self._session.nodes.accounts, self._snapshot.nodes.pod_count
        if rows is None:
            count = room.count
            self._full = room.max_tasks <= pod_count[:count]
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
            self._full[row] = full = room.max_tasks.item(row) <= pod_count.item(row)
            self.rejected[row] = full or bool(codes)
            self.unresolvable[row] = bool(codes) and any(_UNRESOLVABLE_CODES[code] for code in codes)

    def keys(self) -> IntVector:
        """Equal for rows that answer alike."""
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
    """PreScore, Score and normalising of the framework's plugins for one class of tasks: a `RowScores`."""

    def __init__(self, session: Session, task: Task, plugins: Sequence[tuple[Any, int]]) -> None:
        self._snapshot = session.snapshot
        self._blame = session.fault_recorder(SCORE.key)
        self._cycle = Cycle(task.info, self._snapshot)
        self._parts = [(number, ScoreColumn(plugin, weight)) for number, (plugin, weight) in enumerate(plugins)]
        self._live = self._parts  # those that score, or may begin to
        self._active: list[ScoreColumn] = []
        self._out: set[int] = set()  # those that have nothing to say of the pod
        self._compares = True
        self._stamps: dict[int, Hashable] = {}
        self._candidates: BoolVector | None = None
        self._watching = [not _is_row_local(plugin) for plugin, _ in plugins]
        self.values: FloatVector = np.zeros(session.nodes.accounts.count)
        self.failed: BoolVector | None = None

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> bool | Status:  # noqa: ARG002
        anew = self._candidates is None or touched is None
        same = not anew and (not self._compares or bool((candidates == self._candidates).all()))
        try:
            for number, part in self._parts if anew else self._live:
                anew |= self._refresh_column_safely(number, part, candidates, touched, same=same)
        except ScoreError as fault:
            self._candidates = None
            return error(str(fault) or "a score is out of range")
        if anew or not same:
            self._update_active()
        if anew or not same or not self._compares:
            self._candidates = candidates.copy()
        if anew or touched is None:
            self.values = np.zeros(len(candidates))
            for part in self._active:
                self.values += part.weighted
            return True
        for row in touched:
            self.values[row] = sum([part.weighted.item(row) for part in self._active])
        return False

    def _update_active(self) -> None:
        """Whom to ask from now on, and whether the candidates matter to any of them."""
        self._live = [(number, part) for number, part in self._parts if part.active or self._watching[number]]
        self._active = [part for _, part in self._live if part.active]
        self._compares = any(
            part.compares_candidates or (part.active and part.normalizes)
            for number, part in self._live
            if number not in self._out
        )

    def _refresh_column_safely(
        self, number: int, part: ScoreColumn, candidates: BoolVector, touched: Sequence[int] | None, *, same: bool
    ) -> bool:
        """The same for plugins that may break: such a one gives nothing until it is asked in full again."""
        try:
            return self._refresh_column(number, part, candidates, touched, same=same)
        except ScoreError:
            raise
        except PLUGIN_EXCEPTIONS as fault:
            self._blame(part.plugin.name, fault)
            part.active = False
            self._out.add(number)
            self._stamps[number] = None
            return True

    def _refresh_column(
        self,
        number: int,
        part: ScoreColumn,
        candidates: BoolVector,
        touched: Sequence[int] | None,
        *,
        same: bool,
    ) -> bool:
        """Bring one plugin's scores up to date; true when more than the touched rows may have changed."""
        moved = number not in self._stamps or (self._watching[number] and self._stamp(part) != self._stamps[number])
        rows = touched if part.looks_at_pods else ()
        if number in self._out and not moved and touched is not None:
            return False  # whoever the candidates are
        if moved or touched is None or (part.compares_candidates and (not same or rows)):
            self._evaluate(number, part, candidates)
            return True
        if not part.active:
            return False
        if part.normalizes:
            if rows:
                self._evaluate(number, part, candidates)
                return True
            if not same:
                part.normalize_and_weight(self._cycle, candidates)
                return True
            return False
        if rows:
            part.refresh(self._cycle, rows)
        return False

    def _evaluate(self, number: int, part: ScoreColumn, candidates: BoolVector) -> None:
        plugin = part.plugin
        table = self._snapshot.table.restricted_to(candidates)
        part.active = not is_not_applicable(plugin, self._cycle)
        (self._out.discard if part.active else self._out.add)(number)
        if part.active and hasattr(plugin, "pre_score"):
            status = to_status(plugin.pre_score(self._cycle, table), plugin.name, PRE_SCORE)
            if not status.ok and status.code is not Code.SKIP:
                raise ScoreError(status.message)
            part.active = status.ok
        if part.active:
            part.evaluate(self._cycle, candidates)
        self._stamps[number] = self._stamp(part)

    def _stamp(self, part: ScoreColumn) -> Hashable:
        """What its scores depend on, while it scores; else whether it begins to."""
        plugin = part.plugin
        depends = getattr(plugin, "depends_on", None)
        if depends is None:
            return object()
        scores = getattr(plugin, "scores_depend_on", None) if part.active else None
        return depends(self._cycle) if scores is None else (depends(self._cycle), scores(self._cycle))


def is_not_applicable(plugin: Any, cycle: Cycle) -> bool:
    """Whether a plugin says at once that it has nothing to say of the pod."""
    sits_out = getattr(plugin, "sits_out", None)
    return sits_out is not None and bool(sits_out(cycle))


def _is_row_local(plugin: Any) -> bool:
    return getattr(type(plugin), "depends_on", None) in (row_local, amounts_local)
