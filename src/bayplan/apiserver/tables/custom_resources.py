"""Table columns and cells of custom resources: those of `additionalPrinterColumns`, otherwise the age.

A JSON path is compiled once and cached. It may have fields, quoted fields, indices, `[*]` and `[?(@.a=="b")]`. Of
several values the first is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.tables.ages import age_cell
from bayplan.codec.go_text import go_value

_AGE: Tree = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_STEP = re.compile(
    r"""
    \.?(?P<name>(?:\\.|[^.\[\\\s])+)
    | \[\s*(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<index>-?\d+)|(?P<all>\*))\s*\]
    | \[\?\(\s*@(?P<left>[^=!<>]+?)\s*(?P<operator>==|!=)\s*(?P<right>[^)]+?)\s*\)\]
    """,
    re.VERBOSE,
)
_NAME: Tree = {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}
MISSING = object()

Step = Callable[[Any], Iterable[Any]]


def _printer_columns(definition: Mapping[str, Any]) -> list[Tree]:
    return list(definition.get("additionalPrinterColumns") or (_AGE,))


def columns(definition: Mapping[str, Any]) -> list[Tree]:
    return [_NAME, *map(_column, _printer_columns(definition))]


def _column(given: Tree) -> Tree:
    path = given.get("jsonPath", "")
    description = given.get("description") or f"Custom resource definition column (in JSONPath format): {path}"
    return {
        "name": given.get("name", ""),
        "type": given.get("type", ""),
        "format": given.get("format", ""),
        "description": description,
        "priority": given.get("priority", 0),
    }


def cells(definition: Mapping[str, Any], item: Tree, now: datetime) -> list[Any]:
    found = (
        _cell(each.get("type", ""), json_path_value(each.get("jsonPath", ""), item), now)
        for each in _printer_columns(definition)
    )
    return [item["metadata"]["name"], *found]


def json_path_value(path: str, item: Any) -> Any:
    """The first value at the path, null included; `MISSING` if there is none."""
    values: Iterable[Any] = [item]
    for step in _steps(path):
        values = [found for value in values for found in step(value)]
    return next(iter(values), MISSING)


def _cell(kind: str, value: Any, now: datetime) -> Any:
    if value is MISSING:
        return None
    match kind:
        case "string":
            return _text(value)
        case "integer":
            return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "number":
            return value if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "date":
            return None if value is None else _date(value, now)
    return None


def _date(value: Any, now: datetime) -> str:
    try:
        return age_cell(now, str(value))
    except ValueError:
        return "<invalid>"


@lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[Step, ...]:
    return tuple(_compile_step(match) for match in _STEP.finditer(path))


def _compile_step(match: re.Match[str]) -> Step:
    if match["left"] is not None:
        return _filter(match["left"], match["operator"], match["right"])
    if match["all"]:
        return _all
    if match["index"] is not None:
        number = int(match["index"])
        return lambda value: [value[number]] if isinstance(value, list) and -len(value) <= number < len(value) else ()
    name = re.sub(r"\\(.)", r"\1", match["single"] or match["double"] or match["name"] or "")
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else ()


def _all(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _filter(left: str, operator: str, right: str) -> Step:
    wanted = right.strip("'\"")
    equal = operator == "=="

    def select(value: Any) -> Iterable[Any]:
        if not isinstance(value, list):
            return ()
        given = ((each, json_path_value(left, each)) for each in value)
        return [each for each, found in given if found is not MISSING and (_text(found) == wanted) is equal]

    return select


def _text(value: Any) -> str:
    """Strings unchanged, objects and lists as JSON."""
    if value is None:
        return "<no value>"
    return (
        json.dumps(value, separators=(",", ":"), sort_keys=True) if isinstance(value, dict | list) else go_value(value)
    )
