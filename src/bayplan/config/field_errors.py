"""What is wrong with which field, in Kubernetes' own form of words?

A validator returns `FieldError`s; they print as `path: Invalid value: <v>: <message>` and its sisters, and `aggregate`
joins them the way every Kubernetes component does. Building one costs a few string joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.codec.go_text import json_text, quote


@dataclass(frozen=True, slots=True)
class FieldPath:
    """The way from the top of a configuration to one of its fields; the empty path is the top itself."""

    text: str = ""

    def child(self, *names: str) -> FieldPath:
        joined = ".".join(names)
        return FieldPath(f"{self.text}.{joined}" if self.text else joined)

    def index(self, key: int | str) -> FieldPath:
        return FieldPath(f"{self.text}[{key}]")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault of one field."""

    path: FieldPath
    body: str

    def __str__(self) -> str:
        return f"{self.path}: {self.body}"


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A value that is shown as JSON: lists, structs, and texts of a named type, which escape in another way."""

    value: Any

    def __str__(self) -> str:
        return json_text(self.value)


FieldValue = int | str | JsonValue
"""A value as it is shown: a number as it is, a text quoted, the rest as JSON."""


def _format_value(value: FieldValue) -> str:
    return quote(value) if isinstance(value, str) else str(value)


def _detail_suffix(detail: str) -> str:
    return f": {detail}" if detail else ""


def invalid(path: FieldPath, value: FieldValue, detail: str) -> FieldError:
    return FieldError(path, f"Invalid value: {_format_value(value)}{_detail_suffix(detail)}")


def required(path: FieldPath, detail: str = "") -> FieldError:
    return FieldError(path, f"Required value{_detail_suffix(detail)}")


def duplicate(path: FieldPath, value: FieldValue) -> FieldError:
    return FieldError(path, f"Duplicate value: {_format_value(value)}")


def unsupported(path: FieldPath, value: FieldValue, supported: Sequence[str]) -> FieldError:
    return FieldError(
        path, f"Unsupported value: {_format_value(value)}: supported values: {', '.join(map(quote, supported))}"
    )


def forbidden(path: FieldPath, detail: str) -> FieldError:
    return FieldError(path, f"Forbidden: {detail}")


def aggregate(errors: Iterable[FieldError]) -> str:
    """All errors as one text: one alone as it is, several in brackets, each text once."""
    texts = list(dict.fromkeys(map(str, errors)))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
