"""Certificates for tests, made of nothing: an authority on P-256 and what it signs. Not for anything that matters."""

from __future__ import annotations

import base64
import hashlib
import secrets
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_CURVE = "1.2.840.10045.3.1.7"
_SIGNATURE = "1.2.840.10045.4.3.2"

Point = tuple[int, int] | None


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


def _tlv(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _seq(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _int(value: int) -> bytes:
    return _tlv(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    out = bytes([first * 40 + second])
    for arc in rest:
        part = [arc & 0x7F]
        while arc := arc >> 7:
            part.insert(0, (arc & 0x7F) | 0x80)
        out += bytes(part)
    return _tlv(6, out)


def _bits(content: bytes) -> bytes:
    return _tlv(3, b"\0" + content)


def _name(common_name: str, organisations: Iterable[str] = ()) -> bytes:
    parts = [("2.5.4.10", each) for each in organisations] + [("2.5.4.3", common_name)]
    return _seq(*(_tlv(0x31, _seq(_oid(oid), _tlv(0x0C, text.encode()))) for oid, text in parts))


def _extension(oid: str, content: bytes, *, critical: bool = False) -> bytes:
    return _seq(_oid(oid), *([b"\x01\x01\xff"] if critical else []), _tlv(4, content))


def _pem(label: str, der: bytes) -> str:
    text = base64.encodebytes(der).decode().replace("\n", "")
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


class Key:
    """A private key."""

    def __init__(self) -> None:
        self._secret = secrets.randbelow(_N - 1) + 1
        x, y = _times(self._secret)
        self.point = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")

    @property
    def pem(self) -> str:
        content = _tlv(4, self._secret.to_bytes(32, "big"))
        return _pem("EC PRIVATE KEY", _seq(_int(1), content, _tlv(0xA0, _oid(_CURVE)), _tlv(0xA1, _bits(self.point))))

    def sign(self, message: bytes) -> bytes:
        digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
        nonce = secrets.randbelow(_N - 1) + 1
        r = _times(nonce)[0] % _N
        s = pow(nonce, -1, _N) * (digest + r * self._secret) % _N
        return _seq(_int(r), _int(s))


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: str
    key: str


class Authority:
    """Signs certificates for servers and users."""

    def __init__(self, name: str = "bayplan tests") -> None:
        self._key = Key()
        self._name = _name(name)
        constraints = _extension("2.5.29.19", _seq(b"\x01\x01\xff"), critical=True)
        usage = _extension("2.5.29.15", b"\x03\x02\x01\x86", critical=True)
        self.certificate = self._sign(self._name, self._key, [constraints, usage])

    def server(self, *names: str) -> Pair:
        """For a server under these host names or addresses."""
        alternatives = _extension("2.5.29.17", _seq(*map(_alternative, names)))
        key = Key()
        return Pair(self._sign(_name(names[0]), key, [alternatives, _purpose("1.3.6.1.5.5.7.3.1")]), key.pem)

    def user(self, name: str, *groups: str) -> Pair:
        """For a user of the API server: the name is the user, organisations are groups."""
        key = Key()
        return Pair(self._sign(_name(name, groups), key, [_purpose("1.3.6.1.5.5.7.3.2")]), key.pem)

    def _sign(self, subject: bytes, key: Key, extensions: list[bytes]) -> str:
        algorithm = _seq(_oid(_SIGNATURE))
        public = _seq(_seq(_oid("1.2.840.10045.2.1"), _oid(_CURVE)), _bits(key.point))
        validity = _seq(_tlv(0x17, b"200101000000Z"), _tlv(0x18, b"21200101000000Z"))
        serial = _int(secrets.randbits(120))
        content = _seq(
            _tlv(0xA0, _int(2)),
            serial,
            algorithm,
            self._name,
            validity,
            subject,
            public,
            _tlv(0xA3, _seq(*extensions)),
        )
        return _pem("CERTIFICATE", _seq(content, algorithm, _bits(self._key.sign(content))))


def server_context(folder: Path, pair: Pair, clients: str = "") -> ssl.SSLContext:
    """What a server needs to speak TLS; with `clients`, an authority, it asks who connects for a certificate of it."""
    (folder / "server.crt").write_text(pair.certificate)
    (folder / "server.key").write_text(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    if clients:
        context.load_verify_locations(cadata=clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _alternative(name: str) -> bytes:
    try:
        return _tlv(0x87, ip_address(name).packed)
    except ValueError:
        return _tlv(0x82, name.encode())


def _purpose(oid: str) -> bytes:
    return _extension("2.5.29.37", _seq(_oid(oid)))
