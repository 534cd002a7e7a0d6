"""A server without TLS gets no credentials: no exec plugin is run, and one warning says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bayplan.client.auth.connection_config import ConnectionConfig, load_connection_config
from support.fakes.http_server import FakeHttpServer, Reply
from support.harness.async_tests import async_test

SECRET = "s3cr3t-t0k3n"
_EXEC_VERSION = "client.authentication.k8s.io/v1"


def _users(folder: Path) -> dict[str, dict[str, Any]]:
    token_file, program, marker = folder / "token", folder / "login", folder / "ran"
    token_file.write_text(SECRET)
    credential = {"apiVersion": _EXEC_VERSION, "kind": "ExecCredential", "status": {"token": SECRET}}
    program.write_text(f"#!/bin/sh\ntouch {marker}\necho '{json.dumps(credential)}'\n")
    program.chmod(0o700)
    return {
        "token": {"token": SECRET},
        "token-file": {"tokenFile": str(token_file)},
        "password": {"username": "me", "password": SECRET},
        "certificate": {"client-certificate": str(token_file), "client-key": str(token_file)},
        "certificate-data": {"client-certificate-data": "eA==", "client-key-data": "eA=="},
        "program": {"exec": {"command": str(program), "apiVersion": _EXEC_VERSION}},
    }


USERS = ("token", "token-file", "password", "certificate", "certificate-data", "program")


def _kubeconfig(folder: Path, server: str, user: dict[str, Any], **cluster: Any) -> Path:
    path = folder / "config"
    tree = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(tree))
    return path


def _has_credentials(target: ConnectionConfig) -> bool:
    from_kubeconfig = (target.token, target.token_file, target.username, target.password, target.exec)
    return any((*from_kubeconfig, target.cert_file, target.cert_data, target.key_file, target.key_data))


@pytest.mark.parametrize("way", ["the-file", "--master"])
@pytest.mark.parametrize("user", USERS)
def test_a_server_without_tls_gets_no_credentials(
    user: str, way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @async_test
    async def test() -> None:
        async with FakeHttpServer(lambda _: Reply()) as server:
            server_in_file = server.url if way == "the-file" else "https://10.0.0.1:6443"
            path = _kubeconfig(tmp_path, server_in_file, _users(tmp_path)[user])
            target = load_connection_config(path, env={}, server="" if way == "the-file" else server.url)
            async with server.client(target=target) as client:
                await client.transport.request("GET", "/x")
                assert await client.transport.own_token() == ""
            (request,) = server.requests
            assert "authorization" not in request.headers
            assert SECRET not in str(request.headers)
            assert not (tmp_path / "ran").exists()
            origin = f"{path}, clusters[c]"
            assert caplog.messages == [
                f"{origin}: credentials are not sent to {server.url}: the connection is not encrypted; use https"
            ]

    test()


@pytest.mark.parametrize("user", USERS)
def test_a_server_with_tls_gets_credentials(user: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = load_connection_config(_kubeconfig(tmp_path, "https://10.0.0.1:6443", _users(tmp_path)[user]), env={})
    assert _has_credentials(target)
    assert caplog.messages == []


@pytest.mark.parametrize("server", ["http://10.0.0.1:8080", "10.0.0.1:8080"])
def test_a_service_account_token_goes_to_no_other_server(
    server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text(SECRET)
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert _has_credentials(load_connection_config(env=env, service_account=tmp_path))
    assert not _has_credentials(load_connection_config(env=env, service_account=tmp_path, server=server))
    assert len(caplog.messages) == 1


def test_a_user_without_credentials_causes_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = load_connection_config(_kubeconfig(tmp_path, "http://127.0.0.1:8001", {"as": "other"}), env={})
    assert target.impersonate == (("Impersonate-User", "other"),)  # impersonation headers are not secret
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("cluster", "scheme"),
    [
        pytest.param({}, "http", id="no-settings-for-TLS"),
        pytest.param({"certificate-authority-data": "eA=="}, "https", id="an-authority"),
        pytest.param({"insecure-skip-tls-verify": True}, "https", id="no-verification"),
    ],
)
def test_an_address_without_a_scheme(cluster: dict[str, Any], scheme: str, tmp_path: Path) -> None:
    target = load_connection_config(_kubeconfig(tmp_path, "kube.example:6443", {"token": SECRET}, **cluster), env={})
    assert target.server == f"{scheme}://kube.example:6443"
    assert bool(target.token) == (scheme == "https")


@async_test
async def test_a_redirect_is_not_followed() -> None:
    async with FakeHttpServer(lambda _: Reply()) as other:
        answer = Reply(302, {}, headers={"Location": f"{other.url}/x"})
        async with FakeHttpServer(lambda _: answer) as server, server.client() as client:
            await client.transport.request("GET", "/x")
        assert other.requests == []
