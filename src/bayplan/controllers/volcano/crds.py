"""Does a cluster have Volcano's kinds? What it lacks is created; what is there is somebody's and stays as it is."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from bayplan.client import Client, GroupVersionResource
from bayplan.errors import AlreadyExists, NotFound
from bayplan.objects.volcano.definitions import Definition, definitions_to_install, volcano_definitions

CRDS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)


async def installed_crds(client: Client, wanted: Iterable[Definition]) -> list[dict[str, Any]]:
    """Those of their names that the cluster has, as it has them."""
    found: list[dict[str, Any]] = []
    for definition in wanted:
        with suppress(NotFound):
            found.append(await client.get_raw(CRDS, "", definition["metadata"]["name"]))
    return found


async def missing_crds(client: Client) -> list[Definition]:
    """Volcano's definitions that the cluster does not have in our version."""
    return list(definitions_to_install(await installed_crds(client, volcano_definitions())))


async def create_crds(client: Client, lacking: Iterable[Definition]) -> list[str]:
    """Create them; the names of those that were not there."""
    created = []
    for definition in lacking:
        try:
            await client.create(CRDS, definition)
        except AlreadyExists:
            continue  # of another version, or somebody was quicker: it is not ours to change
        created.append(str(definition["metadata"]["name"]))
    return created
