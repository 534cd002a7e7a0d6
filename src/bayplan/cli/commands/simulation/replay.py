"""`bayplan replay`: repeats the decisions of a recording and shows the first difference."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bayplan.cli.commands.simulation.cluster_source import configuration_options, resolve_setup
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.output.printers import print_value
from bayplan.sim.offline.decision_replay import ReplayResult, replay_recording
from bayplan.sim.recordings.recording_file import read_recording


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--seed", type=int, default=None, help="A seed instead of the recorded one.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@configuration_options
@plugin_options
def command(
    file: Path,
    seed: int | None,
    output: str,
    config: Path | None,
    scheduler_conf: Path | None,
    plugin_folders: tuple[Path, ...],
    trust_writable_plugins: bool,
) -> None:
    """Repeat the decisions of FILE and show the first difference; exit code 1 if there is one.

    Choosing another node with the same score is no difference. After a difference the replay continues from the
    recorded decision, so the number of differences is meaningful. With --config or --scheduler-conf it shows the
    decisions of another configuration. The same recording, configuration and seed give the same output, byte for byte.

    \b
    Examples:
      bayplan replay cluster.jsonl.gz
      bayplan replay cluster.jsonl.gz --config bin-packing.yaml
      bayplan replay cluster.jsonl.gz -o json
    """
    recording = read_recording(file)
    setup = resolve_setup(
        config, scheduler_conf, plugin_folders, trust_writable=trust_writable_plugins, recorded=recording
    )
    found = replay_recording(recording, setup, seed=seed)
    if output == "text":
        _print(found)
    else:
        print_value(found.as_data(), output)
    sys.exit(1 if found.differences else 0)


def _print(found: ReplayResult) -> None:
    first = found.first
    if first is None:
        click.echo(f"{len(found.decisions)} decisions, all the same")
        return
    click.echo(f"{len(found.decisions)} decisions, {len(found.differences)} different; the first:")
    click.echo(first.describe())
    for line in first.because:
        click.echo(f"  {line}")
