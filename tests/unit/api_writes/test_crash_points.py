"""A process that ends itself where a test says: which words arm it, and when it goes."""

from __future__ import annotations

import os
import signal

import pytest

from bayplan.api_writes.crash_points import (
    BOUND,
    STEPS,
    TAKEN,
    VARIABLE,
    armed,
    unarmed,
)
from bayplan.errors import UsageError


def dies_after(words: str, *reached: str) -> int:
    """The signal that ended a child which reached these steps one after another; 0 where it lived on."""
    child = os.fork()
    if not child:
        step = armed({VARIABLE: words})
        for each in reached:
            step(each)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def test_nobody_dies_unless_told_to() -> None:
    assert armed({}) is unarmed
    assert armed({VARIABLE: ""}) is unarmed
    assert dies_after("", *STEPS) == 0


@pytest.mark.parametrize(
    ("words", "reached", "ended_by"),
    [
        pytest.param("bound", (TAKEN, BOUND), signal.SIGKILL, id="at its step"),
        pytest.param("bound", (TAKEN, TAKEN), 0, id="not at another"),
        pytest.param("bound:2", (BOUND,), 0, id="not the first time"),
        pytest.param("bound:2", (BOUND, TAKEN, BOUND), signal.SIGKILL, id="the second time"),
        pytest.param("any:3", (TAKEN, BOUND, TAKEN), signal.SIGKILL, id="whatever step"),
    ],
)
def test_a_process_dies_at_the_step_that_was_named(words: str, reached: tuple[str, ...], ended_by: int) -> None:
    assert dies_after(words, *reached) == ended_by


@pytest.mark.parametrize("words", ["bond", "bound:0", "bound:x", ":2"])
def test_words_that_name_no_step_are_refused(words: str) -> None:
    with pytest.raises(UsageError, match=f'{VARIABLE} is "{words}"; it takes a step'):
        armed({VARIABLE: words})
