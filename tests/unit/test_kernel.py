"""The declarations of the compiled kernel match the sources. Checked without a compiler."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "bayplan"
CLASS = re.compile(r"^cdef class (\w+):$")
ATTRIBUTES = re.compile(r"^    cdef (?:public |readonly )?(?:long long|\w+)(?:\[[:, ]+\])? (\w+(?:, \w+)*)$")
METHOD = re.compile(r"^(?:    )?cp?def (?:(?:long long|\w+) )?(\w+)\((.*)\)$")


def declared(pxd: Path) -> Iterator[tuple[str, set[str], dict[str, list[str]]]]:
    """The module itself, under an empty name, then each class: attributes, and functions with their parameters."""
    name, attributes, functions = "", set[str](), dict[str, list[str]]()
    for line in [*pxd.read_text(encoding="utf-8").splitlines(), "cdef class End:"]:
        if found := CLASS.match(line):
            if name or functions:
                yield name, attributes, functions
            name, attributes, functions = found[1], set(), {}
        elif found := METHOD.match(line):
            parameters = re.sub(r"\[[^]]*\]", "", found[2]).split(", ")  # without the dimensions of vectors
            functions[found[1]] = [each.split()[-1].removesuffix("=*") for each in parameters]
        elif found := ATTRIBUTES.match(line):
            attributes.update(found[1].split(", "))
        else:
            assert not line.strip() or line.lstrip().startswith(("#", "@cython.locals(", "cimport ", "from ")), line


def assigned(body: ast.ClassDef) -> set[str]:
    """Attributes that methods of a class set on `self`."""
    return {
        node.attr
        for node in ast.walk(body)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


CASES = [
    pytest.param(pxd, *each, id=f"{pxd.relative_to(PACKAGE).with_suffix('')} {each[0]}".strip())
    for pxd in sorted(PACKAGE.rglob("*.pxd"))
    for each in declared(pxd)
]


@pytest.mark.parametrize(("pxd", "name", "attributes", "functions"), CASES)
def test_the_source_is_what_is_declared(
    pxd: Path, name: str, attributes: set[str], functions: dict[str, list[str]]
) -> None:
    place: ast.Module | ast.ClassDef = ast.parse(pxd.with_suffix(".py").read_text(encoding="utf-8"))
    if name:
        place = next(node for node in place.body if isinstance(node, ast.ClassDef) and node.name == name)
        assert assigned(place) <= attributes, "the kernel has no room for these"
        assert attributes - {"__weakref__", "__dict__"} <= assigned(place), "unused declarations"
    written = {node.name: node for node in place.body if isinstance(node, ast.FunctionDef)}
    assert {each: _parameters(written[each]) for each in functions} == functions


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]


def test_something_is_compiled() -> None:
    assert len(CASES) > 10


# the build tool


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The tool, on a package of two modules of which one is compiled."""
    monkeypatch.syspath_prepend(str(PACKAGE.parents[1] / "tools"))
    build_kernel = importlib.import_module("build_kernel")
    kernel, source = tmp_path / "kernel", tmp_path / "src"
    places = {"SOURCE": source, "KERNEL": kernel, "STAMP": kernel / "stamp", "BUILT_WITH": kernel / "options"}
    for name, value in places.items():
        monkeypatch.setattr(build_kernel, name, value)
    monkeypatch.setattr(build_kernel, "_compile", lambda modules: compiled.extend(map(str, modules)))
    compiled: list[str] = []
    build_kernel.compiled = compiled
    source.mkdir()
    for name in ("plain.py", "fast.py", "fast.pxd"):
        (source / name).write_text(name, encoding="utf-8")
    yield build_kernel
    del build_kernel.compiled


def test_it_is_up_to_date_until_a_source_changes(tool: Any) -> None:
    assert not tool.is_fresh()
    tool.build()
    assert tool.is_fresh()
    assert tool.compiled == ["fast.py"]
    (tool.SOURCE / "plain.py").write_text("changed", encoding="utf-8")
    assert not tool.is_fresh()


def test_the_copy_is_the_package_and_nothing_older(tool: Any) -> None:
    tool.build()
    copy = tool.KERNEL / "bayplan"
    for name in ("fast.cpython-311.so", "fast.c", "gone.cpython-311.so", "plain.so", "gone.py"):
        (copy / name).touch()
    (tool.SOURCE / "plain.py").write_text("changed", encoding="utf-8")
    dates = (copy / "fast.py").stat().st_mtime_ns
    tool.build()
    found = sorted(path.name for path in copy.iterdir())
    assert found == ["fast.c", "fast.cpython-311.so", "fast.pxd", "fast.py", "plain.py"]
    assert (copy / "plain.py").read_text(encoding="utf-8") == "changed"
    assert (copy / "fast.py").stat().st_mtime_ns == dates, "or it would be compiled again"


def test_other_options_compile_everything_again(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tool.build()
    (tool.KERNEL / "bayplan" / "fast.c").touch()
    monkeypatch.setattr(tool, "LOOPS", ["-O0"])
    tool.build()
    assert not (tool.KERNEL / "bayplan" / "fast.c").exists()


@pytest.mark.parametrize(
    ("arguments", "code"), [pytest.param([], 1, id="wanted"), pytest.param(["--if-possible"], 0, id="if possible")]
)
def test_without_a_compiler(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    monkeypatch.setattr(tool, "find_spec", lambda _: object())
    monkeypatch.setenv("CC", "no-such-compiler -pthread")
    monkeypatch.setattr("sys.argv", ["build_kernel.py", *arguments])
    assert tool.main() == code
    assert "no kernel is built: there is no C compiler no-such-compiler" in capsys.readouterr().err
    assert not tool.is_fresh()


def test_a_compiler_that_fails_leaves_no_kernel(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(modules: list[Path]) -> None:
        raise ValueError(f"{len(modules)} module")

    tool.build()
    (tool.SOURCE / "plain.py").write_text("changed", encoding="utf-8")
    monkeypatch.setattr(tool, "missing", lambda: None)
    monkeypatch.setattr(tool, "_compile", failing)
    monkeypatch.setattr("sys.argv", ["build_kernel.py", "--if-possible"])
    assert tool.main() == 0
    assert "compiling failed (ValueError: 1 module)" in capsys.readouterr().err
    assert not tool.is_fresh()


LOCALS = re.compile(r"^\s*@cython\.locals\((.*)\)$")


def typed_locals(pxd: Path) -> Iterator[tuple[str, set[str]]]:
    """Each function with typed locals, and the names of these."""
    names: set[str] = set()
    for line in pxd.read_text(encoding="utf-8").splitlines():
        if found := LOCALS.match(line):
            listed = re.sub(r"\[[^]]*\]", "", found[1]).split(",")
            names = {each.partition("=")[0].strip() for each in listed}
        elif names and (function := METHOD.match(line)):
            yield function[1], names
            names = set()


@pytest.mark.parametrize("pxd", [pytest.param(path, id=path.stem) for path in sorted(PACKAGE.rglob("*.pxd"))])
def test_typed_locals_are_names_in_their_function(pxd: Path) -> None:
    """Cython ignores the type of a local that does not exist, so the function would only become slower."""
    used: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(pxd.with_suffix(".py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            names = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
            names |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            used.setdefault(node.name, set()).update(names)
    assert {name: names - used[name] for name, names in typed_locals(pxd) if names - used[name]} == {}
