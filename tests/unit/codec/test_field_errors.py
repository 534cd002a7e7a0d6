"""Field errors with the texts of apimachinery."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.codec.field_errors import (
    AsJson,
    FieldError,
    FieldErrorList,
    FieldPath,
    aggregate,
    duplicate,
    forbidden,
    invalid,
    required,
    unsupported,
)

PATH = FieldPath("profiles").index(0).child("plugins", "name")


@pytest.mark.parametrize(
    ("error", "text", "reason"),
    [
        pytest.param(invalid(PATH, 5, "too large"), "Invalid value: 5: too large", "FieldValueInvalid", id="invalid"),
        pytest.param(invalid(PATH, [], ""), "Invalid value: []", "FieldValueInvalid", id="without a detail"),
        pytest.param(required(PATH), "Required value", "FieldValueRequired", id="required"),
        pytest.param(duplicate(PATH, "a"), 'Duplicate value: "a"', "FieldValueDuplicate", id="duplicate"),
        pytest.param(
            *(unsupported(PATH, "a", ("b", "c")), 'Unsupported value: "a": supported values: "b", "c"'),
            "FieldValueNotSupported",
            id="unsupported",
        ),
        pytest.param(forbidden(PATH, "why"), "Forbidden: why", "FieldValueForbidden", id="forbidden"),
    ],
)
def test_an_error_prints_its_path_and_its_value(error: FieldError, text: str, reason: str) -> None:
    assert (str(error), error.reason) == (f"profiles[0].plugins.name: {text}", reason)


@pytest.mark.parametrize(
    ("value", "shown"),
    [("<é\x7f", '"<é\\x7f"'), (AsJson("<é\x7f"), '"\\u003cé\x7f"'), (None, "null"), (True, "true"), (("a",), '["a"]')],
)
def test_strings_are_quoted_and_other_values_are_json(value: Any, shown: str) -> None:
    assert invalid("a", value, "").message == f"Invalid value: {shown}"


def test_several_errors_print_in_brackets_and_each_text_once() -> None:
    errors = FieldErrorList()
    errors.each_invalid("a", 1, ["small", "odd", "small"])
    assert aggregate(errors[:1]) == "a: Invalid value: 1: small"
    assert aggregate(errors) == "[a: Invalid value: 1: small, a: Invalid value: 1: odd]"
    assert aggregate(["same", "same"]) == "same"
