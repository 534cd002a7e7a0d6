"""Responses of the handlers: a complete one, or a watch stream. The HTTP layer sends both.

Handlers create them and do not use sockets. Cost: none beyond the bytes they hold.
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
    body: bytes
    code: int = 200
    content_type: str = JSON
    headers: dict[str, str] = msgspec.field(default_factory=NO_CACHE_HEADERS.copy)
    warnings: Sequence[str] = ()


@dataclass(slots=True)
class WatchResponse:
    """A watch: lines until its timeout."""

    watch: Watch
    timeout_s: float
    bookmarks: bool
    warnings: Sequence[str] = ()


def json_response(tree: Tree, code: int = 200) -> ApiResponse:
    return ApiResponse(encode(tree) + b"\n", code)


def text_response(text: str, code: int = 200) -> ApiResponse:
    return ApiResponse(text.encode(), code, "text/plain; charset=utf-8")


def not_found_response() -> ApiResponse:
    """Go's plain-text response for a path that is not served."""
    return text_response("404 page not found\n", 404)


def error_response(refusal: StatusError) -> ApiResponse:
    response = json_response(refusal.body(), refusal.code)
    response.headers |= refusal.headers
    response.warnings = refusal.warnings
    return response


def pretty_json_response(tree: Tree) -> ApiResponse:
    return ApiResponse(msgspec.json.format(encode(tree), indent=2))


def format_response(response: ApiResponse, headers: Mapping[str, str], query: str) -> ApiResponse:
    """Converts the response to YAML or indented JSON, if the request asks for it."""
    if response.content_type != JSON or not response.body:
        return response
    if "yaml" in headers.get("Accept", "") and _wants_yaml(headers["Accept"]):
        response.body = _yaml(msgspec.json.decode(response.body))
        response.content_type = YAML
    elif headers.get("User-Agent", "").startswith(_PRETTY_USER_AGENTS) or "pretty=" in query:
        given = parse_qs(query).get("pretty", ["true"])[0]
        if given.lower() in ("1", "t", "true"):
            response.body = msgspec.json.format(response.body, indent=2)
    return response


_PRETTY_USER_AGENTS = ("curl", "Wget", "Mozilla/5.0")


def _wants_yaml(accept: str) -> bool:
    try:
        return negotiate_media_type(accept).yaml
    except StatusError:  # the Accept header is refused, and the refusal is JSON
        return False


def _yaml(tree: Tree) -> bytes:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes scalars as Go's encoder does: every text that another YAML parser would read as another type."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        resolvers = Dumper.yaml_implicit_resolvers.get(value[:1], ())
        ambiguous = _AMBIGUOUS_SCALAR.fullmatch(value) or any(pattern.match(value) for _, pattern in resolvers)
        style = "|" if "\n" in value else '"' if ambiguous else None
        return dumper.represent_scalar(_TEXT_TAG, value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(tree, Dumper=Dumper, sort_keys=True, allow_unicode=True, width=80).encode()


_TEXT_TAG = "tag:yaml.org,2002:str"
_AMBIGUOUS_SCALAR = re.compile(r"[yYnN]|[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
"""Texts that PyYAML reads as strings and other YAML parsers do not."""


def warning_header(text: str) -> str:
    """The value of a `Warning` header: a quoted text on one line."""
    printable = "".join(each if each.isprintable() else " " for each in text)
    quoted = printable.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'
