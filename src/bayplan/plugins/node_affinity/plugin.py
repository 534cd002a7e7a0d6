"""Filters and scores nodes by the pod's node selector and node affinity.

PreFilter narrows the nodes if the terms name them. A profile may add an affinity to every pod. Cost: selectors are
compiled once for each attempt; each requirement is one lookup over a column of label ids.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from bayplan.codec.field_errors import aggregate
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint, queue_hint_if
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import PreFilterResult, Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import SKIP, Status, error, unresolvable
from bayplan.framework.runtime.scoring import default_normalize
from bayplan.objects import core
from bayplan.objects.core import Node, NodeSelectorTerm, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.selectors.label_selectors import SelectorError
from bayplan.objects.selectors.node_selectors import (
    NAME_FIELD,
    NodeSelectorMatcher,
    PreferredTerm,
    RequiredNodeAffinity,
    compile_node_selector,
    compile_preferred_terms,
    required_node_affinity,
)
from bayplan.plugins.node_affinity import args as node_affinity_args
from bayplan.plugins.node_affinity.args import NodeAffinityArgs
from bayplan.snapshot import IntVector, NodeTable
from bayplan.snapshot.selector_masks import node_selector_mask, node_selector_term_mask, required_affinity_mask

POD_MISMATCH = "node(s) didn't match Pod's node affinity/selector"
ENFORCED_MISMATCH = "node(s) didn't match scheduler-enforced node affinity"
CONFLICT = "pod affinity terms conflict"

REQUIRED: StateKey[RequiredNodeAffinity] = StateKey("PreFilterNodeAffinity")
"""The pod's required node affinity, compiled."""
PREFERRED: StateKey[tuple[PreferredTerm, ...]] = StateKey("PreScoreNodeAffinity")
"""The pod's preferred terms, compiled."""


class NodeAffinity:
    """Keeps pods on the nodes that they select, and prefers the nodes that they prefer."""

    name = "NodeAffinity"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False)
    ARGS = node_affinity_args.ARGS

    def __init__(self, added: core.NodeAffinity | None = None) -> None:
        required = added.required if added is not None else None
        preferred = added.preferred if added is not None else ()
        self._added: NodeSelectorMatcher | None = None if required is None else compile_node_selector(required)
        self._added_preferred = compile_preferred_terms(preferred)
        self._prefers = bool(preferred)

    @property
    def events_to_register(self) -> tuple[ClusterEventWithHint, ...]:
        changes = ActionType.ADD | ActionType.UPDATE_NODE_LABEL
        return (
            ClusterEventWithHint.with_hint_key(
                EventResource.NODE, changes, required_node_affinity, self._hint_on_node_change
            ),
        )

    @classmethod
    def factory(cls, args: NodeAffinityArgs, handle: Handle) -> NodeAffinity:  # noqa: ARG003
        return cls(args.affinity)

    def signature(self, pod: Pod) -> Hashable | None:
        return frozenset(pod.spec.node_selector.items()), _node_affinity(pod)

    def pre_filter(self, cycle: Cycle) -> PreFilterResult | Status | None:
        affinity = _node_affinity(cycle.pod)
        required = affinity.required if affinity is not None else None
        if required is None and self._added is None and not cycle.pod.spec.node_selector:
            return SKIP
        cycle.put(REQUIRED, required_node_affinity(cycle.pod))
        names = _required_node_names(required.node_selector_terms) if required is not None else None
        if names is None:
            return None
        return PreFilterResult(names) if names else unresolvable(CONFLICT)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        matching = required_affinity_mask(nodes, cycle.find(REQUIRED) or required_node_affinity(cycle.pod))
        if self._added is None:
            yield Rejection(~matching, POD_MISMATCH, resolvable=False)
            return
        allowed = node_selector_mask(nodes, self._added)
        yield Rejection(~allowed, ENFORCED_MISMATCH, resolvable=False)
        yield Rejection(allowed & ~matching, POD_MISMATCH, resolvable=False)

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        try:
            terms = _preferred_terms(cycle.pod)
        except SelectorError as fault:
            return error(fault.reason)
        if terms is None and not self._prefers:
            return SKIP
        cycle.put(PREFERRED, terms or ())
        return None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector | Status:
        terms = cycle.find(PREFERRED)
        if terms is None:  # PreScore is off in this profile
            try:
                terms = _preferred_terms(cycle.pod) or ()
            except SelectorError as fault:
                return error(fault.reason)
        scores = np.zeros(len(nodes), dtype=np.int64)
        for preferred in (*self._added_preferred, *terms):
            scores += preferred.weight * node_selector_term_mask(nodes, preferred.term)
        return scores

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        return default_normalize(scores)

    def _hint_on_node_change(
        self, affinity: RequiredNodeAffinity, old: KubeObject | None, new: KubeObject | None
    ) -> QueueingHint:
        """A node was added or relabeled that matches now and did not before.

        The added affinity is checked for now only.
        """
        assert isinstance(new, Node)
        labels = new.metadata.labels
        # checked first: thousands of pods may wait, each for a different node
        for requirement in affinity.labels.requirements:
            if requirement.operator == "In" and labels.get(requirement.key) not in requirement.values:
                return QueueingHint.SKIP
        if self._added is not None and not self._added.matches(new.labels, new.name):
            return QueueingHint.SKIP
        if not _matches(affinity, new):
            return QueueingHint.SKIP
        return queue_hint_if(not isinstance(old, Node) or not _matches(affinity, old))


def _node_affinity(pod: Pod) -> core.NodeAffinity | None:
    return pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None


def _preferred_terms(pod: Pod) -> tuple[PreferredTerm, ...] | None:
    """Return the pod's preferred terms, or None. Raises `SelectorError` for a malformed term."""
    affinity = _node_affinity(pod)
    if affinity is None or not affinity.preferred:
        return None
    return compile_preferred_terms(affinity.preferred)


def _matches(affinity: RequiredNodeAffinity, node: Node) -> bool:
    """Whether a node matches. Raises for a malformed term that may decide, so that the pod is retried."""
    meta, selector = node.metadata, affinity.selector
    if affinity.matches(meta.labels, meta.name):
        return True
    if selector is not None and selector.errors and affinity.labels.matches(meta.labels):
        raise SelectorError(aggregate(selector.errors))
    return False


def _required_node_names(terms: tuple[NodeSelectorTerm, ...]) -> frozenset[str] | None:
    """Return the only node names that the terms can match; None if a term does not name nodes."""
    names: frozenset[str] = frozenset()
    for term in terms:
        name_sets = [
            frozenset(field.values) for field in term.match_fields if field.key == NAME_FIELD and field.operator == "In"
        ]
        if not name_sets:
            return None
        names |= frozenset.intersection(*name_sets)
    return names if terms else None
