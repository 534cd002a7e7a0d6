"""What do Volcano's controllers have in common? Statuses replaced as a whole, and many writes at once.

A status with maps in it cannot be merged: what is gone would stay. So it is replaced, on the condition that the object
is the one that was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from bayplan.client import JSON_PATCH, GroupVersionResource
from bayplan.controllers.core.api_types import Tree, UntypedObject
from bayplan.controllers.core.controller import Controller, not_found_as_conflict
from bayplan.errors import AlreadyExists, ApiError, NotFound

T = TypeVar("T")

MAX_CONCURRENT_WRITES = 16


class VolcanoController(Controller):
    """One of Volcano's controllers."""

    async def replace_status(self, resource: GroupVersionResource, item: UntypedObject, status: Tree) -> UntypedObject:
        """Make the status so, if it is not; the object as it is then. Refused when it has changed since."""
        status = {key: value for key, value in status.items() if value not in (None, {}, [])}
        if status == item.status:
            return item
        return await self.replace(resource, item, {"/status": status}, subresource="status")

    async def replace(
        self, resource: GroupVersionResource, item: UntypedObject, members: dict[str, object], *, subresource: str = ""
    ) -> UntypedObject:
        """Replace members of an object, by their paths; refused when it has changed since, or is gone."""
        version = item.metadata.resource_version
        body = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            *({"op": "add", "path": path, "value": value} for path, value in members.items()),
        ]
        with not_found_as_conflict():
            answer = await self.client.patch(
                resource,
                msgspec.json.encode(body),
                namespace=item.namespace,
                name=item.name,
                subresource=subresource,
                kind=JSON_PATCH,
            )
        return self.remember_write(answer)

    async def ensure(self, resource: GroupVersionResource, namespace: str, body: Tree) -> bool:
        """Make an object unless one of its name is there; whether it was made."""
        kind = {"apiVersion": resource.api_version, "kind": resource.kind.name} if resource.kind else {}
        try:
            await self.client.create(resource, {**kind, **body}, namespace=namespace)
        except AlreadyExists:
            return False
        return True

    async def remove(self, resource: GroupVersionResource, namespace: str, name: str) -> bool:
        """Delete an object by its name; false when there is none."""
        try:
            await self.client.delete(resource, namespace=namespace, name=name)
        except NotFound:
            return False
        return True


async def run_concurrently(items: Sequence[T], work: Callable[[T], Awaitable[None]]) -> list[ApiError]:
    """Do it for all, some at once; what was refused. When nothing at all of the first lot works, the rest is not tried.

    Others go on where one is refused: a server that refuses every third write makes two thirds of the way each time."""
    faults: list[ApiError] = []
    for start in range(0, len(items), MAX_CONCURRENT_WRITES):
        lot = items[start : start + MAX_CONCURRENT_WRITES]
        answers = await asyncio.gather(*(work(item) for item in lot), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, ApiError):
                faults.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
        if len(faults) == len(lot) and start == 0:
            break
    return faults
