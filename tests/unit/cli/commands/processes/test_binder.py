"""`bayplan binder`: its end, and its arguments."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bayplan.app import cluster as whole_cluster
from bayplan.app.binder import BinderSettings
from bayplan.cli.commands.embedded import cluster
from bayplan.cli.commands.processes import binder
from bayplan.cli.commands.processes import run as both
from bayplan.client import ConnectionConfig
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.reservation_settings import ReservationSettings
from support.harness.in_process_commands import CommandRunner


def test_the_binder_can_be_stopped_while_it_waits_for_the_crd(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def never_ready(*_: Any, **__: Any) -> AsyncIterator[Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
        yield None

    monkeypatch.setattr(binder, "binder_process", never_ready)
    before = signal.signal(signal.SIGTERM, _ignore_signal)
    try:
        asyncio.run(
            asyncio.wait_for(
                binder._run(BinderSettings(), ConnectionConfig(server="https://x"), BayplanSettings(), ""), 10
            )
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().out == "stopped\n"


@pytest.mark.parametrize(
    ("arguments_given", "leader_elect", "level"),
    [
        ([], True, logging.WARNING),
        (["--leader-elect"], True, logging.WARNING),
        (["--leader-elect=true"], True, logging.WARNING),
        (["--leader-elect=false"], False, logging.WARNING),
        (["--no-leader-elect"], False, logging.WARNING),
        (["--leader-elect=false", "-v", "2"], False, logging.INFO),
        (["-v=4"], True, logging.DEBUG),
    ],
)
def test_flags_have_the_syntax_of_the_schedulers_flags(
    monkeypatch: pytest.MonkeyPatch, arguments_given: list[str], leader_elect: bool, level: int
) -> None:
    started_with: list[BinderSettings] = []

    async def run(settings: BinderSettings, *_: Any) -> None:
        started_with.append(settings)
        assert logging.getLogger("bayplan.binder").getEffectiveLevel() <= level

    monkeypatch.setattr(binder, "_run", run)
    binder.command.main([*arguments_given, "--master", "https://127.0.0.1:1"], standalone_mode=False)
    (settings,) = started_with
    assert settings.lease.leader_elect is leader_elect


SETTINGS = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\nbinderPlugins: {%s: {arguments: %s}}\n"


@pytest.mark.parametrize("started", [("binder", "--list"), ("binder",), ("run", "--binder")])
@pytest.mark.parametrize(
    ("plugin", "arguments", "words"),
    [
        ("volumebinding", "{bindTimeoutSeconds: -5}", "bindTimeoutSeconds is -5; it takes a number of seconds above 0"),
        ("dynamicresources", "{bindTimeoutSeconds: x}", "bindTimeoutSeconds is 'x'; it takes a number of seconds"),
        ("gpusharing", '{cdiEnabled: "yes"}', "cdiEnabled is 'yes'; it takes true or false"),
        ("picky", "{colour: red}", "the plugin refuses red"),
    ],
)
def test_invalid_plugin_arguments_are_reported_before_connecting(
    run: CommandRunner,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    started: tuple[str, ...],
    plugin: str,
    arguments: str,
    words: str,
) -> None:
    for module in (binder, both):
        monkeypatch.setattr(module, "asyncio", None)  # nothing may start
    settings, plugins = tmp_path / "settings.yaml", tmp_path / "plugins"
    settings.write_text(SETTINGS % (plugin, arguments))
    plugins.mkdir(mode=0o700)
    (plugins / "picky.py").write_text(PICKY)
    result = run(
        *started, "--settings", str(settings), "--plugins-dir", str(plugins), "--master", "https://127.0.0.1:1"
    )
    assert result.code == 1
    assert f'binder plugin "{plugin}" cannot be built: ' in result.text
    assert words in result.text


@pytest.mark.parametrize(("command", "code"), [("scheduler", 1), ("binder", 2)])
@pytest.mark.parametrize(
    ("arguments_given", "words"),
    [
        pytest.param(["--kube-api-burst=-5"], "burst is required to be greater than 0", id="negative burst"),
        pytest.param(["--kube-api-qps=many"], 'parsing "many": invalid syntax', id="no number"),
    ],
)
def test_invalid_rate_limits_have_the_schedulers_messages(
    run: CommandRunner, command: str, code: int, arguments_given: list[str], words: str
) -> None:
    result = run(command, *arguments_given, "--master=https://127.0.0.1:1")
    assert result.code == code
    assert words in result.text


@pytest.mark.parametrize(
    ("arguments_given", "words"),
    [
        pytest.param(["--leader-elect=maybe"], 'invalid argument "maybe" for "--leader-elect" flag', id="no truth"),
        pytest.param(["-v", "abc"], 'invalid argument "abc" for "-v, --v" flag', id="no level"),
        pytest.param(["--listen-address", "foo"], "foo is not a valid address: the port is missing", id="no address"),
        pytest.param(["extra"], '"bayplan binder" does not take any arguments, got ["extra"]', id="an argument"),
        pytest.param(["--plugins-dir", "/nowhere"], "/nowhere is not a folder; --plugins-dir takes", id="no folder"),
        pytest.param(["-o"], "unknown flag: -o; leave it out. See bayplan binder --help", id="no flag"),
        pytest.param(
            ["--listt"], "unknown flag: --listt; did you mean --list? See bayplan binder --help", id="nearly a flag"
        ),
    ],
)
def test_a_wrong_call_is_a_usage_error(run: CommandRunner, arguments_given: list[str], words: str) -> None:
    result = run("binder", *arguments_given, "--master=https://127.0.0.1:1")
    assert result.code == 2
    assert words in result.text


def test_a_rate_of_zero_is_unlimited(run: CommandRunner) -> None:
    assert run("binder", "--kube-api-qps", "0", "--kube-api-burst", "-5", "--list").code == 0


@pytest.mark.parametrize("command", [["scheduler"], ["batch", "run"], ["run"], ["binder"]], ids=" ".join)
@pytest.mark.parametrize(("text", "code"), [(None, 2), ("kind: Nonsense", 1)], ids=["missing", "wrong"])
def test_invalid_settings_end_every_command_with_the_same_code(
    run: CommandRunner, tmp_path: Path, command: list[str], text: str | None, code: int
) -> None:
    settings = tmp_path / "settings.yaml"
    if text is not None:
        settings.write_text(text)
    assert run(*command, f"--settings={settings}", "--master=https://127.0.0.1:1").code == code


def test_a_plugin_factory_may_start_tasks_and_keep_its_handle(run: CommandRunner, tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir(mode=0o700)
    (plugins / "picky.py").write_text(PICKY)
    result = run("binder", "--list", "--plugins-dir", str(plugins))
    assert (result.code, "picky" in result.text) == (0, True), result.text


def test_binder_settings_apply_to_every_command_with_a_binder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings, config = tmp_path / "settings.yaml", tmp_path / "scheduler.yaml"
    head = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"
    settings.write_text(f"{head}binderWorkers: 3\nresourceReservation: {{namespace: gpu-holders, image: own:1}}\n")
    config.write_text(BY_BINDER)
    started_with: list[Any] = []

    class StopHere(Exception):
        pass

    def record(*arguments_given: Any, **named: Any) -> Any:
        started_with.append(
            named.get("binder") or named.get("scheduler", arguments_given[0] if arguments_given else None)
        )
        raise StopHere

    monkeypatch.setattr(binder, "_run", record)
    monkeypatch.setattr(both, "combined_process", record)
    monkeypatch.setattr(whole_cluster, "ClusterOptions", record)
    monkeypatch.setenv("HOME", str(tmp_path))
    for command, *more in (
        (binder.command, "--master=https://127.0.0.1:1"),
        (both.command, "--binder", "--master=https://127.0.0.1:1"),
        (cluster.up, f"--config={config}"),
    ):
        with pytest.raises(StopHere):
            command.main([*more, f"--settings={settings}"], standalone_mode=False)
    alone, beside, setup = started_with
    expected = ReservationSettings(namespace="gpu-holders", image="own:1")
    for each in (alone, beside, setup.binder):
        assert (each.workers, each.reservations) == (3, expected)
    assert setup.bayplan_settings.resource_reservation == expected


BY_BINDER = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: BindRequestBinder}], disabled: [{name: DefaultBinder}]}}
"""
PICKY = """
import asyncio


class Picky:
    name = "picky"

    @classmethod
    def factory(cls, arguments, handle):
        asyncio.get_running_loop().create_task(handle.clock.sleep(60))
        if "colour" in arguments:
            raise ValueError(f"the plugin refuses {arguments['colour']}")
        plugin = cls()
        plugin.client = handle.client
        return plugin

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        pass
"""


def _ignore_signal(*_: Any) -> None:
    """Ignore a signal that comes too early, so that only this test fails."""
