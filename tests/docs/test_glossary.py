"""`docs/glossary.md` has every public class except those of upstream, which are in `upstream_terms.txt`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from docs.fences import ROOT

PACKAGE = ROOT / "src" / "bayplan"
TERMS = Path(__file__).with_name("upstream_terms.txt")


def classes() -> dict[str, str]:
    """Every public class with one of the modules that define it."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name] = module
    return found


def rows() -> list[tuple[str, str, str]]:
    """Word, text and module of every row."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    return re.findall(r"^\| (?!word |---)(.+?) \| (.+?) \| (?:`([\w.]+)` )?\|$", page, re.MULTILINE)


def upstream() -> list[str]:
    return TERMS.read_text(encoding="utf-8").splitlines()


def test_every_public_class_is_in_the_glossary_or_a_term_of_upstream() -> None:
    assert sorted(classes().keys() - {word for word, _, _ in rows()} - set(upstream())) == []


def test_terms_of_upstream_are_classes_that_the_glossary_does_not_list() -> None:
    assert upstream() == sorted(set(upstream()))
    assert set(upstream()) <= classes().keys() - {word for word, _, _ in rows()}


def test_a_class_in_the_glossary_names_a_module_that_exists() -> None:
    known = classes()
    assert [word for word, _, module in rows() if word in known and not _exists(module)] == []


def _exists(module: str) -> bool:
    path = PACKAGE.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
