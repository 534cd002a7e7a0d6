"""Self-signed certificates and authorities."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509

from bayplan.certificates import SERVER_AUTH, VALIDITY, CertificateAuthority, common_name, self_signed

NOW = datetime(2026, 11, 15, tzinfo=UTC)


def parse(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(text.encode())


def test_a_self_signed_certificate_is_its_own_issuer() -> None:
    pair = self_signed(["localhost", "127.0.0.1"], NOW)
    found = parse(pair.certificate)
    found.verify_directly_issued_by(found)
    assert found.subject == common_name(f"localhost@{int(NOW.timestamp())}")
    assert (found.not_valid_before_utc, found.not_valid_after_utc) == (NOW - timedelta(hours=1), NOW + VALIDITY)
    assert found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value == x509.ExtendedKeyUsage([SERVER_AUTH])
    assert pair.key not in repr(pair)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("10.0.0.5", x509.IPAddress(ip_address("10.0.0.5")), id="IPv4"),
        pytest.param("::1", x509.IPAddress(ip_address("::1")), id="IPv6"),
        pytest.param("bücher.example", x509.DNSName("xn--bcher-kva.example"), id="other than ASCII"),
        pytest.param(f"{'a' * 60}.ml.svc", x509.DNSName(f"{'a' * 60}.ml.svc"), id="longer than a common name"),
    ],
)
def test_a_certificate_is_valid_for_its_names(name: str, expected: x509.GeneralName) -> None:
    found = parse(self_signed([name, "localhost", name], NOW).certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [expected, x509.DNSName("localhost")]


def test_an_authority_issues_certificates_that_are_none() -> None:
    authority = CertificateAuthority("ca", since=NOW, until=NOW + VALIDITY)
    root = parse(authority.certificate)
    leaf = parse(authority.issue(common_name("server"), SERVER_AUTH, ["localhost"]).certificate)
    leaf.verify_directly_issued_by(root)
    constraints = [each.extensions.get_extension_for_class(x509.BasicConstraints).value.ca for each in (root, leaf)]
    assert constraints == [True, False]
    assert (leaf.not_valid_before_utc, leaf.not_valid_after_utc) == (NOW, NOW + VALIDITY)
