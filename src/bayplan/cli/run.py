"""`bayplan run`: both engines in one process, on one cache."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace as replace_struct

from bayplan import __version__
from bayplan.app import build_engine, configured, freeze_memory, plugin_source
from bayplan.app.binding import BinderSettings, binder_lease, known_binder_plugins
from bayplan.app.together import both_process
from bayplan.cache import Cache
from bayplan.cli.batch_flags import BATCH_FLAGS
from bayplan.cli.batch_run import batch_settings
from bayplan.cli.go_command import FlagError, GoCommand
from bayplan.cli.options import explained, file_text
from bayplan.cli.page_options import page_option
from bayplan.cli.plugin_options import plugin_options
from bayplan.cli.running import run_process
from bayplan.cli.scheduler import process_options, start_logging, with_flags
from bayplan.cli.scheduler_flags import FLAGS
from bayplan.client import find_target
from bayplan.config.model import LeaderElection
from bayplan.config.own_settings import OwnSettings

_OF_BATCH = (
    "scheduler-name",
    "scheduler-conf",
    "schedule-period",
    "default-queue",
    "percentage-nodes-to-find",
    "ignored-provisioners",
    "scheduler-sharding-mode",
    "scheduler-sharding-name",
)
RUN_FLAGS = (*FLAGS, *(flag for flag in BATCH_FLAGS if flag.name in _OF_BATCH))
"""kube-scheduler's flags, and those of vc-scheduler that say something about decisions."""

_UNSAID = {flag.name: flag.default for flag in BATCH_FLAGS}


@click.command("run", cls=GoCommand, flags=RUN_FLAGS)
@click.option("--no-leader-elect", is_flag=True, help="The same as --leader-elect=false.")
@click.option("--binder", "with_binder", is_flag=True, help="Carry out BindRequests as well, as `bayplan binder` does.")
@click.option("--settings", type=click.Path(path_type=Path), help="A BayplanConfiguration: settings of Bayplan alone.")
@page_option()
@plugin_options
@click.version_option(__version__, prog_name="bayplan")
@click.pass_context
def command(
    context: click.Context,
    /,
    no_leader_elect: bool,
    with_binder: bool,
    settings: Path | None,
    page_address: str,
    plugin_folders: tuple[Path, ...],
    trust_writable_plugins: bool,
    **given: Any,
) -> None:
    """Schedule all pods of a cluster: single ones, gangs and queues, by two engines on one cache.

    Flags are kube-scheduler's (`bayplan scheduler`), and vc-scheduler's where they are about sessions. Neither engine
    takes room that the other has given away or evicted for. It decides only while it holds the leases of both
    schedulers, so that an old one stays out, and stops both engines when it loses one.

    \b
    Examples:
      bayplan run --kubeconfig ~/.kube/config --leader-elect=false
      bayplan run --config scheduler.yaml --scheduler-conf volcano-scheduler.conf --plugins-dir plugins
      bayplan run --binder --settings settings.yaml
    """
    assert isinstance(context.command, GoCommand)
    flags = context.command.values(given)
    if no_leader_elect:
        flags["leader-elect"] = False
    logs = start_logging(flags)
    context.call_on_close(logs.close)
    options = process_options(flags, context.command.texts(given), settings, page_address)
    path = Path(flags["config"]) if flags["config"] else None
    text = file_text(path) if path is not None else None
    features = options.serving.features
    plugins = plugin_source(text, plugin_folders, trust_writable=trust_writable_plugins, features=features)
    registry = plugins.registry()
    with explained(path, registry):
        configuration = with_flags(configured(text, registry, features), flags, alone=path is None)
        build_engine(configuration, registry, Cache()).close()
    batch_flags = {**_UNSAID, **{name: flags[name] for name in _OF_BATCH}}
    batch = batch_settings(batch_flags, plugin_folders, trust_writable=trust_writable_plugins, own=options.settings)
    election = configuration.leader_election
    named = {"resource_name": batch.lease.resource_name, "resource_namespace": batch.lease.resource_namespace}
    batch = replace(batch, lease=replace_struct(election, **named))  # the same timings, Volcano's own lease
    served = {profile.scheduler_name for profile in configuration.profiles}
    if twice := sorted(served.intersection(batch.options.scheduler_name)):
        raise FlagError(f"both engines would serve {', '.join(twice)}; give one of them another name")
    kubeconfig = configuration.client_connection.kubeconfig
    target = find_target(Path(kubeconfig) if kubeconfig else None, env=os.environ, server=flags["master"])
    process = both_process(
        configuration,
        registry,
        batch,
        target,
        plugins=plugins if plugin_folders else None,
        options=options,
        set_verbosity=logs.set_verbosity,
        binder=_binder(options.settings, plugin_folders, trust_writable_plugins, election) if with_binder else None,
    )
    freeze_memory()
    sys.exit(asyncio.run(run_process(process)))


def _binder(
    own: OwnSettings, folders: tuple[Path, ...], trust_writable: bool, election: LeaderElection
) -> BinderSettings:
    """How the binder runs beside the engines: a lease of its own where they have one."""
    return BinderSettings.read(
        own.binder_plugins,
        "binderPlugins",
        known_binder_plugins(folders, trust_writable=trust_writable),
        workers=own.binder_workers,
        lease=binder_lease(leader_elect=election.leader_elect),
    )
