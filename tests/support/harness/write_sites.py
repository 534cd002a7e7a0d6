"""Finds the write sites of the package, which send writes to the API server, by a scan of its source.

A write site uses one of the client's writing methods, its transport, `PodStatuses.patch` or `GuardedPatches.patch`. The
scan goes by names: those of clients end in `client` (`clients_of_other_names` finds exceptions), those of `PodStatuses`
and `GuardedPatches` end in `statuses` and `patches`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import bayplan

PACKAGE = Path(bayplan.__file__).parent
_WRITING = {"POST", "PUT", "PATCH", "DELETE"}
_TRANSPORT = "transport"
_SENDERS = ("client", "patches", "statuses")

T = TypeVar("T", bound=ast.AST)


def writing_methods() -> set[str]:
    """The methods of `Client` that send a write, directly or by another method."""
    tree = ast.parse((PACKAGE / "client" / "client.py").read_text(encoding="utf-8"))
    (client,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "Client")
    methods = [each for each in client.body if isinstance(each, ast.AsyncFunctionDef)]
    found = {each.name for each in methods if _WRITING & {node.value for node in _nodes(each, ast.Constant)}}
    while more := {each.name for each in methods if found & _own_calls(each)} - found:
        found |= more
    return found


def write_sites(*folders: str) -> set[str]:
    """`path:function method` of every write site in these folders and files; the function is the outermost one."""
    methods = writing_methods() | {_TRANSPORT}
    return {
        f"{path.relative_to(PACKAGE)}:{function.name} {node.attr}"
        for path, tree in _parsed(folders)
        for function in _outermost_functions(tree)
        for node in _nodes(function, ast.Attribute)
        if node.attr in methods and _name(node.value).endswith(_SENDERS)
    }


def clients_of_other_names(*folders: str) -> set[str]:
    """Arguments and fields of type `Client` whose names do not end in `client`."""
    found: set[str] = set()
    for path, tree in _parsed(folders):
        named = [(each.arg, each.annotation) for each in _nodes(tree, ast.arg)]
        named += [(_name(each.target), each.annotation) for each in _nodes(tree, ast.AnnAssign)]
        of_clients = {name for name, annotation in named if annotation is not None and "Client" in _words(annotation)}
        found |= {f"{path.relative_to(PACKAGE)} {name}" for name in of_clients if not name.endswith("client")}
    return found


def _parsed(folders: Iterable[str]) -> Iterator[tuple[Path, ast.AST]]:
    for folder in folders:
        place = PACKAGE / folder
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def _outermost_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for each in ast.iter_child_nodes(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each
        else:
            yield from _outermost_functions(each)


def _own_calls(function: ast.AST) -> set[str]:
    return {each.attr for each in _nodes(function, ast.Attribute) if _name(each.value) == "self"}


def _words(annotation: ast.expr) -> set[str]:
    return {_name(each) for each in ast.walk(annotation)}


def _name(node: ast.AST) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _nodes(tree: ast.AST, kind: type[T]) -> Iterator[T]:
    return (each for each in ast.walk(tree) if isinstance(each, kind))
