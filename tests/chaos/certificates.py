"""A certificate authority for one run, with the certificates of the API server and of the proxies."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SINCE, _UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
_NAMES = ("localhost", "kubernetes", "kubernetes.default.svc")
_ADDRESSES = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Files:
    """Paths of what `write` has made."""

    ca: Path
    certificate: Path
    key: Path
    accounts_key: Path


def write(folder: Path) -> Files:
    """Make an authority and one server certificate for loopback addresses."""
    ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "chaos")])
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    alternatives = [
        *(x509.DNSName(each) for each in _NAMES),
        *(x509.IPAddress(ipaddress.ip_address(each)) for each in _ADDRESSES),
    ]
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    server = (
        _builder(server_name, ca_name, server_key.public_key())
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    files = Files(*(folder / name for name in ("ca.crt", "server.crt", "server.key", "accounts.key")))
    files.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(_pem(server_key))
    files.accounts_key.write_bytes(_pem(ec.generate_private_key(ec.SECP256R1())))
    return files


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_SINCE)
        .not_valid_after(_UNTIL)
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    kind = (
        serialization.PrivateFormat.TraditionalOpenSSL
    )  # kube-apiserver reads service account keys in this form alone
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
