"""The reference pages are what the code says now."""

from __future__ import annotations

import subprocess
import sys

import click

from bayplan.cli import cli
from docs.fences import ROOT


def test_the_reference_is_what_the_code_says() -> None:
    """In a process of its own: commands remember how they were first called, and that is in their help."""
    command = [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), "call `python tools/reference.py`"


def test_every_verb_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert [verb for verb in cli.list_commands(click.Context(cli)) if f"\n## bayplan {verb}\n" not in text] == []
