"""Structs and struct differences in error messages, in the notation of the API server.

Structs have the names and the order of Go's fields, and show every field, set or not. `go_struct_text.json.gz` lists
them (made by `scripts/types/make_go_forms.py`). The table is loaded only when an update is refused.
"""

from __future__ import annotations

import difflib
import gzip
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.metadata import normalize_selector
from bayplan.codec.go_text import json_string

_ZERO_VALUES: Mapping[str, Any] = {"s": "", "i": 0, "b": False, "n": 0, "q": "0", "t": None, "r": None}
_POD_NAMES = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers")
_METADATA = (
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
)


@cache
def _field_table() -> Mapping[str, list[list[str]]]:
    packed = resources.files(__package__).joinpath("go_struct_text.json.gz").read_bytes()
    found: dict[str, list[list[str]]] = json.loads(gzip.decompress(packed))
    return found


def struct_text(kind: str, tree: Tree | None) -> Any:
    """A struct such as `core.PodSpec` with the values of the tree."""
    if kind == "core.PodSpec" and tree is not None:
        tree = _to_internal_version(tree)
    return _struct_text(kind, tree or {})


def _to_internal_version(spec: Tree) -> Tree:
    """Move the host namespace fields to the security context, as in the API server's internal version."""
    moved = {name: spec[name] for name in _POD_NAMES if name in spec}
    if spec.get("securityContext") is None and not moved:
        return spec
    return {**spec, "securityContext": {**(spec.get("securityContext") or {}), **moved}}


def _struct_text(kind: str, tree: Mapping[str, Any]) -> Tree:
    fields: Tree = {}
    for go_name, name, code in _field_table()[kind]:
        if go_name:
            fields[go_name] = _value_text(code, tree.get(name))
        elif code == "o":
            metadata = tree.get("metadata") or {}
            fields |= {field: _sort_keys(metadata[field]) for field in _METADATA if metadata.get(field)}
        else:
            fields |= _struct_text(code, tree)  # an embedded struct has no name of its own
    return fields


def _value_text(code: str, value: Any) -> Any:
    kind, rest = code[0], code[1:]
    if kind == "*":
        return None if value is None else _value_text(rest, value)
    if kind == "[":
        return None if not value else [_value_text(rest, each) for each in value]
    if kind == "{":
        return None if not value else {key: _value_text(rest, value[key]) for key in sorted(value)}
    if code == "l":
        return normalize_selector(value)
    if code in _ZERO_VALUES:
        return _ZERO_VALUES[code] if value is None else value
    return struct_text(code, value)


def _sort_keys(value: Any) -> Any:
    return {key: value[key] for key in sorted(value)} if isinstance(value, dict) else value


def struct_diff(kind: str, old: Tree, new: Tree) -> str:
    """The lines in which two structs differ, with three lines of context."""
    before, after = ([f"{line}\n" for line in _pretty(struct_text(kind, each)).split("\n")] for each in (old, new))
    lines = difflib.unified_diff(before, after, n=3)
    return "".join(line for line in lines if not line.startswith(("---", "+++")))


def _pretty(value: Any, indent: str = "") -> str:
    """Indented JSON, one blank per level."""
    deeper = f"{indent} "
    if isinstance(value, dict) and value:
        members = (f"{deeper}{json_string(key)}: {_pretty(value[key], deeper)}" for key in value)
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"{deeper}{_pretty(each, deeper)}" for each in value) + f"\n{indent}]"
    return json_string(value) if isinstance(value, str) else json.dumps(value)
