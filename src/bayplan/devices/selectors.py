"""Evaluates the CEL selectors of device classes and requests.

Selectors are CEL expressions over a device's attributes and capacities. They depend on nothing else, so each result is
cached with the device, and an expression runs once per device for all nodes, claims and attempts. Errors are not
cached: they end the attempt anyway.

Cost: a lookup; the first time about 10 µs.
"""

from __future__ import annotations

from collections import OrderedDict

from bayplan.cel import CompileError, DeviceEnvironment, DeviceView, EvaluationError, Expression, Semver
from bayplan.codec.quantity import parse_quantity
from bayplan.devices.device_requests import RequestAlternative, class_selectors
from bayplan.devices.errors import AllocationError
from bayplan.devices.pools import PoolDevice
from bayplan.objects.resource import Device, DeviceAttribute, DeviceClass

_MAX_COMPILED = 256  # cached expressions; a cluster has a handful of classes and a few kinds of claims
_MAX_CACHED_RESULTS = 64  # cached results per device; each generated claim may have an expression of its own


class DeviceSelectors:
    """Evaluates selectors. All attempts share one instance."""

    def __init__(self) -> None:
        self._environment = DeviceEnvironment(parse_quantity=parse_quantity)
        self._compiled: OrderedDict[str, Expression] = OrderedDict()

    def select(self, alternative: RequestAlternative, device: PoolDevice) -> bool:
        """Whether all selectors of the class and then all of the request match. The first that does not ends it."""
        verdicts = device.verdicts
        for text, source in alternative.conditions:
            holds = verdicts.get(text)
            if holds is None:
                holds = self._matches(text, device, source)
            if not holds:
                return False
        return True

    def in_class(self, device_class: DeviceClass, device: PoolDevice) -> bool:
        """Whether all selectors of a class match; a class without selectors matches every device."""
        return all(self._matches(text, device, source) for text, source in class_selectors(device_class))

    def _matches(self, text: str, device: PoolDevice, source: str) -> bool:
        """The result of one selector; an error has its source."""
        holds = device.verdicts.get(text)
        if holds is not None:
            return holds
        try:
            return self._evaluate(text, device)
        except CompileError as fault:
            raise AllocationError(f"{source}: CEL compile error: {fault}") from fault
        except EvaluationError as fault:
            raise AllocationError(f"{source}: CEL runtime error: {fault}") from fault

    def _evaluate(self, text: str, device: PoolDevice) -> bool:
        holds = self._expression(text).evaluate(device_view(device.id.driver, device.device))
        if len(device.verdicts) >= _MAX_CACHED_RESULTS:
            device.verdicts.clear()
        device.verdicts[text] = holds
        return holds

    def _expression(self, text: str) -> Expression:
        expression = self._compiled.get(text)
        if expression is None:
            expression = self._compiled[text] = self._environment.compile(text)
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(text)
        return expression


def device_view(driver: str, device: Device) -> DeviceView:
    """A device as expressions see it. Raises `EvaluationError` for an attribute with an unsupported value."""
    return DeviceView(
        driver=driver,
        allow_multiple_allocations=bool(device.allow_multiple_allocations),
        attributes={name: _value(name, attribute) for name, attribute in sorted(device.attributes.items())},
        capacity={name: parse_quantity(capacity.value) for name, capacity in device.capacity.items()},
    )


def _value(name: str, attribute: DeviceAttribute) -> int | bool | str | Semver:
    for plain in (attribute.int_, attribute.bool_, attribute.string):
        if plain is not None:
            return plain
    if attribute.version is None:
        raise EvaluationError(f"attribute {name}: unsupported attribute value")
    try:
        return Semver.parse(attribute.version)
    except ValueError as fault:
        raise EvaluationError(f"attribute {name}: parse semantic version: {fault}") from fault
