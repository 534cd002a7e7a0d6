"""Filters and scores nodes by affinity and anti-affinity between the pod and the pods on nodes, in both directions.

Required terms are counted at PreFilter and checked at Filter. Preferred terms, also those of pods on nodes, are counted
at PreScore. Terms of existing pods are evaluated once for each distinct set of terms, terms of the incoming pod once
for each distinct kind of pod. Counts by domain are sums over columns. No Python loop over nodes or pods.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import MAX_SCORE, Rejection
from bayplan.framework.api.plugin_traits import PluginTraits
from bayplan.framework.api.status import SKIP, Code, Status, error
from bayplan.objects.core import Namespace, Pod
from bayplan.objects.selectors.pod_affinity import (
    AffinityTerm,
    NamespaceLabels,
    PodAffinityTerms,
    WeightedTerm,
    affinity_terms,
)
from bayplan.plugins.inter_pod_affinity import args as arguments
from bayplan.plugins.inter_pod_affinity.hints import (
    affinity_hint_input,
    hint_on_node_change,
    hint_on_other_pod_change,
    hint_on_pod_change,
    matches_all,
)
from bayplan.plugins.pod_journal_cursor import JournalCursor, next_version
from bayplan.snapshot import BoolVector, Catalog, IntVector, LabelColumn, NamespacedLabels, NodeInfo, NodeTable, PodInfo
from bayplan.snapshot.columns import NodeColumns

AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"

_NO_TERMS = PodAffinityTerms()
_NO_LABELS: Mapping[str, str] = {}


class DomainCounts:
    """A number for each value of each topology key: a count of pods, or a sum of weights."""

    __slots__ = ("by_key",)

    def __init__(self, by_key: dict[str, IntVector] | None = None) -> None:
        self.by_key = by_key if by_key is not None else {}

    def of(self, column: LabelColumn) -> IntVector:
        """Return the counts of one key by value id. The last entry, used by rows without the key, stays 0."""
        length = len(column.values) + 1
        counts = self.by_key.get(column.key)
        if counts is None or len(counts) < length:
            resized = np.zeros(length, dtype=np.int64)
            if counts is not None:
                resized[: len(counts) - 1] = counts[:-1]
            counts = self.by_key[column.key] = resized
        return counts

    def add_rows(self, nodes: NodeTable, key: str, per_row: IntVector) -> None:
        """Add a number for each row to the domain of the row."""
        ids = nodes.label_ids(key)
        counts = self.of(nodes.label(key))
        touched = per_row.nonzero()[0]
        where = ids[touched]
        has_key = where >= 0
        np.add.at(counts, where[has_key], per_row[touched[has_key]])

    def add_node(self, columns: NodeColumns, labels: Mapping[str, str], key: str, delta: int) -> None:
        value = labels.get(key)
        if value is not None:
            column = columns.labels.column(key)
            self.of(column)[column.find(value)] += delta

    def shift(self, columns: NodeColumns, labels: Mapping[str, str], key: str, delta: int) -> bool:
        """Add to the domain of one node.

        Returns whether its count became positive or zero and it has other nodes too.
        """
        value = labels.get(key)
        if value is None:
            return False
        column = columns.labels.column(key)
        counts, domain = self.of(column), column.find(value)
        before = counts.item(domain)
        counts[domain] = before + delta
        if (before > 0) == (before + delta > 0):
            return False
        return int(np.count_nonzero(column.ids[: columns.count] == domain)) > 1

    def at(self, node: NodeInfo, key: str) -> int:
        """Return the count of one node's domain for a key; 0 without the key."""
        column = node.columns.labels.column(key)
        domain = column.ids.item(node.row)
        return self.of(column).item(domain) if domain >= 0 else 0

    def on(self, nodes: NodeTable, key: str) -> IntVector:
        """Return the count of each entry's domain for one key; 0 without the key."""
        counts = self.of(nodes.label(key))
        return counts[nodes.label_ids(key)]

    @property
    def any(self) -> bool:
        return any(counts.any() for counts in self.by_key.values())

    def copy(self) -> DomainCounts:
        return DomainCounts({key: counts.copy() for key, counts in self.by_key.items()})


