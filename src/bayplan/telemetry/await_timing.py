"""Detects awaited calls that block the event loop. Such a call stops everything: lease renewal, timeouts, other pods.

No timeout ends such a call, and its consequences (a lost lease, an exceeded timeout) do not name it. So `TimedAwait`
resumes the call step by step, and a step that was too long is logged with the name of its caller when it is over. The
watchdog reads the name off the stack before that. Cost: two clock reads for each resumption.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

log = logging.getLogger(__name__)

BLOCKED_WARNING_S = 1.0
"""A step of a call that holds the loop longer than this is logged."""


class TimedAwait:
    """Awaits a call and times its steps. `caller_name`: the name of the call in logs."""

    def __init__(self, work: Awaitable[None], caller_name: str, now_s: Callable[[], float]) -> None:
        self._work = work
        self.caller_name = caller_name
        self._now_s = now_s

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._work.__await__()
        resume: Callable[[], Any] = partial(next, steps)
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
            except BaseException as fault:  # for example a cancellation: the call handles it
                resume = partial(steps.throw, fault)
            else:
                resume = partial(steps.send, answer)

    def _warn_if_blocked(self, held_s: float) -> None:
        if held_s > BLOCKED_WARNING_S:
            log.warning(
                "%s has blocked the event loop for %.1f s; no other work was done and no timeout could end it; "
                "run blocking code in a thread, by await asyncio.to_thread(...)",
                self.caller_name,
                held_s,
            )
