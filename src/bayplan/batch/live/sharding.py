"""Keeps to one's own NodeShard: which nodes are ours is looked up between sessions and told in the shard's status.

Other schedulers read that status: a node that is desired of us is ours only when nobody else says that it is in use,
and a node that is ours no longer is let go between two sessions, never within one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from bayplan.batch.engine import BatchEngine
from bayplan.batch.live.writing import Writer
from bayplan.batch.shards import Shard, ShardStatus, usable
from bayplan.client import MERGE_PATCH, Client, Resource
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, Conflict, NotFound
from bayplan.objects.volcano import NodeShard

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sharding:
    """One scheduler's part of a cluster that several share."""

    engine: BatchEngine
    client: Client
    writes: Writer
    shards: Resource
    clock: LoopClock
    name: str
    is_hard: bool
    _is_missing: bool = False
    _writing: bool = False
    _is_unsure: bool = False
    """Whether a patch may still be applied. The next one is sent whatever the shard says, to change its version."""
    _told: tuple[str, ShardStatus] | None = field(default=None)  # version of the shard, and what we wrote of it

    def look(self) -> None:
        """Before a session: what is ours from now on."""
        known = self.engine.cache.catalog.table(NodeShard)
        status = usable(self.name, known)
        self.engine.handle.shard = Shard(status.in_use, self.is_hard)
        mine = known.get(self.name)
        self._name_missing(is_missing=mine is None)
        if mine is None or self._writing or (status == ShardStatus.told_by(mine) and not self._is_unsure):
            return
        saying = mine.metadata.resource_version, status
        if saying != self._told:
            self._told, self._writing = saying, True
            self.writes.start(self._tell(mine, status), f"writing the status of node shard {self.name}")

    def _name_missing(self, *, is_missing: bool) -> None:
        if is_missing and not self._is_missing:
            log.error("sharding is on, and there is no node shard %s; create it, or name another one", self.name)
        self._is_missing = is_missing

    async def _tell(self, mine: NodeShard, status: ShardStatus) -> None:
        said: dict[str, Any] = {
            "nodesInUse": sorted(status.in_use),
            "nodesToAdd": sorted(status.to_add),
            "nodesToRemove": sorted(status.to_remove),
            "lastUpdateTime": self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        # With the version: a late patch must not say of a node that it is free which this scheduler uses again.
        meta = {"uid": mine.metadata.uid, "resourceVersion": mine.metadata.resource_version}
        patch = {"metadata": meta, "status": said}
        try:
            await self.client.patch(self.shards, patch, name=self.name, subresource="status", kind=MERGE_PATCH)
            self._is_unsure = False
        except (NotFound, Conflict):
            self._told = None  # a later session tells what is still true of what is there then
        except ApiError as fault:
            self._told = None  # the next session tries again
            self._is_unsure = self._is_unsure or fault.outcome_unknown
            raise
        finally:
            self._writing = False
