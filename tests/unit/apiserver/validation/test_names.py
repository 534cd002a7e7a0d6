"""Rules for names, addresses, ports and paths: the texts at both sides of each bound."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bayplan.apiserver.validation.names import (
    NameRule,
    address,
    cidr,
    config_key,
    dns1035_label,
    dns_label,
    dns_subdomain,
    dns_subdomain_with_underscore,
    environment_name,
    ip,
    local_file_path,
    local_path,
    no_backsteps,
    path_segment,
    percent,
    port_name,
    port_number,
    user_or_group_id,
    wildcard_subdomain,
)

PARTS = st.one_of(
    st.integers(0, 300).map(str), st.sampled_from(["", "00", "01", "0x1", "-1", "1 ", "a", "1\n", "\u0661"])
)
NO_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
HYPHEN_ENDS = "must not begin or end with a hyphen"


@given(text=st.lists(PARTS, min_size=3, max_size=5).map(".".join))
@example(text="10.1.2.3")
@example(text="255.255.255.255")
@example(text="10.1.2.3.")
@example(text="::1")
def test_the_ip_pattern_matches_only_addresses(text: str) -> None:
    assert (ip(text) == ()) == (address(text) is not None)


@pytest.mark.parametrize(
    ("rule", "longest"),
    [
        (dns_label, "a" * 63),
        (dns1035_label, "a" * 63),
        (dns_subdomain, "a" * 253),
        (dns_subdomain_with_underscore, "_" + "a" * 252),
        (wildcard_subdomain, "*." + "a" * 251),
        (config_key, "A" * 253),
        (port_name, "a" * 15),
    ],
    ids=lambda each: getattr(each, "__name__", "longest"),
)
def test_a_name_has_a_maximum_length(rule: NameRule, longest: str) -> None:
    assert rule(longest) == ()
    assert rule(longest + "a") == (f"must be no more than {len(longest)} characters",)


@pytest.mark.parametrize(
    ("rule", "text", "problems"),
    [
        pytest.param(dns_label, "a.b", ["must not contain dots"], id="a-label-with-a-dot"),
        pytest.param(dns_label, "A.b", ["a lowercase RFC 1123 label must consist of"], id="no-label-and-no-subdomain"),
        pytest.param(dns1035_label, "1a", ["a DNS-1035 label must consist of"], id="an-old-label-with-a-digit-first"),
        pytest.param(wildcard_subdomain, "a.example.com", ["a wildcard DNS-1123 subdomain"], id="no-wildcard"),
        pytest.param(config_key, ".", ["must not be '.'"], id="the-key-dot"),
        pytest.param(config_key, "..", ["must not be '..'"], id="the-key-two-dots"),
        pytest.param(config_key, "..a", ["must not start with '..'"], id="a-key-behind-two-dots"),
        pytest.param(config_key, ".a", [], id="a-key-behind-one-dot"),
        pytest.param(environment_name, "", ["environment variable name must be non-empty"], id="no-variable-name"),
        pytest.param(environment_name, "a b", [], id="a-printable-variable-name"),
        pytest.param(environment_name, "a=b", ["a valid environment variable name"], id="a-variable-name-with-equals"),
        pytest.param(port_name, "123", ["must contain at least one letter"], id="a-port-name-of-digits"),
        pytest.param(port_name, "a--b", ["must not contain consecutive hyphens"], id="a-port-name-with-two-hyphens"),
        pytest.param(port_name, "-a", [HYPHEN_ENDS], id="a-hyphen-at-the-start-of-a-port-name"),
        pytest.param(port_name, "a-", [HYPHEN_ENDS], id="a-hyphen-at-the-end-of-a-port-name"),
        pytest.param(port_name, "a-b", [], id="a-hyphen-within-a-port-name"),
        pytest.param(
            port_name, "a_b", ["must contain only alpha-numeric characters"], id="an-underscore-in-a-port-name"
        ),
        pytest.param(percent, "10", ["a valid percent string must be"], id="no-percent-sign"),
        pytest.param(percent, "0%", [], id="a-share"),
        pytest.param(path_segment, ".", ["may not be '.'"], id="the-segment-dot"),
        pytest.param(path_segment, "..", ["may not be '..'"], id="the-segment-two-dots"),
        pytest.param(path_segment, "a/%", ["may not contain '/'", "may not contain '%'"], id="a-segment-with-a-slash"),
        pytest.param(path_segment, "...", [], id="a-segment-of-dots"),
        pytest.param(local_path, "/a", ["must be a relative path"], id="an-absolute-path"),
        pytest.param(local_path, "a/../b", ["must not contain '..'"], id="a-path-with-a-step-back"),
        pytest.param(no_backsteps, "/a..b", [], id="two-dots-within-a-name"),
        pytest.param(local_file_path, "..a", ["must not start with '..'"], id="a-file-behind-two-dots"),
        pytest.param(local_file_path, "../a", ["must not contain '..'"], id="a-file-above"),
        pytest.param(local_file_path, "a/..b", [], id="two-dots-in-the-name-of-a-file"),
        pytest.param(ip, "1.2.3", ["must be a valid IP address"], id="three-numbers"),
        pytest.param(ip, "010.1.2.3", [], id="leading-zeros"),
        pytest.param(ip, "fe80::1%eth0", ["must be a valid IP address"], id="an-address-with-a-zone"),
        pytest.param(cidr, "10.0.0.0/32", [], id="the-smallest-range"),
        pytest.param(cidr, "10.0.0.0/33", [NO_CIDR], id="a-range-below-one-address"),
        pytest.param(cidr, "fd00::/128", [], id="the-smallest-range-of-IPv6"),
        pytest.param(cidr, "fd00::/129", [NO_CIDR], id="a-range-below-one-address-of-IPv6"),
        pytest.param(cidr, "10.0.0.0", [NO_CIDR], id="a-range-without-a-size"),
        pytest.param(cidr, "10.0.0/8", [NO_CIDR], id="a-range-of-no-address"),
        pytest.param(cidr, "10.0.0.0/a", [NO_CIDR], id="a-size-that-is-no-number"),
        pytest.param(cidr, "10.1.2.3/8", [], id="bits-behind-the-prefix"),
    ],
)
def test_problems_of_texts(rule: NameRule, text: str, problems: list[str]) -> None:
    found = rule(text)
    assert len(found) == len(problems)
    assert all(each.startswith(problem) for each, problem in zip(found, problems, strict=True)), found


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("10.0.0.0/8", ()),
        ("fd00::/8", ()),
        ("010.0.0.0/8", ("must not have leading 0s in IP or prefix length",)),
        ("10.0.0.0/08", ("must not have leading 0s in IP or prefix length",)),
        ("10.1.0.0/8", ("must not have bits set beyond the prefix length",)),
        ("fd00:0::/16", ('must be in canonical form ("fd00::/16")',)),
        ("10.0.0.0/33", (NO_CIDR,)),
    ],
)
def test_a_strict_cidr_must_be_canonical(text: str, problems: tuple[str, ...]) -> None:
    assert cidr(text, strict=True) == problems


def test_port_numbers_and_user_ids_have_bounds() -> None:
    assert [number for number in (0, 1, 65535, 65536) if not port_number(number)] == [1, 65535]
    assert [number for number in (-1, 0, 2**31 - 1, 2**31) if not user_or_group_id(number)] == [0, 2**31 - 1]
    assert port_number(0) == ("must be between 1 and 65535, inclusive",)
