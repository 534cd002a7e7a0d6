"""Compares the speed of this tree with that of another revision, in one run on one machine.

    python tools/bench_compare.py --base main --rounds 5 --workload mixed --batch-workload gangs

Both trees get their kernels. Each round measures every workload in both trees, one after the other, and the next round
in the other order, so that a change of the machine's speed reaches both. Printed are the ratio of the medians of the
CPU time of a decision (this tree divided by the base; below 1 is faster) and the lowest and highest ratio of a round.
Writes `build/bench/compare.json`. Exit code 1 when a median is above `--limit` and above the highest ratio that two
rounds of the base have to each other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
TREES = ROOT / "build" / "bench-compare"
OUTPUT = ROOT / "build" / "bench" / "compare.json"

Figures = dict[str, list[float]]
"""CPU time of a decision in microseconds, by workload, one for each round."""


def checkout(revision: str) -> Path:
    """A copy of a revision's tree in `build/bench-compare`, with its kernel."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", f"{revision}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        sys.exit(f"there is no revision {revision!r}; give a commit, a branch or a tag")
    commit = found.stdout.strip()
    tree = TREES / commit[:12]
    if not tree.exists():
        unfinished = tree.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", unfinished], input=archive.stdout, check=True)
        unfinished.rename(tree)
    return tree


def kernel_of(tree: Path) -> Path:
    """Build the kernel of a tree and return the folder that has to come first on the path."""
    say(f"building the kernel of {tree}")
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    subprocess.run([sys.executable, "tools/build_kernel.py"], cwd=tree, env=environment, check=True)
    return tree / "build" / "kernel"


def measure(tree: Path, kernel: Path, program: str, options: list[str]) -> dict[str, float]:
    """Run one benchmark program of a tree once."""
    figures = tree / "build" / "bench" / "compare-round.json"
    figures.unlink(missing_ok=True)
    command = [
        sys.executable,
        f"benchmarks/{program}.py",
        "--rounds",
        "1",
        "-o",
        "json",
        "--file",
        str(figures),
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": str(kernel)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not figures.exists():
        sys.exit(f"{' '.join(command)} in {tree} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    rows = json.loads(figures.read_text(encoding="utf-8"))["workloads"]
    return {f"{program}/{row['workload']}": row["cpu_p50_us"] or row["p50_us"] for row in rows}


def options_of(asked: argparse.Namespace) -> dict[str, list[str]]:
    """The options of each benchmark program that is asked for."""
    size = ["--nodes", str(asked.nodes)] if asked.nodes else []
    core = ["--no-growth", "--no-memory", "--naive-pods", "0", *size]
    batch = ["--no-growth", *size]
    for each in asked.workload:
        core += ["--workload", each]
    for each in asked.batch_workload:
        batch += ["--workload", each]
    programs = {"core": core, "batch": batch}
    if asked.workload and not asked.batch_workload:
        del programs["batch"]
    if asked.batch_workload and not asked.workload:
        del programs["core"]
    return programs


def run(asked: argparse.Namespace) -> tuple[Figures, Figures]:
    """The figures of the base and of this tree."""
    trees = [checkout(asked.base), ROOT]
    kernels = [kernel_of(tree) for tree in trees]
    figures: tuple[Figures, Figures] = ({}, {})
    for number in range(asked.rounds):
        for program, options in options_of(asked).items():
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                say(f"round {number + 1} of {asked.rounds}: {program}, {('base', 'this tree')[side]}")
                for workload, found in measure(trees[side], kernels[side], program, options).items():
                    figures[side].setdefault(workload, []).append(found)
    return figures


def summarize(base: Figures, ours: Figures) -> dict[str, dict[str, float]]:
    """Ratios by workload, for workloads that both trees have."""
    table = {}
    for workload in sorted(base.keys() & ours.keys()):
        rounds = [mine / theirs for mine, theirs in zip(ours[workload], base[workload], strict=True)]
        table[workload] = {
            "base_us": median(base[workload]),
            "this_us": median(ours[workload]),
            "ratio": median(ours[workload]) / median(base[workload]),
            "lowest": min(rounds),
            "highest": max(rounds),
            "base_spread": max(base[workload]) / min(base[workload]),
        }
    return table


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="the revision to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", action="append", default=[], help="of benchmarks/core.py; may be repeated")
    parser.add_argument("--batch-workload", action="append", default=[], help="of benchmarks/batch.py; may be repeated")
    parser.add_argument("--nodes", type=int, help="nodes of the cluster, for all workloads")
    parser.add_argument("--limit", type=float, default=1.03, help="the highest ratio without an error")
    asked = parser.parse_args()
    table = summarize(*run(asked))
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps({"base": asked.base, "rounds": asked.rounds, "workloads": table}, indent=1))
    sys.stdout.write(f"{'workload':32} {'base us':>10} {'this us':>10} {'ratio':>7} {'rounds':>13}  spread of base\n")
    slower = False
    for workload, row in table.items():
        regressed = row["ratio"] > max(asked.limit, row["base_spread"])
        slower = slower or regressed
        sys.stdout.write(
            f"{workload:32} {row['base_us']:10.1f} {row['this_us']:10.1f} {row['ratio']:7.3f} "
            f"{row['lowest']:6.3f}-{row['highest']:.3f}  {row['base_spread']:.3f}{'  SLOWER' if regressed else ''}\n"
        )
    say(f"written to {OUTPUT}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
