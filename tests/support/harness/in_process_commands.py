"""A command of ours in this process: how it ended and what it printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from bayplan.cli import main

UNREACHABLE_KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: x, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: x, context: {cluster: x}}]
current-context: x
"""
"""A kubeconfig of a cluster that nobody serves."""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Everything that was printed."""
        return self.out + self.err


CommandRunner = Callable[..., CommandResult]


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> CommandResult:
    """Run a command; wherever it prints, it is read."""
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as done:
        code = int(done.code or 0)
    return CommandResult(code, *capsys.readouterr())
