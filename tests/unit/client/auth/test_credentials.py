"""Credentials: tokens, rotating token files, exec plugins, client certificates; none of them appears in a log."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import stat
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.client.auth.credentials import RELOAD_S
from bayplan.client.auth.kubeconfig import EnvVar, ExecConfig
from bayplan.client.auth.secret import Secret
from bayplan.clock import ManualClock
from bayplan.errors import BayplanError, KubeconfigError, Unauthorized, Unreachable
from support.fakes.certificates import Authority, Pair, server_context
from support.fakes.http_server import FakeHttpServer, Reply, Request, status
from support.harness.async_tests import async_test

SECRET = "s3cr3t-t0k3n"
V1 = "client.authentication.k8s.io/v1"


def whoami(request: Request) -> Reply:
    return Reply(200, {"authorization": request.headers.get("authorization", "")})


async def sent_authorization(client: Any) -> str:
    answer = await client.transport.request("GET", "/whoami")
    return str(json.loads(answer.body)["authorization"])


@async_test
async def test_a_token_is_sent_with_every_request() -> None:
    async with FakeHttpServer(whoami) as server, server.client(target=server.target(token=Secret(SECRET))) as client:
        assert await sent_authorization(client) == f"Bearer {SECRET}"


@async_test
async def test_user_and_password_are_sent_as_basic_authentication() -> None:
    async with FakeHttpServer(whoami) as server:
        target = server.target(username="u", password=Secret("p"))
        async with server.client(target=target) as client:
            assert await sent_authorization(client) == "Basic dTpw"


@async_test
async def test_impersonation_headers_are_sent_with_every_request() -> None:
    async with FakeHttpServer(whoami) as server:
        target = server.target(impersonate=(("Impersonate-User", "jane"), ("Impersonate-Group", "a")))
        async with server.client(target=target) as client:
            await sent_authorization(client)
            assert server.requests[0].headers["impersonate-user"] == "jane"


@async_test
async def test_a_token_file_is_read_again_after_the_reload_interval(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "token"
    path.write_text("first\n")
    async with (
        FakeHttpServer(whoami) as server,
        server.client(clock, target=server.target(token_file=str(path))) as client,
    ):
        assert await sent_authorization(client) == "Bearer first"
        path.write_text("second\n")
        assert await sent_authorization(client) == "Bearer first"
        clock.advance(RELOAD_S)
        assert await sent_authorization(client) == "Bearer second"
        path.unlink()
        clock.advance(RELOAD_S)
        assert await sent_authorization(client) == "Bearer second"  # the old token stays in use


@async_test
async def test_a_token_file_is_read_again_after_a_401(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")

    def strict(request: Request) -> Reply:
        return whoami(request) if request.headers["authorization"] == "Bearer second" else status(401, "Unauthorized")

    async with FakeHttpServer(strict) as server, server.client(target=server.target(token_file=str(path))) as client:
        with pytest.raises(Unauthorized):
            await sent_authorization(client)
        assert len(server.requests) == 1  # the file has not changed: a retry cannot help
        path.write_text("second")
        assert await sent_authorization(client) == "Bearer second"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot read the token file", id="missing"),
        pytest.param(" \n", "is empty", id="empty"),
        pytest.param(f"{SECRET}\nX-Other: header", "one line", id="two-lines"),
        pytest.param(f"{SECRET}\u00e9", "one line", id="not-ascii"),
    ],
)
@async_test
async def test_an_invalid_token_file_is_an_error(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    async with FakeHttpServer(whoami) as server, server.client(target=server.target(token_file=str(path))) as client:
        with pytest.raises(KubeconfigError, match=message) as caught:
            await sent_authorization(client)
        assert str(path) in str(caught.value)
        assert SECRET not in str(caught.value)


def write_exec_plugin(folder: Path, *answers: dict[str, Any] | str, code: int = 0) -> Path:
    """An exec plugin that prints one answer after another and records its calls."""
    texts = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
    path = folder / "login"
    path.write_text(
        f"#!{sys.executable}\n"
        "import os, pathlib, sys\n"
        f"log = pathlib.Path({str(folder / 'calls')!r})\n"
        "count = len(log.read_text().splitlines()) if log.exists() else 0\n"
        "call = sys.argv[1:], os.environ.get('EXTRA'), os.environ['KUBERNETES_EXEC_INFO']\n"
        "log.open('a').write(repr(call) + '\\n')\n"
        f"texts = {texts!r}\n"
        "print(texts[min(count, len(texts) - 1)])\n"
        f"sys.stderr.write({SECRET!r})\n"
        f"sys.exit({code})\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


def credential(token: str = "", version: str = V1, **more: Any) -> dict[str, Any]:
    fields = {"token": token} if token else {}
    return {"apiVersion": version, "kind": "ExecCredential", "status": fields | more}


def exec_config(path: Path, version: str = V1, **more: Any) -> ExecConfig:
    return ExecConfig(command=str(path), api_version=version, **more)


@pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
@async_test
async def test_an_exec_plugin_runs_once_and_gets_the_cluster_info(tmp_path: Path, version: str) -> None:
    path = write_exec_plugin(tmp_path, credential("from-program", version))
    program = exec_config(
        path, version, args=(Secret("--x"),), env=(EnvVar("EXTRA", Secret("1")),), provide_cluster_info=True
    )
    async with FakeHttpServer(whoami) as server:
        target = server.target(exec=program, exec_config={"audience": "me"}, ca_data=b"CA")
        async with server.client(target=target) as client:
            answers = await asyncio.gather(*(sent_authorization(client) for _ in range(4)))
        assert answers == ["Bearer from-program"] * 4
        assert calls(tmp_path) == 1
        arguments, extra, info = eval((tmp_path / "calls").read_text())
        assert (arguments, extra) == (["--x"], "1")
        exec_info = json.loads(info)
        assert (exec_info["apiVersion"], exec_info["spec"]["interactive"]) == (version, False)
        assert exec_info["spec"]["cluster"] == {
            "server": server.url,
            "certificate-authority-data": "Q0E=",
            "config": {"audience": "me"},
        }


@async_test
async def test_an_exec_plugin_runs_again_when_its_token_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    expires = (clock.now() + timedelta(hours=1)).isoformat()
    path = write_exec_plugin(tmp_path, credential("one", expirationTimestamp=expires), credential("two"))
    async with (
        FakeHttpServer(whoami) as server,
        server.client(clock, target=server.target(exec=exec_config(path))) as client,
    ):
        assert await sent_authorization(client) == "Bearer one"
        clock.advance(3599)
        assert await sent_authorization(client) == "Bearer one"
        clock.advance(2)
        assert await sent_authorization(client) == "Bearer two"
        assert calls(tmp_path) == 2


@async_test
async def test_an_exec_plugin_runs_again_after_a_401(tmp_path: Path) -> None:
    path = write_exec_plugin(tmp_path, credential("stale"), credential("good"))

    def strict(request: Request) -> Reply:
        return whoami(request) if request.headers["authorization"] == "Bearer good" else status(401, "Unauthorized")

    async with FakeHttpServer(strict) as server, server.client(target=server.target(exec=exec_config(path))) as client:
        assert await sent_authorization(client) == "Bearer good"
        assert server.connections == 2  # the first connection belongs to the refused credentials


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        pytest.param(SECRET, 0, "not an ExecCredential", id="no-json"),
        pytest.param(credential(SECRET), 3, "exit code 3", id="fails"),
        pytest.param(
            credential(SECRET, "client.authentication.k8s.io/v1beta1"), 0, f"ExecCredential of {V1}", id="other-version"
        ),
        pytest.param({"apiVersion": V1, "kind": "ExecCredential"}, 0, "neither a token", id="no-status"),
        pytest.param(credential(clientKeyData=SECRET), 0, "not both", id="key-alone"),
        pytest.param(credential(SECRET + "\r\nX: y"), 0, "one line", id="header-injection"),
        pytest.param(credential(clientKeyData=SECRET, clientCertificateData=SECRET), 0, "cannot be used", id="no-pem"),
    ],
)
@async_test
async def test_an_error_names_a_failed_exec_plugin_without_its_output(
    tmp_path: Path, answer: dict[str, Any] | str, code: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = write_exec_plugin(tmp_path, answer, code=code)
    authority = Authority()
    async with FakeHttpServer(whoami, tls=server_context(tmp_path, authority.server("127.0.0.1"))) as server:
        target = server.target(exec=exec_config(path), ca_data=authority.certificate.encode())
        async with server.client(target=target) as client:
            with pytest.raises(KubeconfigError, match=message) as caught:
                await sent_authorization(client)
    assert "login" in str(caught.value) or "program" in str(caught.value)
    assert SECRET not in str(caught.value) + caplog.text


@async_test
async def test_an_error_contains_the_install_hint_of_a_missing_exec_plugin(tmp_path: Path) -> None:
    program = exec_config(tmp_path / "absent", install_hint="install absent from example.com")
    async with FakeHttpServer(whoami) as server, server.client(target=server.target(exec=program)) as client:
        with pytest.raises(KubeconfigError, match=r"absent.*No such file.*install absent from"):
            await sent_authorization(client)


@async_test
async def test_no_request_is_sent_without_credentials(tmp_path: Path) -> None:
    """The process sees an unreachable server, and the start does not retry."""
    path = write_exec_plugin(tmp_path, {"kind": "Nonsense"})
    async with FakeHttpServer(whoami) as server, server.client(target=server.target(exec=exec_config(path))) as client:
        with pytest.raises(Unreachable, match="did not print an ExecCredential") as request_error:
            await sent_authorization(client)
        assert calls(tmp_path) == 1, "once per request"
        with pytest.raises(Unreachable, match="did not print an ExecCredential") as watch_error:
            async with client.transport.stream("/x", quiet_s=1.0):
                pass
        assert not request_error.value.sent
        assert not watch_error.value.sent
        with pytest.raises(KubeconfigError, match="did not print an ExecCredential"):
            await client.wait_for_server()
        assert server.requests == []


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


async def can_reach(server: FakeHttpServer, **fields: Any) -> bool:
    async with server.client(target=server.target(**fields)) as client:
        await client.transport.request("GET", "/x")
    return True


@async_test
async def test_the_server_certificate_is_verified(tmp_path: Path, authority: Authority) -> None:
    trusted = {"ca_data": authority.certificate.encode()}
    async with FakeHttpServer(whoami, tls=server_context(tmp_path, authority.server("127.0.0.1"))) as server:
        assert await can_reach(server, **trusted)
        assert await can_reach(server, verify=False)
        for fields in ({}, {"ca_data": Authority().certificate.encode()}):
            with pytest.raises(Unreachable, match=r"is not trusted.*check the certificate authority"):
                await can_reach(server, **fields)


@async_test
async def test_the_server_name_of_the_certificate_can_be_configured(tmp_path: Path, authority: Authority) -> None:
    trusted = {"ca_data": authority.certificate.encode()}
    async with FakeHttpServer(whoami, tls=server_context(tmp_path, authority.server("kube.example"))) as server:
        assert await can_reach(server, **trusted, server_name="kube.example")
        with pytest.raises(Unreachable, match="not trusted"):
            await can_reach(server, **trusted)


@async_test
async def test_the_minimum_tls_version_is_1_2_or_configured(tmp_path: Path, authority: Authority) -> None:
    context = server_context(tmp_path, authority.server("127.0.0.1"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with FakeHttpServer(whoami, tls=context) as server:
        target = server.target(ca_data=authority.certificate.encode())
        async with server.client(target=target) as client:
            await client.transport.request("GET", "/x")
        async with server.client(target=target, tls_minimum="1.3") as client:
            with pytest.raises(Unreachable):
                await client.transport.request("GET", "/x")
        with pytest.raises(KubeconfigError, match=r"TLS 1\.1 is not supported"):
            server.client(target=target, tls_minimum="1.1")


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "files"])
@async_test
async def test_a_client_certificate_authenticates(tmp_path: Path, authority: Authority, inline: bool) -> None:
    me = authority.user("me", "group")
    (tmp_path / "me.crt").write_text(me.certificate)
    (tmp_path / "me.key").write_text(me.key)
    files = {"cert_file": str(tmp_path / "me.crt"), "key_file": str(tmp_path / "me.key")}
    data = {"cert_data": me.certificate.encode(), "key_data": Secret(me.key)}
    context = server_context(tmp_path, authority.server("127.0.0.1"), authority.certificate)
    async with FakeHttpServer(whoami, tls=context) as server:
        assert await can_reach(server, ca_data=authority.certificate.encode(), **(data if inline else files))
        with pytest.raises(Unreachable):
            await can_reach(server, ca_data=authority.certificate.encode())


@async_test
async def test_client_certificate_files_are_read_again_when_they_change(tmp_path: Path, authority: Authority) -> None:
    other = Authority("other")
    context = server_context(tmp_path, authority.server("127.0.0.1"), authority.certificate)
    cert, key = tmp_path / "me.crt", tmp_path / "me.key"

    def install(pair: Pair) -> None:
        cert.write_text(pair.certificate)
        key.write_text(pair.key)

    install(other.user("stranger"))
    async with FakeHttpServer(whoami, tls=context) as server:
        target = server.target(ca_data=authority.certificate.encode(), cert_file=str(cert), key_file=str(key))
        async with server.client(target=target) as client:
            with pytest.raises(Unreachable):
                await client.transport.request("GET", "/x")
            install(authority.user("me"))
            await client.transport.request("GET", "/x")


@async_test
async def test_an_exec_plugin_may_print_a_certificate(tmp_path: Path, authority: Authority) -> None:
    me = authority.user("me")
    path = write_exec_plugin(tmp_path, credential(clientCertificateData=me.certificate, clientKeyData=me.key))
    context = server_context(tmp_path, authority.server("127.0.0.1"), authority.certificate)
    async with FakeHttpServer(whoami, tls=context) as server:
        assert await can_reach(server, ca_data=authority.certificate.encode(), exec=exec_config(path))


@async_test
async def test_no_log_or_error_contains_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts = []
    async with FakeHttpServer(lambda _: status(403, "Forbidden", "no")) as server:
        for fields in (
            {"token": Secret(SECRET)},
            {"username": "u", "password": Secret(SECRET)},
            {"exec": exec_config(write_exec_plugin(tmp_path, credential(SECRET)))},
        ):
            async with server.client(target=server.target(**fields)) as client:
                with pytest.raises(BayplanError) as caught:
                    await client.transport.request("POST", "/x", b"{}")
                texts.append(repr(caught.value))
    async with FakeHttpServer(lambda _: Reply(raw=b"HTTP/1.1 junk\r\n\r\n")) as server:
        target = server.target(token=Secret(SECRET))
        async with server.client(target=target) as client:
            with pytest.raises(Unreachable) as lost:
                await client.transport.request("POST", "/x", b"{}")
            texts.append(repr(lost.value))
    assert SECRET not in caplog.text + "".join(texts)


def test_connection_configs_are_equal_regardless_of_their_origin() -> None:
    assert ConnectionConfig(server="https://x", origin="a") == ConnectionConfig(server="https://x", origin="b")
