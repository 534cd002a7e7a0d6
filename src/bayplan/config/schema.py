"""What may stand in a field of a configuration, and what does Go call it?

Configuration structs are ordinary frozen msgspec structs. Their annotations carry the little that Python cannot know:
the width of a number, the name of a named text type, whether an empty value is still written out. The decoder, the
dumper and the error texts read this description; it is worked out once per class.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

import msgspec

from bayplan.codec.go_duration import Duration
from bayplan.codec.json_text import parse, plain


@dataclass(frozen=True, slots=True)
class Go:
    """The Go type of a scalar."""

    name: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """The field stands in an embedded Go struct, which error paths name."""

    struct: str


@dataclass(frozen=True, slots=True)
class Keep:
    """The field is written out even where it is zero."""


KEEP = Keep()

Int32 = Annotated[int, Go("int32")]
Int64 = Annotated[int, Go("int64")]
Float32 = Annotated[float, Go("float32")]


class Wire(msgspec.Struct, frozen=True, rename="camel"):
    """Base of everything that is decoded from a configuration. Field defaults are what an absent field means."""

    go_name: ClassVar[str] = ""
    """The Go struct's name, where the class is called otherwise."""
    go_package: ClassVar[str] = "v1"
    tagged: ClassVar[bool] = False
    """A type of the core API: shown with its JSON names even inside configuration structs, which show Go names."""


@dataclass(frozen=True, slots=True)
class RawArgs:
    """Arguments that nobody here understands: the text as it was given, `""` if nothing was."""

    text: str = ""

    def value(self) -> Any:
        return plain(parse(self.text)) if self.text else None


@dataclass(frozen=True, slots=True)
class IntShape:
    go_type: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class FloatShape:
    go_type: str


@dataclass(frozen=True, slots=True)
class BoolShape:
    go_type: str = "bool"


@dataclass(frozen=True, slots=True)
class TextShape:
    go_type: str = "string"


@dataclass(frozen=True, slots=True)
class BytesShape:
    go_type: str = "[]uint8"


@dataclass(frozen=True, slots=True)
class DurationShape:
    go_type: str = "v1.Duration"


@dataclass(frozen=True, slots=True)
class RawShape:
    go_type: str = "runtime.RawExtension"


@dataclass(frozen=True, slots=True)
class MapShape:
    """Texts by text."""

    go_type: str = "map[string]string"


@dataclass(frozen=True, slots=True)
class ListShape:
    item: Shape

    @property
    def go_type(self) -> str:
        return f"[]{self.item.go_type}"


@dataclass(frozen=True, slots=True)
class StructShape:
    cls: type[Wire]

    @property
    def name(self) -> str:
        return self.cls.go_name or self.cls.__name__

    @property
    def go_type(self) -> str:
        return f"{self.cls.go_package}.{self.name}"


Shape = (
    IntShape
    | FloatShape
    | BoolShape
    | TextShape
    | BytesShape
    | DurationShape
    | RawShape
    | MapShape
    | ListShape
    | StructShape
)

UINT8 = IntShape("uint8", 0, 255)
_INTEGERS = {"int32": IntShape("int32", -(2**31), 2**31 - 1), "int64": IntShape("int64", -(2**63), 2**63 - 1)}
_PLAIN: dict[Any, Shape] = {
    bool: BoolShape(),
    str: TextShape(),
    bytes: BytesShape(),
    Duration: DurationShape(),
    RawArgs: RawShape(),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct: its names and what may stand in it."""

    attribute: str
    name: str
    shape: Shape
    nullable: bool
    """A pointer in Go: `None` is a value of its own, and what is not `None` is always written out."""
    keep: bool
    embedded: str | None

    @property
    def go_name(self) -> str:
        return self.name[0].upper() + self.name[1:]


@functools.cache
def fields_of(cls: type[Wire]) -> tuple[Field, ...]:
    """The fields of a struct in the order of its Go twin."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_field(info.name, info.encode_name, hints[info.name]) for info in msgspec.structs.fields(cls))


@functools.cache
def fields_by_name(cls: type[Wire]) -> dict[str, Field]:
    return {field.name: field for field in fields_of(cls)}


def _field(attribute: str, name: str, annotation: Any) -> Field:
    inner, nullable, marks = _unwrap(annotation)
    embedded = next((mark.struct for mark in marks if isinstance(mark, Embedded)), None)
    return Field(attribute, name, _shape(inner, marks), nullable, KEEP in marks, embedded)


def _unwrap(annotation: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """The bare type, whether `None` is allowed, and the marks found on the way."""
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


def _shape(annotation: Any, marks: tuple[Any, ...]) -> Shape:
    named = next((mark.name for mark in marks if isinstance(mark, Go)), None)
    if annotation is int:
        return _INTEGERS[named or "int32"]
    if annotation is float:
        return FloatShape(named or "float64")
    if annotation is str and named is not None:
        return TextShape(named)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin = get_origin(annotation)
    if origin is tuple:
        item, _, item_marks = _unwrap(get_args(annotation)[0])
        return ListShape(_shape(item, item_marks))
    if origin is dict:
        return MapShape()
    if isinstance(annotation, type) and issubclass(annotation, Wire):
        return StructShape(annotation)
    raise TypeError(f"a configuration field cannot be of type {annotation!r}")
