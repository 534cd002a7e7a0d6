"""When may the next request go? A token bucket: `qps` on average, `burst` at once, in the order of asking.

Asked once a request; costs a few additions while there are tokens.
"""

from __future__ import annotations

from bayplan.clock import LoopClock


class RateLimiter:
    """kube-scheduler's own limit on the requests of one client. A negative rate is no limit."""

    def __init__(self, clock: LoopClock, *, qps: float = 50.0, burst: int = 100) -> None:
        self._clock = clock
        self._qps = qps
        self._burst = max(burst, 1)
        self._tokens = float(self._burst)
        self._counted_at = clock.monotonic_s()

    async def take(self) -> None:
        """Return when it is this request's turn. Whoever asked before is served before."""
        wait_s = self.reserve()
        if wait_s > 0:
            await self._clock.sleep(wait_s)

    def reserve(self) -> float:
        """Take a token, one that will exist later if need be, and say how long to wait for it."""
        if self._qps <= 0:
            return 0.0
        now = self._clock.monotonic_s()
        self._tokens = min(self._burst, self._tokens + (now - self._counted_at) * self._qps) - 1
        self._counted_at = now
        return max(0.0, -self._tokens / self._qps)
