"""Parses the code blocks of a documentation page and the directives about running them.

Used by the tests of this folder. A fence may be preceded by directives, each an HTML comment on its own line:

    <!-- not run: reason -->       shown only; the reason is for the next reader
    <!-- exits: 1 -->              the last command of the block ends with this code
    <!-- file: examples/x.py -->   the block is that file's text, word for word
    <!-- save: x.py -->            not run but written into the page's scratch folder, for the commands of a later block
    <!-- in: scratch -->           the commands run in that folder instead of the project's
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_OPENING = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w+-]*)(?P<rest>[^`]*)$")
_DIRECTIVE = re.compile(r"^\s*<!-- (?P<name>not run|exits|file|save|in): (?P<value>.+?) -->\s*$")
_COMMENT = re.compile(r"^\s*<!--.*-->\s*$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    `line` is the number of its first line of code, so that a traceback has the line of the page.
    """

    page: Path
    line: int
    language: str
    text: str
    directives: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        return "not run" not in self.directives

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a console block and the output that the page shows below it, if any."""

    script: str
    output: str | None


def pages() -> list[Path]:
    """Every page with executable code: README and the whole documentation."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    directives: dict[str, str] = {}
    number = 0
    while number < len(lines):
        opening = _OPENING.match(lines[number])
        if opening is None:
            directives = _directives_after(lines[number], directives)
            number += 1
            continue
        end = _closing(lines, number, opening["ticks"])
        code = [line.removeprefix(opening["indent"]) for line in lines[number + 1 : end]]
        yield Block(page, number + 2, opening["language"], "\n".join(code) + "\n", directives)
        directives = {}
        number = end + 1


def commands(text: str) -> Iterator[Command]:
    """The commands of a console block; `> ` continues the command of the line above."""
    script: list[str] = []
    output: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            if script:
                yield _command(script, output)
            script, output = [line[2:]], []
        elif line.startswith("> ") and script and not output:
            script.append(line[2:])
        else:
            output.append(line)
    if script:
        yield _command(script, output)


def agrees(shown: str, real: str) -> bool:
    """Whether the real output equals the shown one; `...` stands for any text, also over several lines."""
    parts = [re.escape(part) for part in _stripped(shown).split("...")]
    return re.fullmatch(r".*".join(parts), _stripped(real), re.DOTALL) is not None


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _command(script: list[str], output: list[str]) -> Command:
    shown = "\n".join(output).strip("\n")
    return Command("\n".join(script), shown or None)


def _directives_after(line: str, before: dict[str, str]) -> dict[str, str]:
    found = _DIRECTIVE.match(line)
    if found:
        return {**before, found["name"]: found["value"]}
    return before if not line.strip() or _COMMENT.match(line) else {}


def _closing(lines: list[str], opening: int, ticks: str) -> int:
    for number in range(opening + 1, len(lines)):
        if lines[number].strip() == ticks:
            return number
    raise AssertionError(f"the fence at line {opening + 1} is never closed")
