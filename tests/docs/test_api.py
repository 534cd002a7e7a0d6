"""`docs/api.md` is the list of public names: it has every one of them, in order, with a word about each."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest

from docs.fences import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
MODULES = ["bayplan.framework", "bayplan.batch", "bayplan.testing", "bayplan.app"]


def entries(module: str) -> dict[str, str]:
    """The headings below a module's, each with its text."""
    part = re.search(rf"^## {re.escape(module)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert part is not None
    return dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", part[1], re.MULTILINE | re.DOTALL))


def test_the_page_is_about_these_modules() -> None:
    assert re.findall(r"^## (\S+)$", PAGE, re.MULTILINE) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_the_documented_names(module: str) -> None:
    names = import_module(module).__all__
    assert list(entries(module)) == sorted(names, key=str.casefold)
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
