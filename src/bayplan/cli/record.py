"""`bayplan record`: a cluster and its decisions in one file, to be studied elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import click

from bayplan.batch.ledger import DEFAULT_SCHEDULER
from bayplan.cli.cluster_source import Source, chosen_setup, configuration_options, read_source, source_option
from bayplan.cli.connection import Connection, connection_options
from bayplan.cli.plugin_options import plugin_options
from bayplan.objects.kinds import kind_of
from bayplan.sim.anonymous import Anonymiser
from bayplan.sim.observing import observed
from bayplan.sim.recording import DECIDED, OBSERVED, VERSION, Header, Recording, Verdict, write_recording
from bayplan.sim.still_cluster import Setup, StillCluster, waiting_in


@click.command("record")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--anonymous", "is_anonymous", is_flag=True, help="Replace names, labels and images by numbered ones.")
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
    seed: int,
    batch_schedulers: tuple[str, ...],
    files: tuple[Path, ...],
    config: Path | None,
    scheduler_conf: Path | None,
    plugin_folders: tuple[Path, ...],
    trust_writable_plugins: bool,
    connection: Connection,
) -> None:
    """Write a cluster and its decisions to FILE, packed where the name ends in .gz.

    Of a live cluster it is what there is at this moment, and which pods were given which nodes, in the order in which
    that happened. Of files (--from) both engines decide about the pods that wait, and that is recorded. --config and
    --scheduler-conf say with which configuration decisions were made; they go into the file. Nothing is changed.

    \b
    Examples:
      bayplan record cluster.jsonl.gz
      bayplan record cluster.jsonl --config scheduler.yaml --scheduler-conf volcano-scheduler.conf
      bayplan record --anonymous to-share.jsonl.gz --context production
      bayplan record expected.jsonl --from examples/cluster
    """
    source = read_source(files, connection)
    setup = chosen_setup(
        config,
        scheduler_conf,
        plugin_folders,
        trust_writable=trust_writable_plugins,
        batch_schedulers=batch_schedulers,
        recorded=source.recording,
    )
    if is_anonymous:
        source = _without_names(source)
    recording = recorded(source, setup, seed, is_anonymous=is_anonymous)
    write_recording(file, recording)
    click.echo(f"{file}: {_told(recording)}")


def _without_names(source: Source) -> Source:
    names = Anonymiser(source.objects)
    before = source.recording
    return replace(
        source,
        objects=tuple(map(names.item, source.objects)),
        bound_at={names.name(uid): at for uid, at in source.bound_at.items()},
        recording=before and replace(before, verdicts=tuple(map(names.verdict, before.verdicts))),
    )


def recorded(source: Source, setup: Setup, seed: int, *, is_anonymous: bool = False) -> Recording:
    """The recording of a cluster."""
    header = Header(
        recording=VERSION,
        at=source.at,
        decisions=OBSERVED if source.is_observed else DECIDED,
        seed=seed,
        anonymous=is_anonymous,
        configuration=setup.configuration,
        batch_configuration=setup.batch_configuration,
        batch_schedulers=setup.batch_schedulers,
        default_queue=setup.default_queue,
    )
    return Recording(header, source.objects, tuple(_decisions(source, setup, seed)))


def _decisions(source: Source, setup: Setup, seed: int) -> list[Verdict]:
    if source.recording is not None and source.is_observed:
        return list(source.recording.verdicts)
    if source.is_observed:
        names = setup.scheduler_names()
        return observed(
            source.objects,
            source.bound_at,
            is_batch=lambda pod: pod.scheduler_name in setup.batch_schedulers,
            serves=lambda pod: pod.scheduler_name in names,
        )
    with StillCluster(source.objects, setup, now=source.at, seed=seed) as still:
        return still.come_to_rest(waiting_in(source.objects, still)).verdicts


def _told(recording: Recording) -> str:
    counts = Counter(kind_of(type(item)).plural for item in recording.objects)
    kinds = ", ".join(f"{counts[plural]} {plural}" for plural in ("nodes", "pods"))
    others = sum(counts.values()) - counts["nodes"] - counts["pods"]
    return f"{kinds}, {others} other objects, {len(recording.verdicts)} decisions"
