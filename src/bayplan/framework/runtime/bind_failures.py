"""Counts failed BindRequests of a pod per node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bayplan.clock import Clock

INITIAL_EXCLUSION_S, MAX_EXCLUSION_S = 30.0, 600.0

FAILURES_BEFORE_POD_BACKOFF = 5
"""After so many bindings of one pod that were given up it has to wait, whatever nodes there are."""


@dataclass(frozen=True, slots=True)
class NodeExclusion:
    """A node on which bindings of a pod were given up. `left_s`: for how long it is not tried there; 0: it may be."""

    node: str
    times: int
    reason: str
    left_s: float


@dataclass(slots=True)
class _FailureRecord:
    total: int = 0
    nodes: dict[str, tuple[int, float, str]] = field(default_factory=dict)  # how often, excluded until, and why
    blocked_until_s: float = 0.0
    last: str = ""
    held_until_s: float = 0.0
    held_why: str = ""


class BindFailures:
    """Pods whose bindings were given up: where each is not to be tried for a while, and when it may be at all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.records: dict[str, _FailureRecord] = {}
        """By the uids of the pods that have failed, and are neither bound nor gone."""

    def record_failure(self, uid: str, node_name: str, reason: str) -> float:
        """A binding was given up; for how many seconds the pod is kept from that node."""
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

    def hold(self, uid: str, until_s: float, why: str) -> None:
        """A pod must not be tried on any node until then, on the monotonic clock."""
        record = self.records.setdefault(uid, _FailureRecord())
        record.held_until_s, record.held_why = until_s, why

    def forget(self, uid: str) -> None:
        """The pod is bound, or gone."""
        self.records.pop(uid, None)

    def excluded_nodes(self, uid: str) -> frozenset[str]:
        """The nodes on which a pod is not to be tried now."""
        record = self.records.get(uid)
        return frozenset() if record is None else frozenset(self._excluded_now(record))

    def _excluded_now(self, record: _FailureRecord) -> Iterator[str]:
        now_s = self._clock.monotonic_s()
        return (node for node, (_, until_s, _) in record.nodes.items() if until_s > now_s)

    def exclusions(self, uid: str) -> tuple[NodeExclusion, ...]:
        """All nodes on which bindings of a pod were given up, those too where it may be tried again."""
        record, now_s = self.records.get(uid), self._clock.monotonic_s()
        nodes = {} if record is None else record.nodes
        return tuple(
            NodeExclusion(node, times, reason, max(until_s - now_s, 0.0))
            for node, (times, until_s, reason) in nodes.items()
        )

    def backoff_left_s(self, uid: str) -> float:
        """For how long a pod is not to be tried at all."""
        record = self.records.get(uid)
        if record is None:
            return 0.0
        return max(max(record.blocked_until_s, record.held_until_s) - self._clock.monotonic_s(), 0.0)

    def retry_in_s(self, uid: str) -> float | None:
        """In how long a pod may be tried where it may not be now; None: nothing is kept from it. One that is not tried
        at all is when that ends, for there are nodes besides those on which it was given up."""
        shut_s = [each.left_s for each in self.exclusions(uid) if each.left_s]
        return self.backoff_left_s(uid) or min(shut_s, default=None)

    def backoff_message(self, uid: str) -> str:
        """Why a pod is not to be tried at all now; nothing where it may be."""
        record, left_s = self.records.get(uid), self.backoff_left_s(uid)
        if record is None or not left_s:
            return ""
        if record.held_until_s > record.blocked_until_s:
            return f"BindFailed: {record.held_why}; it is tried again in {left_s:.0f} s"
        return (
            f"BindFailed: {record.total} bindings of the pod were given up, the last {record.last}; "
            f"it is tried again in {left_s:.0f} s"
        )
