"""Watches of BindRequests in an engine's process. Of the engine's own requests only failed ones are watched.

This needs a server that selects by phase, and saves two events a pod. The response to the create request says that a
request exists, and the pod itself says that it was carried out. All requests are listed before the first decision.
Requests without news for long are checked by listing the uids of all. Requests for pods of other schedulers are watched
for their whole life, because they occupy resources; a label says whose they are. All requests are watched if the CRD
on the server is an older one, or KAI-Scheduler's, or if several schedulers of one name share the pods.
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
from bayplan.objects.kai.bind_request import FAILED, SCHEDULER_LABEL, BindRequest, decode_readable_fields, label_value
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
    """The watches of one engine. `requests` is None if the engine binds its pods itself."""

    requests: BindRequestTracker | None
    client: Client
    selections: tuple[Selection, ...] = (EVERYTHING,)
    """Selectors that together match every request of interest, each request once."""

    @classmethod
    async def create(
        cls, requests: BindRequestTracker | None, clients: ApiClients, names: Collection[str]
    ) -> BindRequestWatch:
        """Find out which selectors the server supports. `names`: the schedulers all of whose pods belong to this
        engine; empty if several schedulers share a name."""
        if requests is None or not names:
            return cls(requests, clients.client)
        listed = ",".join(sorted(map(label_value, names)))
        failures = Selection(field_selector=_FAILED_SELECTOR, label_selector=f"{SCHEDULER_LABEL} in ({listed})")
        try:
            await clients.client.list(_BIND_REQUESTS, failures)
        except BayplanError as fault:
            log.info("all bind requests are watched, because the server cannot select them: %s", fault)
            return cls(requests, clients.client)
        requests.only_failures = True
        return cls(
            requests, clients.client, (failures, Selection(label_selector=f"{SCHEDULER_LABEL} notin ({listed})"))
        )

    def startup_tasks(self, on_event: Handler) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Tasks before the first decision: list the existing requests, so that pods on their way are known. `on_event`
        also gets pods, so each request is handled after its pod."""
        if self.requests is None or not self.requests.only_failures:
            return ()
        return (partial(self._list_existing, on_event),)

    def background_tasks(self, clock: LoopClock) -> tuple[BackgroundTask, ...]:
        """Tasks next to an engine whose pods are bound by the binder."""
        return () if self.requests is None else (partial(run_request_checks, self.requests, clock, self),)

    async def _list_existing(self, on_event: Handler) -> None:
        backoff = RetryBackoff(self.client.clock, self.client.chance)
        while True:
            try:
                listed = await self.client.list(_BIND_REQUESTS)
            except BayplanError as fault:
                log.warning("cannot list bind requests: %s; retrying", fault)
                await backoff.wait()
            else:
                break
        for request in listed.items:
            if isinstance(request, BindRequest):
                on_event(None, request)

    async def uids(self) -> frozenset[str]:
        answer = await self.client.transport.request("GET", _BIND_REQUESTS.path(), accept=_METADATA_ONLY)
        try:
            items = msgspec.json.decode(answer.body, type=_BindRequestList).items
        except msgspec.MsgspecError as fault:
            raise ObjectError(f"the list of bind requests cannot be read: {fault}") from fault
        return frozenset(each.metadata.uid for each in items or ())

    async def list_unreadable(self) -> list[BindRequest]:
        """Failed requests that cannot be decoded; none if the server cannot select: reading all requests costs too
        much."""
        try:
            listed = await self.client.list(_BIND_REQUESTS, Selection(field_selector=_FAILED_SELECTOR))
        except ApiError as fault:
            log.debug("cannot look for undecodable bind requests: %s", fault)
            return []
        found = []
        for each in listed.items:
            if isinstance(each, UndecodableObject):
                with contextlib.suppress(NotFound):  # it was deleted meanwhile
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
    items: tuple[_BindRequestItem, ...] | None = None  # null if empty
