"""What could come next on the command line? Kinds and names of objects, namespaces and contexts, for the Tab key.

Asked by a shell through the scripts of `bayplan completion`. Whatever goes wrong, or takes longer than a moment, offers
nothing: a Tab is no place for an error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from bayplan.client import Client

_MOMENT_S = 2.0


def complete_kinds(context: click.Context, _: click.Parameter, unfinished: str) -> list[CompletionItem]:
    """Kinds for the first word, names of objects of that kind for those after it, and behind a slash."""
    before = [word for word in context.params.get("what") or () if word]
    kind, slash, _name = unfinished.partition("/")

    async def look(client: Client) -> list[str]:
        if slash:
            return [f"{kind}/{name}" for name in await _names(client, kind, _namespace(context, client))]
        if before and "/" not in before[0]:
            return await _names(client, before[0], _namespace(context, client))
        return await _kinds(client)

    return _offered(context, unfinished, look)


def complete_pods(context: click.Context, _: click.Parameter, unfinished: str) -> list[CompletionItem]:
    async def look(client: Client) -> list[str]:
        return await _names(client, "pods", _namespace(context, client))

    return _offered(context, unfinished, look)


def complete_namespaces(context: click.Context, _: click.Parameter, unfinished: str) -> list[CompletionItem]:
    return _offered(context, unfinished, lambda client: _names(client, "namespaces", ""))


def complete_contexts(context: click.Context, _: click.Parameter, unfinished: str) -> list[CompletionItem]:
    """Those of the kubeconfig; no server is asked."""
    from bayplan.client.auth.kubeconfig import kubeconfig_paths, merged

    named = context.params.get("kubeconfig")
    try:
        known = merged([Path(named)] if named else kubeconfig_paths(os.environ)).contexts
    except Exception:
        return []
    return _beginning(unfinished, sorted(known))


def _offered(
    context: click.Context, unfinished: str, look: Callable[[Client], Awaitable[list[str]]]
) -> list[CompletionItem]:
    """What the cluster that the options mean has to offer."""
    from bayplan.cli.connection import Connection, connected

    given = context.params

    async def ask() -> list[str]:
        connection = Connection(
            Path(given["kubeconfig"]) if given.get("kubeconfig") else None,
            given.get("context") or "",
            given.get("cluster") or "",
        )
        async with asyncio.timeout(_MOMENT_S), connected(connection.target()) as client:
            return await look(client)

    try:
        return _beginning(unfinished, asyncio.run(ask()))
    except Exception:
        return []


def _beginning(unfinished: str, words: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(unfinished)]


def _namespace(context: click.Context, client: Client) -> str:
    return context.params.get("namespace") or client.target.namespace


async def _kinds(client: Client) -> list[str]:
    from bayplan.client import read_catalogue

    catalogue = await read_catalogue(client.transport)
    return sorted({kind.resource.plural for kind in catalogue if "list" in kind.verbs})


async def _names(client: Client, word: str, namespace: str) -> list[str]:
    from bayplan.client import Wanted, read_catalogue, read_table

    kind = (await read_catalogue(client.transport)).one(word)
    wanted = Wanted(resource=kind.resource, namespace=namespace if kind.resource.namespaced else "")
    return [row.object.metadata.name for row in (await read_table(client.transport, wanted)).rows]
