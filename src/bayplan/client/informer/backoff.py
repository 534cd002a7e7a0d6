"""Exponential backoff with jitter. The delay starts over after a quiet period."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bayplan.clock import LoopClock


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffConfig:
    """Delays of client-go's reflector: 0.8 s, doubled up to 30 s, each stretched by up to its own length."""

    first_s: float = 0.8
    max_s: float = 30.0
    factor: float = 2.0
    jitter: float = 1.0
    forget_s: float = 120.0


_INFORMER_BACKOFF = BackoffConfig()


class RetryBackoff:
    def __init__(self, clock: LoopClock, chance: random.Random, config: BackoffConfig = _INFORMER_BACKOFF) -> None:
        self._clock = clock
        self._chance = chance
        self._config = config
        self._next_s = config.first_s
        self._last_failure_s = clock.monotonic_s()

    def delay_s(self) -> float:
        """Return the next delay. It starts over when the last failure is older than `forget_s`."""
        now = self._clock.monotonic_s()
        if now - self._last_failure_s > self._config.forget_s:
            self._next_s = self._config.first_s
        self._last_failure_s = now
        delay_s = self._next_s
        self._next_s = min(self._next_s * self._config.factor, self._config.max_s)
        return delay_s * (1.0 + self._chance.random() * self._config.jitter)

    async def wait(self) -> None:
        await self._clock.sleep(self.delay_s())
