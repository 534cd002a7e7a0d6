"""Runs docs/binder-examples.md, command by command: each prints the output that the page shows below it."""

from __future__ import annotations

from pathlib import Path

from docs.fences import ROOT, agrees
from support.e2e.doc_commands import page_commands, run_typed_commands, save_files

PAGE = ROOT / "docs" / "binder-examples.md"


def test_the_page_works_as_it_is_written(tmp_path: Path) -> None:
    save_files(PAGE, tmp_path)
    for path in (ROOT / "examples" / "binder").glob("*.py"):
        copy = tmp_path / "examples" / "binder" / path.name
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o644)
    given = page_commands(PAGE)
    shown = {each.script: each.output for each in given if each.output is not None}
    assert sum("BindingError" in output for output in shown.values()) == 1
    said = run_typed_commands([each.script for each in given], tmp_path)
    for command, real in zip(given, said, strict=True):
        assert command.output is None or agrees(command.output, real), f"$ {command.script}\n{real}"
