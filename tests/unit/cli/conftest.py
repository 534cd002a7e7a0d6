"""Fixture that runs commands of Bayplan in this process."""

from __future__ import annotations

from functools import partial

import pytest

from support.harness.in_process_commands import CommandRunner, run_command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> CommandRunner:
    return partial(run_command, capsys)
