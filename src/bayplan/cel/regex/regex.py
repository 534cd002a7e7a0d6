"""Matches RE2 patterns.

Used by `matches`, `find` and `findAll`. The time is linear in the text (times the pattern) for every pattern. Simple
patterns use Python's `re`, where their worst case is known and small; the rest uses an NFA machine that follows all
possibilities at once.
"""

from __future__ import annotations

import re
from functools import lru_cache

from bayplan.cel.regex.char_sets import CharSet
from bayplan.cel.regex.syntax import Alternation, Assertion, Node, Repeat, Sequence, parse

# If `re` might try more ways than this through a text, the machine is used.
_STEP_BUDGET = 20_000_000

_SPLIT, _CHAR, _ASSERT, _MATCH = range(4)


class Regex:
    """A compiled pattern. Spans are (begin, end) of the leftmost match; earlier options are preferred."""

    def __init__(self, pattern: str) -> None:
        tree = parse(pattern)
        self._tree = tree
        self._fast, self._fast_limit = _fast_path(tree)
        self._machine: NfaMachine | None = None

    def search(self, text: str, start: int = 0) -> tuple[int, int] | None:
        if self._fast is not None and len(text) <= self._fast_limit:
            found = self._fast.search(text, start)
            return found.span() if found else None
        if self._machine is None:
            self._machine = NfaMachine(self._tree)
        return self._machine.search(text, start)

    def matches(self, text: str) -> bool:
        return self.search(text) is not None

    def find(self, text: str) -> str:
        span = self.search(text)
        return text[span[0] : span[1]] if span else ""

    def find_all(self, text: str, limit: int) -> list[str]:
        """Non-overlapping matches. An empty one directly after another match does not count."""
        found: list[str] = []
        at, previous_end = 0, -1
        while at <= len(text) and (limit < 0 or len(found) < limit):
            span = self.search(text, at)
            if span is None:
                break
            begin, end = span
            if end != at or begin != previous_end:
                found.append(text[begin:end])
            at = end if end != at else at + 1
            previous_end = end
        return found


@lru_cache(maxsize=256)
def compile_regex(pattern: str) -> Regex:
    return Regex(pattern)


# Python's engine, where it is safe.


def _fast_path(tree: Node) -> tuple[re.Pattern[str] | None, int]:
    writer = _PatternTranslator()
    if not writer.visit(tree, in_loop=False) or writer.optionals > 8:
        return None, 0
    limit = int(_STEP_BUDGET ** (1 / (writer.loops + 1)))
    return re.compile("".join(writer.out)), limit


