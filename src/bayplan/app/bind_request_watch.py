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

from bayplan.app.api_clients import ApiClients
from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.client import EVERYTHING, PODS, Client, Selection, UndecodableObject, resource_of
from bayplan.client.informer.backoff import RetryBackoff
from bayplan.client.informer.informer import Handler
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, BayplanError, NotFound, ObjectError
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import (
    FAILED,
    SCHEDULER_LABEL,
    BindRequest,
    decode_readable_fields,
    label_value,
)
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import Api
from bayplan.scheduler.live.bind_request_handlers import run_request_checks

log = logging.getLogger(__name__)

_BIND_REQUESTS = resource_of(kind_of(BindRequest))
_FAILED_SELECTOR = f"status.phase={FAILED}"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

BackgroundTask = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class BindRequestWatch:
    """The requests of one engine; None where it binds its pods by itself."""

    requests: BindRequestTracker | None
    client: Client
    selections: tuple[Selection, ...] = (EVERYTHING,)
    """Together every request of interest, and none twice."""

    @classmethod
    async def create(
        cls, requests: BindRequestTracker | None, wiring: ApiClients, names: Collection[str]
    ) -> BindRequestWatch:
        """Ask the server what it can select by. `names`: of the schedulers whose pods are all ours; none where there
        are several of a name."""
        if requests is None or not names:
            return cls(requests, wiring.client)
        listed = ",".join(sorted(map(label_value, names)))
        failures = Selection(field_selector=_FAILED_SELECTOR, label_selector=f"{SCHEDULER_LABEL} in ({listed})")
        try:
            await wiring.client.list(_BIND_REQUESTS, failures)
        except BayplanError as fault:
            log.info("all bind requests are watched: %s", fault)
            return cls(requests, wiring.client)
        requests.only_failures = True
        return cls(requests, wiring.client, (failures, Selection(label_selector=f"{SCHEDULER_LABEL} notin ({listed})")))

    def startup_tasks(self, hear: Handler) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Nobody decides before it is known which pods are on their way already. `hear`: who is told of pods, too, so
        that each request is told after its pod."""
        if self.requests is None or not self.requests.only_failures:
            return ()
        return (partial(self._list_existing, hear),)

    def background_tasks(self, clock: LoopClock) -> tuple[BackgroundTask, ...]:
        """What runs beside an engine whose pods are bound by the binder."""
        return () if self.requests is None else (partial(run_request_checks, self.requests, clock, self),)

    async def _list_existing(self, hear: Handler) -> None:
        backoff = RetryBackoff(self.client.clock, self.client.chance)
        while True:
            try:
                listed = await self.client.list(_BIND_REQUESTS)
            except BayplanError as fault:
                log.warning("cannot list bind requests: %s; trying again", fault)
                await backoff.wait()
            else:
                break
        for request in listed.items:
            if isinstance(request, BindRequest):
                hear(None, request)

    async def uids(self) -> frozenset[str]:
        answer = await self.client.transport.request("GET", _BIND_REQUESTS.path(), accept=_METADATA_ONLY)
        try:
            items = msgspec.json.decode(answer.body, type=_BindRequestList).items
        except msgspec.MsgspecError as fault:
            raise ObjectError(f"the list of bind requests cannot be read: {fault}") from fault
        return frozenset(each.metadata.uid for each in items or ())

    async def list_unreadable(self) -> list[BindRequest]:
        """None where the server cannot select: to read all of them for the sake of these would cost too much."""
        try:
            listed = await self.client.list(_BIND_REQUESTS, Selection(field_selector=_FAILED_SELECTOR))
        except ApiError as fault:
            log.debug("bind requests that cannot be read are not looked for: %s", fault)
            return []
        found = []
        for each in listed.items:
            if isinstance(each, UndecodableObject):
                with contextlib.suppress(NotFound):  # it went meanwhile
                    found.append(decode_readable_fields(await self.client.get_raw(_BIND_REQUESTS, *each.key)))
        return found

    async def pod(self, request: BindRequest) -> Pod | None:
        try:
            return await self.client.get(Pod, request.namespace, request.spec.pod_name)
        except NotFound:
            return None

    async def pod_uid(self, request: BindRequest) -> str:
        if not request.has_valid_pod_name:
            return ""
        try:
            found = await self.client.get_raw(PODS, request.namespace, request.spec.pod_name)
        except NotFound:
            return ""
        return str(found["metadata"]["uid"])


class _BindRequestMeta(Api, frozen=True):
    uid: str = ""


class _BindRequestItem(Api, frozen=True):
    metadata: _BindRequestMeta = _BindRequestMeta()


class _BindRequestList(Api, frozen=True):
    items: tuple[_BindRequestItem, ...] | None = None  # null where there is none
