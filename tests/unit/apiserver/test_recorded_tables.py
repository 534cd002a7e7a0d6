"""Columns and cells of tables, compared with a real API server; see record_tables.py."""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bayplan.apiserver.resources.kinds import BUILT_IN, ServedResource
from bayplan.apiserver.tables import cells, columns, row_conditions
from unit.apiserver.record_tables import COLUMNS, definition

Tree = dict[str, Any]
_RECORDING: Tree = json.loads(lzma.decompress((Path(__file__).parent / "tables.json.xz").read_bytes()))
_NOW = datetime.fromisoformat(_RECORDING["now"])
_YOUNG = re.compile(r"\d+s")


def _resource(api_version: str, kind: str) -> ServedResource:
    if api_version == "example.com/v1":
        version = definition(kind, COLUMNS if kind == "Thing" else [])["spec"]["versions"][0]
        return replace(BUILT_IN[0], group="example.com", version="v1", kind=kind, definition=version)
    group, _, version = api_version.rpartition("/")
    return next(r for r in BUILT_IN if (r.group, r.version, r.kind) == (group, version, kind))


@pytest.mark.parametrize("kind_name", _RECORDING["columns"])
def test_columns_equal_the_recorded_ones(kind_name: str) -> None:
    api_version, kind = kind_name.split(" ")
    assert _without_descriptions(columns(_resource(api_version, kind))) == _without_descriptions(
        _RECORDING["columns"][kind_name]
    )


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{row[0]['kind']}-{row[0]['metadata']['name']}-{number}")
        for number, row in enumerate(_RECORDING["rows"])
    ],
)
def test_cells_equal_the_recorded_ones(row: list[Any]) -> None:
    item, expected, conditions = row
    resource = _resource(item["apiVersion"], item["kind"])
    assert _without_young_ages(cells(resource, item, _NOW)) == _without_young_ages(expected)
    assert row_conditions(resource, item) == conditions


def _without_descriptions(found: list[Tree]) -> list[Tree]:
    """The columns without their descriptions."""
    return [{k: v for k, v in each.items() if k != "description"} for each in found]


def _without_young_ages(found: list[Any]) -> list[Any]:
    """Replaces young ages: a few seconds pass between the creation of the objects and the end of the recording."""
    return ["young" if isinstance(each, str) and _YOUNG.fullmatch(each) else each for each in found]
