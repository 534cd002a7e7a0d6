"""Crash points: nothing happens at them by default, and the launcher of the end-to-end tests kills the process."""

from __future__ import annotations

import os
import signal

import pytest

from bayplan.api_writes.crash_points import (
    ATTEMPT_STARTED,
    BINDING_WRITTEN,
    CRASH_POINT,
    CRASH_POINTS,
    ignore_crash_point,
)
from support.e2e.crash_launcher import kill_process_at


def signal_after(text: str, *reached: str) -> int:
    """The signal that ended a child process which reached these steps in order; 0 if it survived."""
    child = os.fork()
    if not child:
        on_crash_point = kill_process_at(text)
        for each in reached:
            on_crash_point(each)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def test_nothing_happens_at_a_crash_point_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYPLAN_DIE_AT", "any")
    assert CRASH_POINT.get() is ignore_crash_point
    for step in CRASH_POINTS:
        CRASH_POINT.get()(step)


@pytest.mark.parametrize(
    ("words", "reached", "ended_by"),
    [
        pytest.param("bound", (ATTEMPT_STARTED, BINDING_WRITTEN), signal.SIGKILL, id="at its step"),
        pytest.param("bound", (ATTEMPT_STARTED, ATTEMPT_STARTED), 0, id="not at another"),
        pytest.param("bound:2", (BINDING_WRITTEN,), 0, id="not the first time"),
        pytest.param(
            "bound:2", (BINDING_WRITTEN, ATTEMPT_STARTED, BINDING_WRITTEN), signal.SIGKILL, id="the second time"
        ),
        pytest.param("any:3", (ATTEMPT_STARTED, BINDING_WRITTEN, ATTEMPT_STARTED), signal.SIGKILL, id="whatever step"),
    ],
)
def test_a_process_dies_at_the_named_step(words: str, reached: tuple[str, ...], ended_by: int) -> None:
    assert signal_after(words, *reached) == ended_by


@pytest.mark.parametrize("words", ["bond", "bound:0", ":2"])
def test_invalid_values_are_refused(words: str) -> None:
    with pytest.raises(AssertionError, match=f"BAYPLAN_DIE_AT is '{words}'"):
        kill_process_at(words)
