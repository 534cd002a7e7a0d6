"""`bayplan binder`: how it ends, and what it can be told."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bayplan.app.binding import BinderSettings
from bayplan.cli import binder
from bayplan.client import Target
from bayplan.config.own_settings import OwnSettings


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
        asyncio.run(asyncio.wait_for(binder._run(BinderSettings(), Target(server="https://x"), OwnSettings(), ""), 10))
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


def _nobody_hears(*_: Any) -> None:
    """A signal that comes too soon is to fail the test alone."""
