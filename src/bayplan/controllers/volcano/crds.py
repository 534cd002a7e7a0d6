"""Does a cluster have Volcano's kinds? What it lacks is created; what is there is somebody's and stays as it is."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from bayplan.client import Client, Resource
from bayplan.errors import AlreadyExists, NotFound
from bayplan.objects.volcano.definitions import Definition, missing_definitions, volcano_definitions

DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)


async def installed_definitions(client: Client, wanted: Iterable[Definition]) -> list[dict[str, Any]]:
    """Those of their names that the cluster has, as it has them."""
    found: list[dict[str, Any]] = []
    for definition in wanted:
        with suppress(NotFound):
            found.append(await client.get_raw(DEFINITIONS, "", definition["metadata"]["name"]))
    return found


async def lacking_definitions(client: Client) -> list[Definition]:
    """Volcano's definitions that the cluster does not have in our version."""
    return list(missing_definitions(await installed_definitions(client, volcano_definitions())))


async def create_definitions(client: Client, lacking: Iterable[Definition]) -> list[str]:
    """Create them; the names of those that were not there."""
    created = []
    for definition in lacking:
        try:
            await client.create(DEFINITIONS, definition)
        except AlreadyExists:
            continue  # of another version, or somebody was quicker: it is not ours to change
        created.append(str(definition["metadata"]["name"]))
    return created
