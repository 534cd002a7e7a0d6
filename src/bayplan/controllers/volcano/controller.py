"""Base of Volcano's controllers: statuses are replaced as a whole, and writes run concurrently.

A merge patch cannot remove entries of a status's maps. So the status is replaced, on condition that the object has the
version that was read.
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
    async def replace_status(self, resource: GroupVersionResource, item: UntypedObject, status: Tree) -> UntypedObject:
        """Replace the status if it differs. Returns the object after it. Raises `Conflict` for an old version."""
        status = {key: value for key, value in status.items() if value not in (None, {}, [])}
        if status == item.status:
            return item
        return await self.replace(resource, item, {"/status": status}, subresource="status")

    async def replace(
        self, resource: GroupVersionResource, item: UntypedObject, members: dict[str, object], *, subresource: str = ""
    ) -> UntypedObject:
        """Replace members of an object by path. Raises `Conflict` if it has changed or is deleted."""
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
        """Create an object unless the name exists. Returns whether it was created."""
        kind = {"apiVersion": resource.api_version, "kind": resource.kind.name} if resource.kind else {}
        try:
            await self.client.create(resource, {**kind, **body}, namespace=namespace)
        except AlreadyExists:
            return False
        return True

    async def remove(self, resource: GroupVersionResource, namespace: str, name: str) -> bool:
        """Delete an object by name. Returns False if it does not exist."""
        try:
            await self.client.delete(resource, namespace=namespace, name=name)
        except NotFound:
            return False
        return True


async def run_concurrently(items: Sequence[T], work: Callable[[T], Awaitable[None]]) -> list[ApiError]:
    """Call `work` for all items, 16 at once, and return the refusals. Stops if the whole first batch is refused.

    A refusal does not stop the rest: if the server refuses every third write, each try completes two thirds of them."""
    faults: list[ApiError] = []
    for start in range(0, len(items), MAX_CONCURRENT_WRITES):
        batch = items[start : start + MAX_CONCURRENT_WRITES]
        answers = await asyncio.gather(*(work(item) for item in batch), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, ApiError):
                faults.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
        if len(faults) == len(batch) and start == 0:
            break
    return faults
