"""All pods of a snapshot as columns: row, kind, affinity terms, terminating.

Spread and affinity ask "how many pods that match X are on each row, in each domain?". A selector is evaluated once a
distinct kind (namespace and labels) and spread over the pods by `take`; rows are summed by `bincount`. Cost: a few
operations over all pods, no Python loop over them.
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
"""Where an id of affinity terms is expected, and the pod has none."""

_MAX_CACHED_SELECTORS = 512
_MAX_CHANGES = 8192


class PodChange(NamedTuple):
    """A pod came to a row (1) or left it (-1)."""

    info: PodInfo
    row: int
    delta: int


_change = tuple.__new__  # what calling PodChange comes to, without the call: there is one a placement


class PodColumns:
    """Slots of pods that are on a row. A free slot has row -1."""

    def __init__(self, vocabulary: InternTables, *, capacity: int = 64) -> None:
        self.vocabulary = vocabulary
        self.slots = 0  # slots in use or once used: how much of the columns means something
        self.infos: list[PodInfo | None] = []
        self.rows: SlotVector = np.full(capacity, -1, dtype=np.int32)
        self.kinds: SlotVector = np.zeros(capacity, dtype=np.int32)
        self.affinities: SlotVector = np.full(capacity, NO_TERMS, dtype=np.int32)
        self.terminating: BoolVector = np.zeros(capacity, dtype=np.bool_)
        self.version = 0  # how many pods ever came, went or changed
        self.affinity_version = 0  # the same, for pods that say something about other pods
        self._log: list[PodChange] = []  # the newest of them, in order
        self.claim_users: dict[str, int] = {}
        self.affinity_users: dict[int, int] = {}
        self._selectors: OrderedDict[Hashable, IdPredicate[NamespacedLabels]] = OrderedDict()

    # slots ------------------------------------------------------------------------------------------------------

    def set_slot(self, slot: int, info: PodInfo, row: int, kind: int, affinity: int) -> None:
        """Slot `slot` now holds this pod; ids are counted by the caller."""
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
        """Whether a pod is in this slot."""
        return slot < self.slots and self.infos[slot] is not None

    def clear_slot(self, slot: int) -> None:
        """Slot `slot` is free, or not made yet."""
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
        """The same, where the slot may hold just this already; then its node has moved to another row. Or a version of
        it that differs in nothing that columns and the log of changes tell: most of what an API server sends is about
        conditions and heartbeats."""
        shown = self.infos[slot] if slot < self.slots else None
        if shown is not None and self.kinds.item(slot) == kind and self.affinities.item(slot) == affinity:
            if shown is info:
                self.rows[slot] = row
                return
            alike = shown.terminating == info.terminating and shown.claim_keys == info.claim_keys
            if alike and self.rows.item(slot) == row:
                self.infos[slot] = info
                return
        self.set_slot(slot, info, row, kind, affinity)

    def _append_change(self, info: PodInfo, row: int, by: int) -> None:
        self.version += 1
        log = self._log
        log.append(_change(PodChange, (info, row, by)))
        if len(log) > _MAX_CHANGES:
            del log[: _MAX_CHANGES // 2]

    def changes_since(self, cursor: int) -> list[PodChange] | None:
        """What changed after `cursor`, an earlier `version`; None where that is no longer known.

        Rows are those of the moment: who keeps a cursor over a change of layout starts over.
        """
        missing = self.version - cursor
        if missing == 0:
            return []
        return self._log[-missing:] if missing <= len(self._log) else None

    # questions --------------------------------------------------------------------------------------------------

    def matching(self, key: Hashable, predicate: Callable[[NamespacedLabels], bool]) -> BoolVector:
        """Which slots hold a pod whose kind satisfies `predicate`; equal keys must mean equal predicates."""
        table = self._lookup(key, predicate).answers()
        mask: BoolVector = table.take(self.kinds[: self.slots])
        mask &= self.rows[: self.slots] >= 0
        return mask

    def count_by_row(self, mask: BoolVector, rows: int) -> IntVector:
        """How many of the masked pods each of the `rows` rows has."""
        return np.bincount(self.rows[: self.slots][mask], minlength=rows)

    def with_affinity(self, affinity: int) -> BoolVector:
        """Which slots hold a pod with these terms."""
        mask: BoolVector = self.affinities[: self.slots] == affinity
        return mask

    def affinity_terms(self) -> Iterator[tuple[int, PodAffinityTerms]]:
        """Every distinct set of terms that some pod here has, with its id."""
        for affinity in self.affinity_users:
            yield affinity, self.vocabulary.affinities.value(affinity)

    def on_rows(self) -> Iterable[PodInfo]:
        """Every pod, in no particular order. A Python loop: not for the hot path."""
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
        """Make slots up to here; there are fewer now."""
        self.infos.extend([None] * (slots - self.slots))
        self.slots = slots
        capacity = len(self.rows)
        if slots <= capacity:
            return
        extra = max(slots, 2 * capacity) - capacity
        self.rows = np.concatenate((self.rows, np.full(extra, -1, dtype=np.int32)))
        self.kinds = np.concatenate((self.kinds, np.zeros(extra, dtype=np.int32)))
        self.affinities = np.concatenate((self.affinities, np.full(extra, NO_TERMS, dtype=np.int32)))
        self.terminating = np.concatenate((self.terminating, np.zeros(extra, dtype=np.bool_)))


def _decrement(counts: dict[str, int] | dict[int, int], key: str | int) -> None:
    left = counts[key] - 1  # type: ignore[index]
    if left:
        counts[key] = left  # type: ignore[index]
    else:
        del counts[key]  # type: ignore[arg-type]
