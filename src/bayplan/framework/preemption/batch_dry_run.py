"""Dry run of preemption on many node rows at once: which victims would a pod need on each of them.

Used by the dry run if adding or removing a pod affects its own row only, which holds for most preemptors. All rows are
on one fork. All lower-priority pods are removed and all rows are filtered at once. Then the pods are reprieved in
rounds: round k adds the k-th most important pod of every row, and removes it again where the preemptor does not fit.
Each row gets the same steps in the same order as it would alone. Cost: a few column operations and one filter run for
each round.

Rows with nominated pods are first filtered with these pods added and all lower-priority pods removed. Most of them have
no space then. The few with space are tried separately, and so are all rows if a filter fails: the row of the error is
unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.handle import FilterRunner
from bayplan.framework.api.status import Code, Status, unresolvable
from bayplan.framework.preemption.go_sort import INSERTION_SORT_MAX, go_sort
from bayplan.framework.preemption.victims import NO_VICTIMS, CompiledBudget, Victims, more_important, no_victims_status
from bayplan.snapshot import BoolVector, IntVector, NodeTable, PodInfo, RowVector
from bayplan.snapshot.preemption_columns import NOT_STARTED, PreemptionColumns, to_microseconds

MAX_BATCH_ROWS = 8192
"""Maximum number of rows tried at once: positions fit into 16 bits, which sort fastest."""


class BatchDryRun:
    """Dry run of one preemptor on many rows."""

    def __init__(
        self,
        cycle: Cycle,
        filters: FilterRunner,
        budgets: Sequence[CompiledBudget],
        now: datetime,
        weights: PreemptionColumns,
    ) -> None:
        self.cycle = cycle
        self.filters = filters
        self.weights = weights
        self.order = _ImportanceSorter(weights, now)
        self.coverage = _BudgetCoverage(cycle, budgets)
        self.less = more_important(now)
        self._no_victims = unresolvable(NO_VICTIMS)
        self._nominated = filters.nominated_pods_by_node(cycle)
        weights.update(cycle.snapshot)

    def without_nominated_pods(self, rows: Sequence[int]) -> int:
        """Number of rows without nominated pods. The other rows rarely have space."""
        names, nominated_pods = self.cycle.snapshot.nodes.names, self._nominated
        return sum(names[row] not in nominated_pods for row in rows) if nominated_pods else len(rows)

    def run(self, rows: Sequence[int], enough: int) -> list[tuple[int, Victims | Status | None]]:
        """Return the victims or the status of each row; None for a row that must be tried separately.

        Ends early at the row that makes `enough` solved rows: only up to there pods are reprieved.
        """
        names = self.cycle.snapshot.nodes.names
        tried_at_once = [row for row in rows if names[row] not in self._nominated] if self._nominated else rows
        found: dict[int, Victims | Status | None] = dict.fromkeys(rows, self._no_victims)
        trial = self._trial(tried_at_once)
        if trial is not None:
            found |= trial.run(enough)
            if trial.ended_at is not None:
                rows = rows[: rows.index(trial.ended_at) + 1]
        trial = self._trial([row for row in rows if names[row] in self._nominated]) if self._nominated else None
        if trial is not None:
            found |= trial.reject_full_rows(self._nominated)
        return [(row, found[row]) for row in rows]

    def _trial(self, rows: Sequence[int]) -> _BatchTrial | None:
        """Remove all lower-priority pods from the rows that have any."""
        slots, at = self._lower_priority_pods(rows)
        if not len(slots):
            return None
        counts = np.bincount(at, minlength=len(rows))
        tried = [rows[position] for position in np.flatnonzero(counts).tolist()]
        return _BatchTrial(self, tried, slots, (np.cumsum(counts > 0) - 1)[at])

    def _lower_priority_pods(self, rows: Sequence[int]) -> tuple[RowVector, RowVector]:
        """Return the slots of all lower-priority pods on the rows, and the index of each pod's row in `rows`, in that
        order.
        """
        snapshot, weights = self.cycle.snapshot, self.weights
        place = np.full(max(len(snapshot), 1), -1, dtype=np.int16)
        place[list(rows)] = np.arange(len(rows), dtype=np.int16)
        slots = weights.on_rows(place)
        slots = slots[weights.priorities(slots) < self.cycle.info.priority]
        at = place[snapshot.pods.rows[slots]]
        order = np.argsort(at, kind="stable")
        return slots[order], at[order].astype(np.intp)


class _BatchTrial:
    """One fork with all rows, and the pods removed from and added to it."""

    def __init__(self, batch: BatchDryRun, rows: list[int], slots: RowVector, at: RowVector) -> None:
        self._batch = batch
        self._cycle = batch.cycle.clone()
        self._rows = rows
        self._fork = batch.cycle.snapshot.nodes.fork(rows, pods=_LazyPodLists(self, len(rows)))
        self._broken = np.zeros(len(rows), dtype=np.bool_)
        self._nominated_on: dict[int, list[PodInfo]] = {}
        self.ended_at: int | None = None
        # Entries: all lower-priority pods, row by row. Entries of one row are reordered once their importance is known.
        self._slots, self._at = slots, at
        self._starts = np.searchsorted(at, np.arange(len(rows) + 1))
        self._reprieved: BoolVector = np.zeros(len(slots), dtype=np.bool_)
        self._read_weights()
        self._remove_all_victims()

    def run(self, enough: int) -> dict[int, Victims | Status | None]:
        """Return the result of each row, or of the rows up to `ended_at`."""
        filter_results = self._batch.filters.filter_table(self._cycle, NodeTable(self._fork))
        self._broken |= filter_results.codes == Code.ERROR
        found: dict[int, Victims | Status | None] = dict(zip(self._rows, filter_results.statuses(), strict=True))
        solved = filter_results.feasible
        if solved.any():
            self._limit(solved, enough)
            violates = self._order_for_reprieve(solved)
            self._reprieve(solved)
            found |= self._victims(solved, violates)
        broken = (self._rows[position] for position in np.flatnonzero(self._broken).tolist())
        return found | dict.fromkeys(broken)

    def reject_full_rows(self, nominated_pods: Mapping[str, list[PodInfo]]) -> dict[int, Status | None]:
        """Return why rows have no space beside their nominated pods; None if they have, or if a filter failed."""
        for position, name in enumerate(self._fork.names):
            self._nominated_on[position] = nominated_pods[name]
            for nominated_pod in nominated_pods[name]:
                self._fork.count_pod(position, nominated_pod)
        statuses = self._batch.filters.filter_table(self._cycle, NodeTable(self._fork)).statuses()
        return {row: status if status.rejected else None for row, status in zip(self._rows, statuses, strict=True)}

    def _limit(self, solved: BoolVector, enough: int) -> None:
        """Keep only the first `enough` solved rows."""
        positions = np.flatnonzero(solved)
        if len(positions) > enough:
            solved[positions[enough:]] = False
            self.ended_at = self._rows[positions[enough - 1]]

    def pods_on(self, position: int) -> list[PodInfo]:
        """Return the current pods of a row, in the order that single removals and additions would give."""
        columns = self._batch.cycle.snapshot.nodes
        pods = columns.pods[self._rows[position]]
        remaining = list(pods)
        for info in pods:
            if info.priority < self._cycle.info.priority:
                remaining[remaining.index(info)] = remaining[-1]
                remaining.pop()
        entries = slice(self._starts[position], self._starts[position + 1])
        return (
            remaining
            + self._pods_in_slots(self._slots[entries][self._reprieved[entries]])
            + self._nominated_on.get(position, [])
        )

    def _read_weights(self) -> None:
        weights = self._batch.weights
        self._requests, self._nonzero = weights.requests(self._slots), weights.nonzero(self._slots)
        self._with_ports = weights.with_ports(self._slots)

    def _remove_all_victims(self) -> None:
        starts = self._starts[:-1]
        self._fork.count_pods(
            np.arange(len(self._rows)),
            -np.diff(self._starts),
            -np.add.reduceat(self._requests, starts, axis=1),
            -np.add.reduceat(self._nonzero, starts, axis=1),
        )
        self._set_ports(np.arange(len(self._slots)), taken=False)

    def _order_for_reprieve(self, solved: BoolVector) -> BoolVector:
        """Sort the entries of solved rows in the order of reprieval. Returns which of them violate a budget."""
        entries = np.flatnonzero(solved[self._at])
        self._slots[entries] = self._batch.order.sorted(self._slots[entries], self._at[entries])
        violates = np.zeros(len(self._slots), dtype=np.bool_)
        violates[entries] = self._batch.coverage.violations(self._slots[entries], self._at[entries])
        if violates.any():
            order = np.lexsort((~violates, self._at))
            self._slots, violates = self._slots[order], violates[order]
        self._read_weights()
        return violates

    def _reprieve(self, solved: BoolVector) -> None:
        """Reprieve pods round by round, one pod of each row in each round."""
        lengths = np.where(solved, np.diff(self._starts), 0)
        for number in range(int(lengths.max())):
            rows = np.flatnonzero(lengths > number)
            entries = self._starts[rows] + number
            self._move(entries, rows, 1)
            codes = self._batch.filters.filter_table(self._cycle, NodeTable(self._fork, rows)).codes
            out = codes != Code.SUCCESS
            if out.any():
                self._move(entries[out], rows[out], -1)
                self._broken[rows] |= codes == Code.ERROR

    def _move(self, entries: RowVector, rows: RowVector, sign: int) -> None:
        """Add one pod to each of the rows, or remove it again."""
        self._fork.count_pods(rows, sign, sign * self._requests[:, entries], sign * self._nonzero[:, entries])
        self._reprieved[entries] = sign > 0
        self._set_ports(entries, taken=sign > 0)

    def _set_ports(self, entries: RowVector, *, taken: bool) -> None:
        with_ports = entries[self._with_ports[entries]]
        for row, info in zip(self._at[with_ports].tolist(), self._pods_in_slots(self._slots[with_ports]), strict=True):
            self._fork.set_ports_used(row, info, taken=taken)

    def _victims(self, solved: BoolVector, violates: BoolVector) -> Iterator[tuple[int, Victims | Status]]:
        """Yield the victims row by row: the pods that were not reprieved."""
        evicted = ~self._reprieved & solved[self._at]
        victims = self._pods_in_slots(self._slots[evicted])
        pods = [info.pod for info in victims]
        cuts = _counts_before(evicted, self._starts)
        violation_counts = np.diff(_counts_before(evicted & violates, self._starts)).tolist()
        covered_counts = np.diff(_counts_before(violates, self._starts))
        is_mixed = ((covered_counts > 0) & (covered_counts < np.diff(self._starts))).tolist()
        bounds = cuts.tolist()
        for position in np.flatnonzero(solved).tolist():
            start, end = bounds[position], bounds[position + 1]
            if start == end:
                yield self._rows[position], no_victims_status(self._fork.names[position])
                continue
            if is_mixed[position]:
                row_victims = victims[start:end]
                go_sort(row_victims, self._batch.less)
                pods[start:end] = [info.pod for info in row_victims]
            yield self._rows[position], Victims(tuple(pods[start:end]), violation_counts[position])

    def _pods_in_slots(self, slots: RowVector) -> list[PodInfo]:
        infos = self._batch.cycle.snapshot.pods.infos
        return [info for slot in slots.tolist() if (info := infos[slot]) is not None]


def _counts_before(mask: BoolVector, cuts: RowVector) -> IntVector:
    """Count the true entries of the mask before each cut."""
    before = np.zeros(len(mask) + 1, dtype=np.int64)
    np.cumsum(mask, out=before[1:])
    return before[cuts]


class _LazyPodLists(list[list[PodInfo]]):
    """The pods of each row of a trial, built on demand: most filters never read them."""

    def __init__(self, trial: _BatchTrial, count: int) -> None:
        super().__init__()
        self._trial = trial
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[PodInfo]]:
        return map(self._trial.pods_on, range(self._count))

    def __getitem__(self, position: Any) -> Any:
        found = range(self._count)[position]
        return self._trial.pods_on(found) if isinstance(found, int) else [self._trial.pods_on(each) for each in found]


class _ImportanceSorter:
    """Sorts pods of many rows as `go_sort` with `more_important` would sort the pods of each row.

    A sort by priority and start time is sufficient if no two pods of a row are equal. Equal pods keep the order of the
    row's list up to the length that Go sorts by insertion (the reverse order if none has started, see
    `more_important`). For longer rows, or if a pod that has not started equals one that starts just now, Go's sort
    itself runs.
    """

    def __init__(self, weights: PreemptionColumns, now: datetime) -> None:
        self._weights = weights
        self._now = to_microseconds(now)
        self._cached_orders: dict[tuple[tuple[int, int], ...], list[int]] = {}

    def sorted(self, slots: RowVector, at: RowVector) -> RowVector:
        """Return the slots of each row, the most important first. `at`: the sorted row of each slot."""
        weights = self._weights
        ranks, started = -weights.priorities(slots), weights.started(slots)
        not_started = started == NOT_STARTED
        start_times = np.where(not_started, self._now, started)
        order = np.lexsort((start_times, ranks, at))
        equal = _equal_neighbours(at[order], ranks[order], start_times[order])
        if not equal.any():
            return slots[order]
        tied = np.zeros(int(at[-1]) + 1, dtype=np.bool_)
        tied[at[order][1:][equal]] = True
        list_index = np.zeros(len(slots), dtype=np.int64)
        list_index[tied[at]] = weights.list_positions(slots[tied[at]])
        order = np.lexsort((np.where(not_started, -list_index, list_index), start_times, ranks, at))
        sorted_slots = slots[order]
        is_mixed = equal & (not_started[order][1:] != not_started[order][:-1])
        starts = np.searchsorted(at, np.arange(len(tied) + 1))
        long = np.flatnonzero(tied & (np.diff(starts) > INSERTION_SORT_MAX))
        for position in np.union1d(long, at[order][1:][is_mixed]).tolist():
            entries = slice(starts[position], starts[position + 1])
            by_list = slots[entries][np.argsort(list_index[entries])]
            sorted_slots[entries] = by_list[self._go_sort_order(by_list)]
        return sorted_slots

    def _go_sort_order(self, slots: RowVector) -> list[int]:
        """Return the sorted positions of a row's pods that are listed in this order."""
        started: list[int] = self._weights.started(slots).tolist()
        row_key = tuple(zip(self._weights.priorities(slots).tolist(), started, strict=True))
        order = self._cached_orders.get(row_key)
        if order is None:
            keys = [(-priority, self._now if start == NOT_STARTED else start) for priority, start in row_key]

            def less(one: int, other: int) -> bool:
                if keys[one] == keys[other]:
                    return started[one] == started[other] == NOT_STARTED
                return keys[one] < keys[other]

            order = self._cached_orders[row_key] = list(range(len(row_key)))
            go_sort(order, less)
        return order


