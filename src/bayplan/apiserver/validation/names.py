"""Checks of names, ports, addresses and paths, with the messages of the API server.

Called by every validator, mostly with the same few texts, so results are cached. A problem is the part of the message
after the value. `bayplan.objects.name_validation` has the checks that configuration files share.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from bayplan.objects.name_validation import label_key_problems, label_value_problems

Problems = tuple[str, ...]
NONE: Problems = ()
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_UNDERSCORED = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_DNS1035_LABEL = "[a-z]([-a-z0-9]*[a-z0-9])?"
_WHAT = "must consist of lower case alphanumeric characters"
_ENDS = "must start and end with an alphanumeric character"
INT32_MAX = 2**31 - 1


def pattern_problem(rule: str, pattern: str, *examples: str) -> str:
    """The message for a text that does not match: the rule, examples and the regular expression."""
    listed = "e.g. " + " or ".join(f"'{each}', " for each in examples) if examples else ""
    return f"{rule} ({listed}regex used for validation is '{pattern}')"


_LABEL_PROBLEM = pattern_problem(
    f"a lowercase RFC 1123 label {_WHAT} or '-', and {_ENDS}", _LABEL, "my-name", "123-abc"
)
_SUBDOMAIN_PROBLEM = pattern_problem(
    f"a lowercase RFC 1123 subdomain {_WHAT}, '-' or '.', and {_ENDS}", _SUBDOMAIN, "example.com"
)
_UNDERSCORED_PROBLEM = pattern_problem(
    f"a lowercase RFC 1123 subdomain {_WHAT}, '_', '-' or '.', and {_ENDS}",
    rf"{_UNDERSCORED}(\.{_UNDERSCORED})*",
    "example.com",
)
_OLD_LABEL_PROBLEM = pattern_problem(
    f"a DNS-1035 label {_WHAT} or '-', start with an alphabetic character, and end with an alphanumeric character",
    _DNS1035_LABEL,
    "my-name",
    "abc-123",
)
_WILDCARD_PROBLEM = pattern_problem(
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which "
    f"{_WHAT}, '-' or '.' and end with an alphanumeric character",
    rf"\*\.{_SUBDOMAIN}",
    "*.example.com",
)
_KEY_PROBLEM = pattern_problem(
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    "[-._a-zA-Z0-9]+",
    "key.name",
    "KEY_NAME",
    "key-name",
)
_HEADER_PROBLEM = pattern_problem(
    "a valid HTTP header must consist of alphanumeric characters or '-'", "[-A-Za-z0-9]+", "X-Header-Name"
)
_PERCENT_PROBLEM = pattern_problem(
    "a valid percent string must be a numeric string followed by an ending '%'", "[0-9]+%", "1%", "93%"
)

_is_label = re.compile(_LABEL).fullmatch
_is_subdomain = re.compile(_SUBDOMAIN).fullmatch
_is_underscored = re.compile(rf"{_UNDERSCORED}(\.{_UNDERSCORED})*").fullmatch
_is_old_label = re.compile(_DNS1035_LABEL).fullmatch
_is_wildcard = re.compile(rf"\*\.{_SUBDOMAIN}").fullmatch
_is_key = re.compile("[-._a-zA-Z0-9]+").fullmatch
_is_header = re.compile("[-A-Za-z0-9]+").fullmatch
_is_percent = re.compile("[0-9]+%").fullmatch
_is_port_name = re.compile("[-a-z0-9]+").fullmatch
_has_letter = re.compile("[a-z]").search
_is_plain_ip = re.compile(r"((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\.(?!$)|$)){4}").fullmatch
_is_printable = re.compile(r"[\x20-\x3c\x3e-\x7e]*").fullmatch


def _length_problem(text: str, limit: int) -> list[str]:
    return [] if len(text.encode()) <= limit else [f"must be no more than {limit} characters"]


@lru_cache(maxsize=8192)
def dns_label(text: str) -> Problems:
    found = _length_problem(text, 63)
    if not _is_label(text):
        found.append("must not contain dots" if _is_subdomain(text) else _LABEL_PROBLEM)
    return tuple(found)


@lru_cache(maxsize=8192)
def dns_subdomain(text: str) -> Problems:
    found = _length_problem(text, 253)
    return tuple(found) if _is_subdomain(text) else (*found, _SUBDOMAIN_PROBLEM)


@lru_cache(maxsize=256)
def dns_subdomain_with_underscore(text: str) -> Problems:
    found = _length_problem(text, 253)
    return tuple(found) if _is_underscored(text) else (*found, _UNDERSCORED_PROBLEM)


@lru_cache(maxsize=1024)
def dns1035_label(text: str) -> Problems:
    """A label of RFC 1035, which does not start with a digit."""
    found = _length_problem(text, 63)
    return tuple(found) if _is_old_label(text) else (*found, _OLD_LABEL_PROBLEM)


@lru_cache(maxsize=256)
def wildcard_subdomain(text: str) -> Problems:
    found = _length_problem(text, 253)
    return tuple(found) if _is_wildcard(text) else (*found, _WILDCARD_PROBLEM)


@lru_cache(maxsize=8192)
def label_key(text: str) -> Problems:
    return tuple(label_key_problems(text))


@lru_cache(maxsize=8192)
def label_value(text: str) -> Problems:
    return tuple(label_value_problems(text))


@lru_cache(maxsize=4096)
def config_key(text: str) -> Problems:
    found = _length_problem(text, 253)
    if not _is_key(text):
        found.append(_KEY_PROBLEM)
    if text in (".", ".."):
        found.append(f"must not be '{text}'")
    elif text.startswith(".."):
        found.append("must not start with '..'")
    return tuple(found)


@lru_cache(maxsize=1024)
def environment_name(text: str) -> Problems:
    """Any printable ASCII but the equals sign."""
    if _is_printable(text):
        return NONE if text else ("environment variable name must be non-empty",)
    rule = "a valid environment variable name must consist only of printable ASCII characters other than '='"
    return (rule,)


@lru_cache(maxsize=1024)
def port_name(text: str) -> Problems:
    found = _length_problem(text, 15)
    if not _is_port_name(text):
        found.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not _has_letter(text):
        found.append("must contain at least one letter (a-z)")
    if "--" in text:
        found.append("must not contain consecutive hyphens")
    if text[:1] == "-" or text[-1:] == "-":
        found.append("must not begin or end with a hyphen")
    return tuple(found)


def in_range(value: int, low: int, high: int) -> Problems:
    return NONE if low <= value <= high else (f"must be between {low} and {high}, inclusive",)


def port_number(value: int) -> Problems:
    return in_range(value, 1, 65535)


def user_or_group_id(value: int) -> Problems:
    return in_range(value, 0, INT32_MAX)


def header_name(text: str) -> Problems:
    return NONE if _is_header(text) else (_HEADER_PROBLEM,)


def percent(text: str) -> Problems:
    return NONE if _is_percent(text) else (_PERCENT_PROBLEM,)


def path_segment(text: str) -> Problems:
    """One segment of a URL path, without escaping."""
    if text in (".", ".."):
        return (f"may not be '{text}'",)
    return tuple(f"may not contain '{each}'" for each in "/%" if each in text)


def local_path(text: str) -> Problems:
    """A relative path without `..`."""
    absolute = ("must be a relative path",) if text.startswith("/") else NONE
    return absolute + no_backsteps(text)


def no_backsteps(text: str) -> Problems:
    return ("must not contain '..'",) if ".." in text.split("/") else NONE


def local_file_path(text: str) -> Problems:
    """A relative path. Names with two leading dots are reserved for the kubelet."""
    reserved = text.startswith("..") and not text.startswith("../")
    return local_path(text) + (("must not start with '..'",) if reserved else NONE)


@lru_cache(maxsize=4096)  # pod statuses repeat the node's address in each pod and the pod's own address twice
def address(text: str) -> IPv4Address | IPv6Address | None:
    """The IP address; leading zeros are accepted, as in older releases."""
    try:
        if ":" not in text:
            parts = text.split(".")
            if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
                return None
            text = ".".join(str(int(part)) for part in parts)
        return ip_address(text) if "%" not in text else None
    except ValueError:
        return None


def ip(text: str) -> Problems:
    """An IP address. The usual form is matched by a pattern, not cached, since every pod has a different address."""
    return (
        NONE
        if _is_plain_ip(text) or address(text)
        else ("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",)
    )


def cidr(text: str, *, strict: bool = False) -> Problems:
    start, slash, size = text.partition("/")
    found = address(start)
    width = 128 if ":" in start else 32
    if not (slash and found and size.isascii() and size.isdigit() and int(size) <= width):
        return ("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",)
    if strict:
        return _canonical_cidr(text, start, str(found), size)
    return NONE


def _canonical_cidr(text: str, start: str, found: str, size: str) -> Problems:
    if (":" not in start and start != found) or size != str(int(size)):
        return ("must not have leading 0s in IP or prefix length",)
    network = ip_network(text, strict=False)
    if str(network.network_address) != found:
        return ("must not have bits set beyond the prefix length",)
    return NONE if str(network) == text else (f'must be in canonical form ("{network}")',)


NameRule = Callable[[str], Problems]
