from __future__ import annotations

import pytest

from bayplan.objects.name_validation import (
    dns_label_problems,
    dns_subdomain_problems,
    label_key_problems,
    label_value_problems,
)

NAME = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


@pytest.mark.parametrize(
    ("key", "problems"),
    [
        ("a", []),
        ("A_b.c-1", []),
        ("example.com/Foo", []),
        ("a" * 63, []),
        ("x/" + "a" * 63, []),
        (
            "a/b/c",
            [f"a valid label key {NAME} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"],
        ),
        ("/x", ["prefix part must be non-empty"]),
        ("x/", ["name part must be non-empty", f"name part {NAME}"]),
        ("", ["name part must be non-empty", f"name part {NAME}"]),
        ("/", ["prefix part must be non-empty", "name part must be non-empty", f"name part {NAME}"]),
        ("Foo/x", [f"prefix part {SUBDOMAIN}"]),
        ("a" * 254 + "/x", ["prefix part must be no more than 253 bytes"]),
        ("a" * 64, ["name part must be no more than 63 bytes"]),
        ("é" * 32, ["name part must be no more than 63 bytes", f"name part {NAME}"]),
        ("a b", [f"name part {NAME}"]),
        ("a\n", [f"name part {NAME}"]),
        ("-a", [f"name part {NAME}"]),
    ],
)
def test_label_keys(key: str, problems: list[str]) -> None:
    assert label_key_problems(key) == problems


@pytest.mark.parametrize(
    ("value", "problems"),
    [
        ("", []),
        ("a_b", []),
        ("a" * 63, []),
        ("a" * 64, ["must be no more than 63 bytes"]),
        ("a b", [VALUE]),
        (" " * 64, ["must be no more than 63 bytes", VALUE]),
        ("a\n", [VALUE]),
    ],
)
def test_label_values(value: str, problems: list[str]) -> None:
    assert label_value_problems(value) == problems


@pytest.mark.parametrize(
    ("name", "problems"),
    [
        ("a.b-c.1", []),
        ("a" * 253, []),
        ("a" * 254, ["must be no more than 253 bytes"]),
        ("A", [SUBDOMAIN]),
        ("a..b", [SUBDOMAIN]),
        ("", [SUBDOMAIN]),
    ],
)
def test_dns_names(name: str, problems: list[str]) -> None:
    assert dns_subdomain_problems(name) == problems


def test_dns_labels() -> None:
    assert dns_label_problems("my-name") == []
    assert dns_label_problems("a.b") == ["must not contain dots"]
    assert dns_label_problems("a" * 64) == ["must be no more than 63 bytes"]
    assert "a lowercase RFC 1123 label must consist of" in dns_label_problems("-")[0]
