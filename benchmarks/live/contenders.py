"""The compared processes: kube-scheduler, Bayplan, and the bare loop at several concurrencies.

Both schedulers read the same configuration file, with the same qps and burst, without leader election and without
serving.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bayplan.codec.yaml import read_document
from benchmarks.live.bare_loop import BURST, QPS
from cluster.build import program
from cluster.run import Cluster, die_with_parent

LOOP = Path(__file__).with_name("bare_loop.py")
CONCURRENCIES = (16, 32, 64)


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    arguments: Sequence[str]

    @contextmanager
    def running(self, folder: Path) -> Iterator[int]:
        """Its process id, while it runs."""
        with (folder / f"{self.name}.log").open("wb") as log:
            process = subprocess.Popen(
                self.arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent
            )
            try:
                yield process.pid
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def kube_scheduler(cluster: Cluster, profiles: str | None) -> Contender:
    config = _configuration(cluster, profiles)
    return Contender("kube-scheduler", [str(program("kube-scheduler")), f"--config={config}", "--secure-port=0"])


def bayplan(cluster: Cluster, profiles: str | None) -> Contender:
    config = _configuration(cluster, profiles)
    return Contender("bayplan", [sys.executable, "-m", "bayplan", "scheduler", f"--config={config}", "--secure-port=0"])


def bare_loop(cluster: Cluster, namespace: str, at_once: int) -> Contender:
    way = str(cluster.kubeconfig())
    return Contender(f"bare-loop-{at_once}", [sys.executable, str(LOOP), way, namespace, str(at_once)])


def _configuration(cluster: Cluster, profiles: str | None) -> Path:
    own = read_document(profiles) if profiles is not None else {}
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        **(own if isinstance(own, dict) else {}),
        "clientConnection": {"kubeconfig": str(cluster.kubeconfig()), "qps": QPS, "burst": BURST},
        "leaderElection": {"leaderElect": False},
    }
    path = cluster.folder / "scheduler.json"
    path.write_text(json.dumps(document))
    return path
