"""Nodes of the fake kubelet: registers them, renews their leases, and keeps them Ready.

A node costs one request to register, one patch of its lease every ten to forty seconds, and one patch of its conditions
every five minutes. The lease interval follows from the rate: a thousand nodes make 50 requests a second. A deleted node
is left alone until it is recreated.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from bayplan.client import LEASES, MERGE_PATCH, Client, Informer, resource_of
from bayplan.client.work_queue import WorkQueue
from bayplan.clock import LoopClock
from bayplan.controllers.kubelet.node_status import (
    LEASE_NAMESPACE,
    LEASE_S,
    conditions,
    is_healthy,
    lease_renewal,
    new_lease,
)
from bayplan.errors import AlreadyExists, NotFound
from bayplan.objects.core import Node
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject

log = logging.getLogger(__name__)

NODES = resource_of(kind_of(Node))
STATUS_S = 300.0
RENEW_S = LEASE_S / 4
RENEWALS_PER_SECOND = 50.0
_JITTER = 0.04


def renew_interval_s(nodes: int, rate: float = RENEWALS_PER_SECOND) -> float:
    """Seconds between two renewals of a lease: the kubelet's interval if the rate allows it, at most the lease time."""
    return min(max(RENEW_S, nodes / rate), float(LEASE_S))


class FakeNodes:
    def __init__(
        self,
        client: Client,
        manifests: Iterable[dict[str, Any]],
        *,
        leases: Client,
        renewals_a_second: float = RENEWALS_PER_SECOND,
    ) -> None:
        self._client = client
        self._lease_client = leases
        self._clock: LoopClock = client.clock
        self._chance: random.Random = client.chance
        self._manifests = {each["metadata"]["name"]: each for each in manifests}
        self._renew_s = renew_interval_s(len(self._manifests), renewals_a_second)
        self._uids: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._never_renewed: set[str] = set()
        self._registered = asyncio.Event()
        self._nodes: WorkQueue[str] = WorkQueue("node", self._report_status, clock=self._clock, chance=self._chance)
        self._leases: WorkQueue[str] = WorkQueue(
            "node lease", self._renew, clock=self._clock, chance=self._chance, workers=8
        )
        self._informer: Informer = client.informer(NODES, self._on_change)

    def __contains__(self, name: object) -> bool:
        """Whether the node belongs to this kubelet and is not deleted."""
        return name in self._manifests and name not in self._deleted

    @property
    def names(self) -> Iterable[str]:
        return self._manifests.keys()

    async def wait_registered(self) -> None:
        """Return when all nodes are registered."""
        await self._registered.wait()

    async def run(self) -> None:
        """Register the nodes and keep them alive until cancelled."""
        self._check_registered()
        for name in self._manifests:
            self._nodes.add(name)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run(), name="nodes")
            group.create_task(self._nodes.run())
            group.create_task(self._leases.run())

    async def remove(self) -> None:
        """Delete the nodes; the garbage collector deletes their leases."""
        for name, uid in list(self._uids.items()):
            with suppress(NotFound):
                await self._client.delete(NODES, name=name, uid=uid)

    # Event handlers.

    def _on_change(self, old: KubeObject | None, new: KubeObject | None) -> None:
        name = (new or old or KubeObject()).name
        if name not in self._manifests:
            return
        if new is None:
            self._forget(name)
        elif isinstance(new, Node) and (name in self._deleted or (name in self._uids and not is_healthy(new))):
            self._deleted.discard(name)
            self._nodes.add(name)

    def _forget(self, name: str) -> None:
        if self._uids.pop(name, None) is not None:
            log.info("node %s was deleted; it stays deleted", name)
        self._deleted.add(name)
        self._nodes.forget(name)
        self._leases.forget(name)
        self._check_registered()

    def _check_registered(self) -> None:
        if len(self._uids) + len(self._deleted) >= len(self._manifests):
            self._registered.set()

    # Registration, status and leases.

    async def _report_status(self, name: str) -> float | None:
        """Register a node, or renew its conditions."""
        if name in self._deleted:
            return None
        try:
            if name in self._uids:
                await self._patch_status(name, {})
            else:
                await self._register(name)
        except NotFound:
            self._forget(name)
            return None
        return self._add_jitter(STATUS_S)

    async def _register(self, name: str) -> None:
        manifest = self._manifests[name]
        node = {**manifest, "status": {**manifest["status"], "conditions": conditions(self._clock.now())}}
        try:
            uid = _uid(await self._client.create(NODES, node))
        except AlreadyExists:
            meta = {key: manifest["metadata"].get(key) or {} for key in ("labels", "annotations")}
            await self._client.patch(NODES, {"metadata": meta}, name=name)
            uid = await self._patch_status(name, manifest["status"])
        self._deleted.discard(name)
        self._uids[name] = uid
        self._never_renewed.add(name)
        self._leases.add(name)
        self._check_registered()

    async def _patch_status(self, name: str, status: Mapping[str, Any]) -> str:
        """Patch the status of a node. Returns its uid."""
        seen = self._informer.store.get(("", name))
        current_conditions = conditions(self._clock.now(), seen if isinstance(seen, Node) else None)
        patch = {"status": {**status, "conditions": current_conditions}}
        return _uid(await self._client.patch(NODES, patch, name=name, subresource="status"))

    async def _renew(self, name: str) -> float | None:
        if name not in self._uids:
            return None
        try:
            patch = {"spec": lease_renewal(self._clock.now())}
            await self._lease_client.patch(LEASES, patch, namespace=LEASE_NAMESPACE, name=name, kind=MERGE_PATCH)
        except NotFound:
            await self._create_lease(name)
        if name not in self._never_renewed:
            return self._add_jitter(self._renew_s)
        # The first interval is random, so that nodes that started together do not renew at the same time.
        self._never_renewed.discard(name)
        return self._renew_s * self._chance.random()

    async def _create_lease(self, name: str) -> None:
        uid = self._uids.get(name)
        if uid is not None:  # otherwise the node was deleted, and its lease with it
            body = new_lease(name, uid, self._clock.now())
            await self._lease_client.create(LEASES, body, namespace=LEASE_NAMESPACE)

    def _add_jitter(self, seconds: float) -> float:
        return seconds * (1.0 + self._chance.random() * _JITTER)


def _uid(answer: bytes) -> str:
    return msgspec.json.decode(answer, type=Node).metadata.uid
