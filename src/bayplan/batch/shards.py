"""Which nodes are one scheduler's own, where several share a cluster by NodeShards?

A session is told once, when it opens. In `hard` mode no other node will do, in `soft` mode others are tried after them.
Cost: a look at every node's name a session, and one mask a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from bayplan.batch.node_points import NODE_ALONE, NodeFn
from bayplan.batch.nodes import Nodes
from bayplan.batch.tasks import Task
from bayplan.framework.plugin import Rejection
from bayplan.objects.volcano import NodeShard
from bayplan.snapshot import BoolVector

NOT_IN_SHARD = "node isn't in scheduler node shard"
_OWNER = "sharding"


@dataclass(frozen=True, slots=True)
class Shard:
    """The nodes that are ours at this moment."""

    names: frozenset[str]
    is_hard: bool


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """What a scheduler says of its shard."""

    in_use: frozenset[str] = frozenset()
    to_add: frozenset[str] = frozenset()
    to_remove: frozenset[str] = frozenset()

    @classmethod
    def told_by(cls, shard: NodeShard) -> ShardStatus:
        status = shard.status
        return cls(frozenset(status.nodes_in_use), frozenset(status.nodes_to_add), frozenset(status.nodes_to_remove))


def usable(own: str, shards: Mapping[str, NodeShard]) -> ShardStatus:
    """What is desired for our shard and in use by no other; the rest comes when the others have let it go."""
    mine = shards.get(own)
    desired = frozenset(mine.spec.nodes_desired) if mine is not None else frozenset[str]()
    others = {name for shard in shards.values() if shard.name != own for name in shard.status.nodes_in_use}
    in_use = desired - others
    return ShardStatus(in_use, desired - in_use)


@dataclass(slots=True)
class Fence:
    """A shard over the nodes of one session."""

    shard: Shard
    nodes: Nodes
    inside: BoolVector = field(init=False)

    def __post_init__(self) -> None:
        names = self.shard.names
        self.inside = np.array([name in names for name in self.nodes.snapshot.nodes.names], dtype=np.bool_)

    def predicates(self) -> list[NodeFn]:
        """Asked before all others."""
        if not self.shard.is_hard:
            return []
        return [NodeFn(_OWNER, by_table=self._refused, signature=_everybody, depends_on=NODE_ALONE)]

    def _refused(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:  # noqa: ARG002
        yield Rejection(~self.inside[nodes.rows], NOT_IN_SHARD, resolvable=False)

    def in_turn(self, rows: BoolVector) -> Iterable[BoolVector]:
        """Candidates, those of the shard first."""
        return (rows,) if self.shard.is_hard else (rows & self.inside, rows & ~self.inside)


def _everybody(task: Task) -> tuple[()]:  # noqa: ARG001
    """All tasks are alike to a fence."""
    return ()
