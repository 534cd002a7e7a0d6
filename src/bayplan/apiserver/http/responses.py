"""What goes back to the client? A finished answer, or a stream of lines; the HTTP layer sends either.

Handlers make these and know nothing of sockets. Cost: none beside the bytes they hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs

import msgspec

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.content_negotiation import JSON, YAML, negotiate_media_type
from bayplan.apiserver.http.watch_stream import Watch
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.storage.stored_objects import encode

NO_CACHE_HEADERS = {"Cache-Control": "no-cache, private"}


class ApiResponse(msgspec.Struct):
    """A finished answer."""

    body: bytes
    code: int = 200
    content_type: str = JSON
    headers: dict[str, str] = msgspec.field(default_factory=NO_CACHE_HEADERS.copy)
    warnings: Sequence[str] = ()


@dataclass(slots=True)
class WatchResponse:
    """A watch: lines until its time is over."""

    watch: Watch
    timeout_s: float
    bookmarks: bool
    warnings: Sequence[str] = ()


def json_response(tree: Tree, code: int = 200) -> ApiResponse:
    return ApiResponse(encode(tree) + b"\n", code)


def text_response(text: str, code: int = 200) -> ApiResponse:
    return ApiResponse(text.encode(), code, "text/plain; charset=utf-8")


def not_found_response() -> ApiResponse:
    """Go's own answer to a path that nobody serves."""
    return text_response("404 page not found\n", 404)


def error_response(refusal: StatusError) -> ApiResponse:
    reply = json_response(refusal.body(), refusal.code)
    reply.headers |= refusal.headers
    reply.warnings = refusal.warnings
    return reply


def pretty_json_response(tree: Tree) -> ApiResponse:
    """An answer that is always laid out for people."""
    return ApiResponse(msgspec.json.format(encode(tree), indent=2))


def format_response(reply: ApiResponse, headers: Mapping[str, str], query: str) -> ApiResponse:
    """The same answer as YAML, or laid out for people, where that was asked for."""
    if reply.content_type != JSON or not reply.body:
        return reply
    if "yaml" in headers.get("Accept", "") and _wants_yaml(headers["Accept"]):
        reply.body = _yaml(msgspec.json.decode(reply.body))
        reply.content_type = YAML
    elif headers.get("User-Agent", "").startswith(_PRETTY_USER_AGENTS) or "pretty=" in query:
        given = parse_qs(query).get("pretty", ["true"])[0]
        if given.lower() in ("1", "t", "true"):
            reply.body = msgspec.json.format(reply.body, indent=2)
    return reply


_PRETTY_USER_AGENTS = ("curl", "Wget", "Mozilla/5.0")


def _wants_yaml(accept: str) -> bool:
    try:
        return negotiate_media_type(accept).yaml
    except StatusError:  # which is what is told, and in JSON
        return False


def _yaml(tree: Tree) -> bytes:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes as Go's does: whatever another reader could take for something else than a text."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        others = Dumper.yaml_implicit_resolvers.get(value[:1], ())
        mistaken = _AMBIGUOUS_SCALAR.fullmatch(value) or any(pattern.version_match(value) for _, pattern in others)
        style = "|" if "\n" in value else '"' if mistaken else None
        return dumper.represent_scalar(_TEXT_TAG, value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(tree, Dumper=Dumper, sort_keys=True, allow_unicode=True, width=80).encode()


_TEXT_TAG = "tag:yaml.org,2002:str"
_AMBIGUOUS_SCALAR = re.compile(r"[yYnN]|[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
"""Texts that PyYAML knows for texts, and others do not."""


def warning_header(text: str) -> str:
    """One `Warning` header: a quoted text on one line."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    quoted = shown.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'
