"""String formats of CRD schemas, such as dates, addresses and host names.

Called by the validation of custom resources. An unknown format is no constraint. Each check is one pattern or one
attempt to parse.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from datetime import date
from functools import lru_cache

from bayplan.apiserver.schema.scalars import canonical_time

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_HOSTNAME = re.compile(
    r"([a-zA-Z0-9\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u02FF]"
    r"((-?[a-zA-Z0-9\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u02FF]{0,62})?)\.?)+"
)
_DURATION = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d|w| ?\w+))+|0")
_HEX = "[0-9a-f]"


def _matches(pattern: str, flags: int = 0) -> Callable[[str], bool]:
    compiled = re.compile(pattern, flags)
    return lambda text: compiled.fullmatch(text) is not None


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def test(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return test


def _uuid(version: str) -> Callable[[str], bool]:
    middle = f"{version}{_HEX}{{3}}" if version else f"{_HEX}{{4}}"
    return _matches(f"{_HEX}{{8}}-?{_HEX}{{4}}-?{middle}-?{_HEX}{{4}}-?{_HEX}{{12}}", re.IGNORECASE)


def _date_time(text: str) -> object:
    # strfmt accepts RFC 3339, and a blank or a lower-case t between date and time.
    return canonical_time(re.sub(r"^(\d{4}-\d\d-\d\d)[ t]", r"\1T", text))


def _hostname(text: str) -> bool:
    return (
        len(text) <= 255 and _HOSTNAME.fullmatch(text) is not None and all(len(part) <= 63 for part in text.split("."))
    )


def _uri(text: str) -> bool:
    """What Go's ParseRequestURI accepts: an absolute path, or a scheme and something after it."""
    if not text or re.search(r"[\x00-\x20\x7f]", text) or re.search(r"%(?![0-9a-fA-F]{2})", text):
        return False
    return text.startswith("/") or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", text) is not None


def _email(text: str) -> bool:
    address = re.fullmatch(r"\s*(?:[^<>@]*<)?([^<>@\s]+@[^<>@\s]+)>?\s*", text)
    return address is not None


def _ipv4(text: str) -> object:
    if "." not in text:
        raise ValueError
    return ipaddress.ip_address(re.sub(r"\b0+(?=\d)", "", text))


_TESTS: dict[str, Callable[[str], bool]] = {
    "datetime": _parses(_date_time),
    "date": _parses(lambda text: date.fromisoformat(text) if len(text) == 10 else int("no date")),
    "duration": _matches(_DURATION.pattern),
    "uri": _uri,
    "email": _email,
    "hostname": _hostname,
    "ipv4": _parses(_ipv4),
    "ipv6": _parses(ipaddress.IPv6Address),
    "cidr": _parses(lambda text: ipaddress.ip_network(text, strict=False) if "/" in text else int("no range")),
    "mac": _matches(r"([0-9a-fA-F]{2}[:-]){5,19}[0-9a-fA-F]{2}|([0-9a-fA-F]{4}\.){2,9}[0-9a-fA-F]{4}"),
    "uuid": _uuid(""),
    "uuid3": _uuid("3"),
    "uuid4": _uuid("4"),
    "uuid5": _uuid("5"),
    "byte": _parses(lambda text: base64.b64decode(text, validate=True) if text else int("nothing")),
    "hexcolor": _matches(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "ssn": _matches(r"\d{3}[- ]?\d{2}[- ]?\d{4}"),
    "bsonobjectid": _matches(r"[0-9a-fA-F]{24}"),
    "k8sshortname": lambda text: len(text) <= 63 and re.fullmatch(_LABEL, text) is not None,
    "k8slongname": lambda text: len(text) <= 253 and re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", text) is not None,
}


@lru_cache(maxsize=4096)
def has_format(text: str, name: str) -> bool:
    """Whether the text has the format. Every text has an unknown format."""
    test = _TESTS.get(name.replace("-", ""))
    return test is None or test(text)


def known_format(name: str) -> bool:
    return name.replace("-", "") in _TESTS or name == "password"
