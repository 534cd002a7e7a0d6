"""`/statusz` and `/flagz`: component and flags, as text for people and as objects for programs.

Programs must name the version of the object. Upstream does not guarantee the text format, and changes its separators at
random to discourage parsing; here they are constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

import yaml

from bayplan.clock import Clock
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import TEXT, HttpServerResponse, json_body, status_object

GROUP = "config.k8s.io"
_VERSIONS = {"v1alpha1": True, "v1beta1": False}
"""The versions of both objects, and whether each is deprecated."""

_HEAD = (
    "\n{component} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting "
    "compatibility guarantees and is for debugging purposes only.\n"
)
_PARAMETER = re.compile(r"\s*;\s*")
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentInfo:
    """The content of `/statusz`."""

    component: str
    started: datetime
    runtime: str
    """The Python version, where upstream has Go's."""
    version: str
    emulated: str


def statusz(about: ComponentInfo, paths: Sequence[str], clock: Clock) -> Callable[[HttpRequest], HttpServerResponse]:
    """`paths`: the paths of the server."""
    listed = sorted({f"/{path.split('/')[1]}" for path in paths})

    def handler(request: HttpRequest) -> HttpServerResponse:
        up_s = max(0, int((clock.now() - about.started).total_seconds()))
        tree = {
            "startTime": f"{about.started:%Y-%m-%dT%H:%M:%SZ}",
            "uptimeSeconds": up_s,
            "goVersion": about.runtime,
            "binaryVersion": about.version,
            "emulationVersion": about.emulated,
            "paths": listed,
        }
        lines = [
            "",
            f"Started: {_unix_date(about.started)}",
            f"Up: {up_s // 3600} hr {up_s // 60 % 60:02d} min {up_s % 60:02d} sec",
            f"Go version: {about.runtime}",
            f"Binary version: {about.version}",
            f"Emulation version: {about.emulated}",
            f"Paths: {' '.join(listed)}",
            "",
        ]
        return _negotiated(request, about.component, "Statusz", escape("\n".join(lines)), tree)

    return handler


def flagz(component: str, flags: Callable[[], Mapping[str, str]]) -> Callable[[HttpRequest], HttpServerResponse]:
    """`flags`: all flags by name, as text, without secrets."""

    def handler(request: HttpRequest) -> HttpServerResponse:
        known = dict(sorted(flags().items()))
        lines = "".join(f"{name}={value}\n" for name, value in known.items())
        return _negotiated(request, component, "Flagz", lines, {"flags": known})

    return handler


def _negotiated(
    request: HttpRequest, component: str, kind: str, lines: str, tree: Mapping[str, Any]
) -> HttpServerResponse:
    page = kind.lower()
    for clause in _parse_accept(request.header("accept")):
        if clause.media in ("text/plain", "text/*", "*/*") and not clause.parameters:
            return HttpServerResponse(200, (_HEAD.format(component=component, page=page) + lines).encode(), TEXT)
        version = clause.parameters.get("v", "")
        if clause.media in ("application/json", "application/yaml") and clause.parameters == {
            "g": GROUP,
            "v": version,
            "as": kind,
        }:
            if version not in _VERSIONS:
                continue
            meta = {"kind": kind, "apiVersion": f"{GROUP}/{version}", "metadata": {"name": component}}
            return _structured_response(request, clause, page, {**meta, **tree})
    message = "only the following media types are accepted: application/json, application/yaml, text/plain"
    return status_object(request, 406, "NotAcceptable", message)


@dataclass(frozen=True, slots=True)
class _AcceptClause:
    media: str
    parameters: Mapping[str, str]


def _parse_accept(accept: str) -> list[_AcceptClause]:
    """The media types of an Accept header in its order; text if it is empty."""
    if not accept.strip():
        return [_AcceptClause("text/plain", {})]
    clauses = []
    for part in accept.split(","):
        media, *words = _PARAMETER.split(part.strip())
        pairs = (word.partition("=") for word in words)
        clauses.append(_AcceptClause(media.lower(), {key: value for key, _, value in pairs if key != "q"}))
    return clauses


def _structured_response(
    request: HttpRequest, clause: _AcceptClause, page: str, tree: Mapping[str, Any]
) -> HttpServerResponse:
    version = clause.parameters["v"]
    content_type = f"{clause.media};g={GROUP};v={version};as={clause.parameters['as']}"
    warning = f'299 - "This version of the {page} endpoint is deprecated. Please use a newer version."'
    headers = (("Warning", warning),) if _VERSIONS[version] else ()
    if clause.media == "application/yaml":
        return HttpServerResponse(200, yaml.safe_dump(tree, sort_keys=True).encode(), content_type, headers)
    return HttpServerResponse(200, json_body(request, tree), content_type, headers)


def _unix_date(moment: datetime) -> str:
    """The time in the format of `date`, always in English."""
    day, month = _WEEKDAYS[moment.weekday()], _MONTHS[moment.month - 1]
    return f"{day} {month} {moment.day:2d} {moment:%H:%M:%S} UTC {moment.year}"
