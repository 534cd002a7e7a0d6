"""The log of a running scheduler: short by default, JSON on request, and never a secret."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from cluster.run import Cluster, free_ports
from support.e2e.scheduler_harness import SchedulerHarness, short_backoff_config
from support.e2e.scheduler_process import Endpoint, condition, wait_until
from support.harness.health_server import get
from support.harness.metrics_scrape import parse_families


def attempts(cluster: Cluster, port: int) -> dict[str, float]:
    """Number of placed pods, and number of rejections of one."""
    headers = {"Authorization": f"Bearer {cluster.tokens['admin']}"}
    text = asyncio.run(get(Endpoint(port), "/metrics", headers=headers)).text
    found = parse_families(text)["scheduler_schedule_attempts_total"]
    return {result: found.value(result=result) for result in ("scheduled", "unschedulable", "error")}


@pytest.mark.parametrize(("form", "verbosity"), [("text", 0), ("text", 2), ("json", 2)])
def test_a_pods_outcome_is_one_line_at_most(
    cluster: Cluster, harness: SchedulerHarness, form: str, verbosity: int
) -> None:
    harness.add_nodes(2)
    strong = harness.priority(f"{form}{verbosity}", 1000)
    placed = [f"placed-{number}" for number in range(30)]
    (port,) = free_ports(1)
    serving = (f"--secure-port={port}", "--bind-address=127.0.0.1")
    with harness.run_scheduler(f"--logging-format={form}", f"-v={verbosity}", *serving):
        harness.api.create(*map(harness.pod, placed))
        harness.api.create(*(harness.pod(f"waiting-{number}", cpu="64") for number in range(5)))
        harness.wait_bound(placed)
        harness.api.create(harness.pod("strong", cpu="3", priorityClassName=strong))
        harness.wait_bound(["strong"])
        wait_until(lambda: bool(condition(harness.api.pod("waiting-4"))), "it has a reason")
        said, tried = harness.log(), attempts(cluster, port)
    if form == "json":
        trees = [json.loads(line) for line in said.splitlines()]
        assert all(set(tree) >= {"ts", "caller", "msg", "v"} for tree in trees)
        lines = Counter(tree["pod"]["name"] for tree in trees if "pod" in tree)
    else:
        lines = Counter(re.findall(rf"{harness.namespace}/([\w-]+)", said))
    assert {name: count for name, count in lines.items() if name in placed and count > 1} == {}
    assert lines.total() <= sum(tried.values())
    assert (tried["scheduled"], tried["error"]) == (31, 0)
    assert verbosity == 0 or set(lines) >= {*placed, "waiting-4", "strong"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_credentials_never_reach_a_log(cluster: Cluster, harness: SchedulerHarness, tmp_path: Path, form: str) -> None:
    """Every message is logged; the token comes from an exec plugin, and clients send tokens of their own."""
    token = cluster.tokens["admin"]
    plugin = tmp_path / "credentials.sh"
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}}
    plugin.write_text(f"#!/bin/sh\necho a-word-on-stderr >&2\necho '{json.dumps(credential)}'\n")
    plugin.chmod(0o755)
    kubeconfig = tmp_path / "exec.kubeconfig"
    tree = json.loads(cluster.kubeconfig().read_text())
    run = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    tree["users"][0]["user"] = {"exec": run}
    kubeconfig.write_text(json.dumps(tree))
    harness.add_nodes(1)
    (port,) = free_ports(1)
    serving = (f"--secure-port={port}", "--bind-address=127.0.0.1")
    strangers = ("a-strangers-token", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.signature")
    flags = (*serving, "-v=10", f"--logging-format={form}")
    with harness.run_scheduler(*flags, config=short_backoff_config(), kubeconfig=kubeconfig):
        harness.api.create(harness.pod("placed"), harness.pod("waiting", cpu="64"))
        harness.wait_bound(["placed"])
        for brought in (token, *strangers):
            headers = {"Authorization": f"Bearer {brought}"}
            status = asyncio.run(get(Endpoint(port), "/metrics", headers=headers)).status
            assert status == (200 if brought == token else 401)
    said = harness.log()
    assert "Serving securely" in said
    for secret in (token, *strangers):
        assert secret not in said
    assert "PRIVATE KEY" not in said
