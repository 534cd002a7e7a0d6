"""The spread constraints of a pod: its own, or the defaults of the profile.

Defaults apply to the pods of one service or controller: the services that select the pod, and the controller that owns
it. A pod without both gets no defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bayplan.objects.core import Pod, TopologySpreadConstraint
from bayplan.objects.meta import LabelSelector
from bayplan.objects.selectors.label_selectors import (
    NOTHING,
    LabelMatcher,
    SelectorError,
    compile_label_selector,
    equals,
    selector_from_map,
)
from bayplan.snapshot import Catalog

DO_NOT_SCHEDULE = "DoNotSchedule"
SCHEDULE_ANYWAY = "ScheduleAnyway"
HOSTNAME = "kubernetes.io/hostname"

SYSTEM_DEFAULTS = (
    TopologySpreadConstraint(max_skew=3, topology_key=HOSTNAME, when_unsatisfiable=SCHEDULE_ANYWAY),
    TopologySpreadConstraint(
        max_skew=5, topology_key="topology.kubernetes.io/zone", when_unsatisfiable=SCHEDULE_ANYWAY
    ),
)


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    max_skew: int
    topology_key: str
    selector: LabelMatcher
    min_domains: int
    honors_affinity: bool
    honors_taints: bool

    def counts(self, pod: Pod) -> bool:
        """Whether the constraint's selector matches the pod itself."""
        return self.selector.matches(pod.metadata.labels)

    def is_counted(self, pod: Pod) -> bool:
        """Whether a pod on a node counts. An empty selector matches the pod itself but counts no pod."""
        selector = self.selector
        return not selector.everything and not selector.nothing and self.counts(pod)


def own_constraints(pod: Pod, action: str) -> tuple[SpreadConstraint, ...]:
    """Return the pod's constraints of one kind. Raises `SelectorError` for a malformed selector."""
    return tuple(
        _constraint(raw, _own_selector(raw, pod))
        for raw in pod.spec.topology_spread_constraints
        if raw.when_unsatisfiable == action
    )


def default_constraints(
    defaults: Iterable[TopologySpreadConstraint], pod: Pod, catalog: Catalog, action: str
) -> tuple[SpreadConstraint, ...]:
    """Return the profile's default constraints of one kind, with the selector of the pod's services and owner."""
    matching = [raw for raw in defaults if raw.when_unsatisfiable == action]
    if not matching:
        return ()
    selector = default_selector(pod, catalog)
    return () if selector.everything else tuple(_constraint(raw, selector) for raw in matching)


def default_selector(pod: Pod, catalog: Catalog) -> LabelMatcher:
    """Return the combined selector of the pod's services and owner; a selector of everything if it has neither."""
    labels: dict[str, str] = {}
    namespace = pod.metadata.namespace
    for service in catalog.services.values():
        selector = service.spec.selector
        if service.namespace == namespace and selector.items() <= pod.metadata.labels.items():
            labels |= selector
    owner = pod.metadata.controller
    if owner is None:
        return selector_from_map(labels)
    key = f"{namespace}/{owner.name}"
    match owner.api_version, owner.kind:
        case "v1", "ReplicationController":
            controller = catalog.replication_controllers.get(key)
            return selector_from_map(labels | (controller.spec.selector if controller else {}))
        case "apps/v1", "ReplicaSet":
            replica_set = catalog.replica_sets.get(key)
            return _merged_selector(labels, replica_set.spec.selector if replica_set else None)
        case "apps/v1", "StatefulSet":
            stateful_set = catalog.stateful_sets.get(key)
            return _merged_selector(labels, stateful_set.spec.selector if stateful_set else None)
    return selector_from_map(labels)


def _merged_selector(labels: dict[str, str], selector: LabelSelector | None) -> LabelMatcher:
    """Combine labels with the requirements of a selector. A malformed selector, or one of nothing, adds nothing."""
    base = selector_from_map(labels)
    try:
        compiled = compile_label_selector(selector)
    except SelectorError:
        return base
    return base.with_requirements(compiled.requirements)


def _own_selector(raw: TopologySpreadConstraint, pod: Pod) -> LabelMatcher:
    """Return the constraint's selector with the pod's values of its `matchLabelKeys`."""
    if raw.label_selector is None:
        return NOTHING
    labels = pod.metadata.labels
    keys = (equals(key, labels[key]) for key in raw.match_label_keys if key in labels)
    return compile_label_selector(raw.label_selector).with_requirements(keys)


def _constraint(raw: TopologySpreadConstraint, selector: LabelMatcher) -> SpreadConstraint:
    return SpreadConstraint(
        max_skew=raw.max_skew,
        topology_key=raw.topology_key,
        selector=selector,
        min_domains=1 if raw.min_domains is None else raw.min_domains,
        honors_affinity=raw.node_affinity_policy in (None, "Honor"),
        honors_taints=raw.node_taints_policy == "Honor",
    )
