"""Do the declarations that the kernel is compiled with still fit the sources? Asked without a compiler."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "bayplan"
CLASS = re.compile(r"^cdef class (\w+):$")
ATTRIBUTES = re.compile(r"^    cdef (?:public |readonly )?(?:long long|\w+) (\w+(?:, \w+)*)$")
METHOD = re.compile(r"^(?:    )?cp?def (?:(?:long long|\w+) )?(\w+)\((.*)\)$")


def declared(pxd: Path) -> Iterator[tuple[str, set[str], dict[str, list[str]]]]:
    """The module itself, without a name, then each class: attributes, and functions with their parameters."""
    name, attributes, functions = "", set[str](), dict[str, list[str]]()
    for line in [*pxd.read_text(encoding="utf-8").splitlines(), "cdef class End:"]:
        if found := CLASS.match(line):
            if name or functions:
                yield name, attributes, functions
            name, attributes, functions = found[1], set(), {}
        elif found := METHOD.match(line):
            parameters = re.sub(r"\[[^]]*\]", "", found[2]).split(", ")  # without the dimensions of vectors
            functions[found[1]] = [each.split()[-1].removesuffix("=*") for each in parameters]
        elif found := ATTRIBUTES.match(line):
            attributes.update(found[1].split(", "))
        else:
            assert not line.strip() or line.lstrip().startswith(("@cython.locals(", "cimport ", "from ")), line


def assigned(body: ast.ClassDef) -> set[str]:
    """What methods of a class set on `self`."""
    return {
        node.attr
        for node in ast.walk(body)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


CASES = [
    pytest.param(pxd, *each, id=f"{pxd.relative_to(PACKAGE).with_suffix('')} {each[0]}".strip())
    for pxd in sorted(PACKAGE.rglob("*.pxd"))
    for each in declared(pxd)
]


@pytest.mark.parametrize(("pxd", "name", "attributes", "functions"), CASES)
def test_the_source_is_what_is_declared(
    pxd: Path, name: str, attributes: set[str], functions: dict[str, list[str]]
) -> None:
    place: ast.Module | ast.ClassDef = ast.parse(pxd.with_suffix(".py").read_text(encoding="utf-8"))
    if name:
        place = next(node for node in place.body if isinstance(node, ast.ClassDef) and node.name == name)
        assert assigned(place) <= attributes, "the kernel has no room for these"
        assert attributes - {"__weakref__"} <= assigned(place), "nobody uses these any more"
    written = {node.name: node for node in place.body if isinstance(node, ast.FunctionDef)}
    assert {each: _parameters(written[each]) for each in functions} == functions


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]


def test_something_is_compiled() -> None:
    assert len(CASES) > 10
