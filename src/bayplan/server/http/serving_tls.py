"""TLS context of a server: its certificate and its client authorities, rebuilt when they change.

Called for every connection; costs a stat of a few files. Rotated files are read again, and a self-signed certificate is
renewed before it expires. If a file becomes unreadable, the last good context stays in use: rotation replaces
certificate and key in two steps.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayplan.client.auth.secret import Secret
from bayplan.client.http.tls import file_stamp, load_pair
from bayplan.clock import Clock
from bayplan.errors import ServingError
from bayplan.server.http.requests import Peer

if TYPE_CHECKING:
    from bayplan.certificates import CertificatePair

log = logging.getLogger(__name__)

CERTIFICATE_NAME = "kube-scheduler"
_RENEW_AFTER = timedelta(days=300)

VERSIONS = {
    "": ssl.TLSVersion.TLSv1_2,
    "VersionTLS10": ssl.TLSVersion.TLSv1_2,  # versions before 1.2 are unsupported
    "VersionTLS11": ssl.TLSVersion.TLSv1_2,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}

_CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
}
"""OpenSSL names by the names in flags. The suites of TLS 1.3 are always enabled, here as upstream."""

_TLS13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """The `--tls-*` flags and related ones."""

    cert_file: str = ""
    key_file: str = ""
    cert_dir: str = ""
    """The folder of the self-signed certificate; empty: it stays in memory."""
    min_version: str = ""
    cipher_suites: Sequence[str] = ()

    def version(self) -> ssl.TLSVersion:
        if self.min_version not in VERSIONS:
            raise ServingError(
                f"--tls-min-version {self.min_version!r} is unknown; use one of {', '.join(list(VERSIONS)[1:])}"
            )
        return VERSIONS[self.min_version]

    def ciphers(self) -> str:
        """The suites by their OpenSSL names; empty for OpenSSL's default."""
        for suite in self.cipher_suites:
            if suite not in _CIPHERS and suite not in _TLS13:
                raise ServingError(
                    f"--tls-cipher-suites: {suite} is not supported; choose from {', '.join(sorted(_CIPHERS))}"
                )
        return ":".join(dict.fromkeys(_CIPHERS[suite] for suite in self.cipher_suites if suite in _CIPHERS))


class ServingTls:
    """Keeps the TLS context up to date. A self-signed certificate includes `address`, the bind address of the
    server."""

    def __init__(self, options: TlsOptions, clock: Clock, *, address: str = "") -> None:
        if bool(options.cert_file) != bool(options.key_file):
            raise ServingError("--tls-cert-file and --tls-private-key-file belong together; give both or none")
        self._options = options
        self._clock = clock
        self._names = _names(address)
        self._self_signed: tuple[datetime, CertificatePair] | None = None
        self._authorities = ""
        self._context_inputs: object = None
        self._context: ssl.SSLContext | None = None

    def set_authorities(self, authorities: str) -> None:
        """Request client certificates of these CAs, in PEM, from now on; empty: request none."""
        self._authorities = authorities

    def context(self) -> ssl.SSLContext:
        now = self._inputs()
        if self._context is None or now != self._context_inputs:
            try:
                self._context, self._context_inputs = self._build_context(), now
            except ServingError as fault:
                if self._context is None:
                    raise
                log.error("%s; the previous certificate stays in use", fault)
                self._context_inputs = now
        return self._context

    def peer(self, address: str, tls: ssl.SSLObject | None) -> Peer:
        if tls is None or not (certificate := tls.getpeercert()):
            return Peer(address)
        subject: Any = certificate.get("subject", ())
        return Peer(address, verified_chain(tls), tuple(part for group in subject for part in group))

    def _inputs(self) -> object:
        if self._options.cert_file:
            return self._authorities, file_stamp(self._options.cert_file), file_stamp(self._options.key_file)
        now = self._clock.now()
        if self._self_signed is None or now - self._self_signed[0] > _RENEW_AFTER:
            self._self_signed = now, self._pair(now)
        return self._authorities, self._self_signed[0]

    def _pair(self, now: datetime) -> CertificatePair:
        """The self-signed certificate: the stored one, or a new one."""
        from bayplan.certificates import CertificatePair, self_signed

        folder = Path(self._options.cert_dir) if self._options.cert_dir else None
        if folder is None:
            log.info("Generated self-signed cert in-memory")
            return self_signed(self._names, now)
        certificate, key = folder / f"{CERTIFICATE_NAME}.crt", folder / f"{CERTIFICATE_NAME}.key"
        try:
            if self._self_signed is None and certificate.exists() and key.exists():
                return CertificatePair(certificate.read_text(), key.read_text())
            created = self_signed(self._names, now)
            folder.mkdir(parents=True, exist_ok=True)
            certificate.write_text(created.certificate)
            _write_secret(key, created.key)
        except OSError as fault:
            raise ServingError(f"--cert-dir {folder}: {fault.strerror}; give a writable folder") from None
        log.info("Generated self-signed cert (%s, %s)", certificate, key)
        return created

    def _build_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self._options.version()
        context.set_alpn_protocols(["http/1.1"])
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        self._choose_ciphers(context)
        self._load_certificate(context)
        if self._authorities:
            self._load_client_authorities(context)
        return context

    def _choose_ciphers(self, context: ssl.SSLContext) -> None:
        if ciphers := self._options.ciphers():
            try:
                context.set_ciphers(ciphers)
            except ssl.SSLError:
                raise ServingError(
                    "--tls-cipher-suites: the OpenSSL of this system supports none of them; use other suites"
                ) from None

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        options = self._options
        try:
            if options.cert_file:
                load_pair(context, options.cert_file, options.key_file)
            else:
                assert self._self_signed is not None
                _, pair = self._self_signed
                load_pair(context, pair.certificate.encode(), Secret(pair.key))
        except (ssl.SSLError, OSError, ValueError) as fault:
            files = f"{options.cert_file} and {options.key_file}" if options.cert_file else options.cert_dir
            raise ServingError(
                f"the serving certificate in {files} is unusable: {fault}; give a PEM certificate and its PEM key "
                "without a password"
            ) from None

    def _load_client_authorities(self, context: ssl.SSLContext) -> None:
        """Clients without a certificate may have a token; a wrong certificate fails the handshake."""
        try:
            context.load_verify_locations(cadata=self._authorities)
        except (ssl.SSLError, ValueError):
            raise ServingError("a client authority is not PEM; give a file of PEM certificates") from None
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an issuer in the bundle need not be a root


def verified_chain(tls: ssl.SSLObject) -> tuple[bytes, ...]:
    """The client's certificate and its issuers up to a trusted one, as DER."""
    inner: Any = tls
    if hasattr(tls, "get_verified_chain"):  # since Python 3.13
        return tuple(inner.get_verified_chain())
    return tuple(ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in inner._sslobj.get_verified_chain())


def certificates_in(pem: str) -> frozenset[bytes]:
    """The certificates of a bundle, as DER."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    parts = (part.partition(end) for part in pem.split(begin)[1:])
    try:
        return frozenset(base64.b64decode("".join(body.split()), validate=True) for body, found, _ in parts if found)
    except ValueError:
        raise ServingError("a client authority is not PEM; give a file of PEM certificates") from None


def fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()


def _names(address: str) -> list[str]:
    """The names of the self-signed certificate."""
    names = ["localhost", "127.0.0.1"]
    try:
        return names if not address or ip_address(address).is_unspecified else [*names, address]
    except ValueError:
        return [*names, address]


def _write_secret(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(text)
