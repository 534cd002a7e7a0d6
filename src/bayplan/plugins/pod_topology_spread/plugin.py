"""Are the pods that belong together spread evenly enough over zones, nodes or any other topology?

Hard constraints (DoNotSchedule) are counted at PreFilter over all rows and checked at Filter; soft ones
(ScheduleAnyway) at PreScore and Score. Cost: for each constraint one selector over all pods, one sum by row and one
by domain; no Python loop over nodes or pods.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import (
    ActionType,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import Rejection, ScoreGroups
from bayplan.framework.api.status import SKIP, Status, error
from bayplan.objects.core import Node, Pod, Taint, TopologySpreadConstraint
from bayplan.objects.meta import KubeObject
from bayplan.objects.selectors.label_selectors import LabelMatcher, SelectorError
from bayplan.objects.selectors.node_selectors import required_node_affinity
from bayplan.objects.taints import first_untolerated
from bayplan.plugins.pod_journal_cursor import JournalCursor, next_version
from bayplan.plugins.pod_topology_spread import args as arguments
from bayplan.plugins.pod_topology_spread.constraints import (
    DO_NOT_SCHEDULE,
    HOSTNAME,
    SCHEDULE_ANYWAY,
    SYSTEM_DEFAULTS,
    SpreadConstraint,
    default_constraints,
    default_selector,
    own_constraints,
)
from bayplan.plugins.pod_topology_spread.go_logarithm import natural_log
from bayplan.plugins.pod_topology_spread.hints import (
    SpreadHintInput,
    hint_on_node_change,
    hint_on_other_pod_change,
    hint_on_own_update,
)
from bayplan.plugins.pod_topology_spread.scoring import (
    DomainCount,
    HostCount,
    SoftState,
    domain_sums,
)
from bayplan.snapshot import BoolVector, Catalog, IntVector, NamespacedLabels, NodeInfo, NodeTable, PodInfo, Snapshot
from bayplan.snapshot.selector_masks import required_affinity_mask

SKEW_REASON = "node(s) didn't match pod topology spread constraints"
MISSING_LABEL_REASON = "node(s) didn't match pod topology spread constraints (missing required label)"

_NO_DOMAIN = 2**31 - 1


@dataclass(slots=True)
class SpreadDomains:
    """How many matching pods each value of one topology key has; `known` marks values that count as domains."""

    constraint: SpreadConstraint
    counts: IntVector
    known: BoolVector
    included: BoolVector  # rows whose pods count
    everywhere: bool  # whether every row has the key

    def minimum(self) -> int:
        """What the emptiest domain has; 0 while there are fewer domains than wanted."""
        if int(np.count_nonzero(self.known)) < self.constraint.min_domains:
            return 0
        return int(self.counts[self.known].min()) if self.known.any() else _NO_DOMAIN

    def copy(self) -> SpreadDomains:
        return SpreadDomains(self.constraint, self.counts.copy(), self.known, self.included, self.everywhere)


@dataclass(slots=True)
class HardState:
    """What Filter needs; `version` changes whenever a count does."""

    domains: list[SpreadDomains]
    cursor: JournalCursor
    version: int = field(default_factory=next_version)

    def copy(self) -> HardState:
        return HardState([each.copy() for each in self.domains], self.cursor.copy(), self.version)


HARD_STATE: StateKey[HardState] = StateKey("PreFilterPodTopologySpread", clone=HardState.copy)
SOFT_STATE: StateKey[SoftState] = StateKey("PreScorePodTopologySpread")


class PodTopologySpread:
    """Spreads pods over the domains of a topology."""

    name = "PodTopologySpread"
    looks_at_pods = False  # pods count by domain, which `depends_on` says
    compares_candidates = True
    ARGS = arguments.ARGS

    def __init__(self, defaults: tuple[TopologySpreadConstraint, ...], *, listed: bool, catalog: Catalog) -> None:
        self._defaults = defaults
        self._listed = listed  # the defaults come from the configuration, not from us
        self._catalog = catalog
        pods = ActionType.ADD | ActionType.UPDATE_POD_LABEL | ActionType.UPDATE_POD_TOLERATION | ActionType.DELETE
        nodes = ActionType.ADD | ActionType.DELETE | ActionType.UPDATE_NODE_LABEL | ActionType.UPDATE_NODE_TAINT
        self.cured_by = (
            ClusterEventWithHint(
                EventResource.POD, pods, self._hint_on_pod_change, self._hint_input, hint_on_other_pod_change
            ),
            ClusterEventWithHint(
                EventResource.NODE, nodes, self._hint_on_node_change, self._hint_input, hint_on_node_change
            ),
        )

    @classmethod
    def factory(cls, args: arguments.PodTopologySpreadArgs, handle: Handle) -> Self:
        listed = args.defaulting_type == arguments.LIST_DEFAULTING
        return cls(args.constraints if listed else SYSTEM_DEFAULTS, listed=listed, catalog=handle.catalog)

    def signature(self, pod: Pod) -> Hashable | None:
        """Constraints look at the pod's labels, and at its affinity and tolerations to decide which nodes count."""
        spec, meta = pod.spec, pod.metadata
        own = repr(spec.topology_spread_constraints)
        owner = meta.controller
        belongs = (owner.api_version, owner.kind, owner.name) if owner else None
        affinity = repr(spec.affinity.node_affinity) if spec.affinity else ""
        where = (frozenset(spec.node_selector.items()), affinity, repr(spec.tolerations))
        return meta.namespace, frozenset(meta.labels.items()), own, belongs, where

    def depends_on(self, cycle: Cycle) -> Hashable:
        """On services and owners, which say what belongs together, and, with constraints, on every pod and node."""
        members = self._catalog.membership_version
        hard = cycle.find(HARD_STATE)
        if hard is None:
            return members
        if not self._update_hard(cycle, hard):
            return object()
        return members, cycle.snapshot.renewed.end, hard.version

    def scores_depend_on(self, cycle: Cycle) -> Hashable:
        """The same for soft constraints, which only score."""
        soft, members = cycle.find(SOFT_STATE), self._catalog.membership_version
        if soft is None:
            return members
        return soft.version if soft.follow(cycle.snapshot, members, cycle.pod.metadata.namespace) else object()

    def sits_out(self, cycle: Cycle) -> bool:
        """Where the pod has no constraints, and belongs to nothing that the defaults would spread."""
        pod = cycle.pod
        if pod.spec.topology_spread_constraints or not default_selector(pod, self._catalog).everything:
            return False
        cycle.delete(HARD_STATE)
        cycle.delete(SOFT_STATE)
        return True

    # filtering --------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: Cycle) -> Status | None:
        known = cycle.find(HARD_STATE)
        if known is not None and self._update_hard(cycle, known):
            return None
        cycle.delete(HARD_STATE)
        try:
            constraints = self._constraints(cycle.pod, DO_NOT_SCHEDULE)
        except SelectorError as fault:
            return error(f"obtaining pod's hard topology spread constraints: {fault.reason}")
        if not constraints:
            return SKIP
        table = cycle.snapshot.table
        keyed = _has_all_keys(table, constraints)
        domains = [_domains(cycle, table, constraint, keyed) for constraint in constraints]
        cycle.put(HARD_STATE, HardState(domains, JournalCursor.at(cycle.snapshot, self._catalog.membership_version)))
        return None

    def _update_hard(self, cycle: Cycle, state: HardState) -> bool:
        """Count the pods that came and went since; false where that does not do."""
        changes = state.cursor.changes_since(cycle.snapshot, self._catalog.membership_version)
        if changes is None:
            return False
        columns, namespace = cycle.snapshot.nodes, cycle.pod.metadata.namespace
        for info, row, by in changes:
            if info.terminating or info.pod.metadata.namespace != namespace:
                continue
            for domains in state.domains:
                if domains.included[row] and domains.constraint.is_counted(info.pod):
                    domains.counts[columns.labels.column(domains.constraint.topology_key).ids[row]] += by
                    state.version = next_version()
        return True

    def add_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> None:
        self._shift(cycle, info, node, 1)

    def remove_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> None:
        self._shift(cycle, info, node, -1)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        state = cycle.find(HARD_STATE)
        if state is None:
            yield Rejection.from_error(nodes, f'reading "{HARD_STATE.name}" from cycleState: not found')
            return
        decided: BoolVector | None = None  # rows that an earlier constraint turned down
        for domains in state.domains:
            constraint = domains.constraint
            ids = nodes.label_ids(constraint.topology_key)
            keyless = nodes.no_rows_mask if domains.everywhere else _and_not(ids < 0, decided)
            yield Rejection(keyless, MISSING_LABEL_REASON, resolvable=False)
            allowed = constraint.max_skew + domains.minimum() - constraint.counts(cycle.pod)
            too_many = domains.counts > allowed
            too_many[-1] = False  # where rows without the key point
            crowded = _and_not(too_many[ids], decided) if too_many.any() else nodes.no_rows_mask
            yield Rejection(crowded, SKEW_REASON)
            decided = keyless | crowded if decided is None else decided | keyless | crowded

    def _shift(self, cycle: Cycle, info: PodInfo, node: NodeInfo, by: int) -> None:
        """One matching pod more or less in the node's domains."""
        state = cycle.get(HARD_STATE).domains
        pod, labels = cycle.pod, node.labels
        if info.pod.metadata.namespace != pod.metadata.namespace:
            return
        if any(domains.constraint.topology_key not in labels for domains in state):
            return
        for domains in state:
            constraint = domains.constraint
            if constraint.counts(info.pod) and _includes(constraint, pod, node.node):
                column = node.columns.labels.column(constraint.topology_key)
                domains.counts[column.find(labels[constraint.topology_key])] += by

    # scoring ----------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:
        known = cycle.find(SOFT_STATE)
        if known is not None and known.is_for(cycle, nodes) and self._update_soft(cycle, known):
            return None
        cycle.delete(SOFT_STATE)
        pod = cycle.pod
        try:
            constraints = self._constraints(pod, SCHEDULE_ANYWAY)
        except SelectorError as fault:
            return error(f"obtaining pod's soft topology spread constraints: {fault.reason}")
        if not constraints:
            return SKIP
        requires_all = bool(pod.spec.topology_spread_constraints) or self._listed
        table = cycle.snapshot.table
        kept = nodes.restricted_to(_has_all_keys(nodes, constraints)) if requires_all else nodes
        counted = _has_all_keys(table, constraints) if requires_all else np.ones(len(table), dtype=np.bool_)
        charges: list[HostCount | DomainCount] = []
        for constraint in constraints:
            per_row = _pods_by_row(cycle.snapshot, constraint.selector, pod.metadata.namespace)
            if constraint.topology_key == HOSTNAME:
                charges.append(HostCount(constraint, natural_log(len(kept) + 2), per_row))
            else:
                charges.append(_domain_counts(cycle, constraint, kept, per_row, counted))
        bookmark = JournalCursor.at(cycle.snapshot, self._catalog.membership_version)
        cycle.put(SOFT_STATE, SoftState(tuple(charges), requires_all, bookmark, whole=nodes.is_all_of(cycle.snapshot)))
        return None

    def _update_soft(self, cycle: Cycle, state: SoftState) -> bool:
        return state.follow(cycle.snapshot, self._catalog.membership_version, cycle.pod.metadata.namespace)

    def score_groups(self, cycle: Cycle, nodes: NodeTable) -> ScoreGroups | None:
        """What `score_nodes` and `normalize` come to, where rows fall into few groups."""
        state = cycle.find(SOFT_STATE)
        return None if state is None else state.score_groups(nodes)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector | Status:
        state = cycle.find(SOFT_STATE)
        if state is None:
            return error(f'reading "{SOFT_STATE.name}" from cycleState: not found')
        return state.scores(nodes)

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector | Status:
        state = cycle.find(SOFT_STATE)
        if state is None:
            return error(f'reading "{SOFT_STATE.name}" from cycleState: not found')
        return state.normalized(nodes, scores)

    # both -------------------------------------------------------------------------------------------------------

    def _constraints(self, pod: Pod, action: str) -> tuple[SpreadConstraint, ...]:
        if pod.spec.topology_spread_constraints:
            return own_constraints(pod, action)
        return default_constraints(self._defaults, pod, self._catalog, action)

    # waking -----------------------------------------------------------------------------------------------------

    def _hint_input(self, pod: Pod) -> SpreadHintInput | None:
        """What matters of a pod; None where that follows from services and owners, which come and go."""
        hard_defaults = any(each.when_unsatisfiable == DO_NOT_SCHEDULE for each in self._defaults)
        if hard_defaults and not pod.spec.topology_spread_constraints:
            return None
        return self._compute_hint_input(pod)

    def _compute_hint_input(self, pod: Pod) -> SpreadHintInput:
        return SpreadHintInput(pod.metadata.namespace, self._constraints(pod, DO_NOT_SCHEDULE))

    def _hint_on_pod_change(self, pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
        changed = new or old
        assert isinstance(changed, Pod)
        judge = hint_on_own_update if changed.uid == pod.uid else hint_on_other_pod_change
        return judge(self._compute_hint_input(pod), old, new)

    def _hint_on_node_change(self, pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
        return hint_on_node_change(self._compute_hint_input(pod), old, new)


def _has_all_keys(nodes: NodeTable, constraints: tuple[SpreadConstraint, ...]) -> BoolVector:
    mask = np.ones(len(nodes), dtype=np.bool_)
    for constraint in constraints:
        mask &= nodes.label_ids(constraint.topology_key) >= 0
    return mask


def _included(nodes: NodeTable, constraint: SpreadConstraint, pod: Pod) -> BoolVector:
    """Rows whose pods count, by the constraint's inclusion policies."""
    mask = np.ones(len(nodes), dtype=np.bool_)
    if constraint.honors_affinity:
        mask &= required_affinity_mask(nodes, required_node_affinity(pod))
    if constraint.honors_taints:

        def bearable(taints: tuple[Taint, ...]) -> bool:
            return first_untolerated(taints, pod.spec.tolerations) is None

        mask &= nodes.where_taints(bearable)
    return mask


def _includes(constraint: SpreadConstraint, pod: Pod, node: Node) -> bool:
    """The same for one node."""
    if constraint.honors_affinity and not required_node_affinity(pod).matches(node.metadata.labels, node.name):
        return False
    return not constraint.honors_taints or first_untolerated(node.spec.taints, pod.spec.tolerations) is None


def _pods_by_row(snapshot: Snapshot, selector: LabelMatcher, namespace: str) -> IntVector:
    """How many pods of the namespace that the selector means are on each row. An empty selector means none here."""
    count = len(snapshot)
    if selector.everything or selector.nothing:
        return np.zeros(count, dtype=np.int64)

    def counts(kind: NamespacedLabels) -> bool:
        return kind.namespace == namespace and selector.matches(kind.labels)

    mask = snapshot.pods.matching(("spread", namespace, selector), counts)
    mask &= ~snapshot.pods.terminating[: snapshot.pods.slots]
    return snapshot.pods.count_by_row(mask, count)


def _and_not(mask: BoolVector, decided: BoolVector | None) -> BoolVector:
    return mask if decided is None else mask & ~decided


def _domains(cycle: Cycle, table: NodeTable, constraint: SpreadConstraint, keyed: BoolVector) -> SpreadDomains:
    column = table.label(constraint.topology_key)
    rows = keyed & _included(table, constraint, cycle.pod)
    ids = table.label_ids(constraint.topology_key)
    per_row = _pods_by_row(cycle.snapshot, constraint.selector, cycle.pod.metadata.namespace)
    counts = domain_sums(ids[rows], per_row[rows], len(column.values) + 1)  # the last: what keyless rows point to
    known = np.zeros(len(counts), dtype=np.bool_)
    known[ids[rows]] = True
    return SpreadDomains(constraint, counts, known, rows, everywhere=bool((ids >= 0).all()))


def _domain_counts(
    cycle: Cycle, constraint: SpreadConstraint, kept: NodeTable, per_row: IntVector, counted: BoolVector
) -> DomainCount:
    """How many domains the candidates have, and how many pods each of these has.

    Only domains that a candidate is in are counted, but then with the pods of all nodes in them. Candidates without
    the key are one more domain.
    """
    table = cycle.snapshot.table
    key = constraint.topology_key
    ids = table.label_ids(key)
    present = np.zeros(len(table.label(key).values) + 1, dtype=np.bool_)
    present[kept.label_ids(key)] = True
    rows = counted & _included(table, constraint, cycle.pod) & present[ids]
    counts = domain_sums(ids[rows], per_row[rows], len(present))
    weight = natural_log(int(np.count_nonzero(present)) + 2)
    return DomainCount(constraint, weight, counts, ids, rows)
