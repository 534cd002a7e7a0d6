"""Properties of the tree: lock files, import contracts, documents for readers."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import tomllib
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import bayplan

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "bayplan"
LOCKS = ("requirements.lock", "requirements-dev.lock")
PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9-]*)(\[(?P<extras>[a-z0-9,-]+)\])?==[\w.!+]+( ; (?P<marker>.+))? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")
MEANINGLESS = {"utils", "util", "common", "helpers", "misc"}


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@cache
def contracts() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter", encoding="utf-8")
    return parser


def layers_of_packages() -> list[list[str]]:
    """The layers from the top, each a list of packages."""
    layers = contracts()["importlinter:contract:layers"]["layers"].split("\n")
    return [re.findall(r"bayplan\.(\w+)", layer) for layer in layers if layer.strip()]


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def package_names() -> set[str]:
    """Every name directly below the package: folders with code and single modules."""
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return folders | {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}


def pinned(lock: str) -> dict[str, set[str]]:
    """The names of the lock, each with its pins; a name may have one pin for each range of Python versions."""
    pins: dict[str, set[str]] = {}
    for line in (ROOT / lock).read_text(encoding="utf-8").splitlines():
        if found := PIN.match(line):
            pins.setdefault(found["name"], set()).add(line.partition(" ")[0])
    return pins


def distribution(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_pins_and_hashes_and_nothing_else(lock: str) -> None:
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not PIN.match(line) and not HASH.match(line)] == []


def test_the_runtime_lock_holds_what_the_project_needs_to_run_and_to_build() -> None:
    needed = [*project()["project"]["dependencies"], *project()["build-system"]["requires"]]
    assert {distribution(each) for each in needed} <= pinned("requirements.lock").keys()


def test_the_development_lock_holds_every_tool() -> None:
    groups = project()["dependency-groups"]
    tools = {distribution(each) for each in (*groups["dev"], *groups["kernel"])}
    assert tools <= pinned("requirements-dev.lock").keys()


def test_both_locks_pin_the_same_versions() -> None:
    # A tool may need a package on more Python versions than the project: only versions are compared.
    development, runtime = (
        {name: {pin.split(";")[0].strip() for pin in pins} for name, pins in pinned(lock).items()}
        for lock in ("requirements-dev.lock", "requirements.lock")
    )
    assert {name: pins for name, pins in runtime.items() if development.get(name) != pins} == {}


def test_requirements_with_an_extra_are_pinned_with_it() -> None:
    """Otherwise pip takes the newest release for it, and refuses that without a hash: from that release's day on."""
    lines = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8").splitlines()
    pins = {
        found["name"]: set(filter(None, (found["extras"] or "").split(","))) for found in map(PIN.match, lines) if found
    }
    wanted: dict[str, set[str]] = {}
    for installed in distributions():
        for requirement in map(Requirement, installed.requires or ()):
            if requirement.extras and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                wanted.setdefault(distribution(requirement.name), set()).update(requirement.extras)
    assert wanted["coverage"] == {"toml"}
    assert {name: extras for name, extras in wanted.items() if name in pins and not extras <= pins[name]} == {}


def test_the_licence_is_the_whole_of_the_one_declared() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert project()["project"]["license"] == "Apache-2.0"
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_changelog_starts_with_the_current_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == bayplan.__version__


def test_ci_can_be_called() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_make_target_is_in_the_help() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony is not None
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^make ([\w-]+)", told, re.MULTILINE)) == set(phony[1].split()) - {"help"}


def test_every_package_has_a_layer() -> None:
    placed = [package for layer in layers_of_packages() for package in layer]
    assert package_names() - set(placed) == set()
    assert len(placed) == len(set(placed))


def test_an_existing_package_is_not_optional() -> None:
    layers = contracts()["importlinter:contract:layers"]["layers"]
    assert set(re.findall(r"\(bayplan\.(\w+)\)", layers)) & package_names() == set()


@pytest.mark.parametrize("contract", ["binder", "pure-core", "arrays", "engine-io", "plugins-blind", "kit-stays-out"])
def test_a_contract_names_existing_packages(contract: str) -> None:
    named = re.findall(r"bayplan\.(\w+)", contracts()[f"importlinter:contract:{contract}"]["source_modules"])
    assert named
    assert set(named) <= package_names()


def test_the_binder_contract_forbids_every_other_package() -> None:
    allowed = "api_writes client clock codec config devices errors intents objects telemetry volumes"
    forbidden = re.findall(r"bayplan\.(\w+)", contracts()["importlinter:contract:binder"]["forbidden_modules"])
    assert package_names() - set(forbidden) == {"binder", *allowed.split()}


def test_no_module_has_a_meaningless_name() -> None:
    assert [path for path in sources() if path.stem in MEANINGLESS or path.parent.name in MEANINGLESS] == []


def test_every_module_with_code_opens_with_a_docstring() -> None:
    silent = []
    for path in sources():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if tree.body and ast.get_docstring(tree) is None:
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []


def test_files_and_functions_stay_readable() -> None:
    too_long = []
    for path in sources():
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 600:
            too_long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > 80:
                    too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {size} lines")
    assert too_long == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_relative_links_of_the_first_pages_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []
