"""Event loop of serving processes: uvloop if it is installed, else Python's own."""

from __future__ import annotations

import asyncio
import sys

import pytest

from bayplan.app.event_loop import new_event_loop


def loop_module() -> str:
    async def read_module() -> str:
        return type(asyncio.get_running_loop()).__module__

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(read_module())


def test_uvloop_is_used_if_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert loop_module() == "uvloop"


def test_asyncio_is_used_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_module().startswith("asyncio")
