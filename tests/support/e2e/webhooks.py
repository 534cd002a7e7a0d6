"""Webhooks for an end-to-end test: built into the embedded API server; a real one calls `bayplan admission`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.embedded import Embedded
from cluster.run import Cluster

KINDS = "mutatingwebhookconfigurations,validatingwebhookconfigurations"


@contextmanager
def run_webhooks(cluster: Cluster, folder: Path, doors: str, *flags: str) -> Iterator[None]:
    """Register the webhooks, and serve them if necessary; `flags` are those of the server."""
    command = [sys.executable, "-m", "bayplan", "admission"]
    if isinstance(cluster, Embedded):
        given = ["manifests", "--url", "https://127.0.0.1:1", "--enabled-admission", doors]
        text = subprocess.run([*command, *given], capture_output=True, text=True, check=True).stdout
        cluster.kubectl("apply", "-f", "-", stdin=text)
        served = None
    else:
        given = ["--listen-address", "127.0.0.1", "--port", "0", "--webhook-url", "https://127.0.0.1"]
        given += ["--enabled-admission", doors, "--cert-dir", str(folder), "--kubeconfig", str(cluster.kubeconfig())]
        served = subprocess.Popen([*command, *given, *flags], stdout=subprocess.PIPE, text=True, env={**os.environ})
        assert served.stdout is not None
        lines = [served.stdout.readline(), served.stdout.readline()]
        assert lines[1].startswith("the API server now calls https://127.0.0.1:"), lines
    try:
        yield
    finally:
        cluster.kubectl("delete", KINDS, "--all")
        if served is not None:
            served.send_signal(signal.SIGTERM)
            assert served.wait(60) == 0
