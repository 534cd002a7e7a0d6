"""Resource amounts with the arithmetic and the comparisons of Volcano's `Resource`.

Called by nodes about idle amounts, by queues about deserved amounts, by plugins about shares. The results equal
Volcano's to the last bit. Three peculiarities of Volcano decide placements:

* Amounts are floats: thousandths of a CPU, bytes of memory, thousandths of any other resource ("scalar"), but whole
  units of `pods`. Two amounts that differ by less than `TOLERANCE` are equal, in the comparisons that say so.
* No scalars at all (None) differs from an empty dictionary: subtraction from None ignores the scalars of the other
  side.
* A scalar that one side does not name counts as zero or as unlimited. Comparisons take this choice as `missing`.

Comparisons that name dimensions return the names: cpu and memory first, the rest sorted. Volcano's names for them:

| here | Volcano |
|---|---|
| `names_above` | LessEqualWithResourcesName, GreaterPartly |
| `requested_names_above` | LessEqualWithDimensionAndResourcesName |
| `requested_names_greater`, `relevant_names_greater` | GreaterPartlyWithDimension, GreaterPartlyWithRelevantDimensions
| `requested_names_within`, `used_names_within` | LessEqualPartlyWithDimension, LessEqualPartlyWithDimensionZeroFiltered

Cost: at most a microsecond per operation, plus one dictionary step per scalar. Comparisons over all nodes use the
columns of `NodeAccounts`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum

from bayplan.codec.quantity import Quantity, QuantityFormat, parse_quantity
from bayplan.errors import BayplanError
from bayplan.objects.meta import ResourceList
from bayplan.objects.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, is_scalar_resource

TOLERANCE = 0.1
"""The smallest amount that counts, in each dimension's own unit."""

UNLIMITED = sys.float_info.max
MAX_TASKS = 2**63 - 1
_MAX_INT64 = float(2**63 - 1)
_UNNAMED_INFINITY = -1.0  # Volcano's value for an unlimited scalar; `diff` keeps it
_COUNT_QUOTA_PREFIX = "count/"


class DimensionDefault(Enum):
    """The value of a scalar on a side that does not name it."""

    ZERO = 0
    INFINITY = -1


class InsufficientAmounts(BayplanError):
    """A subtraction exceeds the amount: the cluster state and the tasks disagree."""

    def __init__(self, amounts: Amounts, taken: Amounts) -> None:
        super().__init__(f"resource is not sufficient to do operation: <{amounts}> sub <{taken}>")
        self.amounts, self.taken = amounts, taken


