"""How is a configuration struct written out again?

In two forms: as the v1 API shows it (for `config show` and /configz), and as kube-scheduler's error texts show its
internal structs, with Go names and nothing left out. Both follow the description of the struct in `schema`.
"""

from __future__ import annotations

import base64
from typing import Any

from bayplan.codec.go_duration import Duration
from bayplan.config.schema import DurationShape, Field, RawArgs, StructShape, Wire, fields_of


def v1_form(value: Any) -> Any:
    """The value as plain JSON with the names of the API; empty fields are left out unless they are marked."""
    if isinstance(value, Wire):
        return {
            field.name: v1_form(getattr(value, field.attribute))
            for field in fields_of(type(value))
            if _written(field, getattr(value, field.attribute))
        }
    return _leaf(value, v1_form)


def internal_form(value: Any) -> Any:
    """The value as Go prints its internal structs: capitalised names, every field, `null` for an empty list."""
    if isinstance(value, Wire):
        if value.tagged:
            return v1_form(value)
        return {
            field.go_name: _internal_field(field, getattr(value, field.attribute)) for field in fields_of(type(value))
        }
    return _leaf(value, internal_form)


def _internal_field(field: Field, value: Any) -> Any:
    return None if value == () and not field.nullable else internal_form(value)


def _leaf(value: Any, form: Any) -> Any:
    if isinstance(value, Duration):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple):
        return [form(item) for item in value]
    if isinstance(value, RawArgs):
        return value.value()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return dict(value) if isinstance(value, dict) else value


def _written(field: Field, value: Any) -> bool:
    if field.nullable:
        return value is not None and value != ()
    return field.keep or isinstance(field.shape, (StructShape, DurationShape)) or bool(value)
