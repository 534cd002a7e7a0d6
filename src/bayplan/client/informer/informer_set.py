"""Several informers that run as one. The counterpart of client-go's SharedInformerFactory.

The composition root makes it. All informers start and end together: cancelling `run` stops every watch before it
returns. An informer that fails with a bug stops all of them, so that no decision uses incomplete data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bayplan.client.informer.informer import Informer
from bayplan.objects.meta import KubeObject


class InformerSet:
    def __init__(self, informers: Iterable[Informer]) -> None:
        self._informers = tuple(informers)

    async def run(self) -> None:
        """Run all informers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run(), name=f"informer {informer.resource}")

    async def wait_synced(self) -> None:
        """Wait until the handlers have all objects of the first lists."""
        for informer in self._informers:
            await informer.wait_synced()

    async def catch_up(self) -> None:
        """Wait until the handlers have every change that the API server had accepted when this was called."""
        await asyncio.gather(*(each.catch_up() for each in self._informers))

    def objects(self, plural: str) -> list[KubeObject]:
        return [item for each in self._informers if each.resource.plural == plural for item in each.store.values()]

    @property
    def synced(self) -> bool:
        return not self.not_synced()

    def not_synced(self) -> list[str]:
        """Resources whose first list is not complete, each with its failure if there is one."""
        waiting = (each for each in self._informers if not each.synced)
        return [f"{each.resource}: {each.last_error}" if each.last_error else str(each.resource) for each in waiting]
