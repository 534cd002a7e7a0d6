"""Answers one question: what is the static type of a sub-expression, and how is it written?

Asked by the checker for every node, and by call guards at run time. Types are immutable and compared by value, so
they serve as keys of the checker's substitutions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
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
class Type:
    """`name` is the runtime name: what `type(x)` prints and what call errors mention."""

    kind: Kind
    name: str
    params: tuple[Type, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # Substitution looks types up far more often than it makes them.
        object.__setattr__(self, "_hash", hash((self.kind, self.name, self.params)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def is_dyn(self) -> bool:
        """Nothing is known before run time."""
        return self.kind is Kind.DYN or self.kind is Kind.ANY

    @property
    def is_dyn_or_error(self) -> bool:
        return self.kind in _WILDCARDS


_WILDCARDS = (Kind.DYN, Kind.ANY, Kind.ERROR)

ANY = Type(Kind.ANY, "google.protobuf.Any")
BOOL = Type(Kind.BOOL, "bool")
BYTES = Type(Kind.BYTES, "bytes")
DOUBLE = Type(Kind.DOUBLE, "double")
DURATION = Type(Kind.DURATION, "google.protobuf.Duration")
DYN = Type(Kind.DYN, "dyn")
ERROR = Type(Kind.ERROR, "error")
INT = Type(Kind.INT, "int")
NULL = Type(Kind.NULL, "null_type")
STRING = Type(Kind.STRING, "string")
TIMESTAMP = Type(Kind.TIMESTAMP, "google.protobuf.Timestamp")
TYPE = Type(Kind.TYPE, "type")
UINT = Type(Kind.UINT, "uint")


def list_of(element: Type) -> Type:
    return Type(Kind.LIST, "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    return Type(Kind.MAP, "map", (key, value))


def optional_of(value: Type) -> Type:
    return Type(Kind.OPAQUE, "optional_type", (value,))


def type_of_type(instance: Type) -> Type:
    return Type(Kind.TYPE, "type", (instance,))


def opaque(name: str) -> Type:
    return Type(Kind.OPAQUE, name)


def struct(name: str) -> Type:
    return Type(Kind.STRUCT, name)


def param(name: str) -> Type:
    return Type(Kind.PARAM, name)


QUANTITY = struct("kubernetes.Quantity")
SEMVER = struct("kubernetes.Semver")
URL = struct("kubernetes.URL")
FORMAT = struct("kubernetes.NamedFormat")
IP = opaque("net.IP")
CIDR = opaque("net.CIDR")
DEVICE = struct("kubernetes.DRADevice")

_SHORT = {
    Kind.ANY: "any",
    Kind.DURATION: "duration",
    Kind.ERROR: "!error!",
    Kind.NULL: "null",
    Kind.TIMESTAMP: "timestamp",
}


def describe(t: Type) -> str:
    """The name that compile errors use."""
    if t.kind in _SHORT:
        return _SHORT[t.kind]
    if not t.params:
        return t.name
    return f"{t.name}({', '.join(describe(p) for p in t.params)})"


def declared(t: Type) -> str:
    """The name in full, as the sentence about an expression's result type has it."""
    if t.kind is Kind.PARAM:
        return f"<{t.name}>"
    if not t.params:
        return t.name
    return f"{t.name}({', '.join(declared(p) for p in t.params)})"


def describe_call(args: list[Type], *, member: bool) -> str:
    """`(int, string)` for a function, `string.(int)` for a method."""
    head = f"{describe(args[0])}." if member else ""
    rest = args[1:] if member else args
    return f"{head}({', '.join(describe(a) for a in rest)})"


def is_optional(t: Type) -> bool:
    return t.kind is Kind.OPAQUE and t.name == "optional_type"


def unwrap_optional(t: Type) -> Type:
    return t.params[0] if is_optional(t) else t


def mentions_dyn(t: Type) -> bool:
    """Whether a value of this static type may still turn out to be of another type at run time."""
    return t.kind in (Kind.DYN, Kind.ANY, Kind.PARAM, Kind.ERROR) or any(mentions_dyn(p) for p in t.params)
