"""Requests of a claim and their alternatives in one form, validated before the search.

A request asks for devices of a class: a count or all. A request with `firstAvailable` has several alternatives, one of
which must be met; each is a `RequestAlternative`. Validation is eager, as upstream's: an invalid alternative makes the
claim invalid even if an earlier one could be met.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from bayplan.codec.quantity import QuantityText
from bayplan.devices.errors import AllocationError
from bayplan.devices.pools import PoolDevice
from bayplan.objects.resource import (
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)

EXACT_COUNT, ALL = "ExactCount", "All"

SourcedSelector = tuple[str, str]
"""A selector's expression, and its source, with which errors about it begin."""


@dataclass(slots=True, eq=False)
class RequestAlternative:
    """A request, or one alternative of it, for one claim. Equal for all nodes, unless it requests all devices."""

    claim: ResourceClaim
    position: int  # of the claim among those of the search
    request: str  # the name of the request of the claim
    alternative: str  # the name of the alternative, or ""
    device_class: DeviceClass
    conditions: tuple[SourcedSelector, ...]
    tolerations: tuple[DeviceToleration, ...]
    capacity: Mapping[str, QuantityText]
    wants_all: bool
    count: int
    admin: bool = False
    every: list[PoolDevice] = field(default_factory=list)  # all matching devices of a node, for "all"

    @property
    def name(self) -> str:
        """The name in allocation results."""
        return f"{self.request}/{self.alternative}" if self.alternative else self.request

    def on_node(self, every: list[PoolDevice]) -> RequestAlternative:
        """A copy of a request for all devices, with those of a node."""
        return replace(self, every=every, count=len(every))

    def error(self, text: str) -> AllocationError:
        """An error about this alternative. It has the alternative's own name, without the request's."""
        return AllocationError(f"claim {self.claim.key}, request {self.alternative or self.request}: {text}")


def alternatives(
    claim: ResourceClaim, position: int, request: DeviceRequest, classes: Mapping[str, DeviceClass]
) -> Iterable[RequestAlternative]:
    """The alternatives of a request, best first; one for a plain request. Raises `AllocationError`."""
    if request.first_available:
        for sub in request.first_available:
            yield _make_alternative(claim, position, request.name, sub.name, sub, classes)
    elif request.exactly is not None:
        alternative = _make_alternative(claim, position, request.name, "", request.exactly, classes)
        alternative.admin = bool(request.exactly.admin_access)
        yield alternative
    else:
        raise AllocationError(f"claim {claim.key}, request {request.name}: unknown request type")


def _make_alternative(
    claim: ResourceClaim,
    position: int,
    request: str,
    alternative: str,
    wanted: ExactDeviceRequest | DeviceSubRequest,
    classes: Mapping[str, DeviceClass],
) -> RequestAlternative:
    where = f"claim {claim.key}, request {alternative or request}"
    for number, selector in enumerate(wanted.selectors):
        if selector.cel is None:
            text = "CEL expression empty (unsupported selector type?)"
            raise AllocationError(f"{where}, selector #{number}: {text}")
    if not wanted.device_class_name:
        raise AllocationError(f"{where}: missing device class name (unsupported request type?)")
    device_class = classes.get(wanted.device_class_name)
    if device_class is None:
        missing = f'deviceclass.resource.k8s.io "{wanted.device_class_name}" not found'
        raise AllocationError(f"{where}: could not retrieve device class {wanted.device_class_name}: {missing}")
    mode = wanted.allocation_mode
    if mode not in (EXACT_COUNT, ALL):  # the API server sets a default, so an empty mode is invalid, too
        raise AllocationError(f"{where}: unsupported count mode {mode}")
    return RequestAlternative(
        claim=claim,
        position=position,
        request=request,
        alternative=alternative,
        device_class=device_class,
        conditions=(*class_selectors(device_class), *_sourced_selectors(wanted.selectors, f"claim {claim.key}")),
        tolerations=wanted.tolerations,
        capacity=wanted.capacity.requests if wanted.capacity is not None else {},
        wants_all=mode == ALL,
        count=0 if mode == ALL else wanted.count,
    )


def class_selectors(device_class: DeviceClass) -> tuple[SourcedSelector, ...]:
    return _sourced_selectors(device_class.spec.selectors, f"class {device_class.name}")


def _sourced_selectors(selectors: tuple[DeviceSelector, ...], source: str) -> tuple[SourcedSelector, ...]:
    return tuple(
        (selector.cel.expression if selector.cel is not None else "", f"{source}: selector #{number}")
        for number, selector in enumerate(selectors)
    )
