"""What the steps share: the tables, the worktree that is renamed (the current directory) and the intermediate files."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TABLES = Path(__file__).resolve().parents[1]
ROOT = Path.cwd()
BUILD = ROOT / "build" / "renames"
MAPS = BUILD / "maps.pickle"
"""The symbols and members that the symbols step renamed, for the steps after it."""


def rows(pattern: str) -> Iterator[list[str]]:
    for table in sorted(TABLES.glob(pattern)):
        for line in table.read_text().splitlines():
            if line.strip():
                yield line.split("\t")


def modules() -> dict[str, str]:
    return {old: new for old, new, *_ in rows("*.modules.tsv")}


def tracked(*patterns: str) -> list[str]:
    """Files of the worktree without these tables and steps, which must not change themselves."""
    command = ["git", "ls-files", *patterns]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [name for name in out.splitlines() if not name.startswith("tools/renames/")]


def ruff(*arguments: str) -> str:
    return subprocess.run([sys.executable, "-m", "ruff", *arguments], capture_output=True, text=True).stdout
