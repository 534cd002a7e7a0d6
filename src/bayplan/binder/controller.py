"""The binder at work: requests come by the watch, workers carry them out, one at a time for each.

`handle_event` is the handler of every informer, `run` goes on until it is cancelled. Started again after a crash it is
told of everything that exists, and so takes up what was left; with care, for it may be what the one before has died of.
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
"""Pods that only wait for others, beside those that workers are busy with: each may keep a watch open."""
INITIAL_RETRY_S, MAX_RETRY_S = 1.0, 60.0
SYNC_EVERY_S = 60.0
BUSY_RETRY_S = 1.0


class Submitted(Protocol):
    """Writes that plugins have submitted, and those whose outcome is not known: `ApiWrites`."""

    @property
    def has_open_writes(self) -> bool: ...
    async def drain(self) -> None: ...


class BinderController:
    """Runs one binder."""

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
        writes: Submitted | None = None,
    ) -> None:
        self.view = view
        self._reconciler = reconciler
        self._reservations = reservations
        self._waits = waits
        self._writes = writes
        self._clock = clock
        self._looking = asyncio.Lock()  # held while reservations are looked after
        self._is_draining = False
        self._held: set[str] = set()
        """Reservations that are there, by key."""
        self._inherited: dict[RequestKey, str] = {}
        """Uids of requests that were there when we began, and are not over yet."""
        self._unread: dict[RequestKey, UndecodableObject] = {}
        self.unreadable: Mapping[RequestKey, UndecodableObject] = {}
        """What is there at present and cannot be read, as whoever watches knows it."""
        made = partial(WorkQueue, clock=clock, chance=chance, first_retry_s=INITIAL_RETRY_S, last_retry_s=MAX_RETRY_S)
        self.requests: WorkQueue[RequestKey] = made("bind request", self._sync, workers=workers, most_aside=MAX_WAITING)
        waits.aside = self.requests.released_worker
        self.groups: WorkQueue[str] = made("GPU group", self._sync_group, workers=1)

    # what is told -----------------------------------------------------------------------------------------------

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """The API server told of a change."""
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
            self._inherited.pop(key, None)
            for group in item.spec.selected_gpu_groups:
                self.groups.add(group)
            return
        self._unread.pop(key, None)
        # Our own words on a request are no reason to look at it again: a failure waits for its time.
        is_new = not isinstance(old, BindRequest) or old.metadata.generation != item.metadata.generation
        if is_new or _is_reset(known, self.view.requests.get(key)):
            self.requests.add(key)

    def handle_gpu_pod_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """A pod with the label of a GPU group, a reservation or a user of one, came, changed or went.

        Whoever leaves a group may be the last: requests tell that only as long as there are any. Users of several
        devices have labels that no watch can ask for; what they leave is found by looking every minute, as long as
        there is a reservation at all.
        """
        item = new if new is not None else old
        if isinstance(item, Pod) and self._reservations.is_reservation(item):
            (self._held.discard if new is None else self._held.add)(item.key)
        for group in _groups(old) - _groups(new):
            self.groups.add(group)

    def report_unreadable(self, _: GroupVersionResource, unreadable: UndecodableObject) -> None:
        """A request that cannot be read is told so, and is not tried."""
        self._unread[unreadable.key] = unreadable
        self.requests.add(unreadable.key)

    # work -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled; from when all that exists is known."""
        self._inherited = {
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
        """Whether a write may still take effect, or be sent by an attempt that is under way."""
        is_writing = self._writes is not None and self._writes.has_open_writes
        return self.requests.is_busy or self.groups.is_busy or self._looking.locked() or is_writing

    async def drain(self) -> None:
        """Begin nothing new, end what only waits, and finish what is being written."""
        self._is_draining = True
        self._waits.end()
        await asyncio.gather(self.requests.drain(), self.groups.drain())
        async with self._looking:
            pass
        if self._writes is not None:
            await self._writes.drain()

    async def _sync(self, key: RequestKey) -> float | None:
        worker_slot.set(self.requests.released_worker)
        unread = self._unread.get(key)
        if unread is None:
            return await self._attempt(key)
        await self._reconciler.fail_unreadable(key, unread.uid, unread.reason)
        if self._unread.get(key) is unread:
            del self._unread[key]  # not before it is told: whatever fails is tried again
        return None

    async def _attempt(self, key: RequestKey) -> float | None:
        request, uid = self.view.requests.get(key), self._inherited.get(key)
        inherited = uid is not None and request is not None and request.metadata.uid == uid
        again_s = await self._reconciler.reconcile(key, inherited=inherited)
        if again_s is None:
            self._inherited.pop(key, None)
        return again_s

    async def _sync_group(self, group: str) -> float | None:
        """One whose device somebody waits for keeps no other group from being looked after."""
        if self._reservations.is_busy(group):
            return BUSY_RETRY_S
        await self._reservations.sync_group(group)
        return None

    async def _run_periodic_sync(self) -> None:
        """What crashes and lost events have left of reservations is found at the start, and every minute."""
        first = True
        while True:
            is_wanted = (
                first or self._held or any(each.spec.selected_gpu_groups for each in self.view.requests.values())
            )
            if is_wanted and not self._is_draining:
                first = False
                try:
                    async with self._looking:
                        await self._reservations.sync_all()
                except BayplanError as fault:
                    log.warning("GPU reservations are not looked after: %s; trying again", fault)
            await self._clock.sleep(SYNC_EVERY_S)

    def phases(self) -> dict[str, int]:
        """How many requests there are of each phase."""
        found = {"Pending": 0, "Succeeded": 0, "Failed": len(self.unreadable)}  # which is what becomes of them at once
        for key, each in self.view.requests.items():
            if key in self.unreadable:
                continue
            phase = each.status.phase or "Pending"
            found[phase] = found.get(phase, 0) + 1
        return found


def _is_reset(known: BindRequest | None, now: BindRequest | None) -> bool:
    """Whether somebody has taken back what was told of a request, which we never do: it is to be tried anew. What the
    watch tells later than our own writes did is no newer than these, and takes nothing back."""
    if known is None or now is None or now.has_failed or now.has_succeeded:
        return False
    return known.has_failed or known.has_succeeded or (known.is_finished and not now.is_finished)


def _groups(pod: KubeObject | None) -> set[str]:
    return gpu_groups_of(pod) if isinstance(pod, Pod) and is_using_device(pod) else set()
