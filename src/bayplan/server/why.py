"""`GET /why/{namespace}/{pod}`: why a pod is where it is, for those who may get the pod. `?now=true` asks afresh."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from bayplan.server.requests import Request
from bayplan.server.responses import JSON, NOSNIFF, TRUE, Response, status_object
from bayplan.telemetry.answers import Answer

PREFIX = "/why/"

Why = Callable[[str, str, bool], Awaitable[Answer | None]]
"""The answer about a pod by namespace and name, afresh or as decided; None where no such pod is known."""


class NotLeading(Exception):
    """Another instance decides, and has the records."""


class PodName(NamedTuple):
    namespace: str
    name: str


def asked_about(path: str) -> PodName | None:
    """The pod that a path is about; None for any other path."""
    if not path.startswith(PREFIX):
        return None
    parts = path.removeprefix(PREFIX).split("/")
    return PodName(*parts) if len(parts) == 2 and all(parts) else None


async def answered(why: Why, pod: PodName, request: Request) -> Response:
    """The answer for somebody who may have it."""
    if request.method not in ("GET", "HEAD"):
        return status_object(request, 405, "MethodNotAllowed", "nothing can be changed here; ask with GET")
    now = request.query.get("now", [""])[0] in TRUE
    try:
        answer = await why(pod.namespace, pod.name, now)
    except NotLeading as other:
        return status_object(request, 503, "ServiceUnavailable", str(other))
    if answer is None:
        message = f'pods "{pod.name}" not found: the scheduler knows no such pod in the namespace {pod.namespace}'
        return status_object(request, 404, "NotFound", message)
    return Response(200, msgspec.json.encode(answer), JSON, (NOSNIFF,))
