"""What could come next on the command line? Kinds and names of objects, for the Tab key.

Asked by a shell through the scripts of `bayplan completion`. Whatever goes wrong, or takes longer than a moment, offers
nothing: a Tab is no place for an error.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from bayplan.client import Client

_MOMENT_S = 2.0


def complete_kinds(context: click.Context, _: click.Parameter, unfinished: str) -> list[CompletionItem]:
    """Kinds for the first word, names of objects of that kind for those after it."""
    from bayplan.cli.connection import Connection, connected

    given = context.params
    connection = Connection(
        Path(given["kubeconfig"]) if given.get("kubeconfig") else None,
        given.get("context") or "",
        given.get("cluster") or "",
    )
    before = [word for word in given.get("what") or () if word]

    async def look() -> list[str]:
        async with asyncio.timeout(_MOMENT_S), connected(connection.target()) as client:
            if before:
                return await _names(client, before[0], given.get("namespace") or client.target.namespace)
            return await _kinds(client)

    try:
        found = asyncio.run(look())
    except Exception:
        return []
    return [CompletionItem(word) for word in found if word.startswith(unfinished)]


async def _kinds(client: Client) -> list[str]:
    from bayplan.client import read_catalogue

    catalogue = await read_catalogue(client.transport)
    return sorted({kind.resource.plural for kind in catalogue if "list" in kind.verbs})


async def _names(client: Client, word: str, namespace: str) -> list[str]:
    from bayplan.client import Wanted, read_catalogue, read_table

    kind = (await read_catalogue(client.transport)).one(word)
    wanted = Wanted(resource=kind.resource, namespace=namespace if kind.resource.namespaced else "")
    return [row.object.metadata.name for row in (await read_table(client.transport, wanted)).rows]
