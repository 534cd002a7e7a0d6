"""Writes PodScheduled conditions and nominations into the statuses of pods.

Used by the failure handler, by binding cycles that take time, and by preemption. The writes of one pod are sent in
order. A status that the pod already has is not written again. A status that was just written counts although the watch
has not shown it yet: otherwise a cleared nomination looks like one that was never written. A failed write is retried a
few times; the next attempt writes the status again. A condition has the pod's resourceVersion, so that the API server
does not apply it to a pod that was bound meanwhile. Cost: one request for each status, and one cached pod status for
each pod that failed; after a conflict or an unknown outcome also one GET.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from bayplan.api_writes.pod_status_messages import (
    POD_SCHEDULED,
    failure_patch,
    has_scheduled_condition,
    nomination_patch,
)
from bayplan.api_writes.writes import ApiWrites
from bayplan.client import PODS, STRATEGIC_PATCH, Client
from bayplan.clock import LoopClock
from bayplan.errors import BayplanError, Conflict, NotFound, ServerError, Unreachable
from bayplan.objects.core import Pod
from bayplan.objects.meta import Condition, ObjectMeta

log = logging.getLogger(__name__)

_MAX_TRIES = 4
_INITIAL_BACKOFF_S = 0.01
_BACKOFF_FACTOR = 5
_JITTER = 0.1
_SWEEP_THRESHOLD = 1024


class PodStatuses:
    """Writes of pod statuses by a scheduler. `pending`: the pending pods by uid."""

    def __init__(
        self, client: Client, writes: ApiWrites, pending: Mapping[str, Pod], *, clock: LoopClock, chance: random.Random
    ) -> None:
        self._client = client
        self._writes = writes
        self._pending = pending
        self._clock = clock
        self._chance = chance
        self._written: dict[str, Pod] = {}  # by uid: the pod at the last write, with the status that was written
        self._latest: dict[str, asyncio.Task[None]] = {}  # by uid: the last write in progress
        self._versions: dict[str, tuple[str, str]] = {}  # by uid: the patched version and the result's

    def set_unschedulable(self, pod: Pod, reason: str, message: str, nominate: str | None) -> asyncio.Task[None] | None:
        """Write why a pod is pending, unless its status has that. `nominate`: None keeps its node, "" clears it."""
        known, now = self._last_status(pod), self._clock.now()
        patch = failure_patch(known, reason, message, nominate, now)
        if patch is None:
            return None
        self._remember(_replace_condition(known, reason, message, now), nominate)
        return self._start_write(pod, patch, f"writing the condition of pending pod {pod.key}")

    def has_condition(self, pod: Pod, reason: str, message: str) -> bool:
        """Whether the pod has this condition, by the last write or by the watch."""
        return has_scheduled_condition(self._last_status(pod), reason, message)

    def pending_write(self, uid: str) -> asyncio.Task[None] | None:
        """The last write of a pod's status, while it is in progress."""
        return self._latest.get(uid)

    async def nominate(self, pod: Pod, node_name: str) -> None:
        """Write the node that a pod is about to get ("": none), unless its status has it. Errors are only logged."""
        known = self._last_status(pod)
        if known.status.nominated_node_name == node_name:
            return
        self._remember(known, node_name)
        what = f'writing the nomination of pod {pod.key} to node "{node_name}"'
        await asyncio.wait([self._start_write(pod, nomination_patch(pod, node_name), what)])

    async def clear_nomination(self, pod: Pod) -> None:
        """Clear the nomination of a pod whose node another pod takes. Raises on failure: the preemptor must know."""
        self._remember(self._last_status(pod), "")
        await self.patch(pod, nomination_patch(pod, ""))

    async def patch(self, pod: Pod, patch: dict[str, Any]) -> bool:
        """Patch a status with retries. False if the pod does not exist; raises the last error."""
        pause_s = _INITIAL_BACKOFF_S
        for left in range(_MAX_TRIES - 1, -1, -1):
            try:
                await self._client.patch(
                    PODS, patch, name=pod.name, namespace=pod.namespace, subresource="status", kind=STRATEGIC_PATCH
                )
                return True
            except NotFound:
                return await self._is_there(pod)
            except (Conflict, ServerError, Unreachable):
                if not left:
                    raise
                await self._clock.sleep(pause_s * (1.0 + _JITTER * self._chance.random()))
                pause_s *= _BACKOFF_FACTOR
        return True

    # internal

    async def _is_there(self, pod: Pod) -> bool:
        """A 404 is no proof that a pod is gone: a victim that is taken for gone would be neither deleted nor spared."""
        try:
            found = await self._client.get(Pod, pod.namespace, pod.name)
        except NotFound:
            return False
        return found.uid == pod.uid

    def _start_write(self, pod: Pod, patch: dict[str, Any], what: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._writes.start(
            self._patch_after(pod, patch, self._latest.get(pod.uid), what), what
        )
        self._latest[pod.uid] = task
        task.add_done_callback(lambda done: self._on_written(pod.uid, done))
        return task

    async def _patch_after(self, pod: Pod, patch: dict[str, Any], before: asyncio.Task[None] | None, what: str) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            if "conditions" in patch["status"]:
                await self._patch_waiting(pod, patch)
            else:
                await self.patch(pod, patch)
        except BayplanError as fault:
            self._written.pop(pod.uid, None)  # its status is unknown, so the next write sends all of it
            log.warning("%s failed: %s", what, fault)

    async def _patch_waiting(self, pod: Pod, patch: dict[str, Any]) -> None:
        """Patch the status of a pod while it is pending. The API server applies one of two patches of the same
        version."""
        seen_version, pause_s = _resource_version(pod), _INITIAL_BACKOFF_S
        before, after = self._versions.get(pod.uid, ("", ""))
        version = after if seen_version == before else seen_version
        for left in range(_MAX_TRIES - 1, -1, -1):
            meta = {"uid": pod.uid} | ({"resourceVersion": version} if version else {})
            try:
                answer = await self._client.patch(
                    PODS,
                    {**patch, "metadata": meta},
                    name=pod.name,
                    namespace=pod.namespace,
                    subresource="status",
                    kind=STRATEGIC_PATCH,
                )
            except NotFound:
                return
            except (Conflict, ServerError, Unreachable):
                if not left:
                    raise
            else:
                answer_version = msgspec.json.decode(answer, type=PartialObjectMetadata).metadata.resource_version
                self._note_version(pod.uid, seen_version, answer_version)
                return
            await self._clock.sleep(pause_s * (1.0 + _JITTER * self._chance.random()))
            pause_s *= _BACKOFF_FACTOR
            with contextlib.suppress(ServerError, Unreachable):
                found = await self._client.get(Pod, pod.namespace, pod.name)
                if found.uid != pod.uid or found.spec.node_name:
                    return
                version = _resource_version(found)

    def _note_version(self, uid: str, before: str, after: str) -> None:
        if len(self._versions) > max(_SWEEP_THRESHOLD, 2 * len(self._pending)):
            self._versions = {each: found for each, found in self._versions.items() if each in self._pending}
        self._versions[uid] = before, after

    def _on_written(self, uid: str, task: asyncio.Task[None]) -> None:
        if self._latest.get(uid) is task:
            del self._latest[uid]

    def _last_status(self, pod: Pod) -> Pod:
        """The pod with the status that was written since this version of it."""
        written = self._written.get(pod.uid)
        return written if written is not None and _resource_version(written) == _resource_version(pod) else pod

    def _remember(self, pod: Pod, nominate: str | None) -> None:
        if nominate is not None:
            status = msgspec.structs.replace(pod.status, nominated_node_name=nominate)
            pod = msgspec.structs.replace(pod, status=status)
        if len(self._written) > max(_SWEEP_THRESHOLD, 2 * len(self._pending)):
            self._written = {uid: pod for uid, pod in self._written.items() if uid in self._pending}
        self._written[pod.uid] = pod


class PartialObjectMetadata(msgspec.Struct):
    """The metadata of an answer to a write; the rest is not decoded."""

    metadata: ObjectMeta


def _resource_version(pod: Pod) -> str:
    return pod.metadata.resource_version


def _replace_condition(pod: Pod, reason: str, message: str, now: datetime) -> Pod:
    rest = tuple(each for each in pod.status.conditions if each.type != POD_SCHEDULED)
    condition = Condition(POD_SCHEDULED, "False", reason, message, now, pod.metadata.generation)
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=(*rest, condition)))
