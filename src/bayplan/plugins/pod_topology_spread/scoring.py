"""Scores of soft topology spread constraints.

A soft constraint counts matching pods for each row: the pods of the row itself for the hostname, the pods of all rows
in the row's domain for any other key. Counts are updated incrementally. If all rows are candidates, and there is at
most one constraint of each sort, a row's score depends only on its own count and its domain. Scores are then computed
for each pair of these (`_ScoreGroups`) and assigned to the rows. Cost: two `take` over all rows.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.framework.api.plugin_traits import ScoreGroups
from bayplan.plugins.pod_journal_cursor import JournalCursor, next_version
from bayplan.plugins.pod_topology_spread.constraints import SpreadConstraint
from bayplan.snapshot import BoolVector, IdVector, IntVector, NamespacedLabels, NodeTable, PodInfo, RowVector, Snapshot

FloatVector = npt.NDArray[np.float64]

_MAX_GROUPS = 256
_MAX_CACHED_LABELS = 1024


def domain_sums(ids: IdVector, amounts: IntVector, domains: int) -> IntVector:
    """Sum the amounts of the rows of each domain. The last entry stands for rows without the key and stays 0."""
    has_key = ids >= 0
    if not has_key.all():
        ids, amounts = ids[has_key], amounts[has_key]
    return np.bincount(ids, weights=amounts, minlength=domains).astype(np.int64)


class HostCount:
    """Counts of the matching pods on each row."""

    __slots__ = ("constraint", "counts", "weight")

    def __init__(self, constraint: SpreadConstraint, weight: float, counts: IntVector) -> None:
        self.constraint = constraint
        self.weight = weight
        self.counts = counts  # by row

    def on(self, nodes: NodeTable) -> IntVector:
        return nodes.column_at_rows(self.counts)

    def shift(self, row: int, delta: int) -> None:
        self.counts[row] = self.counts.item(row) + delta


class DomainCount:
    """Counts of the matching pods in the domain of each row."""

    __slots__ = ("constraint", "counts", "ids", "included", "weight")

    def __init__(
        self, constraint: SpreadConstraint, weight: float, counts: IntVector, ids: IdVector, included: BoolVector
    ) -> None:
        self.constraint = constraint
        self.weight = weight
        self.counts = counts  # by domain; the last entry, used by rows without the key, stays 0
        self.ids = ids  # the domain of each row
        self.included = included  # rows whose pods count

    def on(self, nodes: NodeTable) -> IntVector:
        return self.counts[nodes.column_at_rows(self.ids)]

    def shift(self, row: int, delta: int) -> None:
        domain = self.ids.item(row)
        if domain >= 0 and self.included.item(row):
            self.counts[domain] = self.counts.item(domain) + delta


class SoftState:
    """State of Score. `version` changes with every count. `covers_all_rows`: the candidates are all rows."""

    __slots__ = ("_counted", "_groups", "covers_all_rows", "cursor", "requires_all", "topology_counts", "version")

    def __init__(
        self,
        topology_counts: tuple[HostCount | DomainCount, ...],
        requires_all: bool,
        cursor: JournalCursor,
        *,
        covers_all_rows: bool,
    ) -> None:
        self.topology_counts = topology_counts
        self.requires_all = requires_all
        self.cursor = cursor
        self.covers_all_rows = covers_all_rows
        self.version = next_version()
        self._groups: _ScoreGroups | None = None
        self._counted: dict[NamespacedLabels, list[bool]] = {}

    def is_for(self, cycle: Cycle, nodes: NodeTable) -> bool:
        """Whether the state is valid for these candidates."""
        return self.covers_all_rows and nodes.is_all_of(cycle.snapshot)

    def follow(self, snapshot: Snapshot, basis: Hashable, namespace: str) -> bool:
        """Count the pods added and removed meanwhile. Returns False if everything must be counted again."""
        changes = self.cursor.changes_since(snapshot, basis)
        if changes is None:
            return False
        for info, row, delta in changes:
            if not info.terminating and info.pod.metadata.namespace == namespace:
                self._shift(info, row, delta)
        return True

    def _shift(self, info: PodInfo, row: int, delta: int) -> None:
        """Count an added or removed pod of the namespace."""
        counted = self._counted.get(info.namespaced_labels)
        if counted is None:
            if len(self._counted) >= _MAX_CACHED_LABELS:
                self._counted.clear()
            counted = self._counted[info.namespaced_labels] = [
                topology_count.constraint.is_counted(info.pod) for topology_count in self.topology_counts
            ]
        if True not in counted:
            return
        self.version = next_version()
        for topology_count, counts in zip(self.topology_counts, counted, strict=True):
            if counts:
                topology_count.shift(row, delta)
                if self._groups is not None and not self._groups.shift(topology_count, row, delta):
                    self._groups = None

    def scores(self, nodes: NodeTable) -> IntVector:
        """Return the raw scores. Higher is worse until they are normalized."""
        total = np.zeros(len(nodes))
        for topology_count in self.topology_counts:
            total += np.where(
                nodes.label_ids(topology_count.constraint.topology_key) >= 0,
                _terms(topology_count, topology_count.on(nodes)),
                0.0,
            )
        scores = _round(total)
        scores[self._ignored_rows(nodes)] = 0
        return scores

    def normalize(self, nodes: NodeTable, scores: IntVector) -> IntVector:
        """Scale the scores: the lowest raw score becomes the highest. Ignored candidates get 0."""
        ignored = self._ignored_rows(nodes)
        compared = scores[~ignored]
        final = _normalize(scores, compared)
        final[ignored] = 0
        return final

    def score_groups(self, nodes: NodeTable) -> ScoreGroups | None:
        """Return the normalized scores by group; None if rows cannot be grouped."""
        if not self.covers_all_rows or not nodes.is_whole:
            return None
        if self._groups is None:
            self._groups = _ScoreGroups.of(self, nodes)
        return None if self._groups is None else self._groups.scores()

    def _ignored_rows(self, nodes: NodeTable) -> BoolVector:
        """Return the candidates that lack a key although all keys are required. They get no score."""
        ignored = np.zeros(len(nodes), dtype=np.bool_)
        if self.requires_all:
            for topology_count in self.topology_counts:
                ignored |= nodes.label_ids(topology_count.constraint.topology_key) < 0
        return ignored


class _ScoreGroups:
    """Rows grouped by their own count and their domain. Rows of one group have one score."""

    __slots__ = ("_by_domain", "_by_level", "_domain", "_host", "_of_row", "_population", "_raw_scores", "_size")

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
        self._raw_scores = {group: self._raw_score(group) for group in self._population}  # before normalization

    def _raw_score(self, group: int) -> int:
        levels = len(self._by_level)
        total = self._by_domain[group // levels] + self._by_level[group % levels]
        whole_number = int(total)
        return whole_number + (total - whole_number >= 0.5)

    @classmethod
    def of(cls, state: SoftState, nodes: NodeTable) -> _ScoreGroups | None:
        """Build the groups; None if rows cannot be grouped."""
        hosts = [topology_count for topology_count in state.topology_counts if isinstance(topology_count, HostCount)]
        domains = [
            topology_count for topology_count in state.topology_counts if isinstance(topology_count, DomainCount)
        ]
        if len(hosts) > 1 or len(domains) > 1 or not len(nodes):
            return None
        missing = [
            (nodes.label_ids(topology_count.constraint.topology_key) < 0).any()
            for topology_count in state.topology_counts
        ]
        if any(missing) and (state.requires_all or (hosts and missing[state.topology_counts.index(hosts[0])])):
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

    def shift(self, topology_count: HostCount | DomainCount, row: int, delta: int) -> bool:
        """Update a changed count. Returns False if there is no group for it."""
        if topology_count is self._domain:
            self._update_domain(topology_count, topology_count.ids.item(row))
            return True
        group = self._of_row.item(row)
        if not 0 <= group % len(self._by_level) + delta < len(self._by_level):
            return False
        population = self._population
        if group + delta in population:
            population[group + delta] += 1
        else:
            population[group + delta] = 1
            self._raw_scores[group + delta] = self._raw_score(group + delta)
        population[group] -= 1
        if not population[group]:
            del population[group], self._raw_scores[group]
        self._of_row[row] = group + delta
        return True

    def _update_domain(self, topology_count: DomainCount, domain: int) -> None:
        if domain < 0:
            return
        self._by_domain[domain] = _term(topology_count, topology_count.counts.item(domain))
        levels = len(self._by_level)
        for group in range(domain * levels, (domain + 1) * levels):
            if group in self._population:
                self._raw_scores[group] = self._raw_score(group)

    def scores(self) -> ScoreGroups:
        """Return the normalized scores by group, computed in Python: usually there are about a dozen groups."""
        raw_scores = self._raw_scores
        lowest, highest = min(raw_scores.values()), max(raw_scores.values())
        final = [MAX_SCORE] * self._size
        if not highest:
            return ScoreGroups(final, self._of_row, MAX_SCORE, MAX_SCORE)
        for group, score in raw_scores.items():
            final[group] = MAX_SCORE * (highest + lowest - score) // highest
        return ScoreGroups(final, self._of_row, MAX_SCORE * lowest // highest, MAX_SCORE)


def _term(topology_count: HostCount | DomainCount, count: int) -> float:
    return count * topology_count.weight + (topology_count.constraint.max_skew - 1)


def _terms(topology_count: HostCount | DomainCount, counts: IntVector) -> FloatVector:
    terms: FloatVector = counts.astype(np.float64)
    terms *= topology_count.weight
    terms += topology_count.constraint.max_skew - 1
    return terms


def _round(total: FloatVector) -> IntVector:
    """Round to the nearest whole number. Values are not negative, so halves round up, as in Go."""
    whole_number = np.floor(total)
    return (whole_number + (total - whole_number >= 0.5)).astype(np.int64)


def _normalize(scores: IntVector, compared: IntVector) -> IntVector:
    largest = int(compared.max(initial=0))
    if largest == 0:
        return np.full(len(scores), MAX_SCORE, dtype=np.int64)
    final: IntVector = MAX_SCORE * (largest + int(compared.min()) - scores) // largest
    return final
