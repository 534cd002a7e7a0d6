"""Field tables of the built-in kinds: type, merge key, list type and default of each field.

All modules of this package use it. `scripts/types/make_types.py` derives the table from a Kubernetes release. It is
loaded on first use (about 10 ms); a `StructType` is built on first use, too.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any

import msgspec

_OMITEMPTY, _POINTER, _REQUIRED, _OMITZERO = 1, 2, 4, 8
UNSET: Any = object()
"""No default is known; None would be a default."""


class WireType(StrEnum):
    STRING = "string"
    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float64"
    BYTES = "bytes"
    TIME = "time"
    MICRO_TIME = "micro-time"
    DURATION = "duration"
    QUANTITY = "quantity"
    INT_OR_STRING = "int-or-string"
    RAW = "raw"
    FIELDS = "fields"
    JSON = "json"
    SCHEMA_OR_ARRAY = "schema-or-array"
    SCHEMA_OR_BOOL = "schema-or-bool"
    SCHEMA_OR_STRINGS = "schema-or-strings"
    LIST = "slice"
    MAP = "map"
    STRUCT = "struct"


@dataclass(frozen=True, slots=True, eq=False)
class FieldType:
    """The type of a value. `go_name` is its Go name, which error messages show."""

    kind: WireType
    go_name: str
    item: FieldType | None = None
    """The element type of lists and maps."""
    values: tuple[str, ...] = ()
    """The allowed values of a string enumeration."""
    _type: int = -1
    _types: TypeTable | None = None

    @property
    def type(self) -> StructType:
        """The type of structs, and of places where a schema may stand."""
        assert self._types is not None
        return self._types.by_number(self._type)


@dataclass(frozen=True, slots=True, eq=False)
class SchemaField:
    name: str
    shape: FieldType
    omitempty: bool = False
    pointer: bool = False
    required: bool = False
    omitzero: bool = False
    number: int = 0
    """The protobuf field number; 0 where there is none."""
    list_type: str = ""
    keys: tuple[str, ...] = ()
    map_type: str = ""
    strategy: str = ""
    merge_key: str = ""
    default: Any = UNSET
    inline: str = ""
    """The Go name of an embedded struct whose fields belong to the parent."""
    go_path: str = ""
    """The field in error messages: `VolumeSource.emptyDir` for a field of an embedded struct."""

    @property
    def omitted_when_empty(self) -> bool:
        """Whether Go omits the empty value; it never omits structs."""
        return self.omitempty and not self.pointer and self.shape.kind in _CAN_BE_EMPTY


_CAN_BE_EMPTY = frozenset(
    {
        WireType.STRING,
        WireType.BOOL,
        WireType.INT32,
        WireType.INT64,
        WireType.FLOAT,
        WireType.BYTES,
        WireType.LIST,
        WireType.MAP,
    }
)


@dataclass(eq=False)
class StructType:
    """A struct.

    `declared_fields` are its fields as declared; `fields` has the fields of embedded structs in their place.
    """

    name: str
    """Go's name, such as `v1.PodSpec`."""
    openapi_name: str
    atomic: bool
    declared_fields: tuple[SchemaField, ...]
    memory: dict[str, Any] = field(default_factory=dict, repr=False)
    """Values that other modules derive from this type once: its reader, its merge rule."""

    @cached_property
    def struct(self) -> str:
        return self.name.rpartition(".")[2]

    @cached_property
    def fields(self) -> Mapping[str, SchemaField]:
        found: dict[str, SchemaField] = {}
        for each in self.declared_fields:
            if not each.inline:
                found[each.name] = each
                continue
            for inner in each.shape.type.fields.values():
                path = f"{each.inline}.{inner.go_path or inner.name}"
                found.setdefault(inner.name, replace(inner, go_path=path))
        return found

    @cached_property
    def by_number(self) -> Mapping[int, SchemaField]:
        return {each.number: each for each in self.declared_fields if each.number}


class TypeTable:
    def __init__(self, table: Mapping[str, Any]) -> None:
        self._kinds: dict[str, dict[str, int]] = table["kinds"]
        self._rows: list[Any] = table["types"]
        self._types: list[StructType | None] = [None] * len(self._rows)
        self._shapes: list[FieldType] = []
        for kind, go, of in table["shapes"]:
            item = self._shapes[of] if kind in ("slice", "map") else None
            values = tuple(of) if isinstance(of, list) else ()
            number = of if isinstance(of, int) and item is None else -1
            self._shapes.append(FieldType(WireType(kind), go, item, values, number, self))

    def of(self, group: str, version: str, kind: str) -> StructType | None:
        number = self._kinds.get(f"{group}/{version}" if group else version, {}).get(kind)
        return None if number is None else self.by_number(number)

    def kinds(self, group: str, version: str) -> list[str]:
        """The kinds of a group version, sorted."""
        return list(self._kinds.get(f"{group}/{version}" if group else version, {}))

    def by_number(self, number: int) -> StructType:
        type_ = self._types[number]
        if type_ is None:
            name, openapi_name, map_type, own = self._rows[number]
            type_ = StructType(name, openapi_name, map_type == "atomic", tuple(self._field(row) for row in own))
            self._types[number] = type_
        return type_

    def _field(self, row: list[Any]) -> SchemaField:
        name, shape, flags, number, facts = row
        return SchemaField(
            name=name,
            shape=self._shapes[shape],
            omitempty=bool(flags & _OMITEMPTY),
            pointer=bool(flags & _POINTER),
            required=bool(flags & _REQUIRED),
            omitzero=bool(flags & _OMITZERO),
            number=number,
            list_type=facts.get("list", ""),
            keys=tuple(facts.get("keys", ())),
            map_type=facts.get("map", ""),
            strategy=facts.get("strategy", ""),
            merge_key=facts.get("key", ""),
            default=facts.get("default", UNSET),
            inline=facts.get("inline", ""),
        )


@lru_cache(maxsize=1)
def built_in_types() -> TypeTable:
    """The types of the Kubernetes release that Bayplan follows."""
    packed = resources.files(__package__).joinpath("types.json.gz").read_bytes()
    return TypeTable(msgspec.json.decode(gzip.decompress(packed)))
