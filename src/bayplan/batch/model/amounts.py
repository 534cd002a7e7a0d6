"""Is this much of everything enough for that much, and what is left over?

Everybody in a session asks: nodes about what is idle, queues about what they deserve, plugins about shares. The answers
are those of Volcano's `Resource` to the last bit, and that has three peculiarities which decide placements:

* Amounts are floats: thousandths of a CPU, bytes of memory, thousandths of any other resource ("scalar"), but whole
  units of `pods`. Two amounts that differ by less than `TOLERANCE` are equal, in the comparisons that say so.
* Having no scalars at all (None) differs from having an empty dictionary of them: subtracting from None ignores
  the scalars of the other side.
* A scalar that one side does not name counts as nothing or as without limit; comparisons take that as `missing`.

Comparisons that name dimensions return the names, cpu and memory first, the others sorted. Upstream's words for them:

| here | Volcano |
|---|---|
| `names_above` | LessEqualWithResourcesName, GreaterPartly |
| `requested_names_above` | LessEqualWithDimensionAndResourcesName |
| `requested_names_greater`, `relevant_names_greater` | GreaterPartlyWithDimension, GreaterPartlyWithRelevantDimensions |
| `requested_names_within`, `used_names_within` | LessEqualPartlyWithDimension, LessEqualPartlyWithDimensionZeroFiltered |

Cost: a microsecond or less each, plus a dictionary step a scalar. Whole-node comparisons belong on columns, not here.
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
_UNNAMED_INFINITY = -1.0  # what Volcano puts in place of a scalar without limit; differences of it keep it
_COUNT_QUOTA_PREFIX = "count/"


class DimensionDefault(Enum):
    """What a scalar counts as on a side that does not name it."""

    ZERO = 0
    INFINITY = -1


class InsufficientAmounts(BayplanError):
    """More was to be taken away than is there: the ledger and the tasks disagree."""

    def __init__(self, amounts: Amounts, taken: Amounts) -> None:
        super().__init__(f"resource is not sufficient to do operation: <{amounts}> sub <{taken}>")
        self.amounts, self.taken = amounts, taken


class Amounts:
    """An amount of each resource. Mutable: `add` and its sisters change it in place and return it."""

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
        """How many tasks a node takes. Set from `pods`; no arithmetic touches it."""

    # Where amounts come from and go to

    @staticmethod
    def unlimited() -> Amounts:
        """All the cpu and memory there is. It names no scalar, so `DimensionDefault` decides about those."""
        return Amounts(UNLIMITED, UNLIMITED, None, MAX_TASKS)

    @staticmethod
    def of(resources: ResourceList) -> Amounts:
        """What a resource list says; names that nobody keeps an account of are left out.

        Volcano leaves out names that drivers of shared devices want ignored, too: those of GPUs name none."""
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
        """The amounts as a status of an object holds them; fractions are cut off."""
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
        """The dimensions of which there is any."""
        found = [CPU] if self.milli_cpu >= TOLERANCE else []
        if self.memory >= TOLERANCE:
            found.append(MEMORY)
        return found + sorted(name for name, amount in (self.scalars or {}).items() if amount >= TOLERANCE)

    def is_empty(self) -> bool:
        """Whether there is nothing of anything but `pods`, of which every task has one."""
        if not (self.milli_cpu < TOLERANCE and self.memory < TOLERANCE):
            return False
        return not any(amount >= TOLERANCE for name, amount in (self.scalars or {}).items() if name != PODS)

    def is_zero(self, name: str) -> bool:
        return self.get(name) < TOLERANCE

    def has_dimension(self, name: str) -> bool:
        """Whether there is some cpu or memory, or the scalar is named here, be it with nothing."""
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
        """Take away what must be there; raises `InsufficientAmounts`."""
        if not other.less_equal(self):
            raise InsufficientAmounts(self, other)
        return self.sub_unchecked(other)

    def sub_unchecked(self, other: Amounts) -> Amounts:
        """Take away and go below zero where that is not enough. Without scalars of its own it ignores the other's."""
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
        """Lower each dimension to the other's where that is less; a scalar it does not name falls to `missing`."""
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
        """By how much this is more, and by how much less. A scalar of unlimited difference is -1."""
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
        """Whether every dimension is less or about equal; a scalar that only the other names fails it at INFINITY."""
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
        """The dimensions that are more than the other's, and not just about equal."""
        found = [] if _within(self.milli_cpu, other.milli_cpu) else [CPU]
        if not _within(self.memory, other.memory):
            found.append(MEMORY)
        mine, theirs = self.scalars or {}, other.scalars or {}
        limited = mine if missing is DimensionDefault.ZERO else mine.keys() & theirs.keys()
        return found + sorted(name for name in limited if not _within(mine[name], theirs.get(name, 0.0)))

    def requested_names_above(self, other: Amounts | None, asked: Amounts | None) -> list[str]:
        """The asked dimensions that are more than the other's, be it by a crumb. Above nothing is all there is."""
        if other is None:
            return self.names()
        if asked is None:
            return self.names_above(other)
        if self.scalars is None:
            asked = Amounts(asked.milli_cpu, asked.memory)
        return self.requested_names_greater(other, asked)

    def requested_names_greater(self, other: Amounts | None, asked: Amounts | None) -> list[str]:
        """The asked dimensions that are more than the other's, be it by a crumb; none when nothing is asked."""
        other = other or Amounts()
        return [name for name in _requested_names(asked) if self.get(name) > other.get(name)]

    def relevant_names_greater(self, other: Amounts | None, asked: Amounts | None) -> list[str]:
        """`requested_names_greater` of the dimensions that the other has: some cpu, some memory, a scalar that it
        names."""
        other = other or Amounts()
        return [name for name in self.requested_names_greater(other, asked) if other.has_dimension(name)]

    def requested_names_within(self, other: Amounts, asked: Amounts | None) -> list[str]:
        """The asked dimensions that are less than the other's or about equal."""
        return [name for name in _requested_names(asked) if _within(self.get(name), other.get(name))]

    def used_names_within(self, other: Amounts, asked: Amounts | None) -> list[str]:
        """`requested_names_within` of the dimensions of which either side has any."""
        found = self.requested_names_within(other, asked)
        return [name for name in found if not (self.is_zero(name) and other.is_zero(name))]

    def __eq__(self, other: object) -> bool:
        """Exactly the same, None against empty included; `equal` is the one with a tolerance."""
        return isinstance(other, Amounts) and all(
            getattr(self, slot) == getattr(other, slot) for slot in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __str__(self) -> str:
        """As messages and conditions spell amounts."""
        parts = [(CPU, self.milli_cpu), (MEMORY, self.memory), *sorted((self.scalars or {}).items())]
        return ", ".join(f"{name} {_format_amount(amount)}" for name, amount in parts)

    def __repr__(self) -> str:
        return f"<{self}>"


# Of two amounts


def min_amounts(left: Amounts, right: Amounts) -> Amounts:
    """The lesser of each dimension; scalars are those of the left, none unless both sides have some."""
    found = Amounts(min(left.milli_cpu, right.milli_cpu), min(left.memory, right.memory))
    theirs = right.scalars
    if left.scalars is not None and theirs is not None:
        found.scalars = {name: min(amount, theirs.get(name, 0.0)) for name, amount in left.scalars.items()}
    return found


def max_amounts(left: Amounts, right: Amounts) -> Amounts:
    """The greater of each dimension; scalars below zero are left out."""
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
    """The part of the left that exceeds the right."""
    if left is None:
        return Amounts()
    return left if right is None else left.diff(right, DimensionDefault.ZERO)[0]


def common_names(left: Amounts, right: Amounts, *, with_pods: bool = True) -> list[str]:
    """The dimensions of which both sides have any."""
    ours = set(left.names())
    return [name for name in right.names() if name in ours and (with_pods or name != PODS)]


def share(part: float, whole: float) -> float:
    """The part as a fraction of the whole; of nothing it is everything, unless it is nothing itself."""
    if whole == 0:
        return 0.0 if part == 0 else 1.0
    return part / whole


# Single dimensions


def _is_counted(name: str) -> bool:
    if name.startswith(_COUNT_QUOTA_PREFIX):
        return False
    return name == EPHEMERAL_STORAGE or is_scalar_resource(name)


def _within(left: float, right: float) -> bool:
    """Less or about equal; never for what is no number. `less_equal` spells it out, as it is asked most."""
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


def _requested_names(asked: Amounts | None) -> list[str]:
    """The dimensions of which any is asked for; `pods` is never compared, since every task asks for one."""
    if asked is None:
        return []
    found = [CPU] if asked.milli_cpu > 0 else []
    if asked.memory > 0:
        found.append(MEMORY)
    return found + sorted(name for name, amount in (asked.scalars or {}).items() if amount > 0 and name != PODS)


def _as_int64(amount: float) -> int:
    """The whole part; what does not fit 64 bits (or is no number) is the lowest integer, as on amd64."""
    return int(amount) if -_MAX_INT64 <= amount < _MAX_INT64 else -(2**63)


def _format_amount(amount: float) -> str:
    if amount == UNLIMITED:
        return "maxFloat"
    if amount == _MAX_INT64:
        return "maxInt"
    if amount != amount:
        return "NaN"
    return f"{amount:.2f}" if abs(amount) != float("inf") else f"{amount:+}".title()
