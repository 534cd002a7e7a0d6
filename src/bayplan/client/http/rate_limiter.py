"""Token bucket: `qps` requests per second on average, `burst` at once, first come, first served.

The transport takes a token per request. Cost while there are tokens: a few additions.
"""

from __future__ import annotations

from bayplan.clock import LoopClock


class RateLimiter:
    """Client-side rate limit as in client-go's flowcontrol. A negative rate means no limit."""

    def __init__(self, clock: LoopClock, *, qps: float = 50.0, burst: int = 100) -> None:
        self._clock = clock
        self._qps = qps
        self._burst = max(burst, 1)
        self._tokens = float(self._burst)
        self._counted_at = clock.monotonic_s()

    async def take(self) -> None:
        """Wait for a token. Earlier callers are served first."""
        wait_s = self.reserve()
        if wait_s > 0:
            await self._clock.sleep(wait_s)

    def reserve(self) -> float:
        """Take a token, in advance if there is none, and return the seconds until it exists."""
        if self._qps <= 0:
            return 0.0
        now = self._clock.monotonic_s()
        self._tokens = min(self._burst, self._tokens + (now - self._counted_at) * self._qps) - 1
        self._counted_at = now
        return max(0.0, -self._tokens / self._qps)
