"""Resolves attribute chains such as `device.attributes["domain"].name`.

Chains of fields and indexes are one node, as in cel-go: the first optional step makes the rest optional, and every step
costs one. The usual chain of selectors has a fast path without a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bayplan.cel.errors import CelError, no_such_overload
from bayplan.cel.evaluator.frames import UNSET, Frame, Run
from bayplan.cel.values.quantities import DerivedQuantity
from bayplan.cel.values.semver import Semver
from bayplan.cel.values.values import (
    INT_MAX,
    MISSING,
    NONE,
    CelMap,
    Cidr,
    Ip,
    NamedFormat,
    OptionalValue,
    StringMap,
    TypeValue,
    Uint,
    Url,
    go_text,
    go_type,
    is_list,
    is_quantity,
    lossless_int,
    type_name,
)

_KEYS = (str, int, Uint, bool, float)


@dataclass(slots=True)
class Qualifier:
    """One field or index. `key` computes it unless it is `constant`; `presence_only` tests only for presence."""

    constant: Any = MISSING
    key: Run | None = None
    optional: bool = False
    presence_only: bool = False


@dataclass(slots=True)
class AttributeChain:
    """`root` finds the start; steps are added while the compiler walks up the tree."""

    root: Run
    qualifiers: list[Qualifier] = field(default_factory=list)
    is_device: bool = False
    # For a conditional, `root` is its condition, and steps are added to both branches, as in cel-go.
    branches: tuple[AttributeChain, AttributeChain] | None = None

    def add_qualifier(self, step: Qualifier) -> None:
        if self.branches is None:
            self.qualifiers.append(step)
        else:
            for branch in self.branches:
                branch.add_qualifier(step)


def find_qualifier(holder: Any, key: Any) -> Any:
    """The value at a key, MISSING if there is none; raises an error for an invalid key."""
    if isinstance(holder, CelMap):
        return holder.find(key)
    if is_list(holder):
        index = _index(key)
        return holder[index] if 0 <= index < len(holder) else MISSING
    if isinstance(holder, CelError):
        raise holder
    return MISSING


def _index(key: Any) -> int:
    if type(key) is int:
        return int(key)
    if type(key) is Uint and key <= INT_MAX:
        return int(key)
    if type(key) is float:
        whole = lossless_int(key)
        if whole is not None and whole <= INT_MAX:
            return whole
    if type(key) in (Uint, float):
        raise CelError(f"unsupported index value {go_text(key)} in list")
    raise CelError(f"unsupported index type '{type_name(key)}' in list")


def get_qualifier(holder: Any, key: Any) -> Any:
    value = find_qualifier(holder, key)
    if value is MISSING:
        raise CelError(f"index out of bounds: {go_text(key)}" if is_list(holder) else f"no such key: {go_text(key)}")
    return value


def check_key(key: Any) -> Any:
    if type(key) not in _KEYS:
        raise CelError(f"invalid qualifier type: {go_type(key)}")
    return key


def flattened_optional(value: Any) -> Any:
    """The result in cel-go of passing an optional's value through a variable or a conditional.

    The value is converted to a plain Go value and back, which fails for Kubernetes' own types.
    """
    if isinstance(value, OptionalValue):
        return flattened_optional(value.value) if value.has_value else None
    if isinstance(value, TypeValue):
        return value.name
    if isinstance(value, Semver):
        return CelError(f"unsupported conversion to ref.Val: (semver.Version){value}")
    if isinstance(value, Ip):
        return CelError(f"unsupported conversion to ref.Val: (netip.Addr){value.address}")
    if isinstance(value, Cidr):
        return CelError(f"unsupported conversion to ref.Val: (netip.Prefix){value.address}/{value.bits}")
    if isinstance(value, Url):
        return CelError(f"unsupported conversion to ref.Val: (*url.URL){value.text}")
    if isinstance(value, NamedFormat | CelError):
        return value
    if is_quantity(value):
        inner = value.value if isinstance(value, DerivedQuantity) else value
        return CelError(f"unsupported conversion to ref.Val: (*resource.Quantity){inner}")
    return value


def attribute_resolver(chain: AttributeChain, surcharge: int = 0) -> Run:
    """A function that resolves a finished chain and charges for its steps.

    `surcharge` is added: 1 if the chain's value is itself an operand, 0 if it is a key, a branch of a conditional or
    the subject of `has()`.
    """
    if chain.branches is not None:
        return _conditional(chain.root, attribute_resolver(chain.branches[0]), attribute_resolver(chain.branches[1]))
    if chain.is_device and (fast := _attribute_path(chain, surcharge)) is not None:
        return fast
    return _chain_resolver(chain, surcharge)


def _conditional(condition: Run, then: Run, else_: Run) -> Run:
    def run(frame: Frame) -> Any:
        chosen = condition(frame)
        if chosen is True:
            return then(frame)
        if chosen is False:
            return else_(frame)
        raise no_such_overload()

    return run


def _chain_resolver(chain: AttributeChain, surcharge: int) -> Run:
    root, steps = chain.root, tuple(chain.qualifiers)
    if not steps:
        return _resolve_root(root, surcharge)
    if any(type(s.constant) is not str or s.optional for s in steps):
        return _general_resolver(root, steps, surcharge)
    return _name_only_resolver(root, steps, surcharge)


def _name_only_resolver(root: Run, steps: tuple[Qualifier, ...], surcharge: int) -> Run:
    """Resolver for chains of names through maps; all other cases use the general resolver."""
    names, tested = [s.constant for s in steps], steps[-1].presence_only
    price, walk = len(names) + surcharge, _resolve_qualifiers(steps, surcharge)

    def run(frame: Frame) -> Any:
        try:
            start = value = root(frame)
        except CelError:
            frame.cost += surcharge
            raise
        for name in names:
            if not isinstance(value, StringMap):
                return walk(frame, start)
            value = value.find(name)
        if value is MISSING and not tested:
            return walk(frame, start)
        frame.cost += price
        return value is not MISSING if tested else value

    return run


def _general_resolver(root: Run, steps: tuple[Qualifier, ...], surcharge: int) -> Run:
    walk = _resolve_qualifiers(steps, surcharge)

    def run(frame: Frame) -> Any:
        try:
            value = root(frame)
        except CelError:
            frame.cost += surcharge
            raise
        return walk(frame, value)

    return run


def _resolve_qualifiers(steps: tuple[Qualifier, ...], surcharge: int) -> Callable[[Frame, Any], Any]:
    def walk(frame: Frame, value: Any) -> Any:
        frame.cost += surcharge
        optional = False
        if type(value) is OptionalValue:
            if not value.has_value:
                return value
            value, optional = flattened_optional(value.value), True
        for step in steps:
            optional = optional or step.optional
            if optional:
                value = _apply_optional_qualifier(frame, step, value)
                if value is MISSING:
                    return NONE
            else:
                value = _apply_qualifier(frame, step, value)
        return OptionalValue(value) if optional else value

    return walk


def _resolve_root(root: Run, surcharge: int) -> Run:
    def run(frame: Frame) -> Any:
        frame.cost += surcharge
        value = root(frame)
        if type(value) is OptionalValue and value.has_value:
            return OptionalValue(flattened_optional(value.value))
        return value

    return run


def _apply_qualifier(frame: Frame, step: Qualifier, value: Any) -> Any:
    try:
        key = step.constant if step.key is None else check_key(step.key(frame))
        if step.presence_only:
            return find_qualifier(value, key) is not MISSING
        return get_qualifier(value, key)
    finally:
        frame.cost += 1


def _apply_optional_qualifier(frame: Frame, step: Qualifier, value: Any) -> Any:
    """A step that finds nothing, or fails, is not charged."""
    key = step.constant if step.key is None else check_key(step.key(frame))
    found = find_qualifier(value, key)
    if found is not MISSING or step.presence_only:
        frame.cost += 1
    return found


def _attribute_path(chain: AttributeChain, surcharge: int) -> Run | None:
    """Fast path for `device.attributes[DOMAIN].NAME` and `device.capacity…`, with constants and without optionals."""
    steps = chain.qualifiers
    if len(steps) != 3 or any(type(s.constant) is not str or s.optional or s.presence_only for s in steps):
        return None
    table, domain, name = (s.constant for s in steps)
    if table not in ("attributes", "capacity"):
        return None
    slow, price = _chain_resolver(chain, surcharge), 3 + surcharge

    def attribute(frame: Frame) -> Any:
        held = frame.view.attribute_domains.get(domain)
        if held is not None and name in held:
            frame.cost += price
            return held[name]
        return slow(frame)

    def capacity(frame: Frame) -> Any:
        held = frame.view.capacity_domains.get(domain)
        if held is not None and name in held:
            frame.cost += price
            return held[name]
        return slow(frame)

    return attribute if table == "attributes" else capacity


def presence_test(resolve: Run, refund: int) -> Run:
    """`has()`: charged by its steps only. If a step is optional, the result is whether the value is present."""

    def run(frame: Frame) -> Any:
        value = resolve(frame)
        frame.cost -= refund
        return value.has_value if type(value) is OptionalValue else value

    return run


def comprehension_variable(slot: int, init: Run | None, wrap: Callable[[Any], Any]) -> Run:
    """A variable of a fold. Accumulators get their initial value on first use, and errors are values too."""

    def run(frame: Frame) -> Any:
        value = frame.slots[slot]
        if value is UNSET:
            assert init is not None
            try:
                value = wrap(init(frame))
            except CelError as fault:
                value = fault
            frame.slots[slot] = value
        if type(value) is CelError:
            raise value
        return value

    return run
