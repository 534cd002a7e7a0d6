"""Node filter of a session for a NodeShard or a node selector, when several schedulers share a cluster.

Fixed when the session opens. In `hard` mode only nodes of the shard are used; in `soft` mode other nodes are tried
after them. Cost: one check of every node's name per session, and one mask per call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from bayplan.batch.evaluation.node_points import NODE_STATIC, NodeFunction
from bayplan.batch.model.nodes import Nodes
from bayplan.batch.model.tasks import Task
from bayplan.framework.api.plugin import Rejection
from bayplan.objects.core import Node
from bayplan.objects.volcano.types import NodeShard
from bayplan.snapshot import BoolVector

NOT_IN_SHARD = "node isn't in scheduler node shard"
NOT_SELECTED = "node isn't selected by the scheduler's node selector"
_OWNER, _SELECTOR = "sharding", "node-selector"


NodePredicateFn = Callable[[Node], bool]
"""Whether sessions use a node."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The current nodes of this scheduler."""

    names: frozenset[str]
    is_hard: bool


@dataclass(frozen=True, slots=True)
class ShardStatus:
    in_use: frozenset[str] = frozenset()
    to_add: frozenset[str] = frozenset()
    to_remove: frozenset[str] = frozenset()

    @classmethod
    def from_node_shard(cls, shard: NodeShard) -> ShardStatus:
        status = shard.status
        return cls(frozenset(status.nodes_in_use), frozenset(status.nodes_to_add), frozenset(status.nodes_to_remove))


def usable_nodes(own: str, shards: Mapping[str, NodeShard]) -> ShardStatus:
    """The desired nodes of the own shard that no other shard uses. The rest follows when other shards release it."""
    own_shard = shards.get(own)
    desired = frozenset(own_shard.spec.nodes_desired) if own_shard is not None else frozenset[str]()
    used_by_others = {name for shard in shards.values() if shard.name != own for name in shard.status.nodes_in_use}
    in_use = desired - used_by_others
    return ShardStatus(in_use, desired - in_use)


@dataclass(slots=True)
class ShardFilter:
    """The shard on the nodes of one session, and the nodes selected for sessions."""

    shard: Shard | None
    nodes: Nodes
    manages: NodePredicateFn | None = None
    in_shard: BoolVector = field(init=False)
    managed: BoolVector = field(init=False)

    def __post_init__(self) -> None:
        columns, shard, manages = self.nodes.snapshot.nodes, self.shard, self.manages
        self.in_shard = np.array([shard is None or name in shard.names for name in columns.names], dtype=np.bool_)
        self.managed = np.array([manages is None or manages(node) for node in columns.nodes], dtype=np.bool_)

    @classmethod
    def for_nodes(cls, nodes: Nodes, shard: Shard | None, manages: NodePredicateFn | None) -> ShardFilter | None:
        """None without a shard and a node selector."""
        return None if shard is None and manages is None else cls(shard, nodes, manages)

    def predicates(self) -> list[NodeFunction]:
        """Predicates that run before those of plugins."""
        found = []
        if self.manages is not None:
            found.append(
                NodeFunction(
                    _SELECTOR, for_nodes=self._reject_unselected, signature=_same_signature, depends_on=NODE_STATIC
                )
            )
        if self.shard is not None and self.shard.is_hard:
            found.append(
                NodeFunction(
                    _OWNER, for_nodes=self._reject_outside_shard, signature=_same_signature, depends_on=NODE_STATIC
                )
            )
        return found

    def _reject_unselected(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:  # noqa: ARG002
        yield Rejection(~self.managed[nodes.rows], NOT_SELECTED, resolvable=False)

    def _reject_outside_shard(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:  # noqa: ARG002
        yield Rejection(~self.in_shard[nodes.rows], NOT_IN_SHARD, resolvable=False)

    def candidate_groups(self, rows: BoolVector) -> Iterable[BoolVector]:
        """Candidates, those of the shard first."""
        if self.shard is None or self.shard.is_hard:
            return (rows,)
        return rows & self.in_shard, rows & ~self.in_shard


def _same_signature(task: Task) -> tuple[()]:  # noqa: ARG001
    """The filter treats all tasks alike."""
    return ()
