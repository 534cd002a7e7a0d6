"""Queues are opened and closed by commands, also by those that arrive while the controller is at work on the queue."""

from __future__ import annotations

from pathlib import Path

from bayplan.controllers.volcano.resources import COMMANDS, QUEUES
from support.builders.volcano_manifests import queue
from support.harness.virtual_time import virtual_time_test
from support.harness.virtual_time_cluster import virtual_cluster


@virtual_time_test
async def test_a_queue_that_is_closed_as_soon_as_it_is_made_is_closed(tmp_path: Path) -> None:
    async with virtual_cluster(tmp_path) as world:
        made = await world.create(QUEUES, queue("q", state=""))
        target = {"apiVersion": QUEUES.api_version, "kind": "Queue", "name": "q", "uid": made["metadata"]["uid"]}
        await world.create(COMMANDS, {"metadata": {"name": "close"}, "action": "CloseQueue", "target": target})
        await world.sleep(30)
        assert (await world.get(QUEUES, "q"))["status"]["state"] == "Closed"
