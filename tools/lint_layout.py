"""Checks layout and wording: folders, modules, import cycles, class names, banned words.

Run by `make lint`. The layout of `src/bayplan` is checked, and the words of that, of the documentation, of tests,
benchmarks, tools, examples, scripts and deploy. Arguments limit the check of words to some paths: `tools/lint_layout.py
src/bayplan/queue`. `--count` prints the number of findings of each rule instead of the findings.
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
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/bayplan"
TEXT_FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")
CODE_FOLDERS = ("tests", "benchmarks", "tools", "examples", "scripts", "deploy")
"""Folders outside the package whose words and module names are checked."""
SUFFIXES = (".py", ".md", ".yaml", ".tpl")

MAX_MODULES = 20
MIN_LINES = 40
"""A smaller module with one importer is merged into that."""
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
    r"\b(nobody|somebody|anybody|whoever|whomever|others|one\swho|told|untold|mend|mends|mended|minded)\b",
    re.IGNORECASE,
)

LINT_SINCE = "29785b8d"
MAX_SUBJECT = 72

ALLOWED = ROOT / "tools/lint_layout_allowed.txt"
"""One entry a line: `class NAME` for a class name that two modules may define, because upstream has the type in two
APIs or Bayplan has a model of it; `module NAME` for a name in -ing of upstream; `text TEXT` for a text of upstream;
`small MODULE REASON` for a small module with one importer that is not merged into it."""


class Finding(NamedTuple):
    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} [{self.rule}]"


class Allowed(NamedTuple):
    classes: frozenset[str]
    modules: frozenset[str]
    texts: tuple[str, ...]
    small: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> Allowed:
        entries: dict[str, list[str]] = {"class": [], "module": [], "text": [], "small": []}
        for line in path.read_text(encoding="utf-8").splitlines():
            kind, _, rest = line.partition(" ")
            entries[kind].append(rest)
        small = (entry.partition(" ") for entry in entries["small"])
        return cls(
            frozenset(entries["class"]),
            frozenset(entries["module"]),
            tuple(entries["text"]),
            frozenset(module for module, _, reason in small if reason),
        )


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


def check_module_names(package: Path, allowed: Allowed) -> Iterator[Finding]:
    """No module whose name is a single word in -ing."""
    for path in sorted(package.rglob("*.py")):
        name = path.parent.name if path.name == "__init__.py" else path.stem
        if re.fullmatch(r"[a-z]+ing", name) and name not in ING_MODULES | allowed.modules | {"string"}:
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


def read_imports(package: Path) -> dict[Path, list[Path]]:
    """The modules of the package that each of its modules imports when it is loaded."""
    modules = {module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    imports: dict[Path, list[Path]] = {}
    for path in modules.values():
        names = loaded_names(ast.parse(path.read_text(encoding="utf-8")))
        found = {modules.get(name) or modules.get(name.rpartition(".")[0], path) for name in names}
        imports[path] = sorted(found - {path})
    return imports


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def loaded_names(tree: ast.AST) -> Iterator[str]:
    """Names that a module imports when it is loaded: not those in functions or `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
                yield from loaded_names(ast.Module(node.orelse, []))
            case ast.stmt() | ast.ExceptHandler() if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from loaded_names(node)


def check_cycles(imports: dict[Path, list[Path]]) -> Iterator[Finding]:
    """No import cycle of modules of one folder. A folder with several cycles has one finding."""
    for folder in sorted({path.parent for path in imports}):
        modules = [path for path in imports if path.parent == folder]
        try:
            TopologicalSorter({path: [each for each in imports[path] if each in modules] for path in modules}).prepare()
        except CycleError as fault:
            cycle = fault.args[1]
            yield Finding(
                "import-cycle", relative(cycle[0]), f"import cycle {' <- '.join(each.stem for each in cycle)}"
            )


def check_small_modules(package: Path, imports: dict[Path, list[Path]], allowed: Allowed) -> Iterator[Finding]:
    """No module of less than `MIN_LINES` lines with one importer."""
    importers = defaultdict(list)
    for path, imported in imports.items():
        for each in imported:
            importers[each].append(path)
    for path in imports:
        if path.name == "__init__.py" or str(path.parent.relative_to(package)) in ONE_MODULE_PER_PLUGIN:
            continue
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines < MIN_LINES and len(importers[path]) == 1 and module_name(path, package) not in allowed.small:
            what = f"{lines} lines and one importer; merge it into {relative(importers[path][0])}"
            yield Finding("small-module", relative(path), what)


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
        found += sorted(each for suffix in SUFFIXES for each in path.rglob(f"*{suffix}")) if path.is_dir() else [path]
    return found


def check_commits() -> Iterator[Finding]:
    """Subjects of at most `MAX_SUBJECT` characters in the form `area: what changes`."""
    command = ["git", "log", "--no-merges", "--format=%h %s", f"{LINT_SINCE}..HEAD"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for line in log.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > MAX_SUBJECT:
            yield Finding("commit", commit, f"subject of {len(subject)} characters, at most {MAX_SUBJECT}")
        if not re.match(r"[a-z0-9_./, -]+: \S", subject):
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
        for folder in (PACKAGE, *(ROOT / name for name in CODE_FOLDERS)):
            found += check_module_names(folder, allowed)
        found += check_class_names(PACKAGE, allowed)
        imports = read_imports(PACKAGE)
        found += check_cycles(imports)
        found += check_small_modules(PACKAGE, imports, allowed)
        found += check_words(text_files([PACKAGE, *(ROOT / name for name in (*TEXT_FILES, *CODE_FOLDERS))]), allowed)
        found += check_commits()
    if asked.count:
        count = Counter(finding.rule for finding in found)
        sys.stdout.writelines(f"{rule} {count[rule]}\n" for rule in sorted(count))
    else:
        sys.stdout.writelines(f"{finding}\n" for finding in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
