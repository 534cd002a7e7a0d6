"""Settings of the scheduling queue from the configuration, flags and feature gates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Settings of the scheduling queue, with kube-scheduler's defaults."""

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0
    max_unschedulable_s: float = 300.0
    """Longest time that a pod stays among the unschedulable pods."""
    pop_from_backoff: bool = True
    """Feature gate SchedulerPopFromBackoffQ: if no pod is active, pods in backoff are popped early."""
    pod_groups: bool = False
    """Feature gate GenericWorkload: pods of a group always return after their backoff, whatever events they missed."""
