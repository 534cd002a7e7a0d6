"""What the configuration, flags and feature gates say about the queue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The queue's knobs, with kube-scheduler's defaults."""

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0
    max_unschedulable_s: float = 300.0
    """How long a pod is parked at most."""
    pop_from_backoff: bool = True
    """The feature gate SchedulerPopFromBackoffQ: with nothing active, pods that back off are tried early."""
    pod_groups: bool = False
    """The feature gate GenericWorkload: pods of a group come back after their backoff, whatever happened meanwhile."""
