"""Validation of custom resources against their schema.

Called for every write of a custom resource. The checks, their order and their messages are those of kube-openapi's
validator. Updates do not report errors in unchanged parts, as upstream since 1.33. Cost: linear in the object; each
pattern is compiled once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from bayplan.apiserver.schema.crd.formats import has_format
from bayplan.apiserver.schema.crd.structural_schema import EMBEDDED_RESOURCE
from bayplan.apiserver.schema.managed_fields.typed_merge import ABSENT
from bayplan.cel.regex.regex import compile_regex
from bayplan.codec.field_errors import (
    DUPLICATE,
    INVALID,
    REQUIRED,
    TOO_LONG,
    TOO_MANY,
    TYPE_INVALID,
    UNSUPPORTED,
    FieldError,
    format_value,
    invalid,
)
from bayplan.codec.go_text import go_value, json_text, quote

Schema = Mapping[str, Any]

NOWHERE = "<nil>"
_INT_BITS = {"int32": 31, "int64": 63}


def validate_object(value: Any, schema: Schema, *, old: Any = ABSENT, path: str = "") -> list[FieldError]:
    """All errors, in upstream's order. With `old`, errors in unchanged parts are left out."""
    return list(_check(value, schema, path, old))


def _check(value: Any, schema: Schema, path: str, old: Any = ABSENT) -> Iterator[FieldError]:
    if old is not ABSENT and value == old:
        return
    if value is None:
        yield from _null(schema, path)
        return
    kind = _kind(value)
    yield from _type(kind, value, schema, path)
    yield from _compositions(value, schema, path)
    if kind == "string":
        yield from _text(value, schema, path)
    elif kind in ("integer", "number"):
        yield from _number(value, schema, path)
    elif kind == "array":
        yield from _list(value, schema, path, old)
    yield from _enum(value, schema, path)
    if kind == "object":
        yield from _object(value, schema, path, old)


def _kind(value: Any) -> str:
    names = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names[type(value)]


def _types(schema: Schema) -> tuple[str, ...]:
    if schema.get("x-kubernetes-int-or-string"):
        return ("integer", "string")
    return (schema["type"],) if schema.get("type") else ()


def _null(schema: Schema, path: str) -> Iterator[FieldError]:
    types = _types(schema)
    if types and not schema.get("nullable"):
        yield _type_fault(path, ",".join(types), "null")
    yield from _enum(None, schema, path)


