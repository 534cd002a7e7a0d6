"""One record a decision: small, bounded, and the source of everything that is told about it.

The event, the condition, the log line, the metric and `why` all read the same record, so they cannot disagree. A
record keeps the choice, the best nodes by plugin, how many nodes each reason holds for and, for a pod that failed,
which nodes were rejected by each plugin as packed bits. The ring that keeps records is bounded in bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime

import msgspec

BEST_NODES = 5
LARGEST_RECORD_BYTES = 4096
REASON_BYTES = 48  # of a reason, besides its text and bits
_FIXED_BYTES = 256


def text_bytes(text: str) -> int:
    """What a text takes where it is written."""
    return len(text) if text.isascii() else len(text.encode())


class ScoredNode(msgspec.Struct, frozen=True, gc=False):
    """A candidate with its total and what each plugin added to it."""

    node: str
    total: int
    by_plugin: tuple[tuple[str, int], ...]

    @property
    def size_bytes(self) -> int:
        return text_bytes(self.node) + 40 * len(self.by_plugin)


class ReasonCount(msgspec.Struct, frozen=True, gc=False):
    """A reason, who gave it, and how many nodes it holds for; `bits` marks the rows (empty where that is too large)."""

    plugin: str
    text: str
    nodes: int
    bits: bytes = b""


class DecisionRecord(msgspec.Struct, frozen=True, gc=False):
    """What was decided about one pod, once."""

    at: datetime
    pod: str
    uid: str
    profile: str
    node: str | None
    outcome: str  # scheduled, unschedulable or error
    message: str
    nodes: int
    feasible: int
    best: tuple[ScoredNode, ...] = ()
    reasons: tuple[ReasonCount, ...] = ()
    nominated: str = ""
    victims: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """About what the record costs: texts and bits."""
        size = _FIXED_BYTES + text_bytes(self.pod) + text_bytes(self.uid) + text_bytes(self.message)
        size += sum(text_bytes(reason.text) + len(reason.bits) + REASON_BYTES for reason in self.reasons)
        size += sum(scored.size_bytes for scored in self.best)
        return size + sum(map(text_bytes, self.victims))

    def sentence(self) -> str:
        """One line for people."""
        if self.node is not None:
            return f"{self.pod} goes to {self.node}"
        return f"{self.pod} stays pending: {self.message}"


class DecisionRing:
    """The newest records, at most so many bytes of them."""

    def __init__(self, limit_bytes: int = 16 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._records: deque[DecisionRecord] = deque()
        self._bytes = 0

    def add(self, record: DecisionRecord) -> None:
        self._records.append(record)
        self._bytes += record.size_bytes
        while self._bytes > self._limit_bytes and self._records:
            self._bytes -= self._records.popleft().size_bytes

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[DecisionRecord]:
        """Oldest first."""
        return iter(self._records)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def latest(self, pod: str) -> DecisionRecord | None:
        """The newest record of a pod by its `namespace/name`."""
        return next((record for record in reversed(self._records) if record.pod == pod), None)
