"""Makes pods wait until a time window starts: heavy jobs wait for the night.

Pods with the label `window: night` are not tried before the window starts (PreEnqueue), unless it is only minutes away:
then they get a node and wait there (Permit), so that no other pod uses the capacity. The first pod at Permit after the
start allows the waiting ones; without such a pod their wait expires and they are retried at once.

    pluginConfig:
    - name: NightWindow
      args: {opensAtHour: 22, closesAtHour: 6}
"""

from datetime import datetime, timedelta
from typing import Any

from bayplan.framework import Cycle, Handle, PermitWait, Pod, Status, pending

LABEL = "window"
MAX_PERMIT_WAIT_S = 10 * 60.0  # on a node; Permit allows 15 minutes at most
GRACE_S = 60.0  # after the start, for another pod to reach Permit


class NightWindow:
    """Holds jobs with `window: night` until the night. Hours are UTC."""

    name = "NightWindow"

    def __init__(self, handle: Handle, opens: int, closes: int) -> None:
        self._clock = handle.clock  # never the machine's clock: tests and simulations set the time
        self._waiting = handle.waiting_pods
        self._opens, self._closes = opens, closes

    @classmethod
    def factory(cls, args: Any, handle: Handle) -> "NightWindow":
        given = args or {}
        return cls(handle, given.get("opensAtHour", 22), given.get("closesAtHour", 6))

    def pre_enqueue(self, pod: Pod) -> Status | None:
        self._let_go()
        if pod.labels.get(LABEL) == "night" and self._opens_in_s() > MAX_PERMIT_WAIT_S:
            return pending(f"waiting for the window that opens at {self._opens}:00 UTC")
        return None

    def permit(self, cycle: Cycle, node_name: str) -> PermitWait | None:  # noqa: ARG002
        self._let_go()
        wait_s = self._opens_in_s()
        return PermitWait(wait_s + GRACE_S) if cycle.pod.labels.get(LABEL) == "night" and wait_s else None

    def _let_go(self) -> None:
        if not self._opens_in_s():
            for held in self._waiting.all():
                held.allow(self.name)

    def _opens_in_s(self) -> float:
        """Seconds until the window opens; 0 while it is open."""
        now = self._clock.now()
        if self._is_open(now):
            return 0.0
        opening = now.replace(hour=self._opens, minute=0, second=0, microsecond=0)
        return (opening + timedelta(days=opening < now) - now).total_seconds()

    def _is_open(self, now: datetime) -> bool:
        if self._opens < self._closes:
            return self._opens <= now.hour < self._closes
        return now.hour >= self._opens or now.hour < self._closes
