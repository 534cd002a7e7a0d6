"""`bayplan crds`: the definitions of Volcano's kinds and of BindRequests, for a cluster that does not have them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from bayplan.cli.connection import run_with_target
from bayplan.cli.flags.connection_options import resolve_server, server_options
from bayplan.cli.output.printers import yaml_text
from bayplan.client import Client, ConnectionConfig
from bayplan.controllers.volcano.crds import create_crds, installed_crds
from bayplan.errors import KubeconfigError, Unreachable, UsageError
from bayplan.objects.kai.bind_request_definition import bind_request_definition
from bayplan.objects.volcano.definitions import (
    Definition,
    definitions_to_install,
    installed_definitions,
    volcano_definitions,
)


@click.command("crds")
@click.option("--all", "everything", is_flag=True, help="Print all of them, whatever the cluster has.")
@click.option("--install", is_flag=True, help="Create what the cluster lacks, instead of printing it.")
@click.option(
    "--only",
    "only",
    multiple=True,
    metavar="KIND",
    help="This kind and no other, by its plural, such as bindrequests. May be given several times.",
)
@server_options
def command(
    everything: bool, install: bool, only: tuple[str, ...], kubeconfig: Path | None, context: str, master: str
) -> None:
    """Print the CustomResourceDefinitions of Volcano's kinds, and of BindRequests, that the cluster does not have yet.

    PodGroup, Queue, HyperNode, Numatopology, NodeShard, Job, CronJob, JobFlow, JobTemplate and Command, with the
    groups, versions, fields and columns of Volcano 1.15; BindRequest with those of KAI-Scheduler. A definition that is
    installed with the same version, such as Volcano's own, is left out, so applying what is printed never replaces it.
    Where nothing is lacking, those that stand exactly so are printed, for kubectl to find them unchanged. Where no
    cluster can be asked, all of them are printed.

    \b
    Examples:
      bayplan crds | kubectl apply -f -
      bayplan crds --install
      bayplan crds --install --only bindrequests
      bayplan crds --all > crds.yaml
    """
    wanted = _select_definitions(only)
    if everything and not install:
        _print(wanted)
        return
    try:
        asking = partial(installed_crds, wanted=wanted)
        installed = run_with_target(resolve_server(kubeconfig, context, master), asking)
    except (KubeconfigError, Unreachable) as fault:
        if install or kubeconfig is not None or master or context:
            raise
        click.echo(f"no cluster was asked what it has, so these are all: {fault}", err=True)
        installed = []
    lacking = list(definitions_to_install(installed, wanted))
    if install:
        _install(resolve_server(kubeconfig, context, master), lacking)
    elif lacking:
        _print(lacking)
    else:
        _print_unchanged(list(installed_definitions(installed, wanted)))


def all_definitions() -> list[Definition]:
    """Every kind that Bayplan works with and Kubernetes does not have."""
    return [*volcano_definitions(), bind_request_definition()]


def _select_definitions(only: tuple[str, ...]) -> list[Definition]:
    """The kinds that are named, each by its plural, with its group or without; all where none is."""
    known = all_definitions()
    names = {name: each for each in known for name in (each["spec"]["names"]["plural"], each["metadata"]["name"])}
    for name in only:
        if name not in names:
            plurals = ", ".join(each["spec"]["names"]["plural"] for each in known)
            raise UsageError(f"--only {name}: there is no such kind here; known: {plurals}")
    wanted = [names[name]["metadata"]["name"] for name in only]
    return [each for each in known if each["metadata"]["name"] in wanted] if only else known


def _print(definitions: list[Definition]) -> None:
    click.echo("---\n".join(yaml_text(each) for each in definitions), nl=False)


def _print_unchanged(unchanged: list[Definition]) -> None:
    """For a cluster that has all of them. kubectl takes it for a fault when it is given nothing to apply, not even an
    empty list; so it gets what it will find unchanged."""
    if unchanged:
        click.echo("the cluster has all of them; these stand exactly so, and applying them changes nothing", err=True)
        _print(unchanged)
    else:
        click.echo(
            "the cluster has all of them, somebody else's; nothing is left to apply, and kubectl refuses to apply "
            "nothing: `bayplan crds --install` does not mind",
            err=True,
        )


def _install(target: ConnectionConfig, lacking: list[Definition]) -> None:
    async def create(client: Client) -> None:
        created = await create_crds(client, lacking)
        for name in created:
            click.echo(f"{name} created")
        for name in (each["metadata"]["name"] for each in lacking if each["metadata"]["name"] not in created):
            click.echo(f"{name} is there in another version, and is left as it is; whoever installed it can upgrade it")

    run_with_target(target, create)
    if not lacking:
        click.echo("the cluster has all of them")
