"""Field errors with the messages of Kubernetes (apimachinery's `field` package).

Validators of configurations and selectors make them with `invalid`, `required` and similar functions; those of the API
server append to a `FieldErrorList`, and a Status lists reason and message of each as a cause. `aggregate` joins several
as Go does. Cost: a few string joins for each error; paths are built only for errors and for nested fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.codec.go_text import json_text, quote

INVALID = "Invalid value"
REQUIRED = "Required value"
DUPLICATE = "Duplicate value"
UNSUPPORTED = "Unsupported value"
FORBIDDEN = "Forbidden"
TOO_LONG = "Too long"
TOO_MANY = "Too many"
NOT_FOUND = "Not found"
INTERNAL = "Internal error"
TYPE_INVALID = "Invalid value (type)"

_REASONS = {
    INVALID: "FieldValueInvalid",
    REQUIRED: "FieldValueRequired",
    DUPLICATE: "FieldValueDuplicate",
    UNSUPPORTED: "FieldValueNotSupported",
    FORBIDDEN: "FieldValueForbidden",
    TOO_LONG: "FieldValueTooLong",
    TOO_MANY: "FieldValueTooMany",
    NOT_FOUND: "FieldValueNotFound",
    INTERNAL: "InternalError",
    TYPE_INVALID: "FieldValueTypeInvalid",
}

IMMUTABLE = "field is immutable"


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
    """An error of one field. `value_text` is the value as the message shows it, empty for reasons that show none."""

    field: str
    kind: str
    value_text: str = ""
    detail: str = ""

    @property
    def reason(self) -> str:
        """The reason in a Status cause."""
        return _REASONS[self.kind]

    @property
    def message(self) -> str:
        """The message without the field path."""
        kind = INVALID if self.kind == TYPE_INVALID else self.kind
        return ": ".join(filter(None, (kind, self.value_text, self.detail)))

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class AsJson:
    """A value that an error shows as JSON even if it is a string: its Go type has a name of its own."""

    value: Any


def format_value(value: Any) -> str:
    """A value in a message: texts quoted, the rest as JSON."""
    if isinstance(value, AsJson):
        return json_text(value.value)
    return quote(value) if isinstance(value, str) else json_text(value)


def invalid(path: FieldPath | str, value: Any, detail: str) -> FieldError:
    return FieldError(str(path), INVALID, format_value(value), detail)


def required(path: FieldPath | str, detail: str = "") -> FieldError:
    return FieldError(str(path), REQUIRED, detail=detail)


def duplicate(path: FieldPath | str, value: Any, detail: str = "") -> FieldError:
    return FieldError(str(path), DUPLICATE, format_value(value), detail)


def unsupported(path: FieldPath | str, value: Any, supported: Iterable[str]) -> FieldError:
    words = ", ".join(map(quote, supported))
    return FieldError(str(path), UNSUPPORTED, format_value(value), f"supported values: {words}" if words else "")


def forbidden(path: FieldPath | str, detail: str) -> FieldError:
    return FieldError(str(path), FORBIDDEN, detail=detail)


def aggregate(errors: Iterable[object]) -> str:
    """All errors as one text: a single error as it is, several in brackets, each text once."""
    texts = list(dict.fromkeys(map(str, errors)))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


class FieldErrorList(list[FieldError]):
    """The errors found so far, in the order of the checks."""

    def invalid(self, path: str, value: Any, detail: str) -> None:
        self.append(invalid(path, value, detail))

    def required(self, path: str, detail: str = "") -> None:
        self.append(required(path, detail))

    def duplicate(self, path: str, value: Any, detail: str = "") -> None:
        self.append(duplicate(path, value, detail))

    def unsupported(self, path: str, value: Any, supported: Iterable[str]) -> None:
        self.append(unsupported(path, value, supported))

    def forbidden(self, path: str, detail: str) -> None:
        self.append(forbidden(path, detail))

    def too_long(self, path: str, limit: int, unit: str = "bytes") -> None:
        self.append(FieldError(path, TOO_LONG, detail=f"may not be more than {limit} {unit}"))

    def too_many(self, path: str, count: int, limit: int) -> None:
        items = "item" if limit == 1 else "items"
        self.append(FieldError(path, TOO_MANY, str(count), f"must have at most {limit} {items}"))

    def not_found(self, path: str, value: Any) -> None:
        self.append(FieldError(path, NOT_FOUND, format_value(value)))

    def each_invalid(self, path: str, value: Any, problems: Sequence[str]) -> None:
        for problem in problems:
            self.invalid(path, value, problem)
