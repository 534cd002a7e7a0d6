"""Filters and scores nodes so that matching pods spread evenly over zones, nodes or any other topology.

Hard constraints (DoNotSchedule) are counted at PreFilter over all rows and checked at Filter. Soft constraints
(ScheduleAnyway) are counted at PreScore and used at Score. Cost: for each constraint one selector over all pods, one
sum by row and one by domain; no Python loop over nodes or pods.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, ScoreGroups
from bayplan.framework.api.status import SKIP, Status, error
from bayplan.objects.core import Node, Pod, Taint, TopologySpreadConstraint
from bayplan.objects.meta import KubeObject
from bayplan.objects.selectors.label_selectors import LabelMatcher, SelectorError
from bayplan.objects.selectors.node_selectors import required_node_affinity
from bayplan.objects.taints import find_untolerated_taint
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
from bayplan.plugins.pod_topology_spread.scoring import DomainCount, HostCount, SoftState, domain_sums
from bayplan.snapshot import BoolVector, Catalog, IntVector, NamespacedLabels, NodeInfo, NodeTable, PodInfo, Snapshot
from bayplan.snapshot.selector_masks import required_affinity_mask

SKEW_REASON = "node(s) didn't match pod topology spread constraints"
MISSING_LABEL_REASON = "node(s) didn't match pod topology spread constraints (missing required label)"

_NO_DOMAIN = 2**31 - 1


@dataclass(slots=True)
class SpreadDomains:
    """Number of matching pods for each value of one topology key. `known` marks the values that are domains."""

    constraint: SpreadConstraint
    counts: IntVector
    known: BoolVector
    included: BoolVector  # rows whose pods count
    everywhere: bool  # whether every row has the key

    def minimum(self) -> int:
        """Return the smallest count of a domain; 0 while there are fewer domains than `minDomains`."""
        if int(np.count_nonzero(self.known)) < self.constraint.min_domains:
            return 0
        return int(self.counts[self.known].min()) if self.known.any() else _NO_DOMAIN

    def copy(self) -> SpreadDomains:
        return SpreadDomains(self.constraint, self.counts.copy(), self.known, self.included, self.everywhere)


@dataclass(slots=True)
class HardState:
    """State of Filter. `version` changes with every count."""

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
    ARGS = arguments.ARGS

    def __init__(self, defaults: tuple[TopologySpreadConstraint, ...], *, listed: bool, catalog: Catalog) -> None:
        self._defaults = defaults
        self._listed = listed  # the defaults come from the configuration, not from the system defaults
        self._catalog = catalog
        pods = ActionType.ADD | ActionType.UPDATE_POD_LABEL | ActionType.UPDATE_POD_TOLERATION | ActionType.DELETE
        nodes = ActionType.ADD | ActionType.DELETE | ActionType.UPDATE_NODE_LABEL | ActionType.UPDATE_NODE_TAINT
        self.events_to_register = (
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
        """Constraints use the pod's labels, and its node affinity and tolerations to decide which nodes count."""
        spec, meta = pod.spec, pod.metadata
        constraints_text = repr(spec.topology_spread_constraints)
        owner = meta.controller
        owner_key = (owner.api_version, owner.kind, owner.name) if owner else None
        affinity = repr(spec.affinity.node_affinity) if spec.affinity else ""
        placement_fields = (frozenset(spec.node_selector.items()), affinity, repr(spec.tolerations))
        return meta.namespace, frozenset(meta.labels.items()), constraints_text, owner_key, placement_fields

    def _version(self, cycle: Cycle) -> Hashable:
        """Changes with services and owners, which define the defaults, and with constraints on every pod and node."""
        members = self._catalog.membership_version
        hard = cycle.find(HARD_STATE)
        if hard is None:
            return members
        if not self._update_hard(cycle, hard):
            return object()
        return members, cycle.snapshot.renewed.end, hard.version

    def _scores_version(self, cycle: Cycle) -> Hashable:
        """Changes with the pods and nodes that soft constraints count."""
        soft, members = cycle.find(SOFT_STATE), self._catalog.membership_version
        if soft is None:
            return members
        return soft.version if soft.follow(cycle.snapshot, members, cycle.pod.metadata.namespace) else object()

    def _is_not_applicable(self, cycle: Cycle) -> bool:
        """Whether the pod has no constraints, and no service or owner for default constraints."""
        pod = cycle.pod
        if pod.spec.topology_spread_constraints or not default_selector(pod, self._catalog).everything:
            return False
        cycle.delete(HARD_STATE)
        cycle.delete(SOFT_STATE)
        return True

    def _score_groups(self, cycle: Cycle, nodes: NodeTable) -> ScoreGroups | None:
        """Return the final scores by group, if the rows fall into few groups."""
        state = cycle.find(SOFT_STATE)
        return None if state is None else state.score_groups(nodes)

    traits = PluginTraits(
        depends_on=_version,
        scores_depend_on=_scores_version,
        not_applicable=_is_not_applicable,
        looks_at_pods=False,  # pods count by domain, which `depends_on` covers
        compares_candidates=True,
        score_groups=_score_groups,
    )

    def pre_filter(self, cycle: Cycle) -> Status | None:
        cached_state = cycle.find(HARD_STATE)
        if cached_state is not None and self._update_hard(cycle, cached_state):
            return None
        cycle.delete(HARD_STATE)
        try:
            constraints = self._constraints(cycle.pod, DO_NOT_SCHEDULE)
        except SelectorError as fault:
            return error(f"obtaining pod's hard topology spread constraints: {fault.reason}")
        if not constraints:
            return SKIP
        table = cycle.snapshot.table
        has_all_keys = _has_all_keys(table, constraints)
        domains = [_domains(cycle, table, constraint, has_all_keys) for constraint in constraints]
        cycle.put(HARD_STATE, HardState(domains, JournalCursor.at(cycle.snapshot, self._catalog.membership_version)))
        return None

    def _update_hard(self, cycle: Cycle, state: HardState) -> bool:
        """Count the pods added and removed meanwhile. Returns False if everything must be counted again."""
        changes = state.cursor.changes_since(cycle.snapshot, self._catalog.membership_version)
        if changes is None:
            return False
        columns, namespace = cycle.snapshot.nodes, cycle.pod.metadata.namespace
        for info, row, delta in changes:
            if info.terminating or info.pod.metadata.namespace != namespace:
                continue
            for domains in state.domains:
                if domains.included[row] and domains.constraint.is_counted(info.pod):
                    domains.counts[columns.labels.column(domains.constraint.topology_key).ids[row]] += delta
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
        rejected: BoolVector | None = None  # rows that an earlier constraint rejected
        for domains in state.domains:
            constraint = domains.constraint
            ids = nodes.label_ids(constraint.topology_key)
            keyless = nodes.no_rows_mask if domains.everywhere else _and_not(ids < 0, rejected)
            yield Rejection(keyless, MISSING_LABEL_REASON, resolvable=False)
            # skew = pods in the domain + 1 if the pod matches its own selector - minimum, solved for the pods
            max_count = constraint.max_skew + domains.minimum() - constraint.counts(cycle.pod)
            too_many = domains.counts > max_count
            too_many[-1] = False  # used by rows without the key
            exceeding = _and_not(too_many[ids], rejected) if too_many.any() else nodes.no_rows_mask
            yield Rejection(exceeding, SKEW_REASON)
            rejected = keyless | exceeding if rejected is None else rejected | keyless | exceeding

    def _shift(self, cycle: Cycle, info: PodInfo, node: NodeInfo, delta: int) -> None:
        """Count one matching pod more or less in the node's domains."""
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
                domains.counts[column.find(labels[constraint.topology_key])] += delta

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:
        cached_state = cycle.find(SOFT_STATE)
        if cached_state is not None and cached_state.is_for(cycle, nodes) and self._update_soft(cycle, cached_state):
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
        candidates = nodes.restricted_to(_has_all_keys(nodes, constraints)) if requires_all else nodes
        has_keys = _has_all_keys(table, constraints) if requires_all else np.ones(len(table), dtype=np.bool_)
        topology_counts: list[HostCount | DomainCount] = []
        for constraint in constraints:
            per_row = _pods_by_row(cycle.snapshot, constraint.selector, pod.metadata.namespace)
            if constraint.topology_key == HOSTNAME:
                topology_counts.append(HostCount(constraint, natural_log(len(candidates) + 2), per_row))
            else:
                topology_counts.append(_domain_counts(cycle, constraint, candidates, per_row, has_keys))
        cursor = JournalCursor.at(cycle.snapshot, self._catalog.membership_version)
        cycle.put(
            SOFT_STATE,
            SoftState(tuple(topology_counts), requires_all, cursor, covers_all_rows=nodes.is_all_of(cycle.snapshot)),
        )
        return None

    def _update_soft(self, cycle: Cycle, state: SoftState) -> bool:
        return state.follow(cycle.snapshot, self._catalog.membership_version, cycle.pod.metadata.namespace)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector | Status:
        state = cycle.find(SOFT_STATE)
        if state is None:
            return error(f'reading "{SOFT_STATE.name}" from cycleState: not found')
        return state.scores(nodes)

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector | Status:
        state = cycle.find(SOFT_STATE)
        if state is None:
            return error(f'reading "{SOFT_STATE.name}" from cycleState: not found')
        return state.normalize(nodes, scores)

    def _constraints(self, pod: Pod, action: str) -> tuple[SpreadConstraint, ...]:
        if pod.spec.topology_spread_constraints:
            return own_constraints(pod, action)
        return default_constraints(self._defaults, pod, self._catalog, action)

    def _hint_input(self, pod: Pod) -> SpreadHintInput | None:
        """Return the hint input of a pod; None if it depends on services and owners, which may change."""
        hard_defaults = any(each.when_unsatisfiable == DO_NOT_SCHEDULE for each in self._defaults)
        if hard_defaults and not pod.spec.topology_spread_constraints:
            return None
        return self._compute_hint_input(pod)

    def _compute_hint_input(self, pod: Pod) -> SpreadHintInput:
        return SpreadHintInput(pod.metadata.namespace, self._constraints(pod, DO_NOT_SCHEDULE))

    def _hint_on_pod_change(self, pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
        changed = new or old
        assert isinstance(changed, Pod)
        hint = hint_on_own_update if changed.uid == pod.uid else hint_on_other_pod_change
        return hint(self._compute_hint_input(pod), old, new)

    def _hint_on_node_change(self, pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
        return hint_on_node_change(self._compute_hint_input(pod), old, new)


def _has_all_keys(nodes: NodeTable, constraints: tuple[SpreadConstraint, ...]) -> BoolVector:
    mask = np.ones(len(nodes), dtype=np.bool_)
    for constraint in constraints:
        mask &= nodes.label_ids(constraint.topology_key) >= 0
    return mask


def _included_rows(nodes: NodeTable, constraint: SpreadConstraint, pod: Pod) -> BoolVector:
    """Return the rows whose pods count, by the constraint's inclusion policies."""
    mask = np.ones(len(nodes), dtype=np.bool_)
    if constraint.honors_affinity:
        mask &= required_affinity_mask(nodes, required_node_affinity(pod))
    if constraint.honors_taints:

        def is_tolerated(taints: tuple[Taint, ...]) -> bool:
            return find_untolerated_taint(taints, pod.spec.tolerations) is None

        mask &= nodes.where_taints(is_tolerated)
    return mask


def _includes(constraint: SpreadConstraint, pod: Pod, node: Node) -> bool:
    if constraint.honors_affinity and not required_node_affinity(pod).matches(node.metadata.labels, node.name):
        return False
    return not constraint.honors_taints or find_untolerated_taint(node.spec.taints, pod.spec.tolerations) is None


def _pods_by_row(snapshot: Snapshot, selector: LabelMatcher, namespace: str) -> IntVector:
    """Count the pods of the namespace that the selector matches, by row. Here an empty selector matches no pod."""
    count = len(snapshot)
    if selector.everything or selector.nothing:
        return np.zeros(count, dtype=np.int64)

    def counts(kind: NamespacedLabels) -> bool:
        return kind.namespace == namespace and selector.matches(kind.labels)

    mask = snapshot.pods.matching(("spread", namespace, selector), counts)
    mask &= ~snapshot.pods.terminating[: snapshot.pods.slots]
    return snapshot.pods.count_by_row(mask, count)


def _and_not(mask: BoolVector, rejected: BoolVector | None) -> BoolVector:
    return mask if rejected is None else mask & ~rejected


def _domains(cycle: Cycle, table: NodeTable, constraint: SpreadConstraint, has_all_keys: BoolVector) -> SpreadDomains:
    column = table.label(constraint.topology_key)
    rows = has_all_keys & _included_rows(table, constraint, cycle.pod)
    ids = table.label_ids(constraint.topology_key)
    per_row = _pods_by_row(cycle.snapshot, constraint.selector, cycle.pod.metadata.namespace)
    counts = domain_sums(ids[rows], per_row[rows], len(column.values) + 1)  # the last entry: rows without the key
    known = np.zeros(len(counts), dtype=np.bool_)
    known[ids[rows]] = True
    return SpreadDomains(constraint, counts, known, rows, everywhere=bool((ids >= 0).all()))


def _domain_counts(
    cycle: Cycle, constraint: SpreadConstraint, candidates: NodeTable, per_row: IntVector, has_keys: BoolVector
) -> DomainCount:
    """Count the domains of the candidates, and the pods of each of these domains.

    Only domains with a candidate count, but with the pods of all their nodes. Candidates without the key form one more
    domain.
    """
    table = cycle.snapshot.table
    key = constraint.topology_key
    ids = table.label_ids(key)
    present = np.zeros(len(table.label(key).values) + 1, dtype=np.bool_)
    present[candidates.label_ids(key)] = True
    rows = has_keys & _included_rows(table, constraint, cycle.pod) & present[ids]
    counts = domain_sums(ids[rows], per_row[rows], len(present))
    weight = natural_log(int(np.count_nonzero(present)) + 2)
    return DomainCount(constraint, weight, counts, ids, rows)
