"""API client of Bayplan: discovery, informers, reads and writes.

The composition root opens one client for each purpose that has its own rate limit (decisions, events, the lease).
Where the API allows it, a write names the resourceVersion or the uid that it is meant for. The client repeats a write
only when the server did not receive it or sent Retry-After. A bind costs about 50 µs in this process, without TLS.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.client.discovery.served_resources import ServedResources, discover
from bayplan.client.error_log_throttle import SERVER_TOPIC, ErrorLogThrottle
from bayplan.client.http.connection_pool import MAX_CONNECTIONS, WARM_CONNECTIONS
from bayplan.client.http.transport import TIMEOUT_S, Observer, Transport, WriteGuard
from bayplan.client.informer.backoff import RetryBackoff
from bayplan.client.informer.decoder import UndecodableObject, decoder_of
from bayplan.client.informer.informer import EVERYTHING, Handler, Informer, Selection, UndecodableHandler
from bayplan.client.informer.pager import ListResult, list_all
from bayplan.client.resources import PODS, GroupVersionResource, query, resource_of
from bayplan.clock import LoopClock
from bayplan.errors import (
    ApiError,
    CredentialsUnavailable,
    Forbidden,
    LeaseLost,
    NotFound,
    ObjectError,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    UntrustedServer,
)
from bayplan.objects.kinds import KINDS, Kind, kind_of
from bayplan.objects.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

log = logging.getLogger(__name__)

Body = bytes | msgspec.Struct | Mapping[str, Any]
"""Body of a request: JSON text, or a value that is encoded as JSON."""

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_REMEDIES: dict[type[ApiError], str] = {
    Forbidden: "let this user read what the server offers, as the role system:discovery does",
    NotFound: "check the server's address, its path too",
    Unauthorized: "check the user of the kubeconfig: its token or its certificate",
}
"""What the user has to do when the server refuses discovery."""


class _BindingTarget(msgspec.Struct, frozen=True):
    kind: str
    name: str


class _BindingMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: str
    name: str
    uid: str = ""
    annotations: Mapping[str, str] = {}


class _Binding(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    metadata: _BindingMeta
    target: _BindingTarget


class Client:
    """One user of one API server, with its own connections and its own rate limit."""

    def __init__(
        self,
        target: ConnectionConfig,
        *,
        clock: LoopClock,
        chance: random.Random,
        user_agent: str = "bayplan",
        qps: float = 50.0,
        burst: int = 100,
        timeout_s: float = TIMEOUT_S,
        tls_minimum: str = "1.2",
        connections: int = MAX_CONNECTIONS,
        observer: Observer | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.target = target
        self.clock = clock
        self._faults = ErrorLogThrottle(log, clock)
        self.chance = chance
        self.transport = Transport(
            target,
            clock,
            user_agent=user_agent,
            qps=qps,
            burst=burst,
            timeout_s=timeout_s,
            tls_minimum=tls_minimum,
            connections=connections,
            observer=observer,
            env=env,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Requests in flight fail; the caller cancels its informers first."""
        await self.transport.close()

    async def warm(self, count: int = WARM_CONNECTIONS) -> None:
        """Open connections in advance, so that the first of many writes do not wait for TLS handshakes."""
        await self.transport.warm(count)

    def set_guard(self, guard: WriteGuard | None) -> None:
        """Let the guard check every write from now on, immediately before it is sent."""
        self.transport.guard = guard

    async def check_guard(self) -> None:
        """Check the guard for a write that another program makes for this one. Raises `LeaseLost`."""
        while (guard := self.transport.guard) is not None:
            try:
                guard.check()
            except LeaseLost:
                await guard.hold_back()
            else:
                return

    # Reads.

    async def discover(
        self, kinds: Iterable[Kind] = KINDS, also: Iterable[GroupVersionResource] = ()
    ) -> ServedResources:
        """Find which of these kinds the server offers, and the version to read each in. `also`: resources to write."""
        return await discover(self.transport, kinds, also)

    async def wait_for_server(
        self, kinds: Iterable[Kind] = KINDS, also: Iterable[GroupVersionResource] = ()
    ) -> ServedResources:
        """Discover as `discover` does, and retry while the server is unavailable.

        A control plane may start its scheduler before its API server. 429 and 5xx count as unavailable. A refusal
        (401, 403, 404) and an untrusted certificate are not retried: the error says what the user has to correct.

        A server that has just started may list only some of its groups. A kind counts as missing when two discoveries
        agree and the server was ready between them.
        """
        backoff = RetryBackoff(self.clock, self.chance)
        kinds, also = list(kinds), list(also)
        before: ServedResources | None = None
        while True:
            try:
                served = await self.discover(kinds, also)
                if served == before or (not served.missing and all(map(served.offers, also))):
                    return served
                await self.check_ready()
                before = served
                continue
            except (CredentialsUnavailable, UntrustedServer):
                raise
            except (Forbidden, NotFound, Unauthorized) as fault:
                advice = f"{fault}; {_REMEDIES[type(fault)]}"
                raise type(fault)(advice, code=fault.code, reason=fault.reason, details=fault.details) from None
            except (ServerError, TooManyRequests, Unreachable) as fault:
                self._faults.log_error(SERVER_TOPIC, f"waiting for the API server: {fault}")
            before = None
            await backoff.wait()

    async def check_ready(self) -> None:
        """Raise `ServerError` while `/readyz` fails. A server that refuses the request counts as ready."""
        with contextlib.suppress(Forbidden, NotFound, Unauthorized):
            await self.transport.request("GET", "/readyz")

    def informer(
        self,
        resource: GroupVersionResource,
        handler: Handler,
        *,
        selection: Selection = EVERYTHING,
        on_undecodable: UndecodableHandler | None = None,
        streaming: bool = True,
        only_latest: bool = False,
    ) -> Informer:
        """Make an informer for a resource. The caller runs its `run`."""
        return Informer(
            self.transport,
            resource,
            handler,
            clock=self.clock,
            chance=self.chance,
            selection=selection,
            on_undecodable=on_undecodable,
            streaming=streaming,
            only_latest=only_latest,
            faults=self._faults,
        )

    async def list(
        self, resource: GroupVersionResource, selection: Selection = EVERYTHING, *, since: str = ""
    ) -> ListResult:
        """List all objects at the latest version, or at a version not older than `since`."""
        return await list_all(
            self.transport,
            resource,
            decoder_of(resource),
            since=since,
            namespace=selection.namespace,
            field_selector=selection.field_selector,
            label_selector=selection.label_selector,
        )

    async def get(
        self, struct: type[T], namespace: str, name: str, *, resource: GroupVersionResource | None = None
    ) -> T:
        """Read one object, typed."""
        resource = resource or resource_of(kind_of(struct))
        answer = await self.transport.request("GET", resource.path(namespace, name))
        return _decode(struct, resource, answer.body)

    async def get_raw(self, resource: GroupVersionResource, namespace: str, name: str) -> dict[str, Any]:
        """Read one object with all its fields, as `update` needs it."""
        answer = await self.transport.request("GET", resource.path(namespace, name))
        return _decode_tree(answer.body, resource)

    # Writes.

    async def bind(
        self, namespace: str, name: str, node: str, *, uid: str = "", annotations: Mapping[str, str] | None = None
    ) -> None:
        """Bind a pod to a node, and add these annotations in the same request. With `uid` the server refuses a newer
        pod of the same name."""
        meta = _BindingMeta(namespace, name, uid, annotations or {})
        body = _Binding("v1", "Binding", meta, _BindingTarget("Node", node))
        await self.transport.request("POST", PODS.path(namespace, name, "binding"), msgspec.json.encode(body))

    async def create(
        self, resource: GroupVersionResource, body: Body, *, namespace: str = "", name: str = "", subresource: str = ""
    ) -> bytes:
        """Create an object, or a subresource of the named object. Returns the server's object as JSON text."""
        path = resource.path(namespace, name, subresource)
        return (await self.transport.request("POST", path, _encode(body))).body

    async def update(
        self, resource: GroupVersionResource, tree: Mapping[str, Any], *, subresource: str = "", timeout_s: float = 0.0
    ) -> dict[str, Any]:
        """Replace an object. `tree` must be complete, as `get_raw` returned it: Bayplan's structs know only some fields
        and would drop the rest. The server refuses (`Conflict`) when resourceVersion is not the latest."""
        meta = tree.get("metadata", {})
        if not meta.get("resourceVersion"):
            raise ApiError(f"an update of {resource} {meta.get('name')} has no resourceVersion; read the object first")
        path = resource.path(meta.get("namespace", ""), meta.get("name", ""), subresource)
        answer = await self.transport.request("PUT", path, msgspec.json.encode(tree), timeout_s=timeout_s)
        return _decode_tree(answer.body, resource)

    async def patch(
        self,
        resource: GroupVersionResource,
        body: Body,
        *,
        name: str,
        namespace: str = "",
        subresource: str = "",
        kind: str = STRATEGIC_PATCH,
        field_manager: str = "",
    ) -> bytes:
        """Patch some fields. A `metadata.uid` or `resourceVersion` in the patch is a precondition."""
        path = resource.path(namespace, name, subresource) + query({"fieldManager": field_manager or None})
        return (await self.transport.request("PATCH", path, _encode(body), content_type=kind)).body

    async def create_typed(
        self, struct: type[T], body: Body, *, namespace: str = "", resource: GroupVersionResource | None = None
    ) -> T:
        """Create an object. Returns the server's object, typed."""
        resource = resource or resource_of(kind_of(struct))
        answer = await self.transport.request("POST", resource.path(namespace), _encode(body))
        return _decode(struct, resource, answer.body)

    async def patch_typed(
        self,
        struct: type[T],
        body: Body,
        *,
        name: str,
        namespace: str = "",
        subresource: str = "",
        kind: str = MERGE_PATCH,
        resource: GroupVersionResource | None = None,
    ) -> T:
        """Patch some fields. Returns the server's object, typed."""
        resource = resource or resource_of(kind_of(struct))
        return _decode(
            struct,
            resource,
            await self.patch(resource, body, name=name, namespace=namespace, subresource=subresource, kind=kind),
        )

    async def delete(
        self,
        resource: GroupVersionResource,
        *,
        name: str,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_s: int | None = None,
        propagation: str = "",
    ) -> None:
        """Delete an object. `uid` and `resource_version` are preconditions."""
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions := {key: value for key, value in conditions.items() if value}:
            options["preconditions"] = preconditions
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if propagation:
            options["propagationPolicy"] = propagation
        await self.transport.request("DELETE", resource.path(namespace, name), msgspec.json.encode(options))


def _decode(struct: type[T], resource: GroupVersionResource, body: bytes) -> T:
    found = decoder_of(resource).object(body)
    if isinstance(found, UndecodableObject):
        raise ObjectError(found.reason)
    assert isinstance(found, struct)
    return found


def _encode(body: Body) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


def _decode_tree(body: bytes, resource: GroupVersionResource) -> dict[str, Any]:
    tree = msgspec.json.decode(body)
    if not isinstance(tree, dict):
        raise ApiError(f"the server answered for {resource} with a value that is not an object; check its address")
    return tree
