"""The web page: static files and one stream of server-sent events about the cluster.

        /page/                 the page; a request without a valid token gets a sign-in form
        /page/stream           server-sent events, see `page_streams`
        /page/sign-in          the form's target: stores the token in a cookie that scripts cannot read
        /page/sign-out

The page is read-only: besides the two forms, which only change the browser's own cookie, there are only GET and HEAD. A
user who may `get` the paths below `/page/` sees nodes and queues, and pods and groups of the namespaces in which
the user may `list` pods. The page loads nothing from other sites and executes its own files only."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from dataclasses import replace
from functools import cache
from html import escape
from importlib.resources import files
from typing import Protocol
from urllib.parse import parse_qs

from bayplan.errors import ApiError
from bayplan.server.auth.authentication import TOKEN_COOKIE, UserInfo
from bayplan.server.auth.authorization import ResourceAttributes
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import NOSNIFF, NOT_FOUND, HttpServerResponse, text
from bayplan.server.web.page_streams import EVERYTHING, NOTHING, NamespaceVisibility, PageStreams, VisibilityCheck

log = logging.getLogger(__name__)

ROOT = "/page/"
STREAM = f"{ROOT}stream"
SIGN_IN, SIGN_OUT = f"{ROOT}sign-in", f"{ROOT}sign-out"

_FOLDER = "page_files"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SECURITY_HEADERS = (
    NOSNIFF,
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_REDIRECT_HOME = HttpServerResponse(308, headers=(("Location", "page/"),))
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=:-]{1,3800}")
_MAX_PARALLEL_REVIEWS = 16
"""Maximum number of namespaces in review at the same time."""


class AccessChecker(Protocol):
    """Authentication and authorization, as in `server.AccessControl`."""

    async def authorize(self, request: HttpRequest) -> UserInfo | HttpServerResponse: ...
    async def allows(self, user: UserInfo, action: ResourceAttributes) -> bool: ...


class WebPage:
    """The page, for servers with and without authentication."""

    def __init__(self, viewers: PageStreams) -> None:
        self._viewers = viewers

    def handles(self, path: str) -> bool:
        return path == ROOT.rstrip("/") or path.startswith(ROOT)

    async def respond(self, request: HttpRequest, access: AccessChecker) -> HttpServerResponse:
        """Respond on a server with authentication."""
        if request.path in (SIGN_IN, SIGN_OUT):
            return await _sign_in_or_out(request, access)
        if request.path == ROOT.rstrip("/"):
            return _REDIRECT_HOME
        result = await access.authorize(request)
        if isinstance(result, HttpServerResponse):
            return _sign_in_form("") if result.status == 401 or request.path == ROOT else result
        if request.path == STREAM and _is_read(request):
            return self._stream_for(request, result, access)
        return self.respond_unauthenticated(request)

    def respond_unauthenticated(self, request: HttpRequest) -> HttpServerResponse:
        """Respond without authentication, or after it."""
        if not _is_read(request):
            return replace(text("the page is read-only", 405), headers=(("Allow", "GET, HEAD"), NOSNIFF))
        if request.path == STREAM:
            return self._stream(_see_all, "")
        if request.path == ROOT.rstrip("/"):
            return _REDIRECT_HOME
        return _file(request.path.removeprefix(ROOT) or "index.html")

    def _stream_for(self, request: HttpRequest, user: UserInfo, access: AccessChecker) -> HttpServerResponse:
        async def check_visibility() -> NamespaceVisibility | None:
            result = await access.authorize(request)
            if isinstance(result, HttpServerResponse):
                return None
            return await visible_namespaces(result, self._viewers.namespaces(), access)

        return self._stream(check_visibility, user.name)

    def _stream(self, check_visibility: VisibilityCheck, user: str) -> HttpServerResponse:
        if self._viewers.full:
            return text("too many open pages; close one of them", 503)
        headers = (*_SECURITY_HEADERS, ("X-Accel-Buffering", "no"))  # a proxy must not buffer it
        return HttpServerResponse(200, self._viewers.stream(check_visibility, user), "text/event-stream", headers)


async def _see_all() -> NamespaceVisibility:
    return EVERYTHING


async def visible_namespaces(user: UserInfo, namespaces: list[str], access: AccessChecker) -> NamespaceVisibility:
    """The namespaces in which the user may list pods, or all."""
    try:
        if await access.allows(user, ResourceAttributes("list", "pods")):
            return EVERYTHING
        allowed: set[str] = set()
        for start in range(0, len(namespaces), _MAX_PARALLEL_REVIEWS):
            some = namespaces[start : start + _MAX_PARALLEL_REVIEWS]
            verdicts = await asyncio.gather(
                *(access.allows(user, ResourceAttributes("list", "pods", each)) for each in some)
            )
            allowed.update(name for name, may in zip(some, verdicts, strict=True) if may)
    except ApiError as fault:
        log.error("cannot check which pods the user may see: SubjectAccessReview failed: %s", fault)
        return NOTHING
    return NamespaceVisibility(namespaces=frozenset(allowed))


def _is_read(request: HttpRequest) -> bool:
    return request.method in ("GET", "HEAD")


@cache
def _known_files() -> dict[str, HttpServerResponse]:
    """All files, read once. Other names are not found, so a path cannot leave the folder."""
    found: dict[str, HttpServerResponse] = {}
    folder = files("bayplan.server") / _FOLDER
    for directory, prefix in ((folder, ""), (folder / "vendor", "vendor/")):
        for each in directory.iterdir():
            kind = _KINDS.get(f".{each.name.rpartition('.')[2]}")
            if each.is_file() and kind:
                headers = (*_SECURITY_HEADERS, ("Content-Security-Policy", _POLICY))
                found[prefix + each.name] = HttpServerResponse(200, each.read_bytes(), kind, headers)
    return found


def _file(name: str) -> HttpServerResponse:
    return _known_files().get(name, NOT_FOUND)


# Sign-in.

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem;color-scheme:light dark}"
    "textarea{width:100%;box-sizing:border-box;font:14px monospace}button{font:inherit;padding:.3rem 1rem}"
)


def _sign_in_form(problem: str) -> HttpServerResponse:
    """The response to a request without valid credentials."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; frame-ancestors 'none'"
    alert = f'<p role="alert">{escape(problem)}</p>' if problem else ""
    page = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Bayplan: sign in</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>
