"""Runs a Bayplan command in this process: its exit code and its output."""

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
"""A kubeconfig of a cluster without a server."""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All output."""
        return self.out + self.err


CommandRunner = Callable[..., CommandResult]


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> CommandResult:
    """Run a command; capture all of its output."""
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as done:
        code = int(done.code or 0)
    return CommandResult(code, *capsys.readouterr())
