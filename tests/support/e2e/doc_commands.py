"""Runs the commands of documentation pages that start from an empty machine, exactly as written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from docs.fences import Command, blocks, commands
from support.harness.deadlines import TEST_TIMEOUT_S

_ENDED = "trap 'kill $(jobs -p) 2>/dev/null || true; bayplan cluster down >/dev/null 2>&1 || true' EXIT"


def page_commands(page: Path, *, after: int = 0) -> list[Command]:
    """The commands of a page in order; without the first blocks if these set up the machine."""
    consoles = [block for block in blocks(page) if block.language == "console"]
    return [command for block in consoles[after:] for command in commands(block.text)]


def save_files(page: Path, folder: Path) -> None:
    """Write the files of a page; they are not writable for group and other users."""
    for block in blocks(page):
        if name := block.directives.get("save"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            path.write_text(block.text, encoding="utf-8")
            path.chmod(0o644)


def run_typed_commands(
    scripts: list[str], folder: Path, *, tools: Path | None = None, within_s: float = TEST_TIMEOUT_S
) -> list[str]:
    """Run commands in one shell, in a folder, until one fails; return the output of each."""
    programs = [str(each) for each in (tools, Path(sys.executable).parent) if each is not None]
    env = {**os.environ, "PATH": ":".join([*programs, os.environ["PATH"]]), "HOME": str(folder)}
    env["XDG_STATE_HOME"] = str(folder / "state")
    env.pop("KUBECONFIG", None)
    lines = [f"echo '== {number}'\n{script}" for number, script in enumerate(scripts)]
    done = subprocess.run(
        ["bash", "-c", "\n".join(["set -em", _ENDED, *lines, "echo '== end'"])],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    logs = "".join(f"\n{path.name}:\n{path.read_text()[-3000:]}" for path in folder.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}{logs}"
    return [done.stdout.split(f"== {number}\n", 1)[1].split("== ", 1)[0] for number in range(len(scripts))]
