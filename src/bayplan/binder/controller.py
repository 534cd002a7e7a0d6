"""Binder controller: watches BindRequests and reconciles them with workers, one worker at a time for each request.

`handle_event` is the handler of every informer; `run` runs until it is cancelled. After a restart the informers deliver
all objects, so unfinished requests are continued. The attempts for these are counted before they are made, because one
of them may have killed the previous process.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from bayplan.binder.cancellable_waits import CancellableWaits
from bayplan.binder.gpu.reservations import GpuReservations, is_using_device
from bayplan.binder.informer_cache import InformerCache, RequestKey
from bayplan.binder.reconcile import BindRequestReconciler
from bayplan.client import GroupVersionResource, UndecodableObject, worker_slot
from bayplan.client.work_queue import WorkQueue
from bayplan.clock import LoopClock
from bayplan.errors import BayplanError
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kai.gpu_sharing import gpu_groups_of
from bayplan.objects.meta import KubeObject

log = logging.getLogger(__name__)

WORKERS = 10
MAX_WAITING = 500
"""Limit of pods that only wait, besides those that workers handle: each may have an open watch."""
INITIAL_RETRY_S, MAX_RETRY_S = 1.0, 60.0
SYNC_EVERY_S = 60.0
BUSY_RETRY_S = 1.0


class SubmittedWrites(Protocol):
    """Submitted writes of plugins, and writes with an unknown outcome: implemented by `ApiWrites`."""

    @property
    def has_open_writes(self) -> bool: ...
    async def drain(self) -> None: ...


class BinderController:
    def __init__(
        self,
        view: InformerCache,
        reconciler: BindRequestReconciler,
        reservations: GpuReservations,
        *,
        waits: CancellableWaits,
        clock: LoopClock,
        chance: random.Random,
        workers: int = WORKERS,
        writes: SubmittedWrites | None = None,
    ) -> None:
        self.view = view
        self._reconciler = reconciler
        self._reservations = reservations
        self._waits = waits
        self._writes = writes
        self._clock = clock
        self._sync_lock = asyncio.Lock()  # held during a periodic sync of reservations
        self._is_draining = False
        self._reservation_keys: set[str] = set()
        """Keys of the existing reservation pods."""
        self._existing_at_start: dict[RequestKey, str] = {}
        """Uids of requests that existed when this process started, and are not finished yet."""
        self._undecodable: dict[RequestKey, UndecodableObject] = {}
        self.unreadable: Mapping[RequestKey, UndecodableObject] = {}
        """All current requests that cannot be decoded, from the informer."""
        new_queue = partial(
            WorkQueue, clock=clock, chance=chance, first_retry_s=INITIAL_RETRY_S, last_retry_s=MAX_RETRY_S
        )
        self.requests: WorkQueue[RequestKey] = new_queue(
            "bind request", self._sync, workers=workers, max_released=MAX_WAITING
        )
        waits.release_worker = self.requests.released_worker
        self.groups: WorkQueue[str] = new_queue("GPU group", self._sync_group, workers=1)

    # events

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        item = old if new is None else new
        if not isinstance(item, BindRequest):
            self.view.handle_event(old, new)
            return
        key = (item.namespace, item.name)
        known = self.view.requests.get(key)
        self.view.handle_event(old, new)
        self._waits.cancel_if_outdated(key)
        if new is None:
            self.requests.forget(key)
            self._existing_at_start.pop(key, None)
            for group in item.spec.selected_gpu_groups:
                self.groups.add(group)
            return
        self._undecodable.pop(key, None)
        # A status that the binder wrote itself does not requeue the request: a failure waits for its backoff.
        is_new = not isinstance(old, BindRequest) or old.metadata.generation != item.metadata.generation
        if is_new or _is_reset(known, self.view.requests.get(key)):
            self.requests.add(key)

    def handle_gpu_pod_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """A pod with the label of a GPU group (a reservation or a user) was added, changed or deleted.

        A pod that leaves a group may be its last user. Events of requests show that only while requests exist. Users of
        several devices have labels that no watch can select; the periodic sync checks their groups every minute while
        there is a reservation.
        """
        item = new if new is not None else old
        if isinstance(item, Pod) and self._reservations.is_reservation(item):
            (self._reservation_keys.discard if new is None else self._reservation_keys.add)(item.key)
        for group in _groups(old) - _groups(new):
            self.groups.add(group)

    def report_unreadable(self, _: GroupVersionResource, unreadable: UndecodableObject) -> None:
        """Queue a request that cannot be decoded: its status gets the reason, and it is not attempted."""
        self._undecodable[unreadable.key] = unreadable
        self.requests.add(unreadable.key)

    # work

    async def run(self) -> None:
        """Run until cancelled. Called when the informers have delivered all objects."""
        self._existing_at_start = {
            key: each.metadata.uid
            for key, each in self.view.requests.items()
            if each.is_active and not each.has_succeeded
        }
        async with asyncio.TaskGroup() as group:
            group.create_task(self.requests.run(), name="bind requests")
            group.create_task(self.groups.run(), name="GPU groups")
            group.create_task(self._run_periodic_sync(), name="GPU reservations")

    @property
    def has_open_writes(self) -> bool:
        """Whether a write may still take effect, or be sent by an attempt in progress."""
        is_writing = self._writes is not None and self._writes.has_open_writes
        return self.requests.is_busy or self.groups.is_busy or self._sync_lock.locked() or is_writing

    async def drain(self) -> None:
        """Start nothing new, cancel waits, and finish writes in progress."""
        self._is_draining = True
        self._waits.end()
        await asyncio.gather(self.requests.drain(), self.groups.drain())
        async with self._sync_lock:
            pass
        if self._writes is not None:
            await self._writes.drain()

    async def _sync(self, key: RequestKey) -> float | None:
        worker_slot.set(self.requests.released_worker)
        undecodable = self._undecodable.get(key)
        if undecodable is None:
            return await self._attempt(key)
        await self._reconciler.fail_unreadable(key, undecodable.uid, undecodable.reason)
        if self._undecodable.get(key) is undecodable:
            del self._undecodable[key]  # only after the status is written: a failed write is retried
        return None

    async def _attempt(self, key: RequestKey) -> float | None:
        request, uid = self.view.requests.get(key), self._existing_at_start.get(key)
        existed = uid is not None and request is not None and request.metadata.uid == uid
        retry_s = await self._reconciler.reconcile(key, existed_at_start=existed)
        if retry_s is None:
            self._existing_at_start.pop(key, None)
        return retry_s

    async def _sync_group(self, group: str) -> float | None:
        """Sync a group. A group that an attempt has locked is retried later, so that it blocks no other group."""
        if self._reservations.is_busy(group):
            return BUSY_RETRY_S
        await self._reservations.sync_group(group)
        return None

    async def _run_periodic_sync(self) -> None:
        """Repair reservations after crashes and lost events: at the start, and every minute."""
        first = True
        while True:
            is_wanted = (
                first
                or self._reservation_keys
                or any(each.spec.selected_gpu_groups for each in self.view.requests.values())
            )
            if is_wanted and not self._is_draining:
                first = False
                try:
                    async with self._sync_lock:
                        await self._reservations.sync_all()
                except BayplanError as fault:
                    log.warning("cannot sync GPU reservations: %s; retrying", fault)
            await self._clock.sleep(SYNC_EVERY_S)

    def phases(self) -> dict[str, int]:
        """Number of requests in each phase."""
        found = {"Pending": 0, "Succeeded": 0, "Failed": len(self.unreadable)}  # undecodable requests fail at once
        for key, each in self.view.requests.items():
            if key in self.unreadable:
                continue
            phase = each.status.phase or "Pending"
            found[phase] = found.get(phase, 0) + 1
        return found


def _is_reset(known: BindRequest | None, now: BindRequest | None) -> bool:
    """Whether another client has reset the status of a request, which the binder never does: it is attempted again. The
    watch may be behind the binder's own writes; such an event resets nothing."""
    if known is None or now is None or now.has_failed or now.has_succeeded:
        return False
    return known.has_failed or known.has_succeeded or (known.is_finished and not now.is_finished)


def _groups(pod: KubeObject | None) -> set[str]:
    return gpu_groups_of(pod) if isinstance(pod, Pod) and is_using_device(pod) else set()
