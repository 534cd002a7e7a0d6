"""The arguments of a plugin or an action, converted to Python types.

Read by plugins when a session opens and by actions when they run. An unusable value is never an error: the default is
used, and `warnings` gets a message with the owner, the key and the value. The conversions are Volcano's own and strict:
`1.0` and `"1"` are not integers, `"yes"` is not a boolean, but `"t"` and `"1"` are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from bayplan.codec.go_text import go_value

T = TypeVar("T")

TRUE_TEXTS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True)
TRUE_TEXTS |= dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False)
_INT64_MAX = 2**63 - 1
_ZERO_VALUES: dict[Any, Any] = {int: 0, float: 0.0, bool: False, str: ""}


class Arguments:
    __slots__ = ("_values", "owner", "warnings")

    def __init__(self, values: Mapping[str, Any] | None = None, *, owner: str = "") -> None:
        self._values = {} if values is None else values
        self.owner = owner
        self.warnings: list[str] = []
        """Values that could not be used so far, each once."""

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Arguments({dict(self._values)!r}, owner={self.owner!r})"

    def get_int(self, key: str, default: int = 0) -> int:
        """An integer; floats, strings and booleans are rejected."""
        value = self._values.get(key)
        return value if _is_int(value) else self._keep_default(key, "int", default)

    def get_float(self, key: str, default: float = 0.0) -> float:
        """A float or an integer."""
        value = self._values.get(key)
        if isinstance(value, float) or _is_int(value):
            return float(value)
        return self._keep_default(key, "float64", default)

    def get_bool(self, key: str, default: bool = False) -> bool:
        """A boolean, or a string such as "true", "T" or "0"."""
        value = self._values.get(key)
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value in TRUE_TEXTS:
            return TRUE_TEXTS[value]
        return self._keep_default(key, "bool", default)

    def get_str(self, key: str, default: str = "") -> str:
        value = self._values.get(key)
        return value if isinstance(value, str) else self._keep_default(key, "string", default)

    def get(self, key: str, kind: type[T]) -> T | None:
        """The value as `kind`: a plain type, a list, a dictionary or a dataclass of these; None if it is missing.

        Dataclass keys are case-insensitive (`resourceWeight` fills `resource_weight`), unknown keys are ignored,
        missing ones keep the field's default. A null becomes the type's zero value, floats are truncated to integers,
        strings are not parsed. A value of another type counts as missing.
        """
        if key not in self._values:
            return None
        try:
            found: T = _convert(self._values[key], kind, "")
        except _TypeMismatch as fault:
            named = getattr(kind, "__name__", kind)
            self.warn(f"Could not parse argument for key {key} to type {named}: {fault}; the default is used")
            return None
        return found

    def _keep_default(self, key: str, wanted: str, default: T) -> T:
        value = self._values.get(key)
        if value is not None:
            self.warn(
                f"Could not parse argument: {go_value(value)} for key {key} to {wanted}; {go_value(default)} is used"
            )
        return default

    def warn(self, message: str) -> None:
        """Record a warning, for example for a value out of range."""
        warning = f"{self.owner}: {message}" if self.owner else message
        if warning not in self.warnings:
            self.warnings.append(warning)


class _TypeMismatch(Exception):
    """A value does not have the required type."""


def _is_int(value: Any) -> TypeGuard[int]:
    """Whether Go stores the value as int: booleans are excluded, and values above int64 have another type."""
    return isinstance(value, int) and not isinstance(value, bool) and value <= _INT64_MAX


def _convert(value: Any, kind: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (kind,) = (each for each in arguments if each is not NoneType)
        return None if value is None else _convert(value, kind, where)
    if kind in (Any, object):
        return value
    if kind in _ZERO_VALUES:
        return _convert_plain(value, kind, where)
    if origin is list:
        return _convert_list(value, arguments[0], where)
    if origin is dict:
        return _convert_dict(value, arguments[1], where)
    return _convert_struct(value, kind, where)


def _convert_plain(value: Any, kind: Any, where: str) -> Any:
    if value is None:
        return _ZERO_VALUES[kind]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and kind is int:
        return _truncate_int64(value)
    if type(value) is kind or (number and kind is float):
        return kind(value)
    go_type = {int: "int", float: "float64", bool: "bool", str: "string"}[kind]
    raise _TypeMismatch(
        f"'{where}' expected type '{go_type}', got unconvertible type '{_go_type(value)}', value: '{go_value(value)}'"
    )


def _truncate_int64(number: int | float) -> int:
    """A number as int64; a number beyond 64 bits becomes what Go makes of it on amd64."""
    if isinstance(number, int):
        return number if number <= _INT64_MAX else number - 2**64
    return int(number) if abs(number) < 2.0**63 else -(2**63)


def _convert_list(value: Any, item: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _TypeMismatch(f"'{where}': source data must be an array or slice, got {_go_kind(value)}")
    return [_convert(each, item, f"{where}[{position}]") for position, each in enumerate(value)]


def _convert_dict(value: Any, item: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _TypeMismatch(f"'{where}' expected a map, got '{_go_kind(value)}'")
    return {
        _convert_plain(key, str, f"{where}[{go_value(key)}]"): _convert(each, item, f"{where}[{go_value(key)}]")
        for key, each in value.items()
    }


def _convert_struct(value: Any, kind: Any, where: str) -> Any:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(
            f"no argument can be read as {kind!r}; "
            "name a plain type, list[int], dict[str, int] or the like, or a dataclass of such"
        )
    if not isinstance(value, Mapping | NoneType):
        raise _TypeMismatch(f"'{where}' expected a map, got '{_go_kind(value)}'")
    given = {str(key).lower(): each for key, each in (value or {}).items() if isinstance(key, str)}
    hints = get_type_hints(kind)
    found = {}
    for each in dataclasses.fields(kind):
        name = each.name.replace("_", "")
        if given.get(name) is not None:
            found[each.name] = _convert(given[name], hints[each.name], f"{where}.{name}".lstrip("."))
    return kind(**found)  # type: ignore[operator]


def _go_kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "map"
    return "slice" if isinstance(value, list) else _go_type(value)


def _go_type(value: Any) -> str:
    if isinstance(value, Mapping):
        return "map[interface {}]interface {}"
    if isinstance(value, list):
        return "[]interface {}"
    return {bool: "bool", int: "int", float: "float64", str: "string"}.get(type(value), type(value).__name__)
