"""Who holds the loop? What is awaited and blocks instead stops everything: the lease, limits of time, other pods.

No limit ends such a call, and what comes of it (a lease that is lost, a limit that is overrun) names nobody. So the
call is resumed by us, turn by turn, and a turn that was too long is told with its name when it is over; the watchdog
reads the name off the stack before that. Cost: two looks at the clock whenever the call goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

log = logging.getLogger(__name__)

BLOCKED_WARNING_S = 1.0
"""How long a call may go on without giving way before it is told."""


class TimedAwait:
    """Awaits something for others. `caller_name`: what it is, for people."""

    def __init__(self, work: Awaitable[None], who: str, now_s: Callable[[], float]) -> None:
        self._work = work
        self.caller_name = who
        self._now_s = now_s

    def __await__(self) -> Generator[Any, Any, None]:
        turns = self._work.__await__()
        resume: Callable[[], Any] = partial(next, turns)
        while True:
            start_s = self._now_s()
            try:
                waited_for = resume()
            except StopIteration:
                return
            finally:
                self._warn_if_blocked(self._now_s() - start_s)
            try:
                answer = yield waited_for
            except BaseException as fault:  # it is cancelled, say, and hears of that itself
                resume = partial(turns.throw, fault)
            else:
                resume = partial(turns.send, answer)

    def _warn_if_blocked(self, held_s: float) -> None:
        if held_s > BLOCKED_WARNING_S:
            log.warning(
                "%s has held the loop for %.1f s, and nothing else was done meanwhile, nor could any limit end it; "
                "run what blocks in a thread, by await asyncio.to_thread(...)",
                self.caller_name,
                held_s,
            )
