"""`bayplan controllers`: what a controller manager does, on any API server."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from pathlib import Path
from typing import Any

import click

from bayplan.app.controlling import LEASE_NAME, LEASE_NAMESPACE, ControllersProcess, controllers_process
from bayplan.cli.stopping import until_stopped
from bayplan.client import Client, Target, find_target
from bayplan.clock import SystemClock
from bayplan.controllers import CONTROLLER_NAMES, chosen, make_default_class
from bayplan.errors import UsageError


@click.command("controllers")
@click.option(
    "--controllers",
    "patterns",
    default="*",
    show_default=True,
    metavar="LIST",
    help="Which, with commas: * all, volcano all of Volcano's, a name that one, a minus before it all but that. Names "
    "are Kubernetes' or Volcano's.",
)
@click.option("--list", "listing", is_flag=True, help="Print their names and end.")
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Default: KUBECONFIG, ~/.kube/config, or the pod's."
)
@click.option("--context", default="", help="A context of the kubeconfig other than the current one.")
@click.option("--master", default="", help="The API server's address, instead of the kubeconfig's.")
@click.option("--kube-api-qps", "qps", type=float, default=200.0, show_default=True, help="Requests a second.")
@click.option("--kube-api-burst", "burst", type=int, default=400, show_default=True, help="Requests at once.")
@click.option(
    "--leader-elect", is_flag=True, help="Work only while holding a lease, so that several can stand by for each other."
)
@click.option("--leader-elect-resource-name", "lease_name", default=LEASE_NAME, show_default=True, help="That lease.")
@click.option(
    "--leader-elect-resource-namespace",
    "lease_namespace",
    default=LEASE_NAMESPACE,
    show_default=True,
    help="Of that lease.",
)
@click.option(
    "--scheduler-name",
    "schedulers",
    multiple=True,
    default=("volcano",),
    show_default=True,
    help="Whose pods get a PodGroup, as `bayplan batch run` has it; may come several times. Volcano's jobs go to the "
    "first.",
)
@click.option("--listen-address", default="", metavar="HOST:PORT", help="Serve /healthz, /livez and /metrics there.")
@click.option(
    "--default-storage-class",
    is_flag=True,
    help="Make a default StorageClass whose volumes are made at once, with nothing behind them.",
)
def command(
    patterns: str,
    listing: bool,
    kubeconfig: Path | None,
    context: str,
    master: str,
    qps: float,
    burst: int,
    leader_elect: bool,
    lease_name: str,
    lease_namespace: str,
    schedulers: tuple[str, ...],
    listen_address: str,
    default_storage_class: bool,
) -> None:
    """Run the controllers of a cluster until stopped: deployments, jobs, volumes, garbage, nodes and the rest.

    They are plain API clients in the place of kube-controller-manager, under its names. Do not run them where another
    controller manager does the same work, unless --controllers leaves that work to it.

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
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    only = chosen(patterns.split(","))
    if not all(schedulers):
        raise UsageError("--scheduler-name must not be empty; leave it out for volcano")
    target = find_target(kubeconfig, env=os.environ, context=context, server=master)

    async def run() -> None:
        if default_storage_class:
            async with Client(target, clock=SystemClock(), chance=random.Random()) as client:
                await make_default_class(client)
        options: dict[str, Any] = {
            "schedulers": schedulers,
            "leader_elect": leader_elect,
            "lease_name": lease_name,
            "lease_namespace": lease_namespace,
            "listen_address": listen_address,
        }
        async with controllers_process(target, only=only, qps=qps, burst=burst, **options) as process:
            await until_stopped(process.run(), beside=_tell_ready(process, target))
        click.echo("stopped")

    asyncio.run(run())


async def _tell_ready(process: ControllersProcess, target: Target) -> None:
    await process.synced()
    click.echo(f"{len(process.controllers.names)} controller(s) are running on {target.server}")
