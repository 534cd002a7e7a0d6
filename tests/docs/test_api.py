"""`docs/api.md` lists every public name, in order, with a description."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from docs.fences import ROOT, blocks, pages

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
MODULES = [
    "bayplan",
    "bayplan.framework",
    "bayplan.batch",
    "bayplan.binder",
    "bayplan.testing",
    "bayplan.app",
    "bayplan.errors",
]
SURFACE = Path(__file__).with_name("surface-0.1.txt")


ELSEWHERE = {
    *("int", "float", "bool", "str", "timedelta", "ConfigError"),
    # attributes of plugins, which have no class
    *("ARGS", "takes", "signature", "depends_on", "traits", "unified_evictable"),
    *("pre_bind",),  # attributes of binder plugins
    *("default", "with", "recover", "writes", "prometheus_adaptor"),
}
"""Words of entries that are not members of the described name."""


def entries(module: str) -> dict[str, str]:
    """The headings below a module's, each with its text."""
    return dict(headed(module))


def headed(module: str) -> list[tuple[str, str]]:
    part = re.search(rf"^## {re.escape(module)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert part is not None
    return re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", part[1], re.MULTILINE | re.DOTALL)


def test_the_page_lists_these_modules() -> None:
    assert re.findall(r"^## (\S+)$", PAGE, re.MULTILINE) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_the_documented_names(module: str) -> None:
    names = import_module(module).__all__
    assert [name for name, _ in headed(module)] == sorted(names, key=str.casefold)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("module", MODULES)
def test_every_name_has_a_description(module: str) -> None:
    assert [name for name, text in entries(module).items() if not text.strip()] == []


@pytest.mark.parametrize("module", MODULES)
def test_calls_on_the_page_use_parameters_that_exist(module: str) -> None:
    """A keyword in the first call that an entry shows is a parameter of the function, if it has fixed ones."""
    home = import_module(module)
    wrong = []
    for name, text in entries(module).items():
        shown = re.search(rf"`{name}\(([^`]*)\)`", text)
        taken = getattr(home, name)
        if shown is None or not callable(taken):
            continue
        parameters = inspect.signature(taken).parameters
        if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            continue
        keywords = re.findall(r"(\w+)=", re.sub(r'"[^"]*"', "", shown[1]))
        wrong += [(name, word) for word in keywords if word not in parameters]
    assert wrong == []


@pytest.mark.parametrize("module", MODULES)
def test_members_on_the_page_exist(module: str) -> None:
    """Code in an entry is a member of the described name, of its results, or a public name."""
    public = {name: getattr(import_module(home), name) for home in MODULES for name in import_module(home).__all__}
    by_owner = {name.casefold(): thing for name, thing in public.items() if isinstance(thing, type)}
    wrong = []
    for name, text in entries(module).items():
        about = getattr(import_module(module), name)
        for owner, member in re.findall(r"`(?:(\w+)\.)?(\w+)(?:\([^`]*\))?`", re.sub(r"\[.*?\]\(.*?\)", "", text)):
            known = members(by_owner.get(owner.casefold(), about))
            if member not in known and member not in public and member not in ELSEWHERE:
                wrong.append((name, member))
    assert wrong == []


def test_example_code_imports_public_names_only() -> None:
    wrong, seen = [], set()
    for place, source in copied():
        for module, name in imported(source):
            seen.add(module)
            if module not in MODULES or name not in import_module(module).__all__:
                wrong.append(f"{place}: {module}.{name}")
    assert wrong == []
    assert seen == set(MODULES)


def copied() -> Iterator[tuple[str, str]]:
    """The Python code of the pages, and the examples."""
    for page in pages():
        yield from ((block.place, block.text) for block in blocks(page) if block.language == "python")
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Bayplan's names that some code imports: module and name, which is empty for a whole module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "bayplan":
            yield from ((str(node.module), each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names if each.name.split(".")[0] == "bayplan")


@pytest.mark.parametrize("line", SURFACE.read_text(encoding="utf-8").splitlines())
def test_what_was_public_in_0_1_stays(line: str) -> None:
    """Public names stay, and so do the calls on the page: parameters keep their order, new ones are optional."""
    module, name, *before = line.split()
    assert name in import_module(module).__all__
    if not before:
        return
    now = parameters(getattr(import_module(module), name))
    by_position = [each for each in before if not each.startswith("*")]
    assert [each.name for each in now if takes_position(each)][: len(by_position)] == by_position
    assert {each.strip("*") for each in before} <= {each.name for each in now}
    added = [each for each in now if each.name not in {each.strip("*") for each in before}]
    assert [each.name for each in added if each.default is each.empty and "VAR" not in each.kind.name] == []


def parameters(thing: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(thing).parameters.values())


def takes_position(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)


def members(thing: Any) -> set[str]:
    """The members of a class and of its methods' results, or of a function's parameters and result; parameters."""
    if isinstance(thing, type):
        found = attributes(thing).union(*(mentioned(method, "return") for method in vars(thing).values()))
    elif inspect.isroutine(thing):
        found = mentioned(thing, *getattr(thing, "__annotations__", ()))
    else:
        found = attributes(type(thing))
    with suppress(ValueError, TypeError):
        found |= set(inspect.signature(thing).parameters)
    return found


def mentioned(function: Any, *names: str) -> set[str]:
    """The attributes of the types of these parameters, or of the result, of one of Bayplan's functions."""
    annotations = getattr(function, "__annotations__", {})
    words = re.findall(r"\w+", " ".join(str(annotations.get(name, "")) for name in names))
    home = vars(import_module(function.__module__)) if words else {}
    return set().union(*(attributes(home[word]) for word in words if word in home))


def attributes(kind: Any) -> set[str]:
    found: set[str] = set()
    for base in getattr(kind, "__mro__", ()):
        found |= {*vars(base), *getattr(base, "__annotations__", {})}
        if base.__module__.startswith("bayplan."):
            found |= set(re.findall(r"self\.(\w+)", inspect.getsource(base)))
    return found
