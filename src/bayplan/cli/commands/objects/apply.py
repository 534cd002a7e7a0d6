"""`bayplan apply`: server-side apply of manifests."""

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
"""Statuses that affect every request: no answer, unauthorized, overloaded. Further objects would fail the same way."""

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
@click.option("--force-conflicts", is_flag=True, help="Take over fields of other field managers.")
@click.option("--field-manager", default="bayplan", show_default=True, help="The field manager's name.")
@click.option("--dry-run", is_flag=True, help="Let the server validate all objects and store none.")
@connection_options
def command(
    files: tuple[Path, ...],
    namespace: str,
    force_conflicts: bool,
    field_manager: str,
    dry_run: bool,
    connection: ClusterConnection,
) -> None:
    """Create or update objects from manifests.

    It is server-side apply, as in `kubectl apply --server-side`: fields that a manifest does not name keep their
    values. A CustomResourceDefinition can be followed by objects of its kind in the same files.

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
            enforce_namespace=bool(namespace),
            force=force_conflicts,
            dry_run=dry_run,
            manager=field_manager,
        )
        await _apply(applier, objects, dry_run=dry_run)

    run_with_client(connection, work)


async def _apply(applier: Applier, objects: Sequence[RawObject], *, dry_run: bool) -> None:
    """Apply the objects in their order. A rejected object does not keep the rest from being applied."""
    rejected = 0
    with progress(f"applying {len(objects)} object(s)"):
        for raw in objects:
            try:
                applied = await applier.apply(raw.tree, raw.place)
            except ApiError as fault:
                if fault.code in _REQUEST_LEVEL_CODES:
                    raise
                message = f"{raw.place}: {raw.kind} {raw.name}: {' '.join(fault.details.split())}{_remedy(fault)}"
            except ObjectError as fault:
                message = str(fault)
            else:
                click.echo(f"{applied}{' (server dry run)' if dry_run else ''}")
                continue
            rejected += 1
            click.echo(f"error: {message}", err=True)
    if rejected:
        raise ApiError(f"{rejected} of {len(objects)} object(s) were rejected; correct them and apply again")


def _remedy(fault: ApiError) -> str:
    """What to do, if the server's message does not say it."""
    if "failed to create typed patch object" in fault.details:
        return "; use the type of the field: a number or true that is meant as text needs quotes"
    if fault.code == 403:
        return "; ask for that permission, or choose another --context or --namespace"
    return ""


def read_objects(files: Sequence[Path]) -> list[RawObject]:
    """Every object of the files; `-` is the standard input."""
    if any(str(path) == "-" for path in files) and sys.stdin.isatty():
        click.echo("reading a manifest from the terminal; end it with Ctrl-D", err=True)
    found = list(raw_objects([_STDIN if str(path) == "-" else path for path in files]))
    if not found:
        raise UsageError("these files contain no object; a manifest starts with apiVersion and kind")
    return found
