"""`bayplan record`: writes a cluster and its decisions to one file."""

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
@click.option("--anonymous", "is_anonymous", is_flag=True, help="Replace names, labels and images by numbers.")
@click.option("--follow", is_flag=True, help="Record changes until Ctrl-C.")
@click.option("--for", "for_text", metavar="DURATION", help="Record changes for this time: 90s, 10m, 2h.")
@click.option("--seed", type=int, default=0, show_default=True, help="With --from: seed for ties between nodes.")
@click.option(
    "--batch-scheduler-name",
    "batch_schedulers",
    multiple=True,
    default=(DEFAULT_SCHEDULER,),
    show_default=True,
    help="schedulerName of the batch engine's pods. May be given several times.",
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
    """Write a cluster and its decisions to FILE, compressed if the name ends in .gz.

    Of a live cluster it records the current objects and the order in which pods were bound to nodes. With --follow or
    --for it also records all decisions and changes until the end of the recording. For files (--from) both engines
    decide about the pending pods, and these decisions are recorded. --config and --scheduler-conf are the
    configurations of the schedulers; they are stored in the file. The cluster is not changed.

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
        raise UsageError("--follow and --for need a live cluster; leave out --from")
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
    """A duration in seconds; None without a text."""
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
    """Record a live cluster until the time is over or a signal arrives."""
    target, names = connection.target(), setup.scheduler_names()

    def print_start(recorder: ClusterRecorder) -> None:
        for note in recorder.notes:
            click.echo(f"note: {note}", err=True)
        ends = f"for {for_s:g} seconds, or until Ctrl-C" if for_s is not None else "until Ctrl-C"
        click.echo(f"recording {target.server} {ends}", err=True)

    async def run() -> tuple[ClusterRecorder, datetime]:
        async with open_client(target) as client:
            recorder = ClusterRecorder(
                client,
                is_batch=lambda pod: pod.scheduler_name in setup.batch_schedulers,
                serves=lambda pod: pod.scheduler_name in names,
            )
            await wait_until_stopped(recorder.run(for_s, lambda: print_start(recorder)), beside=asyncio.sleep(0))
            return recorder, client.clock.now()

    with explain_api_errors(target):
        recorder, until = asyncio.run(run())
    if recorder.started_at is None:
        raise click.Abort
    verdicts, changes = recorder.result()
    header = _header(setup, recorder.started_at, decisions=OBSERVED, until=until)
    return Recording(header, recorder.objects, tuple(verdicts), tuple(changes))


def anonymise_recording(recording: Recording) -> Recording:
    """The recording with numbers instead of names; recorded decisions stay."""
    names = Anonymiser([*recording.objects, *(change.item for change in recording.changes)])
    return Recording(
        replace_struct(recording.header, anonymous=True),
        tuple(map(names.rename_object, recording.objects)),
        tuple(map(names.rename_decision, recording.decisions)),
        tuple(replace(change, item=names.rename_object(change.item)) for change in recording.changes),
    )


def record_snapshot(source: ClusterSource, setup: EngineSetup, seed: int, *, is_anonymous: bool = False) -> Recording:
    """The recording of a cluster at one moment, or of an earlier recording."""
    if source.is_observed:
        recording = _record_observed_decisions(source, setup, seed)
        return anonymise_recording(recording) if is_anonymous else recording
    objects = source.objects
    if is_anonymous:
        objects = tuple(map(Anonymiser(objects).rename_object, objects))
    with OfflineCluster(objects, setup, now=source.at, seed=seed) as cluster:
        verdicts = cluster.run_until_stable(pending_pods(objects, cluster)).decisions
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
    rest = sum(counts.values()) - counts["nodes"] - counts["pods"]
    changes = f", {len(recording.changes)} changes" if recording.header.until is not None else ""
    return f"{kinds}, {rest} other objects, {len(recording.decisions)} decisions{changes}"
