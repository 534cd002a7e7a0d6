"""Validation of names and labels, with the API server's messages.

Each function returns the problems of one text, empty if it is valid. Called while configurations, selectors and
extender settings are checked; cost: one or two regular expressions per call.
"""

from __future__ import annotations

import re

_LABEL_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = f"({_LABEL_NAME})?"
_DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"

_LABEL_MAX_BYTES = 63
_SUBDOMAIN_MAX_BYTES = 253

_is_label_name = re.compile(rf"{_LABEL_NAME}\Z").match
_is_label_value = re.compile(rf"{_LABEL_VALUE}\Z").match
_is_dns_label = re.compile(rf"{_DNS_LABEL}\Z").match
_is_dns_subdomain = re.compile(rf"{_DNS_SUBDOMAIN}\Z").match

_NAME_CHARACTERS = "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"


def _pattern_problem(rule: str, pattern: str, *examples: str) -> str:
    # Upstream joins its examples by "', " and " or ": hence the comma and the two spaces.
    listed = " or ".join(f"'{example}', " for example in examples)
    return f"{rule} (e.g. {listed}regex used for validation is '{pattern}')"


def _length_problem(limit: int) -> str:
    return f"must be no more than {limit} bytes"


_LABEL_NAME_PROBLEM = _pattern_problem(
    f"must consist of {_NAME_CHARACTERS}", _LABEL_NAME, "MyName", "my.name", "123-abc"
)
_LABEL_VALUE_PROBLEM = _pattern_problem(
    f"a valid label must be an empty string or consist of {_NAME_CHARACTERS}",
    _LABEL_VALUE,
    "MyValue",
    "my_value",
    "12345",
)
_SUBDOMAIN_PROBLEM = _pattern_problem(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character",
    _DNS_SUBDOMAIN,
    "example.com",
)
_DNS_LABEL_PROBLEM = _pattern_problem(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character",
    _DNS_LABEL,
    "my-name",
    "123-abc",
)


def dns_label_problems(text: str) -> list[str]:
    """Why the text is not a DNS label, such as a namespace; empty if it is."""
    problems = [] if len(text.encode()) <= _LABEL_MAX_BYTES else [_length_problem(_LABEL_MAX_BYTES)]
    if _is_dns_label(text):
        return problems
    return [*problems, "must not contain dots" if _is_dns_subdomain(text) else _DNS_LABEL_PROBLEM]


def dns_subdomain_problems(text: str) -> list[str]:
    """Why the text is not a DNS name, such as an object's name; empty if it is."""
    problems = [] if len(text.encode()) <= _SUBDOMAIN_MAX_BYTES else [_length_problem(_SUBDOMAIN_MAX_BYTES)]
    return problems if _is_dns_subdomain(text) else [*problems, _SUBDOMAIN_PROBLEM]


def label_key_problems(text: str) -> list[str]:
    """Why the text is not a label key (also called a qualified name); empty if it is."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        optional_prefix = " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a valid label key {_LABEL_NAME_PROBLEM}{optional_prefix}"]
    problems: list[str] = []
    if slash and not prefix:
        problems.append("prefix part must be non-empty")
    elif slash:
        problems += [f"prefix part {problem}" for problem in dns_subdomain_problems(prefix)]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name.encode()) > _LABEL_MAX_BYTES:
        problems.append(f"name part {_length_problem(_LABEL_MAX_BYTES)}")
    return problems if _is_label_name(name) else [*problems, f"name part {_LABEL_NAME_PROBLEM}"]


def label_value_problems(text: str) -> list[str]:
    """Why the text is not a label value; empty if it is."""
    problems = [] if len(text.encode()) <= _LABEL_MAX_BYTES else [_length_problem(_LABEL_MAX_BYTES)]
    return problems if _is_label_value(text) else [*problems, _LABEL_VALUE_PROBLEM]
