"""Applies BindRequests to the pod engine's queue: pods with a request leave it, pods that lost theirs return.

`BindRequestTracker` decides which pods these are; this module applies the decisions. A periodic check handles timeouts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from bayplan.api_writes.pod_status_messages import WARNING
from bayplan.bind_requests.foreign_requests import ForeignBindRequests
from bayplan.bind_requests.lost_requests import LostRequests
from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.client import REQUEST_TIMEOUT_S
from bayplan.clock import LoopClock
from bayplan.errors import BayplanError
from bayplan.framework.runtime.object_changes import ASSIGNED_POD_DELETE
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.scheduler.live.run_loop import LiveScheduler

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 5.0


class BindRequestReader(Protocol):
    """Reads from the API server what the watches do not deliver."""

    async def uids(self) -> frozenset[str]: ...

    async def list_unreadable(self) -> Sequence[BindRequest]:
        """Failed requests that cannot be decoded as a whole, with the fields that can."""
        ...

    async def pod(self, request: BindRequest) -> Pod | None:
        """The pod that a request names; None if there is none."""
        ...

    async def pod_uid(self, request: BindRequest) -> str:
        """Uid of the pod that a request names, whichever scheduler owns it; empty if there is none."""
        ...


class PodRequestOwner:
    """Implements `RequestOwner` of the request tracker for the pod engine."""

    def __init__(self, live: LiveScheduler) -> None:
        self._live = live

    def waiting_pod(self, request: BindRequest) -> Pod | None:
        pending = self._live.engine.pending
        if uid := request.pod_uid:
            return pending.get(uid)
        return next((pod for pod in pending.values() if pod.key == request.pod_key), None)  # created by a user

    def on_assumed(self, pod: Pod) -> None:
        self._live.queue.delete(pod)

    def on_released(self, pod: Pod, assumed: Pod) -> None:
        self.on_foreign_pod_released(assumed)
        self._live.queue.add(pod)

    def on_foreign_pod_released(self, assumed: Pod) -> None:
        """A pod of another scheduler no longer counts on its node."""
        self._live.queue.move_all_on_event(ASSIGNED_POD_DELETE, assumed, None)
        self._live.wake()

    def submit(self, intent: object) -> None:
        self._live.writes.submit(intent)

    def record_warning(self, pod: Pod, reason: str, note: str) -> None:
        self._live.events.record(pod, WARNING, reason, "Binding", note)

    def wake(self, uid: str) -> None:
        pod = self._live.engine.pending.get(uid)
        if pod is not None and self._live.engine.cache.pod(uid) is None:
            self._live.activate(pod)


def track_bind_requests(
    live: LiveScheduler, clock: LoopClock, *, stale_s: float, request_timeout_s: float = REQUEST_TIMEOUT_S
) -> BindRequestTracker:
    """Let a live scheduler count pods on the nodes that their bind requests name."""
    factory = live.engine.bind_request_factory
    engine, cache = PodRequestOwner(live), live.engine.cache
    requests = BindRequestTracker(cache, engine, factory.failures, clock, stale_s, request_timeout_s=request_timeout_s)
    requests.foreign_requests = ForeignBindRequests(
        cache, live.engine.serves, engine.on_foreign_pod_released, LostRequests(clock, request_timeout_s)
    )
    factory.tracker = live.event_handlers.bind_requests = live.bindings.cycle.bind_requests = requests
    return requests


async def run_request_checks(requests: BindRequestTracker, clock: LoopClock, server: BindRequestReader) -> None:
    """Run the checks that depend on time, every few seconds, until cancelled."""
    read_s = float("-inf")
    while True:
        await clock.sleep(CHECK_INTERVAL_S)
        requests.run_periodic_checks()
        if clock.monotonic_s() - read_s >= requests.stale_s:
            read_s = clock.monotonic_s()
            await check_unreadable_requests(requests, server)
        await delete_orphaned_requests(requests, server)
        await read_lost_pods(requests, server)
        if requests.needs_list:
            known_before = requests.uids
            try:
                requests.reconcile_with_list(await server.uids(), known_before)
            except BayplanError as fault:
                log.warning("cannot list the bind requests: %s; retrying", fault)


async def check_unreadable_requests(requests: BindRequestTracker, server: BindRequestReader) -> None:
    """Requests that failed and can no longer be decoded may be orphans, too."""
    try:
        requests.handle_unreadable(await server.list_unreadable())
    except BayplanError as fault:
        log.warning("cannot list the bind requests that cannot be decoded: %s; retrying later", fault)


async def delete_orphaned_requests(requests: BindRequestTracker, server: BindRequestReader) -> None:
    """Delete requests whose pods do not exist. After an error the request is checked again after the same delay."""
    for orphan in requests.orphans():
        try:
            requests.handle_orphan_check(orphan, await server.pod_uid(orphan))
        except BayplanError as fault:
            requests.postpone_orphan_check(orphan)
            log.warning("cannot read the pod of bind request %s: %s; retrying later", orphan.key, fault)


async def read_lost_pods(requests: BindRequestTracker, server: BindRequestReader) -> None:
    """Free the nodes of pods whose requests were deleted, if the pods are not there. After an error the pod keeps its
    node until the next check."""
    for uid, request in requests.lost():
        try:
            requests.read_pod(uid, await server.pod(request))
        except BayplanError as fault:
            log.warning("cannot read the pod of deleted bind request %s: %s; retrying", request.key, fault)
