"""Controllers that the objects of the test need: garbage collector, ResourceClaim controller, volume binder.

Each looks at the record twice a second and does what is missing. Repeating an action is harmless.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterator

from chaos.client import ApiClient, ApiError, Away
from chaos.invariants.base import World
from chaos.invariants.volumes import claim_uid, volume_of
from chaos.objects import Tree, is_deleted, is_terminal, name, namespace, owner_uids, reserved_for, spec, status, uid

_TURN_S = 0.5
_UNKNOWN_OWNER_S = 10.0
_PROTECTION = "resource.kubernetes.io/delete-protection"


class Controllers:
    def __init__(self, client: ApiClient, world: World, now: Callable[[], float]) -> None:
        self._client, self._world, self._now = client, world, now

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_TURN_S)
            record = self._world.record
            await self._each(record.all("BindRequest"), self._collect)
            await self._each(record.all("ResourceClaim"), self._release_claim)
            await self._each(record.all("PersistentVolume"), self._bind_volume)

    async def _each(self, trees: Iterator[Tree], work: Callable[[Tree], Awaitable[None]]) -> None:
        for each in trees:
            try:
                await work(each)
            except (ApiError, Away):  # changed meanwhile; the next turn sees it
                continue

    # garbage

    async def _collect(self, request: Tree) -> None:
        owners = owner_uids(request)
        if owners and all(self._is_gone(owner, request) for owner in owners):
            await self._client.delete("BindRequest", request)

    def _is_gone(self, owner: str, of: Tree) -> bool:
        if self._world.record.get("Pod", owner) is not None:
            return False
        history = self._world.record.history(owner)
        if history is not None:
            return history.gone_s is not None
        mine = self._world.record.history(uid(of))
        return mine is None or self._now() - mine.versions[0].at_s > _UNKNOWN_OWNER_S

    # ResourceClaims

    async def _release_claim(self, claim: Tree) -> None:
        users = reserved_for(claim)
        gone = {pod_uid for pod_uid in users if self._has_ended(pod_uid, claim)}
        if gone:
            await self._release(claim, gone)
        elif not users and is_deleted(claim) and _PROTECTION in _finalizers(claim):
            await self._unprotect(claim)

    def _has_ended(self, pod_uid: str, claim: Tree) -> bool:
        pod = self._world.record.get("Pod", pod_uid)
        return is_terminal(pod) if pod is not None else self._is_gone(pod_uid, claim)

    async def _release(self, claim: Tree, gone: set[str]) -> None:
        changed = copy.deepcopy(claim)
        left = [each for each in status(claim)["reservedFor"] if each["uid"] not in gone]
        changed["status"]["reservedFor"] = left
        if not left:
            changed["status"].pop("allocation", None)
        await self._client.replace(changed, sub="status")

    async def _unprotect(self, claim: Tree) -> None:
        if status(claim).get("allocation"):
            changed = copy.deepcopy(claim)
            changed["status"].pop("allocation")
            claim = await self._client.replace(changed, sub="status")
        changed = copy.deepcopy(claim)
        changed["metadata"]["finalizers"] = [each for each in _finalizers(claim) if each != _PROTECTION]
        await self._client.replace(changed)

    # volumes

    async def _bind_volume(self, volume: Tree) -> None:
        record, owner = self._world.record, claim_uid(volume)
        if not owner:
            if status(volume).get("phase") != "Available" and not spec(volume).get("claimRef"):
                await self._set_phase("PersistentVolume", volume, "Available")
            return
        claim, history = record.get("PersistentVolumeClaim", owner), record.history(owner)
        if claim is None and history is not None and history.gone_s is not None:
            await self._free(volume)
        elif claim is not None:
            await self._complete(claim, volume)

    async def _free(self, volume: Tree) -> None:
        meta = {"resourceVersion": volume["metadata"]["resourceVersion"], "uid": uid(volume)}
        await self._client.patch("PersistentVolume", "", name(volume), {"metadata": meta, "spec": {"claimRef": None}})

    async def _complete(self, claim: Tree, volume: Tree) -> None:
        if volume_of(self._world.record, claim) is None and not is_deleted(claim):
            meta: Tree = {"uid": uid(claim), "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
            body = {"metadata": meta, "spec": {"volumeName": name(volume)}}
            await self._client.patch("PersistentVolumeClaim", namespace(claim), name(claim), body)
        if status(claim).get("phase") != "Bound":
            await self._set_phase("PersistentVolumeClaim", claim, "Bound")
        if status(volume).get("phase") != "Bound":
            await self._set_phase("PersistentVolume", volume, "Bound")

    async def _set_phase(self, kind: str, tree: Tree, phase: str) -> None:
        body = {"metadata": {"uid": uid(tree)}, "status": {"phase": phase}}
        await self._client.patch(kind, namespace(tree), name(tree), body, sub="status")


def _finalizers(tree: Tree) -> list[str]:
    return tree["metadata"].get("finalizers") or []
