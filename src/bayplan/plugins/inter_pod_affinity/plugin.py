"""Which nodes are near the pods that this one wants to be near, and far from those it avoids, both ways round?

Required terms are counted at PreFilter and checked at Filter, preferred ones (and what the pods already there prefer)
at PreScore. Terms of existing pods are evaluated once a distinct set of terms, terms of the incoming pod once a
distinct kind of pod; counts by domain come from sums over columns. No Python loop over nodes or pods.
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
from bayplan.framework.api.status import (
    SKIP,
    Code,
    Status,
    error,
)
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
    """A number for each value of each topology key: how many pods, or how much a node there is liked."""

    __slots__ = ("by_key",)

    def __init__(self, by_key: dict[str, IntVector] | None = None) -> None:
        self.by_key = by_key if by_key is not None else {}

    def of(self, column: LabelColumn) -> IntVector:
        """The counts of one key, by value id; the last entry, where rows without the key point, stays 0."""
        wanted = len(column.values) + 1
        counts = self.by_key.get(column.key)
        if counts is None or len(counts) < wanted:
            grown = np.zeros(wanted, dtype=np.int64)
            if counts is not None:
                grown[: len(counts) - 1] = counts[:-1]
            counts = self.by_key[column.key] = grown
        return counts

    def add_rows(self, nodes: NodeTable, key: str, per_row: IntVector) -> None:
        """Add a number for each row to the domain of the row."""
        ids = nodes.label_ids(key)
        counts = self.of(nodes.label(key))
        touched = per_row.nonzero()[0]
        where = ids[touched]
        keyed = where >= 0
        np.add.at(counts, where[keyed], per_row[touched[keyed]])

    def add_node(self, columns: NodeColumns, labels: Mapping[str, str], key: str, by: int) -> None:
        """Add to the domain of one node."""
        value = labels.get(key)
        if value is not None:
            column = columns.labels.column(key)
            self.of(column)[column.find(value)] += by

    def shift(self, columns: NodeColumns, labels: Mapping[str, str], key: str, by: int) -> bool:
        """The same; whether the domain came to have somebody, or has nobody any more, and has other nodes too."""
        value = labels.get(key)
        if value is None:
            return False
        column = columns.labels.column(key)
        counts, domain = self.of(column), column.find(value)
        before = counts.item(domain)
        counts[domain] = before + by
        if (before > 0) == (before + by > 0):
            return False
        return int(np.count_nonzero(column.ids[: columns.count] == domain)) > 1

    def at(self, node: NodeInfo, key: str) -> int:
        """What one node reads for a key; 0 without it."""
        column = node.columns.labels.column(key)
        domain = column.ids.item(node.row)
        return self.of(column).item(domain) if domain >= 0 else 0

    def on(self, nodes: NodeTable, key: str) -> IntVector:
        """What each entry of a table reads for one key; 0 without the key."""
        counts = self.of(nodes.label(key))
        return counts[nodes.label_ids(key)]

    @property
    def any(self) -> bool:
        return any(counts.any() for counts in self.by_key.values())

    def copy(self) -> DomainCounts:
        return DomainCounts({key: counts.copy() for key, counts in self.by_key.items()})


@dataclass(slots=True)
class RequiredState:
    """Counts for the required terms: of pods already there against us, and of ours for and against them."""

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
        """Whether any node can be turned down."""
        return bool(self.terms.required or self.terms.required_anti or self.existing_anti.any)


@dataclass(slots=True)
class PreferredState:
    """How much nodes are liked by domain, and whether anything was ever counted: sums that cancel out still count."""

    terms: PodAffinityTerms
    bookmark: JournalCursor
    counts: DomainCounts = field(default_factory=DomainCounts)
    any_entry: bool = False
    version: int = field(default_factory=next_version)

    def add_by_row(self, nodes: NodeTable, key: str, weight: int, pods_by_row: IntVector) -> None:
        self.any_entry |= bool(((pods_by_row > 0) & (nodes.label_ids(key) >= 0)).any())
        self.counts.add_rows(nodes, key, weight * pods_by_row)

    def add_node(self, node: NodeInfo, key: str, weight: int) -> None:
        """One pod more on a node."""
        self.any_entry |= key in node.labels
        self.counts.add_node(node.columns, node.labels, key, weight)
        self.version = next_version()


REQUIRED: StateKey[RequiredState] = StateKey("PreFilterInterPodAffinity", clone=RequiredState.copy)
PREFERRED: StateKey[PreferredState] = StateKey("PreScoreInterPodAffinity")


@dataclass(slots=True)
class NoMatchingPods:
    """Nothing was found to filter by; or nobody who is liked by the pod, which has these terms, or likes it."""

    terms: PodAffinityTerms
    bookmark: JournalCursor


NO_REQUIRED_MATCHES: StateKey[NoMatchingPods] = StateKey("PreFilterInterPodAffinity/quiet")
NO_PREFERRED_MATCHES: StateKey[NoMatchingPods] = StateKey("PreScoreInterPodAffinity/quiet")


class InterPodAffinity:
    """Places pods near some pods and away from others."""

    name = "InterPodAffinity"
    cured_by = (
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

    def depends_on(self, cycle: Cycle) -> Hashable:
        """On pods that come to count, or no longer do, in domains of more than one node; on labels."""
        snapshot = cycle.snapshot
        pods = snapshot.pods
        required, unfiltered, unliked = (
            cycle.find(REQUIRED),
            cycle.find(NO_REQUIRED_MATCHES),
            cycle.find(NO_PREFERRED_MATCHES),
        )
        if required is not None and not self._update_required(cycle, required):
            return object()
        if unfiltered is not None and not self._still_no_matches(cycle, unfiltered, self._is_rejected_by):
            return object()
        if unliked is not None and not self._still_no_matches(cycle, unliked, self._is_preferred):
            return object()
        seen = pods.affinity_version if required is None and unfiltered is None else 0  # nobody has terms
        return seen, required and required.version, snapshot.renewed.end, self._catalog.revision(Namespace)

    def scores_depend_on(self, cycle: Cycle) -> Hashable:
        """On every pod that is liked, or likes."""
        liked = cycle.find(PREFERRED)
        return liked.version if liked is not None and self._update_preferred(cycle, liked) else object()

    def sits_out(self, cycle: Cycle) -> bool:
        """Where nobody has terms."""
        if cycle.info.affinity is not None or cycle.snapshot.pods.affinity_users:
            return False
        for key in (REQUIRED, PREFERRED, NO_REQUIRED_MATCHES, NO_PREFERRED_MATCHES):
            cycle.delete(key)
        return True

    # filtering --------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: Cycle) -> Status | None:
        known = cycle.find(REQUIRED)
        if known is not None and self._update_required(cycle, known) and known.is_relevant:
            return None
        cycle.delete(REQUIRED)
        cycle.delete(NO_REQUIRED_MATCHES)
        terms = self._resolved(cycle.info.affinity or _NO_TERMS)
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
    def _registers_events(self) -> bool:
        """Whether terms of pods on some rows do not count: then counts are made anew each time."""
        return self.affinity_events is not None or self.anti_affinity_events is not None

    def _journal_cursor(self, cycle: Cycle) -> JournalCursor:
        return JournalCursor.at(cycle.snapshot, self._catalog.revision(Namespace))

    def _update_required(self, cycle: Cycle, state: RequiredState) -> bool:
        """Count the pods that came and went since; false where that does not do."""
        changes = state.cursor.changes_since(cycle.snapshot, self._catalog.revision(Namespace))
        if changes is None or self._registers_events:
            return False
        for info, row, by in changes:
            if self._shift(cycle, state, info, NodeInfo(cycle.snapshot.nodes, row), by):
                state.version = next_version()  # on other rows than this one, which is asked about anyway
        return True

    def _still_no_matches(
        self, cycle: Cycle, quiet: NoMatchingPods, breaks: Callable[[Pod, NoMatchingPods, PodInfo], bool]
    ) -> bool:
        """Whether the pods that came and went since are of no matter."""
        changes = quiet.bookmark.changes_since(cycle.snapshot, self._catalog.revision(Namespace))
        if changes is None:
            return False
        if self._registers_events and (
            cycle.info.affinity is not None or any(info.affinity is not None for info, _, _ in changes)
        ):
            return False
        if any(breaks(cycle.pod, quiet, info) for info, _, _ in changes):
            quiet.bookmark.invalidate()
            return False
        return True

    def _is_rejected_by(self, pod: Pod, quiet: NoMatchingPods, info: PodInfo) -> bool:  # noqa: ARG002
        """Whether a pod's terms keep ours away."""
        terms = info.affinity
        labels_of = self._catalog.namespace_labels
        return terms is not None and any(term.matches_pod(pod, labels_of) for term in terms.required_anti)

    def _is_preferred(self, pod: Pod, quiet: NoMatchingPods, info: PodInfo) -> bool:
        """Whether a pod likes or dislikes ours, or the other way."""
        if info.affinity is not None and self._reverse_preferences(pod, info.affinity):
            return True
        own = (*quiet.terms.preferred, *quiet.terms.preferred_anti)
        return any(matches_all((weighted.term,), info.pod) for weighted in own)

    def add_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> None:
        self._shift(cycle, cycle.get(REQUIRED), info, node, 1)

    def remove_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> None:
        self._shift(cycle, cycle.get(REQUIRED), info, node, -1)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        state = cycle.find(REQUIRED)
        if state is None:
            yield Rejection.from_error(nodes, f'error reading "{REQUIRED.name}" from cycleState: not found')
            return
        lonely = self._matches_no_existing_pod(cycle, state, nodes) if state.terms.required else nodes.no_rows_mask
        yield Rejection(lonely, AFFINITY, resolvable=False)
        keys = [term.topology_key for term in state.terms.required_anti]
        disliked = _and_not(_any_counted(state.anti_affinity, nodes, keys), lonely)
        yield Rejection(disliked, ANTI_AFFINITY)
        unwelcome = _and_not(_any_counted(state.existing_anti, nodes, state.existing_anti.by_key), lonely)
        yield Rejection(_and_not(unwelcome, disliked), EXISTING_ANTI_AFFINITY)

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        """The same for one node: for bringing what is known of a few rows up to date."""
        state = cycle.find(REQUIRED)
        if state is None:
            return error(f'error reading "{REQUIRED.name}" from cycleState: not found')
        if state.terms.required and self._matches_no_existing_pod(cycle, state, node.single_row_table).any():
            return Status(Code.UNRESOLVABLE, (AFFINITY,))
        if any(state.anti_affinity.at(node, term.topology_key) > 0 for term in state.terms.required_anti):
            return Status(Code.UNSCHEDULABLE, (ANTI_AFFINITY,))
        if any(state.existing_anti.at(node, key) > 0 for key in state.existing_anti.by_key):
            return Status(Code.UNSCHEDULABLE, (EXISTING_ANTI_AFFINITY,))
        return None

    def _matches_no_existing_pod(self, cycle: Cycle, state: RequiredState, nodes: NodeTable) -> BoolVector:
        """Nodes that lack a term's key or have no matching pod in its domain.

        The first pod of a group would find nobody: where no pod anywhere matches, it may match its own terms.
        """
        first = not state.affinity.any and matches_all(state.terms.required, cycle.pod)
        lonely: BoolVector | None = None
        for term in state.terms.required:
            key = term.topology_key
            alone = nodes.label_ids(key) < 0 if first else state.affinity.on(nodes, key) <= 0
            lonely = alone if lonely is None else lonely | alone
        assert lonely is not None
        return lonely

    def _count_existing(self, cycle: Cycle, counts: DomainCounts) -> None:
        """Pods already there whose required anti-affinity means us, by their terms' domains."""
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
        """How many pods that match all of our terms each row has."""
        pods = cycle.snapshot.pods

        def meant(kind: NamespacedLabels) -> bool:
            return all(term.matches(kind.namespace, kind.labels, _NO_LABELS) for term in terms)

        return pods.count_by_row(pods.matching(("affinity", terms), meant), len(cycle.snapshot))

    def _shift(self, cycle: Cycle, state: RequiredState, info: PodInfo, node: NodeInfo, by: int) -> bool:
        """One pod more or less on a node; whether answers about other nodes may change."""
        columns, labels = node.columns, node.labels
        matters = False
        for term in (info.affinity or _NO_TERMS).required_anti:
            if term.matches_pod(cycle.pod, self._catalog.namespace_labels):
                matters |= state.existing_anti.shift(columns, labels, term.topology_key, by)
        if state.terms.required and matches_all(state.terms.required, info.pod):
            lonely = not state.affinity.any
            for term in state.terms.required:
                matters |= state.affinity.shift(columns, labels, term.topology_key, by)
            matters |= lonely != (not state.affinity.any)  # the first of a group may go anywhere
        for term in state.terms.required_anti:
            if matches_all((term,), info.pod):
                matters |= state.anti_affinity.shift(columns, labels, term.topology_key, by)
        return matters

    # scoring ----------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        known = cycle.find(PREFERRED)
        if known is not None and self._update_preferred(cycle, known):
            return None
        cycle.delete(PREFERRED)
        cycle.delete(NO_PREFERRED_MATCHES)
        own = self._resolved(cycle.info.affinity or _NO_TERMS)
        if self._ignores_preferred and not (own.preferred or own.preferred_anti):
            return SKIP
        liked = PreferredState(own, self._journal_cursor(cycle))
        table = cycle.snapshot.table
        for weighted in own.preferred:
            matching = self._matching_by_row(cycle, (weighted.term,))
            liked.add_by_row(table, weighted.term.topology_key, weighted.weight, matching)
        for weighted in own.preferred_anti:
            matching = self._matching_by_row(cycle, (weighted.term,))
            liked.add_by_row(table, weighted.term.topology_key, -weighted.weight, matching)
        pods = cycle.snapshot.pods
        for number, terms in pods.affinity_terms():
            wanted = self._reverse_preferences(cycle.pod, terms)
            if wanted:
                per_row = pods.count_by_row(pods.with_affinity(number), len(cycle.snapshot))
                if self.affinity_events is not None and not (own.preferred or own.preferred_anti):
                    per_row = per_row * self.affinity_events
                for key, weight in wanted:
                    liked.add_by_row(table, key, weight, per_row)
        if not liked.any_entry:
            cycle.put(NO_PREFERRED_MATCHES, NoMatchingPods(own, liked.bookmark))
            return SKIP
        cycle.put(PREFERRED, liked)
        return None

    def _update_preferred(self, cycle: Cycle, liked: PreferredState) -> bool:
        """Count the pods that came since; false where one went, since it may have been the only one that counted."""
        changes = liked.bookmark.changes_since(cycle.snapshot, self._catalog.revision(Namespace))
        if changes is None or self._registers_events:
            return False
        for info, row, by in changes:
            wanted = [
                (weighted.term.topology_key, sign * weighted.weight)
                for sign, terms in ((1, liked.terms.preferred), (-1, liked.terms.preferred_anti))
                for weighted in terms
                if matches_all((weighted.term,), info.pod)
            ]
            if info.affinity is not None:
                wanted += self._reverse_preferences(cycle.pod, info.affinity)
            if wanted and by < 0:
                liked.bookmark.invalidate()
                return False
            for key, weight in wanted:
                liked.add_node(NodeInfo(cycle.snapshot.nodes, row), key, weight)
        return True

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector | Status:
        liked = cycle.find(PREFERRED)
        if liked is None:
            return error(f'failed to read "{PREFERRED.name}" from cycleState: not found')
        total = np.zeros(len(nodes), dtype=np.int64)
        for key in liked.counts.by_key:
            total += liked.counts.on(nodes, key)
        return total

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        """The least liked node gets 0, the most liked 100; the quotient is taken first, as upstream takes it."""
        lowest, highest = int(scores.min()), int(scores.max())
        if highest == lowest:
            return np.zeros(len(scores), dtype=np.int64)
        share = (scores - lowest).astype(np.float64) / float(highest - lowest)
        final: IntVector = (float(MAX_SCORE) * share).astype(np.int64)
        return final

    def _reverse_preferences(self, pod: Pod, terms: PodAffinityTerms) -> list[tuple[str, int]]:
        """What a pod with these terms thinks of us: its preferred ones, and its required affinity at a fixed weight."""
        wanted: list[tuple[str, int]] = []
        labels_of = self._catalog.namespace_labels
        if self._hard_weight:
            wanted += [
                (term.topology_key, self._hard_weight) for term in terms.required if term.matches_pod(pod, labels_of)
            ]
        wanted += _term_weights(terms.preferred, 1, pod, labels_of)
        wanted += _term_weights(terms.preferred_anti, -1, pod, labels_of)
        return wanted

    # terms ------------------------------------------------------------------------------------------------------

    def _resolved(self, terms: PodAffinityTerms) -> PodAffinityTerms:
        """The pod's own terms with namespace selectors turned into namespaces.

        The selector stays in the term and is evaluated once more, against no labels at all: kube-scheduler 1.36 does
        so, which makes a selector of only NotIn and DoesNotExist mean every namespace.
        """

        def widened(term: AffinityTerm) -> AffinityTerm:
            if term.namespace_selector.nothing or term.namespace_selector.everything:
                return term
            named = frozenset(
                name
                for name, namespace in self._catalog.namespaces.items()
                if term.namespace_selector.matches(namespace.metadata.labels)
            )
            return AffinityTerm(term.topology_key, term.selector, term.namespaces | named, term.namespace_selector)

        def weighted(items: tuple[WeightedTerm, ...]) -> tuple[WeightedTerm, ...]:
            return tuple(WeightedTerm(item.weight, widened(item.term)) for item in items)

        return PodAffinityTerms(
            required=tuple(map(widened, terms.required)),
            preferred=weighted(terms.preferred),
            required_anti=tuple(map(widened, terms.required_anti)),
            preferred_anti=weighted(terms.preferred_anti),
        )


def _any_counted(counts: DomainCounts, nodes: NodeTable, keys: Iterable[str]) -> BoolVector:
    """Entries in a domain that has something; asked of domains first, which most often are fewer."""
    found = nodes.no_rows_mask
    for key in keys:
        some = counts.of(nodes.label(key)) > 0
        if some.any():
            here = some[nodes.label_ids(key)]
            found = here if found is nodes.no_rows_mask else found | here
    return found


def _and_not(mask: BoolVector, others: BoolVector) -> BoolVector:
    """The entries of one mask that another one leaves; most often one of them is empty."""
    return mask if not mask.any() or not others.any() else mask & ~others


def _term_weights(
    terms: Iterable[WeightedTerm], sign: int, pod: Pod, labels_of: NamespaceLabels
) -> Iterator[tuple[str, int]]:
    """Topology key and signed weight of each term that means the pod."""
    for weighted in terms:
        if weighted.term.matches_pod(pod, labels_of):
            yield weighted.term.topology_key, sign * weighted.weight