def _type(kind: str, value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    types = _types(schema)
    if not types or kind in types:
        return
    if kind == "integer" and "number" in types:
        return
    if kind == "number" and "integer" in types and float(value).is_integer():
        return
    if kind == "string" and schema.get("format") and not {"number", "integer"} & set(types):
        return
    yield _type_fault(path, ",".join(types), kind)


def _type_fault(path: str, wanted: str, found: str) -> FieldError:
    return FieldError(
        path or NOWHERE, TYPE_INVALID, quote(found), f"{path} in body must be of type {wanted}: {quote(found)}"
    )


def _type_error(path: str, value: Any, detail: str) -> FieldError:
    return invalid(path or NOWHERE, value, f"{path} in body {detail}")


def _error_without_path(detail: str) -> FieldError:
    return FieldError(NOWHERE, INVALID, '""', detail)


# allOf, anyOf, oneOf and not.


def _compositions(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    if schema.get("anyOf"):
        found = []
        for each in schema["anyOf"]:
            found.append(list(_check(value, each, path)))
            if not found[-1]:
                break
        else:
            yield _error_without_path(f"{quote(path)} must validate at least one schema (anyOf)")
            yield from _closest_alternative(found)
    if schema.get("oneOf"):
        found = [list(_check(value, each, path)) for each in schema["oneOf"]]
        valid = sum(not each for each in found)
        if valid != 1:
            detail = f"Found {valid} valid alternatives" if valid else "Found none valid"
            yield _error_without_path(f"{quote(path)} must validate one and only one schema (oneOf). {detail}")
            if not valid:
                yield from _closest_alternative(found)
    if schema.get("allOf"):
        found = [list(_check(value, each, path)) for each in schema["allOf"]]
        for each in found:
            yield from each
        if any(found):
            none = ". None validated" if all(found) else ""
            yield _error_without_path(f"{quote(path)} must validate all the schemas (allOf){none}")
    if schema.get("not") is not None and not list(_check(value, schema["not"], path)):
        yield _error_without_path(f"{quote(path)} must not validate the schema (not)")


def _closest_alternative(found: list[list[FieldError]]) -> list[FieldError]:
    """The errors of the alternative with the fewest; the first of equals."""
    return min(found, key=len)


# Strings and numbers.


def _text(value: str, schema: Schema, path: str) -> Iterator[FieldError]:
    most, least, pattern = schema.get("maxLength"), schema.get("minLength"), schema.get("pattern")
    if most is not None and len(value) > most:
        yield FieldError(path or NOWHERE, TOO_LONG, detail=f"may not be more than {most} bytes")
    elif least is not None and len(value) < least:
        yield _type_error(path, value, f"should be at least {least} chars long")
    elif pattern and not _pattern_matches(pattern, value):
        yield _type_error(path, value, f"should match '{pattern}'")
    name = schema.get("format")
    if name and "string" in (_types(schema) or ("string",)) and not has_format(value, name):
        detail = f"{path} in body must be of type {name}: {quote(value)}"
        yield FieldError(path or NOWHERE, TYPE_INVALID, quote(value), detail)


@lru_cache(maxsize=8192)
def _pattern_matches(pattern: str, value: str) -> bool:
    return compile_regex(pattern).matches(value)


def _number(value: float, schema: Schema, path: str) -> Iterator[FieldError]:
    types = _types(schema)
    if types and not {"integer", "number"} & set(types):
        return
    name, whole = schema.get("format", ""), types == ("integer",)
    if whole and not _fits_format(value, name):
        detail = f"with format {name}" if name else "(default format)"
        yield _error_without_path(f"Checked value must be of type integer {detail} in {path}")
    factor = schema.get("multipleOf")
    if factor and not _divides(value, factor):
        yield _type_error(path, value, f"should be a multiple of {_format_bound(factor, whole)}")
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None:
        exclusive = bool(schema.get("exclusiveMinimum"))
        if value < least or (exclusive and value == least):
            words = "greater than" if exclusive else "greater than or equal to"
            yield _type_error(path, value, f"should be {words} {_format_bound(least, whole)}")
    if most is not None:
        exclusive = bool(schema.get("exclusiveMaximum"))
        if value > most or (exclusive and value == most):
            words = "less than" if exclusive else "less than or equal to"
            yield _type_error(path, value, f"should be {words} {_format_bound(most, whole)}")


def _fits_format(value: float, name: str) -> bool:
    bound = 2 ** _INT_BITS.get(name, 63)
    return float(value).is_integer() and -bound <= value < bound


def _divides(value: float, factor: float) -> bool:
    if isinstance(value, int) and float(factor).is_integer():
        return value % int(factor) == 0
    return float(value / factor).is_integer()


def _format_bound(number: float, whole: bool) -> str:
    return str(int(number)) if whole and float(number).is_integer() else go_value(float(number))


def _enum(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    allowed = schema.get("enum")
    if allowed and not any(_same(value, each) for each in allowed):
        words = ", ".join(quote(each if isinstance(each, str) else json_text(each)) for each in allowed)
        yield FieldError(path or NOWHERE, UNSUPPORTED, format_value(value), f"supported values: {words}")


def _same(left: Any, right: Any) -> bool:
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


# Lists and objects.


def _list(value: list[Any], schema: Schema, path: str, old: Any) -> Iterator[FieldError]:
    items = schema.get("items")
    if isinstance(items, Mapping):
        before = ListCorrelation(schema, old)
        for at, each in enumerate(value):
            yield from _check(each, items, f"{path}[{at}]", before(each))
    least, most = schema.get("minItems"), schema.get("maxItems")
    if least is not None and len(value) < least:
        yield _type_error(path, len(value), f"should have at least {least} items")
    if most is not None and len(value) > most:
        yield _too_many(path, len(value), most)


def _too_many(path: str, count: int, limit: int) -> FieldError:
    items = "item" if limit == 1 else "items"
    return FieldError(path or NOWHERE, TOO_MANY, str(count), f"must have at most {limit} {items}")


def _object(value: dict[str, Any], schema: Schema, path: str, old: Any) -> Iterator[FieldError]:
    least, most = schema.get("minProperties"), schema.get("maxProperties")
    if least is not None and len(value) < least:
        yield _type_error(path, len(value), f"should have at least {least} properties")
    if most is not None and len(value) > most:
        yield _too_many(path, len(value), most)
    properties, more = schema.get("properties", {}), schema.get("additionalProperties")
    before = old if isinstance(old, dict) else {}
    for key, each in value.items():
        if key in properties:
            continue
        if more is False:
            yield FieldError(path or NOWHERE, INVALID, '""', f"{path}.{key} in body is a forbidden property")
        elif isinstance(more, Mapping):
            yield from _check(each, more, f"{path}.{key}" if path else f".{key}", before.get(key, ABSENT))
    for key, below in properties.items():
        if key in value:
            yield from _check(value[key], below, f"{path}.{key}" if path else key, before.get(key, ABSENT))
    for key in schema.get("required", ()):
        if key not in value:
            yield FieldError(f"{path}.{key}" if path else key, REQUIRED)


class ListCorrelation:
    """Finds the old counterpart of a list element. Only lists that are maps by key have one."""

    def __init__(self, schema: Schema, old: Any) -> None:
        self._keys = schema.get("x-kubernetes-list-map-keys", ()) if isinstance(old, list) else ()
        listed = schema.get("x-kubernetes-list-type") == "map" and self._keys
        self._old_elements = (
            {self._key(each): each for each in reversed(old) if isinstance(each, dict)} if listed else {}
        )

    def _key(self, each: Any) -> str:
        return json_text([each.get(key) for key in self._keys])

    def __call__(self, each: Any) -> Any:
        return (
            self._old_elements.get(self._key(each), ABSENT) if self._old_elements and isinstance(each, dict) else ABSENT
        )


# Schema extensions.


def schema_uses(schema: Any, word: str) -> bool:
    """Whether the keyword occurs anywhere in a schema. If it does not, callers skip a walk over the object."""
    if isinstance(schema, Mapping):
        return word in schema or any(schema_uses(each, word) for each in schema.values())
    return isinstance(schema, list) and any(schema_uses(each, word) for each in schema)


def find_duplicates(value: Any, schema: Schema | None, path: str = "") -> Iterator[FieldError]:
    """The errors of elements that occur twice in a list that is a set or a map by keys."""
    if schema is None:
        return
    if isinstance(value, list):
        if schema.get("x-kubernetes-list-type") in ("set", "map"):
            yield from _repeat_errors(value, schema, path)
        for at, each in enumerate(value):
            yield from find_duplicates(each, schema.get("items"), f"{path}[{at}]")
    elif isinstance(value, dict):
        more = schema.get("additionalProperties")
        for key, each in value.items():
            if isinstance(more, Mapping):
                yield from find_duplicates(each, more, f"{path}[{key}]")
            elif key in schema.get("properties", {}):
                yield from find_duplicates(each, schema["properties"][key], f"{path}.{key}" if path else key)


def _repeat_errors(value: list[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    keys = schema.get("x-kubernetes-list-map-keys", ()) if schema["x-kubernetes-list-type"] == "map" else ()
    seen: dict[str, int] = {}
    for at, each in enumerate(value):
        identity = each
        if keys:
            if each is not None and not isinstance(each, dict):
                yield FieldError(
                    f"{path}[{at}]", INVALID, format_value(each), "must be an object for an array of list-type map"
                )
                return
            identity = {key: value for key, value in (each or {}).items() if key in keys}
        text = json_text(identity, sort_keys=True)
        seen[text] = seen.get(text, 0) + 1
        if seen[text] == 2:
            yield FieldError(f"{path}[{at}]", DUPLICATE, text if keys else format_value(each))


def validate_embedded(value: Any, schema: Schema | None, path: str = "") -> Iterator[FieldError]:
    """The errors of embedded resources without apiVersion or kind."""
    if schema is None:
        return
    if isinstance(value, list):
        for at, each in enumerate(value):
            yield from validate_embedded(each, schema.get("items"), f"{path}[{at}]")
    elif isinstance(value, dict):
        if schema.get(EMBEDDED_RESOURCE):
            yield from _type_meta(value, path)
        more = schema.get("additionalProperties")
        for key, each in value.items():
            if key in schema.get("properties", {}):
                yield from validate_embedded(each, schema["properties"][key], f"{path}.{key}" if path else key)
            elif isinstance(more, Mapping):
                yield from validate_embedded(each, more, f"{path}[{key}]")


def _type_meta(value: dict[str, Any], path: str) -> Iterator[FieldError]:
    for key in ("apiVersion", "kind"):
        if key not in value:
            yield FieldError(f"{path}.{key}", REQUIRED)
        elif not isinstance(value[key], str):
            yield invalid(f"{path}.{key}", value[key], "must be a string")
        elif not value[key]:
            yield FieldError(f"{path}.{key}", INVALID, '""', "must not be empty")
