"""Shell completion of resource types, object names, namespaces and contexts.

Called by a shell through the scripts of `bayplan completion`. Any error or delay gives no completions, because a Tab
key must not print errors.
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

_TIMEOUT_S = 2.0


def complete_kinds(context: click.Context, _: click.Parameter, unfinished: str) -> list[CompletionItem]:
    """Resource types for the first word; object names of that type for the next words and after a slash."""
    before = [word for word in context.params.get("what") or () if word]
    kind, slash, _name = unfinished.partition("/")

    async def fetch(client: Client) -> list[str]:
        if slash:
            return [f"{kind}/{name}" for name in await _list_names(client, kind, _current_namespace(context, client))]
        if before and "/" not in before[0]:
            return await _list_names(client, before[0], _current_namespace(context, client))
        return await _list_kinds(client)

    return _complete_from_server(context, unfinished, fetch)


def complete_pods(context: click.Context, _: click.Parameter, unfinished: str) -> list[CompletionItem]:
    async def fetch(client: Client) -> list[str]:
        return await _list_names(client, "pods", _current_namespace(context, client))

    return _complete_from_server(context, unfinished, fetch)


def complete_namespaces(context: click.Context, _: click.Parameter, unfinished: str) -> list[CompletionItem]:
    return _complete_from_server(context, unfinished, lambda client: _list_names(client, "namespaces", ""))


def complete_contexts(context: click.Context, _: click.Parameter, unfinished: str) -> list[CompletionItem]:
    """The contexts of the kubeconfig, without a request to a server."""
    from bayplan.client.auth.kubeconfig import kubeconfig_paths, load_merged

    named = context.params.get("kubeconfig")
    try:
        known = load_merged([Path(named)] if named else kubeconfig_paths(os.environ)).contexts
    except Exception:
        return []
    return _matching_items(unfinished, sorted(known))


def _complete_from_server(
    context: click.Context, unfinished: str, fetch: Callable[[Client], Awaitable[list[str]]]
) -> list[CompletionItem]:
    from bayplan.cli.connection import ClusterConnection, open_client

    given = context.params

    async def run() -> list[str]:
        connection = ClusterConnection(
            Path(given["kubeconfig"]) if given.get("kubeconfig") else None,
            given.get("context") or "",
            given.get("cluster") or "",
        )
        async with asyncio.timeout(_TIMEOUT_S), open_client(connection.target()) as client:
            return await fetch(client)

    try:
        return _matching_items(unfinished, asyncio.run(run()))
    except Exception:
        return []


def _matching_items(unfinished: str, words: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(unfinished)]


def _current_namespace(context: click.Context, client: Client) -> str:
    return context.params.get("namespace") or client.target.namespace


async def _list_kinds(client: Client) -> list[str]:
    from bayplan.client import discover_rest_mapper

    mapper = await discover_rest_mapper(client.transport)
    return sorted({kind.resource.plural for kind in mapper if "list" in kind.verbs})


async def _list_names(client: Client, word: str, namespace: str) -> list[str]:
    from bayplan.client import TableQuery, discover_rest_mapper, read_table

    kind = (await discover_rest_mapper(client.transport)).find_kind(word)
    wanted = TableQuery(resource=kind.resource, namespace=namespace if kind.resource.namespaced else "")
    return [row.object.metadata.name for row in (await read_table(client.transport, wanted)).rows]
