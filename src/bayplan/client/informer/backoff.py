"""How long to wait before the next try? Doubling delays with jitter that start over after a quiet time."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bayplan.clock import LoopClock


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffConfig:
    """Upstream's figures for informers: 0.8 s doubling to 30 s, each stretched by up to its own length."""

    first_s: float = 0.8
    max_s: float = 30.0
    factor: float = 2.0
    jitter: float = 1.0
    forget_s: float = 120.0


_INFORMER_BACKOFF = BackoffConfig()


class RetryBackoff:
    """The delays of one thing that is tried again and again."""

    def __init__(self, clock: LoopClock, chance: random.Random, pace: BackoffConfig = _INFORMER_BACKOFF) -> None:
        self._clock = clock
        self._chance = chance
        self._pace = pace
        self._next_s = pace.first_s
        self._asked_at = clock.monotonic_s()

    def delay_s(self) -> float:
        """The next delay. Whoever has not asked for a while has been well and starts over."""
        now = self._clock.monotonic_s()
        if now - self._asked_at > self._pace.forget_s:
            self._next_s = self._pace.first_s
        self._asked_at = now
        delay_s = self._next_s
        self._next_s = min(self._next_s * self._pace.factor, self._pace.max_s)
        return delay_s * (1.0 + self._chance.random() * self._pace.jitter)

    async def wait(self) -> None:
        await self._clock.sleep(self.delay_s())
