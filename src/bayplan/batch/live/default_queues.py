"""The queues that must be there before anything can be scheduled: `root`, and the one of jobs that name none.

Made at the start, as Volcano does. Their definition or a webhook may not be ready yet, or the server may be ill, so
this is tried until it works. Volcano gives up after two minutes and ends; here the process lives, says why it waits,
and begins when it can.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from bayplan.client import MERGE_PATCH, Client, GroupVersionResource
from bayplan.clock import LoopClock
from bayplan.errors import AlreadyExists, ApiError
from bayplan.objects.volcano.types import DEFAULT_QUEUE, ROOT_QUEUE

log = logging.getLogger(__name__)

RETRY_INTERVAL_S = 2.0
_POLL_INTERVAL_S, _MAX_POLLS = 0.02, 250
_OPEN = "Open"


async def ensure_default_queues(
    client: Client,
    queues: GroupVersionResource,
    clock: LoopClock,
    known: Callable[[str], bool],
    default: str = DEFAULT_QUEUE,
) -> None:
    """Make sure that both are there, and `known`: else the first session finds jobs in queues that do not exist."""
    for name, reclaimable in ((ROOT_QUEUE, False), (default, True)):
        await _create_with_retry(client, queues, clock, name, reclaimable=reclaimable)
    for _ in range(_MAX_POLLS):
        if known(ROOT_QUEUE) and known(default):
            return
        await clock.sleep(_POLL_INTERVAL_S)


async def _create_with_retry(
    client: Client, queues: GroupVersionResource, clock: LoopClock, name: str, *, reclaimable: bool
) -> None:
    told = ""
    while True:
        try:
            await _create_and_open(client, queues, name, reclaimable=reclaimable)
            return
        except ApiError as fault:
            if str(fault) != told:
                told = str(fault)
                log.warning('queue "%s" cannot be created yet, and nothing is scheduled until it is: %s', name, fault)
        await clock.sleep(RETRY_INTERVAL_S)


async def _create_and_open(client: Client, queues: GroupVersionResource, name: str, *, reclaimable: bool) -> None:
    tree: dict[str, Any] = {
        "apiVersion": queues.api_version,
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"weight": 1, "reclaimable": reclaimable},
    }
    try:
        found = msgspec.json.decode(await client.create(queues, tree))
    except AlreadyExists:
        found = await client.get_raw(queues, "", name)
        if found.get("status", {}).get("state"):
            return
    # The queue controller says whether a queue is open. Where none runs these two would stay closed, and all with them.
    # With the version: a patch that is applied late must not open a queue that was closed meanwhile.
    opened = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "status": {"state": _OPEN}}
    await client.patch(queues, opened, name=name, subresource="status", kind=MERGE_PATCH)
    log.info('queue "%s" is open', name)
