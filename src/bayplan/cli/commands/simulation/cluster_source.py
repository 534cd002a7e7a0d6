"""Source of a cluster and its configuration: options that `record`, `replay` and `whatif` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from bayplan.app.configuration import batch_configured, configured, known_actions
from bayplan.app.scheduler import build_engine
from bayplan.batch.cluster_state import DEFAULT_SCHEDULER
from bayplan.cache import Cache
from bayplan.cli.connection import ClusterConnection, run_with_client
from bayplan.cli.engine_setup import explain_batch_config_errors, explain_config_errors, read_text
from bayplan.clock import ManualClock, SystemClock
from bayplan.errors import UsageError
from bayplan.objects.defaults import with_all_defaults
from bayplan.objects.manifests import load_manifests
from bayplan.objects.meta import KubeObject
from bayplan.sim.offline.offline_cluster import EngineSetup
from bayplan.sim.recordings.cluster_reader import read_cluster
from bayplan.sim.recordings.recording_file import OBSERVED, Recording, is_recording, read_recording

F = TypeVar("F", bound=Callable[..., Any])


def configuration_options(command: F) -> F:
    """`--config` and `--scheduler-conf`."""
    config = click.option("--config", type=click.Path(path_type=Path), help="A KubeSchedulerConfiguration.")
    conf = click.option("--scheduler-conf", type=click.Path(path_type=Path), help="A volcano-scheduler.conf.")
    return config(conf(command))


def source_option(command: F) -> F:
    """`--from`, for commands that can read a cluster from files."""
    return click.option(
        "--from",
        "files",
        type=click.Path(path_type=Path),
        multiple=True,
        help="Read a recording, manifests or folders of manifests, not a live cluster. May be given several times.",
    )(command)


@dataclass(frozen=True, slots=True)
class ClusterSource:
    objects: tuple[KubeObject, ...]
    at: datetime
    bound_at: Mapping[str, datetime] = field(default_factory=dict)
    is_observed: bool = False
    """Whether decisions are read from the cluster instead of being computed."""
    recording: Recording | None = None


def read_source(files: tuple[Path, ...], connection: ClusterConnection) -> ClusterSource:
    """The cluster of the files, or the live one without files."""
    if not files:
        observed = run_with_client(connection, read_cluster)
        for note in observed.notes:
            click.echo(f"note: {note}", err=True)
        return ClusterSource(tuple(observed.objects), SystemClock().now(), observed.bound_at, is_observed=True)
    recordings = [path for path in files if is_recording(path)]
    if recordings:
        if len(files) > 1:
            raise UsageError(f"{recordings[0]} is a recording, which is a whole cluster; give no other file with it")
        recording = read_recording(recordings[0])
        is_observed = recording.header.decisions == OBSERVED
        at = recording.header.until or recording.header.at
        return ClusterSource(recording.objects_at_end(), at, is_observed=is_observed, recording=recording)
    loaded = load_manifests(files)
    for note in loaded.skipped:
        click.echo(f"ignored: {note}", err=True)
    objects = tuple(with_all_defaults(loaded.objects, loaded.places))
    return ClusterSource(objects, _newest_timestamp(objects))


def _newest_timestamp(objects: tuple[KubeObject, ...]) -> datetime:
    """The time of a cluster in files: equal files must give equal decisions, at any wall-clock time."""
    timestamps = [item.metadata.creation_timestamp for item in objects if item.metadata.creation_timestamp is not None]
    return max(timestamps, default=ManualClock().now())


def resolve_setup(
    config: Path | None,
    scheduler_conf: Path | None,
    plugin_folders: tuple[Path, ...],
    *,
    trust_writable: bool,
    batch_schedulers: tuple[str, ...] = (DEFAULT_SCHEDULER,),
    recorded: Recording | None = None,
) -> EngineSetup:
    """The setup of the schedulers: from the options, else from the recording."""
    found = (
        EngineSetup.from_header(recorded.header)
        if recorded is not None
        else EngineSetup(batch_schedulers=batch_schedulers)
    )
    setup = EngineSetup(
        configuration=read_text(config) if config is not None else found.configuration,
        batch_configuration=read_text(scheduler_conf) if scheduler_conf is not None else found.batch_configuration,
        batch_schedulers=found.batch_schedulers,
        default_queue=found.default_queue,
        plugin_folders=plugin_folders,
        trust_writable=trust_writable,
    )
    check_setup(setup, config, scheduler_conf)
    return setup


def check_setup(setup: EngineSetup, config: Path | str | None, scheduler_conf: Path | str | None) -> None:
    """Validate the configurations before any decision. Errors name the file."""
    registry = setup.registry()
    with explain_config_errors(config, registry):
        build_engine(configured(setup.configuration, registry), registry, Cache(), seed=0).close()
    actions = known_actions(setup.plugin_folders, trust_writable=setup.trust_writable)
    with explain_batch_config_errors(scheduler_conf or "the volcano-scheduler.conf of the recording", actions):
        batch_configured(setup.batch_configuration, actions)
