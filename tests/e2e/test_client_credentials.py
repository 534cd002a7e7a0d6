"""Credentials on a real API server: tokens that rotate, exec plugins, certificates, impersonation."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import Client, ConnectionConfig, GroupVersionResource, Secret, load_connection_config
from bayplan.clock import SystemClock
from bayplan.errors import Forbidden, Unauthorized
from cluster.run import Cluster
from support.harness.async_tests import async_test

WHO = GroupVersionResource("authentication.k8s.io", "v1", "selfsubjectreviews", namespaced=False)


async def whoami(target: ConnectionConfig) -> str:
    async with Client(target, clock=SystemClock(), chance=random.Random(0)) as client:
        return await asked(client)


async def asked(client: Client) -> str:
    review = {"apiVersion": WHO.api_version, "kind": "SelfSubjectReview"}
    return str(json.loads(await client.create(WHO, review))["status"]["userInfo"]["username"])


@async_test
async def test_a_kubeconfig(cluster: Cluster) -> None:
    assert await whoami(load_connection_config(cluster.kubeconfig("limited"), env={})) == "limited"


@async_test
async def test_a_client_certificate(cluster: Cluster) -> None:
    pair = cluster.authority.user("jane", "team")
    target = replace(cluster.target(), token=Secret(""), cert_data=pair.certificate.encode(), key_data=Secret(pair.key))
    assert await whoami(target) == "jane"


@async_test
async def test_impersonation(cluster: Cluster) -> None:
    assert await whoami(cluster.target(impersonate=(("Impersonate-User", "jane"),))) == "jane"
    with pytest.raises(Forbidden):
        await whoami(cluster.target("limited", impersonate=(("Impersonate-User", "jane"),)))


@async_test
async def test_a_token_that_rotates(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("expired-long-ago")
    target = replace(cluster.target(), token=Secret(""), token_file=str(path))
    async with Client(target, clock=SystemClock(), chance=random.Random(0)) as client:
        with pytest.raises(Unauthorized):
            await asked(client)
        path.write_text(cluster.tokens["limited"])
        assert await asked(client) == "limited"


def program(folder: Path, *tokens: str) -> Path:
    """A credential plugin that prints one token after another."""
    path = folder / "login"
    answers = [
        {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}}
        for token in tokens
    ]
    path.write_text(
        f"#!{sys.executable}\nimport json, pathlib\ncount = pathlib.Path({str(folder / 'count')!r})\n"
        "number = int(count.read_text()) if count.exists() else 0\ncount.write_text(str(number + 1))\n"
        f"print(json.dumps({answers!r}[number]))\n"
    )
    path.chmod(0o700)
    return path


@async_test
async def test_a_credential_program(cluster: Cluster, tmp_path: Path) -> None:
    tree: dict[str, Any] = json.loads(cluster.kubeconfig().read_text())
    exec_ = {
        "command": str(program(tmp_path, "expired-long-ago", cluster.tokens["limited"])),
        "apiVersion": "client.authentication.k8s.io/v1",
        "interactiveMode": "Never",
    }
    tree["users"][0]["user"] = {"exec": exec_}
    path = tmp_path / "config"
    path.write_text(json.dumps(tree))
    assert await whoami(load_connection_config(path, env={})) == "limited"
    assert (tmp_path / "count").read_text() == "2"


@async_test
async def test_many_requests_at_once(cluster: Cluster) -> None:
    async with Client(
        cluster.target(), clock=SystemClock(), chance=random.Random(0), qps=-1.0, connections=16
    ) as client:
        assert set(await asyncio.gather(*(asked(client) for _ in range(100)))) == {"admin"}
