"""What goes back to the client? A finished answer, or a stream of lines; the HTTP layer sends either.

Handlers make these and know nothing of sockets. Cost: none beside the bytes they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bayplan.cluster.answers import Refusal
from bayplan.cluster.entries import encode
from bayplan.cluster.kinds import Tree
from bayplan.cluster.negotiating import JSON, YAML
from bayplan.cluster.watching import Watch

DECIDED = {"Cache-Control": "no-cache, private"}


@dataclass(slots=True)
class Reply:
    """A finished answer."""

    body: bytes
    code: int = 200
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=lambda: dict(DECIDED))
    warnings: Sequence[str] = ()


@dataclass(slots=True)
class Stream:
    """A watch: lines until its time is over."""

    watch: Watch
    timeout_s: float
    bookmarks: bool
    warnings: Sequence[str] = ()


def json_reply(tree: Tree, code: int = 200) -> Reply:
    return Reply(encode(tree) + b"\n", code)


def text_reply(text: str, code: int = 200) -> Reply:
    return Reply(text.encode(), code, "text/plain; charset=utf-8")


def page_not_found() -> Reply:
    """Go's own answer to a path that nobody serves."""
    return text_reply("404 page not found\n", 404)


def refusal_reply(refusal: Refusal) -> Reply:
    reply = json_reply(refusal.body(), refusal.code)
    reply.headers |= refusal.headers
    reply.warnings = refusal.warnings
    return reply


def as_yaml(reply: Reply) -> Reply:
    """The same answer as YAML."""
    import msgspec
    import yaml

    reply.body = yaml.safe_dump(msgspec.json.decode(reply.body), sort_keys=True).encode()
    reply.content_type = YAML
    return reply


def warning_header(text: str) -> str:
    """One `Warning` header: a quoted text on one line."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    quoted = shown.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'
