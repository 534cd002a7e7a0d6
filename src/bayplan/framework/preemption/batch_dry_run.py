"""Whom would a pod have to push out on each of many nodes, tried side by side?

Asked by the dry run where a pod that comes or goes matters to its own row alone, which is so for most preemptors. All
rows lie on one fork: every weaker pod is taken off, all rows are judged at once, and then pods come back round by
round, in round k the k-th most important one of every row; where one does not fit it goes again. Each row sees the
same steps in the same order as it would alone. Cost: a few operations on columns and one filter run a round.

Rows that are kept for other pods are first judged with these there and all weaker ones gone. Most of them have no room
then; the few that have are left to be tried alone, and so are all if a filter broke: it is not known on which row.
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
from bayplan.framework.preemption.victims import (
    NO_VICTIMS,
    CompiledBudget,
    Victims,
    more_important,
    no_victims_status,
)
from bayplan.snapshot import BoolVector, IntVector, NodeTable, PodInfo, RowVector
from bayplan.snapshot.preemption_columns import NOT_STARTED, PreemptionColumns, to_microseconds

MAX_BATCH_ROWS = 8192
"""So many rows are tried at once: positions fit into 16 bits, which sort fastest."""


class BatchDryRun:
    """Tries out many rows for one pod."""

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
        self._nobody = unresolvable(NO_VICTIMS)
        self._awaited = filters.nominated_pods_by_node(cycle)
        weights.update(cycle.snapshot)

    def without_nominated_pods(self, rows: Sequence[int]) -> int:
        """How many of the rows are kept for nobody: on the others room is rare."""
        names, awaited = self.cycle.snapshot.nodes.names, self._awaited
        return sum(names[row] not in awaited for row in rows) if awaited else len(rows)

    def run(self, rows: Sequence[int], enough: int) -> list[tuple[int, Victims | Status | None]]:
        """Who has to go from each row, or why nobody's going helps; None for a row that must be tried alone.

        Ends early, with the row that makes `enough` of those that are helped: only there people are let stay.
        """
        names = self.cycle.snapshot.nodes.names
        together = [row for row in rows if names[row] not in self._awaited] if self._awaited else rows
        found: dict[int, Victims | Status | None] = dict.fromkeys(rows, self._nobody)
        trial = self._trial(together)
        if trial is not None:
            found |= trial.run(enough)
            if trial.ended_at is not None:
                rows = rows[: rows.index(trial.ended_at) + 1]
        trial = self._trial([row for row in rows if names[row] in self._awaited]) if self._awaited else None
        if trial is not None:
            found |= trial.without_room(self._awaited)
        return [(row, found[row]) for row in rows]

    def _trial(self, rows: Sequence[int]) -> _BatchTrial | None:
        """All weaker pods taken off the rows that have any."""
        slots, at = self._lower_priority_pods(rows)
        if not len(slots):
            return None
        counts = np.bincount(at, minlength=len(rows))
        tried = [rows[position] for position in np.flatnonzero(counts).tolist()]
        return _BatchTrial(self, tried, slots, (np.cumsum(counts > 0) - 1)[at])

    def _lower_priority_pods(self, rows: Sequence[int]) -> tuple[RowVector, RowVector]:
        """The slots of all weaker pods on the rows, and for each its place among `rows`; in order of places."""
        snapshot, weights = self.cycle.snapshot, self.weights
        place = np.full(max(len(snapshot), 1), -1, dtype=np.int16)
        place[list(rows)] = np.arange(len(rows), dtype=np.int16)
        slots = weights.on_rows(place)
        slots = slots[weights.priorities(slots) < self.cycle.info.priority]
        at = place[snapshot.pods.rows[slots]]
        order = np.argsort(at, kind="stable")
        return slots[order], at[order].astype(np.intp)


class _BatchTrial:
    """One fork with all rows, and what was done on it."""

    def __init__(self, batch: BatchDryRun, rows: list[int], slots: RowVector, at: RowVector) -> None:
        self._batch = batch
        self._cycle = batch.cycle.clone()
        self._rows = rows
        self._fork = batch.cycle.snapshot.nodes.fork(rows, pods=_LazyPodLists(self, len(rows)))
        self._broken = np.zeros(len(rows), dtype=np.bool_)
        self._guests: dict[int, list[PodInfo]] = {}
        self.ended_at: int | None = None
        # Entries: all weaker pods, row by row. Those of one row change places when it is known who counts more.
        self._slots, self._at = slots, at
        self._starts = np.searchsorted(at, np.arange(len(rows) + 1))
        self._back: BoolVector = np.zeros(len(slots), dtype=np.bool_)
        self._read_weights()
        self._remove_all_victims()

    def run(self, enough: int) -> dict[int, Victims | Status | None]:
        """What came of each row, or of those up to `ended_at`."""
        verdicts = self._batch.filters.filter_table(self._cycle, NodeTable(self._fork))
        self._broken |= verdicts.codes == Code.ERROR
        found: dict[int, Victims | Status | None] = dict(zip(self._rows, verdicts.statuses(), strict=True))
        helped = verdicts.feasible
        if helped.any():
            self._finish(helped, enough)
            violates = self._order_for_reprieve(helped)
            self._reprieve(helped)
            found |= self._victims(helped, violates)
        broken = (self._rows[position] for position in np.flatnonzero(self._broken).tolist())
        return found | dict.fromkeys(broken)

    def without_room(self, awaited: Mapping[str, list[PodInfo]]) -> dict[int, Status | None]:
        """Why the rows have no room beside the pods that they are kept for; None where they have, or a filter broke."""
        for position, name in enumerate(self._fork.names):
            self._guests[position] = awaited[name]
            for guest in awaited[name]:
                self._fork.count_pod(position, guest)
        statuses = self._batch.filters.filter_table(self._cycle, NodeTable(self._fork)).statuses()
        return {row: status if status.rejected else None for row, status in zip(self._rows, statuses, strict=True)}

    def _finish(self, helped: BoolVector, enough: int) -> None:
        """Leave so many rows helped, the first ones."""
        positions = np.flatnonzero(helped)
        if len(positions) > enough:
            helped[positions[enough:]] = False
            self.ended_at = self._rows[positions[enough - 1]]

    def pods_on(self, position: int) -> list[PodInfo]:
        """The pods of a row as they stand now, in the order that taking off and putting back one by one makes."""
        columns = self._batch.cycle.snapshot.nodes
        there = columns.pods[self._rows[position]]
        left = list(there)
        for info in there:
            if info.priority < self._cycle.info.priority:
                left[left.index(info)] = left[-1]
                left.pop()
        entries = slice(self._starts[position], self._starts[position + 1])
        return left + self._pods_in_slots(self._slots[entries][self._back[entries]]) + self._guests.get(position, [])

    # steps --------------------------------------------------------------------------------------------------------

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
        self._hold_ports(np.arange(len(self._slots)), taken=False)

    def _order_for_reprieve(self, helped: BoolVector) -> BoolVector:
        """Put the entries of rows that are helped into the order in which they come back; which violate a budget?"""
        entries = np.flatnonzero(helped[self._at])
        self._slots[entries] = self._batch.order.sorted(self._slots[entries], self._at[entries])
        violates = np.zeros(len(self._slots), dtype=np.bool_)
        violates[entries] = self._batch.coverage.violations(self._slots[entries], self._at[entries])
        if violates.any():
            order = np.lexsort((~violates, self._at))
            self._slots, violates = self._slots[order], violates[order]
        self._read_weights()
        return violates

    def _reprieve(self, helped: BoolVector) -> None:
        """Let stay who can: round by round one pod of each row."""
        lengths = np.where(helped, np.diff(self._starts), 0)
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
        """Put one pod back on each of the rows, or take it off again."""
        self._fork.count_pods(rows, sign, sign * self._requests[:, entries], sign * self._nonzero[:, entries])
        self._back[entries] = sign > 0
        self._hold_ports(entries, taken=sign > 0)

    def _hold_ports(self, entries: RowVector, *, taken: bool) -> None:
        holding = entries[self._with_ports[entries]]
        for row, info in zip(self._at[holding].tolist(), self._pods_in_slots(self._slots[holding]), strict=True):
            self._fork.set_ports_used(row, info, taken=taken)

    def _victims(self, helped: BoolVector, violates: BoolVector) -> Iterator[tuple[int, Victims | Status]]:
        """What came of it, row by row: who could not come back has to go."""
        gone = ~self._back & helped[self._at]
        victims = self._pods_in_slots(self._slots[gone])
        pods = [info.pod for info in victims]
        cuts = _sums(gone, self._starts)
        against = np.diff(_sums(gone & violates, self._starts)).tolist()
        covered = np.diff(_sums(violates, self._starts))
        mixed = ((covered > 0) & (covered < np.diff(self._starts))).tolist()
        bounds = cuts.tolist()
        for position in np.flatnonzero(helped).tolist():
            start, end = bounds[position], bounds[position + 1]
            if start == end:
                yield self._rows[position], no_victims_status(self._fork.names[position])
                continue
            if mixed[position]:
                together = victims[start:end]
                go_sort(together, self._batch.less)
                pods[start:end] = [info.pod for info in together]
            yield self._rows[position], Victims(tuple(pods[start:end]), against[position])

    def _pods_in_slots(self, slots: RowVector) -> list[PodInfo]:
        infos = self._batch.cycle.snapshot.pods.infos
        return [info for slot in slots.tolist() if (info := infos[slot]) is not None]


def _sums(mask: BoolVector, cuts: RowVector) -> IntVector:
    """How many entries of the mask are true before each cut."""
    before = np.zeros(len(mask) + 1, dtype=np.int64)
    np.cumsum(mask, out=before[1:])
    return before[cuts]


class _LazyPodLists(list[list[PodInfo]]):
    """The pods of each row of a trial, put together when somebody asks: most filters never do."""

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
    """Sorts pods of many rows as `go_sort` with `more_important` would sort those of each row.

    A sort by priority and start is all of it where no two pods of a row are equal. Equal ones follow the row's list up
    to the length that Go sorts by insertion (and against it if none has started, see `more_important`). Above that,
    or where one that has not started meets one that starts just now, Go's sort itself is run.
    """

    def __init__(self, weights: PreemptionColumns, now: datetime) -> None:
        self._weights = weights
        self._now = to_microseconds(now)
        self._known: dict[tuple[tuple[int, int], ...], list[int]] = {}

    def sorted(self, slots: RowVector, at: RowVector) -> RowVector:
        """The slots of each row, the most important first; `at` says which row, and is in order."""
        weights = self._weights
        ranks, started = -weights.priorities(slots), weights.started(slots)
        idle = started == NOT_STARTED
        moments = np.where(idle, self._now, started)
        order = np.lexsort((moments, ranks, at))
        equal = _equal_neighbours(at[order], ranks[order], moments[order])
        if not equal.any():
            return slots[order]
        tied = np.zeros(int(at[-1]) + 1, dtype=np.bool_)
        tied[at[order][1:][equal]] = True
        listed = np.zeros(len(slots), dtype=np.int64)
        listed[tied[at]] = weights.pod_infos(slots[tied[at]])
        order = np.lexsort((np.where(idle, -listed, listed), moments, ranks, at))
        answer = slots[order]
        mixed = equal & (idle[order][1:] != idle[order][:-1])
        starts = np.searchsorted(at, np.arange(len(tied) + 1))
        long = np.flatnonzero(tied & (np.diff(starts) > INSERTION_SORT_MAX))
        for position in np.union1d(long, at[order][1:][mixed]).tolist():
            entries = slice(starts[position], starts[position + 1])
            by_list = slots[entries][np.argsort(listed[entries])]
            answer[entries] = by_list[self._as_go_sorts(by_list)]
        return answer

    def _as_go_sorts(self, slots: RowVector) -> list[int]:
        """Where each pod of a row comes from, if they are listed in this order."""
        started: list[int] = self._weights.started(slots).tolist()
        seen = tuple(zip(self._weights.priorities(slots).tolist(), started, strict=True))
        order = self._known.get(seen)
        if order is None:
            keys = [(-priority, self._now if start == NOT_STARTED else start) for priority, start in seen]

            def less(one: int, other: int) -> bool:
                if keys[one] == keys[other]:
                    return started[one] == started[other] == NOT_STARTED
                return keys[one] < keys[other]

            order = self._known[seen] = list(range(len(seen)))
            go_sort(order, less)
        return order


def _equal_neighbours(*columns: IntVector | RowVector) -> BoolVector:
    """Whether each entry but the first equals the one before it."""
    equal = np.ones(max(len(columns[0]) - 1, 0), dtype=np.bool_)
    for column in columns:
        equal &= column[1:] == column[:-1]
    return equal


class _BudgetCoverage:
    """Finds pods whose going violates a budget, in rows of pods that would go in their order."""

    def __init__(self, cycle: Cycle, budgets: Sequence[CompiledBudget]) -> None:
        self._pods = cycle.snapshot.pods
        self._budgets = budgets
        self._by_kind: dict[int, list[CompiledBudget]] = {}

    def violations(self, slots: RowVector, at: RowVector) -> BoolVector:
        """Which of the pods violate a budget; each row on its own, as `split_by_budget_violation` has it."""
        violates = np.zeros(len(slots), dtype=np.bool_)
        if not self._budgets:
            return violates
        kinds = self._pods.kinds[slots]
        covered = np.isin(kinds, [kind for kind in np.unique(kinds).tolist() if self._covering(kind)])
        row = -1
        left: dict[int, int] = {}
        for entry in np.flatnonzero(covered).tolist():
            if at[entry] != row:
                row, left = int(at[entry]), {}
            violates[entry] = self._charge(left, int(slots[entry]))
        return violates

    def _charge(self, left: dict[int, int], slot: int) -> bool:
        """Take one from every budget that covers the pod; whether one of them had none left."""
        info = self._pods.infos[slot]
        violates = False
        for budget in self._covering(int(self._pods.kinds[slot])):
            if info is not None and info.pod.name not in budget.disrupted:
                left[id(budget)] = left.get(id(budget), budget.allowed) - 1
                violates |= left[id(budget)] < 0
        return violates

    def _covering(self, kind: int) -> list[CompiledBudget]:
        found = self._by_kind.get(kind)
        if found is None:
            value = self._pods.vocabulary.kinds.value(kind)
            found = [budget for budget in self._budgets if budget.selects(value.namespace, value.labels)]
            self._by_kind[kind] = found
        return found