def _equal_neighbours(*columns: IntVector | RowVector) -> BoolVector:
    """Whether each entry but the first equals the one before it."""
    equal = np.ones(max(len(columns[0]) - 1, 0), dtype=np.bool_)
    for column in columns:
        equal &= column[1:] == column[:-1]
    return equal


class _BudgetCoverage:
    """Finds pods whose eviction violates a disruption budget, in the order of their eviction on each row."""

    def __init__(self, cycle: Cycle, budgets: Sequence[CompiledBudget]) -> None:
        self._pods = cycle.snapshot.pods
        self._budgets = budgets
        self._by_kind: dict[int, list[CompiledBudget]] = {}

    def violations(self, slots: RowVector, at: RowVector) -> BoolVector:
        """Return which pods violate a budget, for each row separately, as `split_by_budget_violation` does."""
        violates = np.zeros(len(slots), dtype=np.bool_)
        if not self._budgets:
            return violates
        kinds = self._pods.kinds[slots]
        budget_covered = np.isin(kinds, [kind for kind in np.unique(kinds).tolist() if self._budgets_of_kind(kind)])
        row = -1
        remaining: dict[int, int] = {}
        for entry in np.flatnonzero(budget_covered).tolist():
            if at[entry] != row:
                row, remaining = int(at[entry]), {}
            violates[entry] = self._charge(remaining, int(slots[entry]))
        return violates

    def _charge(self, remaining: dict[int, int], slot: int) -> bool:
        """Subtract one from every budget that covers the pod. Returns whether one of them had none left."""
        info = self._pods.infos[slot]
        violates = False
        for budget in self._budgets_of_kind(int(self._pods.kinds[slot])):
            if info is not None and info.pod.name not in budget.disrupted:
                remaining[id(budget)] = remaining.get(id(budget), budget.allowed) - 1
                violates |= remaining[id(budget)] < 0
        return violates

    def _budgets_of_kind(self, kind: int) -> list[CompiledBudget]:
        found = self._by_kind.get(kind)
        if found is None:
            value = self._pods.vocabulary.kinds.value(kind)
            found = [budget for budget in self._budgets if budget.selects(value.namespace, value.labels)]
            self._by_kind[kind] = found
        return found
