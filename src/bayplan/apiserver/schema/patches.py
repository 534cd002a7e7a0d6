"""Applies JSON patches, merge patches and strategic merge patches.

`patch_object` takes the body of a PATCH request (`managed_fields.server_side_apply` handles apply patches). It returns
the new object, decoded like a PUT body, or refuses with upstream's messages. `json_patch`, `merge_patch` and
`strategic_patch` are the pure parts. Cost: linear in the patch; untouched parts of the object are shared until they are
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from bayplan.apiserver.api_errors import StatusError, bad_request, invalid_json_patch
from bayplan.apiserver.schema.decode_errors import duplicate_keys
from bayplan.apiserver.schema.decoder import DecodedObject, Validation, may_have_duplicate_keys
from bayplan.apiserver.schema.field_order import encode_ordered, patched_fields
from bayplan.apiserver.schema.object_reader import deep_copy
from bayplan.apiserver.schema.strategic_merge_patch import apply_patch_in_place, strategic_patch
from bayplan.apiserver.schema.types import StructType
from bayplan.codec import json_text
from bayplan.codec.go_text import go_value, quote
from bayplan.codec.json_text import JsonSyntaxError

__all__ = [
    "JSON_PATCH",
    "MERGE_PATCH",
    "STRATEGIC_PATCH",
    "json_patch",
    "merge_patch",
    "patch_object",
    "strategic_patch",
]

Tree = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

MAX_OPERATIONS = 10_000
_OPERATION_KEYS = frozenset({"op", "path", "from", "value"})


class PatchedObjectReader(Protocol):
    @property
    def order(self) -> StructType | None:
        """The type whose order of fields messages show. Custom resources have none."""
        ...

    def read(
        self, tree: Tree, *, converted: bool = False, known: Tree | None = None
    ) -> tuple[Tree, list[str], str | None]:
        """The object as it is stored, its unknown fields, and the error if it cannot be stored.

        `converted` selects the messages of upstream's converter, which strategic patches get instead of JSON's. Parts
        shared with `known`, an object that was read before, are not read again.
        """
        ...


def patch_object(
    type_: PatchedObjectReader,
    live: Tree,
    body: bytes,
    media_type: str,
    validation: Validation,
    *,
    strategic: StructType | None = None,
) -> DecodedObject:
    """The object after the patch, with warnings. `strategic` has the merge rules, for kinds that have them."""
    patch = _read(body, media_type)
    strict_errors = _patch_warnings(body, patch, media_type) if validation != "Ignore" else []
    if media_type == JSON_PATCH:
        tree = json_patch(live, patch)
    elif media_type == MERGE_PATCH:
        tree = merge_patch(live, patch)
    else:
        assert strategic is not None
        tree = apply_patch_in_place(live, patch, strategic)
        tree["kind"], tree["apiVersion"] = live["kind"], live["apiVersion"]
    found, unknown, wrong = type_.read(tree, converted=media_type == STRATEGIC_PATCH, known=live)
    strict_errors += unknown
    if wrong is None and (validation != "Strict" or not strict_errors):
        return DecodedObject(found, strict_errors if validation == "Warn" else [])
    shown = (
        go_value(patch) if media_type == STRATEGIC_PATCH else encode_ordered(tree, patched_fields(patch), type_.order)
    )
    raise _bad_request(shown, wrong if wrong is not None else f"strict decoding error: {', '.join(strict_errors)}")


def _bad_request(shown: str, why: str) -> StatusError:
    message = f"Invalid value: {quote(shown)}: {why}"
    causes = [{"reason": "FieldValueInvalid", "message": message, "field": "patch"}]
    return StatusError(422, "Invalid", f' "" is invalid: patch: {message}', {"causes": causes})


def _read(body: bytes, media_type: str) -> Any:
    prefix = "" if media_type == STRATEGIC_PATCH else "error decoding patch: "
    wanted: type = list if media_type == JSON_PATCH else dict
    try:
        patch = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        patch = _read_with_position(body, prefix)
    if type(patch) is wanted:
        return patch
    if patch is None:
        if media_type == MERGE_PATCH:
            raise bad_request("Invalid JSON Patch")
        return wanted()
    word = {list: "array", dict: "object", str: "string", bool: "bool"}.get(type(patch), "number")
    into = "[]handlers.jsonPatchOp" if media_type == JSON_PATCH else "map[string]interface {}"
    raise bad_request(f"{prefix}json: cannot unmarshal {word} into Go value of type {into}")


def _read_with_position(body: bytes, prefix: str) -> Any:
    try:
        return json_text.to_plain(json_text.parse(body.decode("utf-8", "replace")))
    except JsonSyntaxError as error:
        raise bad_request(f"{prefix}{error}") from None


def _patch_warnings(body: bytes, patch: Any, media_type: str) -> list[str]:
    """Warnings about the patch itself: repeated keys, and unknown keys in its operations."""
    found = []
    if media_type == JSON_PATCH:
        for at, operation in enumerate(patch):
            unknown = [key for key in operation if key not in _OPERATION_KEYS] if isinstance(operation, dict) else []
            found += [f"json patch unknown field {quote(f'[{at}].{key}')}" for key in unknown]
    if may_have_duplicate_keys(body, patch):
        word = "json patch duplicate field" if media_type == JSON_PATCH else "duplicate field"
        tree = json_text.parse(body.decode("utf-8", "replace"))
        found += [f"{word} {quote(path)}" for path in duplicate_keys(tree)]
    return found


# Merge patches (RFC 7396).


def merge_patch(target: Any, patch: Any) -> Any:
    """The target with the patch merged in. Neither argument changes."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = merge_patch(merged.get(key), value)
        else:
            merged[key] = value
    return merged


