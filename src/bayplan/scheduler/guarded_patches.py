"""Patches that name the version of the object they were made from.

Used by `ApiWrites` for claims, volumes and annotations of pods. The API server applies at most one of two patches of
the same version, so a patch with an unknown outcome is sent again without danger. Cost: one request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from bayplan.client import MERGE_PATCH, Client, ConfirmedWrites, Found, Missing, Resource, Written
from bayplan.errors import ApiError, Conflict, NotFound
from bayplan.objects.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

_TRIES = 5


class GuardedPatches:
    """Patches objects of one API server."""

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
        resource: Resource | None = None,
    ) -> T:
        """Patch the version of an object that `item` is; returns the object as the API server then has it.

        `is_done`: whether an object is as the patch wants it to be. The object is read after a 404, too: devices of a
        claim that was allocated all the same must not be given to another pod.
        """
        struct, meta = type(item), item.metadata

        async def send() -> T:
            return await self._client.patched(
                struct,
                patch,
                name=meta.name,
                namespace=meta.namespace,
                subresource=subresource,
                kind=kind,
                resource=resource,
            )

        async def find() -> Found[T]:
            try:
                found = await self._client.get(struct, meta.namespace, meta.name, resource=resource)
            except NotFound:
                return Missing.FOR_EVER
            if found.metadata.uid != meta.uid:
                return Missing.FOR_EVER
            if is_done(found):
                return Written(found)
            is_same_version = found.metadata.resource_version == meta.resource_version
            return Missing.SO_FAR if is_same_version else Missing.FOR_EVER

        what = f"patching {struct.__name__} {item.key}"
        return await self._confirmed.write(send, find, what=what, trusted=(Conflict,))

    async def read(self, item: T, *, resource: Resource | None = None) -> T:
        """What the API server has under the name of an object."""
        meta = item.metadata
        return await self._client.get(type(item), meta.namespace, meta.name, resource=resource)

    async def repeat(self, item: T, attempt: Callable[[T], Awaitable[T]], *, resource: Resource | None = None) -> T:
        """Call `attempt` with `item`, and after a conflict with the object as it is then, five times in all."""
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
