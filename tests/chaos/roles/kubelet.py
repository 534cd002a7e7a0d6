"""Kubelets of all nodes, and the collector of pods whose node is gone.

Pods that are bound run shortly after; pods whose deletion was requested are gone shortly after. Reservation pods say
which GPU they hold, as the program in them would.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine

from chaos.client import STRATEGIC, ApiClient, ApiError, Away
from chaos.invariants.base import World
from chaos.invariants.devices import RESERVATIONS
from chaos.objects import Tree, annotations_of, is_deleted, is_terminal, name, namespace, node_of, status, uid
from chaos.record import Change

_DEVICE = "run.ai/reserve_for_gpu_index"
_START_S, _STOP_S = 0.4, 0.8
_SWEEP_S = 1.0


class Kubelet:
    def __init__(self, client: ApiClient, world: World, chance: random.Random) -> None:
        self._client, self._world, self._chance = client, world, chance
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: set[str] = set()
        self._stopping: set[str] = set()
        world.record.listeners.append(self._on_change)

    def _on_change(self, change: Change) -> None:
        pod = change.new
        if change.kind != "Pod" or pod is None or not node_of(pod):
            return
        if is_deleted(pod):
            self._begin_stop(pod)
        elif status(pod).get("phase") not in ("Running", "Succeeded", "Failed"):
            self._begin_start(pod)

    async def sweep(self) -> None:
        """Repeat what failed, and delete pods of nodes that are gone, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            nodes = self._world.record.nodes()
            for pod in self._world.record.all("Pod"):
                if not node_of(pod):
                    continue
                if is_deleted(pod) or (node_of(pod) not in nodes and nodes):
                    self._begin_stop(pod)
                elif not is_terminal(pod) and status(pod).get("phase") != "Running":
                    self._begin_start(pod)

    def _begin_start(self, pod: Tree) -> None:
        if uid(pod) not in self._starting:
            self._starting.add(uid(pod))
            self._spawn(self._start(pod))

    def _begin_stop(self, pod: Tree) -> None:
        if uid(pod) not in self._stopping:
            self._stopping.add(uid(pod))
            self._spawn(self._stop(pod))

    async def _start(self, pod: Tree) -> None:
        try:
            await asyncio.sleep(self._chance.uniform(0.0, _START_S))
            ready = [{"type": "Ready", "status": "True"}]
            body: Tree = {"metadata": {"uid": uid(pod)}, "status": {"phase": "Running", "conditions": ready}}
            await self._client.patch("Pod", namespace(pod), name(pod), body, sub="status", content=STRATEGIC)
            if namespace(pod) == RESERVATIONS and _DEVICE not in annotations_of(pod):
                told = {"metadata": {"uid": uid(pod), "annotations": {_DEVICE: f"GPU-{uid(pod)}"}}}
                await self._client.patch("Pod", namespace(pod), name(pod), told)
        except (ApiError, Away):  # it is gone; the sweep repeats what is left to do
            pass
        finally:
            self._starting.discard(uid(pod))

    async def _stop(self, pod: Tree) -> None:
        try:
            await asyncio.sleep(self._chance.uniform(0.0, _STOP_S))
            if not is_deleted(pod):
                self._world.acts.deleted.setdefault(uid(pod), 0.0)
            await self._client.delete("Pod", pod, grace_s=0)
        except (ApiError, Away):
            pass
        finally:
            self._stopping.discard(uid(pod))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
