"""Static types and their notation.

The checker uses them for every node, and call guards at run time. Types are immutable and compared by value, so they
serve as keys of the checker's substitutions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class TypeKind(Enum):
    ANY = "any"
    BOOL = "bool"
    BYTES = "bytes"
    DOUBLE = "double"
    DURATION = "duration"
    DYN = "dyn"
    ERROR = "error"
    INT = "int"
    LIST = "list"
    MAP = "map"
    NULL = "null"
    OPAQUE = "opaque"
    STRING = "string"
    STRUCT = "struct"
    TIMESTAMP = "timestamp"
    TYPE = "type"
    PARAM = "param"
    UINT = "uint"


@dataclass(frozen=True, slots=True)
class CelType:
    """`name` is the name at run time: the output of `type(x)`, and the name in call errors."""

    kind: TypeKind
    name: str
    params: tuple[CelType, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # Substitution looks types up far more often than it creates them.
        object.__setattr__(self, "_hash", hash((self.kind, self.name, self.params)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def is_dyn(self) -> bool:
        """Whether the type is unknown before run time."""
        return self.kind is TypeKind.DYN or self.kind is TypeKind.ANY

    @property
    def is_dyn_or_error(self) -> bool:
        return self.kind in _WILDCARDS


_WILDCARDS = (TypeKind.DYN, TypeKind.ANY, TypeKind.ERROR)

ANY = CelType(TypeKind.ANY, "google.protobuf.Any")
BOOL = CelType(TypeKind.BOOL, "bool")
BYTES = CelType(TypeKind.BYTES, "bytes")
DOUBLE = CelType(TypeKind.DOUBLE, "double")
DURATION = CelType(TypeKind.DURATION, "google.protobuf.Duration")
DYN = CelType(TypeKind.DYN, "dyn")
ERROR = CelType(TypeKind.ERROR, "error")
INT = CelType(TypeKind.INT, "int")
NULL = CelType(TypeKind.NULL, "null_type")
STRING = CelType(TypeKind.STRING, "string")
TIMESTAMP = CelType(TypeKind.TIMESTAMP, "google.protobuf.Timestamp")
TYPE = CelType(TypeKind.TYPE, "type")
UINT = CelType(TypeKind.UINT, "uint")


def list_of(element: CelType) -> CelType:
    return CelType(TypeKind.LIST, "list", (element,))


def map_of(key: CelType, value: CelType) -> CelType:
    return CelType(TypeKind.MAP, "map", (key, value))


def optional_of(value: CelType) -> CelType:
    return CelType(TypeKind.OPAQUE, "optional_type", (value,))


def type_of_type(instance: CelType) -> CelType:
    return CelType(TypeKind.TYPE, "type", (instance,))


def opaque(name: str) -> CelType:
    return CelType(TypeKind.OPAQUE, name)


def struct(name: str) -> CelType:
    return CelType(TypeKind.STRUCT, name)


def param(name: str) -> CelType:
    return CelType(TypeKind.PARAM, name)


QUANTITY = struct("kubernetes.Quantity")
SEMVER = struct("kubernetes.Semver")
URL = struct("kubernetes.URL")
FORMAT = struct("kubernetes.NamedFormat")
IP = opaque("net.IP")
CIDR = opaque("net.CIDR")
DEVICE = struct("kubernetes.DRADevice")

_SHORT_NAMES = {
    TypeKind.ANY: "any",
    TypeKind.DURATION: "duration",
    TypeKind.ERROR: "!error!",
    TypeKind.NULL: "null",
    TypeKind.TIMESTAMP: "timestamp",
}


def short_name(t: CelType) -> str:
    """The name in compile errors."""
    if t.kind in _SHORT_NAMES:
        return _SHORT_NAMES[t.kind]
    if not t.params:
        return t.name
    return f"{t.name}({', '.join(short_name(p) for p in t.params)})"


def full_name(t: CelType) -> str:
    """The full name, as in the error about an expression's result type."""
    if t.kind is TypeKind.PARAM:
        return f"<{t.name}>"
    if not t.params:
        return t.name
    return f"{t.name}({', '.join(full_name(p) for p in t.params)})"


def describe_call(args: list[CelType], *, member: bool) -> str:
    """`(int, string)` for a function, `string.(int)` for a method."""
    head = f"{short_name(args[0])}." if member else ""
    rest = args[1:] if member else args
    return f"{head}({', '.join(short_name(a) for a in rest)})"


def is_optional(t: CelType) -> bool:
    return t.kind is TypeKind.OPAQUE and t.name == "optional_type"


def unwrap_optional(t: CelType) -> CelType:
    return t.params[0] if is_optional(t) else t


def mentions_dyn(t: CelType) -> bool:
    """Whether a value of this static type may have another type at run time."""
    return t.kind in (TypeKind.DYN, TypeKind.ANY, TypeKind.PARAM, TypeKind.ERROR) or any(
        mentions_dyn(p) for p in t.params
    )
