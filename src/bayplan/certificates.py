"""Self-signed certificates and certificate authorities, with keys on P-256.

The HTTPS servers create a self-signed certificate at start if none is configured, as kube-scheduler does. Clients
cannot verify it, so it protects against eavesdropping only. The embedded API server has an authority of its own.
Cost: less than 1 ms for each certificate. The import takes about 70 ms, so callers import this module on demand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER_AUTH = ExtendedKeyUsageOID.SERVER_AUTH
VALIDITY = timedelta(days=365)
"""Validity of a self-signed certificate."""

Extensions = Iterable[tuple[x509.ExtensionType, bool]]
"""Each extension, and whether it is critical."""


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate in PEM, followed by its issuers if any, and its key."""

    certificate: str
    key: str = field(repr=False)


def self_signed(names: Iterable[str], now: datetime) -> CertificatePair:
    """A certificate for a server with these host names or addresses."""
    key, unique = new_key(), tuple(dict.fromkeys(names))
    subject = common_name(f"{unique[0]}@{int(now.timestamp())}")
    extensions = [
        (_key_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([SERVER_AUTH]), False),
        (subject_alternative_names(unique), False),
    ]
    builder = x509.CertificateBuilder(subject, subject, key.public_key())
    certificate = _sign(builder, key, extensions, since=now - timedelta(hours=1), until=now + VALIDITY)
    return CertificatePair(certificate, key_pem(key))


class CertificateAuthority:
    """Signs certificates of servers and users. They are valid as long as its own one."""

    def __init__(self, name: str, *, since: datetime, until: datetime) -> None:
        self._name, self._key = common_name(name), new_key()
        self._since, self._until = since, until
        public = self._key.public_key()
        extensions: Extensions = [
            (x509.BasicConstraints(ca=True, path_length=None), True),
            (_key_usage(signs_certificates=True), True),
            (x509.SubjectKeyIdentifier.from_public_key(public), False),
        ]
        builder = x509.CertificateBuilder(self._name, self._name, public)
        self.certificate = _sign(builder, self._key, extensions, since=since, until=until)

    def issue(self, subject: x509.Name, usage: x509.ObjectIdentifier, names: Iterable[str] = ()) -> CertificatePair:
        """A certificate with this extended key usage, for these host names or addresses, if any."""
        key, issuer = new_key(), self._key.public_key()
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.ExtendedKeyUsage([usage]), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), False),
        ]
        if unique := tuple(dict.fromkeys(names)):
            extensions.append((subject_alternative_names(unique), False))
        builder = x509.CertificateBuilder(self._name, subject, key.public_key())
        certificate = _sign(builder, self._key, extensions, since=self._since, until=self._until)
        return CertificatePair(certificate, key_pem(key))


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """The key in PEM, in the form that kube-apiserver reads too."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()


def common_name(text: str) -> x509.Name:
    """A name with this common name, cut to the 64 characters that X.509 allows."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def subject_alternative_names(names: Iterable[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(map(_general_name, names))


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text.encode("idna").decode())


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    extensions: Extensions,
    *,
    since: datetime,
    until: datetime,
) -> str:
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(since).not_valid_after(until)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
