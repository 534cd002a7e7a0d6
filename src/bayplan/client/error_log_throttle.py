"""How often does the log hear of a fault that lasts? Once; again when it changes, was cured, or minutes later.

Told by whatever tries again and again: informers, work queues, whoever waits for a server or for authorities. A fault
that many of them meet at once, such as a server that is away, is one topic of all of them, and one line.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable

from bayplan.clock import LoopClock
from bayplan.errors import BayplanError, Forbidden, Unauthorized, Unreachable

REPEAT_S = 300.0
_MAX_TEXTS = 4096
SERVER_TOPIC = "the server"
"""The topic of a server that does not answer: whoever gets an answer has seen it cured for all."""
PERMISSIONS_TOPIC = "the rights"
"""The topic of what we may not do. One request that is let through says nothing about the others."""

_REFUSED = re.compile(r'User "(?P<who>.*)" cannot (?P<verb>\S+) resource "(?P<what>\S+)" in API group "(?P<group>\S*)"')


class ErrorLogThrottle:
    """Tells a log. Texts stand below topics, so that a topic can be cured."""

    def __init__(self, log: logging.Logger, clock: LoopClock, *, again_s: float = REPEAT_S) -> None:
        self._log = log
        self._clock = clock
        self._again_s = again_s
        self._told: dict[Hashable, dict[Hashable, float]] = {}

    def log_error(self, topic: Hashable, text: str, same: Hashable = None) -> None:
        """`same`: what makes two faults the same one, where that is not the text."""
        now_s = self._clock.monotonic_s()
        if topic not in self._told and len(self._told) >= _MAX_TEXTS:
            self._told.clear()
        told = self._told.setdefault(topic, {})
        if len(told) >= _MAX_TEXTS:
            told.clear()
        known = text if same is None else same
        if known not in told or now_s - told[known] >= self._again_s:
            told[known] = now_s
            self._log.warning("%s", text)

    def log_api_error(self, topic: Hashable, doing: str, fault: BayplanError) -> None:
        """What was tried and what became of it, with what somebody has to do; it is tried again."""
        if isinstance(fault, Unreachable):
            again = " Trying" if str(fault).endswith("?") else "; trying"
            self.log_error(SERVER_TOPIC, f"{doing}: {fault}{again} again until it answers", same=type(fault).__name__)
        elif isinstance(fault, Forbidden):
            found = _REFUSED.search(fault.details)
            self.log_error(
                PERMISSIONS_TOPIC,
                f"{doing}: {fault.details}; let this user do that, or use a kubeconfig of one who may; trying again",
                same=found.groups() if found else fault.details,
            )
        elif isinstance(fault, Unauthorized):
            advice = "check the user of the kubeconfig: its token or its certificate"
            self.log_error(SERVER_TOPIC, f"{doing}: {fault.details}; {advice}; trying again", same=fault.details)
        else:
            self.log_error(topic, f"{doing}: {fault}; trying again")

    def clear(self, topic: Hashable) -> None:
        """It went well: the same fault is news when it comes back."""
        self._told.pop(topic, None)
