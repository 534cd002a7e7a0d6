"""Naive twin of DynamicResources, one node at a time. `device_search` has the search itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bayplan.codec.quantity import parse_quantity
from bayplan.devices.assumptions import AllocatedDevices
from bayplan.devices.device_requests import RequestAlternative, alternatives
from bayplan.devices.errors import DeviceError
from bayplan.devices.identity import PoolId
from bayplan.devices.pools import NodePools, PoolDevice, VisiblePool
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)
from bayplan.objects.resources import filter_requests, is_dra_extended_resource_name
from bayplan.objects.selectors.node_selectors import compile_node_selector
from bayplan.plugins.dynamic_resources.plugin import DynamicResources
from naive.device_cases import IMPLICIT, NOW, SPECIAL, WAIT, cases
from naive.device_search import NaiveSearch, TooManyError
from naive.twin import Case, Twin, spread_to_100
from support.builders.devices import SELECTORS
from support.builders.framework import FEASIBLE, FilterResult, errored, replace_fields, unresolvable


class Outcome(NamedTuple):
    """The result for a node, and the allocation of each claim (None: no allocation was necessary)."""

    answer: FilterResult
    claims: Sequence[ResourceClaim] = ()
    granted: Sequence[set[str]] | None = None


# claims


def claims_of(case: Case) -> list[ResourceClaim] | str:
    """The pod's own claims, or what is wrong with one."""
    pod, found = case.pod, []
    for reference in pod.spec.resource_claims:
        name, generated = reference.resource_claim_name, reference.resource_claim_name is None
        if generated:
            listed = [each for each in pod.status.resource_claim_statuses if each.name == reference.name]
            if not listed:
                return f'pod "{pod.key}": ResourceClaim not created yet'
            name = listed[0].resource_claim_name
            if name is None:
                continue
        key = f"{pod.namespace}/{name}"
        claim = next((each for each in case.cluster.of(ResourceClaim) if each.key == key), None)
        if claim is None:
            return f'could not find ResourceClaim "{key}"'
        if claim.metadata.deletion_timestamp is not None:
            return f'resourceclaim "{name}" is being deleted'
        if generated and not owned(claim, pod):
            return f"ResourceClaim {key} was not created for Pod {pod.key} (Pod is not owner)"
        found.append(claim)
    return found


def owned(claim: ResourceClaim, pod: Pod) -> bool:
    return any(owner.controller and owner.uid == pod.uid for owner in claim.metadata.owner_references)


def missing_class(case: Case, claim: ResourceClaim) -> str | None:
    known = [each.name for each in case.cluster.of(DeviceClass)]
    for request in claim.spec.devices.requests:
        wanted = [(f"{request.name}/{sub.name}", sub.device_class_name) for sub in request.first_available]
        if request.exactly is not None:
            wanted = [(request.name, request.exactly.device_class_name)]
        for name, class_name in wanted:
            if class_name not in known:
                return f"request {name}: device class {class_name} does not exist"
    return None


def look(case: Case, node: Node) -> Outcome:
    own = claims_of(case)
    if isinstance(own, str):
        return Outcome(unresolvable(own))
    resources = [
        name for name, count in filter_requests(case.pod).items() if count and is_dra_extended_resource_name(name)
    ]
    classes = {name: found for name in resources if (found := class_behind(case, name)) is not None}
    special = special_claim(case) if classes else None
    for claim in own:
        problem = missing_class(case, claim) if claim.status.allocation is None else None
        if problem is not None:
            return Outcome(unresolvable(problem))
    if special is not None:
        answer = with_node(case, node, special, resources, classes)
        if isinstance(answer, tuple):
            return Outcome(answer)
        if answer is None and not own:
            return Outcome(FEASIBLE)
        assert answer is not None or own
        own = [*own, answer or special]
    return serve(case, node, own)


def serve(case: Case, node: Node, claims: Sequence[ResourceClaim]) -> Outcome:
    granted: Sequence[set[str]] | None = None
    open_claims = [claim for claim in claims if claim.status.allocation is None]
    if open_claims:
        try:
            found = allocate(case, node, open_claims)
        except DeviceError as fault:
            return Outcome(errored(f'running "DynamicResources" filter plugin: {fault}'))
        if isinstance(found, str):
            return Outcome(unresolvable(found))
        granted = found
    if not all(usable(claim, node) for claim in claims):
        return Outcome(unresolvable("resourceclaim not available on the node"))
    return Outcome(FEASIBLE, claims, granted)


