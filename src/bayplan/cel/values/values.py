"""Python representation of CEL values, and their types.

int, float, str, bytes, bool and None represent themselves; `Uint` distinguishes uint from int; a tuple is a list (a
Python list is one that a fold still extends). All other values are classes here. Cost: `type_name` is one dictionary
lookup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from bayplan.cel.errors import CelError, EvaluationAborted
from bayplan.cel.types.types import BOOL, BYTES, CIDR, DOUBLE, INT, IP, SEMVER, STRING, UINT, URL, CelType, TypeKind
from bayplan.cel.values.go_format import format_general
from bayplan.cel.values.quantities import DerivedQuantity
from bayplan.cel.values.semver import Semver

INT_MIN, INT_MAX, UINT_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
TWO_TO_63, TWO_TO_64 = float(1 << 63), float(1 << 64)


class Uint(int):
    """An unsigned integer. Arithmetic on it returns int; the operators convert it back."""

    __slots__ = ()


class _MissingType:
    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


# None is CEL's null, so a missing value needs a value of its own.
MISSING = _MissingType()


@dataclass(frozen=True, slots=True)
class CelDuration:
    nanos: int


@dataclass(frozen=True, slots=True, eq=False)
class CelTimestamp:
    """Nanoseconds since 1970 and the offset of the text. Two are equal if the instants are."""

    nanos: int
    offset_s: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CelTimestamp) and self.nanos == other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)


@dataclass(frozen=True, slots=True)
class TypeValue:
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class OptionalValue:
    """`value` is MISSING for none. It may be a `CelError`, which is raised when the value is read."""

    value: Any

    @property
    def has_value(self) -> bool:
        return self.value is not MISSING

    def get(self) -> Any:
        if self.value is MISSING:
            raise CelError("optional.none() dereference")
        if isinstance(self.value, CelError):
            raise self.value
        return self.value


NONE = OptionalValue(MISSING)


@dataclass(frozen=True, slots=True)
class Ip:
    address: IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Cidr:
    address: IPv4Address | IPv6Address
    bits: int


@dataclass(frozen=True, slots=True)
class Url:
    """The parts that accessors return; `text` is compared for equality."""

    text: str
    scheme: str
    host: str
    path: str
    query: str


@dataclass(frozen=True, slots=True, eq=False)
class NamedFormat:
    name: str
    validate: Any
    regex_size: int


class CelMap:
    """A map with keys of any type. A tag distinguishes keys that are equal in Python (1, true, 1.0)."""

    __slots__ = ("_entries",)

    def __init__(self, items: Iterable[tuple[Any, Any]] = ()) -> None:
        self._entries: dict[Any, tuple[Any, Any]] = {tagged_key(k): (k, v) for k, v in items}

    def find(self, key: Any) -> Any:
        """The value or MISSING; numbers of another type match an equal key."""
        if not self._entries:
            return MISSING
        for candidate in _equal_keys(key):
            entry = self._entries.get(candidate)
            if entry is not None:
                return entry[1]
        return MISSING

    def contains(self, key: Any) -> bool:
        return self.find(key) is not MISSING

    def put(self, key: Any, value: Any) -> None:
        self._entries[tagged_key(key)] = (key, value)

    def drop(self, key: Any) -> None:
        self._entries.pop(tagged_key(key), None)

    def keys(self) -> Iterator[Any]:
        return (k for k, _ in self._entries.values())

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


class GrowableMap(CelMap):
    """The accumulator of a fold that builds a map; inserting changes it in place."""

    __slots__ = ()


class StringMap(CelMap):
    """A map on top of a plain dictionary, as devices have it."""

    __slots__ = ("plain",)

    def __init__(self, plain: dict[str, Any]) -> None:
        self.plain = plain

    def find(self, key: Any) -> Any:
        return self.plain.get(key, MISSING) if type(key) is str else MISSING

    def contains(self, key: Any) -> bool:
        return type(key) is str and key in self.plain

    def keys(self) -> Iterator[str]:
        return iter(self.plain)

    def items(self) -> Iterator[tuple[str, Any]]:
        return iter(self.plain.items())

    def __len__(self) -> int:
        return len(self.plain)


def tagged_key(key: Any) -> Any:
    kind = type(key)
    if kind is str or kind is int:
        return key
    if kind in (bytes, Semver):
        raise EvaluationAborted(f"internal error: runtime error: hash of unhashable type {GO_TYPES[kind]}")
    if kind in (tuple, list) or isinstance(key, CelMap):
        return kind, id(key)
    return kind, key


def _equal_keys(key: Any) -> Iterator[Any]:
    yield tagged_key(key)
    kind = type(key)
    if kind is float:
        whole = lossless_int(key)
        if whole is not None and INT_MIN < whole <= INT_MAX:
            yield whole
        if whole is not None and 0 <= whole <= UINT_MAX:
            yield Uint, whole
    elif kind is int and key >= 0:
        yield Uint, key
    elif kind is Uint and key <= INT_MAX:
        yield int(key)


def lossless_int(value: float) -> int | None:
    """The integer equal to a double, if there is one within 64 bits."""
    return int(value) if -TWO_TO_63 < value < TWO_TO_64 and value.is_integer() else None


TYPE_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    tuple: "list",
    list: "list",
    CelMap: "map",
    GrowableMap: "map",
    StringMap: "map",
    CelDuration: "google.protobuf.Duration",
    CelTimestamp: "google.protobuf.Timestamp",
    TypeValue: "type",
    OptionalValue: "optional_type",
    Semver: "kubernetes.Semver",
    Url: "kubernetes.URL",
    NamedFormat: "kubernetes.NamedFormat",
    Ip: "net.IP",
    Cidr: "net.CIDR",
}

# Types whose values are all of one Python class.
PYTHON_TYPES: dict[CelType, type] = {
    BOOL: bool,
    INT: int,
    UINT: Uint,
    DOUBLE: float,
    STRING: str,
    BYTES: bytes,
    SEMVER: Semver,
    IP: Ip,
    CIDR: Cidr,
    URL: Url,
}

# The names in cel-go's error texts.
GO_TYPES: dict[type, str] = {
    bool: "types.Bool",
    int: "types.Int",
    Uint: "types.Uint",
    float: "types.Double",
    str: "types.String",
    bytes: "types.Bytes",
    type(None): "types.Null",
    tuple: "*types.baseList",
    list: "*types.mutableList",
    CelMap: "*types.baseMap",
    GrowableMap: "*types.mutableMap",
    StringMap: "*types.baseMap",
    CelDuration: "types.Duration",
    CelTimestamp: "types.Timestamp",
    TypeValue: "*types.Type",
    OptionalValue: "*types.Optional",
    Semver: "cel.Semver",
    Url: "cel.URL",
    NamedFormat: "cel.Format",
    Ip: "cel.IP",
    Cidr: "cel.CIDR",
    DerivedQuantity: "*cel.Quantity",
}


def type_name(value: Any) -> str:
    """Quantities are of a foreign class, so all unlisted classes are quantities."""
    return TYPE_NAMES.get(type(value)) or ("map" if isinstance(value, CelMap) else "kubernetes.Quantity")


def go_type(value: Any) -> str:
    return GO_TYPES.get(type(value)) or ("cel.mapper" if isinstance(value, CelMap) else "cel.Quantity")


def is_quantity(value: Any) -> bool:
    return type(value) not in TYPE_NAMES and not isinstance(value, CelMap)


def is_list(value: Any) -> bool:
    return type(value) is tuple or type(value) is list


def is_assignable(value: Any, wanted: CelType) -> bool:
    """Whether a value may be passed where `wanted` is declared; of a list or map only the first entry is tested."""
    if wanted.kind in (TypeKind.DYN, TypeKind.ANY, TypeKind.PARAM):
        return True
    if wanted.name != type_name(value):
        return False
    if wanted.kind is TypeKind.LIST and value:
        return is_assignable(value[0], wanted.params[0])
    if wanted.kind is TypeKind.MAP and len(value):
        key, held = next(iter(value.items()))
        return is_assignable(key, wanted.params[0]) and is_assignable(held, wanted.params[1])
    return True


def go_text(value: Any) -> str:
    """A value in the format of Go's `%v`, for errors."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format_general(value)
    if isinstance(value, Uint):
        return str(int(value))
    if is_list(value):
        return "[" + ", ".join(go_text(v) for v in value) + "]"
    if isinstance(value, CelMap):
        return "{" + ", ".join(f"{go_text(k)}: {go_text(v)}" for k, v in value.items()) + "}"
    return str(value)
