"""`bayplan demo`: a cluster with example workloads, in half a minute and in Python alone."""

from __future__ import annotations

import logging

import click


@click.command("demo")
@click.option(
    "--keep", is_flag=True, help="Keep the cluster up afterwards, for kubectl and `bayplan get`, until Ctrl-C."
)
def command(keep: bool) -> None:
    """Start a cluster of 50 nodes in three zones in this process, and watch it work.

    A web deployment spreads over the zones, and a batch of jobs completes. Gangs of two queues share GPUs, and one
    queue reclaims its share. An urgent pod evicts another pod, and one pod fits no node and gets the reason. Both
    engines run. The demo installs nothing and leaves nothing behind: only the nodes are fake.

    \b
    Examples:
      bayplan demo
      bayplan demo --keep
      bayplan demo | cat
    """
    click.echo("starting a cluster: 50 nodes in 3 zones, an API server, controllers and a scheduler, in one process")
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.ERROR)  # hide warnings about retries
    # Imported before the loop starts: Ctrl-C ends imports at once, and there is nothing to clean up yet.
    from bayplan.cli.demo.scenario import run_demo
    from bayplan.cli.signals import run_until_stopped

    run_until_stopped(run_demo(keep=keep))
