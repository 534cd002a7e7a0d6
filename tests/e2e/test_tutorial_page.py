"""Runs docs/tutorial.md, command by command: from an empty machine to a plugin that decides."""

from __future__ import annotations

from pathlib import Path

from docs.fences import ROOT
from support.e2e.doc_commands import page_commands, run_typed_commands, save_files

PAGE = ROOT / "docs" / "tutorial.md"
TEN_MINUTES_S = 600
SHOWN = "bayplan get pods -o wide"


def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    save_files(PAGE, tmp_path)
    scripts = [each.script for each in page_commands(PAGE, after=1)]  # the first block is the installation
    assert scripts.count(SHOWN) == 3
    said = run_typed_commands(scripts, tmp_path, within_s=TEN_MINUTES_S)
    first, second, third = (text for text, script in zip(said, scripts, strict=True) if script == SHOWN)
    assert nodes(first)["giant"] == "<none>"
    assert {nodes(second)[name].split("-")[0] for name in ("web-0", "web-1")} == {"fast"}
    assert {nodes(third)[name].split("-")[0] for name in ("web-0", "web-1")} == {"slow"}
    answers = dict(zip(scripts, said, strict=True))
    assert "Insufficient cpu" in answers["bayplan why giant"]
    assert "FastFirst" in answers["bayplan why web-0"]


def nodes(listing: str) -> dict[str, str]:
    """The node of each pod in a listing."""
    head, *rows = (line.split() for line in listing.splitlines())
    return {row[0]: row[head.index("NODE")] for row in rows}
