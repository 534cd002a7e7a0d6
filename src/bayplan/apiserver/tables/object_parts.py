"""Name, age, spec and status of any object."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.tables.ages import age_cell


def name_of(item: Tree) -> str:
    return str(item["metadata"]["name"])


def object_age_cell(item: Tree, now: datetime) -> str:
    return age_cell(now, item["metadata"].get("creationTimestamp"))


def spec_and_status(item: Tree) -> tuple[Tree, Tree]:
    return item.get("spec") or {}, item.get("status") or {}


def name_and_age(item: Tree, now: datetime) -> list[Any]:
    return [name_of(item), object_age_cell(item, now)]


def name_and_creation_time(item: Tree, now: datetime) -> list[Any]:  # noqa: ARG001
    """Name and creation time, for kinds without columns."""
    return [name_of(item), item["metadata"].get("creationTimestamp")]
