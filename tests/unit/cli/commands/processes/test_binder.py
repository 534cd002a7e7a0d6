"""`bayplan binder`: how it ends, and what it can be told."""

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


def test_it_can_be_stopped_while_it_waits_for_its_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def waiting(*_: Any, **__: Any) -> AsyncIterator[Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
        yield None

    monkeypatch.setattr(binder, "binder_process", waiting)
    before = signal.signal(signal.SIGTERM, _nobody_hears)
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
    ("given", "leader_elect", "level"),
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
def test_its_flags_are_written_as_the_schedulers_are(
    monkeypatch: pytest.MonkeyPatch, given: list[str], leader_elect: bool, level: int
) -> None:
    begun: list[BinderSettings] = []

    async def run(settings: BinderSettings, *_: Any) -> None:
        begun.append(settings)
        assert logging.getLogger("bayplan.binder").getEffectiveLevel() <= level

    monkeypatch.setattr(binder, "_run", run)
    binder.command.main([*given, "--master", "https://127.0.0.1:1"], standalone_mode=False)
    (settings,) = begun
    assert settings.lease.leader_elect is leader_elect


SETTINGS = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\nbinderPlugins: {%s: {arguments: %s}}\n"


@pytest.mark.parametrize("started", [("binder", "--list"), ("binder",), ("run", "--binder")])
@pytest.mark.parametrize(
    ("plugin", "arguments", "words"),
    [
        ("volumebinding", "{bindTimeoutSeconds: -5}", "bindTimeoutSeconds is -5; it takes a number of seconds above 0"),
        ("dynamicresources", "{bindTimeoutSeconds: x}", "bindTimeoutSeconds is 'x'; it takes a number of seconds"),
        ("gpusharing", '{cdiEnabled: "yes"}', "cdiEnabled is 'yes'; it takes true or false"),
        ("picky", "{colour: red}", "nobody likes red"),
    ],
)
def test_arguments_that_a_plugin_refuses_are_told_before_a_cluster_is_needed(
    run: CommandRunner,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    started: tuple[str, ...],
    plugin: str,
    arguments: str,
    words: str,
) -> None:
    for module in (binder, both):
        monkeypatch.setattr(module, "asyncio", None)  # nothing is started
    settings, plugins = tmp_path / "settings.yaml", tmp_path / "plugins"
    settings.write_text(SETTINGS % (plugin, arguments))
    plugins.mkdir(mode=0o700)
    (plugins / "picky.py").write_text(PICKY)
    told = run(*started, "--settings", str(settings), "--plugins-dir", str(plugins), "--master", "https://127.0.0.1:1")
    assert told.code == 1
    assert f'binder plugin "{plugin}" cannot be made: ' in told.text
    assert words in told.text


@pytest.mark.parametrize(("command", "code"), [("scheduler", 1), ("binder", 2)])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(["--kube-api-burst=-5"], "burst is required to be greater than 0", id="nobody gets through"),
        pytest.param(["--kube-api-qps=many"], 'parsing "many": invalid syntax', id="no number"),
    ],
)
def test_limits_of_requests_are_refused_in_the_schedulers_words(
    run: CommandRunner, command: str, code: int, given: list[str], words: str
) -> None:
    told = run(command, *given, "--master=https://127.0.0.1:1")
    assert told.code == code
    assert words in told.text


@pytest.mark.parametrize(
    ("given", "words"),
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
def test_a_wrong_call_ends_as_every_wrong_call(run: CommandRunner, given: list[str], words: str) -> None:
    told = run("binder", *given, "--master=https://127.0.0.1:1")
    assert told.code == 2
    assert words in told.text


def test_a_rate_of_nothing_is_no_limit(run: CommandRunner) -> None:
    assert run("binder", "--kube-api-qps", "0", "--kube-api-burst", "-5", "--list").code == 0


@pytest.mark.parametrize("command", [["scheduler"], ["batch", "run"], ["run"], ["binder"]], ids=" ".join)
@pytest.mark.parametrize(("text", "code"), [(None, 2), ("kind: Nonsense", 1)], ids=["missing", "wrong"])
def test_faults_of_settings_end_every_command_alike(
    run: CommandRunner, tmp_path: Path, command: list[str], text: str | None, code: int
) -> None:
    settings = tmp_path / "settings.yaml"
    if text is not None:
        settings.write_text(text)
    assert run(*command, f"--settings={settings}", "--master=https://127.0.0.1:1").code == code


def test_a_plugin_may_start_something_on_the_loop_and_keep_its_handle(run: CommandRunner, tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir(mode=0o700)
    (plugins / "picky.py").write_text(PICKY)
    told = run("binder", "--list", "--plugins-dir", str(plugins))
    assert (told.code, "picky" in told.text) == (0, True), told.text


def test_what_the_file_of_settings_says_of_the_binder_is_heard_wherever_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings, config = tmp_path / "settings.yaml", tmp_path / "scheduler.yaml"
    head = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"
    settings.write_text(f"{head}binderWorkers: 3\nresourceReservation: {{namespace: gpu-holders, image: own:1}}\n")
    config.write_text(BY_BINDER)
    begun: list[Any] = []

    class Enough(Exception):
        pass

    def hear(*given: Any, **named: Any) -> Any:
        begun.append(named.get("binder") or named.get("scheduler", given[0] if given else None))
        raise Enough

    monkeypatch.setattr(binder, "_run", hear)
    monkeypatch.setattr(both, "combined_process", hear)
    monkeypatch.setattr(whole_cluster, "ClusterOptions", hear)
    monkeypatch.setenv("HOME", str(tmp_path))
    for command, *more in (
        (binder.command, "--master=https://127.0.0.1:1"),
        (both.command, "--binder", "--master=https://127.0.0.1:1"),
        (cluster.up, f"--config={config}"),
    ):
        with pytest.raises(Enough):
            command.main([*more, f"--settings={settings}"], standalone_mode=False)
    alone, beside, setup = begun
    wanted = ReservationSettings(namespace="gpu-holders", image="own:1")
    for each in (alone, beside, setup.binder):
        assert (each.workers, each.reservations) == (3, wanted)
    assert setup.bayplan_settings.resource_reservation == wanted


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
            raise ValueError(f"nobody likes {arguments['colour']}")
        plugin = cls()
        plugin.client = handle.client
        return plugin

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        pass
"""


def _nobody_hears(*_: Any) -> None:
    """A signal that comes too soon is to fail the test alone."""
