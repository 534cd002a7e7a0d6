"""Positions and errors of an expression.

Errors are collected while parsing and checking, and printed in the order of their positions, each with its line and a
pointer.
"""

from __future__ import annotations

from bayplan.cel.errors import CompileError

MAX_ERRORS = 100
# Full-width, so that the pointer is below its character in text that is not Latin.
FULLWIDTH_DOT, FULLWIDTH_CARET = "\uff0e", "\uff3e"


class ExpressionSource:
    """The text, the position of every node, and the errors so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.positions: dict[int, int] = {}
        self._errors: list[tuple[int, int, str]] = []
        self._count = 0

    def set_offset(self, node_id: int) -> int:
        return self.positions.get(node_id, -1)

    def error_at(self, offset: int, message: str) -> None:
        self._count += 1
        if self._count <= MAX_ERRORS:
            line, column = self._locate(offset)
            self._errors.append((line, column, message))

    def error(self, node_id: int, message: str) -> None:
        self.error_at(self.set_offset(node_id), message)

    def check(self) -> None:
        """Raise the collected errors."""
        if self._errors:
            raise CompileError("compilation failed: " + self._display())

    def _locate(self, offset: int) -> tuple[int, int]:
        if offset < 0:
            return -1, -1
        before = self.text[:offset]
        return before.count("\n") + 1, offset - (before.rfind("\n") + 1)

    def _display(self) -> str:
        ordered = sorted(self._errors, key=lambda e: (e[0], e[1]))
        shown = [self._show(line, column, message) for line, column, message in ordered]
        if self._count > MAX_ERRORS:
            shown.append(f"{self._count - MAX_ERRORS} more errors were truncated")
        return "\n".join(shown)

    def _show(self, line: int, column: int, message: str) -> str:
        head = f"ERROR: <input>:{line}:{column + 1}: {message}"
        if line < 1:
            return head
        snippet = self.text.split("\n")[line - 1].replace("\t", " ")
        dots = "".join("." if c.isascii() else FULLWIDTH_DOT for c in snippet[:column])
        tip = "^" if snippet[column : column + 1].isascii() else FULLWIDTH_CARET
        return f"{head}\n | {snippet}\n | {dots}{tip}"
