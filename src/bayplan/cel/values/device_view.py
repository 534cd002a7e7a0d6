"""The form of a device in expressions.

Created once per device and used by every selector. Names without a domain belong to the driver's domain. A domain that
the device does not have reads as an empty map, though it is not `in` the map.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from bayplan.cel.values.quantities import QuantityValue
from bayplan.cel.values.semver import Semver
from bayplan.cel.values.values import StringMap

AttributeValue = str | int | bool | Semver | list[str] | list[int] | list[bool] | list[Semver]

_EMPTY = StringMap({})


class DomainMap(StringMap):
    """Names by domain; a lookup never fails."""

    __slots__ = ()

    def find(self, key: Any) -> Any:
        return self.plain.get(key, _EMPTY) if type(key) is str else _EMPTY


class DeviceView:
    """`device` in expressions. The domain tables are for the compiled chains, which bypass the maps."""

    def __init__(
        self,
        *,
        driver: str,
        allow_multiple_allocations: bool = False,
        attributes: Mapping[str, AttributeValue],
        capacity: Mapping[str, QuantityValue],
    ) -> None:
        self.driver = driver
        self.allow_multiple_allocations = allow_multiple_allocations
        self.attribute_domains = _by_domain(driver, attributes)
        self.capacity_domains = _by_domain(driver, capacity)

    @cached_property
    def root(self) -> StringMap:
        """The value of `device`; most selectors never need the whole value."""
        return StringMap(
            {
                "driver": self.driver,
                "allowMultipleAllocations": self.allow_multiple_allocations,
                "attributes": _domain_map(self.attribute_domains),
                "capacity": _domain_map(self.capacity_domains),
            }
        )


def _by_domain(driver: str, named: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    domains: dict[str, dict[str, Any]] = {}
    for qualified, value in named.items():
        domain, slash, name = qualified.partition("/")
        if not slash:
            domain, name = driver, qualified
        domains.setdefault(domain, {})[name] = tuple(value) if type(value) is list else value
    return domains


def _domain_map(domains: dict[str, dict[str, Any]]) -> DomainMap:
    return DomainMap({domain: StringMap(names) for domain, names in domains.items()})
