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
from bayplan.app.combined import combined_process
from bayplan.app.process import run_process
from bayplan.batch.live.options import LOCK_NAMESPACE
from bayplan.cli.commands.processes.batch_run import batch_settings, dump_handler, insecure_serving_options
from bayplan.cli.commands.processes.scheduler_setup import ProcessSetup, scheduler_command
from bayplan.cli.flags.go_command import Flag, FlagError, GoCommand
from bayplan.cli.flags.kube_scheduler_flags import KUBE_SCHEDULER_FLAGS
from bayplan.cli.flags.vc_scheduler_flags import VC_SCHEDULER_FLAGS
from bayplan.config.model import LeaderElection
from bayplan.config.volcano_feature_gates import VOLCANO_GATES, ignored_gate_messages

log = logging.getLogger(__name__)

_LOCK_NAMESPACE_FLAG = "lock-object-namespace"
_SHARED_FLAG_NAMES = {flag.name for flag in KUBE_SCHEDULER_FLAGS}
_VC_ONLY_FLAGS = tuple(flag for flag in VC_SCHEDULER_FLAGS if flag.name not in _SHARED_FLAG_NAMES)
_VC_DEFAULTS = {flag.name: flag.default for flag in VC_SCHEDULER_FLAGS}


def _as_run_flag(flag: Flag) -> Flag:
    """A flag of vc-scheduler, adapted. Its lease has only a namespace flag here; the other election flags are
    shared."""
    if flag.name != _LOCK_NAMESPACE_FLAG:
        return flag
    note = "Namespace of Volcano's lease; --leader-elect-resource-namespace is for kube-scheduler's."
    return replace(flag, help=note, displayed_default=LOCK_NAMESPACE)


RUN_FLAGS = (*KUBE_SCHEDULER_FLAGS, *map(_as_run_flag, _VC_ONLY_FLAGS))
"""The flags of kube-scheduler and vc-scheduler. A flag of both has kube-scheduler's meaning."""


@click.command("run", cls=GoCommand, flags=RUN_FLAGS)
@click.option("--binder", "with_binder", is_flag=True, help="Also run the binder, as `bayplan binder` does.")
@partial(scheduler_command, other_gates=VOLCANO_GATES)
def command(start: ProcessSetup, *, with_binder: bool) -> None:
    """Schedule all pods of a cluster: single ones, gangs and queues, by two engines on one cache.

    Flags are those of kube-scheduler (`bayplan scheduler`) and vc-scheduler (`bayplan batch run`); a flag of both has
    kube-scheduler's meaning. Neither engine uses resources that the other has assigned or freed by evictions. The
    process decides only while it holds the leases of both schedulers, so that no other scheduler runs, and stops both
    engines when it loses one. SIGUSR2 logs its state, SIGUSR1 writes the sessions' state to a file in --cache-dump-dir.

    \b
    Examples:
      bayplan run --kubeconfig ~/.kube/config --leader-elect=false
      bayplan run --config scheduler.yaml --scheduler-conf volcano-scheduler.conf --plugins-dir plugins
      bayplan run --scheduler-conf volcano-scheduler.conf --lock-object-namespace volcano --enable-pprof
      bayplan run --binder --settings settings.yaml
    """
    gates = tuple(start.options.serving.features.set_gates.items())
    for sentence in ignored_gate_messages(each for each in gates if each[0] in VOLCANO_GATES):
        log.warning("%s", sentence)
    own = {flag.name: start.flags[flag.name] for flag in _VC_ONLY_FLAGS}
    batch_flags = {**_VC_DEFAULTS, "feature-gates": gates, **own}
    batch = batch_settings(
        batch_flags, start.plugin_folders, trust_writable=start.trust_writable, own=start.options.settings
    )
    election = start.configuration.leader_election
    named = {"resource_name": batch.lease.resource_name, "resource_namespace": batch.lease.resource_namespace}
    batch = replace(batch, lease=replace_struct(election, **named))  # Volcano's lease with the same timings
    _warn_about_lease_namespace(start.flags, batch.lease)
    served = {profile.scheduler_name for profile in start.configuration.profiles}
    if duplicates := sorted(served.intersection(batch.options.scheduler_name)):
        raise FlagError(f"both engines would serve {', '.join(duplicates)}; give one of them another schedulerName")
    process = combined_process(
        start.configuration,
        start.registry,
        batch,
        start.target,
        plugins=start.reload_source,
        options=start.options,
        set_verbosity=start.logs.set_verbosity,
        binder=_binder_settings(start) if with_binder else None,
        openly=insecure_serving_options(start.flags),
    )
    freeze_memory()
    sys.exit(asyncio.run(run_process(process, dump_handler(start.flags))))


def _warn_about_lease_namespace(flags: Mapping[str, Any], lease: LeaderElection) -> None:
    """Warn if the namespace flag of Volcano's chart is set: here it means kube-scheduler's lease."""
    given = flags["leader-elect-resource-namespace"]
    if (
        lease.leader_elect
        and given not in (None, LeaderElection().resource_namespace)
        and not flags[_LOCK_NAMESPACE_FLAG]
    ):
        log.warning(
            "--leader-elect-resource-namespace is for kube-scheduler's lease; Volcano's is %s in %s, "
            "unless --lock-object-namespace sets its namespace",
            lease.resource_name,
            lease.resource_namespace,
        )


def _binder_settings(start: ProcessSetup) -> BinderSettings:
    """The settings of the binder beside the engines; it has a lease of its own if they have."""
    return BinderSettings.from_settings(
        start.options.settings,
        "--settings",
        known_binder_plugins(start.plugin_folders, trust_writable=start.trust_writable),
        lease=binder_lease(leader_elect=start.configuration.leader_election.leader_elect),
    )
