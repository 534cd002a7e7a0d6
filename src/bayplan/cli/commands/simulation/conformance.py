"""`bayplan conformance`: compares Bayplan's decisions with recorded ones of the real scheduler."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from bayplan.cli.output.printers import print_table
from bayplan.errors import UsageError
from bayplan.plugins import default_plugins
from bayplan.testing.conformance import Disagreement, ScenarioLine, compare_answers, read_lines, run_scenario

_MAX_DIFFERENCES_PER_LINE = 5


@dataclass(slots=True)
class _ConformanceTally:
    """Number of lines by family: evaluated, compared, in agreement, failed."""

    compared: Counter[str] = field(default_factory=Counter)
    agreed: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    differing: list[tuple[ScenarioLine, list[Disagreement]]] = field(default_factory=list)
    failed: list[tuple[ScenarioLine, str]] = field(default_factory=list)
    """Lines that failed and have no recorded answer. Failed lines with one count as different."""

    def add(self, line: ScenarioLine, got: dict[str, Any]) -> list[Disagreement]:
        self.answered[line.family] += 1
        if line.expected is None:
            if "failure" in got:
                self.failed.append((line, got["failure"]))
            return []
        self.compared[line.family] += 1
        found = compare_answers(line.expected, got, partial=line.exact is False)
        if found:
            self.differing.append((line, found))
        else:
            self.agreed[line.family] += 1
        return found

    @property
    def verdict(self) -> str:
        return f"AGREE {self.agreed.total()} of {self.compared.total()}"


@click.command("conformance")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--family", help="Run only lines whose name starts with this word, e.g. spread.")
@click.option("--answers", type=click.Path(path_type=Path), help="Write Bayplan's answers, one line a scenario.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(file: Path, family: str | None, answers: Path | None, output: str) -> None:
    """Run recorded scenarios and compare the results with the recorded answers.

    FILE ("-": standard input) has one JSON object a line, plain or gzip. Prints every disagreement with expected and
    actual value, a table by family and, last, AGREE n of m. Lines without a recorded answer are only evaluated. The
    exit code is 0 only when every line could be evaluated and all agree.

    \b
    Examples:
      bayplan conformance tests/conformance/data/kube-scheduler-1.36.jsonl.gz
      bayplan conformance mine.jsonl --family spread --answers answers.jsonl
      zcat recorded.jsonl.gz | head -100 | bayplan conformance -
    """
    lines = [line for line in read_lines(file) if family is None or line.family == family]
    if not lines:
        raise UsageError(f"{file} has no lines" + (f" of family {family}" if family else ""))
    tally = _run(lines, answers, quiet=output == "json")
    if output == "json":
        click.echo(json.dumps(_as_json(tally), indent=2))
    else:
        _print_table(tally)
        click.echo(tally.verdict)
    sys.exit(1 if tally.differing or tally.failed else 0)


def _run(lines: list[ScenarioLine], answers: Path | None, *, quiet: bool) -> _ConformanceTally:
    registry = default_plugins()
    tally = _ConformanceTally()
    progress = Console(stderr=True)
    shown: Iterable[ScenarioLine] = lines
    if progress.is_terminal:
        shown = track(lines, "evaluating", console=progress, transient=True)
    with _AnswersFile(answers) as sink:
        for line in shown:
            got = run_scenario(line, registry)
            if sink is not None:
                sink.write(json.dumps(got) + "\n")
            found = tally.add(line, got)
            if found and not quiet:
                _print_disagreements(line, found)
            elif line.expected is None and "failure" in got and not quiet:
                click.echo(f"{line.name} (line {line.number}):\n  failure   {got['failure']}")
    return tally


class _AnswersFile:
    """Context manager of the file for answers; None without one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stream: TextIO | None = None

    def __enter__(self) -> TextIO | None:
        if self._path is not None:
            try:
                self._stream = self._path.open("w", encoding="utf-8")
            except OSError as fault:
                raise UsageError(f"cannot write {self._path}: {fault.strerror}; give another --answers file") from None
        return self._stream

    def __exit__(self, *failure: object) -> None:
        if self._stream is not None:
            self._stream.close()


def _print_disagreements(line: ScenarioLine, found: list[Disagreement]) -> None:
    click.echo(f"{line.name} (line {line.number}):")
    for each in found[:_MAX_DIFFERENCES_PER_LINE]:
        click.echo(f"  {each.where}")
        click.echo(f"    expected  {json.dumps(each.expected)}")
        click.echo(f"    got       {json.dumps(each.got)}")
    if len(found) > _MAX_DIFFERENCES_PER_LINE:
        click.echo(f"  … and {len(found) - _MAX_DIFFERENCES_PER_LINE} more")


def _rows(tally: _ConformanceTally) -> Iterator[tuple[str, int, int, int]]:
    for name in tally.answered:
        yield name, tally.answered[name], tally.compared[name], tally.agreed[name]


def _print_table(tally: _ConformanceTally) -> None:
    failed = Counter(line.family for line, _ in tally.failed)
    table = Table("family", "scenarios", "compared", "agree", box=None, pad_edge=False)
    if failed:
        table.add_column("failed")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, answered, compared, agreed in _rows(tally):
        style = "green" if agreed == compared and not failed[name] else "red"
        cells = [escape(name), str(answered), str(compared), str(agreed), *([str(failed[name])] if failed else ())]
        table.add_row(*cells, style=style)
    print_table(table)


def _as_json(tally: _ConformanceTally) -> dict[str, Any]:
    return {
        "agree": tally.agreed.total(),
        "compared": tally.compared.total(),
        "families": {
            name: {"scenarios": answered, "compared": compared, "agree": agreed}
            for name, answered, compared, agreed in _rows(tally)
        },
        "disagreements": [
            {
                "scenario": line.name,
                "line": line.number,
                "where": each.where,
                "expected": each.expected,
                "got": each.got,
            }
            for line, found in tally.differing
            for each in found
        ],
        "failures": [
            {"scenario": line.name, "line": line.number, "failure": sentence} for line, sentence in tally.failed
        ],
    }
