"""A process that ends itself where a test says: which words arm it, and when it goes."""

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


def dies_after(words: str, *reached: str) -> int:
    """The signal that ended a child which reached these steps one after another; 0 where it lived on."""
    child = os.fork()
    if not child:
        step = crash_point_from_environment({ENVIRONMENT_VARIABLE: words})
        for each in reached:
            step(each)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def test_nobody_dies_unless_told_to() -> None:
    assert crash_point_from_environment({}) is ignore_crash_point
    assert crash_point_from_environment({ENVIRONMENT_VARIABLE: ""}) is ignore_crash_point
    assert dies_after("", *CRASH_POINTS) == 0


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
def test_a_process_dies_at_the_step_that_was_named(words: str, reached: tuple[str, ...], ended_by: int) -> None:
    assert dies_after(words, *reached) == ended_by


@pytest.mark.parametrize("words", ["bond", "bound:0", "bound:x", ":2"])
def test_words_that_name_no_step_are_refused(words: str) -> None:
    with pytest.raises(UsageError, match=f'{ENVIRONMENT_VARIABLE} is "{words}"; use a step'):
        crash_point_from_environment({ENVIRONMENT_VARIABLE: words})
