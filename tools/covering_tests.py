"""Chooses the tests for a mutation: those that execute its lines, the nearest and cheapest first.

Called by `tools/mutants.py`. The coverage with a context for each test is collected once for a state of `src` and
`tests`, together with a copy of that state, so that lines can be followed when the tree changed a little. Lines without
a context run at import or in a process that a test starts; they get the tests that name their module, then those of
their package. That is also the choice where no coverage is collected.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from coverage import CoverageData
from mutation_sites import Mutation, package_of

FOLDERS = ("tests/unit", "tests/property", "tests/conformance")
SETTINGS = "[run]\nsource = bayplan\nbranch = false\ndata_file = {folder}/coverage\n"
UNKNOWN_SECONDS = 5.0
"""Assumed duration of a test file without a recorded one."""


def environment(tree: Path) -> dict[str, str]:
    """A process with this environment imports `bayplan` from the copy, also if the package is installed as editable."""
    return {**os.environ, "PYTHONPATH": str(tree / "src")}


def digest(tree: Path) -> str:
    """A hash that changes with every Python file of `src` and `tests`."""
    sum_ = hashlib.sha256()
    for file in sorted(each for part in ("src", "tests") for each in (tree / part).rglob("*.py")):
        sum_.update(f"{file.relative_to(tree)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return sum_.hexdigest()


class CoveringTests:
    """The tests of a tree, with their collected coverage, if there is any."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self._tree = tree
        self._folder = folder
        self._old = folder / "tree"

    def is_current(self) -> bool:
        key = self._folder / "key"
        return key.exists() and key.read_text(encoding="utf-8") == digest(self._tree)

    def is_collected(self) -> bool:
        return (self._folder / "coverage").exists()

    def collect(self) -> None:
        """Run every test with coverage. Takes two to three times as long as `make test`."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._tree, self._old, symlinks=True)
        settings, log = self._folder / "coveragerc", self._folder / "log"
        settings.write_text(SETTINGS.format(folder=self._folder), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", *FOLDERS, "-n", "auto", "--dist", "worksteal", "--cov"]
        command += [f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
        command += ["--durations=0", "--durations-min=0", "-p", "no:cacheprovider"]
        with log.open("wb") as out:
            subprocess.run(command, cwd=self._old, env=environment(self._old), stdout=out, check=False)
        (self._folder / "key").write_text(digest(self._old), encoding="utf-8")

    def choose(self, mutation: Mutation) -> list[tuple[str, float]]:
        """Node ids or files of tests with their seconds, in the order in which they should run."""
        known = {test.partition("[")[0].partition("::")[0] for test in self._seconds}
        chosen: dict[str, float] = {}
        for test in self._covering(mutation):
            file = test.partition("::")[0]
            name = file if self._has_changed(file) else test
            if (self._tree / file).exists() and test not in self._failed:
                chosen[name] = self._seconds.get(test, 0.0) + (chosen.get(name, 0.0) if name == file else 0.0)
        if not chosen or not mutation.in_function:
            files = self._by_name(mutation.path)
        else:
            files = [file for file in self._of_package(mutation.path) if self._has_changed(file)]
        for file in files:
            chosen.setdefault(file, self._seconds_of_file(file) if file in known else UNKNOWN_SECONDS)
        order = {file: place for place, file in enumerate(files)}
        near = self._tree / "tests/unit" / package_of(mutation.path)

        def distance(test: str) -> tuple[int, int, float]:
            file = test.partition("::")[0]
            return (0 if near in (self._tree / file).parents else 1, order.get(file, -1), chosen[test])

        return [(test, chosen[test]) for test in sorted(chosen, key=distance)]

    def covers(self, mutation: Mutation) -> bool:
        return bool(self._covering(mutation))

    def _covering(self, mutation: Mutation) -> set[str]:
        """Tests whose contexts hold a line of the mutated statement."""
        old = self._old / mutation.path
        if self._data is None or not old.exists():
            return set()
        before, after = (each.read_text(encoding="utf-8").split("\n") for each in (old, self._tree / mutation.path))
        blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
        lines = {block.b + each + 1: block.a + each + 1 for block in blocks for each in range(block.size)}
        contexts = self._data.contexts_by_lineno(str(old))
        wanted = [lines[line] for line in range(mutation.first, mutation.last + 1) if line in lines]
        found = {context.rpartition("|")[0] for line in wanted for context in contexts.get(line, ()) if context}
        return {test for test in found if "\n" not in test}

    @cached_property
    def _data(self) -> CoverageData | None:
        if not (self._folder / "coverage").exists():
            return None
        data = CoverageData(str(self._folder / "coverage"))
        data.read()
        return data

    @cached_property
    def _log(self) -> str:
        log = self._folder / "log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    @cached_property
    def _seconds(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for each in re.finditer(r"^([\d.]+)s (?:call|setup|teardown) +(tests/.*)$", self._log, re.MULTILINE):
            seconds[each[2]] = seconds.get(each[2], 0.0) + float(each[1])
        return seconds

    @cached_property
    def _failed(self) -> set[str]:
        """Tests that fail without a mutation cannot be used."""
        found = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", self._log, re.MULTILINE)
        return set(found)

    def _seconds_of_file(self, file: str) -> float:
        return sum(seconds for test, seconds in self._seconds.items() if test.partition("::")[0] == file)

    def _has_changed(self, file: str) -> bool:
        old, new = self._old / file, self._tree / file
        return not old.exists() or not new.exists() or old.read_bytes() != new.read_bytes()

    def _of_package(self, path: str) -> list[str]:
        folder = self._tree / "tests/unit" / package_of(path)
        return sorted(str(each.relative_to(self._tree)) for each in folder.rglob("test_*.py"))

    def _by_name(self, path: str) -> list[str]:
        """Test files that share a word with the path or name the module, then those of the package or that name it."""
        parts = Path(path).with_suffix("").parts[1:]
        module, parent = ".".join(parts), ".".join(parts[:-1])
        names = re.compile(rf"\b{module}\b|\bfrom {parent} import [^\n]*\b{parts[-1]}\b".replace(".", r"\."))
        texts = {
            file: (self._tree / file).read_text(encoding="utf-8")
            for file in sorted(
                str(each.relative_to(self._tree))
                for folder in FOLDERS
                for each in (self._tree / folder).rglob("test_*.py")
            )
        }
        own = sorted(self._of_package(path), key=lambda file: -_common_words(file, path))
        named = [file for file, text in texts.items() if names.search(text)]
        named += [file for file, text in texts.items() if f"{parent} import" in text]
        in_both = [file for file in own if file in named]
        return list(dict.fromkeys([*(file for file in own if _common_words(file, path)), *in_both, *own, *named]))


def _common_words(file: str, path: str) -> int:
    """Number of words of a test file's name that are in the module's path below its package."""
    words = [re.sub(r"s$", "", word) for part in Path(path).with_suffix("").parts[3:] for word in part.split("_")]
    return sum(re.sub(r"s$", "", word) in words for word in Path(file).stem.split("_")[1:])
