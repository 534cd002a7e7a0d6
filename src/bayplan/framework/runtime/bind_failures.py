"""Counts failed BindRequests of a pod per node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bayplan.clock import Clock

INITIAL_EXCLUSION_S, MAX_EXCLUSION_S = 30.0, 600.0

FAILURES_BEFORE_POD_BACKOFF = 5
"""After this number of failed bindings a pod waits, whatever nodes there are."""


@dataclass(frozen=True, slots=True)
class NodeExclusion:
    """A node on which bindings of a pod failed. `left_s`: seconds until the pod may be placed there again; 0: now."""

    node: str
    times: int
    reason: str
    left_s: float


@dataclass(slots=True)
class _FailureRecord:
    total: int = 0
    nodes: dict[str, tuple[int, float, str]] = field(default_factory=dict)  # count, end of the exclusion, reason
    blocked_until_s: float = 0.0
    last: str = ""
    held_until_s: float = 0.0
    held_reason: str = ""


class BindFailures:
    """Failed bindings by pod: nodes that are excluded for a while, and the end of the pod's own backoff."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.records: dict[str, _FailureRecord] = {}
        """Records by the uids of the pods with failed bindings that are neither bound nor deleted."""

    def record_failure(self, uid: str, node_name: str, reason: str) -> float:
        """Record a failed binding. Returns the seconds for which the pod is excluded from that node."""
        record, now_s = self.records.setdefault(uid, _FailureRecord()), self._clock.monotonic_s()
        count = record.nodes.get(node_name, (0, 0.0, ""))[0]
        pause_s = min(INITIAL_EXCLUSION_S * 2.0 ** min(count, 16), MAX_EXCLUSION_S)
        record.nodes[node_name] = count + 1, now_s + pause_s, reason
        record.total += 1
        record.last = f"on node {node_name}: {reason}"
        if record.total >= FAILURES_BEFORE_POD_BACKOFF:
            blocked_s = min(
                INITIAL_EXCLUSION_S * 2.0 ** min(record.total - FAILURES_BEFORE_POD_BACKOFF, 16), MAX_EXCLUSION_S
            )
            record.blocked_until_s = now_s + blocked_s
        return pause_s

    def hold(self, uid: str, until_s: float, reason: str) -> None:
        """Exclude a pod from all nodes until this time on the monotonic clock."""
        record = self.records.setdefault(uid, _FailureRecord())
        record.held_until_s, record.held_reason = until_s, reason

    def forget(self, uid: str) -> None:
        """Drop the record of a pod that is bound or deleted."""
        self.records.pop(uid, None)

    def excluded_nodes(self, uid: str) -> frozenset[str]:
        record = self.records.get(uid)
        return frozenset() if record is None else frozenset(self._excluded_now(record))

    def _excluded_now(self, record: _FailureRecord) -> Iterator[str]:
        now_s = self._clock.monotonic_s()
        return (node for node, (_, until_s, _) in record.nodes.items() if until_s > now_s)

    def exclusions(self, uid: str) -> tuple[NodeExclusion, ...]:
        """Return all nodes on which bindings of a pod failed, also those that are no longer excluded."""
        record, now_s = self.records.get(uid), self._clock.monotonic_s()
        nodes = {} if record is None else record.nodes
        return tuple(
            NodeExclusion(node, times, reason, max(until_s - now_s, 0.0))
            for node, (times, until_s, reason) in nodes.items()
        )

    def backoff_left_s(self, uid: str) -> float:
        """Return the seconds for which a pod is excluded from all nodes."""
        record = self.records.get(uid)
        if record is None:
            return 0.0
        return max(max(record.blocked_until_s, record.held_until_s) - self._clock.monotonic_s(), 0.0)

    def retry_in_s(self, uid: str) -> float | None:
        """Return the seconds until the pod's next exclusion ends; None: no exclusion.

        A backoff of the pod counts first, because there are nodes besides the excluded ones.
        """
        excluded_s = [each.left_s for each in self.exclusions(uid) if each.left_s]
        return self.backoff_left_s(uid) or min(excluded_s, default=None)

    def backoff_message(self, uid: str) -> str:
        """Return why a pod is excluded from all nodes now, or an empty string."""
        record, left_s = self.records.get(uid), self.backoff_left_s(uid)
        if record is None or not left_s:
            return ""
        if record.held_until_s > record.blocked_until_s:
            return f"BindFailed: {record.held_reason}; it is retried in {left_s:.0f} s"
        return (
            f"BindFailed: {record.total} bindings of the pod failed, the last {record.last}; "
            f"it is retried in {left_s:.0f} s"
        )
