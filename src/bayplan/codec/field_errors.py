"""Field errors with the API server's messages.

Validators append to a `FieldErrorList`. Each `FieldError` has the reason and the message that a Status lists as a
cause. Paths are plain strings, built only for an error or for a nested field, since nearly all validated objects are
valid. Errors of configuration files (`config.field_errors`) have no reasons and need none.
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


class FieldErrorList(list[FieldError]):
    """The errors found so far, in the order of the checks."""

    def invalid(self, path: str, value: Any, detail: str) -> None:
        self.append(FieldError(path, INVALID, format_value(value), detail))

    def required(self, path: str, detail: str = "") -> None:
        self.append(FieldError(path, REQUIRED, detail=detail))

    def duplicate(self, path: str, value: Any, detail: str = "") -> None:
        self.append(FieldError(path, DUPLICATE, format_value(value), detail))

    def unsupported(self, path: str, value: Any, supported: Iterable[str]) -> None:
        words = ", ".join(map(quote, supported))
        self.append(FieldError(path, UNSUPPORTED, format_value(value), f"supported values: {words}" if words else ""))

    def forbidden(self, path: str, detail: str) -> None:
        self.append(FieldError(path, FORBIDDEN, detail=detail))

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


def format_value(value: Any) -> str:
    """A value in a message: texts quoted, the rest as JSON."""
    return quote(value) if isinstance(value, str) else json_text(value)
