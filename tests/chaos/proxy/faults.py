"""Faults of single requests, and the plan that says which request gets which.

A fault is armed for a time and a number of requests. What it did is counted: `hits` are requests that it met,
`effects` those for which it changed something, such as a write that took effect although the answer was an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from chaos.proxy.requests import ApiRequest


class Way(Enum):
    """What happens to a request."""

    ERROR_AFTER_WRITE = "5xx after the write took effect"
    ERROR_BEFORE_WRITE = "5xx without the write"
    ANSWER_LOST = "the write lands and the connection is cut"
    LATE_WRITE = "the client is cut off and the write lands later"
    REFUSED_AFTER_WRITE = "4xx although the write took effect"
    REFUSED = "4xx without the write"
    RETRY_AFTER = "5xx with Retry-After, after the write took effect or before it lands late"
    THROTTLED = "429 with Retry-After"
    DELAYED = "the request is delayed"
    SILENT_WATCH = "a watch stays open and delivers nothing"
    CUT = "the connection is cut before the request is sent"
    GONE = "410 Gone on a watch"
    CUT_ANSWER = "the connection is cut within the answer"


OF_WRITES = (
    Way.ERROR_AFTER_WRITE,
    Way.ERROR_BEFORE_WRITE,
    Way.ANSWER_LOST,
    Way.LATE_WRITE,
    Way.REFUSED_AFTER_WRITE,
    Way.REFUSED,
    Way.RETRY_AFTER,
    Way.THROTTLED,
    Way.DELAYED,
)
NOT_REFUSED = ("pod-delete", "lease")
"""A refused victim is replaced by another one, which the check of evictions would take for a needless eviction."""
OF_READS = (Way.ERROR_BEFORE_WRITE, Way.THROTTLED, Way.DELAYED, Way.CUT, Way.CUT_ANSWER)
OF_WATCHES = (Way.SILENT_WATCH, Way.GONE, Way.CUT)
LEAVES_UNKNOWN = (Way.ERROR_AFTER_WRITE, Way.ANSWER_LOST, Way.LATE_WRITE, Way.REFUSED_AFTER_WRITE, Way.RETRY_AFTER)
"""Ways after which the sender cannot know from the answer what became of its write."""


@dataclass(eq=False, slots=True)
class RequestFault:
    """An armed fault. `code` is the status of the answer where there is one."""

    number: int
    way: Way
    target: str
    slot: str
    until_s: float
    times: int
    code: int = 500
    delay_s: float = 0.0
    resource: str = ""
    hits: int = 0
    effects: int = 0

    def meets(self, request: ApiRequest) -> bool:
        return (
            self.hits < self.times
            and request.target == self.target
            and (not self.slot or request.slot == self.slot)
            and (not self.resource or request.resource == self.resource)
        )


@dataclass(slots=True)
class FaultPlan:
    """The armed faults, and the callback for their effects."""

    now: Callable[[], float]
    on_effect: Callable[[RequestFault, ApiRequest, str], None]
    armed: list[RequestFault] = field(default_factory=list)
    on_expiry: Callable[[RequestFault], None] = lambda _: None

    def arm(self, fault: RequestFault) -> None:
        self.armed.append(fault)

    def disarm_all(self) -> None:
        for fault in self.armed:
            self.on_expiry(fault)
        self.armed.clear()

    def choose(self, request: ApiRequest) -> RequestFault | None:
        """The first armed fault that meets the request."""
        self._expire()
        for fault in self.armed:
            if fault.meets(request):
                fault.hits += 1
                return fault
        return None

    def took_effect(self, fault: RequestFault, request: ApiRequest, detail: str = "") -> None:
        fault.effects += 1
        self.on_effect(fault, request, detail)

    def _expire(self) -> None:
        now_s = self.now()
        over = [fault for fault in self.armed if fault.until_s < now_s or fault.hits >= fault.times]
        for fault in over:
            self.armed.remove(fault)
            self.on_expiry(fault)
