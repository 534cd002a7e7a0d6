"""The reference pages are what the code says now."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from docs.fences import ROOT


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["reference"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_code_says(reference: ModuleType) -> None:
    pages = reference.pages()
    folder = ROOT / "docs" / "reference"
    assert {path.name for path in folder.iterdir()} == set(pages)
    stale = [name for name, text in pages.items() if (folder / name).read_text(encoding="utf-8") != text]
    assert stale == [], "call `python tools/reference.py`"


def test_every_verb_is_in_the_reference(reference: ModuleType) -> None:
    from bayplan.cli import cli

    text = reference.pages()["commands.md"]
    assert all(f"\n## bayplan {verb}\n" in text for verb in cli.list_commands(reference.click.Context(cli)))
