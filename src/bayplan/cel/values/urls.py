"""Parses URLs by the grammar of Go's net/url.

The grammar accepts more than RFC 3986; `ValueError` has Go's messages.
"""

from __future__ import annotations

import re

from bayplan.cel.values.addresses import parse_address
from bayplan.cel.values.go_format import quote
from bayplan.cel.values.values import Url

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
_PATH_SAFE = _UNRESERVED | frozenset(b"$&+,/:;=@")
_PATH_ALLOWED_UNESCAPED = _UNRESERVED | frozenset(b"!$&'()*+,;=:@[]%/")
_HOST_SAFE = _UNRESERVED | frozenset(b"!$&'()*+,;=:[]<>\"")
_USERINFO = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(?=:)")
_PORT = re.compile(r"(?::[0-9]*)?", re.ASCII)


def is_request_uri(text: str) -> bool:
    try:
        parse_request_uri(text)
    except ValueError:
        return False
    return True


def parse_request_uri(text: str) -> Url:
    return _parse_or_explain(text, text, via_request=True)


def parse_url(text: str) -> Url:
    return _parse_or_explain(text, text.partition("#")[0], via_request=False)


def _parse_or_explain(whole: str, text: str, *, via_request: bool) -> Url:
    try:
        return _parse(text, via_request=via_request)
    except ValueError as error:
        raise ValueError(f"parse {quote(whole)}: {error}") from None


def _parse(text: str, *, via_request: bool) -> Url:
    if any(c < " " or c == "\x7f" for c in text):
        raise ValueError("net/url: invalid control character in URL")
    if not text and via_request:
        raise ValueError("empty url")
    if text == "*":
        return Url(text, "", "", "*", "")
    scheme, rest = _scheme(text)
    rest, _, query = rest.partition("?")
    normal = (f"{scheme}:" if scheme else "") + rest + (f"?{query}" if query else "")
    if not rest.startswith("/"):
        if scheme:
            return Url(normal, scheme, "", "", query)
        if via_request:
            raise ValueError("invalid URI for request")
        if ":" in rest.partition("/")[0]:
            raise ValueError("first path segment in URL cannot contain colon")
    host = ""
    if rest.startswith("//") and (scheme or (not via_request and not rest.startswith("///"))):
        authority, slash, tail = rest[2:].partition("/")
        host, rest = _authority(scheme, authority), slash + tail
    _unescape(rest)
    return Url(normal, scheme, host, rest, query)


def _scheme(text: str) -> tuple[str, str]:
    if text.startswith(":"):
        raise ValueError("missing protocol scheme")
    found = _SCHEME.match(text)
    return (found.group().lower(), text[found.end() + 1 :]) if found else ("", text)


def _authority(scheme: str, authority: str) -> str:
    userinfo, at, host = authority.rpartition("@")
    parsed = _host(scheme, host)
    if at:
        if not _USERINFO.fullmatch(userinfo):
            raise ValueError("net/url: invalid userinfo")
        _unescape(userinfo)
    return parsed


def _host(scheme: str, host: str) -> str:
    bracket = host.rfind("[")
    if bracket > 0:
        raise ValueError("invalid IP-literal")
    if bracket == 0:
        return _ip_literal(host)
    if ":" in host:
        # Only http and https require a single colon; lists of hosts are common with other schemes.
        at = host.index(":") if scheme in ("http", "https") else host.rindex(":")
        _check_port(host[at:])
    return _unescaped_host(host)


def _ip_literal(host: str) -> str:
    end = host.rfind("]")
    if end < 0:
        raise ValueError("missing ']' in host")
    port = host[end + 1 :]
    _check_port(port)
    name = _unescaped_host(host[1:end])
    try:
        address, _ = parse_address(name)
    except ValueError as error:
        raise ValueError(f"invalid host: {error}") from None
    if address.version == 4:
        raise ValueError("invalid IP-literal")
    return f"[{name}]{port}"


def _check_port(port: str) -> None:
    if not _PORT.fullmatch(port):
        raise ValueError(f"invalid port {quote(port)} after host")


def _unescaped_host(host: str) -> str:
    at = 0
    while at < len(host):
        c = host[at]
        if c == "%":
            escape = host[at : at + 3]
            if not re.fullmatch("%[0-9a-fA-F]{2}", escape) or (int(escape[1], 16) < 8 and escape != "%25"):
                raise ValueError(f"invalid URL escape {quote(escape)}")
            at += 2
        elif c.isascii() and ord(c) not in _HOST_SAFE:
            raise ValueError(f"invalid character {quote(c)} in host name")
        at += 1
    return _unescape(host)


def _unescape(text: str, *, plus: bool = False) -> str:
    bad = re.search("%(?![0-9a-fA-F]{2})", text)
    if bad:
        raise ValueError(f"invalid URL escape {quote(text[bad.start() : bad.start() + 3])}")
    if plus:
        text = text.replace("+", " ")
    raw = re.sub(rb"%([0-9a-fA-F]{2})", lambda m: bytes([int(m[1], 16)]), text.encode())
    return raw.decode(errors="replace")


def escaped_path(path: str) -> str:
    """The path as written if it is a valid encoding, else encoded again."""
    if path == "*" or all(b in _PATH_ALLOWED_UNESCAPED for b in path.encode()):
        return path
    plain = re.sub(rb"%([0-9a-fA-F]{2})", lambda m: bytes([int(m[1], 16)]), path.encode())
    return "".join(chr(b) if b in _PATH_SAFE else f"%{b:02X}" for b in plain)


def host_and_port(host: str) -> tuple[str, str]:
    colon = host.rfind(":")
    port = ""
    if colon >= 0 and _PORT.fullmatch(host[colon:]):
        host, port = host[:colon], host[colon + 1 :]
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, port


def parse_query(query: str) -> dict[str, list[str]]:
    """Invalid pairs are left out."""
    found: dict[str, list[str]] = {}
    for pair in query.split("&"):
        if not pair or ";" in pair:
            continue
        name, _, value = pair.partition("=")
        try:
            name, value = _unescape(name, plus=True), _unescape(value, plus=True)
        except ValueError:
            continue
        found.setdefault(name, []).append(value)
    return found
