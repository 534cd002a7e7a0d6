"""Crash points: values of the environment variable, and when the process kills itself."""

from __future__ import annotations

import os
import signal

import pytest

from bayplan.api_writes.crash_points import (
    ATTEMPT_STARTED,
    BINDING_WRITTEN,
    CRASH_POINTS,
    ENVIRONMENT_VARIABLE,
    crash_point_from_environment,
    ignore_crash_point,
)
from bayplan.errors import UsageError


def signal_after(words: str, *reached: str) -> int:
    """The signal that ended a child process which reached these steps in order; 0 if it survived."""
    child = os.fork()
    if not child:
        step = crash_point_from_environment({ENVIRONMENT_VARIABLE: words})
        for each in reached:
            step(each)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def test_no_crash_without_the_variable() -> None:
    assert crash_point_from_environment({}) is ignore_crash_point
    assert crash_point_from_environment({ENVIRONMENT_VARIABLE: ""}) is ignore_crash_point
    assert signal_after("", *CRASH_POINTS) == 0


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


@pytest.mark.parametrize("words", ["bond", "bound:0", "bound:x", ":2"])
def test_invalid_values_are_refused(words: str) -> None:
    with pytest.raises(UsageError, match=f'{ENVIRONMENT_VARIABLE} is "{words}"; use a step'):
        crash_point_from_environment({ENVIRONMENT_VARIABLE: words})
