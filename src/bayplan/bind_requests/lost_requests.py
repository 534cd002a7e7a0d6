"""Pods whose BindRequest was deleted while it was live. They keep their nodes until their bindings cannot take effect.

The binder may have sent the binding of such a pod just before, and the API server may apply it until its request
timeout has passed. Used by `BindRequestTracker` and `ForeignBindRequests`, which free the node when a GET made after
that time shows the pod without a node. Cost: one entry for each deleted request; none for pods that are bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from bayplan.clock import Clock
from bayplan.framework.api.status import SUCCESS, Status
from bayplan.objects.kai.bind_request import BindRequest

REQUEST_TIMEOUT_S = 60.0
"""kube-apiserver's default for --request-timeout."""


@dataclass(frozen=True, slots=True)
class LostRequest:
    """A request that was deleted. `why`: the reason that the pod gets when its node is free."""

    request: BindRequest
    why: Status
    until_s: float


class LostRequests:
    """Lost requests by the uids of their pods."""

    def __init__(self, clock: Clock, request_timeout_s: float) -> None:
        self._clock = clock
        self.request_timeout_s = request_timeout_s
        self._lost: dict[str, LostRequest] = {}

    def add(self, uid: str, request: BindRequest, why: Status = SUCCESS) -> None:
        self._lost[uid] = LostRequest(request, why, self._clock.monotonic_s() + self.request_timeout_s)

    def __contains__(self, uid: str) -> bool:
        return uid in self._lost

    def get(self, uid: str) -> LostRequest | None:
        return self._lost.get(uid)

    def pop(self, uid: str) -> LostRequest | None:
        return self._lost.pop(uid, None)

    def due(self) -> list[tuple[str, BindRequest]]:
        """Pods, by uid, whose bindings cannot take effect any more unless they already have."""
        now_s = self._clock.monotonic_s()
        return [(uid, each.request) for uid, each in self._lost.items() if each.until_s <= now_s]