@dataclass(slots=True)
class RequiredState:
    """Counts for the required terms of existing pods against this pod, and of this pod about existing pods."""

    terms: PodAffinityTerms
    cursor: JournalCursor
    existing_anti: DomainCounts = field(default_factory=DomainCounts)
    affinity: DomainCounts = field(default_factory=DomainCounts)
    anti_affinity: DomainCounts = field(default_factory=DomainCounts)
    version: int = field(default_factory=next_version)

    def copy(self) -> RequiredState:
        return RequiredState(
            self.terms,
            self.cursor.copy(),
            self.existing_anti.copy(),
            self.affinity.copy(),
            self.anti_affinity.copy(),
            self.version,
        )

    @property
    def is_relevant(self) -> bool:
        """Whether any node can be rejected."""
        return bool(self.terms.required or self.terms.required_anti or self.existing_anti.any)


@dataclass(slots=True)
class PreferredState:
    """Weights by domain, and whether any term was ever counted: weights that sum to 0 still count."""

    terms: PodAffinityTerms
    cursor: JournalCursor
    counts: DomainCounts = field(default_factory=DomainCounts)
    any_entry: bool = False
    version: int = field(default_factory=next_version)

    def add_by_row(self, nodes: NodeTable, key: str, weight: int, pods_by_row: IntVector) -> None:
        self.any_entry |= bool(((pods_by_row > 0) & (nodes.label_ids(key) >= 0)).any())
        self.counts.add_rows(nodes, key, weight * pods_by_row)

    def add_node(self, node: NodeInfo, key: str, weight: int) -> None:
        """Count one more pod on a node."""
        self.any_entry |= key in node.labels
        self.counts.add_node(node.columns, node.labels, key, weight)
        self.version = next_version()


REQUIRED: StateKey[RequiredState] = StateKey("PreFilterInterPodAffinity", clone=RequiredState.copy)
PREFERRED: StateKey[PreferredState] = StateKey("PreScoreInterPodAffinity")


@dataclass(slots=True)
class NoMatchingPods:
    """State of a pod without any matching pod: no required term rejects a node, or no preferred term counts."""

    terms: PodAffinityTerms
    cursor: JournalCursor


NO_REQUIRED_MATCHES: StateKey[NoMatchingPods] = StateKey("PreFilterInterPodAffinity/quiet")
NO_PREFERRED_MATCHES: StateKey[NoMatchingPods] = StateKey("PreScoreInterPodAffinity/quiet")


