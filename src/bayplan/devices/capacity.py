"""Consumed capacity of device requests.

The search calls it for every candidate with capacities. A request names amounts; the device's policy rounds them up or
fills in defaults; the whole of a capacity that is not requested is consumed. A shared device has several users, so the
amounts are summed over all shares.

Cost: a few quantity operations per capacity. Candidates without policies and without requested amounts are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bayplan.codec.quantity import Quantity, QuantityFormat, QuantityText, parse_quantity
from bayplan.objects.resource import CapacityRequestPolicy, CapacityValidRange, DeviceCapacity

Amounts = dict[str, Quantity]
"""Amount by capacity name."""


def consumed_capacity(requested: Mapping[str, QuantityText], capacities: Mapping[str, DeviceCapacity]) -> Amounts:
    return {name: _amount(requested.get(name), capacity) for name, capacity in capacities.items()}


def fits(
    requested: Mapping[str, QuantityText],
    capacities: Mapping[str, DeviceCapacity],
    shares: Iterable[Mapping[str, Quantity]] = (),
) -> bool:
    """Whether the device has enough capacity for the request besides the shares in use."""
    held = tuple(shares)
    if any(name not in capacities for name in requested):
        return False
    for name, capacity in capacities.items():
        amount = _amount(requested.get(name), capacity)
        if capacity.request_policy is not None and _violates(amount, capacity.request_policy):
            return False
        for holder in held:
            if name in holder:
                amount = amount.add(holder[name])
        if parse_quantity(capacity.value) < amount:
            return False
    return True


def _amount(requested: QuantityText | None, capacity: DeviceCapacity) -> Quantity:
    policy = capacity.request_policy
    if requested is None:
        whole = capacity.value if policy is None or policy.default is None else policy.default
        return parse_quantity(whole)
    wanted = parse_quantity(requested)
    if policy is None:
        return wanted
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _round_up_to_range(wanted, policy.valid_range, parse_quantity(policy.valid_range.min))
    values = map(parse_quantity, policy.valid_values)
    return next((value for value in values if not value < wanted), wanted)


def _round_up_to_range(wanted: Quantity, valid: CapacityValidRange, minimum: Quantity) -> Quantity:
    if wanted < minimum:
        return minimum
    if valid.step is None:
        return wanted
    step, start = parse_quantity(valid.step).value(), minimum.value()
    if step == 0:
        return wanted
    steps = -(-(wanted.value() - start) // step)
    return Quantity.of(start + step * steps, QuantityFormat.BINARY_SI)


def _violates(amount: Quantity, policy: CapacityRequestPolicy) -> bool:
    if policy.default is not None and _same_representation(amount, parse_quantity(policy.default)):
        return False
    if policy.valid_range is not None:
        return _violates_range(amount, policy.valid_range)
    if policy.valid_values:
        return all(amount.compare(parse_quantity(value)) for value in policy.valid_values)
    return False


def _violates_range(amount: Quantity, valid: CapacityValidRange) -> bool:
    if valid.max is not None and parse_quantity(valid.max) < amount:
        return True
    step = parse_quantity(valid.step).value() if valid.step is not None else 0
    start = parse_quantity(valid.min).value() if valid.min is not None else 0
    return step != 0 and (amount.value() - start) % step != 0


def _same_representation(a: Quantity, b: Quantity) -> bool:
    """Equal in representation and not only in value: upstream compares structs, and wide ones are never equal."""
    if a.wide or b.wide:
        return False
    return (a.amount, a.exponent, a.format, a.text) == (b.amount, b.exponent, b.format, b.text)
