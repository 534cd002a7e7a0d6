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

AGAIN_S = 300.0
_MOST = 4096
SERVER = "the server"
"""The topic of a server that does not answer: whoever gets an answer has seen it cured for all."""
RIGHTS = "the rights"
"""The topic of what we may not do. One request that is let through says nothing about the others."""

_REFUSED = re.compile(r'User "(?P<who>.*)" cannot (?P<verb>\S+) resource "(?P<what>\S+)" in API group "(?P<group>\S*)"')


class LastingFaults:
    """Tells a log. Texts stand below topics, so that a topic can be cured."""

    def __init__(self, log: logging.Logger, clock: LoopClock, *, again_s: float = AGAIN_S) -> None:
        self._log = log
        self._clock = clock
        self._again_s = again_s
        self._told: dict[Hashable, dict[Hashable, float]] = {}

    def tell(self, topic: Hashable, text: str, same: Hashable = None) -> None:
        """`same`: what makes two faults the same one, where that is not the text."""
        now_s = self._clock.monotonic_s()
        if topic not in self._told and len(self._told) >= _MOST:
            self._told.clear()
        told = self._told.setdefault(topic, {})
        if len(told) >= _MOST:
            told.clear()
        known = text if same is None else same
        if known not in told or now_s - told[known] >= self._again_s:
            told[known] = now_s
            self._log.warning("%s", text)

    def tell_of(self, topic: Hashable, doing: str, fault: BayplanError) -> None:
        """What was tried and what became of it, with what somebody has to do; it is tried again."""
        if isinstance(fault, Unreachable):
            again = " Trying" if str(fault).endswith("?") else "; trying"
            self.tell(SERVER, f"{doing}: {fault}{again} again until it answers", same=type(fault).__name__)
        elif isinstance(fault, Forbidden):
            found = _REFUSED.search(fault.details)
            self.tell(
                RIGHTS,
                f"{doing}: {fault.details}; let this user do that, or use a kubeconfig of one who may; trying again",
                same=found.groups() if found else fault.details,
            )
        elif isinstance(fault, Unauthorized):
            advice = "check the user of the kubeconfig: its token or its certificate"
            self.tell(SERVER, f"{doing}: {fault.details}; {advice}; trying again", same=fault.details)
        else:
            self.tell(topic, f"{doing}: {fault}; trying again")

    def cured(self, topic: Hashable) -> None:
        """It went well: the same fault is news when it comes back."""
        self._told.pop(topic, None)
