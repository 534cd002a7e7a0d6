"""`GET /why/{namespace}/{pod}`: explains a pod to users who may get it. `?now=true` evaluates it anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from bayplan.objects.pod_relaxations import SuggestedChange
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import JSON, NOSNIFF, TRUE_VALUES, HttpServerResponse, status_object
from bayplan.telemetry.answers import Answer

PREFIX = "/why/"

_REDACTED = "a pod of another namespace"

NamespaceCheck = Callable[[str], Awaitable[bool]]
"""Whether the user may read pods of a namespace."""
ExplainFunction = Callable[[str, str, bool], Awaitable[Answer | None]]
"""The answer for a pod by namespace and name, evaluated now or from the record; None for an unknown pod."""


class NotLeader(Exception):
    """Another instance leads, and has the records."""


class PodName(NamedTuple):
    namespace: str
    name: str


def parse_path(path: str) -> PodName | None:
    """The pod of a path; None for any other path."""
    if not path.startswith(PREFIX):
        return None
    parts = path.removeprefix(PREFIX).split("/")
    return PodName(*parts) if len(parts) == 2 and all(parts) else None


async def allow_all_namespaces(_: str) -> bool:
    """For users who may read pods of all namespaces."""
    return True


async def respond(
    why: ExplainFunction, pod: PodName, request: HttpRequest, sees: NamespaceCheck = allow_all_namespaces
) -> HttpServerResponse:
    """The answer for an authorized user. Pods in namespaces that the user may not read are redacted."""
    if request.method not in ("GET", "HEAD"):
        return status_object(request, 405, "MethodNotAllowed", "this path is read-only; use GET")
    now = request.query.get("now", [""])[0] in TRUE_VALUES
    try:
        answer = await why(pod.namespace, pod.name, now)
    except NotLeader as other:
        return status_object(request, 503, "ServiceUnavailable", str(other))
    if answer is None:
        message = f'pods "{pod.name}" not found: the scheduler has no such pod in the namespace {pod.namespace}'
        return status_object(request, 404, "NotFound", message)
    hidden = [key for key in foreign_pods(answer) if not await sees(key.partition("/")[0])]
    return HttpServerResponse(200, msgspec.json.encode(redact(answer, hidden)), JSON, (NOSNIFF,))


def foreign_pods(answer: Answer) -> list[str]:
    """Pods of other namespaces that an answer names: victims and pods to evict."""
    own = answer.pod.partition("/")[0]
    changes = (*answer.changes, *answer.together)
    named = {*answer.victims, *(key for change in changes for key in change.evict)}
    return sorted(key for key in named if key.partition("/")[0] != own)


def redact(answer: Answer, hidden: Sequence[str]) -> Answer:
    """The answer without the names of these pods."""
    if not hidden:
        return answer

    def hide(text: str) -> str:
        for key in sorted(hidden, key=len, reverse=True):
            text = text.replace(key, _REDACTED)
        return text

    def hide_keys(keys: Sequence[str]) -> tuple[str, ...]:
        return tuple(_REDACTED if key in hidden else key for key in keys)

    def change(each: SuggestedChange) -> SuggestedChange:
        return replace(each, evict=hide_keys(each.evict), text=hide(each.text))

    return replace(
        answer,
        sentence=hide(answer.sentence),
        victims=hide_keys(answer.victims),
        changes=tuple(map(change, answer.changes)),
        together=tuple(map(change, answer.together)),
        no_change=hide(answer.no_change),
        waits_for=hide(answer.waits_for),
    )
