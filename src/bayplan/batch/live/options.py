"""Command line options of a live batch engine, as one value. The defaults are Volcano's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.batch.cluster_state import DEFAULT_SCHEDULER
from bayplan.batch.evaluation.node_sampling import FeasibleNodeSampling
from bayplan.batch.live.multi_scheduler import MultiScheduler
from bayplan.codec.go_duration import GoDuration
from bayplan.objects.core import Node
from bayplan.objects.volcano.types import DEFAULT_QUEUE

LOCK_NAMESPACE = "volcano-system"
_ONE_SECOND = GoDuration.of_seconds(1)
NO_SHARDS, HARD_SHARDS, SOFT_SHARDS = "none", "hard", "soft"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Flags of vc-scheduler, by name."""

    scheduler_name: tuple[str, ...] = (DEFAULT_SCHEDULER,)
    schedule_period: GoDuration = _ONE_SECOND
    default_queue: str = DEFAULT_QUEUE
    node_selector: tuple[str, ...] = ()
    ignored_provisioners: tuple[str, ...] = ()
    percentage_nodes_to_find: int = 0
    minimum_feasible_nodes: int = 100
    minimum_percentage_nodes_to_find: int = 5
    sharding_mode: str = NO_SHARDS
    sharding_name: str = DEFAULT_SCHEDULER
    queue_admission: bool = False
    """Whether Volcano's queue admission gate is removed from pods whose queue has capacity (a feature gate)."""
    multi_scheduler: MultiScheduler | None = None
    """The division among several schedulers of the same name."""
    max_concurrent_writes: int = 64
    slice_s: float = 0.004

    @property
    def lock_name(self) -> str:
        """The name of the lease: the scheduler's name if there is one, so that an old scheduler of that name does not
        run."""
        return self.scheduler_name[0] if len(self.scheduler_name) == 1 else DEFAULT_SCHEDULER

    @property
    def exclusive_scheduler_names(self) -> tuple[str, ...]:
        """The scheduler names whose pods all belong to this process; empty if several schedulers divide the work."""
        return () if self.is_sharded or self.multi_scheduler is not None else self.scheduler_name

    @property
    def is_sharded(self) -> bool:
        """Whether a NodeShard decides which nodes this scheduler uses."""
        return self.sharding_mode != NO_SHARDS

    @property
    def node_sampling(self) -> FeasibleNodeSampling | None:
        """The sampling of feasible nodes; None: all nodes, which is cheap here."""
        if not self.percentage_nodes_to_find:
            return None
        return FeasibleNodeSampling(self.percentage_nodes_to_find, self.minimum_feasible_nodes)

    def validation_errors(self) -> Iterable[str]:
        if not all(self.scheduler_name) or not self.scheduler_name:
            yield "--scheduler-name must not be empty; leave it out for volcano"
        if self.sharding_mode not in (NO_SHARDS, HARD_SHARDS, SOFT_SHARDS):
            yield f"--scheduler-sharding-mode is {self.sharding_mode!r}; use none, hard or soft"
        elif self.is_sharded and not self.sharding_name:
            yield "--scheduler-sharding-name must not be empty; it is the name of a NodeShard"
        for text in self.node_selector:
            if not all(text.partition(":")):
                yield f"--node-selector {text!r} is not label:value; use a form such as pool:batch"
        if self.multi_scheduler is not None and (fault := self.multi_scheduler.validation_error()):
            yield fault
        if self.schedule_period.seconds <= 0:
            yield "--schedule-period must be above zero"

    def manages(self, node: Node) -> bool:
        """Whether a selector matches the node (all nodes match without selectors) and it belongs to this scheduler's
        part."""
        if self.multi_scheduler is not None and not self.multi_scheduler.owns_node(node):
            return False
        labels: Mapping[str, Any] = node.metadata.labels
        pairs = [text.partition(":")[::2] for text in self.node_selector]
        return not pairs or any(labels.get(key) == value for key, value in pairs)
