"""Why, asked of a running `bayplan scheduler` by `bayplan why`, and refused to those who may not get the pod."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cluster.run import free_ports
from patience import DEADLINE_S
from scenario import Corner, quick
from scheduling import Endpoint, until
from served import get


def asked(corner: Corner, port: int, pod: str, *arguments: str) -> dict[str, Any]:
    """What the command says, as data."""
    way = ("--url", f"https://127.0.0.1:{port}", "--insecure-skip-tls-verify", "-o", "json")
    command = ["why", pod, "-n", corner.namespace, "--kubeconfig", str(corner.cluster.kubeconfig()), *way, *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "bayplan", *command], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def status(port: int, path: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return asyncio.run(get(Endpoint(port), path, headers=headers)).status


def is_told(corner: Corner, pod: str) -> bool:
    return "PodScheduled" in json.dumps(corner.api.pod(pod).get("status", {}))


def test_a_scheduler_that_runs_says_why(corner: Corner, tmp_path: Path) -> None:  # noqa: ARG001
    corner.add_nodes(2, cpu="2")
    (port,) = free_ports(1)
    with corner.running(f"--secure-port={port}", "--bind-address=127.0.0.1", config=quick()):
        corner.api.create(corner.pod("fits", cpu="500m"), corner.pod("large", cpu="2500m"))
        corner.bound(["fits"])
        until(lambda: is_told(corner, "large"), "it is told why")

        large = asked(corner, port, "large")
        assert (large["source"], large["tries"] >= 1) == ("record", True)
        assert "Insufficient cpu" in {reason["text"] for reason in large["reasons"]}
        assert any(change["less"].get("cpu") == 500 for change in large["changes"] if change["kind"] == "requests")
        assert asked(corner, port, "large", "--now")["source"] == "now"

        until(lambda: asked(corner, port, "fits").get("state") == "placed", "the watch has shown it on its node")
        assert asked(corner, port, "fits")["node"] in corner.nodes

        path, admin = f"/why/{corner.namespace}/large", corner.cluster.tokens["admin"]
        assert status(port, path, admin) == 200
        assert status(port, path, "") == 403
        assert status(port, path, "nonsense") == 401
        assert status(port, f"/why/{corner.namespace}/nobody", admin) == 404
