"""`bayplan crds`: the CRDs of Volcano and of BindRequests, for a cluster without them."""

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
@click.option("--all", "everything", is_flag=True, help="Print all CRDs, also those that the cluster has.")
@click.option("--install", is_flag=True, help="Create the missing CRDs instead of printing them.")
@click.option(
    "--only",
    "only",
    multiple=True,
    metavar="KIND",
    help="Only this resource, by its plural, such as bindrequests. May be given several times.",
)
@server_options
def command(
    everything: bool, install: bool, only: tuple[str, ...], kubeconfig: Path | None, context: str, master: str
) -> None:
    """Print the CustomResourceDefinitions of Volcano and of BindRequests that the cluster does not have yet.

    PodGroup, Queue, HyperNode, Numatopology, NodeShard, Job, CronJob, JobFlow, JobTemplate and Command, with the
    groups, versions, fields and columns of Volcano 1.15; BindRequest with those of KAI-Scheduler. A CRD that is
    installed with the same version, such as Volcano's own, is left out, so applying the output never replaces it. If
    none is missing, the installed CRDs that are equal are printed, so that kubectl finds them unchanged. Without a
    reachable cluster all CRDs are printed.

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
        read_installed = partial(installed_crds, wanted=wanted)
        installed = run_with_target(resolve_server(kubeconfig, context, master), read_installed)
    except (KubeconfigError, Unreachable) as fault:
        if install or kubeconfig is not None or master or context:
            raise
        click.echo(f"cannot read the CRDs of the cluster, so all are printed: {fault}", err=True)
        installed = []
    missing = list(definitions_to_install(installed, wanted))
    if install:
        _install(resolve_server(kubeconfig, context, master), missing)
    elif missing:
        _print(missing)
    else:
        _print_unchanged(list(installed_definitions(installed, wanted)))


def all_definitions() -> list[Definition]:
    return [*volcano_definitions(), bind_request_definition()]


def _select_definitions(only: tuple[str, ...]) -> list[Definition]:
    """The CRDs with these plurals, with or without their group; all if `only` is empty."""
    known = all_definitions()
    names = {name: each for each in known for name in (each["spec"]["names"]["plural"], each["metadata"]["name"])}
    for name in only:
        if name not in names:
            plurals = ", ".join(each["spec"]["names"]["plural"] for each in known)
            raise UsageError(f"--only {name}: unknown resource; use one of {plurals}")
    wanted = [names[name]["metadata"]["name"] for name in only]
    return [each for each in known if each["metadata"]["name"] in wanted] if only else known


def _print(definitions: list[Definition]) -> None:
    click.echo("---\n".join(yaml_text(each) for each in definitions), nl=False)


def _print_unchanged(unchanged: list[Definition]) -> None:
    """Print CRDs for a cluster that lacks none. kubectl fails if it gets nothing to apply, not even an empty list, so
    it gets CRDs that it finds unchanged."""
    if unchanged:
        click.echo(
            "the cluster has all CRDs; these equal the installed ones, so applying them changes nothing", err=True
        )
        _print(unchanged)
    else:
        click.echo(
            "the cluster has all CRDs, from another installation; there is none to apply, and kubectl fails without "
            "input: use `bayplan crds --install` instead",
            err=True,
        )


def _install(target: ConnectionConfig, missing: list[Definition]) -> None:
    async def create(client: Client) -> None:
        created = await create_crds(client, missing)
        for name in created:
            click.echo(f"{name} created")
        for name in (each["metadata"]["name"] for each in missing if each["metadata"]["name"] not in created):
            click.echo(f"{name} exists in another version and is unchanged; upgrade it with the tool that installed it")

    run_with_target(target, create)
    if not missing:
        click.echo("the cluster has all CRDs")
