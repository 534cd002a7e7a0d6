"""What does the binder know? Requests, pods without a node, nodes, volumes and devices, as the watches tell them.

Fed by informers and by what our own writes answer: a request is never older here than our last word on it. What the
watches have not told yet, or have told too late, is asked of the API server itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from bayplan.cache import Cache
from bayplan.client import Client, Selection, Unreadable, resource_of
from bayplan.errors import NotFound
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import (
    OURS,
    TAKEN_BY,
    BindRequest,
    BindRequestStatus,
    as_far_as_readable,
)
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject

Key = tuple[str, str]
ASK_AGAIN_S = 1.0
"""What was told longer ago than this may be history by now."""
_REQUESTS = resource_of(kind_of(BindRequest))
_UNMARKED = Selection(label_selector=f"{TAKEN_BY}!={OURS}")


class View:
    """One binder's picture of the cluster."""

    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self.cache = cache
        self.requests: dict[Key, BindRequest] = {}
        self._pods: dict[str, Pod] = {}  # by key: those without a node

    def hear(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """The API server told of a change."""
        item = new if new is not None else old
        if isinstance(item, BindRequest):
            self._hear_request(item, is_gone=new is None)
        elif isinstance(item, Pod):
            if new is None:
                self._pods.pop(item.key, None)
            else:
                self._pods[item.key] = item
        elif isinstance(item, Node):
            if new is not None:
                self.cache.add_node(item)
            elif self.cache.node(item.name) is not None:
                self.cache.remove_node(item.name)
        elif item is not None:
            if new is not None:
                self.cache.put(item)
            else:
                self.cache.drop(item)

    def _hear_request(self, request: BindRequest, *, is_gone: bool) -> None:
        key = (request.namespace, request.name)
        if is_gone:
            known = self.requests.get(key)
            if known is not None and known.metadata.uid == request.metadata.uid:
                del self.requests[key]
        elif not self.note(request):
            self.requests[key] = request

    def note(self, request: BindRequest) -> bool:
        """The API server has the request so, at least; whether it is one that is known. An answer to us may come after
        the word that the request is gone, or that another has its name: it brings nothing back."""
        known = self.requests.get((request.namespace, request.name))
        if known is None or known.metadata.uid != request.metadata.uid:
            return False
        if request.version > known.version or not request.version:  # of the same version we may know better already
            self.requests[request.namespace, request.name] = request
        return True

    def version_of(self, request: BindRequest) -> str:
        """The latest resourceVersion that is known of a request."""
        known = self.requests.get((request.namespace, request.name))
        if known is not None and known.metadata.uid == request.metadata.uid and known.version > request.version:
            return known.metadata.resource_version
        return request.metadata.resource_version

    def renew(self, request: BindRequest) -> None:
        """The same for a request that cannot be read as a whole: known only where an earlier state of it was."""
        known = self.requests.get((request.namespace, request.name))
        if known is not None and known.metadata.uid == request.metadata.uid:
            self.requests[request.namespace, request.name] = request

    @contextmanager
    def expecting(self, request: BindRequest, status: BindRequestStatus) -> Iterator[None]:
        """We write this in the block: what the watch tells of it, maybe before the answer, is our own word."""
        key = (request.namespace, request.name)
        known = self.requests.get(key)
        if known is None or known.metadata.uid != request.metadata.uid:
            yield
            return
        expected = self.requests[key] = replace(known, status=status)
        try:
            yield
        except BaseException:
            if self.requests.get(key) is expected:
                self.requests[key] = known
            raise

    def forget(self, request: BindRequest) -> None:
        """The API server has no such request."""
        self._hear_request(request, is_gone=True)

    def is_there(self, request: BindRequest) -> bool:
        """Whether this very request still wants to be carried out, as far as was told."""
        known = self.requests.get((request.namespace, request.name))
        return known is not None and _is_same(known, request) and known.is_live

    async def is_wanted(self, request: BindRequest, prepared_s: float) -> bool:
        """The same once the pod is prepared, right before it is bound.

        The server is asked where that took long: a process that was stopped meanwhile, or cut off, has heard nothing.
        Otherwise it would be a request more for every pod, to learn of what the watch tells a moment later."""
        if not self.is_there(request):
            return False
        if prepared_s < ASK_AGAIN_S:
            return True
        found = await self.fresh_request((request.namespace, request.name))
        return found is not None and _is_same(found, request) and found.is_live

    async def pod(self, request: BindRequest) -> Pod | None:
        """The pod that a request names, as last told if that can be it; None where there is none."""
        known = self._pods.get(request.pod_key)
        if known is not None and request.is_for(known) and not known.terminating:
            return known
        return await self.fresh_pod(request)

    async def fresh_pod(self, request: BindRequest) -> Pod | None:
        """The same, as the API server has it at this moment."""
        try:
            return await self._client.get(Pod, request.namespace, request.spec.pod_name)
        except NotFound:
            return None

    async def fresh_request(self, key: Key) -> BindRequest | None:
        """A request as the API server has it, as far as it can be read."""
        try:
            return as_far_as_readable(await self._client.get_raw(_REQUESTS, *key))
        except NotFound:
            return None

    async def requests_of_others(self) -> list[BindRequest]:
        """What other binders are to carry out, as the API server has it: no watch of ours tells of them."""
        listed = await self._client.list(_REQUESTS, _UNMARKED)
        found = [
            each if isinstance(each, BindRequest) else await self.fresh_request(each.key)
            for each in listed.items
            if isinstance(each, BindRequest | Unreadable)
        ]
        return [each for each in found if each is not None]

    def knows(self, pod: Pod) -> bool:
        """Whether this very pod is there and waits, as far as was told."""
        known = self._pods.get(pod.key)
        return known is not None and known.uid == pod.uid

    def node(self, name: str) -> Node | None:
        return self.cache.node(name)


def _is_same(one: BindRequest, other: BindRequest) -> bool:
    """Whether both ask for the same: neither another request of that name, nor this one changed meanwhile."""
    return one.metadata.uid == other.metadata.uid and one.metadata.generation == other.metadata.generation
