"""Are all resources in step? Several informers run as one.

Made by the composition root. They start together and end together: cancelling `run` stops every watch before it
returns, and an informer that dies of a bug takes the others with it, so that nobody decides on half a picture.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bayplan.client.informer.informer import Informer
from bayplan.objects.meta import KubeObject


class InformerSet:
    """The informers of one process."""

    def __init__(self, informers: Iterable[Informer]) -> None:
        self._informers = tuple(informers)

    async def run(self) -> None:
        """Keep everything in step until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run(), name=f"informer {informer.resource}")

    async def wait_synced(self) -> None:
        """Return when everything that existed at the start has been told."""
        for informer in self._informers:
            await informer.wait_synced()

    async def catch_up(self) -> None:
        """Return when the handlers have every change that the API server had accepted when this was called."""
        await asyncio.gather(*(each.catch_up() for each in self._informers))

    def objects(self, plural: str) -> list[KubeObject]:
        """What exists of a resource, as far as it was told."""
        return [item for each in self._informers if each.resource.plural == plural for item in each.store.values()]

    @property
    def synced(self) -> bool:
        return not self.not_synced()

    def not_synced(self) -> list[str]:
        """What has not been told completely yet, each with why if that is known."""
        waiting = (each for each in self._informers if not each.synced)
        return [f"{each.resource}: {each.last_error}" if each.last_error else str(each.resource) for each in waiting]
