"""Background load while a scheduler is measured: objects that churn, pods that are deleted, each at its rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bayplan.errors import BayplanError
from benchmarks.live.cluster_setup import ClusterSetup
from benchmarks.live.initial_state import Churn, Deletion
from benchmarks.perf import object_builders
from benchmarks.perf.templates import Raw

_CLUSTER_WIDE = frozenset({"Node"})


@asynccontextmanager
async def run_background_load(setup: ClusterSetup, beside: list[Churn | Deletion]) -> AsyncIterator[None]:
    """Run all background load until the block ends."""
    tasks = [asyncio.ensure_future(_disturb(setup, each)) for each in beside]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disturb(setup: ClusterSetup, what: Churn | Deletion) -> None:
    if isinstance(what, Deletion):
        for key in what.pods:
            await asyncio.sleep(what.every_s)
            await setup.delete_pod(key)
        return
    living: dict[int, list[Raw]] = {}
    number = 0
    while what.recreate or not what.most or number < what.most:
        await asyncio.sleep(what.every_s)
        place = number % what.most if what.recreate else number
        doomed = living.pop(place, None)
        if doomed is None:
            made = [await _made(setup, each.object(), what.namespace) for each in what.templates]
            living[place] = made if what.recreate else []
        else:
            for tree in doomed:
                await setup.delete(tree)
        number += 1


async def _made(setup: ClusterSetup, raw: Raw, namespace: str) -> Raw:
    tree = raw if raw["kind"] in _CLUSTER_WIDE else object_builders.in_namespace(raw, namespace)
    try:
        await setup.create(tree)
    except BayplanError as fault:
        raise BayplanError(f"cannot create an object for churn: {fault}") from None
    return tree
