"""How does an engine's process follow BindRequests? Of its own by those that failed, where the server can select them.

Two events less a pod: that a request was made we know by the answer, that it was carried out by the pod itself. What
such a watch does not tell is asked for: everything before the first decision, and whether those are still there of
which nobody has heard for long, by their uids alone. Requests for pods of other schedulers are watched from beginning
to end, for their room is taken; they say by a label whose they are. A server whose definition of the kind is an older
one, or KAI-Scheduler's, tells of all requests, and so does any where several schedulers of one name share the pods.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from bayplan.app.api_clients import Wiring
from bayplan.bind_requests.tracker import BindRequests
from bayplan.client import EVERYTHING, PODS, Client, Selection, Unreadable, resource_of
from bayplan.client.informer.backoff import Backoff
from bayplan.client.informer.informer import Handler
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, BayplanError, NotFound, ObjectError
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import (
    FAILED,
    MADE_FOR,
    BindRequest,
    as_far_as_readable,
    label_value,
)
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import Api
from bayplan.scheduler.live.bind_request_handlers import look_after

log = logging.getLogger(__name__)

_RESOURCE = resource_of(kind_of(BindRequest))
_HAS_FAILED = f"status.phase={FAILED}"
_BARE = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class RequestWatch:
    """The requests of one engine; None where it binds its pods by itself."""

    requests: BindRequests | None
    client: Client
    selections: tuple[Selection, ...] = (EVERYTHING,)
    """Together every request of interest, and none twice."""

    @classmethod
    async def of(cls, requests: BindRequests | None, wiring: Wiring, names: Collection[str]) -> RequestWatch:
        """Ask the server what it can select by. `names`: of the schedulers whose pods are all ours; none where there
        are several of a name."""
        if requests is None or not names:
            return cls(requests, wiring.client)
        listed = ",".join(sorted(map(label_value, names)))
        failures = Selection(field_selector=_HAS_FAILED, label_selector=f"{MADE_FOR} in ({listed})")
        try:
            await wiring.client.list(_RESOURCE, failures)
        except BayplanError as fault:
            log.info("all bind requests are watched: %s", fault)
            return cls(requests, wiring.client)
        requests.only_failures = True
        return cls(requests, wiring.client, (failures, Selection(label_selector=f"{MADE_FOR} notin ({listed})")))

    def before_deciding(self, hear: Handler) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Nobody decides before it is known which pods are on their way already. `hear`: who is told of pods, too, so
        that each request is told after its pod."""
        if self.requests is None or not self.requests.only_failures:
            return ()
        return (partial(self._first_look, hear),)

    def beside(self, clock: LoopClock) -> tuple[Work, ...]:
        """What runs beside an engine whose pods are bound by the binder."""
        return () if self.requests is None else (partial(look_after, self.requests, clock, self),)

    async def _first_look(self, hear: Handler) -> None:
        backoff = Backoff(self.client.clock, self.client.chance)
        while True:
            try:
                listed = await self.client.list(_RESOURCE)
            except BayplanError as fault:
                log.warning("cannot list bind requests: %s; trying again", fault)
                await backoff.wait()
            else:
                break
        for request in listed.items:
            if isinstance(request, BindRequest):
                hear(None, request)

    async def uids(self) -> frozenset[str]:
        answer = await self.client.transport.request("GET", _RESOURCE.path(), accept=_BARE)
        try:
            items = msgspec.json.decode(answer.body, type=_List).items
        except msgspec.MsgspecError as fault:
            raise ObjectError(f"the list of bind requests cannot be read: {fault}") from fault
        return frozenset(each.metadata.uid for each in items or ())

    async def unread(self) -> list[BindRequest]:
        """None where the server cannot select: to read all of them for the sake of these would cost too much."""
        try:
            listed = await self.client.list(_RESOURCE, Selection(field_selector=_HAS_FAILED))
        except ApiError as fault:
            log.debug("bind requests that cannot be read are not looked for: %s", fault)
            return []
        found = []
        for each in listed.items:
            if isinstance(each, Unreadable):
                with contextlib.suppress(NotFound):  # it went meanwhile
                    found.append(as_far_as_readable(await self.client.get_raw(_RESOURCE, *each.key)))
        return found

    async def pod(self, request: BindRequest) -> Pod | None:
        try:
            return await self.client.get(Pod, request.namespace, request.spec.pod_name)
        except NotFound:
            return None

    async def pod_uid(self, request: BindRequest) -> str:
        if not request.can_have_pod:
            return ""
        try:
            found = await self.client.get_raw(PODS, request.namespace, request.spec.pod_name)
        except NotFound:
            return ""
        return str(found["metadata"]["uid"])


class _Meta(Api, frozen=True):
    uid: str = ""


class _Item(Api, frozen=True):
    metadata: _Meta = _Meta()


class _List(Api, frozen=True):
    items: tuple[_Item, ...] | None = None  # null where there is none
