"""Queues are opened and closed by commands, including commands that arrive during a sync."""

from __future__ import annotations

from pathlib import Path

from bayplan.controllers.volcano.resources import COMMANDS, QUEUES
from support.builders.volcano_manifests import queue
from support.harness.virtual_time import virtual_time_test
from support.harness.virtual_time_cluster import virtual_cluster


@virtual_time_test
async def test_a_queue_can_be_closed_right_after_its_creation(tmp_path: Path) -> None:
    async with virtual_cluster(tmp_path) as cluster:
        created = await cluster.create(QUEUES, queue("q", state=""))
        target = {"apiVersion": QUEUES.api_version, "kind": "Queue", "name": "q", "uid": created["metadata"]["uid"]}
        await cluster.create(COMMANDS, {"metadata": {"name": "close"}, "action": "CloseQueue", "target": target})
        await cluster.sleep(30)
        assert (await cluster.get(QUEUES, "q"))["status"]["state"] == "Closed"
