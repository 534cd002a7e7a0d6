"""A process that serves runs on the fastest loop that there is, and on Python's own where there is none."""

from __future__ import annotations

import asyncio
import sys

import pytest

from bayplan.app.event_loop import new_event_loop


def module_of_the_loop() -> str:
    async def asked() -> str:
        return type(asyncio.get_running_loop()).__module__

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(asked())


def test_the_fastest_loop_is_used_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert module_of_the_loop() == "uvloop"


def test_the_loop_of_python_is_used_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert module_of_the_loop().startswith("asyncio")
