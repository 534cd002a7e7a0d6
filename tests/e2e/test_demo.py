"""`bayplan demo` as a user runs it: in a pipe, on a narrow terminal, without colours, interrupted, with --keep."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.harness.deadlines import DEADLINE_S

COMMAND = [sys.executable, "-m", "bayplan", "demo"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A home folder for the test, and a folder for temporary files that is checked for leftovers."""
    (tmp_path / "tmp").mkdir()
    mine = {"TMPDIR": str(tmp_path / "tmp"), "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    known = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "KUBECONFIG", "COLUMNS")}
    return {**known, **mine, "PYTHONUNBUFFERED": "1"}


def left(env: dict[str, str]) -> list[str]:
    return sorted(each.name for each in Path(env["TMPDIR"]).iterdir())


def test_in_a_pipe(env: dict[str, str]) -> None:
    ended = subprocess.run(COMMAND, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (ended.returncode, ended.stderr) == (0, "")
    out = ended.stdout
    assert "\x1b" not in out
    assert "50 nodes are Ready in 3 zones" in out
    assert "24 of 24 web pods Running" in out
    assert "spread: zone-0 has 8, zone-1 has 8, zone-2 has 8" in out
    assert "40 of 40 pods of jobs Succeeded" in out
    assert "4 of 4 pods of the gang Running" in out
    assert "later starts as a whole or not at all: " in out
    assert "2 of 2 pods of the other queue's gang Running" in out
    assert "product has its half: sweep continues with 2 pods, its minimum" in out
    assert "was evicted for it, and its replacement is pending" in out
    assert "    0/50 nodes are available\n      17 Insufficient nvidia.com/gpu\n" in out
    assert "Next steps:\n  bayplan demo --keep" in out
    assert re.search(r"open in a browser: http://127\.0\.0\.1:\d+/page/\n", out)
    assert re.search(r"its page, http://127\.0\.0\.1:\d+/page/, stops with it", out.splitlines()[-1])
    assert left(env) == []


def _as_in_a_shell() -> None:
    """Restore SIGINT: a test run in the background ignores Ctrl-C, and child processes inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_terminal(env: dict[str, str], columns: int) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """Run it on a terminal of this width; yields its output so far, repeatedly."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        COMMAND, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=_as_in_a_shell
    )
    os.close(theirs)
    said = b""
    try:
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux reports the end of the terminal as an error
                piece = b""
            if not piece:
                break
            said += piece
            yield process, said
        process.wait(60)
        yield process, said
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("columns", "settings"),
    [(40, {"TERM": "xterm"}), (100, {"TERM": "xterm", "NO_COLOR": "1"}), (100, {"TERM": "dumb"})],
    ids=["narrow", "NO_COLOR", "dumb"],
)
def test_plain_lines_if_the_terminal_cannot_redraw(env: dict[str, str], columns: int, settings: dict[str, str]) -> None:
    *_, (process, said) = on_terminal({**env, **settings}, columns)
    assert process.returncode == 0, said.decode()
    assert b"\x1b" not in said
    assert b"4 of 4 training pods Running" in said
    assert b"Traceback" not in said


def test_on_a_terminal_it_is_redrawn_and_the_cursor_comes_back(env: dict[str, str]) -> None:
    *_, (process, said) = on_terminal({**env, "TERM": "xterm"}, 100)
    assert process.returncode == 0, said.decode()
    assert b"zone-0 " in said
    assert b"\x1b[3" in said
    assert said.rfind(b"\x1b[?25l") < said.rfind(b"\x1b[?25h")


@pytest.mark.parametrize(
    "moment", [b"starting", b"are Ready", b"placed on", b"jobs", b"queues", b"urgent", b"giant", b"Next steps"]
)
def test_stopped_at_any_moment(env: dict[str, str], moment: bytes) -> None:
    said, stopped = b"", False
    for process, said in on_terminal({**env, "TERM": "xterm"}, 100):
        if moment in said and not stopped:
            stopped = True
            process.send_signal(signal.SIGINT)
    assert stopped
    assert b"Traceback" not in said
    assert process.returncode in (-signal.SIGINT, 130, 0 if moment == b"Next steps" else 130)
    assert left(env) == []
    hidden, seen = said.rfind(b"\x1b[?25l"), said.rfind(b"\x1b[?25h")
    assert hidden <= seen  # the cursor is visible again


def done(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Another command, to its end."""
    command = [sys.executable, "-m", "bayplan", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)


def test_kept_for_other_commands(env: dict[str, str]) -> None:
    with subprocess.Popen([*COMMAND, "--keep"], env=env, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            for line in demo.stdout:
                if line.startswith("page: "):
                    break
            with urllib.request.urlopen(line.split()[-1], timeout=DEADLINE_S) as page:
                assert b"<title>Bayplan</title>" in page.read()
            asked = done(env, "get", "pods", "-o", "name", "--cluster", "demo")
            assert (asked.returncode, "pod/giant" in asked.stdout.split()) == (0, True), asked.stderr
            told = done(env, "why", "giant", "--cluster", "demo")
            assert (told.returncode, "Insufficient nvidia.com/gpu" in told.stdout) == (0, True), told.stderr
        finally:
            down = done(env, "cluster", "down", "--name", "demo")
            demo.stdout.read()
    assert down.stdout == 'the cluster "demo" is down\n'
    assert demo.returncode == 130
