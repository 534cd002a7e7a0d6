"""Self-signed serving certificate for servers without a configured one: a key on P-256.

Created once at start, as kube-scheduler does. Clients cannot verify it, so it protects against eavesdropping only. The
arithmetic is plain Python and takes about 10 ms. It is not constant-time, which is acceptable for one signature at
start that cannot be timed from outside; OpenSSL does every handshake. Tests sign their certificates with it too.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from bayplan.client.auth.secret import Secret

VALIDITY = timedelta(days=365)

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_CURVE = "1.2.840.10045.3.1.7"
_SIGNATURE = "1.2.840.10045.4.3.2"
SERVER_AUTH = "1.3.6.1.5.5.7.3.1"
CLIENT_AUTH = "1.3.6.1.5.5.7.3.2"
"""Extended key usages of a server's and of a client's certificate."""

Point = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate in PEM, followed by its issuers if any, and its key."""

    certificate: str
    key: Secret


def self_signed(names: Iterable[str], now: datetime) -> CertificatePair:
    """A certificate for a server with these host names or addresses."""
    key = EcPrivateKey()
    unique = tuple(dict.fromkeys(names))
    subject = distinguished_name(f"{unique[0]}@{int(now.timestamp())}")
    certificate = sign_certificate(
        key,
        subject,
        subject,
        key,
        [key_usage(b"\x03\x02\x07\x80"), extended_key_usage(SERVER_AUTH), subject_alternative_names(unique)],
        since=now - timedelta(hours=1),
        until=now + VALIDITY,
    )
    return CertificatePair(certificate, Secret(key.pem))


class EcPrivateKey:
    """A private key."""

    def __init__(self) -> None:
        self._secret = secrets.randbelow(_N - 1) + 1
        x, y = _times(self._secret)
        self.point = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")

    @property
    def pem(self) -> str:
        content = der_value(4, self._secret.to_bytes(32, "big"))
        return _pem(
            "EC PRIVATE KEY",
            der_sequence(_int(1), content, der_value(0xA0, der_oid(_CURVE)), der_value(0xA1, _bits(self.point))),
        )

    def sign(self, message: bytes) -> bytes:
        digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
        nonce = secrets.randbelow(_N - 1) + 1
        r = _times(nonce)[0] % _N
        s = pow(nonce, -1, _N) * (digest + r * self._secret) % _N
        return der_sequence(_int(r), _int(s))


def sign_certificate(
    issuer_key: EcPrivateKey,
    issuer: bytes,
    subject: bytes,
    key: EcPrivateKey,
    extensions: Iterable[bytes],
    *,
    since: datetime,
    until: datetime,
) -> str:
    """A certificate for `key`, in PEM."""
    algorithm = der_sequence(der_oid(_SIGNATURE))
    content = der_sequence(
        der_value(0xA0, _int(2)),
        _int(secrets.randbits(120) + 1),
        algorithm,
        issuer,
        der_sequence(_time(since), _time(until)),
        subject,
        der_sequence(der_sequence(der_oid("1.2.840.10045.2.1"), der_oid(_CURVE)), _bits(key.point)),
        der_value(0xA3, der_sequence(*extensions)),
    )
    return _pem("CERTIFICATE", der_sequence(content, algorithm, _bits(issuer_key.sign(content))))


def distinguished_name(common_name: str, organisations: Iterable[str] = ()) -> bytes:
    parts = [("2.5.4.10", each) for each in organisations] + [("2.5.4.3", common_name)]
    return der_sequence(
        *(der_value(0x31, der_sequence(der_oid(kind), der_value(0x0C, text.encode()))) for kind, text in parts)
    )


def extension(kind: str, content: bytes, *, critical: bool = False) -> bytes:
    return der_sequence(der_oid(kind), *([b"\x01\x01\xff"] if critical else []), der_value(4, content))


def key_usage(bits: bytes) -> bytes:
    return extension("2.5.29.15", bits, critical=True)


def extended_key_usage(kind: str) -> bytes:
    return extension("2.5.29.37", der_sequence(der_oid(kind)))


def subject_alternative_names(names: Iterable[str]) -> bytes:
    """The names for which the certificate is valid."""
    return extension("2.5.29.17", der_sequence(*map(_alternative, names)))


def _alternative(text: str) -> bytes:
    try:
        return der_value(0x87, ip_address(text).packed)
    except ValueError:
        return der_value(0x82, text.encode("idna"))


# Elliptic curve.


def _add(a: Point, b: Point) -> Point:
    if a is None or b is None:
        return b if a is None else a
    if a[0] == b[0] and (a[1] + b[1]) % _P == 0:
        return None
    slope = (3 * a[0] ** 2 - 3) * pow(2 * a[1], -1, _P) if a == b else (b[1] - a[1]) * pow(b[0] - a[0], -1, _P)
    x = (slope**2 - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


def _times(scalar: int) -> tuple[int, int]:
    total: Point = None
    addend: Point = _G
    while scalar:
        if scalar & 1:
            total = _add(total, addend)
        addend = _add(addend, addend)
        scalar >>= 1
    assert total is not None
    return total


# DER.


def der_value(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def der_sequence(*parts: bytes) -> bytes:
    return der_value(0x30, b"".join(parts))


def der_oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    out = bytes([first * 40 + second])
    for arc in rest:
        part = [arc & 0x7F]
        while arc := arc >> 7:
            part.insert(0, (arc & 0x7F) | 0x80)
        out += bytes(part)
    return der_value(6, out)


def _int(value: int) -> bytes:
    return der_value(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return der_value(3, b"\0" + content)


def _time(moment: datetime) -> bytes:
    """UTCTime before 2050, GeneralizedTime from then on."""
    if moment.year < 2050:
        return der_value(0x17, f"{moment:%y%m%d%H%M%S}Z".encode())
    return der_value(0x18, f"{moment:%Y%m%d%H%M%S}Z".encode())


def _pem(label: str, der: bytes) -> str:
    text = base64.b64encode(der).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])
