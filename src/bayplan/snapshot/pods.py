"""All pods of a snapshot as columns: row, kind, affinity terms, terminating.

Topology spread and inter-pod affinity count the pods that match a selector on each row and in each domain. A selector
is evaluated once for each distinct kind (namespace and labels) and applied to the pods with `take`; rows are summed
with `bincount`. Cost: a few operations over all pods, no Python loop over them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bayplan.objects.selectors.pod_affinity import PodAffinityTerms
from bayplan.snapshot.intern_tables import (
    BoolVector,
    IdPredicate,
    InternTables,
    IntVector,
    NamespacedLabels,
    SlotVector,
)
from bayplan.snapshot.pod_info import PodInfo

NO_TERMS = -1
"""Id of a pod without affinity terms."""

_MAX_CACHED_SELECTORS = 512
_MAX_CHANGES = 8192


class PodChange(NamedTuple):
    """A pod was added to a row (1) or removed from it (-1)."""

    info: PodInfo
    row: int
    delta: int


_new_pod_change = tuple.__new__  # faster than calling PodChange; runs once for each placement


class PodColumns:
    """Slots of pods that are on a row. A free slot has row -1."""

    def __init__(self, vocabulary: InternTables, *, capacity: int = 64) -> None:
        self.vocabulary = vocabulary
        self.slots = 0  # number of slots ever used: the valid length of the columns
        self.infos: list[PodInfo | None] = []
        self.rows: SlotVector = np.full(capacity, -1, dtype=np.int32)
        self.kinds: SlotVector = np.zeros(capacity, dtype=np.int32)
        self.affinities: SlotVector = np.full(capacity, NO_TERMS, dtype=np.int32)
        self.terminating: BoolVector = np.zeros(capacity, dtype=np.bool_)
        self.version = 0  # number of pods ever added, removed or changed
        self.affinity_version = 0  # the same for pods with affinity terms
        self._log: list[PodChange] = []  # the latest changes, in order
        self.claim_users: dict[str, int] = {}
        self.affinity_users: dict[int, int] = {}
        self._selectors: OrderedDict[Hashable, IdPredicate[NamespacedLabels]] = OrderedDict()

    def set_slot(self, slot: int, info: PodInfo, row: int, kind: int, affinity: int) -> None:
        """Store a pod in a slot. The caller counts the use of the ids."""
        infos = self.infos
        if slot == self.slots < len(self.rows):
            infos.append(info)
            self.slots += 1
        else:
            if slot >= self.slots:
                self._reserve(slot + 1)
            elif infos[slot] is not None:
                self.clear_slot(slot)
            infos[slot] = info
        self._append_change(info, row, 1)
        self.rows[slot] = row
        self.kinds[slot] = kind
        self.affinities[slot] = affinity
        self.terminating[slot] = info.terminating
        for key in info.claim_keys:
            self.claim_users[key] = self.claim_users.get(key, 0) + 1
        if affinity != NO_TERMS:
            self.affinity_version += 1
            self.affinity_users[affinity] = self.affinity_users.get(affinity, 0) + 1

    def holds(self, slot: int) -> bool:
        return slot < self.slots and self.infos[slot] is not None

    def clear_slot(self, slot: int) -> None:
        """Free a slot. It may not exist yet."""
        info = self.infos[slot] if slot < self.slots else None
        if info is None:
            return
        self._append_change(info, self.rows.item(slot), -1)
        for key in info.claim_keys:
            _decrement(self.claim_users, key)
        affinity = self.affinities.item(slot)
        if affinity != NO_TERMS:
            self.affinity_version += 1
            _decrement(self.affinity_users, affinity)
        self.infos[slot] = None
        self.rows[slot] = -1
        self.affinities[slot] = NO_TERMS

    def copy_slot(self, slot: int, info: PodInfo, row: int, kind: int, affinity: int) -> None:
        """Store a pod in a slot that may hold it already.

        If its node has moved, only the row changes. A version that differs in nothing that columns or the log of
        changes contain replaces the pod alone: most updates are about conditions and heartbeats.
        """
        old_info = self.infos[slot] if slot < self.slots else None
        if old_info is not None and self.kinds.item(slot) == kind and self.affinities.item(slot) == affinity:
            if old_info is info:
                self.rows[slot] = row
                return
            same_values = old_info.terminating == info.terminating and old_info.claim_keys == info.claim_keys
            if same_values and self.rows.item(slot) == row:
                self.infos[slot] = info
                return
        self.set_slot(slot, info, row, kind, affinity)

    def _append_change(self, info: PodInfo, row: int, delta: int) -> None:
        self.version += 1
        log = self._log
        log.append(_new_pod_change(PodChange, (info, row, delta)))
        if len(log) > _MAX_CHANGES:
            del log[: _MAX_CHANGES // 2]

    def changes_since(self, cursor: int) -> list[PodChange] | None:
        """Return the changes after `cursor`, an earlier `version`; None if they are no longer stored.

        Rows are those at the time of the change: a reader must start over when the layout changes.
        """
        pending = self.version - cursor
        if pending == 0:
            return []
        return self._log[-pending:] if pending <= len(self._log) else None

    def matching(self, key: Hashable, predicate: Callable[[NamespacedLabels], bool]) -> BoolVector:
        """Return the slots of pods whose kind satisfies `predicate`. Equal keys must mean equal predicates."""
        table = self._lookup(key, predicate).answers()
        mask: BoolVector = table.take(self.kinds[: self.slots])
        mask &= self.rows[: self.slots] >= 0
        return mask

    def count_by_row(self, mask: BoolVector, rows: int) -> IntVector:
        """Count the masked pods on each of the `rows` rows."""
        return np.bincount(self.rows[: self.slots][mask], minlength=rows)

    def with_affinity(self, affinity: int) -> BoolVector:
        """Return the slots of pods with these terms."""
        mask: BoolVector = self.affinities[: self.slots] == affinity
        return mask

    def affinity_terms(self) -> Iterator[tuple[int, PodAffinityTerms]]:
        """Yield every distinct set of terms of the pods here, with its id."""
        for affinity in self.affinity_users:
            yield affinity, self.vocabulary.affinities.value(affinity)

    def on_rows(self) -> Iterable[PodInfo]:
        """Return every pod, in no particular order. A Python loop: not for the hot path."""
        return (info for info in self.infos if info is not None)

    def _lookup(self, key: Hashable, predicate: Callable[[NamespacedLabels], bool]) -> IdPredicate[NamespacedLabels]:
        lookup = self._selectors.get(key)
        if lookup is None:
            lookup = self._selectors[key] = IdPredicate(self.vocabulary.kinds, predicate)
            if len(self._selectors) > _MAX_CACHED_SELECTORS:
                self._selectors.popitem(last=False)
        else:
            self._selectors.move_to_end(key)
        return lookup

    def _reserve(self, slots: int) -> None:
        """Extend the columns to this number of slots."""
        self.infos.extend([None] * (slots - self.slots))
        self.slots = slots
        capacity = len(self.rows)
        if slots <= capacity:
            return
        added = max(slots, 2 * capacity) - capacity
        self.rows = np.concatenate((self.rows, np.full(added, -1, dtype=np.int32)))
        self.kinds = np.concatenate((self.kinds, np.zeros(added, dtype=np.int32)))
        self.affinities = np.concatenate((self.affinities, np.full(added, NO_TERMS, dtype=np.int32)))
        self.terminating = np.concatenate((self.terminating, np.zeros(added, dtype=np.bool_)))


def _decrement(counts: dict[str, int] | dict[int, int], key: str | int) -> None:
    remaining = counts[key] - 1  # type: ignore[index]
    if remaining:
        counts[key] = remaining  # type: ignore[index]
    else:
        del counts[key]  # type: ignore[arg-type]
