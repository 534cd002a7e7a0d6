"""`bayplan apply`: make a cluster have what manifests say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from bayplan.cli.connection import ClusterConnection, run_with_client
from bayplan.cli.flags.connection_options import connection_options, namespace_option
from bayplan.cli.output.terminal import progress
from bayplan.client import Applier, Client
from bayplan.errors import ApiError, ObjectError, UsageError
from bayplan.objects.manifests import RawObject, raw_objects

_STDIN = Path("/dev/stdin")
_REQUEST_LEVEL_CODES = (0, 401, 429, 503, 504)
"""Nobody answers, knows us or has time: the next object would fare no better."""

filename_option = click.option(
    "-f",
    "--filename",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="A manifest, a folder of manifests, or - for standard input. May be given several times.",
)


@click.command("apply")
@filename_option
@namespace_option
@click.option("--force-conflicts", is_flag=True, help="Take fields from whoever owns them.")
@click.option("--field-manager", default="bayplan", show_default=True, help="In whose name fields are owned.")
@click.option("--dry-run", is_flag=True, help="Let the server check everything and keep nothing.")
@connection_options
def command(
    files: tuple[Path, ...],
    namespace: str,
    force_conflicts: bool,
    field_manager: str,
    dry_run: bool,
    connection: ClusterConnection,
) -> None:
    """Make a cluster have what manifests say: what is missing is created, what differs is changed.

    It is server-side apply, as `kubectl apply --server-side` has it: fields that a manifest does not name are left to
    whoever set them. What a definition brings (a CustomResourceDefinition) can be used further down in the same files.

    \b
    Examples:
      bayplan apply -f deployment.yaml
      bayplan apply -f examples/workloads -n shop
      cat pod.yaml | bayplan apply -f -
      bayplan apply -f deployment.yaml --dry-run --context staging
    """
    objects = read_objects(files)

    async def work(client: Client) -> None:
        applier = Applier(
            client,
            namespace=namespace,
            everything_there=bool(namespace),
            force=force_conflicts,
            dry_run=dry_run,
            manager=field_manager,
        )
        await _apply(applier, objects, dry_run=dry_run)

    run_with_client(connection, work)


async def _apply(applier: Applier, objects: Sequence[RawObject], *, dry_run: bool) -> None:
    """One after another, as they stand; one that is refused does not keep the others from being applied."""
    refused = 0
    with progress(f"applying {len(objects)} object(s)"):
        for raw in objects:
            try:
                applied = await applier.apply(raw.tree, raw.place)
            except ApiError as fault:
                if fault.code in _REQUEST_LEVEL_CODES:
                    raise
                told = f"{raw.place}: {raw.kind} {raw.name}: {' '.join(fault.details.split())}{_remedy(fault)}"
            except ObjectError as fault:
                told = str(fault)
            else:
                click.echo(f"{applied}{' (server dry run)' if dry_run else ''}")
                continue
            refused += 1
            click.echo(f"error: {told}", err=True)
    if refused:
        raise ApiError(f"{refused} of {len(objects)} object(s) were refused; correct them and apply again")


def _remedy(fault: ApiError) -> str:
    """What to do, where the server's sentence does not say it."""
    if "failed to create typed patch object" in fault.details:
        return "; write the field as its kind has it: a number or true that is meant as a text needs quotes"
    if fault.code == 403:
        return "; ask for that right, or choose another --context or --namespace"
    return ""


def read_objects(files: Sequence[Path]) -> list[RawObject]:
    """Every object of the files; standard input for -."""
    if any(str(path) == "-" for path in files) and sys.stdin.isatty():
        click.echo("reading a manifest from the terminal; end it with Ctrl-D", err=True)
    found = list(raw_objects([_STDIN if str(path) == "-" else path for path in files]))
    if not found:
        raise UsageError("there is no object in these files; a manifest starts with apiVersion and kind")
    return found