def usable(claim: ResourceClaim, node: Node) -> bool:
    """Whether an allocated claim can be used from the node."""
    allocation = claim.status.allocation
    if allocation is None:
        return True
    selector = allocation.node_selector
    if selector is not None and not compile_node_selector(selector).matches(node.metadata.labels, node.name):
        return False
    for result in allocation.devices.results:
        true = [
            condition.type
            for status in claim.status.devices
            if (status.driver, status.pool, status.device) == (result.driver, result.pool, result.device)
            for condition in status.conditions
            if condition.status == "True"
        ]
        if not result.binding_conditions:
            continue
        if any(name in true for name in result.binding_failure_conditions):
            return False
        since = allocation.allocation_timestamp
        if any(name not in true for name in result.binding_conditions) and since is not None and since + WAIT < NOW:
            return False
    return True


# extended resources


def class_behind(case: Case, resource: str) -> DeviceClass | None:
    named = [each for each in case.cluster.of(DeviceClass) if each.spec.extended_resource_name == resource]
    if named:
        return max(sorted(named, key=lambda each: each.name), key=lambda each: each.metadata.creation_timestamp)
    return next((each for each in case.cluster.of(DeviceClass) if IMPLICIT + each.name == resource), None)


def special_claim(case: Case) -> ResourceClaim:
    for claim in case.cluster.of(ResourceClaim):
        if claim.metadata.annotations.get(SPECIAL) == "true" and owned(claim, case.pod):
            return claim  # type: ignore[no-any-return]
    return ResourceClaim(ObjectMeta(name="<extended-resources>", namespace=case.pod.namespace))


def with_node(
    case: Case, node: Node, special: ResourceClaim, resources: Sequence[str], classes: dict[str, DeviceClass]
) -> ResourceClaim | FilterResult | None:
    """The special claim for this node (None: not needed), or why the node is rejected."""
    if special.spec.devices.requests:
        return unresolvable("cannot schedule extended resource claim")
    room = node.status.allocatable
    left = [name for name in resources if name in classes and parse_quantity(room.get(name, 0)).is_zero()]
    if any(name not in left and name not in room for name in resources):
        return unresolvable("cannot fit resource")
    if not left:
        return None
    requests = [each for name in left for each in asked_by_containers(case.pod, name, classes[name].name)]
    ordered = tuple(sorted(requests, key=lambda request: request.name))
    return replace_fields(special, spec=ResourceClaimSpec(DeviceClaim(requests=ordered)))


def asked_by_containers(pod: Pod, resource: str, class_name: str) -> list[DeviceRequest]:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    brief = [number for number, each in enumerate(pod.spec.init_containers) if each.restart_policy != "Always"]
    counts = [parse_quantity(each.resources.requests.get(resource, 0)).as_integer() or 0 for each in containers]
    needed = {number: count for number, count in enumerate(counts) if count and number not in brief}
    rests = {
        number: counts[number] - sum(count for later, count in needed.items() if later > number) for number in brief
    }
    worst = max(rests, key=lambda number: rests[number], default=None)
    if worst is not None and rests[worst] > 0:
        needed[worst] = rests[worst]
    return [
        DeviceRequest(
            name=f"container-{number}-request-{sorted(containers[number].resources.requests).index(resource)}",
            exactly=ExactDeviceRequest(device_class_name=class_name, allocation_mode="ExactCount", count=count),
        )
        for number, count in needed.items()
    ]


# devices


def allocate(case: Case, node: Node, claims: Sequence[ResourceClaim]) -> list[set[str]] | str:
    """The requests with their devices, claim by claim; or why there is no allocation."""
    pools = pools_of(case, node)
    allocations = [claim.status.allocation for claim in case.cluster.of(ResourceClaim)]
    in_use = AllocatedDevices(each for each in allocations if each is not None)
    search = NaiveSearch(node, pools, in_use, SELECTORS, claims)
    classes = {each.name: each for each in case.cluster.of(DeviceClass)}
    asked: list[list[RequestAlternative]] = []
    for position, claim in enumerate(claims):
        asks = [
            [with_all(search, pools, ask) for ask in alternatives(claim, position, request, classes)]
            for request in claim.spec.devices.requests
        ]
        fewest = sum(min(ask.count for ask in each) for each in asks)
        if fewest > 32:
            raise DeviceError(f"claim {claim.key}: number of requested devices {fewest} exceeds the claim limit of 32")
        asked += asks
    try:
        picks = search.picks(asked)
    except TooManyError:
        picks = None
    if picks is None:
        return "invalid resource pools were encountered" if pools.any_invalid else "cannot allocate all claims"
    return [{ask.name for ask, _ in picks if ask.position == position} for position in range(len(claims))]


