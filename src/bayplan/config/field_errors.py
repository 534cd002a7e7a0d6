"""Field errors of configurations in Kubernetes' format.

Validators return `FieldError`s, which print as `path: Invalid value: <v>: <message>` and similar. `aggregate` joins
them as every Kubernetes component does. Cost: a few string joins per error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.codec.go_text import json_text, quote


@dataclass(frozen=True, slots=True)
class FieldPath:
    """The path from the root of a configuration to a field; the empty path is the root."""

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
    """An error of one field."""

    path: FieldPath
    body: str

    def __str__(self) -> str:
        return f"{self.path}: {self.body}"


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A value shown as JSON: lists, structs, and strings of a named type, which have other escapes."""

    value: Any

    def __str__(self) -> str:
        return json_text(self.value)


FieldValue = int | str | JsonValue
"""A value in an error: numbers as they are, strings quoted, the rest as JSON."""


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
    """All errors as one text: a single error as it is, several in brackets, each text once."""
    texts = list(dict.fromkeys(map(str, errors)))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