class Amounts:
    """An amount of each resource. Mutable: `add` and the other arithmetic methods change it in place and return it."""

    __slots__ = ("max_task_num", "memory", "milli_cpu", "scalars")

    def __init__(
        self,
        milli_cpu: float = 0.0,
        memory: float = 0.0,
        scalars: dict[str, float] | None = None,
        max_task_num: int = 0,
    ) -> None:
        self.milli_cpu = milli_cpu
        self.memory = memory
        self.scalars = scalars
        self.max_task_num = max_task_num
        """Maximum number of tasks on a node. Set from `pods`; arithmetic ignores it."""

    # Constructors and conversions

    @staticmethod
    def unlimited() -> Amounts:
        """Unlimited cpu and memory. It names no scalar, so `DimensionDefault` decides about scalars."""
        return Amounts(UNLIMITED, UNLIMITED, None, MAX_TASKS)

    @staticmethod
    def of(resources: ResourceList) -> Amounts:
        """The amounts of a resource list, without the resources that Volcano does not count.

        Volcano also leaves out names that drivers of shared devices want ignored. The GPU drivers name none.
        """
        amounts = Amounts()
        for name, text in resources.items():
            quantity = parse_quantity(text)
            if name == CPU:
                amounts.milli_cpu += quantity.milli_value()
            elif name == MEMORY:
                amounts.memory += quantity.value()
            elif name == PODS:
                amounts.max_task_num += quantity.value()
                amounts.add_scalar(name, float(quantity.value()))
            elif _is_counted(name):
                amounts.add_scalar(name, float(quantity.milli_value()))
        return amounts

    def clone(self) -> Amounts:
        scalars = self.scalars
        return Amounts(self.milli_cpu, self.memory, None if scalars is None else scalars.copy(), self.max_task_num)

    def quantities(self) -> dict[str, Quantity]:
        """The amounts as an object's status holds them; fractions are truncated."""
        found = {
            CPU: Quantity.of_milli(_as_int64(self.milli_cpu)),
            MEMORY: Quantity.of(_as_int64(self.memory), QuantityFormat.BINARY_SI),
        }
        for name, amount in (self.scalars or {}).items():
            found[name] = (Quantity.of if name == PODS else Quantity.of_milli)(_as_int64(amount))
        return found

    def get(self, name: str) -> float:
        if name == CPU:
            return self.milli_cpu
        if name == MEMORY:
            return self.memory
        return self.scalars.get(name, 0.0) if self.scalars else 0.0

    def names(self) -> list[str]:
        """The dimensions with an amount above zero."""
        found = [CPU] if self.milli_cpu >= TOLERANCE else []
        if self.memory >= TOLERANCE:
            found.append(MEMORY)
        return found + sorted(name for name, amount in (self.scalars or {}).items() if amount >= TOLERANCE)

    def is_empty(self) -> bool:
        """Whether all amounts are zero. `pods` is ignored, since every task has one."""
        if not (self.milli_cpu < TOLERANCE and self.memory < TOLERANCE):
            return False
        return not any(amount >= TOLERANCE for name, amount in (self.scalars or {}).items() if name != PODS)

    def is_zero(self, name: str) -> bool:
        return self.get(name) < TOLERANCE

    def has_dimension(self, name: str) -> bool:
        """Whether cpu or memory is above zero, or the scalar is named here, even with amount zero."""
        return not self.is_zero(name) if name in (CPU, MEMORY) else name in (self.scalars or {})

    # Arithmetic, in place

    def add_scalar(self, name: str, amount: float) -> None:
        self.set_scalar(name, amount + self.scalars.get(name, 0.0) if self.scalars else amount)

    def set_scalar(self, name: str, amount: float) -> None:
        if self.scalars is None:
            self.scalars = {}
        self.scalars[name] = amount

    def add(self, other: Amounts) -> Amounts:
        self.milli_cpu += other.milli_cpu
        self.memory += other.memory
        if other.scalars:
            mine = self.scalars
            if mine is None:
                self.scalars = other.scalars.copy()
            else:
                for name, amount in other.scalars.items():
                    mine[name] = mine.get(name, 0.0) + amount
        return self

    def sub(self, other: Amounts) -> Amounts:
        """Subtract an amount that must be there; raises `InsufficientAmounts`."""
        if not other.less_equal(self):
            raise InsufficientAmounts(self, other)
        return self.sub_unchecked(other)

    def sub_unchecked(self, other: Amounts) -> Amounts:
        """Subtract; the result can be negative. An amount without scalars ignores the scalars of the other."""
        self.milli_cpu -= other.milli_cpu
        self.memory -= other.memory
        mine = self.scalars
        if mine is not None and other.scalars:
            for name, amount in other.scalars.items():
                mine[name] = mine.get(name, 0.0) - amount
        return self

    def multi(self, ratio: float) -> Amounts:
        self.milli_cpu *= ratio
        self.memory *= ratio
        mine = self.scalars
        if mine:
            for name in mine:
                mine[name] *= ratio
        return self

    def set_max(self, other: Amounts) -> Amounts:
        """Raise each dimension to the other's where that is more."""
        self.milli_cpu = max(self.milli_cpu, other.milli_cpu)
        self.memory = max(self.memory, other.memory)
        if other.scalars:
            mine = self.scalars = {} if self.scalars is None else self.scalars
            for name, amount in other.scalars.items():
                if name not in mine or amount > mine[name]:
                    mine[name] = amount
        return self

    def min_dimension(self, other: Amounts, missing: DimensionDefault) -> Amounts:
        """Lower each dimension to the other's where that is less. A scalar that `other` does not name becomes
        `missing`."""
        self.milli_cpu = min(self.milli_cpu, other.milli_cpu)
        self.memory = min(self.memory, other.memory)
        mine, theirs = self.scalars, other.scalars or {}
        if mine is not None:
            for name, amount in mine.items():
                if name in theirs:
                    mine[name] = min(amount, theirs[name])
                elif missing is DimensionDefault.ZERO:
                    mine[name] = 0.0
        return self

    def diff(self, other: Amounts, missing: DimensionDefault) -> tuple[Amounts, Amounts]:
        """The positive and the negative differences by dimension. An unlimited difference of a scalar is -1."""
        more, less = Amounts(scalars={}), Amounts(scalars={})
        more.milli_cpu, less.milli_cpu = _differences(self.milli_cpu, other.milli_cpu)
        more.memory, less.memory = _differences(self.memory, other.memory)
        mine, theirs, default = self.scalars or {}, other.scalars or {}, float(missing.value)
        for name in (*mine, *(name for name in theirs if name not in mine)):
            left, right = mine.get(name, default), theirs.get(name, default)
            if left == _UNNAMED_INFINITY:
                more.set_scalar(name, left)
            elif right == _UNNAMED_INFINITY:
                less.set_scalar(name, right)
            elif left > right:
                more.set_scalar(name, left - right)
            else:
                less.set_scalar(name, right - left)
        return more, less

    # Comparisons

    def less(self, other: Amounts, missing: DimensionDefault = DimensionDefault.ZERO) -> bool:
        """Whether every dimension is strictly less."""
        if not (self.milli_cpu < other.milli_cpu and self.memory < other.memory):
            return False
        mine, theirs = self.scalars or {}, other.scalars or {}
        if missing is DimensionDefault.INFINITY:
            return theirs.keys() <= mine.keys() and all(mine[name] < amount for name, amount in theirs.items())
        return all(amount < theirs.get(name, 0.0) for name, amount in mine.items())

    def less_equal(self, other: Amounts, missing: DimensionDefault = DimensionDefault.ZERO) -> bool:
        """Whether every dimension is less or about equal. With INFINITY, a scalar that only `other` names makes it
        false."""
        if not (self.milli_cpu - other.milli_cpu < TOLERANCE and self.memory - other.memory < TOLERANCE):
            return False
        mine, theirs = self.scalars, other.scalars or {}
        if missing is DimensionDefault.INFINITY:
            mine = mine or {}
            return theirs.keys() <= mine.keys() and all(_within(mine[name], amount) for name, amount in theirs.items())
        if mine:
            for name, amount in mine.items():
                if not amount - theirs.get(name, 0.0) < TOLERANCE:
                    return False
        return True

    def equal(self, other: Amounts) -> bool:
        """Whether cpu, memory and the scalars named here are about equal."""
        if not (_almost_equal(self.milli_cpu, other.milli_cpu) and _almost_equal(self.memory, other.memory)):
            return False
        theirs = other.scalars or {}
        return all(_almost_equal(amount, theirs.get(name, 0.0)) for name, amount in (self.scalars or {}).items())

    def less_partly(self, other: Amounts, missing: DimensionDefault = DimensionDefault.ZERO) -> bool:
        """Whether any dimension is strictly less."""
        if self.milli_cpu < other.milli_cpu or self.memory < other.memory:
            return True
        mine, theirs = self.scalars or {}, other.scalars or {}
        if _missing_name_is_less(mine, theirs, missing):
            return True
        return any(amount < theirs.get(name, 0.0) for name, amount in mine.items())

    # Comparisons that name dimensions

    def names_above(self, other: Amounts, missing: DimensionDefault = DimensionDefault.ZERO) -> list[str]:
        """The dimensions that exceed the other's by `TOLERANCE` or more."""
        found = [] if _within(self.milli_cpu, other.milli_cpu) else [CPU]
        if not _within(self.memory, other.memory):
            found.append(MEMORY)
        mine, theirs = self.scalars or {}, other.scalars or {}
        limited = mine if missing is DimensionDefault.ZERO else mine.keys() & theirs.keys()
        return found + sorted(name for name in limited if not _within(mine[name], theirs.get(name, 0.0)))

    def requested_names_above(self, other: Amounts | None, requested: Amounts | None) -> list[str]:
        """The requested dimensions that exceed the other's by any amount. With no other, all dimensions above zero."""
        if other is None:
            return self.names()
        if requested is None:
            return self.names_above(other)
        if self.scalars is None:
            requested = Amounts(requested.milli_cpu, requested.memory)
        return self.requested_names_greater(other, requested)

    def requested_names_greater(self, other: Amounts | None, requested: Amounts | None) -> list[str]:
        """The requested dimensions that exceed the other's by any amount; empty when nothing is requested."""
        other = other or Amounts()
        return [name for name in _requested_names(requested) if self.get(name) > other.get(name)]

    def relevant_names_greater(self, other: Amounts | None, requested: Amounts | None) -> list[str]:
        """`requested_names_greater`, limited to dimensions that the other has: cpu or memory above zero, or a scalar
        that it names."""
        other = other or Amounts()
        return [name for name in self.requested_names_greater(other, requested) if other.has_dimension(name)]

    def requested_names_within(self, other: Amounts, requested: Amounts | None) -> list[str]:
        """The requested dimensions that are less than the other's or about equal."""
        return [name for name in _requested_names(requested) if _within(self.get(name), other.get(name))]

    def used_names_within(self, other: Amounts, requested: Amounts | None) -> list[str]:
        """`requested_names_within`, limited to dimensions that are above zero on either side."""
        found = self.requested_names_within(other, requested)
        return [name for name in found if not (self.is_zero(name) and other.is_zero(name))]

    def __eq__(self, other: object) -> bool:
        """Exact equality; None differs from an empty dictionary. `equal` compares with a tolerance."""
        return isinstance(other, Amounts) and all(
            getattr(self, slot) == getattr(other, slot) for slot in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __str__(self) -> str:
        """Volcano's text form, used in messages and conditions."""
        parts = [(CPU, self.milli_cpu), (MEMORY, self.memory), *sorted((self.scalars or {}).items())]
        return ", ".join(f"{name} {_format_amount(amount)}" for name, amount in parts)

    def __repr__(self) -> str:
        return f"<{self}>"


# Functions of two amounts


def max_amounts(left: Amounts, right: Amounts) -> Amounts:
    """The maximum of each dimension; scalars below zero are left out."""
    found = Amounts(max(left.milli_cpu, right.milli_cpu), max(left.memory, right.memory))
    if left.scalars is None and right.scalars is None:
        return found
    scalars = {name: amount for name, amount in (left.scalars or {}).items() if amount >= 0}
    for name, amount in (right.scalars or {}).items():
        if amount >= 0:
            scalars[name] = max(amount, scalars.get(name, 0.0))
    found.scalars = scalars
    return found


def excess_amounts(left: Amounts | None, right: Amounts | None) -> Amounts:
    """The amounts by which the left exceeds the right."""
    if left is None:
        return Amounts()
    return left if right is None else left.diff(right, DimensionDefault.ZERO)[0]


def common_names(left: Amounts, right: Amounts, *, with_pods: bool = True) -> list[str]:
    """The dimensions above zero on both sides."""
    ours = set(left.names())
    return [name for name in right.names() if name in ours and (with_pods or name != PODS)]


def share(part: float, whole: float) -> float:
    """The part as a fraction of the whole. When the whole is zero: 0 for a zero part, otherwise 1."""
    if whole == 0:
        return 0.0 if part == 0 else 1.0
    return part / whole


# Single dimensions


def _is_counted(name: str) -> bool:
    if name.startswith(_COUNT_QUOTA_PREFIX):
        return False
    return name == EPHEMERAL_STORAGE or is_scalar_resource(name)


def _within(left: float, right: float) -> bool:
    """Less or about equal; false for NaN. `less_equal` repeats this inline, because it is the most frequent call."""
    return left - right < TOLERANCE


def _almost_equal(left: float, right: float) -> bool:
    return left == right or abs(left - right) < TOLERANCE


def _differences(left: float, right: float) -> tuple[float, float]:
    return (left - right, 0.0) if left > right else (0.0, right - left)


def _missing_name_is_less(mine: Mapping[str, float], theirs: Mapping[str, float], missing: DimensionDefault) -> bool:
    """Whether a name that one side lacks makes "less in any dimension" true by itself."""
    if missing is DimensionDefault.ZERO:
        return not theirs.keys() <= mine.keys()
    return not mine.keys() <= theirs.keys()


def _requested_names(requested: Amounts | None) -> list[str]:
    """The dimensions requested above zero. `pods` is never compared, since every task requests one."""
    if requested is None:
        return []
    found = [CPU] if requested.milli_cpu > 0 else []
    if requested.memory > 0:
        found.append(MEMORY)
    return found + sorted(name for name, amount in (requested.scalars or {}).items() if amount > 0 and name != PODS)


def _as_int64(amount: float) -> int:
    """The integer part. NaN and values beyond 64 bits become the lowest integer, as Go does on amd64."""
    return int(amount) if -_MAX_INT64 <= amount < _MAX_INT64 else -(2**63)


def _format_amount(amount: float) -> str:
    if amount == UNLIMITED:
        return "maxFloat"
    if amount == _MAX_INT64:
        return "maxInt"
    if amount != amount:
        return "NaN"
    return f"{amount:.2f}" if abs(amount) != float("inf") else f"{amount:+}".title()
