"""Mutation test run: changes one place of the package at a time and counts the changes that a test notices.

    python tools/mutants.py --seed 1 --count 60            a sample over the whole package
    python tools/mutants.py --package batch                a sample of one folder
    python tools/mutants.py --file src/bayplan/clock.py:40 every mutation of a line

The sample is uniform over the sites and fixed by the seed. Tests run in private copies of the tree in `build/mutants`.
Results are written to `build/mutants/<seed>.json` as they come. Exit code 1 when fewer than `--at-least` percent are
killed; mutations of `tools/equivalent_mutants.toml` do not count.

The first run collects coverage, which takes two to three times as long as `make test`. Then a mutant takes seconds when
a test kills it, and up to `--limit` seconds of tests when none does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from covering_tests import CoveringTests, environment
from mutation_sites import Mutation, find_sites, is_valid, package_of

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "mutants"
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.toml"
OPTIONS = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--no-cov", "--tb=line"]
FIRST_SECONDS = 15.0
"""Seconds of tests in the first process, which kills most mutants; the remaining tests run in a second one."""
NO_TESTS, USAGE_ERROR = 5, 4


def copy_tree(target: Path, *, committed: bool) -> None:
    """A copy of `src` and `tests`; other files that the tests read are linked."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if committed:
        archive = subprocess.run(["git", "archive", "HEAD", "src", "tests"], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", target], input=archive.stdout, check=True)
    else:
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, target / part)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for part in {line.partition("/")[0] for line in listed.splitlines()} - {"src", "tests"}:
        (target / part).symlink_to(ROOT / part)


def check_import(tree: Path) -> None:
    command = [sys.executable, "-c", "import bayplan; print(bayplan.__file__)"]
    found = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True, check=True).stdout
    if not Path(found.strip()).is_relative_to(tree):
        sys.exit(f"tests would import {found.strip()} and not the copy in {tree}")


def check_unchanged(tree: Path, tests: list[tuple[str, float]]) -> None:
    """Check that the tests pass without a mutation, because a failing test would seem to kill every mutant."""
    part, _ = split(tests, FIRST_SECONDS)
    state, by = run_tests(tree, [test for test, _ in part[0]], 600.0)
    if state != "survived":
        sys.exit(f"a test fails without a mutation in {tree}: {by or state}")


def choose_mutations(tree: Path, asked: argparse.Namespace) -> list[Mutation]:
    """The sample, in the order of the draw: a longer one begins with the shorter one."""
    file, _, line = (asked.file or "").partition(":")
    pool: list[list[Mutation]] = []
    for found in sorted((tree / "src/bayplan").rglob("*.py")):
        path = str(found.relative_to(tree))
        if path == file or (not file and asked.package in (None, package_of(path))):
            pool += find_sites(found.read_bytes(), path)
    if line:
        pool = [site for site in pool if site[0].line == int(line)]
    if file and not asked.count:
        return [each for site in pool for each in site if is_valid(each, (tree / each.path).read_bytes())]
    rng, chosen = random.Random(asked.seed), list[Mutation]()
    rng.shuffle(pool)
    for site in pool:
        mutation = rng.choice(site)
        if len(chosen) < (asked.count or 100) and is_valid(mutation, (tree / mutation.path).read_bytes()):
            chosen.append(mutation)
    return chosen


