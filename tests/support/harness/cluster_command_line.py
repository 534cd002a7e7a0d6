"""A whole cluster in a thread of the test's process, and the command line on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from bayplan import Cluster
from bayplan.cli import main


class CommandOutput(NamedTuple):
    code: int
    out: str
    err: str


class InProcessCommandLine:
    """Runs commands in this process; returns their output and exit codes."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> CommandOutput:
        code = 0
        self._capsys.readouterr()
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as done:
            code = int(done.code or 0)
        return CommandOutput(code, *self._capsys.readouterr())

    def lines(self, *arguments: object) -> list[str]:
        """The output lines of a command that succeeds."""
        ended = self(*arguments)
        assert ended.code == 0, ended.err
        return ended.out.splitlines()


@contextmanager
def live_cluster(**options: Any) -> Iterator[Cluster]:
    """A cluster that the environment's KUBECONFIG names, inside the block."""
    with Cluster(**options) as cluster:
        before = os.environ.get("KUBECONFIG")
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        try:
            yield cluster
        finally:
            if before is None:
                del os.environ["KUBECONFIG"]
            else:
                os.environ["KUBECONFIG"] = before
