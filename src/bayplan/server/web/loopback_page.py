"""Who may look without a token? Whoever is on this machine, where its owner has opened a door for that.

Plain HTTP on an address of loopback, and on no other: `ServingError` says so before anything listens. A browser that
was sent here by a name of somebody else's (a site whose name leads to 127.0.0.1) is refused, so that no other site can
read along.
"""

from __future__ import annotations

from ipaddress import ip_address

from bayplan.clock import LoopClock
from bayplan.errors import ServingError
from bayplan.server.http.insecure_server import InsecureServer
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import NOT_FOUND, HttpServerResponse, text
from bayplan.server.http.why import ExplainFunction, parse_path, respond
from bayplan.server.web.page import WebPage
from bayplan.server.web.page_streams import PageStreams

_NAMES = ("localhost",)


class LoopbackPageServer:
    """Listens from `start` to `close`."""

    def __init__(
        self, address: str, viewers: PageStreams, *, why: ExplainFunction | None = None, clock: LoopClock
    ) -> None:
        if not _on_loopback(address.rpartition(":")[0]):
            raise ServingError(
                f"--page-address {address} is not of this machine alone; write 127.0.0.1:PORT. Others read the page "
                "with a token, at /page/ of --secure-port"
            )
        self._page = WebPage(viewers)
        self._why = why
        self._host = address.rpartition(":")[0]
        self._server = InsecureServer(address, {}, clock=clock, otherwise=self._answer)

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}/page/"

    async def start(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        await self._server.close()

    async def _answer(self, request: HttpRequest) -> HttpServerResponse:
        if not _on_loopback(_request_host(request)):
            return text("this door is for localhost alone", 403)
        if request.path == "/":
            return HttpServerResponse(307, headers=(("Location", "page/"),))
        pod = parse_path(request.path)
        if pod is not None and self._why is not None:
            return await respond(self._why, pod, request)
        return self._page.respond_unauthenticated(request) if self._page.handles(request.path) else NOT_FOUND


def _request_host(request: HttpRequest) -> str:
    """The name by which the client came here, without the port."""
    host = request.header("host")
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host


def _on_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in _NAMES
