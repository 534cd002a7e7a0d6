"""`bayplan why` with a running `bayplan scheduler`; refused to users who may not get the pod."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cluster.run import Cluster, free_ports
from support.e2e.binder_harness import BinderHarness
from support.e2e.scheduler_harness import SchedulerHarness, short_backoff_config
from support.e2e.scheduler_process import Endpoint, wait_until
from support.harness.deadlines import DEADLINE_S
from support.harness.health_server import get

OWN = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"


def asked(harness: SchedulerHarness, port: int, pod: str, *arguments: str) -> dict[str, Any]:
    """The output of the command, as data."""
    way = ("--url", f"https://127.0.0.1:{port}", "--insecure-skip-tls-verify", "-o", "json")
    command = ["why", pod, "-n", harness.namespace, "--kubeconfig", str(harness.cluster.kubeconfig()), *way, *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "bayplan", *command], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def status(port: int, path: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return asyncio.run(get(Endpoint(port), path, headers=headers)).status


def is_told(harness: SchedulerHarness, pod: str) -> bool:
    return "PodScheduled" in json.dumps(harness.api.pod(pod).get("status", {}))


def test_a_running_scheduler_explains(harness: SchedulerHarness, tmp_path: Path) -> None:  # noqa: ARG001
    harness.add_nodes(2, cpu="2")
    (port,) = free_ports(1)
    with harness.run_scheduler(f"--secure-port={port}", "--bind-address=127.0.0.1", config=short_backoff_config()):
        harness.api.create(harness.pod("fits", cpu="500m"), harness.pod("large", cpu="2500m"))
        harness.wait_bound(["fits"])
        wait_until(lambda: is_told(harness, "large"), "it has a reason")

        large = asked(harness, port, "large")
        assert (large["source"], large["attempts"] >= 1) == ("record", True)
        assert "Insufficient cpu" in {reason["text"] for reason in large["reasons"]}
        assert any(change["less"].get("cpu") == 500 for change in large["changes"] if change["kind"] == "requests")
        assert asked(harness, port, "large", "--now")["source"] == "now"

        wait_until(lambda: asked(harness, port, "fits").get("state") == "placed", "the watch has shown it on its node")
        assert asked(harness, port, "fits")["node"] in harness.nodes

        path, admin = f"/why/{harness.namespace}/large", harness.cluster.tokens["admin"]
        assert status(port, path, admin) == 200
        assert status(port, path, "") == 403
        assert status(port, path, "nonsense") == 401
        assert status(port, f"/why/{harness.namespace}/missing", admin) == 404


HELD_UP = """
import asyncio
from pathlib import Path

class HeldUp:
    name = "heldup"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        while not Path("{flag}").exists():
            await asyncio.sleep(0.05)
        raise RuntimeError("the node has no quota")
"""


def test_a_pod_that_waits_for_the_binder(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    harness = BinderHarness(cluster, namespace, tmp_path)
    harness.add_nodes(1)
    (node,) = harness.nodes
    (port,) = free_ports(1)
    settings, plugins, flag = tmp_path / "own.yaml", tmp_path / "plugins", tmp_path / "flag"
    settings.write_text(f"{OWN}binderLeaseNamespace: {namespace}\n")
    plugins.mkdir(mode=0o755)
    (plugins / "held_up.py").write_text(HELD_UP.format(flag=flag))
    serving = (f"--secure-port={port}", "--bind-address=127.0.0.1", f"--settings={settings}")
    binder = (f"--plugins-dir={plugins}", "--leader-elect", f"--leader-elect-resource-namespace={namespace}")
    with harness.run_scheduler_with_requests(*serving):
        harness.api.create(harness.pod("web"))
        wait_until(lambda: bool(harness.find("BindRequest", "web")), "it is handed over")
        alone = asked(harness, port, "web")
        assert (alone["state"], alone["request"]["phase"], alone["request"]["failedAttempts"]) == (
            "binding",
            "Pending",
            0,
        )
        assert alone["sentence"].startswith(f"{namespace}/web is to go to {node}")
        assert alone["waitsFor"] == f"the binder to handle the bind request {namespace}/web"
        assert alone["binder"]["state"] == "absent"
        with harness.binder(*binder):
            wait_until(lambda: asked(harness, port, "web")["binder"]["state"] == "held", "a binder is there")
            flag.touch()
            wait_until(lambda: asked(harness, port, "web")["state"] == "pending", "the binder gives it up")
            wait_until(
                lambda: asked(harness, port, "web").get("waitsFor", "").startswith("the pause after"), "it is tried"
            )
            answer = asked(harness, port, "web")
    (given_up,) = answer["excludedNodes"]
    assert (given_up["node"], given_up["times"]) == (node, 1)
    assert "the node has no quota" in given_up["error"]
    assert answer["waitsFor"].startswith(f"the pause after the binding to {node} that was given up to end")
    assert answer["nextTry"] == given_up["until"]
    harness.close()
