"""The API server as the rest of Bayplan sees it: what it offers, informers, reads and writes.

Opened once by the composition root for each purpose that has a limit of its own (decisions, events, the lease). Writes
name the version or the uid that they are meant for wherever the API lets them; none is repeated unless the server did
not get it or asked for it. A bind costs about 50 µs of our own besides TLS.
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
from bayplan.client.http.transport import (
    TIMEOUT_S,
    Observer,
    Transport,
    WriteGuard,
)
from bayplan.client.informer.backoff import RetryBackoff
from bayplan.client.informer.decoder import UndecodableObject, decoder_of
from bayplan.client.informer.informer import (
    EVERYTHING,
    Handler,
    Informer,
    Selection,
    UndecodableHandler,
)
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
"""What a request carries: JSON text, or something that becomes it."""

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_REMEDIES: dict[type[ApiError], str] = {
    Forbidden: "let this user read what the server offers, as the role system:discovery does",
    NotFound: "check the server's address, its path too",
    Unauthorized: "check the user of the kubeconfig: its token or its certificate",
}
"""What somebody has to do about a server that does not tell us what it offers."""


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
    """One user of one API server, with connections and a limit of its own."""

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
        """Close all connections. Requests under way fail; informers must have been cancelled before."""
        await self.transport.close()

    async def warm(self, count: int = WARM_CONNECTIONS) -> None:
        """Open connections before they are needed: the first of many writes then need not wait for handshakes."""
        await self.transport.warm(count)

    def set_guard(self, guard: WriteGuard | None) -> None:
        """From now on every write asks this first, at the last moment before it is sent."""
        self.transport.guard = guard

    async def check_guard(self) -> None:
        """Ask the guard, for a write that another program makes on behalf of this one. Raises `LeaseLost`."""
        while (guard := self.transport.guard) is not None:
            try:
                guard.check()
            except LeaseLost:
                await guard.hold_back()
            else:
                return

    # Reading.

    async def discover(
        self, kinds: Iterable[Kind] = KINDS, also: Iterable[GroupVersionResource] = ()
    ) -> ServedResources:
        """Which of these kinds the server offers, in the version to read each; `also`: what is only written."""
        return await discover(self.transport, kinds, also)

    async def wait_for_server(
        self, kinds: Iterable[Kind] = KINDS, also: Iterable[GroupVersionResource] = ()
    ) -> ServedResources:
        """The same, and wait for a server that is not there yet: a control plane may start its scheduler first.

        One that has no time, or whose insides do not answer, is not there yet either. Who does not know us, or whom we
        do not trust, is not waited for: somebody has to mend something, and is told what.

        A server that has just started may list some of its groups only. What it does not list counts as missing when
        two discoveries agree and the server was ready between them.
        """
        backoff = RetryBackoff(self.clock, self.chance)
        kinds, also = list(kinds), list(also)
        before: ServedResources | None = None
        while True:
            try:
                offered = await self.discover(kinds, also)
                if offered == before or (not offered.missing and all(map(offered.offers, also))):
                    return offered
                await self.check_ready()
                before = offered
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
        """Raise `ServerError` while the server says that it is not ready. A server may refuse to say."""
        with contextlib.suppress(Forbidden, NotFound, Unauthorized):
            await self.transport.request("GET", "/readyz")

    def informer(
        self,
        resource: GroupVersionResource,
        handler: Handler,
        *,
        selection: Selection = EVERYTHING,
        complaint: UndecodableHandler | None = None,
        streaming: bool = True,
        only_latest: bool = False,
    ) -> Informer:
        """Keeps a resource in step with the server while its `run` runs."""
        return Informer(
            self.transport,
            resource,
            handler,
            clock=self.clock,
            chance=self.chance,
            selection=selection,
            complaint=complaint,
            streaming=streaming,
            only_latest=only_latest,
            faults=self._faults,
        )

    async def list(
        self, resource: GroupVersionResource, selection: Selection = EVERYTHING, *, since: str = ""
    ) -> ListResult:
        """Everything that exists at this moment, or at a version not older than `since`."""
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
        """One object, typed."""
        resource = resource or resource_of(kind_of(struct))
        answer = await self.transport.request("GET", resource.path(namespace, name))
        return _decode(struct, resource, answer.body)

    async def get_raw(self, resource: GroupVersionResource, namespace: str, name: str) -> dict[str, Any]:
        """One object with all its fields, as `update` needs it."""
        answer = await self.transport.request("GET", resource.path(namespace, name))
        return _decode_tree(answer.body, resource)

    # Writing.

    async def bind(
        self, namespace: str, name: str, node: str, *, uid: str = "", annotations: Mapping[str, str] | None = None
    ) -> None:
        """Place a pod, and give it these annotations in the same step. With `uid` the server refuses a pod of the same
        name that came later."""
        meta = _BindingMeta(namespace, name, uid, annotations or {})
        body = _Binding("v1", "Binding", meta, _BindingTarget("Node", node))
        await self.transport.request("POST", PODS.path(namespace, name, "binding"), msgspec.json.encode(body))

    async def create(
        self, resource: GroupVersionResource, body: Body, *, namespace: str = "", name: str = "", subresource: str = ""
    ) -> bytes:
        """A new object, or a subresource of one (then with its name). The answer is the object as JSON text."""
        path = resource.path(namespace, name, subresource)
        return (await self.transport.request("POST", path, _encode(body))).body

    async def update(
        self, resource: GroupVersionResource, tree: Mapping[str, Any], *, subresource: str = "", timeout_s: float = 0.0
    ) -> dict[str, Any]:
        """Replace an object. All of it must be given, as `get_raw` gave it: our structs know only some fields, and the
        rest would be lost. Its resourceVersion makes the server refuse (`Conflict`) when somebody was quicker."""
        meta = tree.get("metadata", {})
        if not meta.get("resourceVersion"):
            raise ApiError(
                f"an update of {resource} {meta.get('name')} names no resourceVersion; read the object first"
            )
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
        """Change some fields. A `metadata.uid` or `resourceVersion` in the patch is a condition on the object."""
        path = resource.path(namespace, name, subresource) + query({"fieldManager": field_manager or None})
        return (await self.transport.request("PATCH", path, _encode(body), content_type=kind)).body

    async def create_typed(
        self, struct: type[T], body: Body, *, namespace: str = "", resource: GroupVersionResource | None = None
    ) -> T:
        """A new object, typed as the server then has it."""
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
        """Change some fields; the object typed as the server then has it."""
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
        """Delete an object, if it still is the one that is meant."""
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if told := {key: value for key, value in conditions.items() if value}:
            options["preconditions"] = told
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
        raise ApiError(f"the server answered for {resource} with something that is no object")
    return tree
