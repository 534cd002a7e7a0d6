"""Signals during the start of a command: SIGUSR1 and SIGUSR2 never end it, SIGTERM ends a server with 0."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bayplan import __main__ as entry
from bayplan.app.process import run_process
from bayplan.app.process_lifecycle import STOPPED_EXIT_CODE, SchedulerProcess
from support.harness.in_process_commands import UNREACHABLE_KUBECONFIG, CommandRunner

_SLOW_IMPORT = """
import signal, sys
from bayplan import __main__

class SlowImport:
    def find_spec(self, name, *_):
        if name == "bayplan.cli":
            print("importing", flush=True)
            while True:
                signal.pause()

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has it ignored
sys.meta_path.insert(0, SlowImport())
__main__.main()
"""
"""The command line in a process whose import of it never ends."""

_SHOW_HANDLERS = "import signal; print(signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2))"


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _start_importing_process(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW_IMPORT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    return process


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(arguments, id="-".join(arguments))
        for arguments in (
            ("scheduler", "-v", "2"),
            ("run",),
            ("batch", "run"),
            ("batch", "--scheduler-conf", "x"),
            ("binder",),
            ("controllers",),
            ("kubelet", "--nodes", "3"),
            ("admission",),
            ("cluster", "up"),
        )
    ],
)
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ignores_dump_signals_during_imports_and_exits_with_0(
    arguments: tuple[str, ...], stop: signal.Signals
) -> None:
    process = _start_importing_process(*arguments)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2, stop):
        process.send_signal(number)
    assert (process.communicate(), process.returncode) == (("", ""), 0)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(arguments, id="-".join(arguments) or "none")
        for arguments in (
            (),
            ("get", "nodes"),
            ("batch", "config", "show"),
            ("admission", "manifests"),
            ("cluster", "down"),
            ("cluster", "up", "--detach"),
            ("cluster", "up", "-d"),
        )
    ],
)
def test_stopping_a_command_that_is_no_server_is_a_failure(arguments: tuple[str, ...]) -> None:
    process = _start_importing_process(*arguments)
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGTERM)
    assert (process.communicate(), process.returncode) == (("", ""), -signal.SIGTERM)


def test_the_handlers_are_set_before_slow_imports() -> None:
    script = "import sys; before = set(sys.modules); import bayplan.__main__; print(*set(sys.modules) - before)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"asyncio", "click", "logging", "msgspec", "numpy", "typing"}.intersection(found)


def test_a_child_process_has_the_default_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ""

    def run() -> None:
        nonlocal shown
        shown = subprocess.run([sys.executable, "-c", _SHOW_HANDLERS], capture_output=True, text=True).stdout

    monkeypatch.setattr("bayplan.cli.main", run)
    monkeypatch.setattr("sys.argv", ["bayplan", "scheduler"])
    entry.main()
    assert shown == f"{signal.Handlers.SIG_DFL!s} {signal.Handlers.SIG_DFL!s}\n"


def test_signals_that_the_parent_ignores_stay_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.cli.main", lambda: None)
    monkeypatch.setattr("sys.argv", ["bayplan", "scheduler"])
    for number in (signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    entry.main()
    assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN


class _Informers:
    synced = False


class _Process:
    """A process that sends itself signals while it runs."""

    def __init__(self, *sent: signal.Signals, synced: bool) -> None:
        self.informers = _Informers()
        self.informers.synced = synced
        self.sent = sent
        self.dumps = 0

    def stop(self) -> None:
        raise AssertionError("no signal asks for that")

    async def dump(self) -> None:
        self.dumps += 1

    async def run(self) -> int:
        await _send_signals(*self.sent)
        return 7


async def _send_signals(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)
    for _ in range(3):  # the handler, the callback of the loop, the task that it starts
        await asyncio.sleep(0)


def _run(process: Any, dump_file: Any = None, *, starting: tuple[signal.Signals, ...] = ()) -> int:
    @asynccontextmanager
    async def start() -> AsyncIterator[SchedulerProcess]:
        await _send_signals(*starting)
        yield process

    return asyncio.run(run_process(start(), dump_file))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2], ids=lambda number: number.name)
@pytest.mark.parametrize("moment", ["starting", "not synced"])
def test_a_dump_signal_before_the_sync_logs_one_line(
    number: signal.Signals, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    starting = moment == "starting"
    process = _Process(*(() if starting else (number,)), synced=starting)
    files: list[Any] = []
    assert _run(process, files.append, starting=(number,) if starting else ()) == 7
    assert (process.dumps, files) == (0, [])
    assert caplog.messages == [f"{number.name}: no state is written, because the start is not complete yet"]


def test_dump_signals_write_the_state_after_the_sync() -> None:
    process = _Process(signal.SIGUSR1, signal.SIGUSR2, synced=True)
    files: list[Any] = []
    assert _run(process, files.append) == 7
    assert (process.dumps, files) == (1, [process])


def test_without_a_file_to_write_SIGUSR1_changes_nothing() -> None:  # noqa: N802
    process = _Process(signal.SIGUSR1, synced=True)
    assert _run(process) == 7
    assert process.dumps == 0


def test_the_previous_signal_handler_is_restored() -> None:
    signal.signal(signal.SIGUSR2, entry._ignore)
    _run(_Process(synced=True))
    assert signal.getsignal(signal.SIGUSR2) is entry._ignore


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_process_that_is_stopped_while_it_starts_exits_with_0(number: signal.Signals) -> None:
    assert _run(_Process(synced=False), starting=(number,)) == STOPPED_EXIT_CODE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_webhooks_that_wait_for_the_API_server_can_be_stopped(  # noqa: N802
    number: signal.Signals, run: CommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def never_ready(*_: object) -> AsyncIterator[None]:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr("bayplan.cli.commands.processes.admission.webhook_manager_process", never_ready)
    (tmp_path / "kubeconfig").write_text(UNREACHABLE_KUBECONFIG)
    ended = run("admission", "--cert-dir", tmp_path, "--kubeconfig", tmp_path / "kubeconfig")
    assert (ended.code, ended.out, ended.err) == (0, "stopped\n", "")
