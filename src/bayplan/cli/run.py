"""`bayplan run`: both engines in one process, on one cache."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import click
from msgspec.structs import replace as replace_struct

from bayplan.app import freeze_memory
from bayplan.app.binding import BinderSettings, binder_lease, known_binder_plugins
from bayplan.app.together import both_process
from bayplan.cli.batch_flags import BATCH_FLAGS
from bayplan.cli.batch_run import batch_settings
from bayplan.cli.go_command import FlagError, GoCommand
from bayplan.cli.running import run_process
from bayplan.cli.scheduler_flags import FLAGS
from bayplan.cli.scheduler_start import Start, started

_OF_BATCH = (
    "scheduler-name",
    "scheduler-conf",
    "disable-default-scheduler-config",
    "schedule-period",
    "default-queue",
    "node-selector",
    "percentage-nodes-to-find",
    "minimum-feasible-nodes",
    "minimum-percentage-nodes-to-find",
    "ignored-provisioners",
    "scheduler-sharding-mode",
    "scheduler-sharding-name",
)
RUN_FLAGS = (*FLAGS, *(flag for flag in BATCH_FLAGS if flag.name in _OF_BATCH))
"""kube-scheduler's flags, and those of vc-scheduler that say something about decisions."""

_UNSAID = {flag.name: flag.default for flag in BATCH_FLAGS}


@click.command("run", cls=GoCommand, flags=RUN_FLAGS)
@click.option("--binder", "with_binder", is_flag=True, help="Carry out BindRequests as well, as `bayplan binder` does.")
@started
def command(start: Start, *, with_binder: bool) -> None:
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
    batch_flags = {**_UNSAID, **{name: start.flags[name] for name in _OF_BATCH}}
    batch = batch_settings(
        batch_flags, start.plugin_folders, trust_writable=start.trust_writable, own=start.options.settings
    )
    election = start.configuration.leader_election
    named = {"resource_name": batch.lease.resource_name, "resource_namespace": batch.lease.resource_namespace}
    batch = replace(batch, lease=replace_struct(election, **named))  # the same timings, Volcano's own lease
    served = {profile.scheduler_name for profile in start.configuration.profiles}
    if twice := sorted(served.intersection(batch.options.scheduler_name)):
        raise FlagError(f"both engines would serve {', '.join(twice)}; give one of them another name")
    process = both_process(
        start.configuration,
        start.registry,
        batch,
        start.target,
        plugins=start.reloaded,
        options=start.options,
        set_verbosity=start.logs.set_verbosity,
        binder=_binder(start) if with_binder else None,
    )
    freeze_memory()
    sys.exit(asyncio.run(run_process(process)))


def _binder(start: Start) -> BinderSettings:
    """How the binder runs beside the engines: a lease of its own where they have one."""
    own = start.options.settings
    return BinderSettings.read(
        own.binder_plugins,
        "binderPlugins",
        known_binder_plugins(start.plugin_folders, trust_writable=start.trust_writable),
        workers=own.binder_workers,
        lease=binder_lease(leader_elect=start.configuration.leader_election.leader_elect),
    )
