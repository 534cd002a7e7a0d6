"""Commands of ours, run in this process."""

from __future__ import annotations

from functools import partial

import pytest

from command_runs import Run, ran


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return partial(ran, capsys)
