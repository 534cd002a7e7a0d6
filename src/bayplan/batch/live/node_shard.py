"""Sync with the scheduler's NodeShard: reads the usable nodes between sessions and writes the shard's status.

Other schedulers read that status. A desired node is used only while no other shard reports it in use. A node that is no
longer desired is released between two sessions, never within one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from bayplan.batch.engine import BatchEngine
from bayplan.batch.evaluation.shard_filter import Shard, ShardStatus, usable_nodes
from bayplan.batch.live.write_interfaces import IntentWriter
from bayplan.client import MERGE_PATCH, Client, GroupVersionResource
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, Conflict, NotFound
from bayplan.objects.volcano.types import NodeShard

log = logging.getLogger(__name__)


@dataclass(slots=True)
class NodeShardSync:
    engine: BatchEngine
    client: Client
    writes: IntentWriter
    shards: GroupVersionResource
    clock: LoopClock
    name: str
    is_hard: bool
    _is_missing: bool = False
    _writing: bool = False
    _is_unsure: bool = False
    """Whether a patch with unknown outcome may still be applied. The next patch is sent in any case, to change the
    version."""
    _last_written: tuple[str, ShardStatus] | None = field(default=None)  # version of the shard, and the status written

    def sync(self) -> None:
        """Update the usable nodes; called before a session."""
        known = self.engine.cache.catalog.table(NodeShard)
        status = usable_nodes(self.name, known)
        self.engine.handle.shard = Shard(status.in_use, self.is_hard)
        shard = known.get(self.name)
        self._log_missing_shard(is_missing=shard is None)
        if shard is None or self._writing or (status == ShardStatus.from_node_shard(shard) and not self._is_unsure):
            return
        version_and_status = shard.metadata.resource_version, status
        if version_and_status != self._last_written:
            self._last_written, self._writing = version_and_status, True
            self.writes.start(self._write_status(shard, status), f"writing the status of node shard {self.name}")

    def _log_missing_shard(self, *, is_missing: bool) -> None:
        if is_missing and not self._is_missing:
            log.error("sharding is on, and there is no node shard %s; create it or use another name", self.name)
        self._is_missing = is_missing

    async def _write_status(self, shard: NodeShard, status: ShardStatus) -> None:
        fields: dict[str, Any] = {
            "nodesInUse": sorted(status.in_use),
            "nodesToAdd": sorted(status.to_add),
            "nodesToRemove": sorted(status.to_remove),
            "lastUpdateTime": self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        # The resourceVersion ensures that a late patch does not release a node that this scheduler uses again.
        meta = {"uid": shard.metadata.uid, "resourceVersion": shard.metadata.resource_version}
        patch = {"metadata": meta, "status": fields}
        try:
            await self.client.patch(self.shards, patch, name=self.name, subresource="status", kind=MERGE_PATCH)
            self._is_unsure = False
        except (NotFound, Conflict):
            self._last_written = None  # a later session tells what is still true of what is there then
        except ApiError as fault:
            self._last_written = None  # the next session retries
            self._is_unsure = self._is_unsure or fault.outcome_unknown
            raise
        finally:
            self._writing = False
