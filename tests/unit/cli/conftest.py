"""Commands of ours, run in this process."""

from __future__ import annotations

from functools import partial

import pytest

from support.harness.in_process_commands import Run, ran


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return partial(ran, capsys)
