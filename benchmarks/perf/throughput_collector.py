"""Pods a second and latency of attempts, between the start and the stop of a measurement.

Throughput is the number of bound pods divided by the time in which the scheduler was busy; kube-scheduler's own harness
samples the same count every second of the wall clock, which also includes idle time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.objects.core import Pod
from benchmarks.decision_timing import Latencies
from benchmarks.perf.in_memory_cluster import Attempt, InMemoryCluster


@dataclass
class Measurement:
    """One measurement window of a benchmark."""

    name: str
    namespaces: frozenset[str]
    labels: Mapping[str, str]
    started_s: float
    took_us: list[float] = field(default_factory=list)
    scheduled: int = 0
    failed: int = 0
    busy_s: float = 0.0

    def see(self, attempt: Attempt) -> None:
        self.took_us.append(attempt.took_us)
        if attempt.node is None:
            self.failed += 1
        elif self._counts(attempt.pod):
            self.scheduled += 1

    def stop(self, world: InMemoryCluster) -> None:
        self.busy_s = world.busy_s - self.started_s

    @property
    def pods_per_s(self) -> float:
        return self.scheduled / self.busy_s if self.busy_s else 0.0

    def as_json(self) -> dict[str, Any]:
        latencies = Latencies(self.took_us)
        shares = {"p50_us": 0.50, "p90_us": 0.90, "p95_us": 0.95, "p99_us": 0.99}
        return {
            "name": self.name,
            "pods": self.scheduled,
            "busy_s": round(self.busy_s, 3),
            "pods_per_s": round(self.pods_per_s, 1),
            "attempts": len(self.took_us),
            "refused": self.failed,
            **{key: round(latencies.percentile(share), 1) if self.took_us else None for key, share in shares.items()},
        }

    def _counts(self, pod: Pod) -> bool:
        return pod.namespace in self.namespaces and self.labels.items() <= pod.labels.items()
