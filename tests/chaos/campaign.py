"""A campaign: several configurations, some at a time, each in a process and a folder of its own.

    FOLDER/campaign.json                       seed, minutes, configurations
    FOLDER/CONFIGURATION/segment-N/journal.jsonl

A campaign that was interrupted goes on where it was: finished configurations stay, an unfinished one gets another
segment for the minutes that are left.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos import journal
from chaos.child_processes import end_with_parent
from chaos.configurations import Configuration, named
from chaos.journal import Journal
from chaos.report import as_text, summarize
from chaos.run import Run
from chaos.trace import Trace

TESTS = Path(__file__).resolve().parents[1]
_LEAST_MINUTES = 0.5
_CRASHES = 2


@dataclass(frozen=True, slots=True)
class Campaign:
    folder: Path
    seed: int
    minutes: float
    configurations: tuple[str, ...]

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {"seed": self.seed, "minutes": self.minutes, "configurations": self.configurations}
        (self.folder / "campaign.json").write_text(json.dumps(content, indent=2) + "\n")

    @property
    def command(self) -> str:
        """The command line that repeats it."""
        chosen = " ".join(f"--configuration {each}" for each in self.configurations)
        return f'make chaos ARGS="--minutes {self.minutes:g} --seed {self.seed} {chosen}"'

    def segments(self, name: str) -> list[Path]:
        return sorted(self.folder.glob(f"{name}/segment-*/journal.jsonl"))

    def minutes_done(self, name: str) -> float:
        """Minutes of faults in all segments so far; all of them where one came to its end."""
        total = 0.0
        for path in self.segments(name):
            last = [entry for entry in journal.read(path) if entry["what"] == "totals"]
            if last and last[-1]["done"]:
                return self.minutes
            total += last[-1]["at"] / 60 if last else 0.0
        return total


def load(folder: Path) -> Campaign:
    found = json.loads((folder / "campaign.json").read_text())
    return Campaign(folder, found["seed"], found["minutes"], tuple(found["configurations"]))


async def run_all(campaign: Campaign, jobs: int) -> dict[str, Any]:
    """Run what is not done yet; the summary of each configuration."""
    turns = asyncio.Semaphore(jobs)

    async def one(configuration: Configuration) -> None:
        async with turns:
            for _ in range(_CRASHES):
                if await _run_segment(campaign, configuration.full_name) == 0:
                    return

    await asyncio.gather(*(one(each) for each in named(campaign.configurations)))
    return report(campaign)


async def _run_segment(campaign: Campaign, name: str) -> int:
    left = campaign.minutes - campaign.minutes_done(name)
    if left <= 0:
        return 0
    number = len(campaign.segments(name))
    folder = campaign.folder / name / f"segment-{number}"
    folder.mkdir(parents=True)
    sys.stderr.write(f"{name}: {max(left, _LEAST_MINUTES):g} minutes of faults, in {folder}\n")
    command = [
        *(sys.executable, "-m", "chaos", "--one", name, "--folder", str(folder)),
        *("--minutes", f"{max(left, _LEAST_MINUTES):g}", "--seed", f"{campaign.seed}"),
    ]
    process = await asyncio.create_subprocess_exec(*command, cwd=TESTS, preexec_fn=end_with_parent)
    return await process.wait()


async def run_one(configuration: Configuration, folder: Path, seed: int, minutes: float) -> None:
    """One segment, in this process. Data of servers stays in a folder of its own that is deleted."""
    segment = folder.name.rpartition("-")[2]
    record = Journal(folder / "journal.jsonl")
    trace = Trace(folder / "trace.log")
    scratch = Path(tempfile.mkdtemp(prefix=f"chaos-{configuration.name}-"))
    try:
        run = Run(configuration, scratch, f"{seed}:{segment}", record, trace)
        await run.execute(minutes)
    finally:
        record.close()
        trace.close()
        for log in scratch.glob("*.log"):
            shutil.copy(log, folder / log.name)
        shutil.rmtree(scratch, ignore_errors=True)


def report(campaign: Campaign) -> dict[str, Any]:
    """Summaries of all configurations; written to report.json and report.txt as well."""
    found = {each.full_name: summarize(campaign.segments(each.full_name)) for each in named(campaign.configurations)}
    text = "\n\n".join(as_text(name, each) for name, each in found.items())
    whole = {"command": campaign.command, "seed": campaign.seed, "configurations": found}
    (campaign.folder / "report.json").write_text(json.dumps(whole, indent=1) + "\n")
    (campaign.folder / "report.txt").write_text(f"{text}\n\nrepeat it: {campaign.command}\n")
    return whole


def failed(whole: dict[str, Any]) -> list[str]:
    """Configurations with violations, or without an end."""
    return [name for name, each in whole["configurations"].items() if each["violations"] or not each["done"]]


__all__: Sequence[str] = ("Campaign", "failed", "load", "report", "run_all", "run_one")
