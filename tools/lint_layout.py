"""Checks the layout and the wording of `src/bayplan`: folder sizes, duplicate class names, module names, banned words.

Run by `make lint`. Arguments limit the check of words to some paths: `tools/lint_layout.py src/bayplan/queue`.
`--count` prints the number of findings of each rule instead of the findings.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/bayplan"
TEXT_FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")

MAX_MODULES = 20
ONE_MODULE_PER_PLUGIN = {"plugins", "batch/plugins", "binder/plugins", "contrib"}

ING_MODULES = {
    "binding",
    "defaulting",
    "filtering",
    "logging",
    "profiling",
    "sampling",
    "scheduling",
    "scoring",
    "testing",
}
"""Terms of Kubernetes or of the Python standard library."""

BANNED = re.compile(
    r"\b(nobody|somebody|anybody|whoever|whomever|others|one who|told|untold|mend|mends|mended|minded)\b", re.IGNORECASE
)

LINT_SINCE = "29785b8d"
MAX_SUBJECT = 72

ALLOWED = ROOT / "tools/lint_layout_allowed.txt"
"""One entry a line: `class NAME` for a class name that two modules may define, `text TEXT` for a text of upstream."""


class Finding(NamedTuple):
    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} [{self.rule}]"


class Allowed(NamedTuple):
    classes: frozenset[str]
    texts: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Allowed:
        classes, texts = set(), []
        for line in path.read_text(encoding="utf-8").splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "class":
                classes.add(rest)
            elif kind == "text":
                texts.append(rest)
        return cls(frozenset(classes), tuple(texts))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def check_folders(package: Path) -> Iterator[Finding]:
    """At most `MAX_MODULES` modules in a folder, `__init__` not counted."""
    count = Counter(path.parent for path in package.rglob("*.py") if path.name != "__init__.py")
    for folder, modules in sorted(count.items()):
        exempt = str(folder.relative_to(package)) in ONE_MODULE_PER_PLUGIN
        if modules > MAX_MODULES and not exempt:
            what = f"{modules} modules, at most {MAX_MODULES}; add a sub-package"
            yield Finding("folder-size", relative(folder), what)


def check_module_names(package: Path) -> Iterator[Finding]:
    """No module whose name is a single word in -ing."""
    for path in sorted(package.rglob("*.py")):
        name = path.parent.name if path.name == "__init__.py" else path.stem
        if re.fullmatch(r"[a-z]+ing", name) and name not in ING_MODULES and name != "string":
            yield Finding("ing-module", relative(path), f"the name {name!r} is a single word in -ing; use a noun")


def check_class_names(package: Path, allowed: Allowed) -> Iterator[Finding]:
    """No public class name that two modules define."""
    places = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{relative(path)}:{node.lineno}")
    for name, found in sorted(places.items()):
        if len(found) > 1 and name not in allowed.classes:
            yield Finding("class-name", found[1], f"class {name} is defined in {', '.join(found)}")


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each comment, docstring and string literal with a space in it."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def banned_words(text: str, allowed: Allowed) -> list[str]:
    for upstream in allowed.texts:
        text = text.replace(upstream, "")
    return BANNED.findall(text)


def check_words(paths: list[Path], allowed: Allowed) -> Iterator[Finding]:
    """No banned word in a docstring, a comment, a message or a page."""
    for path in paths:
        text = path.read_text(encoding="utf-8")
        parts = texts_of(text) if path.suffix == ".py" else enumerate(text.splitlines(), 1)
        for line, part in sorted(parts):
            for word in banned_words(part, allowed):
                yield Finding("word", f"{relative(path)}:{line}", f"banned word {word!r}")


def text_files(paths: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        found += sorted([*path.rglob("*.py"), *path.rglob("*.md")]) if path.is_dir() else [path]
    return found


def check_commits() -> Iterator[Finding]:
    """Subjects of at most `MAX_SUBJECT` characters in the form `area: what changes`."""
    command = ["git", "log", "--no-merges", "--format=%h %s", f"{LINT_SINCE}..HEAD"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for line in log.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > MAX_SUBJECT:
            yield Finding("commit", commit, f"subject of {len(subject)} characters, at most {MAX_SUBJECT}")
        if not re.match(r"[a-z0-9_./ -]+: \S", subject):
            yield Finding("commit", commit, f"subject without `area: `: {subject}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", type=Path, help="check the words of these files and folders only")
    parser.add_argument("--count", action="store_true", help="print the number of findings of each rule")
    asked = parser.parse_args()
    allowed = Allowed.read(ALLOWED)
    found: list[Finding] = []
    if asked.paths:
        found += check_words(text_files([path.resolve() for path in asked.paths]), allowed)
    else:
        found += check_folders(PACKAGE)
        found += check_module_names(PACKAGE)
        found += check_class_names(PACKAGE, allowed)
        found += check_words(text_files([PACKAGE, *(ROOT / name for name in TEXT_FILES)]), allowed)
        found += check_commits()
    if asked.count:
        count = Counter(finding.rule for finding in found)
        sys.stdout.writelines(f"{rule} {count[rule]}\n" for rule in sorted(count))
    else:
        sys.stdout.writelines(f"{finding}\n" for finding in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
