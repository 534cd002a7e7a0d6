"""Informer cache of the binder: requests, pods without a node, nodes, volumes and devices.

Fed by informers and by the results of the binder's own writes: a request here is never older than the binder's last
write to it. Objects that the watches have not delivered, or that may be outdated, are read from the API server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from bayplan.client import Client, Selection, UndecodableObject, resource_of
from bayplan.devices import DeviceAssumptions
from bayplan.errors import NotFound
from bayplan.objects.catalog import Catalog
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import (
    HANDLED_BY_BAYPLAN,
    HANDLED_BY_LABEL,
    BindRequest,
    BindRequestStatus,
    decode_readable_fields,
)
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.volumes import VolumeAssumptions

RequestKey = tuple[str, str]
READ_AGAIN_AFTER_S = 1.0
"""After this time the cached request may be outdated and is read again."""
_REQUESTS = resource_of(kind_of(BindRequest))
_NOT_HANDLED_BY_BAYPLAN = Selection(label_selector=f"{HANDLED_BY_LABEL}!={HANDLED_BY_BAYPLAN}")


class InformerCache:
    """The objects that one binder knows. Plugins use it as `ctx.cache`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.catalog = Catalog()
        self.volumes = VolumeAssumptions(self.catalog)
        self.devices = DeviceAssumptions()
        self.requests: dict[RequestKey, BindRequest] = {}
        self._pods: dict[str, Pod] = {}  # by key: pods without a node
        self._nodes: dict[str, Node] = {}

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        item = new if new is not None else old
        if isinstance(item, BindRequest):
            self._handle_request(item, is_gone=new is None)
        elif isinstance(item, Pod):
            if new is None:
                self._pods.pop(item.key, None)
            else:
                self._pods[item.key] = item
        elif isinstance(item, Node):
            if new is None:
                self._nodes.pop(item.name, None)
            else:
                self._nodes[item.name] = item
        elif item is not None:
            self._handle_object(item, is_gone=new is None)

    def _handle_object(self, item: KubeObject, *, is_gone: bool) -> None:
        """Handle an event of an object that volumes or devices need."""
        if is_gone:
            self.catalog.delete(item)
        else:
            self.catalog.upsert(item)
        if isinstance(item, ResourceClaim):
            revision = self.catalog.revision(ResourceClaim)
            if is_gone:
                self.devices.delete(item.key, revision=revision)
            else:
                self.devices.observe(item, revision=revision)
        self.volumes.observe(item)

    def _handle_request(self, request: BindRequest, *, is_gone: bool) -> None:
        if is_gone:
            if self._cached_request(request) is not None:
                del self.requests[_key(request)]
        elif not self.observe(request):
            self.requests[_key(request)] = request

    def _cached_request(self, request: BindRequest) -> BindRequest | None:
        """The latest known version of this request, and not of another one of its name."""
        known = self.requests.get(_key(request))
        return known if known is not None and known.metadata.uid == request.metadata.uid else None

    def observe(self, request: BindRequest) -> bool:
        """Record a request from the API server's response. False if it is not the known one. A response may come after
        the event of the request's deletion or replacement: it restores nothing."""
        known = self._cached_request(request)
        if known is not None and (request.version > known.version or not request.version):
            self.requests[_key(request)] = request  # the cached one of the same version may be newer
        return known is not None

    def version_of(self, request: BindRequest) -> str:
        """The latest known resourceVersion of a request."""
        known = self._cached_request(request)
        latest = known if known is not None and known.version > request.version else request
        return latest.metadata.resource_version

    def observe_unreadable(self, request: BindRequest) -> None:
        """The same for a request that cannot be decoded as a whole: recorded only if an earlier version is known."""
        if self._cached_request(request) is not None:
            self.requests[_key(request)] = request

    @contextmanager
    def expect_own_write(self, request: BindRequest, status: BindRequestStatus) -> Iterator[None]:
        """The block writes this status: an event with it, maybe before the response, is the binder's own write."""
        key, known = _key(request), self._cached_request(request)
        if known is None:
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
        self._handle_request(request, is_gone=True)

    def is_current(self, request: BindRequest) -> bool:
        """Whether this request still exists unchanged and active, according to the watch."""
        known = self._cached_request(request)
        return known is not None and _is_same_request(known, request) and known.is_active

    async def is_still_current(self, request: BindRequest, prepared_s: float) -> bool:
        """The same right before the binding, after PreBind.

        The API server is asked if PreBind took long: a process that was suspended or disconnected has missed events.
        Otherwise the watch is used: it shows the same a moment later, and saves a request for every pod."""
        if not self.is_current(request):
            return False
        if prepared_s < READ_AGAIN_AFTER_S:
            return True
        found = await self.read_request(_key(request))
        return found is not None and _is_same_request(found, request) and found.is_active

    async def pod(self, request: BindRequest) -> Pod | None:
        """The pod that a request names: from the cache if that can be the one, else from the API server."""
        known = self._pods.get(request.pod_key)
        if known is not None and request.is_for(known) and not known.terminating:
            return known
        return await self.read_pod(request) if request.has_valid_pod_name else None

    async def read_pod(self, request: BindRequest) -> Pod | None:
        """The same from the API server."""
        try:
            return await self._client.get(Pod, request.namespace, request.spec.pod_name)
        except NotFound:
            return None

    async def read_request(self, key: RequestKey) -> BindRequest | None:
        """A request from the API server, as far as it can be decoded."""
        try:
            return decode_readable_fields(await self._client.get_raw(_REQUESTS, *key))
        except NotFound:
            return None

    async def list_foreign_requests(self) -> list[BindRequest]:
        """Requests for other binders, from the API server: this binder does not watch them."""
        listed = await self._client.list(_REQUESTS, _NOT_HANDLED_BY_BAYPLAN)
        found = [
            each if isinstance(each, BindRequest) else await self.read_request(each.key)
            for each in listed.items
            if isinstance(each, BindRequest | UndecodableObject)
        ]
        return [each for each in found if each is not None]

    def has_pending_pod(self, pod: Pod) -> bool:
        """Whether this pod exists and has no node, according to the watch."""
        known = self._pods.get(pod.key)
        return known is not None and known.uid == pod.uid

    def node(self, name: str) -> Node | None:
        return self._nodes.get(name)


def _key(request: BindRequest) -> RequestKey:
    return request.namespace, request.name


def _is_same_request(one: BindRequest, other: BindRequest) -> bool:
    """Whether both are the same request with the same generation."""
    return one.metadata.uid == other.metadata.uid and one.metadata.generation == other.metadata.generation
