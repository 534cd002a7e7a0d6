"""`bayplan binder`: carries out BindRequests, in place of KAI-Scheduler's binder or beside it."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import click

from bayplan.app.binder import (
    LEASE_NAMESPACE,
    BinderMonitor,
    BinderProcess,
    BinderSettings,
    binder_lease,
    binder_process,
    known_binder_plugins,
    serve_binder_health,
)
from bayplan.binder.plugin_registry import stages_of
from bayplan.cli.engine_setup import read_text
from bayplan.cli.flags.go_command import Flag, GoCommand
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.signals import wait_until_stopped
from bayplan.client import ConnectionConfig, LeaderElector, load_connection_config
from bayplan.clock import SystemClock
from bayplan.codec.go_flags import go_bool, go_float32, go_int32, go_level
from bayplan.config.bayplan_settings import BayplanSettings, load_settings
from bayplan.config.validation import check_rate
from bayplan.errors import ConfigError, UsageError
from bayplan.telemetry.logs import LogOptions, start_logs

_OPTIONS = "Options"
_FLAGS = (
    Flag("leader-elect", go_bool, True, "Work only while holding a lease.", _OPTIONS),
    Flag(
        "kube-api-qps",
        go_float32,
        2000.0,
        "Requests a second; 0 or less: unlimited.",
        _OPTIONS,
        displayed_default="2000",
    ),
    Flag("kube-api-burst", go_int32, 4000, "Burst of requests.", _OPTIONS),
    Flag("v", go_level, None, "Log verbosity.", _OPTIONS, short="v", displayed_default="warnings"),
)
"""Flags with the syntax of the schedulers' flags of these names."""


@click.command("binder", cls=GoCommand, flags=_FLAGS, options_section=_OPTIONS, suggests=True)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Default: KUBECONFIG, ~/.kube/config, or the pod's service account.",
)
@click.option("--context", default="", help="A context of the kubeconfig instead of the current one.")
@click.option("--master", default="", help="The API server's address, instead of the kubeconfig's.")
@click.option(
    "--settings",
    type=click.Path(path_type=Path),
    help="A BayplanConfiguration: binderPlugins, binderWorkers, binderPluginSeconds, resourceReservation.",
)
@plugin_options
@click.option("--all", "takes_all", is_flag=True, help="Handle every BindRequest, also those of other schedulers.")
@click.option("--no-leader-elect", is_flag=True, help="The same as --leader-elect=false.")
@click.option(
    "--leader-elect-resource-namespace",
    "namespace",
    default=LEASE_NAMESPACE,
    show_default=True,
    help="Namespace of the lease.",
)
@click.option("--listen-address", default="", help="The address of health and metrics, such as :8082.")
@click.option("--list", "listing", is_flag=True, help="Print the plugins in their running order, and exit.")
@click.pass_context
def command(
    invocation: click.Context,
    /,
    kubeconfig: Path | None,
    context: str,
    master: str,
    settings: Path | None,
    plugin_folders: tuple[Path, ...],
    trust_writable_plugins: bool,
    takes_all: bool,
    no_leader_elect: bool,
    namespace: str,
    listen_address: str,
    listing: bool,
    **given: Any,
) -> None:
    """Bind the pods of BindRequests that schedulers create, until stopped.

    It handles the requests of Bayplan's engines (they carry a label), so it may run beside KAI-Scheduler's own binder.
    It prepares volumes, devices and whatever plugins add, and binds the pods. Failures are retried, and finally
    reported in the status of the request. It can be killed at any point: the next instance continues.

    \b
    Examples:
      bayplan binder
      bayplan binder --leader-elect=false --plugins-dir plugins -v 2
      bayplan binder --all --settings settings.yaml --listen-address :8082
      bayplan binder --list
    """
    assert isinstance(invocation.command, GoCommand)
    flags = invocation.command.values(given)
    try:
        check_rate(flags["kube-api-qps"], flags["kube-api-burst"])
    except ConfigError as fault:
        raise UsageError(str(fault)) from None
    own = BayplanSettings() if settings is None else load_settings(read_text(settings), str(settings))
    plugins = known_binder_plugins(plugin_folders, trust_writable=trust_writable_plugins)
    wanted = BinderSettings.from_settings(
        own,
        str(settings),
        plugins,
        handles_all_requests=takes_all,
        lease=binder_lease(leader_elect=flags["leader-elect"] and not no_leader_elect, namespace=namespace),
        qps=flags["kube-api-qps"],
        burst=flags["kube-api-burst"],
    )
    if listing:
        for name, choice in plugins.choices(wanted.plugin_changes):
            click.echo(f"{name:<18} {choice.priority:>4}  {', '.join(stages_of(plugins.classes[name]))}")
        return
    _configure_logs(invocation, flags["v"])
    target = load_connection_config(kubeconfig, env=os.environ, context=context, server=master)
    asyncio.run(_run(wanted, target, own, listen_address))


def _configure_logs(invocation: click.Context, verbosity: int | None) -> None:
    """Log warnings, or with -v everything up to that level, in klog's format."""
    if verbosity is None:
        logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
        return
    invocation.call_on_close(start_logs(LogOptions(verbosity=verbosity), SystemClock()).close)


async def _run(settings: BinderSettings, target: ConnectionConfig, own: BayplanSettings, address: str) -> None:
    started: asyncio.Future[BinderProcess] = asyncio.get_running_loop().create_future()
    await wait_until_stopped(
        _run_until_stopped(settings, target, own, address, started), beside=_print_ready(started, target)
    )
    click.echo("stopped")


async def _run_until_stopped(
    settings: BinderSettings,
    target: ConnectionConfig,
    own: BayplanSettings,
    address: str,
    started: asyncio.Future[BinderProcess],
) -> None:
    clock = SystemClock()
    monitor = BinderMonitor(clock)
    async with (
        serve_binder_health(monitor, address, clock),
        binder_process(settings, target, monitor=monitor, watchdog_s=own.watchdog_seconds, clock=clock) as process,
    ):
        if isinstance(process.election, LeaderElector):
            process.election.on_new_leader = partial(_print_leader, process, process.election)
        started.set_result(process)
        await process.run()


def _print_leader(process: BinderProcess, election: LeaderElector, leader: str) -> None:
    """Report the leader to the user of a standby, who may not know that another binder runs."""
    if leader and leader != election.identity and not process.ready.is_set():
        click.echo(f"the binder waits for the lease {election.lock}, which {leader} holds")


async def _print_ready(started: asyncio.Future[BinderProcess], target: ConnectionConfig) -> None:
    process = await started
    await process.ready.wait()
    click.echo(f"the binder is running on {target.server}")
