"""Serving certificates: configured, rotated and self-signed."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bayplan.certificates import self_signed
from bayplan.clock import ManualClock
from bayplan.errors import ServingError
from bayplan.server import (
    AccessControl,
    Authenticator,
    Authorizer,
    SecureServingOptions,
    Server,
    ServerViews,
    TlsOptions,
)
from bayplan.server.http.serving_tls import ServingTls, certificates_in
from bayplan.telemetry.access_metrics import AccessMetrics
from bayplan.telemetry.metrics import MetricsRegistry
from support.fakes.certificates import Authority, Pair
from support.harness.async_tests import async_test
from support.harness.health_server import client_tls_context, connected, get, run_server

NOW = datetime(2026, 11, 15, tzinfo=UTC)


def write_pair(folder: Path, pair: Pair) -> TlsOptions:
    (folder / "tls.crt").write_text(pair.certificate)
    (folder / "tls.key").write_text(pair.key)
    return TlsOptions(cert_file=str(folder / "tls.crt"), key_file=str(folder / "tls.key"))


async def server_certificate(server: Server) -> bytes:
    async with connected(server) as (_, writer):
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(certificate, bytes)
        return certificate


@async_test
async def test_without_a_certificate_a_self_signed_one_is_used() -> None:
    pair = self_signed(["localhost", "127.0.0.1"], datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pair.certificate)
    async with run_server(clock=ManualClock(NOW)) as server:
        first = await server_certificate(server)
        assert first == await server_certificate(server)
        assert (await get(server, "/livez")).text == "ok"
        with pytest.raises(ssl.SSLCertVerificationError):  # another certificate with the same names
            await get(server, "/livez", context=context)


@async_test
async def test_the_self_signed_certificate_is_stored_and_valid_for_the_address(tmp_path: Path) -> None:
    clock = ManualClock(datetime.now(UTC))
    options = TlsOptions(cert_dir=str(tmp_path / "certs"))
    async with run_server(clock=clock, tls=options) as server:
        kept_certificate = (tmp_path / "certs" / "kube-scheduler.crt").read_text()
        assert (tmp_path / "certs" / "kube-scheduler.key").stat().st_mode & 0o777 == 0o600
        reply = await get(server, "/livez", context=trusting_host(kept_certificate))
        assert reply.text == "ok"
    async with run_server(clock=clock, tls=options) as server:  # the next start uses it
        assert await server_certificate(server) in certificates_in(kept_certificate)


def trusting_host(ca: str) -> ssl.SSLContext:
    context = client_tls_context(ca=ca)
    assert context.check_hostname
    return context


@async_test
async def test_the_self_signed_certificate_is_renewed_before_it_expires() -> None:
    clock = ManualClock(NOW)
    async with run_server(clock=clock) as server:
        first = await server_certificate(server)
        clock.advance(299 * 86400)
        assert await server_certificate(server) == first
        clock.advance(2 * 86400)
        assert await server_certificate(server) != first


@async_test
async def test_rotated_files_are_read_again_when_both_have_changed(tmp_path: Path) -> None:
    authority = Authority()
    options = write_pair(tmp_path, authority.server("127.0.0.1"))
    async with run_server(tls=options) as server:
        context = client_tls_context(ca=authority.certificate)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        assert (await get(server, "/livez", context=context)).text == "ok"
        first = await server_certificate(server)
        next_pair = authority.server("127.0.0.1")
        (tmp_path / "tls.crt").write_text(next_pair.certificate)  # with the previous key
        assert await server_certificate(server) == first
        (tmp_path / "tls.key").write_text(next_pair.key)
        assert await server_certificate(server) in certificates_in(next_pair.certificate)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (TlsOptions(cert_file="/x"), "belong together"),
        (TlsOptions(cert_file="/none.crt", key_file="/none.key"), "is unusable"),
        (TlsOptions(min_version="TLS12"), "VersionTLS12"),
        (TlsOptions(cipher_suites=["TLS_RSA_WITH_RC4_128_SHA"]), "not supported"),
        (TlsOptions(cert_dir="/proc/nowhere"), "give a writable folder"),
    ],
)
@async_test
async def test_invalid_options_are_errors_at_start(options: TlsOptions, words: str) -> None:
    with pytest.raises(ServingError, match=words):
        async with run_server(tls=options):
            pass


@pytest.mark.parametrize(
    ("min_version", "negotiated"),
    [("", "TLSv1.2"), ("VersionTLS10", "TLSv1.2"), ("VersionTLS12", "TLSv1.2"), ("VersionTLS13", None)],
)
@async_test
async def test_the_minimum_tls_version(min_version: str, negotiated: str | None) -> None:
    context = client_tls_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with run_server(tls=TlsOptions(min_version=min_version)) as server:
        if negotiated is None:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await get(server, "/livez", context=context)
            return
        async with connected(server, context) as (_, writer):
            assert writer.get_extra_info("ssl_object").version() == negotiated


@async_test
async def test_older_versions_than_1_2_are_unsupported() -> None:
    context = ServingTls(TlsOptions(min_version="VersionTLS10"), ManualClock()).context()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@async_test
async def test_cipher_suites_have_the_names_of_the_flag() -> None:
    suites = ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"]
    context = client_tls_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with run_server(tls=TlsOptions(cipher_suites=suites)) as server, connected(server, context) as (_, writer):
        assert writer.get_extra_info("cipher")[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"


@async_test
async def test_alpn_selects_http_1_1() -> None:
    context = client_tls_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with run_server() as server, connected(server, context) as (_, writer):
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


def server_at(address: str, port: int) -> Server:
    clock = ManualClock()
    metrics = AccessMetrics(MetricsRegistry(), clock.monotonic_s)
    access = AccessControl(Authenticator(None, clock), Authorizer(None, clock), metrics)
    return Server(
        ServerViews(metrics=MetricsRegistry()), SecureServingOptions(address=address, port=port), access, clock=clock
    )


@pytest.mark.parametrize("address", ["nonsense", "192.0.2.1"])
@async_test
async def test_a_foreign_address_is_an_error(address: str) -> None:
    server = server_at(address, 0)
    with pytest.raises(ServingError, match=address):
        await server.start()
    await server.close()


@async_test
async def test_a_port_in_use_is_an_error() -> None:
    async with run_server() as first:
        second = server_at("127.0.0.1", first.port)
        with pytest.raises(ServingError, match="choose another with --secure-port"):
            await second.start()


def test_an_invalid_bundle_is_an_error() -> None:
    assert certificates_in("") == frozenset()
    with pytest.raises(ServingError, match="not PEM"):
        certificates_in("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
