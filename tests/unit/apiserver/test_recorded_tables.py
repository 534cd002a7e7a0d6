"""Do our tables have the columns and cells of a real API server? Recorded by record_tables.py."""

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


@pytest.mark.parametrize("named", _RECORDING["columns"])
def test_columns_are_those_of_a_real_server(named: str) -> None:
    api_version, kind = named.split(" ")
    assert _shown(columns(_resource(api_version, kind))) == _shown(_RECORDING["columns"][named])


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{row[0]['kind']}-{row[0]['metadata']['name']}-{number}")
        for number, row in enumerate(_RECORDING["rows"])
    ],
)
def test_cells_are_those_of_a_real_server(row: list[Any]) -> None:
    item, expected, conditions = row
    resource = _resource(item["apiVersion"], item["kind"])
    assert _ageless(cells(resource, item, _NOW)) == _ageless(expected)
    assert row_conditions(resource, item) == conditions


def _shown(found: list[Tree]) -> list[Tree]:
    """What is said of a field everywhere is not said here once more."""
    return [{k: v for k, v in each.items() if k != "description"} for each in found]


def _ageless(found: list[Any]) -> list[Any]:
    """A few seconds went by between the objects and the end of the recording."""
    return ["young" if isinstance(each, str) and _YOUNG.fullmatch(each) else each for each in found]
