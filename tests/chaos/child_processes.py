"""Child processes that end with the driver, and ports for them."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PORTS = range(20_000, 32_000)
"""Below the range of outgoing connections: a server that restarts must find its port free."""


def spawn(command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a program; its output is appended to the log. The kernel ends it when the driver ends."""
    around = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
    with log.open("ab") as out:
        return subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=around, preexec_fn=end_with_parent
        )


def end_with_parent() -> None:
    """In the child: the kernel ends it when the driver ends for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Ports of loopback on which nothing listens. Other drivers on this machine draw from the same range."""
    chance, found = random.SystemRandom(), list[int]()
    while len(found) < count:
        port = chance.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
