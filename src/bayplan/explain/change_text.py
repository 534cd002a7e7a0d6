"""What a change is called, for people: an imperative of few words."""

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
    Change,
    node_affinity_terms,
    quantity,
)
from bayplan.objects.resources import CPU, filter_requests
from bayplan.telemetry.decision_text import listed

_MOST_NAMED = 5


def words_for(pod: Pod, change: Change) -> str:
    """The change as an instruction."""
    return _WORDS[change.kind](pod, change)


def _less(pod: Pod, change: Change) -> str:
    before = filter_requests(pod)
    return f"ask for {listed([_less_of(name, by, before.get(name, 0)) for name, by in change.less.items()])}"


def _less_of(name: str, by: int, before: int) -> str:
    called = "CPU" if name == CPU else name
    return f"no {called}" if by >= before else f"{quantity(name, by)} less {called}"


def _toleration(_: Pod, change: Change) -> str:
    return f"tolerate {listed(change.tolerate)}"


def _selector(pod: Pod, change: Change) -> str:
    return f"do not demand {listed([_term(pod, place) for place in change.drop])}"


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
    wanted: NodeSelectorRequirement = (term.match_fields if where == "matchFields" else term.match_expressions)[
        int(index[:-1])
    ]
    values = f" ({', '.join(wanted.values)})" if wanted.values else ""
    return f"{wanted.key} {wanted.operator}{values}"


def _spread(pod: Pod, change: Change) -> str:
    constraints = pod.spec.topology_spread_constraints
    keys = [constraints[int(place.partition("[")[2][:-1])].topology_key for place in change.drop]
    return f"spread over {listed(keys)} only as far as possible (whenUnsatisfiable: ScheduleAnyway)"


def _ports(_: Pod, change: Change) -> str:
    return f"leave {_counted('host port', change.drop)} alone"


def _gates(_: Pod, change: Change) -> str:
    return f"remove {_counted('scheduling gate', change.drop)}"


def _evict(_: Pod, change: Change) -> str:
    many = len(change.evict)
    named = listed(change.evict) if many <= _MOST_NAMED else f"{', '.join(change.evict[:_MOST_NAMED])} and others"
    return f"evict {many} pod{'s' if many > 1 else ''} of lower priority from {change.node}: {named}"


def _missing(pod: Pod, change: Change) -> str:
    return listed([_object(pod, *place.split("/", 1)) for place in change.drop])


def _object(pod: Pod, kind: str, name: str) -> str:
    if kind == VOLUME:
        return f"provide a PersistentVolume for the claim {name}"
    if kind in (CLAIM, GROUP):
        return f"create the {kind} {pod.namespace}/{name}"
    return f"create the ResourceClaim that the pod calls {name}"


def _counted(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {listed(names)}"


_WORDS: dict[str, Callable[[Pod, Change], str]] = {
    REQUESTS: _less,
    TOLERATION: _toleration,
    SELECTOR: _selector,
    SPREAD: _spread,
    HOST_PORT: _ports,
    GATE: _gates,
    EVICTION: _evict,
    MISSING: _missing,
}
