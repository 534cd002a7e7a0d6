"""Validation of the schemas in a CustomResourceDefinition: structural, consistent, and with rules that compile.

Called for each schema when a definition is written. Messages are upstream's. Bayplan does not estimate the cost of
rules; a rule that exceeds the cost limit is stopped when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.apiserver.schema.crd import object_validation, validation_rules
from bayplan.apiserver.schema.crd.formats import known_format
from bayplan.apiserver.schema.crd.structural_schema import EMBEDDED_RESOURCE, PRESERVE_UNKNOWN_FIELDS
from bayplan.cel.regex.regex import compile_regex
from bayplan.codec.field_errors import FieldError, FieldErrorList
from bayplan.codec.go_text import json_text

Schema = Mapping[str, Any]

_KINDS = ("array", "boolean", "integer", "number", "object", "string")
_UNSUPPORTED = ("$ref", "definitions", "dependencies", "patternProperties", "id", "additionalItems", "$schema")
_LIST_TYPE, _LIST_KEYS, _MAP_TYPE = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type")
_INT_OR_STRING = "x-kubernetes-int-or-string"
_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_NUMBER_FORMATS = {"integer": ("int32", "int64"), "number": ("float", "double")}


def validate_schema(schema: Schema, path: str) -> list[FieldError]:
    """The errors of a schema. Errors that make the schema meaningless are reported without the rest."""
    found = FieldErrorList()
    _check_root(schema, path, found)
    _check(schema, path, found)
    _check_structure(schema, path, found, level="root")
    if found:
        return found
    _check_defaults(schema, path, found)
    _check_rules(schema, path, found)
    return found


def _check_root(schema: Schema, path: str, found: FieldErrorList) -> None:
    metadata = schema.get("properties", {}).get("metadata")
    for name in ("apiVersion", "kind"):
        known = schema.get("properties", {}).get(name)
        if known is not None and known.get("type") != "string":
            found.invalid(f"{path}.properties[{name}].type", known.get("type", ""), "must be string")
    if metadata is None:
        return
    if metadata.get("type") != "object":
        found.invalid(f"{path}.properties[metadata].type", metadata.get("type", ""), "must be object")
    elif set(metadata.get("properties", {})) - {"name", "generateName"} or set(metadata) - {
        *("type", "properties", "description")
    }:
        detail = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        found.forbidden(f"{path}.properties[metadata]", detail)


def _subschemas(schema: Schema, path: str) -> list[tuple[str, Schema]]:
    """The subschemas that describe values, with their paths."""
    found = [(f"{path}.properties[{name}]", each) for name, each in schema.get("properties", {}).items()]
    if isinstance(schema.get("items"), Mapping):
        found.append((f"{path}.items", schema["items"]))
    if isinstance(schema.get("additionalProperties"), Mapping):
        found.append((f"{path}.additionalProperties", schema["additionalProperties"]))
    return found


def _compositions(schema: Schema, path: str) -> list[tuple[str, Schema]]:
    found = [
        (f"{path}.{word}[{at}]", each)
        for word in ("allOf", "anyOf", "oneOf")
        for at, each in enumerate(schema.get(word) or ())
    ]
    return [*found, (f"{path}.not", schema["not"])] if schema.get("not") is not None else found


# Fields of a schema.


def _check(schema: Schema, path: str, found: FieldErrorList) -> None:
    for word in _UNSUPPORTED:
        if schema.get(word) is not None:
            found.forbidden(f"{path}.{word}", f"{word} is not supported")
    kind = schema.get("type", "")
    if kind and kind not in _KINDS:
        found.unsupported(f"{path}.type", kind, _KINDS)
    if schema.get("uniqueItems"):
        detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        found.forbidden(f"{path}.uniqueItems", detail)
    if schema.get("properties") and isinstance(schema.get("additionalProperties"), Mapping):
        detail = "additionalProperties and properties are mutual exclusive"
        found.forbidden(f"{path}.additionalProperties", detail)
    _check_pattern(schema, path, found)
    _check_extensions(schema, path, found)
    for at, rule in enumerate(schema.get(validation_rules.RULES) or ()):
        _check_rule(rule, schema, f"{path}.{validation_rules.RULES}[{at}]", found)
    for place, each in (*_subschemas(schema, path), *_compositions(schema, path)):
        _check(each, place, found)


def _check_pattern(schema: Schema, path: str, found: FieldErrorList) -> None:
    pattern = schema.get("pattern")
    if not pattern:
        return
    try:
        compile_regex(pattern)
    except ValueError as error:
        found.invalid(f"{path}.pattern", pattern, f"must be a valid regular expression, but isn't: {error}")


def _check_extensions(schema: Schema, path: str, found: FieldErrorList) -> None:
    if schema.get(PRESERVE_UNKNOWN_FIELDS) is False:
        found.invalid(f"{path}.{PRESERVE_UNKNOWN_FIELDS}", False, "must be true or undefined")
    map_type = schema.get(_MAP_TYPE)
    if map_type is not None and map_type not in ("atomic", "granular"):
        found.unsupported(f"{path}.{_MAP_TYPE}", map_type, ("atomic", "granular"))
    elif map_type is not None and schema.get("type") != "object":
        found.invalid(f"{path}.type", schema.get("type", ""), f"must be object if {_MAP_TYPE} is specified")
    list_type = schema.get(_LIST_TYPE)
    if list_type is not None:
        _check_list_type(list_type, schema, path, found)
    elif schema.get(_LIST_KEYS):
        detail = f"must be map if {_LIST_KEYS} is non-empty"
        found.invalid(f"{path}.{_LIST_TYPE}", None, detail)
    if schema.get(EMBEDDED_RESOURCE):
        if not schema.get(PRESERVE_UNKNOWN_FIELDS) and not schema.get("properties"):
            detail = f"must not be empty if {EMBEDDED_RESOURCE} is true without {PRESERVE_UNKNOWN_FIELDS}"
            found.required(f"{path}.properties", detail)
        if schema.get("type") != "object":
            found.invalid(f"{path}.type", schema.get("type", ""), f"must be object if {EMBEDDED_RESOURCE} is true")


def _check_list_type(kind: str, schema: Schema, path: str, found: FieldErrorList) -> None:
    if schema.get("type") != "array":
        found.invalid(f"{path}.type", schema.get("type", ""), f"must be array if {_LIST_TYPE} is specified")
        return
    items = schema.get("items") if isinstance(schema.get("items"), Mapping) else {}
    assert items is not None
    if kind not in ("atomic", "set", "map"):
        found.unsupported(f"{path}.{_LIST_TYPE}", kind, ("atomic", "set", "map"))
    elif kind == "map":
        _check_list_map(schema, items, path, found)
    elif kind == "set":
        _check_list_set(items, path, found)


def _check_list_set(items: Schema, path: str, found: FieldErrorList) -> None:
    detail = f"must be atomic as item of a list with {_LIST_TYPE}=set"
    if items.get("nullable"):
        found.forbidden(f"{path}.items.nullable", f"cannot be nullable when {_LIST_TYPE} is set")
    if items.get("type") == "object" and items.get(_MAP_TYPE) != "atomic":
        found.invalid(f"{path}.items.{_MAP_TYPE}", items.get(_MAP_TYPE), detail)
    elif items.get("type") == "array" and items.get(_LIST_TYPE) not in (None, "atomic"):
        found.invalid(f"{path}.items.{_LIST_TYPE}", items.get(_LIST_TYPE), detail)


def _check_list_map(schema: Schema, items: Schema, path: str, found: FieldErrorList) -> None:
    keys, known = schema.get(_LIST_KEYS) or [], items.get("properties", {})
    if not keys:
        found.required(f"{path}.{_LIST_KEYS}", f"must not be empty if {_LIST_TYPE} is map")
    if items.get("type") != "object":
        detail = f"must be object if parent array's {_LIST_TYPE} is map"
        found.invalid(f"{path}.items.type", items.get("type", ""), detail)
        return
    if any(key not in known for key in keys):
        found.invalid(f"{path}.{_LIST_KEYS}", list(keys), "entries must all be names of item properties")
    if len(set(keys)) < len(keys):
        found.invalid(f"{path}.{_LIST_KEYS}", list(keys), "must not contain duplicate entries")
    for key in keys:
        place, below = f"{path}.items.properties[{key}]", known.get(key)
        if below is None:
            continue
        if below.get("type") in ("array", "object"):
            detail = f"must be a scalar type if parent array's {_LIST_TYPE} is map"
            found.invalid(f"{place}.type", below["type"], detail)
        if below.get("nullable"):
            detail = f"this property is in {_LIST_KEYS}, so it cannot be nullable"
            found.forbidden(f"{place}.nullable", detail)
        if below.get("default") is None and key not in items.get("required", ()):
            detail = f"this property is in {_LIST_KEYS}, so it must have a default or be a required property"
            found.required(f"{place}.default", detail)


# Structural schemas.


def _check_structure(schema: Schema, path: str, found: FieldErrorList, *, level: str) -> None:
    """Every value must have a type, given outside of allOf, anyOf, oneOf and not."""
    kind = schema.get("type", "")
    if level == "root" and not kind:
        found.required(f"{path}.type", "must not be empty at the root")
    elif level == "root" and kind != "object":
        found.invalid(f"{path}.type", kind, "must be object at the root")
    elif not kind and not schema.get(_INT_OR_STRING) and not schema.get(PRESERVE_UNKNOWN_FIELDS):
        found.required(f"{path}.type", f"must not be empty for specified {level}")
    if kind == "array" and not isinstance(schema.get("items"), Mapping):
        found.required(f"{path}.items", "must be specified")
    for place, each in _subschemas(schema, path):
        inside = "array items" if place.endswith(".items") else "object fields"
        _check_structure(each, place, found, level=inside)
    for place, each in _compositions(schema, path):
        _check_condition(each, place, found, alternatives=bool(schema.get(_INT_OR_STRING)))


_FORBIDDEN_IN_CONDITIONS = ("description", "type", "default", "title", "nullable")
_FORBIDDEN_EXTENSIONS = (PRESERVE_UNKNOWN_FIELDS, EMBEDDED_RESOURCE, _INT_OR_STRING, _LIST_TYPE, _LIST_KEYS, _MAP_TYPE)


def _check_condition(schema: Schema, path: str, found: FieldErrorList, *, alternatives: bool) -> None:
    """A schema inside allOf, anyOf, oneOf or not may only constrain."""
    for word in _FORBIDDEN_IN_CONDITIONS:
        given = schema.get(word)
        if given is None or given is False or (word == "type" and alternatives):
            continue
        found.forbidden(f"{path}.{word}", "must be empty to be structural" if word != "nullable" else "must be false")
    if schema.get("additionalProperties") is not None:
        found.forbidden(f"{path}.additionalProperties", "must be undefined to be structural")
    for word in _FORBIDDEN_EXTENSIONS:
        if schema.get(word):
            found.forbidden(f"{path}.{word}", "must be false to be structural")
    for place, each in (*_subschemas(schema, path), *_compositions(schema, path)):
        _check_condition(each, place, found, alternatives=alternatives)


# Defaults and rules.


def _check_defaults(schema: Schema, path: str, found: FieldErrorList) -> None:
    default = schema.get("default")
    if default is not None:
        for fault in object_validation.validate_object(default, schema):
            inside = "" if fault.field == object_validation.NOWHERE else f".{fault.field}"
            found.append(FieldError(f"{path}.default{inside}", fault.kind, fault.value_text, fault.detail))
    for place, each in _subschemas(schema, path):
        _check_defaults(each, place, found)


def _check_rule(rule: Mapping[str, Any], schema: Schema, path: str, found: FieldErrorList) -> None:
    if not (rule.get("rule") or "").strip():
        found.required(f"{path}.rule", "rule is not specified")
    message = rule.get("message", "")
    if message and not message.strip():
        found.invalid(f"{path}.message", message, "message must be non-empty if specified")
    elif "\n" in message.strip():
        found.invalid(f"{path}.message", message, "must not contain line breaks")
    if rule.get("reason") and rule["reason"] not in _REASONS:
        found.unsupported(f"{path}.reason", rule["reason"], _REASONS)
    if rule.get("fieldPath") and not _path_exists(schema, rule["fieldPath"]):
        found.invalid(f"{path}.fieldPath", rule["fieldPath"], "must be a valid path")


def _path_exists(schema: Schema, where: str) -> bool:
    if not where.startswith((".", "[")):
        return False
    for name in where.replace("['", ".").replace("']", "").removeprefix(".").split("."):
        below = schema.get("properties", {}).get(name)
        if below is None:
            more = schema.get("additionalProperties")
            below = more if isinstance(more, Mapping) else None
        if below is None:
            return False
        schema = below
    return True


def _check_rules(schema: Schema, path: str, found: FieldErrorList) -> None:
    rule_tree = validation_rules.compile_rules(schema)
    if rule_tree is None:
        return
    for place, at, rule in validation_rules.all_rules(rule_tree, path):
        here, shown = f"{place}.{validation_rules.RULES}[{at}]", _internal_text(rule.given)
        if rule.wrong:
            detail = "cel expression must evaluate to a bool" if rule.wrong.startswith("must evaluate") else rule.wrong
            found.append(FieldError(f"{here}.rule", "Invalid value", shown, detail))
        if rule.wrong_message:
            detail = rule.wrong_message
            detail = "messageExpression must evaluate to a string" if detail.startswith("must evaluate") else detail
            found.append(FieldError(f"{here}.messageExpression", "Invalid value", shown, detail))


def _internal_text(rule: Mapping[str, Any]) -> str:
    return json_text(
        {
            "Rule": rule.get("rule", ""),
            "Message": rule.get("message", ""),
            "MessageExpression": rule.get("messageExpression", ""),
            "Reason": rule.get("reason"),
            "FieldPath": rule.get("fieldPath", ""),
            "OptionalOldSelf": rule.get("optionalOldSelf"),
        }
    )


def schema_warnings(version: Mapping[str, Any]) -> list[str]:
    """Formats that the API server does not check."""
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    return _unknown_formats(schema) if schema else []


def _unknown_formats(schema: Schema) -> list[str]:
    name, kind = schema.get("format", ""), schema.get("type", "")
    known = name in _NUMBER_FORMATS[kind] if kind in _NUMBER_FORMATS else kind in ("", "string") and known_format(name)
    found = [f'unrecognized format "{name}"'] if name and not known else []
    for _, each in (*_subschemas(schema, ""), *_compositions(schema, "")):
        found += _unknown_formats(each)
    return found
