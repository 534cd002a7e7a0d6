"""How crowded are the domains of each node by pods that should be spread, and what is that worth?

Soft constraints charge a row with the pods of its domains: of the row itself for the hostname, of all rows with its
value for any other key. A charge is kept and follows the pods that come and go. With all rows as candidates, and one
constraint of each sort at most, a row's score depends on two small numbers, its own count and its domain; then scores
are computed for each pair of them (`_ScoreGroups`) and only handed out to the rows. Cost: two `take` over all rows.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import MAX_SCORE, ScoreGroups
from bayplan.plugins.pod_journal_cursor import JournalCursor, next_version
from bayplan.plugins.pod_topology_spread.constraints import SpreadConstraint
from bayplan.snapshot import BoolVector, IdVector, IntVector, NamespacedLabels, NodeTable, PodInfo, RowVector, Snapshot

FloatVector = npt.NDArray[np.float64]

_MAX_GROUPS = 256
_MAX_CACHED_LABELS = 1024


def domain_sums(ids: IdVector, amounts: IntVector, domains: int) -> IntVector:
    """What each domain has of the amounts of its rows; the last stands for rows without the key, and has nothing."""
    keyed = ids >= 0
    if not keyed.all():
        ids, amounts = ids[keyed], amounts[keyed]
    return np.bincount(ids, weights=amounts, minlength=domains).astype(np.int64)


class HostCount:
    """A row is charged with its own pods."""

    __slots__ = ("constraint", "counts", "weight")

    def __init__(self, constraint: SpreadConstraint, weight: float, counts: IntVector) -> None:
        self.constraint = constraint
        self.weight = weight
        self.counts = counts  # by row

    def on(self, nodes: NodeTable) -> IntVector:
        return nodes.column_at_rows(self.counts)

    def shift(self, row: int, by: int) -> None:
        self.counts[row] = self.counts.item(row) + by


class DomainCount:
    """A row is charged with the pods of its domain."""

    __slots__ = ("constraint", "counts", "ids", "included", "weight")

    def __init__(
        self, constraint: SpreadConstraint, weight: float, counts: IntVector, ids: IdVector, included: BoolVector
    ) -> None:
        self.constraint = constraint
        self.weight = weight
        self.counts = counts  # by domain; the last entry, where rows without the key point, stays 0
        self.ids = ids  # the domain of each row
        self.included = included  # rows whose pods count

    def on(self, nodes: NodeTable) -> IntVector:
        return self.counts[nodes.column_at_rows(self.ids)]

    def shift(self, row: int, by: int) -> None:
        domain = self.ids.item(row)
        if domain >= 0 and self.included.item(row):
            self.counts[domain] = self.counts.item(domain) + by


class SoftState:
    """What Score needs. `version` changes whenever a count does; `covers_all_rows`: the candidates were all rows."""

    __slots__ = ("_counted", "_groups", "bookmark", "charges", "covers_all_rows", "requires_all", "version")

    def __init__(
        self, charges: tuple[HostCount | DomainCount, ...], requires_all: bool, bookmark: JournalCursor, *, whole: bool
    ) -> None:
        self.charges = charges
        self.requires_all = requires_all
        self.bookmark = bookmark
        self.covers_all_rows = whole
        self.version = next_version()
        self._groups: _ScoreGroups | None = None
        self._counted: dict[NamespacedLabels, list[bool]] = {}

    def is_for(self, cycle: Cycle, nodes: NodeTable) -> bool:
        """Whether it was counted for these candidates."""
        return self.covers_all_rows and nodes.is_all_of(cycle.snapshot)

    def follow(self, snapshot: Snapshot, basis: Hashable, namespace: str) -> bool:
        """Count the pods that came and went since; false where that does not do."""
        changes = self.bookmark.changes_since(snapshot, basis)
        if changes is None:
            return False
        for info, row, by in changes:
            if not info.terminating and info.pod.metadata.namespace == namespace:
                self._shift(info, row, by)
        return True

    def _shift(self, info: PodInfo, row: int, by: int) -> None:
        """A pod of the namespace came or went."""
        counted = self._counted.get(info.namespaced_labels)
        if counted is None:
            if len(self._counted) >= _MAX_CACHED_LABELS:
                self._counted.clear()
            counted = self._counted[info.namespaced_labels] = [
                charge.constraint.is_counted(info.pod) for charge in self.charges
            ]
        if True not in counted:
            return
        self.version = next_version()
        for charge, counts in zip(self.charges, counted, strict=True):
            if counts:
                charge.shift(row, by)
                if self._groups is not None and not self._groups.shift(charge, row, by):
                    self._groups = None

    def scores(self, nodes: NodeTable) -> IntVector:
        """More is worse, until they are normalised."""
        total = np.zeros(len(nodes))
        for charge in self.charges:
            total += np.where(
                nodes.label_ids(charge.constraint.topology_key) >= 0, _terms(charge, charge.on(nodes)), 0.0
            )
        scores = _rounded(total)
        scores[self._ignored(nodes)] = 0
        return scores

    def normalized(self, nodes: NodeTable, scores: IntVector) -> IntVector:
        """The least crowded get most; candidates that were ignored get nothing."""
        ignored = self._ignored(nodes)
        compared = scores[~ignored]
        final = _normalized(scores, compared)
        final[ignored] = 0
        return final

    def score_groups(self, nodes: NodeTable) -> ScoreGroups | None:
        """The normalised scores by group; None where rows are not so easily grouped."""
        if not self.covers_all_rows or not nodes.is_whole:
            return None
        if self._groups is None:
            self._groups = _ScoreGroups.of(self, nodes)
        return None if self._groups is None else self._groups.scores()

    def _ignored(self, nodes: NodeTable) -> BoolVector:
        """Candidates that lack a key where all keys are required: they get no score at all."""
        ignored = np.zeros(len(nodes), dtype=np.bool_)
        if self.requires_all:
            for charge in self.charges:
                ignored |= nodes.label_ids(charge.constraint.topology_key) < 0
        return ignored


class _ScoreGroups:
    """Rows by their own count and their domain: those that agree in both have one score."""

    __slots__ = ("_by_domain", "_by_level", "_charged", "_domain", "_host", "_of_row", "_population", "_size")

    def __init__(
        self, host: HostCount | None, domain: DomainCount | None, levels: int, of_row: RowVector, groups: int
    ) -> None:
        self._host = host
        self._domain = domain
        self._by_level: list[float] = [0.0] if host is None else _terms(host, np.arange(levels)).tolist()
        self._by_domain: list[float] = [0.0]
        if domain is not None:
            self._by_domain = _terms(domain, domain.counts).tolist()
            self._by_domain[-1] = 0.0
        self._of_row = of_row
        self._size = groups
        numbers, counts = np.unique(of_row, return_counts=True)
        self._population: dict[int, int] = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        self._charged = {group: self._count_group(group) for group in self._population}  # before it is normalised

    def _count_group(self, group: int) -> int:
        levels = len(self._by_level)
        total = self._by_domain[group // levels] + self._by_level[group % levels]
        whole = int(total)
        return whole + (total - whole >= 0.5)

    @classmethod
    def of(cls, state: SoftState, nodes: NodeTable) -> _ScoreGroups | None:
        """None where rows are not so easily grouped."""
        hosts = [charge for charge in state.charges if isinstance(charge, HostCount)]
        domains = [charge for charge in state.charges if isinstance(charge, DomainCount)]
        if len(hosts) > 1 or len(domains) > 1 or not len(nodes):
            return None
        missing = [(nodes.label_ids(charge.constraint.topology_key) < 0).any() for charge in state.charges]
        if any(missing) and (state.requires_all or (hosts and missing[state.charges.index(hosts[0])])):
            return None
        host, domain = next(iter(hosts), None), next(iter(domains), None)
        levels = int(host.counts.max()) + 2 if host is not None else 1
        values = len(domain.counts) if domain is not None else 1
        if levels * values > _MAX_GROUPS:
            return None
        of_row = np.zeros(len(nodes), dtype=np.intp)
        if domain is not None:
            of_row += np.where(domain.ids < 0, values - 1, domain.ids)
            of_row *= levels
        if host is not None:
            of_row += host.counts
        return cls(host, domain, levels, of_row, levels * values)

    def shift(self, charge: HostCount | DomainCount, row: int, by: int) -> bool:
        """A count has changed; false where there is no group for it."""
        if charge is self._domain:
            self._count_domain(charge, charge.ids.item(row))
            return True
        group = self._of_row.item(row)
        if not 0 <= group % len(self._by_level) + by < len(self._by_level):
            return False
        population = self._population
        if group + by in population:
            population[group + by] += 1
        else:
            population[group + by] = 1
            self._charged[group + by] = self._count_group(group + by)
        population[group] -= 1
        if not population[group]:
            del population[group], self._charged[group]
        self._of_row[row] = group + by
        return True

    def _count_domain(self, charge: DomainCount, domain: int) -> None:
        if domain < 0:
            return
        self._by_domain[domain] = _term(charge, charge.counts.item(domain))
        levels = len(self._by_level)
        for group in range(domain * levels, (domain + 1) * levels):
            if group in self._population:
                self._charged[group] = self._count_group(group)

    def scores(self) -> ScoreGroups:
        """One by one: rows fall into a dozen groups, usually."""
        charged = self._charged
        least, most = min(charged.values()), max(charged.values())
        final = [MAX_SCORE] * self._size
        if not most:
            return ScoreGroups(final, self._of_row, MAX_SCORE, MAX_SCORE)
        for group, score in charged.items():
            final[group] = MAX_SCORE * (most + least - score) // most
        return ScoreGroups(final, self._of_row, MAX_SCORE * least // most, MAX_SCORE)


def _term(charge: HostCount | DomainCount, count: int) -> float:
    return count * charge.weight + (charge.constraint.max_skew - 1)


def _terms(charge: HostCount | DomainCount, counts: IntVector) -> FloatVector:
    terms: FloatVector = counts.astype(np.float64)
    terms *= charge.weight
    terms += charge.constraint.max_skew - 1
    return terms


def _rounded(total: FloatVector) -> IntVector:
    """To the nearest whole number: never negative, so that half goes up, as in Go."""
    whole = np.floor(total)
    return (whole + (total - whole >= 0.5)).astype(np.int64)


def _normalized(scores: IntVector, compared: IntVector) -> IntVector:
    largest = int(compared.max(initial=0))
    if largest == 0:
        return np.full(len(scores), MAX_SCORE, dtype=np.int64)
    final: IntVector = MAX_SCORE * (largest + int(compared.min()) - scores) // largest
    return final
