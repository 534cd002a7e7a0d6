"""Allocation results: devices, node selector and configuration of a claim.

Built after a search, once for each claim on the chosen node (on every node if a caller wants all allocations).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID, uuid5

from bayplan.devices.device_requests import RequestAlternative
from bayplan.devices.errors import AllocationError
from bayplan.devices.pools import PoolDevice
from bayplan.devices.search import DevicePick
from bayplan.objects.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan.objects.resource import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)

FROM_CLASS, FROM_CLAIM = "FromClass", "FromClaim"

_SHARES = UUID("0f0b3e8e-52d3-5b0e-9d0a-6f3a9f2c7b51")  # the namespace of share ids


def allocation_result(
    claim: ResourceClaim, alternatives: Sequence[RequestAlternative], picks: Sequence[DevicePick], node_name: str
) -> AllocationResult:
    """The allocation of one claim. `alternatives`: the chosen alternative of each request, in order."""
    return AllocationResult(
        devices=DeviceAllocationResult(
            results=tuple(_result(claim, pick, number) for number, pick in enumerate(picks)),
            config=(*_class_configs(alternatives), *_claim_configs(claim, alternatives)),
        ),
        node_selector=node_selector(claim, [pick.device for pick in picks], node_name),
    )


def _result(claim: ResourceClaim, pick: DevicePick, number: int) -> DeviceRequestAllocationResult:
    alternative, device = pick.alternative, pick.device
    return DeviceRequestAllocationResult(
        request=alternative.name,
        driver=device.id.driver,
        pool=device.id.pool,
        device=device.id.device,
        admin_access=True if alternative.admin else None,
        tolerations=alternative.tolerations,
        binding_conditions=device.device.binding_conditions,
        binding_failure_conditions=device.device.binding_failure_conditions,
        share_id=None if pick.share is None else _share_id(claim, pick, number),
        consumed_capacity={name: str(amount) for name, amount in (pick.share or {}).items()},
    )


def _share_id(claim: ResourceClaim, pick: DevicePick, number: int) -> str:
    """A unique id of a share. Derived from the claim's uid, so that it needs no random numbers."""
    return str(uuid5(_SHARES, f"{claim.metadata.uid}/{number}/{pick.device.id}"))


def _class_configs(alternatives: Iterable[RequestAlternative]) -> Iterable[DeviceAllocationConfiguration]:
    """The configurations of each class once, for all requests that use it."""
    by_class: dict[str, list[RequestAlternative]] = {}
    for alternative in alternatives:
        by_class.setdefault(alternative.device_class.name, []).append(alternative)
    for users in by_class.values():
        for config in users[0].device_class.spec.config:
            names = tuple(alternative.name for alternative in users)
            yield DeviceAllocationConfiguration(source=FROM_CLASS, requests=names, opaque=config.opaque)


def _claim_configs(
    claim: ResourceClaim, alternatives: Sequence[RequestAlternative]
) -> Iterable[DeviceAllocationConfiguration]:
    """The configurations of the claim.

    One without requests is listed once, any other one once for each of its requests that is met.
    """
    for config in claim.spec.devices.config:
        times = (
            1
            if not config.requests
            else sum(
                {alternative.request, alternative.name} & set(config.requests) != set() for alternative in alternatives
            )
        )
        configuration = DeviceAllocationConfiguration(source=FROM_CLAIM, requests=config.requests, opaque=config.opaque)
        yield from [configuration] * times


def node_selector(claim: ResourceClaim, devices: Iterable[PoolDevice], node_name: str) -> NodeSelector | None:
    """The nodes that can use all these devices; None for every node."""
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for device in devices:
        place = device.device if device.slice.spec.per_device_node_selection else device.slice.spec
        if place.node_name is not None or device.device.binds_to_node:
            return _node_name_selector(node_name)
        terms = place.node_selector.node_selector_terms if place.node_selector is not None else ()
        if len(terms) > 1:
            text = f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms"
            raise AllocationError(f"create NodeSelector for claim {claim.name}: {text}")
        for term in terms:
            _add_missing(fields, term.match_fields)
            _add_missing(expressions, term.match_expressions)
    if not (fields or expressions):
        return None
    return _selector(NodeSelectorTerm(match_fields=tuple(fields), match_expressions=tuple(expressions)))


def _node_name_selector(node_name: str) -> NodeSelector:
    name = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node_name,))
    return _selector(NodeSelectorTerm(match_fields=(name,)))


def _selector(term: NodeSelectorTerm) -> NodeSelector:
    return NodeSelector(node_selector_terms=(term,))


def _add_missing(known: list[NodeSelectorRequirement], more: Iterable[NodeSelectorRequirement]) -> None:
    """Add missing requirements. The order of values does not make a requirement different."""
    for requirement in more:
        if not any(_is_same_requirement(requirement, other) for other in known):
            known.append(requirement)


def _is_same_requirement(a: NodeSelectorRequirement, b: NodeSelectorRequirement) -> bool:
    return a.key == b.key and a.operator == b.operator and set(a.values) == set(b.values)
