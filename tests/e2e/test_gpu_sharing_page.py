"""Runs docs/gpu-sharing.md, command by command: two pods share a GPU on a machine that has none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from cluster.build import program
from docs.fences import ROOT, Command, agrees, blocks, commands
from support.harness.deadlines import TEST_TIMEOUT_S

PAGE = ROOT / "docs" / "gpu-sharing.md"
RUN_HERE = "an end-to-end test runs it"


def test_the_page_works_as_it_is_written(tmp_path: Path) -> None:
    found = list(blocks(PAGE))
    for block in found:
        if "save" in block.directives:
            (tmp_path / block.directives["save"]).write_text(block.text)
    typed: list[Command] = []
    for block in found:
        if block.directives.get("not run") == RUN_HERE:
            *first, last = commands(block.text)
            code = block.directives.get("exits", "0")
            typed += [*first, Command(f"{last.script} && [ {code} = 0 ] || [ $? = {code} ]", last.output)]
    assert len(typed) > 10
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "kubectl").symlink_to(program("kubectl"))
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    script = "\n".join(
        ["set -e", "trap 'bayplan cluster down >/dev/null 2>&1 || true' EXIT"]
        + [f"{command.script}\necho '== {number}'" for number, command in enumerate(typed)]
    )
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TEST_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    said = re.split(r"^== \d+\n", done.stdout, flags=re.MULTILINE)
    for command, real in zip(typed, said, strict=False):
        assert command.output is None or agrees(command.output, real), f"$ {command.script}\n{real}"
    seen = set(re.findall(r"^NVIDIA_VISIBLE_DEVICES=(.+)$", done.stdout, flags=re.MULTILINE))
    assert len(seen) == 1, done.stdout
