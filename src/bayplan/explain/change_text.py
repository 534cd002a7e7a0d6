"""Texts of suggested changes: short instructions for users."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bayplan.objects.core import Affinity, NodeSelectorRequirement, Pod, PodAffinity
from bayplan.objects.pod_relaxations import (
    CLAIM,
    EVICTION,
    GATE,
    GROUP,
    HOST_PORT,
    MISSING,
    REQUESTS,
    SELECTOR,
    SPREAD,
    TOLERATION,
    VOLUME,
    SuggestedChange,
    node_affinity_terms,
    quantity,
)
from bayplan.objects.resources import CPU, filter_requests
from bayplan.telemetry.decision_text import join_names

_MAX_NAMES = 5


def change_text(pod: Pod, change: SuggestedChange) -> str:
    """The change as an instruction."""
    return _TEXTS[change.kind](pod, change)


def _lower_requests(pod: Pod, change: SuggestedChange) -> str:
    before = filter_requests(pod)
    return f"ask for {join_names([_lower_request(name, by, before.get(name, 0)) for name, by in change.less.items()])}"


def _lower_request(name: str, by: int, before: int) -> str:
    label = "CPU" if name == CPU else name
    return f"no {label}" if by >= before else f"{quantity(name, by)} less {label}"


def _toleration(_: Pod, change: SuggestedChange) -> str:
    return f"tolerate {join_names(change.tolerate)}"


def _selector(pod: Pod, change: SuggestedChange) -> str:
    return f"do not demand {join_names([_term(pod, place) for place in change.drop])}"


def _term(pod: Pod, place: str) -> str:
    if place.startswith("nodeSelector."):
        key = place.removeprefix("nodeSelector.")
        return f"the label {key}={pod.spec.node_selector.get(key, '')} of the node"
    if place.startswith("nodeAffinity["):
        return f"`{_requirement(pod, place)}` of the node"
    affinity = pod.spec.affinity or Affinity()
    near = place.startswith("podAffinity[")
    terms = ((affinity.pod_affinity if near else affinity.pod_anti_affinity) or PodAffinity()).required
    key = terms[int(place.partition("[")[2][:-1])].topology_key
    return f"{'pods of its affinity' if near else 'to be away from pods of its anti-affinity'} in {key} ({place})"


def _requirement(pod: Pod, place: str) -> str:
    number, _, rest = place.removeprefix("nodeAffinity[").partition("].")
    where, _, index = rest.partition("[")
    term = node_affinity_terms(pod)[int(number)]
    requirement: NodeSelectorRequirement = (term.match_fields if where == "matchFields" else term.match_expressions)[
        int(index[:-1])
    ]
    values = f" ({', '.join(requirement.values)})" if requirement.values else ""
    return f"{requirement.key} {requirement.operator}{values}"


def _spread(pod: Pod, change: SuggestedChange) -> str:
    constraints = pod.spec.topology_spread_constraints
    keys = [constraints[int(place.partition("[")[2][:-1])].topology_key for place in change.drop]
    return f"spread over {join_names(keys)} only as far as possible (whenUnsatisfiable: ScheduleAnyway)"


def _ports(_: Pod, change: SuggestedChange) -> str:
    return f"leave {_names_or_count('host port', change.drop)} alone"


def _gates(_: Pod, change: SuggestedChange) -> str:
    return f"remove {_names_or_count('scheduling gate', change.drop)}"


def _evict(_: Pod, change: SuggestedChange) -> str:
    many = len(change.evict)
    pods = join_names(change.evict) if many <= _MAX_NAMES else f"{', '.join(change.evict[:_MAX_NAMES])} and more"
    return f"evict {many} pod{'s' if many > 1 else ''} of lower priority from {change.node}: {pods}"


def _missing(pod: Pod, change: SuggestedChange) -> str:
    return join_names([_object(pod, *place.split("/", 1)) for place in change.drop])


def _object(pod: Pod, kind: str, name: str) -> str:
    if kind == VOLUME:
        return f"provide a PersistentVolume for the claim {name}"
    if kind in (CLAIM, GROUP):
        return f"create the {kind} {pod.namespace}/{name}"
    return f"create the ResourceClaim that the pod calls {name}"


def _names_or_count(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {join_names(names)}"


_TEXTS: dict[str, Callable[[Pod, SuggestedChange], str]] = {
    REQUESTS: _lower_requests,
    TOLERATION: _toleration,
    SELECTOR: _selector,
    SPREAD: _spread,
    HOST_PORT: _ports,
    GATE: _gates,
    EVICTION: _evict,
    MISSING: _missing,
}
