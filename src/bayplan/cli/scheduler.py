"""`bayplan scheduler`: the pod engine on a real API server, with kube-scheduler's flags."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import click
from msgspec.structs import replace

from bayplan.app import configured, known_plugins, scheduler_process
from bayplan.cli.options import file_text, plugin_options
from bayplan.client import Target, find_target
from bayplan.config.duration import Duration, DurationError, parse_duration
from bayplan.config.model import Configuration, LeaderElection
from bayplan.errors import ConfigError
from bayplan.framework.registry import Registry

_LEVELS = (logging.INFO, logging.INFO, logging.INFO, logging.INFO, logging.DEBUG)


@click.command("scheduler")
@click.option(
    "--config", type=click.Path(path_type=Path), help="A KubeSchedulerConfiguration; the default one without."
)
@click.option("--kubeconfig", default="", help="How to reach the API server; ignored when --config says it.")
@click.option("--master", default="", help="The API server's address, in place of the kubeconfig's.")
@click.option("--leader-elect/--no-leader-elect", default=None, help="Only one of several processes decides. [on]")
@click.option("--leader-elect-lease-duration", default=None, help="How long a lease is good for without renewal. [15s]")
@click.option("--leader-elect-renew-deadline", default=None, help="How long the leader tries to renew it. [10s]")
@click.option("--leader-elect-retry-period", default=None, help="How often candidates try. [2s]")
@click.option("--leader-elect-resource-name", default=None, help="The lease. [kube-scheduler]")
@click.option("--leader-elect-resource-namespace", default=None, help="Where it is. [kube-system]")
@click.option("--kube-api-qps", type=float, default=None, help="Requests a second; ignored with --config. [50]")
@click.option("--kube-api-burst", type=int, default=None, help="And at once; ignored with --config. [100]")
@click.option("-v", "--v", "verbosity", type=int, default=0, help="How much is logged.")
@plugin_options
def command(
    config: Path | None,
    kubeconfig: str,
    master: str,
    leader_elect: bool | None,
    leader_elect_lease_duration: str | None,
    leader_elect_renew_deadline: str | None,
    leader_elect_retry_period: str | None,
    leader_elect_resource_name: str | None,
    leader_elect_resource_namespace: str | None,
    kube_api_qps: float | None,
    kube_api_burst: int | None,
    verbosity: int,
    plugin_folders: tuple[Path, ...],
    trust_writable_plugins: bool,
) -> None:
    """Schedule the pods of a cluster, in kube-scheduler's place.

    Configuration files and flags are kube-scheduler's own. Runs until it is told to stop (SIGTERM, SIGINT): then it
    finishes what is under way, gives up the lease and ends with 0. A process that loses its lease ends with 1.
    SIGUSR2 writes what it knows into its log, and whether that is what the API server says.

    \b
    Examples:
      bayplan scheduler --kubeconfig ~/.kube/config --no-leader-elect
      bayplan scheduler --config scheduler.yaml --plugins-dir plugins -v 2
    """
    logging.basicConfig(
        level=_LEVELS[min(verbosity, len(_LEVELS) - 1)],
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    registry = known_plugins(plugin_folders, trust_writable=trust_writable_plugins)
    configuration = configured(file_text(config) if config is not None else None, registry)
    flags = {
        "leader_elect": leader_elect,
        "lease_duration": _duration(leader_elect_lease_duration),
        "renew_deadline": _duration(leader_elect_renew_deadline),
        "retry_period": _duration(leader_elect_retry_period),
        "resource_name": leader_elect_resource_name,
        "resource_namespace": leader_elect_resource_namespace,
    }
    election: LeaderElection = replace(
        configuration.leader_election, **{name: value for name, value in flags.items() if value is not None}
    )
    connection = configuration.client_connection
    if config is None:
        given = {"kubeconfig": kubeconfig or None, "qps": kube_api_qps, "burst": kube_api_burst}
        connection = replace(connection, **{name: value for name, value in given.items() if value is not None})
    configuration = replace(configuration, leader_election=election, client_connection=connection)
    path = Path(connection.kubeconfig) if connection.kubeconfig else None
    target = find_target(path, env=os.environ, server=master)
    sys.exit(asyncio.run(_run(configuration, registry, target)))


async def _run(configuration: Configuration, registry: Registry, target: Target) -> int:
    loop = asyncio.get_running_loop()
    async with scheduler_process(configuration, registry, target) as process:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.stop)
        dumps: set[asyncio.Task[None]] = set()
        loop.add_signal_handler(signal.SIGUSR2, lambda: dumps.add(loop.create_task(process.dump())))
        return await process.run()


def _duration(text: str | None) -> Duration | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except DurationError as fault:
        raise ConfigError(f"{fault}; write one such as 15s or 1m30s", stage="flags") from None
