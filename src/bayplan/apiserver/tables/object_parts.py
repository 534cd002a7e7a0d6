"""Name, age, spec and status of any object, as cells need them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.tables.ages import age_cell


def name_of(item: Tree) -> str:
    return str(item["metadata"]["name"])


def object_age_cell(item: Tree, now: datetime) -> str:
    return age_cell(now, item["metadata"].get("creationTimestamp"))


def name_age_spec_status(item: Tree) -> tuple[Tree, Tree]:
    return item.get("spec") or {}, item.get("status") or {}


def name_and_age(item: Tree, now: datetime) -> list[Any]:
    """A name and an age."""
    return [name_of(item), object_age_cell(item, now)]


def name_and_creation_time(item: Tree, now: datetime) -> list[Any]:  # noqa: ARG001
    """A name and the time of creation, for kinds that nobody has given columns."""
    return [name_of(item), item["metadata"].get("creationTimestamp")]
