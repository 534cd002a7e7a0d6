"""`bayplan plugin new` writes files that pass every check, and refuses invalid names."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bayplan.app import known_batch_plugins
from bayplan.batch.plugins import default_batch_plugins
from bayplan.cli import main
from bayplan.cli.commands.configuration.plugin import MAX_NAME_LENGTH
from bayplan.framework.runtime.plugin_discovery import PluginKind, plugins_in_folder, with_plugins_from
from bayplan.framework.runtime.registry import Registry
from docs.fences import ROOT

CHECKS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]["select"]


def run(*arguments: str) -> int:
    """The exit code of a command."""
    try:
        main(arguments)
    except SystemExit as done:
        return int(done.code or 0)
    return 0


def tool(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_new_plugins_pass_every_check(tmp_path: Path) -> None:
    """All forms, with names as short and as long as they may be; together, because starting mypy takes seconds."""
    for form, name, batch in (("node", "N", "B"), ("table", "AbCdEfGhIj" * 3 + "AbCd", "AbCdEfGhIj" * 3 + "AbCe")):
        assert run("plugin", "new", name, "--form", form, "--dir", str(tmp_path)) == 0
        assert run("plugin", "new", "--batch", batch, "--form", form, "--dir", str(tmp_path)) == 0
    assert sorted(len(entry.name) for entry in with_plugins_from(Registry(), tmp_path)) == [1, MAX_NAME_LENGTH]
    assert len(plugins_in_folder(tmp_path, PluginKind.BATCH_PLUGIN)) == 2
    tool(tmp_path, "pytest", "-q", "-p", "no:cacheprovider")
    tool(tmp_path, "mypy", "--strict", "--cache-dir", os.devnull, ".")
    tool(tmp_path, "ruff", "check", "--isolated", "--no-cache", "--line-length", "120", "--select", ",".join(CHECKS))
    tool(tmp_path, "ruff", "format", "--isolated", "--no-cache", "--line-length", "120", "--check")


def test_a_new_plugin_can_be_loaded_from_its_folder(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run("plugin", "new", "RackAware", "--dir", str(tmp_path / "made" / "here"))
    finally:
        os.umask(before)
    folder = tmp_path / "made" / "here"
    assert stat.S_IMODE((folder / "rack_aware.py").stat().st_mode) == 0o644
    assert [entry.name for entry in with_plugins_from(Registry(), folder)] == ["RackAware"]


@pytest.mark.parametrize(
    ("spelling", "file", "name"),
    [
        ("RackAware", "rack_aware.py", "RackAware"),
        ("rack-aware", "rack_aware.py", "RackAware"),
        ("rack_aware", "rack_aware.py", "RackAware"),
        ("GPUFit2", "gpu_fit2.py", "GPUFit2"),
        ("racks", "racks.py", "Racks"),
    ],
)
def test_a_name_may_be_written_in_several_ways(spelling: str, file: str, name: str, tmp_path: Path) -> None:
    run("plugin", "new", spelling, "--dir", str(tmp_path))
    assert f'    name = "{name}"\n' in (tmp_path / file).read_text(encoding="utf-8")
    assert (tmp_path / f"test_{file}").exists()


def test_the_output_has_the_next_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("plugin", "new", "RackAware", "--dir", str(tmp_path))
    written_line, test, usage = capsys.readouterr().out.splitlines()
    assert written_line == f"wrote {tmp_path}/rack_aware.py and {tmp_path}/test_rack_aware.py"
    assert test == f"test it:  python -m pytest {tmp_path}/test_rack_aware.py"
    assert f"--plugins-dir {tmp_path}" in usage


@pytest.mark.parametrize("spelling", ["CostSaver", "cost-saver", "cost_saver"])
def test_a_batch_plugin_has_a_name_in_volcanos_style(spelling: str, tmp_path: Path) -> None:
    run("plugin", "new", "--batch", spelling, "--dir", str(tmp_path))
    text = (tmp_path / "cost_saver.py").read_text(encoding="utf-8")
    assert '    name = "cost-saver"\n' in text
    assert "class CostSaver:\n" in text
    assert "cost-saver" in known_batch_plugins([tmp_path])
    assert "CostSaver" not in with_plugins_from(Registry(), tmp_path)


def test_the_output_has_the_next_steps_of_a_batch_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("plugin", "new", "--batch", "cost-saver", "--dir", str(tmp_path))
    output = capsys.readouterr().out.splitlines()[2]
    assert output.startswith('run it:   name "cost-saver" in a tier of a volcano-scheduler.conf and add --plugins-dir ')


@pytest.mark.parametrize("name", ["gang", "Gang", "network-topology-aware", "NumaAware"])
def test_names_of_shipped_batch_plugins_are_taken(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plugin", "new", "--batch", name, "--dir", str(tmp_path)) == 2
    assert "already; choose another name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("", "'' is not a valid plugin name; use letters and digits, as in RackAware", id="empty"),
        pytest.param("Rack Aware", "is not a valid plugin name", id="space"),
        pytest.param("../Rack", "is not a valid plugin name", id="path"),
        pytest.param("R" * 35, "is too long for tables; use at most 34 characters", id="long"),
        pytest.param("2Racks", "is not a valid plugin name", id="digit-first"),
        pytest.param(
            "json", "a file json.py would hide a module of Python's standard library; choose another name", id="stdlib"
        ),
        pytest.param("None", "would hide a module of Python's standard library", id="keyword"),
        pytest.param("class", "would hide a module of Python's standard library", id="keyword-module"),
        pytest.param("TestFoo", "a file test_foo.py would be loaded as a test and not as a plugin", id="a-test"),
        pytest.param("Test", "a file test.py would be loaded as a test", id="test"),
        pytest.param("Conftest", "a file conftest.py would be loaded as a test", id="conftest"),
        pytest.param("Numpy", "would hide the installed package numpy; choose another name", id="installed"),
        pytest.param(
            "Status", "a class Status would hide the Status that it imports; choose another name", id="imported"
        ),
        pytest.param("Harness", "a class Harness would hide the Harness that it imports", id="imported-by-the-test"),
        pytest.param("Bayplan", "would hide the installed package bayplan", id="ourselves"),
        pytest.param("node-name", 'a plugin "NodeName" exists already; choose another name', id="shipped"),
    ],
)
def test_invalid_names_are_refused(name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plugin", "new", name, "--dir", str(tmp_path)) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("existing", ["rack_aware.py", "test_rack_aware.py"])
def test_nothing_is_overwritten(existing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / existing).write_text("mine", encoding="utf-8")
    assert run("plugin", "new", "RackAware", "--dir", str(tmp_path)) == 2
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path / existing} exists already; no file was written; choose another name or folder\n"
    )
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [(existing, "mine")]


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run("plugin", "new", "RackAware", "--dir", str(tmp_path / "file")) == 2
    assert "cannot write " in capsys.readouterr().err


def test_a_form_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plugin", "new", "RackAware", "--form", "row") == 2
    assert "'row' is not one of 'node', 'table'" in capsys.readouterr().err


# list


def test_the_list_names_points_and_origins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("plugin", "new", "RackAware", "--dir", str(tmp_path))
    capsys.readouterr()
    assert run("plugin", "list", "-o", "json", "--plugins-dir", str(tmp_path)) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed["NodePorts"] == {
        "name": "NodePorts",
        "points": ["preFilter", "filter"],
        "byDefault": True,
        "from": "shipped",
    }
    assert listed["RackAware"] == {
        "name": "RackAware",
        "points": ["filter", "score"],
        "byDefault": False,
        "from": str(tmp_path / "rack_aware.py"),
    }
    assert not listed["GangScheduling"]["byDefault"]


def test_a_file_below_the_current_folder_has_a_relative_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("plugin", "new", "RackAware", "--dir", "mine")
    capsys.readouterr()
    run("plugin", "list", "-o", "json", "--plugins-dir", str(tmp_path / "mine"))
    assert json.loads(capsys.readouterr().out)[-1]["from"] == "mine/rack_aware.py"


def test_the_list_as_a_table_of_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    run("plugin", "new", "RackAware", "--dir", "mine")
    capsys.readouterr()
    assert run("plugin", "list", "--plugins-dir", "mine") == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["NAME", "BY", "DEFAULT", "POINTS"]
    assert ["PrioritySort", "yes", "queueSort"] in [line.split() for line in lines]
    assert ["TopologyPlacementGenerator", "no", "placementGenerate"] in [line.split() for line in lines], "in one piece"
    assert [line.split() for line in lines[-2:]] == [["RackAware", "no", "filter", "score"], ["mine/rack_aware.py"]]


def test_a_plugin_file_that_cannot_be_loaded_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def\n", encoding="utf-8")
    broken.chmod(0o644)
    assert run("plugin", "list", "--plugins-dir", str(tmp_path)) == 1
    assert "broken.py, line 1: " in capsys.readouterr().err


def test_the_list_of_the_batch_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("plugin", "new", "--batch", "cost-saver", "--dir", str(tmp_path))
    capsys.readouterr()
    assert run("plugin", "list", "--batch", "-o", "json", "--plugins-dir", str(tmp_path)) == 0
    rows = json.loads(capsys.readouterr().out)
    listed = {row["name"]: row for row in rows}
    assert listed["overcommit"] == {
        "name": "overcommit",
        "kind": "plugin",
        "points": ["job_enqueueable", "job_enqueued"],
        "ifConfigured": [],
        "byDefault": True,
        "from": "shipped",
    }
    assert listed["cost-saver"] == {
        "name": "cost-saver",
        "kind": "plugin",
        "points": ["job_order", "predicate", "node_order"],
        "ifConfigured": [],
        "byDefault": False,
        "from": str(tmp_path / "cost_saver.py"),
    }
    assert listed["rescheduling"]["points"] == []
    assert listed["rescheduling"]["ifConfigured"] == ["victim_tasks"]
    actions = [row["name"] for row in rows if row["kind"] == "action" and row["byDefault"]]
    assert actions == ["enqueue", "allocate", "backfill"]
    assert {row["name"] for row in rows if row["kind"] == "plugin"} == {*default_batch_plugins(), "cost-saver"}


def test_a_batch_plugin_that_fails_when_a_session_opens_is_listed_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    broken = tmp_path / "broken.py"
    broken.write_text(
        "class Broken:\n    name = 'broken'\n    def __init__(self, arguments): pass\n"
        "    def on_session_open(self, session): raise ValueError('no')\n",
        encoding="utf-8",
    )
    broken.chmod(0o644)
    assert run("plugin", "list", "--batch", "--plugins-dir", str(tmp_path)) == 0
    output = capsys.readouterr()
    assert 'note: plugin "broken" at on_session_open: ValueError: no' in output.err
    assert ["broken", "plugin", "no"] in [line.split()[:3] for line in output.out.splitlines()]
