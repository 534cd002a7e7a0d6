"""Changes that make a pod easier to place, and the changed pods.

Used by the explainers, which try changes out. The list is closed: lower requests, a toleration, a selector term less, a
spread constraint that no longer filters, a host port less, a gate less, evicted pods, a missing object that exists. A
change is plain data, so that it can be shown, sent and applied. Evictions and new objects change the cluster; for the
pod, a new object means that the pod no longer waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from bayplan.codec.quantity import Quantity, QuantityFormat, parse_quantity
from bayplan.objects.core import (
    Affinity,
    Container,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodSpec,
    ResourceRequirements,
    Taint,
    Toleration,
)
from bayplan.objects.meta import ResourceList
from bayplan.objects.ports import ANY_ADDRESS, DEFAULT_PROTOCOL, HostPort
from bayplan.objects.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    amount_of,
    filter_requests,
    has_pod_level_requests,
    is_hugepages,
    is_pod_level,
)
from bayplan.objects.volumes import Volume

T = TypeVar("T")

REQUESTS, TOLERATION, SELECTOR, SPREAD = "requests", "toleration", "selector", "spread"
HOST_PORT, GATE, EVICTION, MISSING = "hostPort", "gate", "eviction", "missingObject"
KINDS = (GATE, MISSING, TOLERATION, HOST_PORT, SPREAD, SELECTOR, REQUESTS, EVICTION)
"""All kinds of changes. Of changes of equal size the first kind is suggested first."""

CLAIM, VOLUME, DEVICES, GROUP = "PersistentVolumeClaim", "PersistentVolume", "ResourceClaim", "PodGroup"
DO_NOT_SCHEDULE, SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"
ALL_ITEMS = "*"
"""In place of taints: all taints."""


class SuggestedChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One change. The kind decides which fields it uses; `node` is the node that the changed pod fits on."""

    kind: str
    less: dict[str, int] = {}
    """By resource: thousandths of a CPU, whole units of all other resources."""
    tolerate: tuple[str, ...] = ()
    """Taints as `key=value:effect`."""
    drop: tuple[str, ...] = ()
    """Terms, constraints, ports, gates or missing objects, by their paths and names."""
    evict: tuple[str, ...] = ()
    """Pods as `namespace/name`."""
    node: str = ""
    text: str = ""

    @property
    def parts(self) -> int:
        """The number of single changes."""
        return len(self.less) + len(self.tolerate) + len(self.drop) + len(self.evict)


def apply_change(pod: Pod, change: SuggestedChange) -> Pod:
    """The pod after a change. A change of the cluster does not change the pod."""
    if change.kind == REQUESTS:
        return with_lower_requests(pod, change.less)
    if change.kind == TOLERATION:
        return with_tolerations(pod, change.tolerate)
    remedy = _APPLY_BY_KIND.get(change.kind)
    return pod if remedy is None else remedy(pod, frozenset(change.drop))


# Taints.


def taint_text(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def with_tolerations(pod: Pod, taints: Iterable[str]) -> Pod:
    """The pod with an additional toleration for each of these taints."""
    added = tuple(map(_toleration, taints))
    return replace(pod, spec=replace(pod.spec, tolerations=(*pod.spec.tolerations, *added)))


def _toleration(text: str) -> Toleration:
    if text == ALL_ITEMS:
        return Toleration(operator="Exists")
    name, _, effect = text.rpartition(":")
    key, _, value = name.partition("=")
    return Toleration(key=key, operator="Equal", value=value, effect=effect)


# Terms about nodes and other pods.


def node_term_paths(pod: Pod) -> list[str]:
    found = [f"nodeSelector.{key}" for key in pod.spec.node_selector]
    for number, term in enumerate(node_affinity_terms(pod)):
        found += [f"nodeAffinity[{number}].matchExpressions[{place}]" for place in range(len(term.match_expressions))]
        found += [f"nodeAffinity[{number}].matchFields[{place}]" for place in range(len(term.match_fields))]
    return found


def pod_term_paths(pod: Pod) -> list[str]:
    affinity = pod.spec.affinity or Affinity()
    near, far = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    found = [f"podAffinity[{place}]" for place in range(len(near.required))]
    return found + [f"podAntiAffinity[{place}]" for place in range(len(far.required))]


def without_terms(pod: Pod, removed: Collection[str]) -> Pod:
    """The pod without some of these terms. A node affinity term without requirements matches any node."""
    spec = pod.spec
    selector = {key: value for key, value in spec.node_selector.items() if f"nodeSelector.{key}" not in removed}
    affinity = spec.affinity
    if affinity is not None:
        nodes = affinity.node_affinity
        if nodes is not None and nodes.required is not None:
            nodes = replace(nodes, required=_remaining_terms(nodes.required, removed))
        affinity = replace(
            affinity,
            node_affinity=nodes,
            pod_affinity=_remove_terms(affinity.pod_affinity, "podAffinity", removed),
            pod_anti_affinity=_remove_terms(affinity.pod_anti_affinity, "podAntiAffinity", removed),
        )
    return replace(pod, spec=replace(spec, node_selector=selector, affinity=affinity))


def node_affinity_terms(pod: Pod) -> tuple[NodeSelectorTerm, ...]:
    """The terms of the required node affinity, of which one must match."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    return affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()


def _remaining_terms(required: NodeSelector, removed: Collection[str]) -> NodeSelector | None:
    terms = []
    for number, term in enumerate(required.node_selector_terms):
        labels = _remaining_items(term.match_expressions, f"nodeAffinity[{number}].matchExpressions", removed)
        fields = _remaining_items(term.match_fields, f"nodeAffinity[{number}].matchFields", removed)
        if not labels and not fields and (term.match_expressions or term.match_fields):
            return None
        terms.append(NodeSelectorTerm(match_expressions=labels, match_fields=fields))
    return NodeSelector(node_selector_terms=tuple(terms))


def _remove_terms(affinity: PodAffinity | None, where: str, removed: Collection[str]) -> PodAffinity | None:
    return None if affinity is None else replace(affinity, required=_remaining_items(affinity.required, where, removed))


def _remaining_items(items: Sequence[T], where: str, removed: Collection[str]) -> tuple[T, ...]:
    return tuple(item for place, item in enumerate(items) if f"{where}[{place}]" not in removed)


# Topology spread, ports and gates.


def spread_term_paths(pod: Pod) -> list[str]:
    """The paths of the spread constraints that filter nodes."""
    return [
        f"topologySpreadConstraints[{place}]"
        for place, constraint in enumerate(pod.spec.topology_spread_constraints)
        if constraint.when_unsatisfiable == DO_NOT_SCHEDULE
    ]


def with_spread_schedule_anyway(pod: Pod, relaxed: Collection[str]) -> Pod:
    """The pod with some constraints changed to ScheduleAnyway: they no longer filter nodes, but still score them."""
    constraints = tuple(
        replace(each, when_unsatisfiable=SCHEDULE_ANYWAY, min_domains=None)
        if f"topologySpreadConstraints[{place}]" in relaxed
        else each
        for place, each in enumerate(pod.spec.topology_spread_constraints)
    )
    return replace(pod, spec=replace(pod.spec, topology_spread_constraints=constraints))


def port_text(port: HostPort) -> str:
    address = "" if port.address == ANY_ADDRESS else f"{port.address}:"
    return f"{address}{port.port}/{port.protocol}"


def without_ports(pod: Pod, removed: Collection[str]) -> Pod:
    def remove_host_ports(container: Container) -> Container:
        ports = tuple(
            replace(port, host_port=0)
            if port_text(HostPort(port.host_ip or ANY_ADDRESS, port.protocol or DEFAULT_PROTOCOL, port.host_port))
            in removed
            else port
            for port in container.ports
        )
        return replace(container, ports=ports)

    return _map_containers(pod, remove_host_ports)


def without_gates(pod: Pod, removed: Collection[str]) -> Pod:
    gates = tuple(gate for gate in pod.spec.scheduling_gates if gate.name not in removed)
    return replace(pod, spec=replace(pod.spec, scheduling_gates=gates))


# Missing objects.


def without_missing_objects(pod: Pod, existing: Collection[str]) -> Pod:
    """The pod as filters see it once these objects exist and suit every node."""
    spec = pod.spec
    claims = tuple(each for each in spec.resource_claims if f"{DEVICES}/{each.name}" not in existing)
    remaining = {each.name for each in claims}
    group = spec.scheduling_group
    in_group = group is not None and f"{GROUP}/{group.pod_group_name}" not in existing
    spec = replace(
        spec,
        volumes=tuple(volume for volume in spec.volumes if not _depends_on(pod, volume, existing)),
        resource_claims=claims,
        scheduling_group=group if in_group else None,
    )

    def remove_claims(container: Container) -> Container:
        used = tuple(each for each in container.resources.claims if each.name in remaining)
        return replace(container, resources=replace(container.resources, claims=used))

    return _map_containers(replace(pod, spec=spec), remove_claims)


def claim_name(pod: Pod, volume: Volume) -> str:
    """The name of the claim of a volume; empty if it needs none."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.name}-{volume.name}" if volume.ephemeral is not None else ""


def _depends_on(pod: Pod, volume: Volume, existing: Collection[str]) -> bool:
    claim = claim_name(pod, volume)
    return bool(claim) and (f"{CLAIM}/{claim}" in existing or f"{VOLUME}/{claim}" in existing)


# Requests.


def lowest_requests(pod: Pod) -> dict[str, int]:
    """The requests that do not depend on containers: the overhead."""
    return {name: amount_of(name, parse_quantity(text)) for name, text in pod.spec.overhead.items()}


def with_lower_requests(pod: Pod, less: Mapping[str, int]) -> Pod:
    """The pod with lower requests. The largest containers are reduced first."""
    before, overhead = filter_requests(pod), lowest_requests(pod)
    limits = {name: max(0, before.get(name, 0) - by - overhead.get(name, 0)) for name, by in less.items()}
    spec = pod.spec
    if spec.resources is not None and has_pod_level_requests(pod):
        whole = {
            name: limit for name, limit in limits.items() if is_pod_level(name) and name in spec.resources.requests
        }
        spec = replace(spec, resources=_set_amounts(spec.resources, whole))
        limits = {name: limit for name, limit in limits.items() if name not in whole}
    for name, limit in limits.items():
        spec = _limit_containers(spec, name, limit)
    return replace(pod, spec=spec)


def _limit_containers(spec: PodSpec, name: str, limit: int) -> PodSpec:
    """Reduce the containers so that those that run together, and each earlier init container, stay within the limit."""
    long_running = [*spec.containers, *(each for each in spec.init_containers if each.is_sidecar)]
    requests = [_container_request(container, name) for container in long_running]
    too_much = sum(requests) - limit
    for place in sorted(range(len(long_running)), key=lambda place: (place >= len(spec.containers), -requests[place])):
        given = max(0, min(requests[place], too_much))
        requests[place] -= given
        too_much -= given
    regular, beside = requests[: len(spec.containers)], iter(requests[len(spec.containers) :])
    containers = [
        _set_container_request(each, name, amount) for each, amount in zip(spec.containers, regular, strict=True)
    ]
    first, running = [], 0
    for container in spec.init_containers:
        if container.is_sidecar:
            amount = next(beside)
            running += amount
        else:
            amount = max(0, min(_container_request(container, name), limit - running))
        first.append(_set_container_request(container, name, amount))
    return replace(spec, containers=tuple(containers), init_containers=tuple(first))


def _container_request(container: Container, name: str) -> int:
    text = container.resources.requests.get(name)
    return 0 if text is None else amount_of(name, parse_quantity(text))


def _set_container_request(container: Container, name: str, amount: int) -> Container:
    if _container_request(container, name) == amount:
        return container
    return replace(container, resources=_set_amounts(container.resources, {name: amount}))


def _set_amounts(resources: ResourceRequirements, amounts: Mapping[str, int]) -> ResourceRequirements:
    requests: ResourceList = {**resources.requests, **{name: str(quantity(name, amounts[name])) for name in amounts}}
    return replace(resources, requests=requests)


def quantity(name: str, amount: int) -> Quantity:
    """An amount of a resource as people write it."""
    if name == CPU:
        return Quantity.of_milli(amount)
    is_bytes = name in (MEMORY, EPHEMERAL_STORAGE) or is_hugepages(name)
    return Quantity.of(amount, QuantityFormat.BINARY_SI if is_bytes else QuantityFormat.DECIMAL_SI)


# Helpers.


def _map_containers(pod: Pod, change: Callable[[Container], Container]) -> Pod:
    spec = pod.spec
    containers = tuple(change(container) for container in spec.containers)
    first = tuple(change(container) for container in spec.init_containers)
    return replace(pod, spec=replace(spec, containers=containers, init_containers=first))


_APPLY_BY_KIND: dict[str, Callable[[Pod, Collection[str]], Pod]] = {
    SELECTOR: without_terms,
    SPREAD: with_spread_schedule_anyway,
    HOST_PORT: without_ports,
    GATE: without_gates,
    MISSING: without_missing_objects,
}
