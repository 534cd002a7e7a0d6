"""How does an engine's process follow BindRequests? By a watch of those that failed, where the server can select them.

Two events less a pod: that a request was made we know by the answer, that it was carried out by the pod itself. What
such a watch does not tell is listed: everything before the first decision, and whatever stays silent for long. A server
whose definition of the kind is an older one, or KAI-Scheduler's, tells of all requests.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from bayplan.app.wiring import Wiring
from bayplan.cache.bind_requests import BindRequests
from bayplan.client import EVERYTHING, Client, Selection, resource_of
from bayplan.client.backoff import Backoff
from bayplan.clock import LoopClock
from bayplan.errors import BayplanError, Invalid
from bayplan.objects.bind_requests import FAILED, BindRequest
from bayplan.objects.kinds import kind_of
from bayplan.scheduler.request_following import look_after, look_again

log = logging.getLogger(__name__)

FAILURES = Selection(field_selector=f"status.phase={FAILED}")
_RESOURCE = resource_of(kind_of(BindRequest))

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class RequestWatch:
    """The requests of one engine; None where it binds its pods by itself."""

    requests: BindRequests | None
    client: Client
    selection: Selection = EVERYTHING

    @classmethod
    async def of(cls, requests: BindRequests | None, wiring: Wiring) -> RequestWatch:
        """Ask the server what it can select by."""
        if requests is None:
            return cls(None, wiring.client)
        try:
            await wiring.client.list(_RESOURCE, FAILURES)
        except Invalid:
            return cls(requests, wiring.client)
        requests.only_failures = True
        return cls(requests, wiring.client, FAILURES)

    @property
    def before_deciding(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Nobody decides before it is known which pods are on their way already."""
        requests = self.requests
        return (partial(self._first_look, requests),) if requests is not None and requests.only_failures else ()

    def beside(self, clock: LoopClock) -> tuple[Work, ...]:
        """What runs beside an engine whose pods are bound by the binder."""
        return () if self.requests is None else (partial(look_after, self.requests, clock, self._all),)

    async def _first_look(self, requests: BindRequests) -> None:
        backoff = Backoff(self.client.clock, self.client.chance)
        while True:
            try:
                return await look_again(requests, self._all)
            except BayplanError as fault:
                log.warning("cannot list bind requests: %s; trying again", fault)
            await backoff.wait()

    async def _all(self) -> list[BindRequest]:
        listed = await self.client.list(_RESOURCE)
        return [each for each in listed.items if isinstance(each, BindRequest)]