<h1>Bayplan</h1>{alert}
<form method="post" action="sign-in"><label for="token">Bearer token, for example from
<code>kubectl create token NAME</code></label>
<textarea id="token" name="token" rows="4" required autofocus autocomplete="off" spellcheck="false"></textarea>
<p><button>Sign in</button></p></form></html>
"""
    return HttpServerResponse(
        401, page.encode(), _KINDS[".html"], (*_SECURITY_HEADERS, ("Content-Security-Policy", policy))
    )


async def _sign_in_or_out(request: HttpRequest, access: AccessChecker) -> HttpServerResponse:
    if request.method != "POST":
        return replace(
            text("this path takes POST requests of the form only", 405), headers=(("Allow", "POST"), NOSNIFF)
        )
    if request.path == SIGN_OUT:
        return _redirect_home("", "; Max-Age=0")
    given = parse_qs(request.body.decode("latin-1"), max_num_fields=5).get("token", [""])[0].strip()
    if not _TOKEN.fullmatch(given):
        return _sign_in_form("This is not a token.")
    tried = replace(request, method="GET", path=ROOT, headers=(("authorization", f"Bearer {given}"),), body=b"")
    result = await access.authorize(tried)
    if isinstance(result, HttpServerResponse):
        known = result.status == 403
        return _sign_in_form(
            "The token is valid, but its user may not get /page/ of the scheduler."
            if known
            else "The token is invalid."
        )
    return _redirect_home(given)


def _redirect_home(token: str, more: str = "") -> HttpServerResponse:
    """Redirect to the page, with the token in a cookie."""
    cookie = f"{TOKEN_COOKIE}={token}; Path=/; HttpOnly; Secure; SameSite=Strict{more}"
    return HttpServerResponse(303, headers=(("Location", "./"), ("Set-Cookie", cookie)))
