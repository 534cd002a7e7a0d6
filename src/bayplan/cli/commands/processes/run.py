"""`bayplan run`: both engines in one process, on one cache."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import click
from msgspec.structs import replace as replace_struct

from bayplan.app import freeze_memory
from bayplan.app.binder import BinderSettings, binder_lease, known_binder_plugins
from bayplan.app.combined import both_process
from bayplan.batch.live.options import LOCK_NAMESPACE
from bayplan.cli.commands.processes.batch_run import batch_settings, dumps_of, open_pages
from bayplan.cli.commands.processes.process_runner import run_process
from bayplan.cli.commands.processes.scheduler_setup import Start, started
from bayplan.cli.flags.go_command import Flag, FlagError, GoCommand
from bayplan.cli.flags.kube_scheduler_flags import FLAGS
from bayplan.cli.flags.vc_scheduler_flags import BATCH_FLAGS
from bayplan.config.model import LeaderElection
from bayplan.config.volcano_feature_gates import VOLCANO_GATES, gates_without_effect

log = logging.getLogger(__name__)

_LOCK = "lock-object-namespace"
_SHARED = {flag.name for flag in FLAGS}
_OF_BATCH = tuple(flag for flag in BATCH_FLAGS if flag.name not in _SHARED)
_UNSAID = {flag.name: flag.default for flag in BATCH_FLAGS}


def _here(flag: Flag) -> Flag:
    """A flag of vc-scheduler as it is told here. The lease that all others of the election are about is not its own."""
    if flag.name != _LOCK:
        return flag
    note = "Where Volcano's lease is; --leader-elect-resource-namespace is of kube-scheduler's."
    return replace(flag, help=note, shown=LOCK_NAMESPACE)


RUN_FLAGS = (*FLAGS, *map(_here, _OF_BATCH))
"""kube-scheduler's flags, and those of vc-scheduler. One that both have means what it does to kube-scheduler."""


@click.command("run", cls=GoCommand, flags=RUN_FLAGS)
@click.option("--binder", "with_binder", is_flag=True, help="Carry out BindRequests as well, as `bayplan binder` does.")
@partial(started, other_gates=VOLCANO_GATES)
def command(start: Start, *, with_binder: bool) -> None:
    """Schedule all pods of a cluster: single ones, gangs and queues, by two engines on one cache.

    Flags are kube-scheduler's (`bayplan scheduler`) and vc-scheduler's (`bayplan batch run`); one that both have means
    what it does to kube-scheduler. Neither engine takes room that the other has given away or evicted for. It decides
    only while it holds the leases of both schedulers, so that an old one stays out, and stops both engines when it
    loses one. SIGUSR2 writes what it knows into its log, SIGUSR1 what sessions know into a file of --cache-dump-dir.

    \b
    Examples:
      bayplan run --kubeconfig ~/.kube/config --leader-elect=false
      bayplan run --config scheduler.yaml --scheduler-conf volcano-scheduler.conf --plugins-dir plugins
      bayplan run --scheduler-conf volcano-scheduler.conf --lock-object-namespace volcano --enable-pprof
      bayplan run --binder --settings settings.yaml
    """
    gates = tuple(start.options.serving.features.given.items())
    for sentence in gates_without_effect(each for each in gates if each[0] in VOLCANO_GATES):
        log.warning("%s", sentence)
    own = {flag.name: start.flags[flag.name] for flag in _OF_BATCH}
    batch_flags = {**_UNSAID, "feature-gates": gates, **own}
    batch = batch_settings(
        batch_flags, start.plugin_folders, trust_writable=start.trust_writable, own=start.options.settings
    )
    election = start.configuration.leader_election
    named = {"resource_name": batch.lease.resource_name, "resource_namespace": batch.lease.resource_namespace}
    batch = replace(batch, lease=replace_struct(election, **named))  # the same timings, Volcano's own lease
    _tell_of_leases(start.flags, batch.lease)
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
        openly=open_pages(start.flags),
    )
    freeze_memory()
    sys.exit(asyncio.run(run_process(process, dumps_of(start.flags))))


def _tell_of_leases(flags: Mapping[str, Any], lease: LeaderElection) -> None:
    """Volcano's chart says where its lease is by a flag that means kube-scheduler's here: an old one would go on."""
    given = flags["leader-elect-resource-namespace"]
    if lease.leader_elect and given not in (None, LeaderElection().resource_namespace) and not flags[_LOCK]:
        log.warning(
            "--leader-elect-resource-namespace says where kube-scheduler's lease is; Volcano's is %s in %s, "
            "unless --lock-object-namespace says otherwise",
            lease.resource_name,
            lease.resource_namespace,
        )


def _binder(start: Start) -> BinderSettings:
    """How the binder runs beside the engines: a lease of its own where they have one."""
    return BinderSettings.of(
        start.options.settings,
        "--settings",
        known_binder_plugins(start.plugin_folders, trust_writable=start.trust_writable),
        lease=binder_lease(leader_elect=start.configuration.leader_election.leader_elect),
    )
