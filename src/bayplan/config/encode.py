"""Encodes configuration structs.

There are two forms: the v1 API form (for `config show` and /configz), and the form of kube-scheduler's error texts,
which show internal structs with Go names and every field. Both follow the description of the struct in `schema`.
"""

from __future__ import annotations

import base64
from typing import Any

from bayplan.codec.go_duration import GoDuration
from bayplan.config.schema import ConfigField, ConfigStruct, GoDurationField, GoStruct, RawArgs, config_fields


def encode_v1(value: Any) -> Any:
    """The value as plain JSON with the names of the API. Empty fields are left out unless they are marked."""
    if isinstance(value, ConfigStruct):
        return {
            field.name: encode_v1(getattr(value, field.attribute))
            for field in config_fields(type(value))
            if _is_encoded(field, getattr(value, field.attribute))
        }
    return _encode_leaf(value, encode_v1)


def encode_internal(value: Any) -> Any:
    """The value as Go prints its internal structs: capitalised names, every field, `null` for an empty list."""
    if isinstance(value, ConfigStruct):
        if value.tagged:
            return encode_v1(value)
        return {
            field.go_name: _encode_internal_field(field, getattr(value, field.attribute))
            for field in config_fields(type(value))
        }
    return _encode_leaf(value, encode_internal)


def _encode_internal_field(field: ConfigField, value: Any) -> Any:
    return None if value == () and not field.nullable else encode_internal(value)


def _encode_leaf(value: Any, form: Any) -> Any:
    if isinstance(value, GoDuration):
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


def _is_encoded(field: ConfigField, value: Any) -> bool:
    if field.nullable:
        return value is not None and value != ()
    return field.keep or isinstance(field.shape, (GoStruct, GoDurationField)) or bool(value)
