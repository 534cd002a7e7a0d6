"""Applies strategic merge patches.

Called for every such patch. Maps merge, null deletes, and lists are replaced or merged by key as the type says. Four
directives change this: `$patch`, `$retainKeys`, `$setElementOrder/x`, `$deleteFromPrimitiveList/x`. Only built-in kinds
have the necessary types. Cost: linear in the patch and in the lists it touches; the rest is shared with the original.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from bayplan.apiserver.api_errors import StatusError, bad_request
from bayplan.apiserver.schema.object_reader import deep_copy
from bayplan.apiserver.schema.types import SchemaField, StructType, WireType
from bayplan.codec.go_text import go_value, quote

Tree = dict[str, Any]

_PATCH, _RETAIN = "$patch", "$retainKeys"
_DELETE, _ORDER = "$deleteFromPrimitiveList", "$setElementOrder"
_DELETED: Any = object()
_GO_TYPES: dict[type, str] = {
    bool: "bool",
    str: "string",
    int: "int64",
    float: "float64",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}


def strategic_patch(original: Tree, patch: Tree, type_: StructType) -> Tree:
    """The patched object. Neither argument changes."""
    return apply_patch_in_place(original, deep_copy(patch), type_)


def apply_patch_in_place(original: Tree, patch: Tree, type_: StructType) -> Tree:
    """The patched object. The patch loses its directives, which upstream's messages show; its values stay."""
    return _merge_map(original, patch, type_)


def _patch_error(message: str) -> StatusError:
    """Upstream returns these errors as internal server errors."""
    return StatusError(500, "", message)


def _merge_map(original: Tree, patch: Tree, type_: StructType | None) -> Tree:
    if _PATCH in patch:
        return _apply_map_directive(patch)
    merged = dict(original)
    _retain(merged, patch)
    _set_orders(merged, patch, type_)
    for key, given in patch.items():
        name, deletes = key, key.startswith(_DELETE)
        if deletes:
            prefix, slash, name = key.partition("/")
            if not slash or prefix != _DELETE:
                raise bad_request("invalid patch format of primitive list")
        if given is None:
            merged.pop(name, None)
        elif name in merged and _kind(merged[name]) == _kind(given):
            merged[name] = _merge_value(merged[name], given, name, type_, deletes)
        elif not deletes:
            _set_new_value(merged, name, given)
    return merged


def _apply_map_directive(patch: Tree) -> Tree:
    """Apply a directive that replaces or empties the whole map."""
    directive = patch[_PATCH]
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _PATCH}
    if directive == "delete":
        return {}
    raise _bad_directive(directive, patch)


def _bad_directive(directive: Any, patch: Tree) -> StatusError:
    name = directive if isinstance(directive, str) else f"%!s({go_type(directive)}={go_value(directive)})"
    return _patch_error(f"unknown patch type: {name} in map: {go_value(patch)}")


def _set_new_value(merged: Tree, name: str, given: Any) -> None:
    """Set a value that the original does not have, or has in another form."""
    value = _strip_directives(given)
    if value is _DELETED:
        merged.pop(name, None)
    else:
        merged[name] = value


def _merge_value(live: Any, given: Any, name: str, type_: StructType | None, deletes: bool) -> Any:
    if isinstance(given, dict):
        known = _field(type_, name)
        if "replace" in known.strategy.split(","):
            return given
        return _merge_map(live, given, known.shape.type if known.shape.kind is WireType.STRUCT else None)
    if isinstance(given, list):
        known = _field(type_, name)
        if deletes or "merge" in known.strategy.split(","):
            return _merge_list(live, given, known, deletes)
        return given
    return given


def _field(type_: StructType | None, name: str) -> SchemaField:
    if type_ is None:
        raise _patch_error("merging an object in json but data type is not struct, instead is: map")
    known = type_.fields.get(name)
    if known is None:
        message = f"unable to find api field in struct {type_.struct} for the json field {quote(name)}"
        raise _patch_error(message)
    return known


def _retain(merged: Tree, patch: Tree) -> None:
    """Apply `$retainKeys`, the list of keys that may stay. A patch that sets any other key is an error."""
    if _RETAIN not in patch:
        return
    retained = patch.pop(_RETAIN)
    if not isinstance(retained, list):
        raise bad_request("invalid patch format of retainKeys")
    for key, given in patch.items():
        if given is not None and not key.startswith((_DELETE, _ORDER)) and key not in retained:
            raise bad_request("invalid patch format of retainKeys")
    for key in [key for key in merged if key not in retained]:
        del merged[key]


# Lists.


def _set_orders(merged: Tree, patch: Tree, type_: StructType | None) -> None:
    """Merge every list whose element order the patch sets."""
    for key in [key for key in patch if key.startswith(_ORDER)]:
        order = patch.pop(key)
        if not isinstance(order, list):
            raise _bad_argument("[]interface {}", order)
        name = key.partition("/")[2]
        for found in (merged.get(name, []), patch.get(name, [])):
            if not isinstance(found, list):
                raise _bad_argument("[]interface {}", found)
        known = _field(type_, name)
        given = patch.get(name)
        _check_order(given or [], order, known.merge_key)
        if name in merged and given is not None:
            replaced = "merge" not in known.strategy.split(",")
            both = given if replaced else _merge_list(merged[name], given, known, False)
        elif name in merged:
            both = merged[name]
        elif given is not None:
            both = _strip_directives(given, nulls=True)
        else:
            continue
        merged[name] = _order_elements(both, order, merged.get(name, []), known.merge_key)
        patch.pop(name, None)