class InterPodAffinity:
    """Places pods near some pods and away from other pods."""

    name = "InterPodAffinity"
    events_to_register = (
        ClusterEventWithHint(
            EventResource.POD,
            ActionType.ADD | ActionType.UPDATE_POD_LABEL | ActionType.DELETE,
            hint_on_pod_change,
            hint_key=affinity_hint_input,
            keyed_hint=hint_on_other_pod_change,
        ),
        ClusterEventWithHint.with_hint_key(
            EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_LABEL, affinity_hint_input, hint_on_node_change
        ),
    )
    ARGS = arguments.ARGS
    affinity_events: BoolVector | None = None  # rows whose pods' own terms count, by kind of term; None: all rows
    anti_affinity_events: BoolVector | None = None

    def __init__(self, args: arguments.InterPodAffinityArgs, catalog: Catalog) -> None:
        self._hard_weight = args.hard_pod_affinity_weight
        self._ignores_preferred = args.ignore_preferred_terms_of_existing_pods
        self._catalog = catalog

    @classmethod
    def factory(cls, args: arguments.InterPodAffinityArgs, handle: Handle) -> Self:
        return cls(args, handle.catalog)

    def signature(self, pod: Pod) -> Hashable | None:
        return pod.metadata.namespace, frozenset(pod.metadata.labels.items()), affinity_terms(pod)

    def _version(self, cycle: Cycle) -> Hashable:
        """Changes with pods that start or cease to match in domains of several nodes, and with namespace labels."""
        snapshot = cycle.snapshot
        pods = snapshot.pods
        required, no_required, no_preferred = (
            cycle.find(REQUIRED),
            cycle.find(NO_REQUIRED_MATCHES),
            cycle.find(NO_PREFERRED_MATCHES),
        )
        if required is not None and not self._update_required(cycle, required):
            return object()
        if no_required is not None and not self._is_still_unmatched(cycle, no_required, self._is_rejected_by):
            return object()
        if no_preferred is not None and not self._is_still_unmatched(cycle, no_preferred, self._is_preferred):
            return object()
        # 0: no pod has terms
        affinity_version = pods.affinity_version if required is None and no_required is None else 0
        return affinity_version, required and required.version, snapshot.renewed.end, self._catalog.revision(Namespace)

    def _scores_version(self, cycle: Cycle) -> Hashable:
        """Changes with every pod that a preferred term matches."""
        preferred_state = cycle.find(PREFERRED)
        return (
            preferred_state.version
            if preferred_state is not None and self._update_preferred(cycle, preferred_state)
            else object()
        )

    def _is_not_applicable(self, cycle: Cycle) -> bool:
        """Whether no pod has affinity terms."""
        if cycle.info.affinity is not None or cycle.snapshot.pods.affinity_users:
            return False
        for key in (REQUIRED, PREFERRED, NO_REQUIRED_MATCHES, NO_PREFERRED_MATCHES):
            cycle.delete(key)
        return True

    traits = PluginTraits(depends_on=_version, scores_depend_on=_scores_version, not_applicable=_is_not_applicable)

    def pre_filter(self, cycle: Cycle) -> Status | None:
        cached = cycle.find(REQUIRED)
        if cached is not None and self._update_required(cycle, cached) and cached.is_relevant:
            return None
        cycle.delete(REQUIRED)
        cycle.delete(NO_REQUIRED_MATCHES)
        terms = self._resolve_namespaces(cycle.info.affinity or _NO_TERMS)
        state = RequiredState(terms, self._journal_cursor(cycle))
        self._count_existing(cycle, state.existing_anti)
        if not state.is_relevant:
            cycle.put(NO_REQUIRED_MATCHES, NoMatchingPods(terms, state.cursor))
            return SKIP
        table = cycle.snapshot.table
        if terms.required:
            per_row = self._matching_by_row(cycle, terms.required)
            for term in terms.required:
                state.affinity.add_rows(table, term.topology_key, per_row)
        for term in terms.required_anti:
            per_row = self._matching_by_row(cycle, (term,))
            state.anti_affinity.add_rows(table, term.topology_key, per_row)
        cycle.put(REQUIRED, state)
        return None

    @property
    def _ignores_some_rows(self) -> bool:
        """Whether terms of pods on some rows do not count: counts are then computed again each time."""
        return self.affinity_events is not None or self.anti_affinity_events is not None

    def _journal_cursor(self, cycle: Cycle) -> JournalCursor:
        return JournalCursor.at(cycle.snapshot, self._catalog.revision(Namespace))

    def _update_required(self, cycle: Cycle, state: RequiredState) -> bool:
        """Count the pods that were added and removed meanwhile. Returns False if everything must be counted again."""
        changes = state.cursor.changes_since(cycle.snapshot, self._catalog.revision(Namespace))
        if changes is None or self._ignores_some_rows:
            return False
        for info, row, delta in changes:
            if self._shift(cycle, state, info, NodeInfo(cycle.snapshot.nodes, row), delta):
                state.version = next_version()  # for other rows than this one, which is evaluated anyway
        return True

    def _is_still_unmatched(
        self, cycle: Cycle, no_matching: NoMatchingPods, breaks: Callable[[Pod, NoMatchingPods, PodInfo], bool]
    ) -> bool:
        """Whether no added or removed pod matches any term."""
        changes = no_matching.cursor.changes_since(cycle.snapshot, self._catalog.revision(Namespace))
        if changes is None:
            return False
        if self._ignores_some_rows and (
            cycle.info.affinity is not None or any(info.affinity is not None for info, _, _ in changes)
        ):
            return False
        if any(breaks(cycle.pod, no_matching, info) for info, _, _ in changes):
            no_matching.cursor.invalidate()
            return False
        return True

    def _is_rejected_by(self, pod: Pod, no_matching: NoMatchingPods, info: PodInfo) -> bool:  # noqa: ARG002
        """Whether the required anti-affinity of an existing pod rejects this pod."""
        terms = info.affinity
        labels_of = self._catalog.namespace_labels
        return terms is not None and any(term.matches_pod(pod, labels_of) for term in terms.required_anti)

    def _is_preferred(self, pod: Pod, no_matching: NoMatchingPods, info: PodInfo) -> bool:
        """Whether a preferred term of either pod matches the other one."""
        if info.affinity is not None and self._reverse_preferences(pod, info.affinity):
            return True
        own_terms = (*no_matching.terms.preferred, *no_matching.terms.preferred_anti)
        return any(matches_all((weighted.term,), info.pod) for weighted in own_terms)

    def add_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> None:
        self._shift(cycle, cycle.get(REQUIRED), info, node, 1)

    def remove_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> None:
        self._shift(cycle, cycle.get(REQUIRED), info, node, -1)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        state = cycle.find(REQUIRED)
        if state is None:
            yield Rejection.from_error(nodes, f'error reading "{REQUIRED.name}" from cycleState: not found')
            return
        no_match = self._no_match_mask(cycle, state, nodes) if state.terms.required else nodes.no_rows_mask
        yield Rejection(no_match, AFFINITY, resolvable=False)
        keys = [term.topology_key for term in state.terms.required_anti]
        anti_affinity_rows = _and_not(_any_counted(state.anti_affinity, nodes, keys), no_match)
        yield Rejection(anti_affinity_rows, ANTI_AFFINITY)
        existing_anti_rows = _and_not(_any_counted(state.existing_anti, nodes, state.existing_anti.by_key), no_match)
        yield Rejection(_and_not(existing_anti_rows, anti_affinity_rows), EXISTING_ANTI_AFFINITY)

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        """Filter one node, to update a few rows."""
        state = cycle.find(REQUIRED)
        if state is None:
            return error(f'error reading "{REQUIRED.name}" from cycleState: not found')
        if state.terms.required and self._no_match_mask(cycle, state, node.single_row_table).any():
            return Status(Code.UNRESOLVABLE, (AFFINITY,))
        if any(state.anti_affinity.at(node, term.topology_key) > 0 for term in state.terms.required_anti):
            return Status(Code.UNSCHEDULABLE, (ANTI_AFFINITY,))
        if any(state.existing_anti.at(node, key) > 0 for key in state.existing_anti.by_key):
            return Status(Code.UNSCHEDULABLE, (EXISTING_ANTI_AFFINITY,))
        return None

    def _no_match_mask(self, cycle: Cycle, state: RequiredState, nodes: NodeTable) -> BoolVector:
        """Return the nodes that lack a term's key or have no matching pod in its domain.

        The first pod of a group matches no existing pod: if no pod in the cluster matches, the pod may match its own
        terms.
        """
        first = not state.affinity.any and matches_all(state.terms.required, cycle.pod)
        no_match: BoolVector | None = None
        for term in state.terms.required:
            key = term.topology_key
            keyless_or_empty = nodes.label_ids(key) < 0 if first else state.affinity.on(nodes, key) <= 0
            no_match = keyless_or_empty if no_match is None else no_match | keyless_or_empty
        assert no_match is not None
        return no_match

    def _count_existing(self, cycle: Cycle, counts: DomainCounts) -> None:
        """Count existing pods whose required anti-affinity matches this pod, by the domains of their terms."""
        snapshot, pod = cycle.snapshot, cycle.pod
        for number, terms in snapshot.pods.affinity_terms():
            matching = [term for term in terms.required_anti if term.matches_pod(pod, self._catalog.namespace_labels)]
            if matching:
                per_row = snapshot.pods.count_by_row(snapshot.pods.with_affinity(number), len(snapshot))
                if self.anti_affinity_events is not None:
                    per_row = per_row * self.anti_affinity_events
                for term in matching:
                    counts.add_rows(snapshot.table, term.topology_key, per_row)

    def _matching_by_row(self, cycle: Cycle, terms: tuple[AffinityTerm, ...]) -> IntVector:
        """Count the pods on each row that match all of these terms."""
        pods = cycle.snapshot.pods

        def matches(kind: NamespacedLabels) -> bool:
            return all(term.matches(kind.namespace, kind.labels, _NO_LABELS) for term in terms)

        return pods.count_by_row(pods.matching(("affinity", terms), matches), len(cycle.snapshot))

    def _shift(self, cycle: Cycle, state: RequiredState, info: PodInfo, node: NodeInfo, delta: int) -> bool:
        """Count one pod more or less on a node. Returns whether answers about other nodes may change."""
        columns, labels = node.columns, node.labels
        other_rows_affected = False
        for term in (info.affinity or _NO_TERMS).required_anti:
            if term.matches_pod(cycle.pod, self._catalog.namespace_labels):
                other_rows_affected |= state.existing_anti.shift(columns, labels, term.topology_key, delta)
        if state.terms.required and matches_all(state.terms.required, info.pod):
            no_match = not state.affinity.any
            for term in state.terms.required:
                other_rows_affected |= state.affinity.shift(columns, labels, term.topology_key, delta)
            # the first pod of a group may be placed anywhere
            other_rows_affected |= no_match != (not state.affinity.any)
        for term in state.terms.required_anti:
            if matches_all((term,), info.pod):
                other_rows_affected |= state.anti_affinity.shift(columns, labels, term.topology_key, delta)
        return other_rows_affected

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        cached = cycle.find(PREFERRED)
        if cached is not None and self._update_preferred(cycle, cached):
            return None
        cycle.delete(PREFERRED)
        cycle.delete(NO_PREFERRED_MATCHES)
        own_terms = self._resolve_namespaces(cycle.info.affinity or _NO_TERMS)
        if self._ignores_preferred and not (own_terms.preferred or own_terms.preferred_anti):
            return SKIP
        preferred_state = PreferredState(own_terms, self._journal_cursor(cycle))
        table = cycle.snapshot.table
        for weighted in own_terms.preferred:
            matching = self._matching_by_row(cycle, (weighted.term,))
            preferred_state.add_by_row(table, weighted.term.topology_key, weighted.weight, matching)
        for weighted in own_terms.preferred_anti:
            matching = self._matching_by_row(cycle, (weighted.term,))
            preferred_state.add_by_row(table, weighted.term.topology_key, -weighted.weight, matching)
        pods = cycle.snapshot.pods
        for number, terms in pods.affinity_terms():
            term_weights = self._reverse_preferences(cycle.pod, terms)
            if term_weights:
                per_row = pods.count_by_row(pods.with_affinity(number), len(cycle.snapshot))
                if self.affinity_events is not None and not (own_terms.preferred or own_terms.preferred_anti):
                    per_row = per_row * self.affinity_events
                for key, weight in term_weights:
                    preferred_state.add_by_row(table, key, weight, per_row)
        if not preferred_state.any_entry:
            cycle.put(NO_PREFERRED_MATCHES, NoMatchingPods(own_terms, preferred_state.cursor))
            return SKIP
        cycle.put(PREFERRED, preferred_state)
        return None

    def _update_preferred(self, cycle: Cycle, preferred_state: PreferredState) -> bool:
        """Count the pods added meanwhile.

        Returns False if a matching pod was removed: it may have been the only one.
        """
        changes = preferred_state.cursor.changes_since(cycle.snapshot, self._catalog.revision(Namespace))
        if changes is None or self._ignores_some_rows:
            return False
        for info, row, delta in changes:
            key_weights = [
                (weighted.term.topology_key, sign * weighted.weight)
                for sign, terms in ((1, preferred_state.terms.preferred), (-1, preferred_state.terms.preferred_anti))
                for weighted in terms
                if matches_all((weighted.term,), info.pod)
            ]
            if info.affinity is not None:
                key_weights += self._reverse_preferences(cycle.pod, info.affinity)
            if key_weights and delta < 0:
                preferred_state.cursor.invalidate()
                return False
            for key, weight in key_weights:
                preferred_state.add_node(NodeInfo(cycle.snapshot.nodes, row), key, weight)
        return True

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector | Status:
        preferred_state = cycle.find(PREFERRED)
        if preferred_state is None:
            return error(f'failed to read "{PREFERRED.name}" from cycleState: not found')
        total = np.zeros(len(nodes), dtype=np.int64)
        for key in preferred_state.counts.by_key:
            total += preferred_state.counts.on(nodes, key)
        return total

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        """Scale the lowest score to 0 and the highest to 100. The quotient is computed first, as upstream does."""
        lowest, highest = int(scores.min()), int(scores.max())
        if highest == lowest:
            return np.zeros(len(scores), dtype=np.int64)
        share = (scores - lowest).astype(np.float64) / float(highest - lowest)
        final: IntVector = (float(MAX_SCORE) * share).astype(np.int64)
        return final

    def _reverse_preferences(self, pod: Pod, terms: PodAffinityTerms) -> list[tuple[str, int]]:
        """Return the weights by topology key that a pod with these terms gives to this pod: preferred and required
        terms.
        """
        key_weights: list[tuple[str, int]] = []
        labels_of = self._catalog.namespace_labels
        if self._hard_weight:
            key_weights += [
                (term.topology_key, self._hard_weight) for term in terms.required if term.matches_pod(pod, labels_of)
            ]
        key_weights += _term_weights(terms.preferred, 1, pod, labels_of)
        key_weights += _term_weights(terms.preferred_anti, -1, pod, labels_of)
        return key_weights

    def _resolve_namespaces(self, terms: PodAffinityTerms) -> PodAffinityTerms:
        """Replace namespace selectors in the pod's own terms by the matching namespaces.

        The selector stays in the term and is evaluated once more, with no labels: kube-scheduler 1.36 does the same. A
        selector with only NotIn and DoesNotExist therefore matches every namespace.
        """

        def resolve(term: AffinityTerm) -> AffinityTerm:
            if term.namespace_selector.nothing or term.namespace_selector.everything:
                return term
            named = frozenset(
                name
                for name, namespace in self._catalog.namespaces.items()
                if term.namespace_selector.matches(namespace.metadata.labels)
            )
            return AffinityTerm(term.topology_key, term.selector, term.namespaces | named, term.namespace_selector)

        def weighted(items: tuple[WeightedTerm, ...]) -> tuple[WeightedTerm, ...]:
            return tuple(WeightedTerm(item.weight, resolve(item.term)) for item in items)

        return PodAffinityTerms(
            required=tuple(map(resolve, terms.required)),
            preferred=weighted(terms.preferred),
            required_anti=tuple(map(resolve, terms.required_anti)),
            preferred_anti=weighted(terms.preferred_anti),
        )


def _any_counted(counts: DomainCounts, nodes: NodeTable, keys: Iterable[str]) -> BoolVector:
    """Return the entries in a domain with a positive count. Domains are checked first, because there are fewer."""
    found = nodes.no_rows_mask
    for key in keys:
        counted = counts.of(nodes.label(key)) > 0
        if counted.any():
            rows_of_key = counted[nodes.label_ids(key)]
            found = rows_of_key if found is nodes.no_rows_mask else found | rows_of_key
    return found


def _and_not(mask: BoolVector, excluded: BoolVector) -> BoolVector:
    """Return the entries of one mask without those of another one. Often one of them is empty."""
    return mask if not mask.any() or not excluded.any() else mask & ~excluded


def _term_weights(
    terms: Iterable[WeightedTerm], sign: int, pod: Pod, labels_of: NamespaceLabels
) -> Iterator[tuple[str, int]]:
    """Yield topology key and signed weight of each term that matches the pod."""
    for weighted in terms:
        if weighted.term.matches_pod(pod, labels_of):
            yield weighted.term.topology_key, sign * weighted.weight
