"""Constraints between the devices of a claim.

The search reports every device that it adds to a claim and removes. Constraints check one device at a time against
their state, in the order of the search; that order is part of the result.

Cost: one attribute lookup per device and constraint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bayplan.devices.identity import DeviceId
from bayplan.objects.resource import Device, DeviceAttribute, DeviceConstraint

AttributeValue = tuple[str, object]
"""Type and value: the integer 1 is not the boolean true."""


class AllocationConstraint(Protocol):
    """A condition that all devices of a claim must satisfy together."""

    def add(self, request: str, sub_request: str, device_id: DeviceId, device: Device) -> bool:
        """Whether the device satisfies the constraint; if so it is added."""
        ...

    def remove(self, request: str, sub_request: str) -> None:
        """Remove a device that was added for this request."""
        ...


class _RequestScope:
    """Applies to all requests of the claim, or to those that it names ("request" or "request/subrequest")."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        self.attribute = attribute
        self.requests = frozenset(requests)
        self.devices = 0

    def applies_to(self, request: str, sub_request: str) -> bool:
        names = self.requests
        return not names or request in names or (bool(sub_request) and f"{request}/{sub_request}" in names)


class MatchAttribute(_RequestScope):
    """All devices have the same value."""

    value: AttributeValue | None = None

    def add(self, request: str, sub_request: str, device_id: DeviceId, device: Device) -> bool:
        if not self.applies_to(request, sub_request):
            return True
        attribute = find_attribute(device, device_id.driver, self.attribute)
        if attribute is None:
            return False
        value = typed_value(attribute)
        if self.devices == 0:
            self.value = value
        elif value is None or value != self.value:
            return False
        self.devices += 1
        return True

    def remove(self, request: str, sub_request: str) -> None:
        if self.applies_to(request, sub_request):
            self.devices -= 1


class DistinctAttribute(_RequestScope):
    """Devices differ in value.

    One value is stored for each request, that of its last device, and it is dropped when any device of the request is
    removed. So two devices of one request are compared only if one is added directly after the other. This is
    upstream's rule, and allocations depend on it.
    """

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        super().__init__(attribute, requests)
        self.values: dict[str, AttributeValue | None] = {}

    def add(self, request: str, sub_request: str, device_id: DeviceId, device: Device) -> bool:
        if not self.applies_to(request, sub_request):
            return True
        attribute = find_attribute(device, device_id.driver, self.attribute)
        if attribute is None:
            return False
        value = typed_value(attribute)
        if self.devices > 0 and self.values and (value is None or value in self.values.values()):
            return False
        self.values[request] = value
        self.devices += 1
        return True

    def remove(self, request: str, sub_request: str) -> None:
        if self.applies_to(request, sub_request):
            self.values.pop(request, None)
            self.devices -= 1


def make_constraint(constraint: DeviceConstraint) -> AllocationConstraint | None:
    """A new constraint, or None for an unknown kind."""
    kinds: tuple[tuple[str | None, Callable[[str, tuple[str, ...]], AllocationConstraint]], ...] = (
        (constraint.match_attribute, MatchAttribute),
        (constraint.distinct_attribute, DistinctAttribute),
    )
    return next((kind(attribute, constraint.requests) for attribute, kind in kinds if attribute is not None), None)


def find_attribute(device: Device, driver: str, name: str) -> DeviceAttribute | None:
    """An attribute by its full name. One in the driver's own domain may be listed without the domain."""
    attribute = device.attributes.get(name)
    if attribute is not None:
        return attribute
    domain, slash, bare = name.partition("/")
    return device.attributes.get(bare) if slash and domain == driver else None


def typed_value(attribute: DeviceAttribute) -> AttributeValue | None:
    """The value with its type; None for an unknown type."""
    typed: tuple[AttributeValue, ...] = (
        ("string", attribute.string),
        ("int", attribute.int_),
        ("bool", attribute.bool_),
        ("version", attribute.version),
    )
    return next((value for value in typed if value[1] is not None), None)
