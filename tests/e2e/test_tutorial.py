"""docs/tutorial.md, command by command, as a newcomer types it: from nothing to a plugin that decides."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from docs.fences import ROOT, blocks, commands

PAGE = ROOT / "docs" / "tutorial.md"
TEN_MINUTES_S = 600
SHOWN = "bayplan get pods -o wide"


def typed() -> list[str]:
    """Everything after the installation, in order."""
    found = [block for block in blocks(PAGE) if block.language == "console"]
    return [command.script for block in found[1:] for command in commands(block.text)]


def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    for block in blocks(PAGE):
        if name := block.directives.get("save"):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    env["XDG_STATE_HOME"] = str(tmp_path / "state")
    env.pop("KUBECONFIG", None)
    scripts = typed()
    assert scripts.count(SHOWN) == 3
    lines = [f"echo '== {number}'\n{script}" for number, script in enumerate(scripts)]
    ended = "trap 'bayplan cluster down >/dev/null 2>&1 || true' EXIT"
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", "\n".join(["set -e", ended, *lines, "echo '== end'"])],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=TEN_MINUTES_S,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert time.monotonic() - began < TEN_MINUTES_S
    said = [done.stdout.split(f"== {number}\n", 1)[1].split("== ", 1)[0] for number in range(len(scripts))]
    first, second, third = (text for text, script in zip(said, scripts, strict=True) if script == SHOWN)
    assert nodes(first)["giant"] == "<none>"
    assert {nodes(second)[name].split("-")[0] for name in ("web-0", "web-1")} == {"fast"}
    assert {nodes(third)[name].split("-")[0] for name in ("web-0", "web-1")} == {"slow"}
    answers = dict(zip(scripts, said, strict=True))
    assert "Insufficient cpu" in answers["bayplan why giant"]
    assert "FastFirst" in answers["bayplan why web-0"]


def nodes(listing: str) -> dict[str, str]:
    """By pod the node that a listing shows."""
    head, *rows = (line.split() for line in listing.splitlines())
    return {row[0]: row[head.index("NODE")] for row in rows}
