"""Access to the page of a running scheduler: the API server authorizes by token and namespace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.api import Api
from cluster.run import Cluster, free_ports
from support.e2e.scheduler_harness import SchedulerHarness
from support.e2e.scheduler_process import Endpoint, run_scheduler, wait_until
from support.harness.deadlines import DEADLINE_S
from support.harness.health_server import Reply, connected, get

RULES = "rbac.authorization.k8s.io"


def role(kind: str, name: str, namespace: str, rules: list[dict[str, Any]]) -> str:
    """A role, and the user `limited` bound to it."""
    where = {"namespace": namespace} if namespace else {}
    version = f"{RULES}/v1"
    subject = {"kind": "User", "name": "limited", "apiGroup": RULES}
    made = {"apiVersion": version, "kind": kind, "metadata": {"name": name, **where}, "rules": rules}
    bound = {
        "apiVersion": version,
        "kind": f"{kind}Binding",
        "metadata": {"name": name, **where},
        "subjects": [subject],
        "roleRef": {"apiGroup": RULES, "kind": kind, "name": name},
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [made, bound]})


def ask(cluster: Cluster, port: int, path: str, user: str, method: str = "GET") -> Reply:
    headers = {"Authorization": f"Bearer {cluster.tokens[user]}"} if user else {}
    return asyncio.run(get(Endpoint(port), path, method=method, headers=headers))


def streamed(cluster: Cluster, port: int, user: str) -> str:
    """The stream from its start until it is complete; empty if it is refused."""

    async def read() -> str:
        async with asyncio.timeout(DEADLINE_S), connected(Endpoint(port)) as (reader, writer):
            token = cluster.tokens[user]
            writer.write(f"GET /page/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            said = b""
            while b"event: whole" not in said:
                piece = await reader.read(65536)
                said += piece
                if not piece or not said.startswith(b"HTTP/1.1 200"):
                    return ""
            return said.decode()

    return asyncio.run(read())


@pytest.fixture
def page_port(cluster: Cluster, harness: SchedulerHarness, tmp_path: Path) -> Iterator[int]:
    """A scheduler that has placed a pod in a namespace that only administrators may read, and one in the test's
    namespace.
    """
    (port,) = free_ports(1)
    other = f"{harness.api.namespace[:50]}-x"
    hidden = Api(cluster, other)
    hidden.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    harness.add_nodes(2)
    with run_scheduler(cluster, tmp_path, f"--secure-port={port}", "--bind-address=127.0.0.1", "--leader-elect=false"):
        harness.api.create(harness.pod("seen"))
        hidden.create({**harness.pod("unseen"), "metadata": {"name": "unseen", "namespace": other}})
        harness.wait_bound(["seen"])
        wait_until(lambda: hidden.pod("unseen")["spec"].get("nodeName"), "the other is placed")
        yield port


def test_the_page_shows_a_caller_what_they_may_read(
    cluster: Cluster, harness: SchedulerHarness, page_port: int
) -> None:
    mine, other = harness.api.namespace, f"{harness.api.namespace[:50]}-x"
    assert ask(cluster, page_port, "/page/", "").status == 401
    assert ask(cluster, page_port, "/page/stream", "").status == 403
    assert ask(cluster, page_port, "/page/stream", "limited").status == 403

    everything = streamed(cluster, page_port, "admin")
    assert f'"{mine}/seen"' in everything
    assert f'"{other}/unseen"' in everything

    paths = [{"nonResourceURLs": ["/page/*"], "verbs": ["get"]}]
    cluster.kubectl("apply", "-f", "-", stdin=role("ClusterRole", f"page-{mine[:40]}", "", paths))
    pods = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    cluster.kubectl("apply", "-f", "-", stdin=role("Role", "pods", mine, pods))

    # a refusal is cached for ten seconds
    wait_until(lambda: f'"{mine}/seen"' in streamed(cluster, page_port, "limited"), "their own pods are shown")
    assert other not in streamed(cluster, page_port, "limited")
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert ask(cluster, page_port, "/page/stream", "admin", method).status == 405
