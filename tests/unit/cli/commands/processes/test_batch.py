"""`bayplan batch config`: messages about a volcano-scheduler.conf, and exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from bayplan.batch.config.scheduler_conf import DEFAULTED_FLAGS, load_conf, load_default_conf, to_conf_text
from support.harness.in_process_commands import CommandResult, CommandRunner, run_command

FULL = """
actions: "allocate, gangpreempt"
tiers:
- plugins:
  - name: gang
    enablePreemptable: no
    enableHierarchy: yes
    arguments: {number: 1e3, text: "1e3", truth: "y", none: ~, limit: .inf, list: [1, {5: "010"}], day: 2024-01-01}
- plugins: [{name: mine}]
configurations:
- {name: allocate, arguments: {predicateErrorCacheEnable: "off"}}
metrics: {interval: 30, type: prometheus}
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandRunner:
    def run_with_input(*arguments: object, text: str = "") -> CommandResult:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return run_command(capsys, "batch", "config", *arguments)

    return run_with_input


def test_a_valid_file(run: CommandRunner, tmp_path: Path) -> None:
    path = tmp_path / "conf"
    path.write_text("actions: enqueue,allocate\ntiers: [{plugins: [{name: gang}]}]\n", encoding="utf-8")
    assert run("check", path) == (0, f"{path} is valid: actions enqueue, allocate; 1 plugin(s) in 1 tier(s)\n", "")
    assert run("check", path, "--strict").code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "", "failed to find Action ; `actions` is missing or empty, or contains an empty name", id="empty"
        ),
        pytest.param("actions: allocate,", "or contains an empty name; known actions: enqueue, allocate, ", id="comma"),
        pytest.param("actions: [", "did not find expected node content; see docs/", id="syntax"),
        pytest.param("actions: []", "line 1: cannot unmarshal !!seq into string; see docs/", id="type"),
    ],
)
def test_invalid_files_are_errors(run: CommandRunner, text: str, words: str) -> None:
    for verb in ("check", "show"):
        ended = run(verb, "-", text=text)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith("error: -: ")
        assert words in ended.err
        assert ended.err.count("\n") == 1


def test_a_missing_file_is_an_error(run: CommandRunner, tmp_path: Path) -> None:
    assert run("check", tmp_path / "nowhere") == (
        2,
        "",
        f"error: cannot read {tmp_path / 'nowhere'}: No such file or directory; give a readable file\n",
    )


def test_ignored_settings_are_reported(run: CommandRunner) -> None:
    text = """
actions: allocate
tiers: [{plugins: [{name: mine, enableVictim: no}, {name: mine}]}]
configurations: [{name: preempt}]
"""
    ended = run("check", "-", text=text)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[1:] == [
        "note: line 3: 'enableVictim' is an unknown key and is ignored; did you mean enabledVictim?",
        "note: plugin 'mine' is not built in; it is ignored unless you add it",
        "note: configurations: 'preempt' is not an enabled action, so its arguments are ignored",
    ]
    assert run("check", "-", "--strict", text=text)[::2] == (
        1,
        "error: -: 3 setting(s) are ignored; see the notes above\n",
    )


def test_arguments_that_another_action_reads_are_not_reported(run: CommandRunner) -> None:
    ended = run("check", "-", text="actions: gangreclaim\nconfigurations: [{name: allocate}]")
    assert "note" not in ended.out


def test_the_built_in_configuration_is_shown(run: CommandRunner) -> None:
    out = run("show").out
    assert out.startswith("actions: enqueue, allocate, backfill\n")
    assert [name for name in ("priority", "gang", "nodeorder") if f" {name} " in out] == [
        "priority",
        "gang",
        "nodeorder",
    ]
    assert load_conf(run("show", "-o", "yaml").out) == load_default_conf()
    assert json.loads(run("show", "-o", "json").out) == to_conf_text(load_default_conf())


def test_the_table_shows_flags_that_differ_from_the_default(run: CommandRunner) -> None:
    out = run("show", "-", text=FULL).out
    assert "enablePreemptable: false" in out
    assert "enableHierarchy: true" in out
    assert not any(flag in out for flag in DEFAULTED_FLAGS if flag != "enablePreemptable")
    assert "number: 1000.0" in out
    assert out.endswith(
        'arguments of allocate: predicateErrorCacheEnable: "off"\nmetrics: interval: "30"  type: "prometheus"\n'
    )


def test_the_complete_file_is_equivalent(run: CommandRunner) -> None:
    assert load_conf(run("show", "-", "-o", "yaml", text=FULL).out) == load_conf(FULL)


def test_the_json_output_has_no_special_constants(run: CommandRunner) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    shown = json.loads(run("show", "-", "-o", "json", text=FULL).out, parse_constant=refuse)
    arguments = shown["tiers"][0]["plugins"][0]["arguments"]
    assert (arguments["limit"], arguments["list"]) == ("+Inf", [1, {"5": "010"}])


@pytest.mark.parametrize("arguments", [[], ["check"], ["show"]], ids=" ".join)
def test_help_has_examples(run: CommandRunner, arguments: list[str]) -> None:
    ended = run(*arguments, "--help")
    assert ended.code == 0
    assert "Examples:\n    bayplan batch config " in ended.out


OWN_PLUGINS = """
class Mine:
    name = "mine"
    def on_session_open(self, session): pass

class Tidy:
    name = "tidy"
    def initialize(self): pass
    def execute(self, session): pass
    def uninitialize(self): pass
"""


def test_plugins_and_actions_of_a_plugin_folder_are_known(run: CommandRunner, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN_PLUGINS, encoding="utf-8")
    path.chmod(0o644)
    text = "actions: allocate, tidy\ntiers: [{plugins: [{name: mine}]}]\n"
    ended = run("check", "-", "--strict", "--plugins-dir", tmp_path, text=text)
    assert ended == (0, "- is valid: actions allocate, tidy; 1 plugin(s) in 1 tier(s)\n", "")
    assert run("show", "-", "--plugins-dir", tmp_path, text=text).out.startswith("actions: allocate, tidy\n")
    assert "failed to find Action  tidy; known actions: enqueue, allocate," in run("check", "-", text=text).err


def test_input_that_is_not_utf8_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", stdin)  # as Python has it in the locale C
    assert run_command(capsys, "batch", "config", "check", "-") == (
        2,
        "",
        "error: - is not UTF-8 text; give a text file\n",
    )
