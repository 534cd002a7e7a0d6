"""Limits log lines of a persistent fault: one line, and another when it changes, recurs or lasts `REPEAT_S`.

Used by code that retries: informers, work queues, and processes that wait for the server or for certificate
authorities. Many retries meet one fault together, such as an unavailable server. They share one topic and one line.
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
"""Topic of a server that does not answer. Any response clears it."""
PERMISSIONS_TOPIC = "the rights"
"""Topic of forbidden requests. A request that is allowed does not clear the rest."""

_REFUSED = re.compile(r'User "(?P<who>.*)" cannot (?P<verb>\S+) resource "(?P<what>\S+)" in API group "(?P<group>\S*)"')


class ErrorLogThrottle:
    """Logs each text once per topic, until the topic is cleared."""

    def __init__(self, log: logging.Logger, clock: LoopClock, *, again_s: float = REPEAT_S) -> None:
        self._log = log
        self._clock = clock
        self._again_s = again_s
        self._logged: dict[Hashable, dict[Hashable, float]] = {}

    def log_error(self, topic: Hashable, text: str, same: Hashable = None) -> None:
        """Log an error. `same`: identity of the fault where its text varies."""
        now_s = self._clock.monotonic_s()
        if topic not in self._logged and len(self._logged) >= _MAX_TEXTS:
            self._logged.clear()
        logged = self._logged.setdefault(topic, {})
        if len(logged) >= _MAX_TEXTS:
            logged.clear()
        identity = text if same is None else same
        if identity not in logged or now_s - logged[identity] >= self._again_s:
            logged[identity] = now_s
            self._log.warning("%s", text)

    def log_api_error(self, topic: Hashable, operation: str, fault: BayplanError) -> None:
        """Log a failed operation, the reason and what the user has to do. The caller retries it."""
        if isinstance(fault, Unreachable):
            again = " Trying" if str(fault).endswith("?") else "; trying"
            self.log_error(
                SERVER_TOPIC, f"{operation}: {fault}{again} again until it answers", same=type(fault).__name__
            )
        elif isinstance(fault, Forbidden):
            found = _REFUSED.search(fault.details)
            self.log_error(
                PERMISSIONS_TOPIC,
                f"{operation}: {fault.details}; grant this user the right, or use another kubeconfig; trying again",
                same=found.groups() if found else fault.details,
            )
        elif isinstance(fault, Unauthorized):
            advice = "check the user of the kubeconfig: its token or its certificate"
            self.log_error(SERVER_TOPIC, f"{operation}: {fault.details}; {advice}; trying again", same=fault.details)
        else:
            self.log_error(topic, f"{operation}: {fault}; trying again")

    def clear(self, topic: Hashable) -> None:
        """Forget a topic after a success: its next fault is logged at once."""
        self._logged.pop(topic, None)
