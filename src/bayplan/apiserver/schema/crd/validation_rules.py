"""Evaluates the CEL rules (`x-kubernetes-validations`) of custom resources.

Called for every write of a custom resource whose schema has rules, unless earlier errors would confuse them. Rules are
compiled once, with the schema. Values are converted to CEL when a rule first needs them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bayplan.apiserver.schema.crd.object_validation import NOWHERE, ListCorrelation
from bayplan.apiserver.schema.crd.structural_schema import EMBEDDED_RESOURCE
from bayplan.apiserver.schema.managed_fields.typed_merge import ABSENT
from bayplan.cel import CompileError, EvaluationError, ObjectEnvironment, ObjectExpression
from bayplan.cel.errors import CelError
from bayplan.cel.libraries.conversions import to_timestamp
from bayplan.cel.types.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    CelType,
    list_of,
    map_of,
    struct,
)
from bayplan.cel.values.go_format import parse_duration
from bayplan.cel.values.values import MISSING, CelDuration, StringMap
from bayplan.codec.field_errors import DUPLICATE, FORBIDDEN, INVALID, REQUIRED, FieldError, format_value, invalid
from bayplan.codec.quantity import Quantity

Schema = Mapping[str, Any]

RULES = "x-kubernetes-validations"
UNCHECKED = (
    "some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)
MAX_MESSAGE = 5 * 1024
_RESERVED = frozenset(
    (
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if"),
        *("import", "let", "loop", "package", "namespace", "return", "var", "void", "while"),
    )
)
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_REASONS = {"FieldValueForbidden": FORBIDDEN, "FieldValueRequired": REQUIRED, "FieldValueDuplicate": DUPLICATE}
_META: Schema = {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}}


def escape_field_name(name: str) -> str | None:
    """The name of the field in a rule; None if a rule cannot name it."""
    if not name or name[0].isdigit() or re.search(r"[^a-zA-Z0-9._/-]", name):
        return None
    if name in _RESERVED:
        return f"__{name}__"
    return re.sub(r"__|[-./]", lambda found: _ESCAPES[found.group()], name)


class Declarations:
    """The CEL types of a schema. Every object schema is a struct type of its own."""

    def __init__(self) -> None:
        self.fields: dict[str, dict[str, CelType]] = {}

    def type_of(self, schema: Schema, *, root: bool = False) -> CelType | None:
        """The CEL type of a schema; None if rules cannot see its values."""
        if schema.get("x-kubernetes-int-or-string"):
            return DYN
        kind = schema.get("type")
        if kind == "array":
            item = self.type_of(schema.get("items") or {})
            return None if item is None else list_of(item)
        if kind == "object":
            more = schema.get("additionalProperties")
            if isinstance(more, Mapping):
                value = self.type_of(more)
                return None if value is None else map_of(STRING, value)
            return self._struct(schema, root=root or bool(schema.get(EMBEDDED_RESOURCE)))
        if kind == "string":
            return _STRINGS.get(schema.get("format", ""), STRING)
        return {"boolean": BOOL, "number": DOUBLE, "integer": INT}.get(str(kind))

    def _struct(self, schema: Schema, *, root: bool) -> CelType:
        type_ = struct("object" if not self.fields else f"object.{len(self.fields)}")
        known = self.fields[type_.name] = {}
        for name, below in properties(schema, root=root).items():
            escaped, found = escape_field_name(name), self.type_of(below)
            if escaped is not None and found is not None:
                known[escaped] = found
        return type_


_STRINGS = {"byte": BYTES, "duration": DURATION, "date": TIMESTAMP, "date-time": TIMESTAMP}


def properties(schema: Schema, *, root: bool) -> Mapping[str, Schema]:
    known: Mapping[str, Schema] = schema.get("properties", {})
    if not root:
        return known
    return {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, **known, "metadata": _META}


def cel_value(value: Any, schema: Schema, *, root: bool = False) -> Any:
    if isinstance(value, dict):
        more = schema.get("additionalProperties")
        if isinstance(more, Mapping):
            return StringMap({key: cel_value(each, more) for key, each in value.items()})
        known = properties(schema, root=root or bool(schema.get(EMBEDDED_RESOURCE)))
        members = {key: cel_value(each, known[key]) for key, each in value.items() if key in known}
        return StringMap(
            {escaped: each for key, each in members.items() if (escaped := escape_field_name(key)) is not None}
        )
    if isinstance(value, list):
        items = schema.get("items") or {}
        return tuple(cel_value(each, items) for each in value)
    if isinstance(value, str):
        return _text(value, schema)
    return float(value) if schema.get("type") == "number" and type(value) is int else value


def _text(value: str, schema: Schema) -> Any:
    name = schema.get("format") if schema.get("type") == "string" else None
    with suppress(ValueError, binascii.Error, CelError):  # an old value may have another format; it stays a string
        if name == "byte":
            return base64.b64decode(value)
        if name == "duration":
            return CelDuration(parse_duration(value))
        if name == "date":
            return to_timestamp(f"{value}T00:00:00Z")
        if name == "date-time":
            return to_timestamp(value)
    return value


# Rules.


@dataclass(slots=True)
class CompiledRule:
    """One compiled rule, or its compile error."""

    given: Mapping[str, Any]
    check: ObjectExpression | None = None
    message: ObjectExpression | None = None
    wrong: str = ""
    wrong_message: str = ""


@dataclass(slots=True)
class RuleTree:
    """A schema with rules, or with rules in its subschemas."""

    schema: Schema
    root: bool
    rules: list[CompiledRule] = field(default_factory=list)
    fields: dict[str, RuleTree] = field(default_factory=dict)
    undeclared: RuleTree | None = None
    items: RuleTree | None = None
    all_of: list[RuleTree] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        return not (self.rules or self.fields or self.undeclared or self.items or self.all_of)


_environment: list[ObjectEnvironment] = []


def _compiler() -> ObjectEnvironment:
    if not _environment:
        _environment.append(ObjectEnvironment(parse_quantity=Quantity.parse))
    return _environment[0]


def compile_rules(schema: Schema, *, root: bool = True) -> RuleTree | None:
    """All rules of a schema; None if there are none."""
    tree = RuleTree(schema, root)
    if schema.get(RULES):
        declarations = Declarations()
        type_ = declarations.type_of(schema, root=root)
        tree.rules = [_compile_rule(given, type_, declarations) for given in schema[RULES]]
    for name, below in schema.get("properties", {}).items():
        if (found := compile_rules(below, root=bool(below.get(EMBEDDED_RESOURCE)))) is not None:
            tree.fields[name] = found
    more, items = schema.get("additionalProperties"), schema.get("items")
    tree.undeclared = compile_rules(more, root=False) if isinstance(more, Mapping) else None
    tree.items = compile_rules(items, root=bool(items.get(EMBEDDED_RESOURCE))) if isinstance(items, Mapping) else None
    found_all = (compile_rules({**schema, **each}, root=root) for each in schema.get("allOf", ()) if each.get(RULES))
    tree.all_of = [found for found in found_all if found is not None]
    return None if tree.idle else tree


def _compile_rule(given: Mapping[str, Any], type_: CelType | None, declarations: Declarations) -> CompiledRule:
    rule, optional = CompiledRule(given), bool(given.get("optionalOldSelf"))
    if type_ is None:
        rule.wrong = "the type of the field is not known to rules"
        return rule
    try:
        text = given.get("rule", "")
        rule.check = _compiler().compile(text, type_, declarations.fields, result=BOOL, optional_old=optional)
    except CompileError as error:
        rule.wrong = str(error)
    if given.get("messageExpression"):
        try:
            text = given["messageExpression"]
            rule.message = _compiler().compile(text, type_, declarations.fields, result=STRING)
        except CompileError as error:
            rule.wrong_message = str(error)
    return rule


def evaluate_rules(value: Any, tree: RuleTree, *, old: Any = ABSENT, path: str = "") -> Iterator[FieldError]:
    """The errors of the rules that the value violates. Rules that need an old value are skipped without one."""
    if value is None:
        return
    if tree.rules:
        yield from _evaluate_here(value, tree, old, path)
    for each in tree.all_of:
        yield from evaluate_rules(value, each, old=old, path=path)
    if isinstance(value, list) and tree.items is not None:
        find_old = ListCorrelation(tree.schema, old)
        for at, item in enumerate(value):
            yield from evaluate_rules(item, tree.items, old=find_old(item), path=f"{path}[{at}]")
    elif isinstance(value, dict):
        yield from _evaluate_below(value, tree, old, path)


def _evaluate_below(value: dict[str, Any], tree: RuleTree, old: Any, path: str) -> Iterator[FieldError]:
    before = old if isinstance(old, dict) and tree.schema.get("x-kubernetes-map-type") != "atomic" else {}
    for key, each in value.items():
        if key in tree.fields:
            at = f"{path}.{key}" if path else key
            yield from evaluate_rules(each, tree.fields[key], old=before.get(key, ABSENT), path=at)
        elif tree.undeclared is not None:
            yield from evaluate_rules(each, tree.undeclared, old=before.get(key, ABSENT), path=f"{path}[{key}]")


def _evaluate_here(value: Any, tree: RuleTree, old: Any, path: str) -> Iterator[FieldError]:
    current = cel_value(value, tree.schema, root=tree.root)
    before = MISSING if old is ABSENT or old is None else cel_value(old, tree.schema, root=tree.root)
    same = old is not ABSENT and old == value
    for rule in tree.rules:
        if rule.check is None:
            yield _rule_error(path, value, f"rule compile error: {rule.wrong}")
        elif not (rule.check.reads_old and before is MISSING and not rule.check.optional_old):
            fault = _evaluate_rule(rule, current, before, value, tree.schema, path)
            # An error that the old value had too is left out, unless the rule is about the change.
            if fault is not None and (rule.check.reads_old or not same):
                yield fault


def _evaluate_rule(
    rule: CompiledRule, current: Any, before: Any, value: Any, schema: Schema, path: str
) -> FieldError | None:
    assert rule.check is not None
    text = (rule.given.get("message") or rule.given.get("rule", "")).strip()
    try:
        if rule.check.evaluate(current, before) is True:
            return None
    except EvaluationError as error:
        return _rule_error(path, schema.get("type", ""), _evaluation_text(str(error), text))
    detail = _message(rule, current, before) or (rule.given.get("message") or f"failed rule: {text}").strip()
    at = f"{path}{rule.given.get('fieldPath', '')}"
    kind = _REASONS.get(rule.given.get("reason", ""), INVALID)
    whole = schema.get("type") in ("object", "array")
    if kind == DUPLICATE:
        return FieldError(at or NOWHERE, DUPLICATE, "" if whole else format_value(value))
    if kind in (FORBIDDEN, REQUIRED):
        return FieldError(at or NOWHERE, kind, detail=detail)
    return FieldError(at or NOWHERE, INVALID, "" if whole else format_value(value), detail)


def _evaluation_text(error: str, rule: str) -> str:
    if error.startswith("no such overload"):
        why = "call arguments did not match a supported operator, function or macro signature"
        return f"'{error}': {why} for rule: {rule}"
    if error.startswith("operation cancelled"):
        return f"'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {rule}"
    return f"{error} evaluating rule: {rule}"


def _message(rule: CompiledRule, current: Any, before: Any) -> str:
    """The result of the rule's messageExpression; empty if it is not usable."""
    if rule.message is None:
        return ""
    try:
        found = rule.message.evaluate(current, before)
    except EvaluationError:
        return ""
    text = found.strip() if isinstance(found, str) else ""
    return "" if len(text) > MAX_MESSAGE or "\n" in text else text


def _rule_error(path: str, value: Any, detail: str) -> FieldError:
    return invalid(path or NOWHERE, value, detail)


def all_rules(tree: RuleTree, path: str) -> Iterator[tuple[str, int, CompiledRule]]:
    """Every rule with the path of its schema, as the errors of a CRD name it."""
    for at, rule in enumerate(tree.rules):
        yield path, at, rule
    for name, below in tree.fields.items():
        yield from all_rules(below, f"{path}.properties[{name}]")
    if tree.undeclared is not None:
        yield from all_rules(tree.undeclared, f"{path}.additionalProperties")
    if tree.items is not None:
        yield from all_rules(tree.items, f"{path}.items")
