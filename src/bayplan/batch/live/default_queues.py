"""Creation of the queues that scheduling needs: `root`, and the default queue of jobs without one.

Created at the start, as in Volcano. The CRD or a webhook may not be ready yet, or the API server may fail, so creation
is retried until it succeeds. Volcano exits after two minutes; here the process logs the reason and continues to retry.
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
    """Create both queues and wait until they are `known`, so that the first session does not find jobs in missing
    queues."""
    for name, reclaimable in ((ROOT_QUEUE, False), (default, True)):
        await _create_with_retry(client, queues, clock, name, reclaimable=reclaimable)
    for _ in range(_MAX_POLLS):
        if known(ROOT_QUEUE) and known(default):
            return
        await clock.sleep(_POLL_INTERVAL_S)


async def _create_with_retry(
    client: Client, queues: GroupVersionResource, clock: LoopClock, name: str, *, reclaimable: bool
) -> None:
    last_error = ""
    while True:
        try:
            await _create_and_open(client, queues, name, reclaimable=reclaimable)
            return
        except ApiError as fault:
            if str(fault) != last_error:
                last_error = str(fault)
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
    # The queue controller sets the state of queues. Without one, these two would stay closed, and with them all queues
    # below. The resourceVersion ensures that a late patch does not open a queue that was closed meanwhile.
    opened = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "status": {"state": _OPEN}}
    await client.patch(queues, opened, name=name, subresource="status", kind=MERGE_PATCH)
    log.info('queue "%s" is open', name)
