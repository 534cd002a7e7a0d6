"""Patches with the resourceVersion of the object that they were made from.

Used by `ApiWrites` for claims, volumes and annotations of pods. The API server applies at most one of two patches of
the same version, so a patch with an unknown outcome can be sent again safely. Cost: one request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from bayplan.client import (
    MERGE_PATCH,
    Client,
    ConfirmedWrite,
    ConfirmedWrites,
    GroupVersionResource,
    NotWritten,
    WriteState,
)
from bayplan.errors import ApiError, Conflict, NotFound
from bayplan.objects.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

_TRIES = 5


class GuardedPatches:
    def __init__(self, client: Client, confirmed: ConfirmedWrites) -> None:
        self._client = client
        self._confirmed = confirmed

    async def patch(
        self,
        item: T,
        patch: dict[str, Any],
        *,
        is_done: Callable[[T], bool],
        subresource: str = "",
        kind: str = MERGE_PATCH,
        resource: GroupVersionResource | None = None,
    ) -> T:
        """Patch this version of an object. Returns the object as the API server then has it.

        `is_done`: whether an object already has the state that the patch creates. The object is also read after a 404:
        devices of a claim that was allocated all the same must not be given to another pod.
        """
        struct, meta = type(item), item.metadata

        async def send() -> T:
            return await self._client.patch_typed(
                struct,
                patch,
                name=meta.name,
                namespace=meta.namespace,
                subresource=subresource,
                kind=kind,
                resource=resource,
            )

        async def find() -> WriteState[T]:
            try:
                found = await self._client.get(struct, meta.namespace, meta.name, resource=resource)
            except NotFound:
                return NotWritten.FOR_EVER
            if found.metadata.uid != meta.uid:
                return NotWritten.FOR_EVER
            if is_done(found):
                return ConfirmedWrite(found)
            is_same_version = found.metadata.resource_version == meta.resource_version
            return NotWritten.SO_FAR if is_same_version else NotWritten.FOR_EVER

        what = f"patching {struct.__name__} {item.key}"
        return await self._confirmed.write(send, find, what=what, trusted=(Conflict,))

    async def read(self, item: T, *, resource: GroupVersionResource | None = None) -> T:
        """What the API server has under the name of an object."""
        meta = item.metadata
        return await self._client.get(type(item), meta.namespace, meta.name, resource=resource)

    async def repeat(
        self, item: T, attempt: Callable[[T], Awaitable[T]], *, resource: GroupVersionResource | None = None
    ) -> T:
        """Call `attempt` with `item`, and after a conflict with the current object; at most five times."""
        for tries_left in reversed(range(_TRIES)):
            try:
                return await attempt(item)
            except ApiError as refusal:
                if not tries_left or not (isinstance(refusal, Conflict) or refusal.outcome_unknown):
                    raise
            found = await self.read(item, resource=resource)
            if found.metadata.uid != item.metadata.uid:
                raise Conflict(f"{type(item).__name__} {item.key} was deleted; another object has its name", code=409)
            item = found
        raise AssertionError("unreachable")
