"""Backoff of victims whose deletion the API server refused.

Used by the evictions of both engines. While a pause lasts, the pod is listed in `Nominator.refused`, and the search for
victims leaves it out. Each owner ends the pauses that it started. Cost: a dictionary entry for each such pod.
"""

from __future__ import annotations

from dataclasses import dataclass

from bayplan.clock import Clock
from bayplan.framework.runtime.nominator import Nominator

FIRST_PAUSE_S, LAST_PAUSE_S = 10.0, 600.0


@dataclass(slots=True)
class _Record:
    times: int = 0
    until_s: float = 0.0


class RefusedEvictions:
    """Counts refusals by the uid of the victim."""

    def __init__(self, nominations: Nominator, clock: Clock) -> None:
        self._nominations = nominations
        self._clock = clock
        self._records: dict[str, _Record] = {}

    def note(self, uid: str, node_name: str) -> float:
        """Record that the API server refused to delete this pod. Returns the seconds in which it is no victim."""
        record = self._records.setdefault(uid, _Record())
        pause_s: float = min(FIRST_PAUSE_S * 2.0 ** min(record.times, 16), LAST_PAUSE_S)
        record.times += 1
        record.until_s = self._clock.monotonic_s() + pause_s
        self._nominations.refuse(uid, node_name)
        return pause_s

    def times(self, uid: str) -> int:
        """Return how often the API server refused to delete this pod."""
        record = self._records.get(uid)
        return 0 if record is None else record.times

    def forget(self, uid: str) -> None:
        self._records.pop(uid, None)
        self._nominations.accept(uid)

    def next_end_s(self) -> float | None:
        """Return the time at which the next pause ends, on the monotonic clock."""
        refused = self._nominations.refused
        return min((record.until_s for uid, record in self._records.items() if uid in refused), default=None)

    def end_pauses(self) -> list[str]:
        """End the pauses that are over. Returns the uids of these pods: they may be victims again."""
        now_s, refused = self._clock.monotonic_s(), self._nominations.refused
        over = [uid for uid, record in self._records.items() if uid in refused and record.until_s <= now_s]
        for uid in over:
            self._nominations.accept(uid)
        forgotten_s = now_s - 2.0 * LAST_PAUSE_S
        for uid in [uid for uid, record in self._records.items() if record.until_s <= forgotten_s]:
            del self._records[uid]
        return over
