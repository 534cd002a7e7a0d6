"""Which fields has a kind, and what does the API server know of each: type, merge key, list type, default?

Everything in this room asks. The facts come from a table that `scripts/types/make_types.py` derives from a Kubernetes
release; it is read on first use (some 10 ms), and a `StructType` is put together when somebody asks for it.
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
"""No default is known; None would be one."""


class WireType(StrEnum):
    """What a value is on the wire."""

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
    """A value's type. `go_name` is Go's name for it, which error texts show."""

    kind: WireType
    go_name: str
    item: FieldType | None = None
    """Of lists and maps."""
    values: tuple[str, ...] = ()
    """Of texts that are an enumeration."""
    _type: int = -1
    _types: TypeTable | None = None

    @property
    def type(self) -> StructType:
        """Of structs, and of the places where a schema may stand."""
        assert self._types is not None
        return self._types.by_number(self._type)


@dataclass(frozen=True, slots=True, eq=False)
class SchemaField:
    """A field of a struct."""

    name: str
    shape: FieldType
    omitempty: bool = False
    pointer: bool = False
    required: bool = False
    omitzero: bool = False
    number: int = 0
    """In protobuf; 0 where it has none."""
    list_type: str = ""
    keys: tuple[str, ...] = ()
    map_type: str = ""
    strategy: str = ""
    merge_key: str = ""
    default: Any = UNSET
    inline: str = ""
    """Go's name of an embedded struct, whose fields stand in the parent."""
    go_path: str = ""
    """How error texts call the field: `VolumeSource.emptyDir` when it comes from an embedded struct."""

    @property
    def omitted_when_empty(self) -> bool:
        """Whether Go leaves the empty value out: structs it never does."""
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
    },
)


@dataclass(eq=False)
class StructType:
    """A struct. `declared_fields` are its fields as declared; `fields` has those of embedded structs in their place."""

    name: str
    """Go's: `v1.PodSpec`."""
    openapi_name: str
    atomic: bool
    declared_fields: tuple[SchemaField, ...]
    memory: dict[str, Any] = field(default_factory=dict, repr=False)
    """What others worked out from this type once: its reader, its merge rules."""

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
    """All types of the table."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._kinds: dict[str, dict[str, int]] = table["kinds"]
        self._rows: list[Any] = table["types"]
        self._made: list[StructType | None] = [None] * len(self._rows)
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
        made = self._made[number]
        if made is None:
            name, openapi_name, map_type, own = self._rows[number]
            made = StructType(name, openapi_name, map_type == "atomic", tuple(self._field(row) for row in own))
            self._made[number] = made
        return made

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
    """The types of the Kubernetes release that we follow."""
    packed = resources.files(__package__).joinpath("types.json.gz").read_bytes()
    return TypeTable(msgspec.json.decode(gzip.decompress(packed)))
