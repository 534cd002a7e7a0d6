"""`docs/api.md` is the list of public names: it has every one of them, in order, with a word about each."""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest

from docs.fences import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
MODULES = ["bayplan.framework", "bayplan.batch", "bayplan.testing", "bayplan.app"]


ELSEWHERE = {
    *("int", "float", "bool", "str", "timedelta", "ConfigError"),
    *("ARGS", "takes", "signature", "depends_on", "unified_evictable"),  # of plugins, which are no class of ours
    *("default", "with", "recover", "writes", "prometheus_adaptor"),
}
"""What entries mention that is not part of what they are about."""


def entries(module: str) -> dict[str, str]:
    """The headings below a module's, each with its text."""
    return dict(headed(module))


def headed(module: str) -> list[tuple[str, str]]:
    part = re.search(rf"^## {re.escape(module)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert part is not None
    return re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", part[1], re.MULTILINE | re.DOTALL)


def test_the_page_is_about_these_modules() -> None:
    assert re.findall(r"^## (\S+)$", PAGE, re.MULTILINE) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_the_documented_names(module: str) -> None:
    names = import_module(module).__all__
    assert [name for name, _ in headed(module)] == sorted(names, key=str.casefold)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("module", MODULES)
def test_something_is_said_of_every_name(module: str) -> None:
    assert [name for name, text in entries(module).items() if not text.strip()] == []


@pytest.mark.parametrize("module", MODULES)
def test_calls_on_the_page_use_parameters_that_exist(module: str) -> None:
    """A keyword in the first call that an entry shows is a parameter of the function, where it has fixed ones."""
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
    """Whatever an entry puts in code is a part of what it is about, of what that gives, or a public name."""
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


def members(thing: Any) -> set[str]:
    """What can be asked of a class and of what its methods give, or of what a function takes and gives; parameters."""
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
    """The attributes of the types that a function of ours has for these parameters, or for its return."""
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
