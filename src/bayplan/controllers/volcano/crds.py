"""Installs Volcano's CustomResourceDefinitions. Missing ones are created; existing ones stay unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from bayplan.client import Client, GroupVersionResource
from bayplan.errors import AlreadyExists, NotFound
from bayplan.objects.volcano.definitions import Definition, definitions_to_install, volcano_definitions

CRDS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)


async def installed_crds(client: Client, wanted: Iterable[Definition]) -> list[dict[str, Any]]:
    """Return the definitions with these names that the cluster has."""
    found: list[dict[str, Any]] = []
    for definition in wanted:
        with suppress(NotFound):
            found.append(await client.get_raw(CRDS, "", definition["metadata"]["name"]))
    return found


async def missing_crds(client: Client) -> list[Definition]:
    """Definitions of Volcano that the cluster lacks in the required version."""
    return list(definitions_to_install(await installed_crds(client, volcano_definitions())))


async def create_crds(client: Client, lacking: Iterable[Definition]) -> list[str]:
    """Create definitions. Returns the names of the created ones."""
    created = []
    for definition in lacking:
        try:
            await client.create(CRDS, definition)
        except AlreadyExists:
            continue  # another version, or created concurrently: it is not changed
        created.append(str(definition["metadata"]["name"]))
    return created
