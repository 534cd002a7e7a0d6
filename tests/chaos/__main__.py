"""Command line of the campaign."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from chaos.campaign import Campaign, failed, load, report, run_all, run_one
from chaos.configurations import DEFAULT, EVERY

_BUILD = Path(__file__).resolve().parents[2] / "build" / "chaos"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--minutes", type=click.FloatRange(min=0.1), default=10.0, help="Faults in each configuration.")
@click.option("--seed", type=int, default=7, help="Of all random choices.")
@click.option(
    "--configuration",
    "configurations",
    multiple=True,
    default=("all",),
    type=click.Choice(["all", "every", *EVERY]),
    help=f"May be given several times. all: {', '.join(DEFAULT)}; every: all on both servers.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Configurations at the same time.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where journals, logs and the report go.")
@click.option("--resume", type=click.Path(path_type=Path, exists=True), help="Go on with the campaign of a folder.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@click.option("--only-report", is_flag=True, help="With --resume: report what there is, and run nothing.")
@click.option("--one", type=click.Choice(list(EVERY)), hidden=True)
def main(
    minutes: float,
    seed: int,
    configurations: tuple[str, ...],
    jobs: int,
    folder: Path | None,
    resume: Path | None,
    output: str,
    only_report: bool,
    one: str | None,
) -> None:
    """Run Bayplan's processes under faults, and check that nothing is lost, over-committed or left over.

    Ends with 1 where an invariant was violated or a configuration did not come to its end.
    """
    if one is not None:
        assert folder is not None
        asyncio.run(run_one(EVERY[one], folder, seed, minutes))
        return
    if resume is not None:
        campaign = load(resume)
    else:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        campaign = Campaign((folder or _BUILD / stamp).resolve(), seed, minutes, configurations)
        campaign.save()
    whole = report(campaign) if only_report else asyncio.run(run_all(campaign, jobs))
    text = (campaign.folder / "report.txt").read_text()
    click.echo(json.dumps(whole, indent=1) if output == "json" else text)
    click.echo(f"written to {campaign.folder}", err=True)
    sys.exit(1 if failed(whole) else 0)


main()