class _PatternTranslator:
    """Translates a pattern to Python's syntax; gives up where backtracking could explode."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.loops = 0
        self.optionals = 0

    def visit(self, node: Node, *, in_loop: bool) -> bool:
        match node:
            case CharSet():
                return self._char_set(node)
            case Assertion():
                self.out.append(_ASSERTIONS[node.kind])
                return not in_loop
            case Sequence():
                return all(self.visit(part, in_loop=in_loop) for part in node.parts) and not (
                    in_loop and not node.parts
                )
            case Alternation():
                return not in_loop and self._alternation(node)
            case Repeat():
                return not in_loop and self._repeat(node)

    def _char_set(self, node: CharSet) -> bool:
        if node.predicates:
            return False
        if not node.ranges:
            self.out.append(r"[\s\S]" if node.negated else r"[^\s\S]")
            return True
        body = "".join(_range(lo, hi) for lo, hi in node.ranges)
        group = f"[{'^' if node.negated else ''}{body}]"
        self.out.append(f"(?i:{group})" if node.fold else group)
        # Python's case folding differs from Go's beyond ASCII.
        return not node.fold or all(hi < 128 for _, hi in node.ranges)

    def _alternation(self, node: Alternation) -> bool:
        self.out.append("(?:")
        for i, option in enumerate(node.options):
            if i:
                self.out.append("|")
            if not self.visit(option, in_loop=False):
                return False
        self.out.append(")")
        return True

    def _repeat(self, node: Repeat) -> bool:
        optional = node.high == 1
        self.optionals += optional
        self.loops += not optional and node.low != node.high
        self.out.append("(?:")
        if not self.visit(node.body, in_loop=not optional):
            return False
        high = "" if node.high is None else node.high
        self.out.append(f"){{{node.low},{high}}}{'' if node.greedy else '?'}")
        return True


def _range(low: int, high: int) -> str:
    return _escape(low) if low == high else f"{_escape(low)}-{_escape(high)}"


def _escape(code: int) -> str:
    return f"\\U{code:08x}"


_ASSERTIONS = {
    "begin_text": r"\A",
    "end_text": r"\Z",
    "begin_line": r"(?m:^)",
    "end_line": r"(?m:$)",
    "word": r"(?a:\b)",
    "not_word": r"(?a:(?!\b))",  # before Python 3.14, \B does not match an empty text
}


# NFA machine.


class NfaMachine:
    """Follows all paths through the pattern at once, in order of preference."""

    def __init__(self, tree: Node) -> None:
        self._program: list[tuple[int, object, int, int]] = []
        self._emit(tree)
        self._program.append((_MATCH, None, 0, 0))

    def _emit(self, node: Node) -> None:
        program = self._program
        match node:
            case CharSet():
                program.append((_CHAR, node, len(program) + 1, 0))
            case Assertion():
                program.append((_ASSERT, node.kind, len(program) + 1, 0))
            case Sequence():
                for part in node.parts:
                    self._emit(part)
            case Alternation():
                self._emit_alternation(node)
            case Repeat():
                self._emit_repeat(node)

    def _emit_alternation(self, node: Alternation) -> None:
        exits: list[int] = []
        for option in node.options[:-1]:
            split = self._reserve()
            self._emit(option)
            exits.append(self._reserve())
            self._program[split] = (_SPLIT, None, split + 1, len(self._program))
        self._emit(node.options[-1])
        for at in exits:
            self._program[at] = (_SPLIT, None, len(self._program), -1)

    def _emit_repeat(self, node: Repeat) -> None:
        for _ in range(node.low):
            self._emit(node.body)
        if node.high is None:
            split = self._reserve()
            self._emit(node.body)
            self._program.append((_SPLIT, None, split, -1))
            self._program[split] = self._branch(split, node.greedy)
            return
        splits: list[int] = []
        for _ in range(node.high - node.low):
            splits.append(self._reserve())
            self._emit(node.body)
        for split in splits:
            self._program[split] = self._branch(split, node.greedy)

    def _reserve(self) -> int:
        self._program.append((_SPLIT, None, 0, -1))
        return len(self._program) - 1

    def _branch(self, split: int, greedy: bool) -> tuple[int, object, int, int]:
        inside, past = split + 1, len(self._program)
        return (_SPLIT, None, inside, past) if greedy else (_SPLIT, None, past, inside)

    def search(self, text: str, start: int) -> tuple[int, int] | None:
        best: tuple[int, int] | None = None
        threads: list[tuple[int, int]] = []
        for at in range(start, len(text) + 1):
            c = text[at] if at < len(text) else ""
            alive: list[tuple[int, int]] = []
            seen: set[int] = set()
            for pc, begin in threads:
                self._follow(alive, seen, pc, begin, text, at)
            if best is None:
                self._follow(alive, seen, 0, at, text, at)
            threads = []
            for pc, begin in alive:
                op, arg, following, _ = self._program[pc]
                if op == _MATCH:
                    best = (begin, at)
                    break
                assert isinstance(arg, CharSet)
                if c and arg.matches(c):
                    threads.append((following, begin))
            if not threads and best is not None:
                break
        return best

    def _follow(self, alive: list[tuple[int, int]], seen: set[int], pc: int, begin: int, text: str, at: int) -> None:
        """Follow all transitions that consume no character, the preferred branch first."""
        stack = [pc]
        while stack:
            pc = stack.pop()
            if pc in seen:
                continue
            seen.add(pc)
            op, arg, x, y = self._program[pc]
            if op == _SPLIT:
                if y >= 0:
                    stack.append(y)
                stack.append(x)
            elif op == _ASSERT:
                if _assertion_holds(str(arg), text, at):
                    stack.append(x)
            else:
                alive.append((pc, begin))


def _assertion_holds(kind: str, text: str, at: int) -> bool:
    match kind:
        case "begin_text":
            return at == 0
        case "end_text":
            return at == len(text)
        case "begin_line":
            return at == 0 or text[at - 1] == "\n"
        case "end_line":
            return at == len(text) or text[at] == "\n"
        case _:
            boundary = _is_word(text[at - 1 : at]) != _is_word(text[at : at + 1])
            return boundary == (kind == "word")


def _is_word(c: str) -> bool:
    return c.isascii() and (c.isalnum() or c == "_")