def with_all(search: NaiveSearch, pools: NodePools, ask: RequestAlternative) -> RequestAlternative:
    if not ask.wants_all:
        return ask
    every: list[PoolDevice] = []
    for pool in pools.pools:
        if pool.incomplete or pool.invalid:
            state = "being updated" if pool.incomplete else "invalid"
            raise ask.error(f"asks for all devices, but resource pool {pool.id} is currently {state}")
        every += [each for each in pool.devices if search.can_serve(ask, each)]
    return ask.on_node(every)


def seen_from(node: Node, where: Any) -> bool:
    """The node, as a slice's own fields or a device's fields select it."""
    if where.node_name:
        return bool(where.node_name == node.name)
    if where.all_nodes or where.node_selector is None:
        return bool(where.all_nodes)
    return compile_node_selector(where.node_selector).matches(node.metadata.labels, node.name)


def counts_for(node: Node, each: ResourceSlice) -> bool:
    if each.spec.shared_counters or seen_from(node, each.spec):
        return True
    return bool(each.spec.per_device_node_selection) and any(seen_from(node, item) for item in each.spec.devices)


def pools_of(case: Case, node: Node) -> NodePools:
    slices = sorted(case.cluster.of(ResourceSlice), key=lambda each: each.name)
    found = []
    for pool_id in sorted({(each.spec.driver, each.spec.pool.name) for each in slices}):
        mates = [each for each in slices if (each.spec.driver, each.spec.pool.name) == pool_id]
        pool = pool_of(PoolId(*pool_id), mates, node)
        if pool is not None:
            found.append(pool)
    return NodePools(found, node.metadata.labels, ())


def pool_of(pool_id: PoolId, slices: Sequence[ResourceSlice], node: Node) -> VisiblePool | None:
    here = [each for each in slices if counts_for(node, each)]
    if not here:
        return None
    newest = max(each.spec.pool.generation for each in here)
    here = [each for each in here if each.spec.pool.generation == newest]
    expected, elsewhere = here[0].spec.pool.resource_slice_count, list[ResourceSlice]()
    if len(here) != expected:
        if any(each.spec.pool.generation > newest for each in slices):
            return None
        elsewhere = [each for each in slices if each.spec.pool.generation == newest and each not in here]
        if len(here) + len(elsewhere) != expected:
            return VisiblePool(pool_id, incomplete=True)
    sets = [each for item in here for each in item.spec.shared_counters]
    counters = {
        (each.name, name): parse_quantity(counter.value) for each in sets for name, counter in each.counters.items()
    }
    names = [each.name for item in here for each in item.spec.devices]
    consumed = [
        (used.counter_set, name)
        for item in (*here, *elsewhere)
        for each in item.spec.devices
        for used in each.consumes_counters
        for name in used.counters
    ]
    doubled = len(set(names)) < len(names) or len({each.name for each in sets}) < len(sets)
    if doubled or any(name not in counters for name in consumed):
        return VisiblePool(pool_id, invalid=True)
    mine, others = (
        tuple(PoolDevice(item, each) for item in some for each in item.spec.devices) for some in (here, elsewhere)
    )
    return VisiblePool(pool_id, devices=mine, elsewhere=others, counters=counters)


# results


def judge(case: Case, node: Node) -> FilterResult:
    return look(case, node).answer


def score(case: Case, node: Node) -> int:
    outcome, total = look(case, node), 0
    if outcome.granted is None:
        return 0
    fresh = iter(outcome.granted)
    for claim in outcome.claims:
        allocation = claim.status.allocation
        granted = next(fresh) if allocation is None else {each.request for each in allocation.devices.results}
        for request in claim.spec.devices.requests:
            for place, sub in enumerate(request.first_available):
                total += 8 - place if f"{request.name}/{sub.name}" in granted else 0
    return total


def scores(case: Case, feasible: Sequence[Node]) -> dict[str, int]:
    return spread_to_100({node.name: score(case, node) for node in feasible})


TWIN = Twin(DynamicResources, cases(), judge, scores)