# JSON patches (RFC 6902).


def json_patch(target: Tree, operations: Sequence[Any]) -> Tree:
    """The target after all operations. One failed operation refuses the whole patch."""
    if len(operations) > MAX_OPERATIONS:
        message = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: {message}")
    document: Any = deep_copy(target)
    for operation in operations:
        try:
            document = _apply_operation(document, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError):
            raise invalid_json_patch() from None
    if not isinstance(document, dict):
        raise invalid_json_patch()
    return document


def _apply_operation(document: Any, operation: Any) -> Any:
    verb, path = operation["op"], _pointer(operation["path"])
    if verb == "test":
        found = _find_or_none(document, path)
        if not same_json(found, operation.get("value")):
            raise ValueError
        return document
    if verb == "add":
        return _add(document, path, operation.get("value"))
    if verb == "remove":
        _remove(document, path)
    elif verb == "replace":
        return _replace(document, path, operation.get("value"))
    elif verb == "move":
        source = _pointer(operation["from"])
        value = _find(document, source)
        _remove(document, source)
        return _add(document, path, value)
    elif verb == "copy":
        return _add(document, path, deep_copy(_find(document, _pointer(operation["from"]))))
    else:
        raise ValueError
    return document


def _pointer(text: str) -> list[str]:
    if text == "":
        return []
    head, *parts = text.split("/")
    if head or not parts:
        raise ValueError
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def _find(document: Any, path: list[str]) -> Any:
    for part in path:
        document = document[part] if isinstance(document, dict) else document[_index(document, part)]
    return document


def _find_or_none(document: Any, path: list[str]) -> Any:
    holder = _find(document, path[:-1]) if path else document
    if path and isinstance(holder, dict):
        return holder.get(path[-1])
    return _find(document, path)


def _index(holder: Any, part: str, *, end: bool = False) -> int:
    if not isinstance(holder, list):
        raise TypeError
    if part == "-" and end:
        return len(holder)
    at = int(part)
    if at < 0:
        at += len(holder) + (1 if end else 0)
    if not 0 <= at < len(holder) + (1 if end else 0):
        raise IndexError
    return at


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    holder = _find(document, path[:-1])
    if isinstance(holder, dict):
        holder[path[-1]] = value
    else:
        holder.insert(_index(holder, path[-1], end=True), value)
    return document


def _remove(document: Any, path: list[str]) -> None:
    if not path:
        raise ValueError
    holder = _find(document, path[:-1])
    del holder[path[-1] if isinstance(holder, dict) else _index(holder, path[-1])]


def _replace(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    holder = _find(document, path[:-1])
    if isinstance(holder, dict):
        holder[path[-1]] = value  # a missing key too: upstream's library does not check
    else:
        holder[_index(holder, path[-1])] = value
    return document


def same_json(left: Any, right: Any) -> bool:
    """Equality of JSON values, where true is not 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)
