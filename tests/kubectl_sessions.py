"""Commands of kubectl, given to two clusters, and what is told apart from chance: ages, ids, times, random names.

A session is a list of steps; each is a command line as a person types it, perhaps with a manifest on its standard
input. Both clusters get the same steps in the same order, and every output is compared after `settled` has replaced
what no two clusters can have in common.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster.build import program
from cluster.run import Cluster

_REPLACED = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"), "<date>"),
    (re.compile(r'(resourceVersion"?: ?|Resource Version: +)"?\d+"?'), r"\1<version>"),
    (re.compile(r"https://127\.0\.0\.1:\d+"), "<server>"),
    (re.compile(r"10\.0\.0\.\d+"), "<address>"),
    (re.compile(r"(?<![\w.])\d+[smh](\d+s)?(?![\w])"), "<age>"),
    (re.compile(r"<invalid>"), "<age>"),
    (re.compile(r" +"), " "),
    (re.compile(r" +$", re.MULTILINE), ""),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One command."""

    line: str
    stdin: str = ""

    def __str__(self) -> str:
        return self.line


def read_session(path: Path) -> list[Step]:
    """The steps of a file: a prompt and the command, then the lines of its standard input if there are any."""
    chunks = f"\n{path.read_text(encoding='utf-8')}".split("\n$ ")[1:]
    return [Step(line.strip(), stdin) for line, _, stdin in (chunk.partition("\n") for chunk in chunks)]


def settled(text: str) -> str:
    """The output without what is chance."""
    for pattern, word in _REPLACED:
        text = pattern.sub(word, text)
    return text.strip()


def run(cluster: Cluster, step: Step) -> str:
    """What kubectl prints, its complaints and its exit code, settled."""
    command = [str(program("kubectl")), f"--kubeconfig={cluster.kubeconfig()}", *shlex.split(step.line)]
    done = subprocess.run(
        command,
        input=step.stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env={"KUBE_EDITOR": "true", "PATH": "/bin", "HOME": str(cluster.folder)},
    )
    said = settled(done.stdout)
    complained = settled(done.stderr)
    return f"{said}\n-- {complained}\n-- {done.returncode}"
