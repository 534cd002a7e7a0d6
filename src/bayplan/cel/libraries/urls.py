"""URLs, parsed by the rules of Go's net/url."""

from __future__ import annotations

from bayplan.cel.errors import CelError
from bayplan.cel.types.declarations import Overload, function, method
from bayplan.cel.types.types import BOOL, STRING, URL, list_of, map_of
from bayplan.cel.values.urls import (
    escaped_path,
    host_and_port,
    is_request_uri,
    parse_query,
    parse_request_uri,
    parse_url,
)
from bayplan.cel.values.values import CelMap, Url


def to_url(text: str) -> Url:
    try:
        parse_request_uri(text)
        return parse_url(text)
    except ValueError as error:
        raise CelError(f"URL parse error during conversion from string: {error}") from None


def query(url: Url) -> CelMap:
    return CelMap((name, tuple(values)) for name, values in parse_query(url.query).items())


OVERLOADS: list[Overload] = [
    function("url", "string_to_url", (STRING,), URL, to_url),
    method("getScheme", "url_get_scheme", (URL,), STRING, lambda u: u.scheme),
    method("getHost", "url_get_host", (URL,), STRING, lambda u: u.host),
    method("getHostname", "url_get_hostname", (URL,), STRING, lambda u: host_and_port(u.host)[0]),
    method("getPort", "url_get_port", (URL,), STRING, lambda u: host_and_port(u.host)[1]),
    method("getEscapedPath", "url_get_escaped_path", (URL,), STRING, lambda u: escaped_path(u.path)),
    method("getQuery", "url_get_query", (URL,), map_of(STRING, list_of(STRING)), query),
    function("isURL", "is_url_string", (STRING,), BOOL, is_request_uri),
]