def run_tests(tree: Path, tests: list[str], seconds: float) -> tuple[str, str]:
    """Run tests in a copy: the state of the mutant, and the test that killed it or the last line of the output."""
    arguments = tree / "arguments.txt"
    arguments.write_text("\n".join(tests), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", *OPTIONS, f"@{arguments}"]
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "timeout", ""
    lines = output.splitlines()
    by = next((line for line in lines if line.startswith(("FAILED ", "ERROR "))), lines[-1] if lines else "")
    if process.returncode == USAGE_ERROR and "not found: " in output:
        return "error", by
    return ("survived" if process.returncode in (0, NO_TESTS) else "killed"), by


def run_mutant(tree: Path, mutation: Mutation, tests: CoveringTests, asked: argparse.Namespace) -> dict[str, Any]:
    """Change the file in the copy, run the tests and restore the file."""
    path, begin = tree / mutation.path, time.monotonic()
    source, dates = path.read_bytes(), path.stat()
    chosen = tests.choose(mutation)
    parts, capped = split(chosen, asked.limit)
    state, by = "survived", ""
    path.write_bytes(mutation.apply(source))
    os.utime(path, ns=(time.time_ns(), time.time_ns() - random.randrange(10**9) * 10**9))  # invalidates old bytecode
    try:
        for part in parts:
            if part and state == "survived":
                allowed = asked.patience + 3 * sum(seconds for _, seconds in part)
                state, by = run_tests(tree, [test for test, _ in part], allowed)
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    if state == "survived" and not asked.without_coverage and mutation.in_function and not tests.covers(mutation):
        state = "not-covered"
    before, after = mutation.changed_lines(source)
    return {
        "path": mutation.path,
        "line": mutation.line,
        "operator": mutation.operator,
        "before": before,
        "after": after,
        "diff": mutation.diff(source),
        "state": state,
        "by": by,
        "tests": sum(map(len, parts)),
        "capped": capped,
        "seconds": round(time.monotonic() - begin, 1),
    }


def split(chosen: list[tuple[str, float]], limit: float) -> tuple[list[list[tuple[str, float]]], int]:
    """The tests of the first and of the second process, and the number that is skipped for lack of time."""
    first: list[tuple[str, float]] = []
    second: list[tuple[str, float]] = []
    total = 0.0
    for place, each in enumerate(chosen):
        total += each[1]
        if place and total > limit:
            return [first, second], len(chosen) - place
        (first if total <= FIRST_SECONDS or not place else second).append(each)
    return [first, second], 0


def run_all(
    trees: list[Path], mutations: list[Mutation], tests: CoveringTests, asked: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def run_one(mutation: Mutation) -> dict[str, Any]:
        tree = free.get()
        try:
            return run_mutant(tree, mutation, tests, asked)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        for future in as_completed([pool.submit(run_one, each) for each in mutations]):
            yield future.result()


def equivalents() -> set[tuple[str, str, str]]:
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutant", [])
    return {(each["path"], each["before"], each["after"]) for each in listed}


def percentage(results: list[dict[str, Any]]) -> float:
    counted = [each for each in results if each["state"] != "equivalent"]
    killed = sum(each["state"] in ("killed", "timeout") for each in counted)
    return 100 * killed / len(counted) if counted else 100.0


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Count the changes of the source that a test notices.")
    parser.add_argument("--seed", type=int, help="of the sample; a random one by default, which is printed")
    parser.add_argument("--count", type=int, help="mutants of the sample, 100 by default; with --file all by default")
    parser.add_argument("--package", help="sample this folder of src/bayplan alone")
    parser.add_argument("--file", metavar="PATH[:LINE]", help="mutate this file or line alone")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at the same time")
    parser.add_argument("--at-least", type=float, default=90.0, help="percent that must be killed")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds of tests for one mutant")
    parser.add_argument("--patience", type=float, default=90.0, help="seconds beyond these before it counts as hanging")
    parser.add_argument("--committed", action="store_true", help="test HEAD and not the files of the working tree")
    parser.add_argument(
        "--reuse-coverage", action="store_true", help="use the collected coverage although the tree changed since"
    )
    parser.add_argument("--without-coverage", action="store_true", help="choose tests by the names of modules alone")
    asked = parser.parse_args(arguments)
    if asked.seed is None:
        asked.seed = random.SystemRandom().randrange(10**6)
    return asked


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def main() -> int:
    asked = parse_arguments()
    original, trees = BUILD / "tree", [BUILD / f"work-{number}" for number in range(1, asked.jobs + 1)]
    copy_tree(original, committed=asked.committed)
    tests = CoveringTests(original, BUILD / "collected")
    if not (asked.without_coverage or tests.is_current() or (asked.reuse_coverage and tests.is_collected())):
        say("collecting coverage of every test, once for this state of src and tests")
        tests.collect()
    for tree in trees:
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(original, tree, symlinks=True)
        check_import(tree)
    mutations, equivalent = choose_mutations(original, asked), equivalents()
    say(f"seed {asked.seed}: {len(mutations)} mutants")
    if mutations:
        check_unchanged(trees[0], tests.choose(mutations[0]))
    results: list[dict[str, Any]] = []
    for result in run_all(trees, mutations, tests, asked):
        if result["state"] == "survived" and (result["path"], result["before"], result["after"]) in equivalent:
            result["state"] = "equivalent"
        results.append(result)
        report = {"seed": asked.seed, "percentage": percentage(results), "mutants": results}
        (BUILD / f"{asked.seed}.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
        where = f"{result['path']}:{result['line']} {result['operator']}"
        left_out = f", {result['capped']} tests left out" if result["capped"] and result["state"] == "survived" else ""
        say(f"[{len(results):3}/{len(mutations)}] {result['state']:11} {result['seconds']:6.1f} s  {where}{left_out}")
    for result in results:
        if result["state"] not in ("killed", "equivalent"):  # a timeout may also come from a machine with other work
            say(f"\n{result['state']}, {result['tests']} tests\n{result['diff']}")
    killed = percentage(results)
    say(f"{killed:.1f} % of {len(mutations)} mutants killed; build/mutants/{asked.seed}.json has each")
    return 0 if killed >= asked.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
