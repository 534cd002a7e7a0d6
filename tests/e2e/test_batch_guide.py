"""docs/batch-guide.md, command by command: from an empty folder to gangs where the plugin wants them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster.build import program
from patience import WHOLE_TEST_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "batch-guide.md"


def parts(text: str) -> tuple[dict[str, str], list[str]]:
    """Files that the page has people write, and commands that it has them type, in order."""
    files: dict[str, str] = {}
    commands: list[str] = []
    name, lines, language = "", [], ""
    for line in text.splitlines():
        if language:
            if line == "```":
                if name:
                    files[name] = "\n".join(lines) + "\n"
                elif language == "console":
                    commands += [each.removeprefix("$ ") for each in lines if each.startswith("$ ")]
                name, lines, language = "", [], ""
            else:
                lines.append(line)
        elif line.startswith("<!-- save: "):
            name = line.removeprefix("<!-- save: ").removesuffix(" -->")
        elif line.startswith("```"):
            language = line.removeprefix("```")
    return files, commands


def test_the_guide_works_as_it_is_written(tmp_path: Path) -> None:
    files, commands = parts(PAGE.read_text(encoding="utf-8"))
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        path.write_text(text)
        path.chmod(0o644)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "kubectl").symlink_to(program("kubectl"))
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    shown = "kubectl get pods -o custom-columns=NAME:.metadata.name,NODE:.spec.nodeName"
    assert commands.count(shown) == 2
    script = "\n".join(
        ["set -em", "trap 'kill $(jobs -p) 2>/dev/null || true; bayplan cluster down >/dev/null 2>&1 || true' EXIT"]
        + [f"echo '== {number}'\n{command}" for number, command in enumerate(commands)]
        + ["echo '== end'"]
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=WHOLE_TEST_S, check=False
    )
    log = (tmp_path / "batch.log").read_text() if (tmp_path / "batch.log").exists() else ""
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{log[-3000:]}"
    first, second = (
        done.stdout.split(f"== {number}\n", 1)[1].split("== ", 1)[0]
        for number, command in enumerate(commands)
        if command == shown
    )
    assert [line.split()[1].startswith("night-") for line in first.splitlines()[1:]] == [True, True], first
    assert [line.split()[1].startswith("night-") for line in second.splitlines()[1:]] == [False, False], second
