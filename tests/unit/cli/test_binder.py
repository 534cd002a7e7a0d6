"""`bayplan binder`: how it ends, and what it can be told."""

from __future__ import annotations

import asyncio
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


def _nobody_hears(*_: Any) -> None:
    """A signal that comes too soon is to fail the test alone."""
