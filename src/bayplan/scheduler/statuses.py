"""Writes into the statuses of pods why they wait and which node is kept for them.

Used by the failure handler, by bindings that take time, and by evictions. What is said of one pod is written in the
order in which it was said; what it says already is not written again, and what was just written counts as said though
the watch has not shown it yet: else a nomination that is over could not be told from one that was never told. Writing
is tried a few times; the next attempt says it again. A condition names the version of the pod, so that the API server
does not apply it to a pod that was bound meanwhile. Cost: one request, and a pod's status for those that failed; after
a conflict or an unknown outcome one GET.
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

from bayplan.client import PODS, STRATEGIC_PATCH, Client
from bayplan.clock import LoopClock
from bayplan.errors import BayplanError, Conflict, NotFound, ServerError, Unreachable
from bayplan.objects.core import Pod
from bayplan.objects.meta import Condition, ObjectMeta
from bayplan.scheduler.telling import POD_SCHEDULED, condition_is, failure_patch, nomination_patch
from bayplan.scheduler.writing import ApiWrites

log = logging.getLogger(__name__)

_TRIES = 4
_FIRST_PAUSE_S = 0.01
_PAUSE_FACTOR = 5
_JITTER = 0.1
_WORTH_SWEEPING = 1024


class PodStatuses:
    """The statuses of pods, as far as a scheduler writes them. `pending`: the pods that wait, by uid."""

    def __init__(
        self,
        client: Client,
        writes: ApiWrites,
        pending: Mapping[str, Pod],
        *,
        clock: LoopClock,
        chance: random.Random,
    ) -> None:
        self._client = client
        self._writes = writes
        self._pending = pending
        self._clock = clock
        self._chance = chance
        self._said: dict[str, Pod] = {}  # by uid: the pod as it was when we last spoke, with what we said
        self._latest: dict[str, asyncio.Task[None]] = {}  # by uid: what is still being written
        self._versions: dict[str, tuple[str, str]] = {}  # by uid: the version that we spoke of, and what we made of it

    def say(self, pod: Pod, reason: str, message: str, nominate: str | None) -> asyncio.Task[None] | None:
        """Write why a pod waits, unless its status says so. `nominate`: None keeps its node, "" clears it."""
        known, now = self._as_said(pod), self._clock.now()
        patch = failure_patch(known, reason, message, nominate, now)
        if patch is None:
            return None
        self._remember(_with_condition(known, reason, message, now), nominate)
        return self._start(pod, patch, f"saying in the status of pod {pod.key} why it waits")

    def says(self, pod: Pod, reason: str, message: str) -> bool:
        """Whether the pod's condition is this one already, by what was last written or by what the watch shows."""
        return condition_is(self._as_said(pod), reason, message)

    def being_written(self, uid: str) -> asyncio.Task[None] | None:
        """The latest that was said of a pod, as long as it is not written."""
        return self._latest.get(uid)

    async def nominate(self, pod: Pod, node_name: str) -> None:
        """Write which node a pod is about to get ("": none), unless its status says so. Failing stops nothing."""
        known = self._as_said(pod)
        if known.status.nominated_node_name == node_name:
            return
        self._remember(known, node_name)
        what = f'saying that pod {pod.key} expects node "{node_name}"'
        await asyncio.wait([self._start(pod, nomination_patch(pod, node_name), what)])

    async def clear_nomination(self, pod: Pod) -> None:
        """The room that a pod waits for is somebody else's; whoever took it has to know if that cannot be said."""
        self._remember(self._as_said(pod), "")
        await self.patch(pod, nomination_patch(pod, ""))

    async def patch(self, pod: Pod, patch: dict[str, Any]) -> bool:
        """Whether there still is such a pod; raises what goes wrong again and again."""
        pause_s = _FIRST_PAUSE_S
        for left in range(_TRIES - 1, -1, -1):
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
                pause_s *= _PAUSE_FACTOR
        return True

    # inside -----------------------------------------------------------------------------------------------------

    async def _is_there(self, pod: Pod) -> bool:
        """A 404 is no proof that a pod is gone: a victim that is taken for gone would be neither deleted nor spared."""
        try:
            found = await self._client.get(Pod, pod.namespace, pod.name)
        except NotFound:
            return False
        return found.uid == pod.uid

    def _start(self, pod: Pod, patch: dict[str, Any], what: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._writes.start(self._in_turn(pod, patch, self._latest.get(pod.uid), what), what)
        self._latest[pod.uid] = task
        task.add_done_callback(lambda done: self._written(pod.uid, done))
        return task

    async def _in_turn(self, pod: Pod, patch: dict[str, Any], before: asyncio.Task[None] | None, what: str) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            if "conditions" in patch["status"]:
                await self._patch_waiting(pod, patch)
            else:
                await self.patch(pod, patch)
        except BayplanError as fault:
            self._said.pop(pod.uid, None)  # nobody knows what it says now, so the next time all of it is written
            log.warning("%s failed: %s", what, fault)

    async def _patch_waiting(self, pod: Pod, patch: dict[str, Any]) -> None:
        """Patch the status of a pod as long as it waits. Of two patches of one version the API server applies one."""
        seen, pause_s = _version(pod), _FIRST_PAUSE_S
        before, after = self._versions.get(pod.uid, ("", ""))
        version = after if seen == before else seen
        for left in range(_TRIES - 1, -1, -1):
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
                self._note_version(pod.uid, seen, msgspec.json.decode(answer, type=_Answer).metadata.resource_version)
                return
            await self._clock.sleep(pause_s * (1.0 + _JITTER * self._chance.random()))
            pause_s *= _PAUSE_FACTOR
            with contextlib.suppress(ServerError, Unreachable):
                found = await self._client.get(Pod, pod.namespace, pod.name)
                if found.uid != pod.uid or found.spec.node_name:
                    return
                version = _version(found)

    def _note_version(self, uid: str, seen: str, made: str) -> None:
        if len(self._versions) > max(_WORTH_SWEEPING, 2 * len(self._pending)):
            self._versions = {each: found for each, found in self._versions.items() if each in self._pending}
        self._versions[uid] = seen, made

    def _written(self, uid: str, task: asyncio.Task[None]) -> None:
        if self._latest.get(uid) is task:
            del self._latest[uid]

    def _as_said(self, pod: Pod) -> Pod:
        """The pod with what we wrote since this version of it."""
        said = self._said.get(pod.uid)
        return said if said is not None and _version(said) == _version(pod) else pod

    def _remember(self, pod: Pod, nominate: str | None) -> None:
        if nominate is not None:
            status = msgspec.structs.replace(pod.status, nominated_node_name=nominate)
            pod = msgspec.structs.replace(pod, status=status)
        if len(self._said) > max(_WORTH_SWEEPING, 2 * len(self._pending)):
            self._said = {uid: said for uid, said in self._said.items() if uid in self._pending}
        self._said[pod.uid] = pod


class _Answer(msgspec.Struct):
    metadata: ObjectMeta


def _version(pod: Pod) -> str:
    return pod.metadata.resource_version


def _with_condition(pod: Pod, reason: str, message: str, now: datetime) -> Pod:
    others = tuple(told for told in pod.status.conditions if told.type != POD_SCHEDULED)
    told = Condition(POD_SCHEDULED, "False", reason, message, now, pod.metadata.generation)
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=(*others, told)))
