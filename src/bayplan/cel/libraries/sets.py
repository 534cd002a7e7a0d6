"""Set functions on lists."""

from __future__ import annotations

from typing import Any

from bayplan.cel.libraries.standard import contained_in
from bayplan.cel.types.declarations import Overload, function
from bayplan.cel.types.types import BOOL, list_of, param

LIST_T = list_of(param("T"))


def contains(outer: Any, inner: Any) -> bool:
    return all(contained_in(element, outer) for element in inner)


def equivalent(left: Any, right: Any) -> bool:
    return contains(left, right) and contains(right, left)


def intersects(left: Any, right: Any) -> bool:
    return any(contained_in(element, right) for element in left)


OVERLOADS: list[Overload] = [
    function("sets.contains", "list_sets_contains_list", (LIST_T, LIST_T), BOOL, contains),
    function("sets.equivalent", "list_sets_equivalent_list", (LIST_T, LIST_T), BOOL, equivalent),
    function("sets.intersects", "list_sets_intersects_list", (LIST_T, LIST_T), BOOL, intersects),
]
