"""Runs kubectl sessions against two clusters and compares outputs, ignoring ages, ids, times and generated names.

A session is a list of steps; each is a command line as typed by a user, optionally with a manifest on its standard
input. Both clusters get the same steps in the same order, and every output is compared after `normalise_output` has
replaced what differs between any two clusters.

    $ get pods                          one command
    $ KUBE_EDITOR='sed -i s/a/b/' edit configmap c
    $ until auth can-i get pods         repeated until it succeeds; only its exit code is compared
    $ & 2 get pods -w                   in the background; the next step starts when it has printed two lines
    $ fg 5                              its output once there are five lines; then it is ended

`$(get ...)` in a command or on its standard input is replaced by the output of that command, as in a shell.
"""

from __future__ import annotations

import difflib
import re
import shlex
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from cluster.build import program
from cluster.run import Cluster
from support.harness.deadlines import DEADLINE_S

_REPLACED = (
    # kubectl's own log lines, if a timeout happens at an inconvenient time
    (re.compile(r"^[EIW]\d{4} .*reflector\.go.*\n", re.MULTILINE), ""),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"), "<date>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? [+-]\d{4}"), "<date>"),
    (re.compile(r"/[^\s\"]*/(LIVE|MERGED|kubectl-edit)-\d+"), r"/tmp/\1"),
    (re.compile(r"(debugger|made)-\w{5}"), r"\1-<random>"),
    (re.compile(r"W\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ "), "<log> "),
    (re.compile(r'(resourceVersion"?: ?|Resource Version: +)"?\d+"?'), r"\1<version>"),
    (re.compile(r"https://127\.0\.0\.1:\d+"), "<server>"),
    (re.compile(r"10\.0\.0\.\d+"), "<address>"),
    (re.compile(r"(?<![\w.])\d+[smh](\d+s)?(?![\w])"), "<age>"),
    (re.compile(r"<invalid>"), "<age>"),
    (re.compile(r"(?<![\w.])3[0-2]\d{3}(?![\w.])"), "<node port>"),
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


_LISTED = re.compile(r"(?:^(?:\*| \.|Container ).*\n?)+", re.MULTILINE)
_FAULTS = re.compile(r"(?<= is invalid: \[).*(?=\]$)", re.MULTILINE)
_MANAGED = re.compile(r"^(?P<indent> *)managedFields:\n(?P<entries>(?:(?P=indent)(?:- |  ).*\n?)+)", re.MULTILINE)
_WRITER = re.compile(r"^  (?:manager|operation|subresource): .*$", re.MULTILINE)


def _by_writer(managed: re.Match[str]) -> str:
    """Managed fields sorted by manager, operation and subresource.

    Servers sort them by time in seconds first, and two clusters do not run the same steps in the same seconds.
    """
    indent, entries = managed["indent"], managed["entries"].removesuffix("\n")
    items = re.split(rf"^{indent}- ", f"{entries}\n", flags=re.MULTILINE)[1:]
    items.sort(key=lambda item: sorted(_WRITER.findall(item.replace(f"\n{indent}", "\n"))))
    return "".join([f"{indent}managedFields:\n", *(f"{indent}- {item}" for item in items)])


def normalise_output(text: str) -> str:
    """The output without random parts, and in a fixed order: a real server returns several field errors in random
    order.
    """
    text = _MANAGED.sub(_by_writer, text)
    for pattern, word in _REPLACED:
        text = pattern.sub(word, text)
    text = _FAULTS.sub(lambda found: ", ".join(sorted(found[0].split(", "))), text)
    return _LISTED.sub(lambda found: "\n".join(sorted(found[0].splitlines())) + "\n", text).strip()


_ASKED = re.compile(r"\$\((get [^()]*)\)")


class Terminal:
    """Runs the commands of a session on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._beside: _BackgroundCommand | None = None

    def run(self, step: Step) -> str:
        """The normalised output, errors and exit code of a step."""
        step = Step(self._filled(step.line), self._filled(step.stdin))
        words = shlex.split(step.line)
        if words[0] == "&":
            self._beside = _BackgroundCommand(self._command(words[2:]), self._environment())
            return self._beside.printed(int(words[1]))
        if words[0] == "fg":
            assert self._beside is not None, f"nothing runs beside: {step}"
            beside, self._beside = self._beside, None
            try:
                return beside.printed(int(words[1]))
            finally:
                beside.end()
        if words[0] == "until":
            return self._until(words[1:], step.stdin)
        done = self._done(words, step.stdin)
        return f"{normalise_output(done.stdout)}\n-- {normalise_output(done.stderr)}\n-- {done.returncode}"

    def _filled(self, text: str) -> str:
        return _ASKED.sub(lambda asked: self._done(shlex.split(asked[1]), "").stdout, text)

    def _until(self, words: list[str], stdin: str) -> str:
        """Repeat a command until it succeeds."""
        deadline = time.monotonic() + DEADLINE_S
        while (done := self._done(words, stdin)).returncode:
            assert time.monotonic() < deadline, f"{self._cluster.url}: {shlex.join(words)}: {done.stdout}{done.stderr}"
            time.sleep(0.2)
        return "-- 0"

    def _done(self, words: list[str], stdin: str) -> subprocess.CompletedProcess[str]:
        more, rest = {}, list(words)
        while "=" in rest[0]:
            name, _, more[name] = rest.pop(0).partition("=")
        return subprocess.run(
            self._command(rest),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={**self._environment(), **more},
        )

    def close(self) -> None:
        if self._beside is not None:
            self._beside.end()

    def _command(self, words: list[str]) -> list[str]:
        return [str(program("kubectl")), f"--kubeconfig={self._cluster.kubeconfig()}", *words]

    def _environment(self) -> dict[str, str]:
        """The environment of the user, with kubectl's cache and its files of refused edits in the cluster's folder."""
        folder = str(self._cluster.folder)
        return {"KUBE_EDITOR": "true", "PATH": "/bin", "HOME": folder, "TMPDIR": folder}


def compare_output(both: tuple[Terminal, Terminal], step: Step) -> str:
    """Run a step on both clusters; return the difference of the outputs, if any."""
    ours, real = both
    told, expected = ours.run(step), real.run(step)
    if told == expected:
        return ""
    changed = difflib.unified_diff(expected.splitlines(), told.splitlines(), "real", "ours", n=2, lineterm="")
    return "\n".join([f"$ {step}", *changed])


class _BackgroundCommand:
    """A background command."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()

    def printed(self, count: int) -> str:
        """The first `count` lines, once there are so many."""
        with self._news:
            enough = self._news.wait_for(lambda: len(self._lines) >= count, DEADLINE_S)
            assert enough, f"not {count} lines within {DEADLINE_S:g} s: {self._lines}"
            return normalise_output("".join(self._lines[:count]))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
