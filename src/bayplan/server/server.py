"""HTTPS server for probes, scrapers and people. It runs on the loop and reads published views only.

    server = Server(views, SecureServingOptions(port=10259), access, clock=clock)
    await server.start()
    ...
    await server.close()

A request costs about 100 µs besides the rendering of its page. No request can end the process or block the loop.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, field

from bayplan.clock import LoopClock
from bayplan.codec.go_text import quote
from bayplan.errors import ApiError, ServingError
from bayplan.server.auth.authentication import Authenticator, UserInfo
from bayplan.server.auth.authorization import Authorizer, ResourceAttributes
from bayplan.server.auth.client_authorities import ClientAuthorities
from bayplan.server.http.connections import MAX_CONNECTIONS, ConnectionHandler
from bayplan.server.http.listener import Listener, bind_socket
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import NOT_FOUND, HttpServerResponse, status_object, text
from bayplan.server.http.serving_tls import ServingTls, TlsOptions
from bayplan.server.http.why import parse_path, respond
from bayplan.server.routes import ServerViews, build_routes
from bayplan.server.web.page import WebPage
from bayplan.telemetry.access_metrics import ALLOWED, ERROR, NO_OPINION, AccessMetrics

log = logging.getLogger(__name__)

PORT = 10259
GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureServingOptions:
    """`--bind-address`, `--secure-port` and related flags."""

    address: str = "0.0.0.0"
    port: int = PORT
    tls: TlsOptions = field(default_factory=TlsOptions)
    share_port: bool = False
    connections: int = MAX_CONNECTIONS


@dataclass(frozen=True, slots=True)
class AccessControl:
    """Authentication and authorization of requests."""

    authenticator: Authenticator
    authorizer: Authorizer
    metrics: AccessMetrics

    async def allows(self, user: UserInfo, action: ResourceAttributes) -> bool:
        """Whether the user may perform the action on objects of the cluster."""
        return await self.authorizer.allows(user, action)

    async def authorize(self, request: HttpRequest) -> UserInfo | HttpServerResponse:
        """The user of an authorized request; else the refusal."""
        start_s = self.metrics.now_s()
        user = await self.authenticator.authenticate(request)
        self.metrics.observe_authentication(None if user is None else user.name, start_s)
        if user is None:
            return status_object(request, 401, "Unauthorized", "Unauthorized")
        start_s = self.metrics.now_s()
        try:
            verdict = await self.authorizer.authorize(user, request)
        except ApiError as fault:
            self.metrics.observe_authorization(ERROR, start_s)
            log.error("SubjectAccessReview of %s failed: %s", request.path, fault)
            return text(f"Internal Server Error: {quote(request.target)}: {fault}", 500)
        self.metrics.observe_authorization(ALLOWED if verdict.allowed else NO_OPINION, start_s)
        if verdict.allowed:
            return user
        forbidden = _forbidden_message(user.name, request)
        message = f"{forbidden}: {verdict.reason}" if verdict.reason else forbidden
        return status_object(request, 403, "Forbidden", message, details=True)


def _forbidden_message(user: str, request: HttpRequest) -> str:
    """A refusal with the text of Kubernetes."""
    pod = parse_path(request.path)
    if pod is None:
        return f"forbidden: User {quote(user)} cannot {request.method.lower()} path {quote(request.path)}"
    what = f'cannot get resource "pods" in API group "" in the namespace {quote(pod.namespace)}'
    return f"pods {quote(pod.name)} is forbidden: User {quote(user)} {what}"


class Server:
    """HTTPS server, from `start` to `close`."""

    def __init__(
        self, views: ServerViews, serving: SecureServingOptions, access: AccessControl, *, clock: LoopClock
    ) -> None:
        self._serving = serving
        self._access = access
        self._routes = build_routes(views, clock)
        self._why = views.why
        self._page = WebPage(views.page) if views.page is not None else None
        self._tls = ServingTls(serving.tls, clock, address=serving.address)
        self._connections = ConnectionHandler(self._handle, self._tls, clock, limit=serving.connections)
        self._listening = Listener(self._connections, "server")

    @property
    def paths(self) -> list[str]:
        return sorted(self._routes)

    @property
    def port(self) -> int:
        """The port of the server, also when port 0 was requested."""
        return self._listening.port

    def trust(self, trust: ClientAuthorities) -> None:
        """Set the client authorities, from the next connection on."""
        self._access.authenticator.set_authorities(trust)
        self._tls.set_authorities(trust.authorities)

    async def start(self) -> None:
        """Start the server. Raises `ServingError` when the address or the certificate is unusable."""
        self._tls.context()
        self._listening.start(self._bind())
        log.info("Serving securely on %s:%d", self._serving.address, self.port)

    async def close(self, grace_s: float = GRACE_S) -> None:
        """Stop listening, and let responses in progress finish within `grace_s`."""
        await self._listening.close(grace_s)

    def _bind(self) -> socket.socket:
        serving = self._serving
        try:
            found = socket.getaddrinfo(
                serving.address, serving.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICHOST
            )
        except OSError as fault:
            raise ServingError(
                f"--bind-address {serving.address} is not an IP address: {fault.strerror}; give one"
            ) from None
        return bind_socket(
            found[0],
            lambda fault: ServingError(
                f"cannot listen on {serving.address}:{serving.port}: {fault.strerror}; free the port or choose another "
                "with --secure-port"
            ),
            share_port=serving.share_port,
        )

    async def _handle(self, request: HttpRequest) -> HttpServerResponse:
        if self._page is not None and self._page.handles(request.path):
            return await self._page.respond(request, self._access)
        user = await self._access.authorize(request)
        if isinstance(user, HttpServerResponse):
            return user
        handler = self._routes.get(request.path)
        if handler is not None:
            return handler(request)
        pod = parse_path(request.path)
        if pod is None or self._why is None:
            return NOT_FOUND

        async def sees(namespace: str) -> bool:
            return await self._access.allows(user, ResourceAttributes("get", "pods", namespace))

        return await respond(self._why, pod, request, sees)
