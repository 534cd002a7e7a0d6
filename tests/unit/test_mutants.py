"""The mutation test run: mutation sites, choice of tests, and results."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _tools_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


@pytest.fixture
def driver() -> Any:
    return importlib.import_module("mutants")


def mutated(source: str) -> list[str]:
    """The changed line of every mutation."""
    sites = importlib.import_module("mutation_sites")
    text = source.encode()
    found = [each for site in sites.find_sites(text, "src/bayplan/a.py") for each in site]
    return [each.changed_lines(text)[1] for each in found if sites.is_valid(each, text)]


def function(*lines: str, returns: str = "int") -> str:
    return "\n".join([f"def f(x, y) -> {returns}:", *(f"    {line}" for line in lines), ""])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("a = x < y", ["a = x <= y"], id="less"),
        pytest.param("a = x <= y", ["a = x < y"], id="less-or-equal"),
        pytest.param("a = x > y", ["a = x >= y"], id="greater"),
        pytest.param("a = x >= y", ["a = x > y"], id="greater-or-equal"),
        pytest.param("a = x == y", ["a = x != y"], id="equal"),
        pytest.param("a = x not  in y", ["a = x in y"], id="not-in"),
        pytest.param("a = x in y", ["a = x not in y"], id="in"),
        pytest.param("a = x is y", ["a = x is not y"], id="is"),
        pytest.param("a = x is not y", ["a = x is y"], id="is-not"),
        pytest.param("a = x < y < z", ["a = x <= y < z", "a = x < y <= z"], id="chain"),
        pytest.param("a = x and y", ["a = x or y"], id="and"),
        pytest.param("a = x or y or z", ["a = x and y or z", "a = x or y and z"], id="or"),
        pytest.param("a = not (x)", ["a = x"], id="not"),
        pytest.param("a = x + y", ["a = x - y"], id="plus"),
        pytest.param("a = x - y", ["a = x + y"], id="minus"),
        pytest.param("a = (x) * (y)", ["a = (x) // (y)"], id="times"),
        pytest.param("a = x // y", ["a = x * y"], id="floor-division"),
        pytest.param("a = x | y", ["a = x & y"], id="union"),
        pytest.param("a += x", ["a -= x"], id="augmented"),
        pytest.param("a = 7", ["a = 8", "a = 6"], id="integer"),
        pytest.param("a = True", ["a = False"], id="boolean"),
        pytest.param("a = min(x, y)", ["a = max(x, y)"], id="min"),
        pytest.param("a = all(x)", ["a = any(x)"], id="all"),
        pytest.param("a = x[y:z]", ["a = x[:z]", "a = x[y:]"], id="slice"),
        pytest.param("x.a = y", ["pass"], id="attribute"),
        pytest.param("x.f(y)", ["pass"], id="call"),
        pytest.param("await x.f(y)", ["pass"], id="awaited-call"),
        pytest.param("return x", ["return None"], id="return"),
        pytest.param("if x: y = z", ["if not (x): y = z"], id="condition"),
        pytest.param("if not x: y = z", ["if x: y = z"], id="negated-condition-once"),
        pytest.param("if x == y: y = z", ["if x != y: y = z"], id="compared-condition-once"),
        pytest.param("while x: break", ["while not (x): break", "while x: continue"], id="loop"),
        pytest.param("a = [x for x in y if z]", ["a = [x for x in y if not (z)]"], id="comprehension"),
        pytest.param(
            "ä = 'ö' if x < y else z", ["ä = 'ö' if not (x < y) else z", "ä = 'ö' if x <= y else z"], id="bytes"
        ),
    ],
)
def test_what_is_changed(line: str, expected: list[str]) -> None:
    assert sorted(mutated(function(line))) == sorted(expected)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param('"""1 < 2"""\n', id="docstring"),
        pytest.param("a: 'int | None'\ndef f(x: a < 1, *, y: 2) -> 3: ...\n", id="annotations"),
        pytest.param("__all__ = ['a' + 'b']\n", id="all"),
        pytest.param("if TYPE_CHECKING:\n    a = 1\n", id="type-checking"),
        pytest.param("if __name__ == '__main__':\n    main(1)\n", id="main"),
        pytest.param(function("log.warning('%s', x + 1)"), id="log"),
        pytest.param(function("self._log.info(x + 1)"), id="log-of-self"),
        pytest.param(function("assert x, y + 1"), id="message-of-an-assertion"),
        pytest.param(function("a = f'{x + 1}'"), id="text"),
        pytest.param(function("for a in zip(x, y, strict=True): b = a"), id="strict"),
        pytest.param("@dataclass(frozen=True)\nclass A(Struct, frozen=True): ...\n", id="frozen"),
        pytest.param("A = X | Y\n", id="type"),
        pytest.param("def __init__(self, x):\n    self.x = x\n", id="attribute-of-init"),
        pytest.param(function("return x", returns="None"), id="returns-nothing"),
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert mutated(source) == []


def test_a_default_is_changed_and_counts_where_the_function_runs() -> None:
    sites = importlib.import_module("mutation_sites")
    ((first, second),) = sites.find_sites(b"def f(\n    x=3,\n):\n    return x\n", "src/bayplan/a.py")
    assert (first.text, second.text) == (b"4", b"2")
    assert (first.line, first.first, first.last) == (2, 1, 4)


def test_a_diff_has_the_changed_line_alone() -> None:
    sites = importlib.import_module("mutation_sites")
    source = b"def f(x):\n    a = 0\n    return x < a\n"
    (mutation,) = (each for site in sites.find_sites(source, "a.py") for each in site if each.operator == "comparison")
    lines = mutation.diff(source).splitlines()
    assert [line for line in lines[2:] if line[0] in "+-"] == ["-    return x < a", "+    return x <= a"]
    assert (mutation.first, mutation.last, mutation.in_function) == (3, 3, True)


def test_lines_of_a_compound_statement_end_before_its_body() -> None:
    sites = importlib.import_module("mutation_sites")
    source = b"def f(x):\n    if (\n        x\n    ):\n        g(x)\n"
    found = {each.operator: (each.first, each.last) for site in sites.find_sites(source, "a.py") for each in site}
    assert found == {"condition": (2, 4), "statement": (5, 5)}


# the sample


def write(tree: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    module = function("a = x < y", "if a: return 1", "x.call()", "return a")
    write(tmp_path / "tree", {f"src/bayplan/{name}.py": module for name in ("cel/a", "cel/b", "sim/a", "clock")})
    return tmp_path / "tree"


def sampled(driver: Any, tree: Path, *arguments: str) -> list[str]:
    chosen = driver.choose_mutations(tree, driver.parse_arguments([*arguments]))
    return [f"{each.path.removeprefix('src/bayplan/')}:{each.line} {each.operator}" for each in chosen]


def test_a_seed_fixes_the_sample_and_a_longer_one_begins_with_a_shorter_one(driver: Any, tree: Path) -> None:
    long = sampled(driver, tree, "--seed", "3", "--count", "12")
    assert len(long) == len(set(long)) == 12
    assert sampled(driver, tree, "--seed", "3", "--count", "5") == long[:5]
    assert sampled(driver, tree, "--seed", "4", "--count", "12") != long


def test_a_sample_of_a_package_a_file_or_a_line(driver: Any, tree: Path) -> None:
    assert {each.partition("/")[0] for each in sampled(driver, tree, "--package", "cel")} == {"cel"}
    assert sampled(driver, tree, "--file", "src/bayplan/clock.py:2") == ["clock.py:2 comparison"]
    assert len(sampled(driver, tree, "--file", "src/bayplan/clock.py")) == 6


# the tests of a mutant


@pytest.fixture
def first(driver: Any, tree: Path) -> Any:
    (mutation,) = driver.choose_mutations(tree, driver.parse_arguments(["--file", "src/bayplan/cel/a.py:2"]))
    return mutation


def chosen(tree: Path, folder: Path, mutation: Any) -> list[str]:
    covering = importlib.import_module("covering_tests")
    return [test for test, _ in covering.CoveringTests(tree, folder).choose(mutation)]


def test_without_coverage_tests_that_name_the_module_come_first(tree: Path, tmp_path: Path, first: Any) -> None:
    tests = {
        "tests/unit/cel/test_other.py": "",
        "tests/unit/cel/test_user.py": "from bayplan.cel.a import f",
        "tests/unit/cel/test_a.py": "",
        "tests/unit/sim/test_a.py": "",
        "tests/property/test_p.py": "from bayplan.cel import a",
    }
    write(tree, tests)
    own = ["tests/unit/cel/test_a.py", "tests/unit/cel/test_user.py", "tests/unit/cel/test_other.py"]
    assert chosen(tree, tmp_path / "none", first) == [*own, "tests/property/test_p.py"]


def collected(tree: Path, folder: Path, contexts: dict[str, list[int]], log: str) -> None:
    """The files of a coverage collection."""
    from coverage import CoverageData

    (folder / "tree").parent.mkdir()
    (folder / "tree").symlink_to(tree.rename(tree.with_name("old")))
    write(tree, {str(each.relative_to(folder / "tree")): each.read_text() for each in (folder / "tree").rglob("*.py")})
    data = CoverageData(str(folder / "coverage"))
    for context, lines in contexts.items():
        data.set_context(context)
        data.add_lines({str(folder / "tree/src/bayplan/cel/a.py"): lines})
    data.write()
    (folder / "log").write_text(log, encoding="utf-8")


def test_covering_tests_run_the_nearest_and_cheapest_first(tree: Path, tmp_path: Path, first: Any) -> None:
    write(tree, {f"tests/unit/{name}.py": "" for name in ("cel/test_a", "sim/test_a")})
    contexts = {f"tests/unit/{name}|run": [2] for name in ("sim/test_a.py::x", "cel/test_a.py::y", "cel/test_a.py::z")}
    contexts |= {"tests/unit/cel/test_a.py::elsewhere|run": [3], "tests/unit/cel/test_a.py::red|run": [2], "": [1, 2]}
    log = "2.00s call     tests/unit/cel/test_a.py::y\n0.10s setup    tests/unit/cel/test_a.py::z\n"
    folder = tmp_path / "collected"
    collected(tree, folder, contexts, log + "FAILED tests/unit/cel/test_a.py::red - assert 1 - 2\n")
    expected = ["tests/unit/cel/test_a.py::z", "tests/unit/cel/test_a.py::y", "tests/unit/sim/test_a.py::x"]
    assert chosen(tree, folder, first) == expected


def test_after_a_change_lines_are_followed_and_changed_test_files_run_whole(
    tree: Path, tmp_path: Path, driver: Any
) -> None:
    write(tree, {f"tests/unit/cel/test_{name}.py": "" for name in "abcd"})
    contexts = {f"tests/unit/cel/test_{name}.py::x|run": [line] for name, line in (("a", 2), ("b", 4), ("c", 2))}
    collected(tree, tmp_path / "collected", contexts, "")
    module = tree / "src/bayplan/cel/a.py"
    module.write_text("\n\n" + module.read_text(encoding="utf-8"), encoding="utf-8")
    write(tree, {"tests/unit/cel/test_c.py": "changed", "tests/unit/cel/test_new.py": ""})
    (mutation,) = driver.choose_mutations(tree, driver.parse_arguments(["--file", "src/bayplan/cel/a.py:4"]))
    found = chosen(tree, tmp_path / "collected", mutation)
    assert sorted(found) == ["tests/unit/cel/test_a.py::x", "tests/unit/cel/test_c.py", "tests/unit/cel/test_new.py"]


def test_the_limit_leaves_out_the_last_tests_and_says_how_many(driver: Any) -> None:
    tests = [("a", 10.0), ("b", 10.0), ("c", 10.0), ("d", 0.0)]
    assert driver.split(tests, 60.0) == ([tests[:1], tests[1:]], 0)
    assert driver.split(tests, 20.0) == ([tests[:1], tests[1:2]], 2)
    assert driver.split(tests[:1], 5.0) == ([tests[:1], []], 0), "one test runs however long it takes"


# a run


@pytest.fixture
def results(driver: Any, tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A run of the mutants of a file with its own test; `results(test)` returns the exit code and the report."""
    monkeypatch.setattr(driver, "BUILD", tmp_path)
    monkeypatch.setattr(driver, "EQUIVALENT", tmp_path / "equivalent.toml")
    monkeypatch.setattr(driver, "copy_tree", lambda target, **_: tree.rename(target) if target != tree else None)
    (tmp_path / "equivalent.toml").touch()

    def run(test: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        plugin = "src/bayplan/testing/pytest_plugin.py"  # pytest imports it when it starts
        write(
            tree, dict.fromkeys([plugin, *(f"src/bayplan/{each}__init__.py" for each in ("", "cel/", "testing/"))], "")
        )
        write(tree, {"src/bayplan/cel/a.py": MODULE, "tests/unit/cel/test_a.py": test})
        command = ["mutants.py", "--seed=1", "--jobs=1", "--without-coverage", "--file=src/bayplan/cel/a.py:2"]
        monkeypatch.setattr("sys.argv", [*command, *arguments])
        return driver.main(), json.loads((tmp_path / "1.json").read_text(encoding="utf-8"))

    return run


KILLS = "from bayplan.cel.a import f\ndef test_f():\n    assert f(1, 1) is False\n"
BLIND = "from bayplan.cel.a import f\ndef test_f():\n    assert f(1, 2) is True\n"
MODULE = function("a = x < y", "return a", returns="bool")


def test_a_test_that_fails_kills(results: Any) -> None:
    code, report = results(KILLS)
    assert (code, report["percentage"]) == (0, 100.0)
    (mutant,) = report["mutants"]
    assert (mutant["state"], mutant["before"], mutant["after"]) == ("killed", "a = x < y", "a = x <= y")
    assert "test_f" in mutant["by"]


def test_a_mutant_that_every_test_passes_survives_and_the_copy_is_restored(results: Any, tmp_path: Path) -> None:
    code, report = results(BLIND)
    assert (code, report["percentage"]) == (1, 0.0)
    assert [mutant["state"] for mutant in report["mutants"]] == ["survived"]
    assert "\n+    a = x <= y\n" in report["mutants"][0]["diff"]
    assert (tmp_path / "work-1/src/bayplan/cel/a.py").read_text(encoding="utf-8") == MODULE


def test_a_survivor_that_is_listed_as_equivalent_does_not_count(results: Any, tmp_path: Path) -> None:
    listed = '[[mutant]]\npath = "src/bayplan/cel/a.py"\nbefore = "a = x < y"\nafter = "a = x <= y"\nreason = "none"\n'
    (tmp_path / "equivalent.toml").write_text(listed, encoding="utf-8")
    code, report = results(BLIND)
    assert (code, report["mutants"][0]["state"]) == (0, "equivalent")


def test_tests_that_fail_without_a_mutation_end_the_run(results: Any) -> None:
    with pytest.raises(SystemExit, match=r"fails without a mutation.*test_f"):
        results(BLIND.replace("True", "False"))


def test_what_counts_as_killed(driver: Any) -> None:
    states = ["killed", "timeout", "survived", "not-covered", "equivalent"]
    assert driver.percentage([{"state": state} for state in states]) == 50.0
    assert driver.percentage([]) == 100.0


def test_a_hanging_mutant_ends_at_its_limit(driver: Any, tmp_path: Path) -> None:
    write(tmp_path, {"test_hang.py": "import threading\ndef test_hang():\n    threading.Event().wait()\n"})
    assert driver.run_tests(tmp_path, ["test_hang.py"], 3.0)[0] == "timeout"


def test_listed_equivalents_are_lines_of_the_sources(driver: Any) -> None:
    for path, before, after in driver.equivalents():
        lines = {" ".join(line.split()) for line in (ROOT / path).read_text(encoding="utf-8").splitlines()}
        assert before in lines, f"{path} has no such line any more"
        assert before != after
