"""The lint script of the layout: import cycles and small modules."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LARGE = "X = 1\n" * 40


@pytest.fixture
def lint(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("lint_layout")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return tmp_path / "pack"


def write_modules(package: Path, sources: Mapping[str, str]) -> None:
    for name, source in {"__init__": "", **sources}.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))


def allowed(lint: Any, tmp_path: Path, text: str = "") -> Any:
    (tmp_path / "allowed.txt").write_text(text)
    return lint.Allowed.read(tmp_path / "allowed.txt")


@pytest.mark.parametrize(
    ("sources", "cycles"),
    [
        pytest.param({"a": "import pack.b", "b": "import pack.c", "c": ""}, [], id="chain"),
        pytest.param({"a": "from pack.b import X", "b": "import pack.a"}, ["a <- b <- a"], id="two-modules"),
        pytest.param({"a": "from pack import b", "b": "from pack import a"}, ["a <- b <- a"], id="names-of-a-package"),
        pytest.param(
            {"__init__": "from pack.a import X", "a": "from pack import Y"}, ["__init__ <- a <- __init__"], id="package"
        ),
        pytest.param(
            {"a": "if 1:\n try:\n  import pack.b\n except E: pass", "b": "import pack.a"}, ["a <- b <- a"], id="nested"
        ),
        pytest.param(
            {"a": "try:\n pass\nexcept E:\n import pack.b", "b": "import pack.a"}, ["a <- b <- a"], id="handler"
        ),
        pytest.param({"a": "class C:\n import pack.b", "b": "import pack.a"}, ["a <- b <- a"], id="class-body"),
        pytest.param({"a": "def f():\n import pack.b", "b": "import pack.a"}, [], id="in-a-function"),
        pytest.param({"a": "if TYPE_CHECKING:\n import pack.b", "b": "import pack.a"}, [], id="type-checking"),
        pytest.param(
            {"a": "if TYPE_CHECKING:\n pass\nelse:\n import pack.b", "b": "import pack.a"},
            ["a <- b <- a"],
            id="else-of-type-checking",
        ),
        pytest.param({"a": "import pack.sub.b", "sub/__init__": "", "sub/b": "import pack.a"}, [], id="two-folders"),
        pytest.param({"a": "import pack.a\nimport os", "b": ""}, [], id="itself-and-others"),
    ],
)
def test_import_cycles_of_a_folder(lint: Any, package: Path, sources: dict[str, str], cycles: list[str]) -> None:
    write_modules(package, sources)
    found = [each.what for each in lint.check_cycles(lint.read_imports(package))]
    assert found == [f"import cycle {each}" for each in cycles]


@pytest.mark.parametrize(
    ("sources", "entries", "small"),
    [
        pytest.param({"a": LARGE + "import pack.b", "b": "X = 1"}, "", ["b"], id="one-importer"),
        pytest.param({"a": LARGE + "import pack.b", "b": LARGE}, "", [], id="large"),
        pytest.param({"a": LARGE + "import pack.b", "b": "", "c": LARGE + "import pack.b"}, "", [], id="two-importers"),
        pytest.param({"a": LARGE, "b": ""}, "", [], id="no-importer"),
        pytest.param({"a": LARGE + "import pack.sub", "sub/__init__": ""}, "", [], id="package"),
        pytest.param({"a": LARGE + "import pack.plugins.b", "plugins/b": ""}, "", [], id="plugin"),
        pytest.param({"a": LARGE + "import pack.b", "b": ""}, "small pack.b a protocol", [], id="allowed"),
        pytest.param({"a": LARGE + "import pack.b", "b": ""}, "small pack.b", ["b"], id="allowed-without-a-reason"),
    ],
)
def test_small_modules(
    lint: Any, package: Path, tmp_path: Path, sources: dict[str, str], entries: str, small: list[str]
) -> None:
    write_modules(package, sources)
    imports = lint.read_imports(package)
    found = list(lint.check_small_modules(package, imports, allowed(lint, tmp_path, entries)))
    assert [Path(each.where).stem for each in found] == small
    assert all(each.what.endswith("one importer; merge it into " + str(package / "a.py")) for each in found)


def test_every_allowed_small_module_exists(lint: Any) -> None:
    modules = {lint.module_name(path, lint.PACKAGE) for path in lint.PACKAGE.rglob("*.py")}
    assert lint.Allowed.read(lint.ALLOWED).small <= modules
