"""Runs the code of README and documentation, in the order of the page, and compares the results with the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

from bayplan.objects.kinds import convert, kinds_by_name
from docs.fences import ROOT, Block, agrees, blocks, commands, pages
from support.harness.deadlines import DEADLINE_S

PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages()]
_STOOD_STILL = re.compile(r"^plugin \w+ took \d+ ms at \w+; .*\n", re.MULTILINE)
"""Output of a machine that stalled during a decision, which no page shows."""
KNOWN_LANGUAGES = {"python", "console", "bash", "yaml", "json", "text", "toml"}


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(ROOT)
    for block in blocks(page):
        if not block.runs:
            continue
        folder = tmp_path if block.directives.get("in") == "scratch" else ROOT
        if "save" in block.directives:
            saved = tmp_path / block.directives["save"]
            saved.parent.mkdir(parents=True, exist_ok=True)
            saved.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(_compiled(block), module.__dict__)
        elif block.language == "console":
            assert list(commands(block.text)), f"{block.place}: no prompt; use ```text for output alone"
            assert _first_surprise(block, folder) == ""
        elif block.language == "bash":
            code, said = _shell(block.text, folder)
            assert code == _exit_code(block), f"{block.place}: ended with {code}\n{said}"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_names_its_language(page: Path) -> None:
    for block in blocks(page):
        assert block.language in KNOWN_LANGUAGES, f"{block.place}: ```{block.language} is no language known here"


@pytest.mark.parametrize("page", PAGES)
def test_manifests_on_a_page_can_be_read(page: Path) -> None:
    for block in blocks(page):
        for document in yaml.safe_load_all(block.text) if block.language == "yaml" else ():
            assert isinstance(document, dict), block.place
            kind = kinds_by_name().get(document.get("kind", ""))
            if kind is not None:
                assert convert(document, kind.struct).metadata.name, f"{block.place}: a {kind.name} without a name"


@pytest.mark.parametrize("page", PAGES)
def test_a_block_that_is_a_file_is_that_file(page: Path) -> None:
    for block in blocks(page):
        if "file" in block.directives:
            stored = ROOT / block.directives["file"]
            assert block.text == stored.read_text(encoding="utf-8"), f"{block.place} and {stored} have drifted apart"


def _compiled(block: Block) -> types.CodeType:
    # Empty lines in front give the traceback the line number of the page.
    source = "\n" * (block.line - 1) + block.text
    return compile(source, str(block.page), "exec")


def _first_surprise(block: Block, folder: Path) -> str:
    """The command of a console block that has another exit code or output than the page shows; empty if all agree."""
    prompts = list(commands(block.text))
    for number, command in enumerate(prompts, 1):
        expected = _exit_code(block) if number == len(prompts) else 0
        code, real = _shell(command.script, folder)
        if code != expected:
            return f"{block.place}: $ {command.script}\nended with {code}\n{real}"
        if command.output is not None and not agrees(command.output, real):
            return f"{block.place}: $ {command.script}\n--- shown\n{command.output}\n--- real\n{real}"
    return ""


def _exit_code(block: Block) -> int:
    return int(block.directives.get("exits", "0"))


def _shell(script: str, folder: Path) -> tuple[int, str]:
    """The exit code and the output of a script."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, _STOOD_STILL.sub("", done.stdout)
