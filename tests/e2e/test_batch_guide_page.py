"""Runs docs/batch-guide.md, command by command: from an empty folder to gangs on the nodes that the plugin prefers."""

from __future__ import annotations

from pathlib import Path

from cluster.build import program
from docs.fences import ROOT
from support.e2e.doc_commands import page_commands, run_typed_commands, save_files

PAGE = ROOT / "docs" / "batch-guide.md"
SHOWN = "kubectl get pods -o custom-columns=NAME:.metadata.name,NODE:.spec.nodeName"


def test_the_guide_works_as_it_is_written(tmp_path: Path) -> None:
    save_files(PAGE, tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "kubectl").symlink_to(program("kubectl"))
    scripts = [each.script for each in page_commands(PAGE)]
    assert scripts.count(SHOWN) == 2
    said = run_typed_commands(scripts, tmp_path, tools=tools)
    first, second = (text for text, script in zip(said, scripts, strict=True) if script == SHOWN)
    assert [line.split()[1].startswith("night-") for line in first.splitlines()[1:]] == [True, True], first
    assert [line.split()[1].startswith("night-") for line in second.splitlines()[1:]] == [False, False], second
