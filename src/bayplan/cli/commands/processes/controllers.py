"""`bayplan controllers`: the controllers, on any API server."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import click

from bayplan import __version__
from bayplan.app.controllers import LEASE_NAME, LEASE_NAMESPACE, ControllersProcess, controllers_process
from bayplan.cli.flags.go_command import IGNORED_CHART_WORDS, GoCommand
from bayplan.cli.flags.kube_controller_manager_flags import KUBE_CONTROLLER_FLAGS, expand_controller_names
from bayplan.cli.flags.vc_manager_flags import CONTROLLER_MANAGER_FLAGS, start_volcano_logs, warn_about_ignored_flags
from bayplan.cli.signals import wait_until_stopped
from bayplan.client import Client, ConnectionConfig, load_connection_config
from bayplan.clock import SystemClock
from bayplan.controllers import CONTROLLER_NAMES, make_default_class, select_controllers
from bayplan.errors import UsageError

_DEFAULT_METRICS_ADDRESS = ":8081"
"""The default address of vc-controller-manager's metrics."""


@click.command(
    "controllers",
    cls=GoCommand,
    flags=(*CONTROLLER_MANAGER_FLAGS, *KUBE_CONTROLLER_FLAGS),
    ignored=IGNORED_CHART_WORDS,
    options_section="Options",
    suggests=True,
)
@click.option(
    "--controllers",
    "patterns",
    default="*",
    show_default=True,
    metavar="LIST",
    help="The controllers to run, separated by commas. *: all; volcano: all of Volcano's; NAME: this one; -NAME: all "
    "but this one. Names are those of Kubernetes or Volcano, or their short forms.",
)
@click.option("--list", "listing", is_flag=True, help="Print the names of all controllers and exit.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Default: KUBECONFIG, ~/.kube/config, or the pod's service account.",
)
@click.option("--context", default="", help="A context of the kubeconfig instead of the current one.")
@click.option("--master", default="", help="The API server's address, instead of the kubeconfig's.")
@click.option("--kube-api-qps", "qps", type=float, default=200.0, show_default=True, help="Requests a second.")
@click.option("--kube-api-burst", "burst", type=int, default=400, show_default=True, help="Burst of requests.")
@click.option("--leader-elect-resource-name", "lease_name", default=LEASE_NAME, show_default=True, help="The lease.")
@click.option(
    "--leader-elect-resource-namespace",
    "lease_namespace",
    default=LEASE_NAMESPACE,
    show_default=True,
    help="Namespace of the lease.",
)
@click.option(
    "--scheduler-name",
    "schedulers",
    multiple=True,
    default=("volcano",),
    show_default=True,
    help="Schedulers whose pods get PodGroups, as in `bayplan batch run`. May be given several times; the first is the "
    "default of Volcano's jobs.",
)
@click.option("--listen-address", default="", metavar="HOST:PORT", help="Serve /healthz, /livez and /metrics there.")
@click.option(
    "--default-storage-class",
    is_flag=True,
    help="Create a default StorageClass whose volumes are provisioned at once, without real storage.",
)
@click.version_option(__version__, prog_name="bayplan")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    patterns: str,
    listing: bool,
    kubeconfig: Path | None,
    context: str,
    master: str,
    qps: float,
    burst: int,
    lease_name: str,
    lease_namespace: str,
    schedulers: tuple[str, ...],
    listen_address: str,
    default_storage_class: bool,
    **given: Any,
) -> None:
    """Run the controllers of a cluster until stopped: deployments, jobs, volumes, garbage collection, nodes and so on.

    They are plain API clients with the controller names of kube-controller-manager. Do not run a controller where
    another controller manager does the same work; exclude it with --controllers. The flags of vc-controller-manager
    are accepted, too, and those of kube-controller-manager that manifests contain.

    \b
    Examples:
      bayplan controllers
      bayplan controllers --kubeconfig ./test.kubeconfig --default-storage-class
      bayplan controllers --controllers='*,-job-controller,-cronjob-controller'
      bayplan controllers --controllers='*,-volcano'
      bayplan controllers --controllers=deployment-controller,replicaset-controller
      bayplan controllers --list
    """
    if listing:
        click.echo("\n".join(CONTROLLER_NAMES))
        return
    assert isinstance(ctx.command, GoCommand)
    flags = ctx.command.values(given)
    start_volcano_logs(ctx, flags)
    warn_about_ignored_flags(ctx, given)
    only = select_controllers(expand_controller_names(patterns.split(",")))
    if not all(schedulers):
        raise UsageError("--scheduler-name must not be empty; leave it out for volcano")
    target = load_connection_config(kubeconfig, env=os.environ, context=context, server=master)

    async def run() -> None:
        if default_storage_class:
            async with Client(target, clock=SystemClock(), chance=random.Random()) as client:
                await make_default_class(client)
        options: dict[str, Any] = {
            "schedulers": schedulers,
            "inherits": flags["inherit-owner-annotations"],
            "leader_elect": flags["leader-elect"],
            "lease_name": lease_name,
            "lease_namespace": flags["lock-object-namespace"] or lease_namespace,
            "listen_address": listen_address or (_DEFAULT_METRICS_ADDRESS if flags["enable-metrics"] else ""),
            "health_address": flags["healthz-address"] if flags["enable-healthz"] else "",
        }
        async with controllers_process(target, only=only, qps=qps, burst=burst, **options) as process:
            await wait_until_stopped(process.run(), beside=_print_ready(process, target))
        click.echo("stopped")

    asyncio.run(run())


async def _print_ready(process: ControllersProcess, target: ConnectionConfig) -> None:
    await process.wait_synced()
    click.echo(f"{len(process.controllers.names)} controller(s) are running on {target.server}")
