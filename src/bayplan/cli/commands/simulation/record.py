"""`bayplan record`: a cluster and its decisions in one file, to be studied elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace as replace_struct

from bayplan.batch.cluster_state import DEFAULT_SCHEDULER
from bayplan.cli.commands.simulation.cluster_source import (
    ClusterSource,
    configuration_options,
    read_source,
    resolve_setup,
    source_option,
)
from bayplan.cli.connection import ClusterConnection, explain_api_errors, open_client
from bayplan.cli.flags.connection_options import connection_options
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.signals import wait_until_stopped
from bayplan.codec.go_duration import DurationError, parse_duration
from bayplan.errors import UsageError
from bayplan.objects.kinds import kind_of
from bayplan.sim.offline.offline_cluster import EngineSetup, OfflineCluster, pending_pods
from bayplan.sim.recordings.anonymiser import Anonymiser
from bayplan.sim.recordings.observed_decisions import read_observed_decisions
from bayplan.sim.recordings.recorder import ClusterRecorder
from bayplan.sim.recordings.recording_file import (
    OBSERVED,
    VERSION,
    Recording,
    RecordingHeader,
    check_writable,
    write_recording,
)


@click.command("record")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--anonymous", "is_anonymous", is_flag=True, help="Replace names, labels and images by numbered ones.")
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C, and record what happens meanwhile.")
@click.option("--for", "for_text", metavar="DURATION", help="The same for so long: 90s, 10m, 2h.")
@click.option("--seed", type=int, default=0, show_default=True, help="With --from: decides between equally good nodes.")
@click.option(
    "--batch-scheduler-name",
    "batch_schedulers",
    multiple=True,
    default=(DEFAULT_SCHEDULER,),
    show_default=True,
    help="Pods with this schedulerName are the batch engine's. May be given several times.",
)
@source_option
@configuration_options
@plugin_options
@connection_options
def command(
    file: Path,
    is_anonymous: bool,
    follow: bool,
    for_text: str | None,
    seed: int,
    batch_schedulers: tuple[str, ...],
    files: tuple[Path, ...],
    config: Path | None,
    scheduler_conf: Path | None,
    plugin_folders: tuple[Path, ...],
    trust_writable_plugins: bool,
    connection: ClusterConnection,
) -> None:
    """Write a cluster and its decisions to FILE, packed where the name ends in .gz.

    Of a live cluster it is what there is at this moment, and which pods were given which nodes, in the order in which
    that happened; with --follow or --for also all that is decided, comes and goes from now on until the end of the
    recording. Of files (--from) both engines decide about the pods that wait, and that is recorded. --config and
    --scheduler-conf say with which configuration decisions were made; they go into the file. Nothing is changed.

    \b
    Examples:
      bayplan record cluster.jsonl.gz
      bayplan record cluster.jsonl --config scheduler.yaml --scheduler-conf volcano-scheduler.conf
      bayplan record hour.jsonl.gz --for 1h
      bayplan record --anonymous to-share.jsonl.gz --context production
      bayplan record expected.jsonl --from examples/cluster
    """
    for_s = _seconds(for_text)
    follow |= for_s is not None
    if follow and files:
        raise UsageError("--follow and --for watch a live cluster; leave out --from")
    check_writable(file)
    source = None if follow else read_source(files, connection)
    setup = resolve_setup(
        config,
        scheduler_conf,
        plugin_folders,
        trust_writable=trust_writable_plugins,
        batch_schedulers=batch_schedulers,
        recorded=None if source is None else source.recording,
    )
    if source is None:
        recording = record_live(connection, setup, for_s)
        recording = anonymise_recording(recording) if is_anonymous else recording
    else:
        recording = record_snapshot(source, setup, seed, is_anonymous=is_anonymous)
    write_recording(file, recording)
    click.echo(f"{file}: {_summary(recording)}")


def _seconds(text: str | None) -> float | None:
    """A duration in seconds; None where none is given."""
    if text is None:
        return None
    try:
        seconds = parse_duration(text).seconds
    except DurationError:
        seconds = 0.0
    if seconds <= 0:
        raise UsageError(f"--for takes a duration such as 90s, 10m or 1h30m; got {text!r}")
    return seconds


def record_live(connection: ClusterConnection, setup: EngineSetup, for_s: float | None) -> Recording:
    """What happens in a live cluster, until it is over or somebody says stop."""
    target, names = connection.target(), setup.scheduler_names()

    def tell(following: ClusterRecorder) -> None:
        for note in following.notes:
            click.echo(f"note: {note}", err=True)
        ends = f"for {for_s:g} seconds, or until Ctrl-C" if for_s is not None else "until Ctrl-C"
        click.echo(f"recording {target.server} {ends}", err=True)

    async def run() -> tuple[ClusterRecorder, datetime]:
        async with open_client(target) as client:
            following = ClusterRecorder(
                client,
                is_batch=lambda pod: pod.scheduler_name in setup.batch_schedulers,
                serves=lambda pod: pod.scheduler_name in names,
            )
            await wait_until_stopped(following.run(for_s, lambda: tell(following)), beside=asyncio.sleep(0))
            return following, client.clock.now()

    with explain_api_errors(target):
        following, until = asyncio.run(run())
    if following.started_at is None:
        raise click.Abort
    verdicts, changes = following.result()
    header = _header(setup, following.started_at, decisions=OBSERVED, until=until)
    return Recording(header, following.objects, tuple(verdicts), tuple(changes))


def anonymise_recording(recording: Recording) -> Recording:
    """The same with a number for every name; what was observed stays what it was."""
    names = Anonymiser([*recording.objects, *(change.item for change in recording.changes)])
    return Recording(
        replace_struct(recording.header, anonymous=True),
        tuple(map(names.rename_object, recording.objects)),
        tuple(map(names.rename_decision, recording.decisions)),
        tuple(replace(change, item=names.rename_object(change.item)) for change in recording.changes),
    )


def record_snapshot(source: ClusterSource, setup: EngineSetup, seed: int, *, is_anonymous: bool = False) -> Recording:
    """The recording of a cluster of one moment, or of one that was recorded before."""
    if source.is_observed:
        recording = _record_observed_decisions(source, setup, seed)
        return anonymise_recording(recording) if is_anonymous else recording
    objects = source.objects
    if is_anonymous:
        objects = tuple(map(Anonymiser(objects).rename_object, objects))
    with OfflineCluster(objects, setup, now=source.at, seed=seed) as still:
        verdicts = still.run_until_stable(pending_pods(objects, still)).verdicts
    header = _header(setup, source.at, seed=seed, anonymous=is_anonymous)
    return Recording(header, objects, tuple(verdicts))


def _record_observed_decisions(source: ClusterSource, setup: EngineSetup, seed: int) -> Recording:
    known = source.recording
    if known is not None:
        header = _header(setup, known.header.at, decisions=OBSERVED, seed=seed, until=known.header.until)
        return replace(known, header=header)
    names = setup.scheduler_names()
    verdicts = read_observed_decisions(
        source.objects,
        source.bound_at,
        is_batch=lambda pod: pod.scheduler_name in setup.batch_schedulers,
        serves=lambda pod: pod.scheduler_name in names,
    )
    return Recording(_header(setup, source.at, decisions=OBSERVED, seed=seed), source.objects, tuple(verdicts))


def _header(setup: EngineSetup, at: datetime, **fields: Any) -> RecordingHeader:
    return RecordingHeader(
        recording=VERSION,
        at=at,
        configuration=setup.configuration,
        batch_configuration=setup.batch_configuration,
        batch_schedulers=setup.batch_schedulers,
        default_queue=setup.default_queue,
        **fields,
    )


def _summary(recording: Recording) -> str:
    counts = Counter(kind_of(type(item)).plural for item in recording.objects)
    kinds = ", ".join(f"{counts[plural]} {plural}" for plural in ("nodes", "pods"))
    others = sum(counts.values()) - counts["nodes"] - counts["pods"]
    changes = f", {len(recording.changes)} changes" if recording.header.until is not None else ""
    return f"{kinds}, {others} other objects, {len(recording.decisions)} decisions{changes}"
