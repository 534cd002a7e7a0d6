"""Field types of configuration structs, with their Go names.

Configuration structs are frozen msgspec structs. Their annotations add what Python types do not say: the width of a
number, the name of a named string type, whether an empty value is written. The decoder, the encoder and the error texts
use this description, which is computed once per class.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

import msgspec

from bayplan.codec.go_duration import GoDuration
from bayplan.codec.json_text import parse, to_plain


@dataclass(frozen=True, slots=True)
class GoTypeName:
    """The Go type of a scalar."""

    name: str


@dataclass(frozen=True, slots=True)
class EmbeddedIn:
    """The field belongs to an embedded Go struct, which error paths name."""

    struct: str


@dataclass(frozen=True, slots=True)
class NoOmitEmpty:
    """The field is written even if it is zero."""


NO_OMIT_EMPTY = NoOmitEmpty()

Int32 = Annotated[int, GoTypeName("int32")]
Int64 = Annotated[int, GoTypeName("int64")]
Float32 = Annotated[float, GoTypeName("float32")]


class ConfigStruct(msgspec.Struct, frozen=True, rename="camel"):
    """Base class of all structs in a configuration. Field defaults are the meaning of absent fields."""

    go_name: ClassVar[str] = ""
    """The name of the Go struct, if it differs from the class name."""
    go_package: ClassVar[str] = "v1"
    tagged: ClassVar[bool] = False
    """A type of the core API: shown with its JSON names even inside configuration structs, which show Go names."""


@dataclass(frozen=True, slots=True)
class RawArgs:
    """Arguments of an unknown kind: the original text, `""` if there is none."""

    text: str = ""

    def value(self) -> Any:
        return to_plain(parse(self.text)) if self.text else None


@dataclass(frozen=True, slots=True)
class GoInt:
    go_type: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class GoFloat:
    go_type: str


@dataclass(frozen=True, slots=True)
class GoBool:
    go_type: str = "bool"


@dataclass(frozen=True, slots=True)
class GoString:
    go_type: str = "string"


@dataclass(frozen=True, slots=True)
class GoBytes:
    go_type: str = "[]uint8"


@dataclass(frozen=True, slots=True)
class GoDurationField:
    go_type: str = "v1.Duration"


@dataclass(frozen=True, slots=True)
class GoRawExtension:
    go_type: str = "runtime.RawExtension"


@dataclass(frozen=True, slots=True)
class GoStringMap:
    go_type: str = "map[string]string"


@dataclass(frozen=True, slots=True)
class GoSlice:
    item: GoFieldType

    @property
    def go_type(self) -> str:
        return f"[]{self.item.go_type}"


@dataclass(frozen=True, slots=True)
class GoStruct:
    cls: type[ConfigStruct]

    @property
    def name(self) -> str:
        return self.cls.go_name or self.cls.__name__

    @property
    def go_type(self) -> str:
        return f"{self.cls.go_package}.{self.name}"


GoFieldType = (
    GoInt | GoFloat | GoBool | GoString | GoBytes | GoDurationField | GoRawExtension | GoStringMap | GoSlice | GoStruct
)

UINT8 = GoInt("uint8", 0, 255)
_INTEGER_TYPES = {"int32": GoInt("int32", -(2**31), 2**31 - 1), "int64": GoInt("int64", -(2**63), 2**63 - 1)}
_SCALAR_TYPES: dict[Any, GoFieldType] = {
    bool: GoBool(),
    str: GoString(),
    bytes: GoBytes(),
    GoDuration: GoDurationField(),
    RawArgs: GoRawExtension(),
}


@dataclass(frozen=True, slots=True)
class ConfigField:
    attribute: str
    name: str
    shape: GoFieldType
    nullable: bool
    """A pointer in Go: `None` is a value of its own, and any other value is always written."""
    keep: bool
    embedded: str | None

    @property
    def go_name(self) -> str:
        return self.name[0].upper() + self.name[1:]


@functools.cache
def config_fields(cls: type[ConfigStruct]) -> tuple[ConfigField, ...]:
    """The fields of a struct in the order of its Go struct."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_field(info.name, info.encode_name, hints[info.name]) for info in msgspec.structs.fields(cls))


@functools.cache
def config_fields_by_name(cls: type[ConfigStruct]) -> dict[str, ConfigField]:
    return {field.name: field for field in config_fields(cls)}


def _field(attribute: str, name: str, annotation: Any) -> ConfigField:
    inner, nullable, marks = _unwrap(annotation)
    embedded = next((mark.struct for mark in marks if isinstance(mark, EmbeddedIn)), None)
    return ConfigField(attribute, name, _go_type(inner, marks), nullable, NO_OMIT_EMPTY in marks, embedded)


def _unwrap(annotation: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """The bare type, whether `None` is allowed, and the annotations."""
    origin = get_origin(annotation)
    if origin is Annotated:
        bare, *marks = get_args(annotation)
        inner, nullable, more = _unwrap(bare)
        return inner, nullable, (*marks, *more)
    if origin in (Union, types.UnionType):
        bare = next(arg for arg in get_args(annotation) if arg is not type(None))
        inner, _, found = _unwrap(bare)
        return inner, True, found
    return annotation, False, ()


def _go_type(annotation: Any, marks: tuple[Any, ...]) -> GoFieldType:
    named = next((mark.name for mark in marks if isinstance(mark, GoTypeName)), None)
    if annotation is int:
        return _INTEGER_TYPES[named or "int32"]
    if annotation is float:
        return GoFloat(named or "float64")
    if annotation is str and named is not None:
        return GoString(named)
    if annotation in _SCALAR_TYPES:
        return _SCALAR_TYPES[annotation]
    origin = get_origin(annotation)
    if origin is tuple:
        item, _, item_marks = _unwrap(get_args(annotation)[0])
        return GoSlice(_go_type(item, item_marks))
    if origin is dict:
        return GoStringMap()
    if isinstance(annotation, type) and issubclass(annotation, ConfigStruct):
        return GoStruct(annotation)
    raise TypeError(f"a configuration field cannot be of type {annotation!r}")
