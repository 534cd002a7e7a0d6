"""Decodes request bodies of built-in kinds.

Every write passes here. `decode` takes JSON or YAML text and returns the object as the API server stores it, with
warnings. It refuses invalid bodies with upstream's messages. Cost: about 40 µs for a pod; an invalid body is parsed a
second time, by a slower parser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import msgspec

from bayplan.apiserver.api_errors import StatusError, bad_request
from bayplan.apiserver.schema.decode_errors import DecodeErrors
from bayplan.apiserver.schema.object_reader import WrongTypeError, reader_of, unknown_field_count
from bayplan.apiserver.schema.types import UNSET, StructType, built_in_types
from bayplan.codec import json_text
from bayplan.codec.go_text import quote
from bayplan.codec.json_text import JsonSyntaxError
from bayplan.codec.yaml import to_json
from bayplan.errors import ObjectError

Validation = Literal["Ignore", "Warn", "Strict"]
Tree = dict[str, Any]

_SUMMARY_LENGTH = 30
_SCHEME = "pkg/runtime/scheme.go:111"
_HEADER = 'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'


@dataclass(frozen=True, slots=True)
class ExpectedKind:
    """The group, version and kind that the URL implies."""

    group: str
    version: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class DecodedObject(msgspec.Struct, frozen=True):
    object: Tree
    warnings: list[str] = msgspec.field(default_factory=list)


def decode(
    type_: StructType, raw: bytes, validation: Validation, *, expected: ExpectedKind, yaml: bool = False
) -> DecodedObject:
    """The object of a request body. Kind and apiVersion may be missing; the URL implies them."""
    text, fault = yaml_as_json(raw, expected) if yaml else (raw, None)
    tree = parse_json(text, expected, shown=raw)
    repeats = validation != "Ignore" and may_have_duplicate_keys(text, tree)  # before missing fields are filled in
    _check_header(tree, expected)
    try:
        before = unknown_field_count()
        found = reader_of(type_).read(tree)
    except WrongTypeError:
        _raise_type_error(text, type_, tree)
    has_strict_errors = unknown_field_count() != before or repeats
    found["kind"], found["apiVersion"] = expected.kind, expected.api_version
    if validation == "Ignore" or not (has_strict_errors or fault):
        return DecodedObject(found)
    strict_errors = [fault] if fault else []
    strict_errors += DecodeErrors(json_text.parse(text.decode("utf-8", "replace")), type_).unknown_fields
    return _check_strict(found, strict_errors, validation, tree)


def decode_applied(body: bytes, validation: Validation, *, expected: ExpectedKind) -> DecodedObject:
    """The configuration of a server-side apply, which is YAML. kubectl sends JSON, which is YAML too."""
    tree, fault = _read_applied(body)
    if (kind := tree.get("kind", "")) != expected.kind or tree.get("apiVersion") != expected.api_version:
        group, _, version = str(tree.get("apiVersion", "")).rpartition("/")
        raise bad_request(f"invalid object type: {group}/{version}, Kind={kind}")
    if fault and validation == "Strict":
        raise bad_request(f"error strict decoding YAML: error converting YAML to JSON: {fault}")
    return DecodedObject(tree, [f"error converting YAML to JSON: {fault}"] if fault and validation == "Warn" else [])


def _read_applied(body: bytes) -> tuple[Tree, str | None]:
    """The tree, and the first error that strict decoding reports for its text."""
    fault: str | None = None
    try:
        tree = msgspec.json.decode(body) if body[:1] == b"{" else UNSET
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        tree = UNSET
    if tree is UNSET or may_have_duplicate_keys(body, tree):
        try:
            converted = to_json(body.decode("utf-8", "replace"))
        except ObjectError as error:
            raise bad_request(f"error decoding YAML: error converting YAML to JSON: {error}") from None
        tree, fault = msgspec.json.decode(converted.text), converted.duplicate_key_error
    if tree is not None and type(tree) is not dict:
        word = {list: "array", str: "string", bool: "bool"}.get(type(tree), "number")
        why = f"json: cannot unmarshal {word} into Go value of type map[string]interface {{}}"
        raise bad_request(f"error decoding YAML: error unmarshaling JSON: while decoding JSON: {why}")
    return tree or {}, fault


def normalize(type_: StructType, tree: Tree) -> Tree:
    """An object of Bayplan as the API server stores it. Unknown fields are dropped without a warning."""
    return reader_of(type_).read(tree)


@dataclass(frozen=True, slots=True)
class BuiltInReader:
    """Reads the result of a patch of a built-in kind."""

    type: StructType
    expected: ExpectedKind

    @property
    def order(self) -> StructType | None:
        return self.type

    def read(
        self, tree: Tree, *, converted: bool = False, known: Tree | None = None
    ) -> tuple[Tree, list[str], str | None]:
        wrong = type_meta_error(tree)
        if wrong:
            return {}, [], f"couldn't get version/kind; json parse error: {wrong}"
        tree = {**tree, "kind": tree.get("kind") or self.expected.kind}
        tree["apiVersion"] = tree.get("apiVersion") or self.expected.api_version
        other = _kind_mismatch(tree, self.expected)
        if other:
            return {}, [], other
        before = unknown_field_count()
        try:
            reader = reader_of(self.type)
            found = reader.read(tree) if known is None else reader.read_changed(tree, known)
        except WrongTypeError:
            return {}, [], DecodeErrors(tree, self.type, converted=converted).type_error
        if unknown_field_count() == before:
            return found, [], None
        return found, DecodeErrors(tree, self.type).unknown_fields, None


def _check_strict(found: Tree, strict_errors: list[str], validation: Validation, tree: Tree) -> DecodedObject:
    if validation == "Strict" and strict_errors:
        raise bad_request(f"{_title(tree or found, found)}: strict decoding error: {', '.join(strict_errors)}")
    return DecodedObject(found, strict_errors)


def _title(tree: Tree, fallback: Tree | None = None) -> str:
    """For example `Pod in version "v1" cannot be handled as a Pod`."""
    known = fallback or tree
    kind = tree.get("kind") or known.get("kind", "")
    version = (tree.get("apiVersion") or known.get("apiVersion", "")).rpartition("/")[2]
    return f"{kind} in version {quote(version)} cannot be handled as a {known.get('kind', kind)}"


# Parsing.


def parse_json(text: bytes, expected: ExpectedKind, *, shown: bytes | None = None) -> Tree:
    """The body as a dict, or Go's error about the text. A null body is an empty object."""
    shown = text if shown is None else shown
    try:
        tree = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        tree = _parse_with_position(text, expected, shown)
    if tree is None:
        return {}
    if type(tree) is not dict:
        word = {list: "array", str: "string", bool: "bool"}.get(type(tree), "number")
        raise unrecognized_kind(expected, f"json: cannot unmarshal {word} into Go value of type {_HEADER}", shown)
    return tree


