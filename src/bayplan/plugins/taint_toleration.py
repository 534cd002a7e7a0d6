"""Filters nodes by untolerated taints, and scores them by taints with effect PreferNoSchedule.

Cost: each distinct list of taints in the cluster is evaluated once, whatever the number of nodes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import (
    ActionType,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
    queue_hint_if,
)
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import Status, error
from bayplan.framework.runtime.scoring import default_normalize
from bayplan.objects.core import Node, Pod, Taint, Toleration
from bayplan.objects.meta import KubeObject
from bayplan.objects.taints import DO_NOT_SCHEDULE, PREFER_NO_SCHEDULE, find_untolerated_taint, tolerated
from bayplan.snapshot import IntVector, NodeTable

UNTOLERATED = "node(s) had untolerated taint(s)"

SOFT_TOLERATIONS: StateKey[tuple[Toleration, ...]] = StateKey("PreScoreTaintToleration")
"""The pod's tolerations that can match a taint with effect PreferNoSchedule."""


Tolerations = tuple[Toleration, ...]


class TolerationHintInput(NamedTuple):
    """The tolerations of a pod. `keys`: keys of the taints that they can match; None: any key."""

    tolerations: Tolerations
    keys: frozenset[str] | None


def toleration_hint_input(pod: Pod) -> TolerationHintInput:
    keys = frozenset(each.key for each in pod.spec.tolerations)
    return TolerationHintInput(pod.spec.tolerations, None if "" in keys else keys)


def has_untolerated_taint(node: Node, tolerations: Tolerations) -> bool:
    """Whether a taint of the node is not tolerated."""
    return find_untolerated_taint(node.spec.taints, tolerations) is not None


def hint_on_node_change(
    hint_input: TolerationHintInput, old: KubeObject | None, new: KubeObject | None
) -> QueueingHint:
    """A node was added or changed whose taints are tolerated now and were not before."""
    assert isinstance(new, Node)
    tolerations, keys = hint_input
    if keys is not None:
        for taint in new.spec.taints:  # checked first: thousands of pods may wait, each for a different taint
            if taint.key not in keys and taint.effect in DO_NOT_SCHEDULE:
                return QueueingHint.SKIP
    if has_untolerated_taint(new, tolerations):
        return QueueingHint.SKIP
    return queue_hint_if(old is None or (isinstance(old, Node) and has_untolerated_taint(old, tolerations)))


def hint_on_own_update(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """Tolerations can only be added. If this pod got one, it is retried."""
    assert isinstance(new, Pod)
    return queue_hint_if(new.uid == pod.uid)


class TaintToleration:
    """Keeps pods off nodes with untolerated taints, and prefers nodes with fewer untolerated soft taints."""

    name = "TaintToleration"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False)
    events_to_register = (
        ClusterEventWithHint.with_hint_key(
            EventResource.NODE,
            ActionType.ADD | ActionType.UPDATE_NODE_TAINT,
            toleration_hint_input,
            hint_on_node_change,
        ),
        ClusterEventWithHint(
            EventResource.POD, ActionType.UPDATE_POD_TOLERATION, hint_on_own_update, hint_key=no_hint_key
        ),
    )

    def signature(self, pod: Pod) -> Hashable | None:
        return frozenset((each.key, each.operator, each.value, each.effect) for each in pod.spec.tolerations)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        tolerations = cycle.pod.spec.tolerations

        def has_untolerated(taints: tuple[Taint, ...]) -> bool:
            return find_untolerated_taint(taints, tolerations) is not None

        yield Rejection(nodes.where_taints(has_untolerated), UNTOLERATED, resolvable=False)

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        soft = tuple(each for each in cycle.pod.spec.tolerations if each.effect in ("", PREFER_NO_SCHEDULE))
        cycle.put(SOFT_TOLERATIONS, soft)
        return None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector | Status:
        tolerations = cycle.find(SOFT_TOLERATIONS)
        if tolerations is None:
            return error(f'failed to read "{SOFT_TOLERATIONS.name}" from cycleState: not found')

        def count_untolerated(taints: tuple[Taint, ...]) -> int:
            soft = (taint for taint in taints if taint.effect == PREFER_NO_SCHEDULE)
            return sum(not tolerated(taint, tolerations) for taint in soft)

        return nodes.count_taints(count_untolerated)

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        return default_normalize(scores, reverse=True)
