"""The page on a loopback address, without authentication, for users of the machine.

Plain HTTP on a loopback address only: any other address raises `ServingError` before the server listens. Requests whose
Host header is not a loopback name are refused. So a website whose name resolves to 127.0.0.1 cannot read the page
through the user's browser.
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
    """Plain HTTP server of the page, from `start` to `close`."""

    def __init__(
        self, address: str, viewers: PageStreams, *, why: ExplainFunction | None = None, clock: LoopClock
    ) -> None:
        if not _on_loopback(address.rpartition(":")[0]):
            raise ServingError(
                f"--page-address {address} is not a loopback address; use 127.0.0.1:PORT. For access from other "
                "machines use /page/ of --secure-port with a token"
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
            return text("this page is served for localhost only; open it by its loopback address", 403)
        if request.path == "/":
            return HttpServerResponse(307, headers=(("Location", "page/"),))
        pod = parse_path(request.path)
        if pod is not None and self._why is not None:
            return await respond(self._why, pod, request)
        return self._page.respond_unauthenticated(request) if self._page.handles(request.path) else NOT_FOUND


def _request_host(request: HttpRequest) -> str:
    """The host in the Host header, without the port."""
    host = request.header("host")
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host


def _on_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in _NAMES
