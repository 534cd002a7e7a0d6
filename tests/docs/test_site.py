"""The documentation builds without a warning, and the site works without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from docs.fences import ROOT

FETCHED = re.compile(
    r"""<(?:script|img|iframe)[^>]+src=["']?https?:|<link[^>]+rel=["']?(?:stylesheet|preconnect)[^>]+https?:"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    written = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert written <= {page.relative_to(site) for page in site.rglob("*.html")}


def test_no_page_loads_external_resources(site: Path) -> None:
    assert [page.name for page in site.rglob("*.html") if FETCHED.search(page.read_text(encoding="utf-8"))] == []


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(int(page.name[:4]) for page in (ROOT / "docs" / "decisions").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_menu_lists_every_page() -> None:
    def leaves(entry: object) -> list[str]:
        match entry:
            case str():
                return [entry]
            case dict():
                return [leaf for value in entry.values() for leaf in leaves(value)]
            case list():
                return [leaf for value in entry for leaf in leaves(value)]
        raise AssertionError(f"a menu entry of unknown shape: {entry!r}")

    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(leaves(menu)) == sorted(pages)