def _check_order(given: list[Any], order: list[Any], key: str) -> None:
    if not given or not order:
        return
    waiting = [each for each in given if not (key and _PATCH in _as_map(each))]
    at = 0
    for each in order:
        if at < len(waiting) and _identity(waiting[at], key) == _identity(each, key):
            at += 1
    if at < len(waiting):
        message = f"The order in patch list:\n{go_value(given)}\n doesn't match {_ORDER} list:\n{go_value(order)}\n"
        raise _patch_error(message)


def _merge_list(live: list[Any], given: list[Any], known: SchemaField, deletes: bool) -> list[Any]:
    if not live and not given:
        return live
    _check_same_type(live, given)
    if not isinstance((live or given)[0], dict):
        if deletes:
            return [each for each in live if each not in given]
        both = list(dict.fromkeys([*live, *given]))
        return _order_elements(both, given, live, "")
    if not known.merge_key:
        raise _patch_error(f"cannot merge lists without merge key for {known.shape.go_name}")
    live, given = _apply_list_directives(live, given, known.merge_key)
    both = _merge_elements(live, given, known)
    return _order_elements(both, given, live, known.merge_key)


def _apply_list_directives(live: list[Any], given: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    """Apply the elements that are directives: to delete an element, or to replace the list."""
    plain, replace = [], False
    for each in given:
        directive = each.get(_PATCH)
        if _PATCH not in each:
            plain.append(each)
        elif directive == "delete":
            deleted = _identity(each, key)
            live = [each_live for each_live in live if each_live.get(key) != deleted]
        elif directive == "replace":
            replace = True
        elif directive == "merge":
            raise _patch_error("merging lists cannot yet be specified in the patch")
        else:
            raise _bad_directive(directive, each)
    return (plain, []) if replace else (live, plain)


def _merge_elements(live: list[Any], given: list[Any], known: SchemaField) -> list[Any]:
    key, item = known.merge_key, known.shape.item
    type_ = item.type if item is not None and item.kind is WireType.STRUCT else None
    both = list(live)
    places = {_hashable(each.get(key)): at for at, each in reversed(list(enumerate(both)))}
    for each in given:
        identity = _hashable(_identity(each, key))
        if identity in places:
            both[places[identity]] = _merge_map(both[places[identity]], each, type_)
        else:
            places[identity] = len(both)
            both.append(each)
    return both


def _order_elements(both: list[Any], order: list[Any], live: list[Any], key: str) -> list[Any]:
    """Elements of the patch in the patch's order; all other elements keep the order of the original."""
    ranks, places = _ranks(order, key), _ranks(live, key)
    named: list[tuple[int, int | None, Any]] = []
    unnamed: list[tuple[int, Any]] = []
    for each in both:
        identity = _hashable(_identity(each, key))
        rank, place = ranks.get(identity), places.get(identity)
        if rank is None:
            unnamed.append((-1 if place is None else place, each))
        else:
            named.append((rank, place, each))
    named.sort(key=itemgetter(0))
    unnamed.sort(key=itemgetter(0))
    ordered: list[Any] = []
    at = 0
    for _, place, each in named:
        while place is not None and at < len(unnamed) and 0 <= unnamed[at][0] < place:
            ordered.append(unnamed[at][1])
            at += 1
        ordered.append(each)
    return [*ordered, *(each for _, each in unnamed[at:])]


def _ranks(order: list[Any], key: str) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for at, each in enumerate(order):
        found.setdefault(_hashable(_identity(each, key)), at)
    return found


def _identity(each: Any, key: str) -> Any:
    if not key:
        return each
    if key not in _as_map(each):
        raise _patch_error(f"map: {go_value(each)} does not contain declared merge key: {key}")
    return each[key]


def _as_map(each: Any) -> Tree:
    if not isinstance(each, dict):
        raise _bad_argument("map[string]interface {}", each)
    return each


def _hashable(value: Any) -> Any:
    if type(value) is str:
        return value
    return (type(value) is bool, value) if isinstance(value, (int, float, type(None))) else (repr(value),)


def _check_same_type(live: list[Any], given: list[Any]) -> None:
    kinds = {_GO_TYPES.get(kind, "<nil>") for kind in {type(each) for each in (*live, *given)}}
    if "[]interface {}" in kinds:
        raise StatusError(422, "", "lists of lists are not supported")
    if len(kinds) > 1:
        raise _patch_error(f"list element types are not identical: [{go_value(live)} {go_value(given)}]")


def _bad_argument(wanted: str, found: Any) -> StatusError:
    return _patch_error(f"expected a {wanted}, but received a {go_type(found)}")


# Values.


def _strip_directives(value: Any, *, nulls: bool = False) -> Any:
    """The value without maps that are directives and, unless `nulls`, without null members."""
    if type(value) is dict:
        if value.get(_PATCH, _DELETED) is not _DELETED and (nulls or value[_PATCH] is not None):
            return _DELETED
        remaining = {}
        for key, each in value.items():
            if type(each) is dict or type(each) is list:
                each = _strip_directives(each, nulls=nulls)
                if each is _DELETED:
                    continue
            elif each is None and not nulls:
                continue
            remaining[key] = each
        return remaining
    if type(value) is list:
        items = [_strip_directives(each, nulls=nulls) for each in value]
        return [each for each in items if each is not _DELETED]
    return value


def _kind(value: Any) -> str:
    return "int64" if (kind := go_type(value)) == "float64" else kind


def go_type(value: Any) -> str:
    """Go's type of a value decoded from JSON."""
    return _GO_TYPES.get(type(value), "<nil>")
