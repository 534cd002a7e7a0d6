"""Name, age, spec and status of any object, as cells need them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.tables.ages import age


def name_of(item: Tree) -> str:
    return str(item["metadata"]["name"])


def age_cell(item: Tree, now: datetime) -> str:
    return age(now, item["metadata"].get("creationTimestamp"))


def parts_of(item: Tree) -> tuple[Tree, Tree]:
    return item.get("spec") or {}, item.get("status") or {}


def plain(item: Tree, now: datetime) -> list[Any]:
    """A name and an age."""
    return [name_of(item), age_cell(item, now)]


def created(item: Tree, now: datetime) -> list[Any]:  # noqa: ARG001
    """A name and the time of creation, for kinds that nobody has given columns."""
    return [name_of(item), item["metadata"].get("creationTimestamp")]
