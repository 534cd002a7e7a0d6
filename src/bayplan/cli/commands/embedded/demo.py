"""`bayplan demo`: a cluster at work, in half a minute, with nothing but Python."""

from __future__ import annotations

import logging

import click


@click.command("demo")
@click.option(
    "--keep", is_flag=True, help="Leave the cluster up afterwards, for kubectl and `bayplan get`, until Ctrl-C."
)
def command(keep: bool) -> None:
    """Start a cluster of 50 nodes in three zones in this process, and watch it work.

    A web deployment spreads over the zones, a batch of jobs comes and goes, gangs of two queues share GPUs and one
    reclaims what is its own, an urgent pod evicts another, and one pod fits nowhere and is told why. Both engines are
    at work. Nothing is installed and nothing is left: the nodes are fake, all else is real.

    \b
    Examples:
      bayplan demo
      bayplan demo --keep
      bayplan demo | cat
    """
    click.echo("starting a cluster: 50 nodes in 3 zones, an API server, controllers and a scheduler, in one process")
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.ERROR)  # retries are no part of the story
    # Loaded before the loop begins: Ctrl-C ends that at once, and there is nothing yet to put away.
    from bayplan.cli.demo.scenario import run_demo
    from bayplan.cli.signals import run_until_stopped

    run_until_stopped(run_demo(keep=keep))
