"""Certificates that we are given, that rotate, and that we make."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

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
from bayplan.server.http.self_signed import self_signed
from bayplan.server.http.serving_tls import ServingTls, certificates_in
from bayplan.telemetry.access_metrics import AccessMetrics
from bayplan.telemetry.metrics import MetricsRegistry
from support.fakes.certificates import Authority, Pair
from support.harness.async_tests import async_test
from support.harness.health_server import (
    client_tls_context,
    connected,
    get,
    run_server,
)

NOW = datetime(2026, 11, 15, tzinfo=UTC)


def kept(folder: Path, pair: Pair) -> TlsOptions:
    (folder / "tls.crt").write_text(pair.certificate)
    (folder / "tls.key").write_text(pair.key)
    return TlsOptions(cert_file=str(folder / "tls.crt"), key_file=str(folder / "tls.key"))


async def certificate_of(server: Server) -> bytes:
    async with connected(server) as (_, writer):
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(shown, bytes)
        return shown


@async_test
async def test_without_a_certificate_one_is_made() -> None:
    pair = self_signed(["localhost", "127.0.0.1"], datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pair.certificate)
    async with run_server(clock=ManualClock(NOW)) as server:
        first = await certificate_of(server)
        assert first == await certificate_of(server)
        assert (await get(server, "/livez")).text == "ok"
        with pytest.raises(ssl.SSLCertVerificationError):  # somebody else's, though it says the same
            await get(server, "/livez", context=context)


@async_test
async def test_what_we_make_is_good_for_the_address_that_we_are_bound_to(tmp_path: Path) -> None:
    clock = ManualClock(datetime.now(UTC))
    options = TlsOptions(cert_dir=str(tmp_path / "certs"))
    async with run_server(clock=clock, tls=options) as server:
        kept_certificate = (tmp_path / "certs" / "kube-scheduler.crt").read_text()
        assert (tmp_path / "certs" / "kube-scheduler.key").stat().st_mode & 0o777 == 0o600
        reply = await get(server, "/livez", context=trusting_host(kept_certificate))
        assert reply.text == "ok"
    async with run_server(clock=clock, tls=options) as server:  # the next start finds it
        assert await certificate_of(server) in certificates_in(kept_certificate)


def trusting_host(ca: str) -> ssl.SSLContext:
    context = client_tls_context(ca=ca)
    assert context.check_hostname
    return context


@async_test
async def test_a_pair_of_our_own_is_made_again_before_it_expires() -> None:
    clock = ManualClock(NOW)
    async with run_server(clock=clock) as server:
        first = await certificate_of(server)
        clock.advance(299 * 86400)
        assert await certificate_of(server) == first
        clock.advance(2 * 86400)
        assert await certificate_of(server) != first


@async_test
async def test_files_that_rotate_are_read_again_and_half_a_rotation_changes_nothing(tmp_path: Path) -> None:
    authority = Authority()
    options = kept(tmp_path, authority.server("127.0.0.1"))
    async with run_server(tls=options) as server:
        context = client_tls_context(ca=authority.certificate)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        assert (await get(server, "/livez", context=context)).text == "ok"
        first = await certificate_of(server)
        following = authority.server("127.0.0.1")
        (tmp_path / "tls.crt").write_text(following.certificate)  # the key is still the old one
        assert await certificate_of(server) == first
        (tmp_path / "tls.key").write_text(following.key)
        assert await certificate_of(server) in certificates_in(following.certificate)


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
async def test_what_cannot_work_is_said_at_start(options: TlsOptions, words: str) -> None:
    with pytest.raises(ServingError, match=words):
        async with run_server(tls=options):
            pass


@pytest.mark.parametrize(
    ("asked", "spoken"),
    [("", "TLSv1.2"), ("VersionTLS10", "TLSv1.2"), ("VersionTLS12", "TLSv1.2"), ("VersionTLS13", None)],
)
@async_test
async def test_the_least_version_that_is_spoken(asked: str, spoken: str | None) -> None:
    context = client_tls_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with run_server(tls=TlsOptions(min_version=asked)) as server:
        if spoken is None:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await get(server, "/livez", context=context)
            return
        async with connected(server, context) as (_, writer):
            assert writer.get_extra_info("ssl_object").version() == spoken


@async_test
async def test_nothing_older_is_spoken() -> None:
    made = ServingTls(TlsOptions(min_version="VersionTLS10"), ManualClock()).context()
    assert made.minimum_version == ssl.TLSVersion.TLSv1_2


@async_test
async def test_ciphers_by_the_names_of_the_flag() -> None:
    suites = ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"]
    context = client_tls_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with run_server(tls=TlsOptions(cipher_suites=suites)) as server, connected(server, context) as (_, writer):
        assert writer.get_extra_info("cipher")[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"


@async_test
async def test_http_1_1_is_what_we_agree_on() -> None:
    context = client_tls_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with run_server() as server, connected(server, context) as (_, writer):
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


def bound_to(address: str, port: int) -> Server:
    clock = ManualClock()
    counted = AccessMetrics(MetricsRegistry(), clock.monotonic_s)
    access = AccessControl(Authenticator(None, clock), Authorizer(None, clock), counted)
    return Server(
        ServerViews(metrics=MetricsRegistry()), SecureServingOptions(address=address, port=port), access, clock=clock
    )


@pytest.mark.parametrize("address", ["nonsense", "192.0.2.1"])
@async_test
async def test_an_address_that_is_not_ours(address: str) -> None:
    server = bound_to(address, 0)
    with pytest.raises(ServingError, match=address):
        await server.start()
    await server.close()


@async_test
async def test_a_port_that_is_taken() -> None:
    async with run_server() as first:
        second = bound_to("127.0.0.1", first.port)
        with pytest.raises(ServingError, match="choose another with --secure-port"):
            await second.start()


def test_a_bundle_that_is_none() -> None:
    assert certificates_in("") == frozenset()
    with pytest.raises(ServingError, match="not PEM"):
        certificates_in("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
