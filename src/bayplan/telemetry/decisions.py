"""Decision records: one small, bounded record a decision. All reports about a decision read it.

The event, the condition, the log line, the metric and `why` read the same record, so they cannot disagree. A record
holds the choice, the best nodes by plugin and the number of nodes for each reason. For a pod that failed it also holds
the nodes that each plugin rejected, as packed bits. The ring of records is bounded in bytes.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice

import msgspec

BEST_NODES = 5
MAX_RECORD_BYTES = 4096
REASON_BYTES = 48  # overhead of a reason, besides its text and bits
_FIXED_BYTES = 256
_SCORE_BYTES = 40  # one plugin's score of one node


def text_bytes(text: str) -> int:
    """Size of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


INTEGERS, FLOATS = "q", "d"
"""Type of an engine's scores: integers in the pod engine, floats in sessions."""
_DIGITS = 6  # of a float score: rounding errors of equal sums are in later digits


def display_score(score: float) -> int | float:
    """A score, or the difference of two scores, as users see it."""
    near = round(score, _DIGITS)
    return int(near) if near == near // 1 else near


class ScoredNode(msgspec.Struct, frozen=True, gc=False):
    """A candidate with its total and the score of each plugin."""

    node: str
    total: int | float
    by_plugin: tuple[tuple[str, int | float], ...]


class Ranking(msgspec.Struct, frozen=True, gc=False):
    """The best nodes as packed numbers, which is cheap at decision time; readers unpack them."""

    nodes: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    scores: bytes = b""  # eight bytes a number: for each node its total, then the score of each plugin
    names_bytes: int = 0  # of the nodes
    numbers: str = INTEGERS

    @classmethod
    def fit(
        cls, budget: int, nodes: tuple[str, ...], plugins: tuple[str, ...], scores: bytes, numbers: str = INTEGERS
    ) -> Ranking:
        """Keep as many of the nodes as fit the budget in bytes."""
        names = "".join(nodes)
        names_bytes = len(names) if names.isascii() else text_bytes(names)
        if names_bytes + _SCORE_BYTES * len(plugins) * len(nodes) <= budget:
            return cls(nodes, plugins, scores, names_bytes, numbers)
        fitting = names_bytes = 0
        for node in nodes:
            size = text_bytes(node)
            if names_bytes + size + _SCORE_BYTES * len(plugins) * (fitting + 1) > budget:
                break
            fitting += 1
            names_bytes += size
        return cls(nodes[:fitting], plugins, scores[: 8 * fitting * (1 + len(plugins))], names_bytes, numbers)

    @property
    def size_bytes(self) -> int:
        return self.names_bytes + _SCORE_BYTES * len(self.plugins) * len(self.nodes)

    def scored_nodes(self) -> tuple[ScoredNode, ...]:
        scores: Sequence[float] = array(self.numbers, self.scores).tolist()
        numbers = iter(scores if self.numbers == INTEGERS else map(display_score, scores))
        return tuple(
            ScoredNode(node, next(numbers), tuple(zip(self.plugins, numbers, strict=False))) for node in self.nodes
        )


NO_RANKING = Ranking()


class ReasonCount(msgspec.Struct, frozen=True, gc=False):
    """A reason, its plugin, and the number of nodes that it holds for. `bits` marks the rows; empty if too large."""

    plugin: str
    text: str
    nodes: int
    bits: bytes = b""


class DecisionRecord(msgspec.Struct, frozen=True, gc=False):
    at: datetime
    pod: str
    uid: str
    profile: str
    node: str | None
    outcome: str  # scheduled, unschedulable or error
    message: str
    nodes: int
    feasible: int
    ranking: Ranking = NO_RANKING
    reasons: tuple[ReasonCount, ...] = ()
    nominated: str = ""  # the node it is, or was before its placement, nominated to
    victims: tuple[str, ...] = ()
    layout: int = 0  # of the snapshot whose rows the bits mark

    @property
    def best(self) -> tuple[ScoredNode, ...]:
        """The chosen node and the next best nodes."""
        return self.ranking.scored_nodes()

    @property
    def size_bytes(self) -> int:
        """The approximate size of the record: texts and bits."""
        ranking = self.ranking
        size = _FIXED_BYTES + len(self.pod) + len(self.uid) + text_bytes(self.message) + ranking.size_bytes
        for reason in self.reasons:
            size += text_bytes(reason.text) + len(reason.bits) + REASON_BYTES
        for victim in self.victims:
            size += text_bytes(victim)
        return size

    def sentence(self) -> str:
        """One line for people."""
        if self.node is not None:
            return f"{self.pod} goes to {self.node}"
        return f"{self.pod} stays pending: {self.message}"


class DecisionRing:
    """The newest records, bounded in bytes. A limit of 0 keeps no records."""

    def __init__(self, limit_bytes: int = 16 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._records: deque[DecisionRecord] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self.added = 0
        """Number of records ever added."""

    @property
    def keeps_any(self) -> bool:
        """Whether records are kept. If not, callers need not build them."""
        return self._limit_bytes > 0

    def add(self, record: DecisionRecord) -> None:
        size = record.size_bytes
        self._records.append(record)
        self._sizes.append(size)
        self._bytes += size
        self.added += 1
        while self._bytes > self._limit_bytes and self._records:
            self._records.popleft()
            self._bytes -= self._sizes.popleft()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[DecisionRecord]:
        """Oldest first."""
        return iter(self._records)

    def newest(self, count: int) -> list[DecisionRecord]:
        """The newest `count` records, the oldest of them first."""
        return list(islice(reversed(self._records), count))[::-1]

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def latest(self, pod: str) -> DecisionRecord | None:
        """The newest record of a pod by its `namespace/name`."""
        return next((record for record in reversed(self._records) if record.pod == pod), None)