def _parse_with_position(text: bytes, expected: ExpectedKind, shown: bytes) -> Any:
    try:
        return json_text.to_plain(json_text.parse(text.decode("utf-8", "replace")))
    except JsonSyntaxError as error:
        raise unrecognized_kind(expected, str(error), shown) from None


def yaml_as_json(raw: bytes, expected: ExpectedKind) -> tuple[bytes, str | None]:
    """YAML as JSON text, and the first error that strict decoding reports."""
    try:
        converted = to_json(raw.decode("utf-8", "replace"))
    except ObjectError as error:
        message = f"the object provided is unrecognized (must be of type {expected.kind}): {error} ({_summary(raw)})"
        raise bad_request(message) from None
    return converted.text.encode(), converted.duplicate_key_error


def unrecognized_kind(expected: ExpectedKind, why: str, shown: bytes) -> StatusError:
    return bad_request(
        f"the object provided is unrecognized (must be of type {expected.kind}): "
        f"couldn't get version/kind; json parse error: {why} ({_summary(shown)})"
    )


def _summary(data: bytes) -> str:
    if not data:
        return "<empty>"
    cut = data[:_SUMMARY_LENGTH]
    more = " ..." if len(data) > _SUMMARY_LENGTH else ""
    return (cut.decode("utf-8", "replace") if data[:1] == b"{" else cut.hex()) + more


def may_have_duplicate_keys(text: bytes, tree: Tree) -> bool:
    """Whether a key may occur twice in an object of the text.

    Then the text has more colons than the encoding of what was read. A colon written as an escape would hide one, so
    texts with such escapes count as well.
    """
    return text.count(b":") != msgspec.json.encode(tree).count(b":") or b"\\u003" in text


def _raise_type_error(text: bytes, type_: StructType, tree: Tree) -> NoReturn:
    errors = DecodeErrors(json_text.parse(text.decode("utf-8", "replace")), type_)
    raise bad_request(f"{_title(tree)}: {errors.type_error}") from None


def _check_header(tree: Tree, expected: ExpectedKind) -> None:
    """Check that the body is of the kind in the URL; fill in a missing kind or apiVersion."""
    wrong = type_meta_error(tree)
    if wrong:
        raise unrecognized_kind(expected, wrong, msgspec.json.encode(tree))
    tree["kind"] = kind = tree.get("kind") or expected.kind
    tree["apiVersion"] = api_version = tree.get("apiVersion") or expected.api_version
    why = _kind_mismatch(tree, expected)
    if why:
        version = api_version.rpartition("/")[2]
        raise bad_request(f"{kind} in version {quote(version)} cannot be handled as a {expected.kind}: {why}")


def type_meta_error(tree: Tree) -> str:
    """Go's error if kind or apiVersion is not a string; empty if they are."""
    for name in ("kind", "apiVersion"):
        value = tree.get(name)
        if value is not None and type(value) is not str:
            word = {list: "array", dict: "object", bool: "bool"}.get(type(value), "number")
            return f"json: cannot unmarshal {word} into Go struct field .{name} of type string"
    return ""


def _kind_mismatch(tree: Tree, expected: ExpectedKind) -> str:
    """Upstream's error if the object is of another kind than the URL; empty if it is not."""
    kind, api_version = tree["kind"], tree["apiVersion"]
    if kind == expected.kind and api_version == expected.api_version:
        return ""
    group, _, version = api_version.rpartition("/")
    if built_in_types().of(group, version, kind) is None:
        return f"no kind {quote(kind)} is registered for version {quote(api_version)} in scheme {quote(_SCHEME)}"
    internal = expected.group.partition(".")[0] or "core"
    return f"converting ({version}.{kind}) to ({internal}.{expected.kind}): unknown conversion"
