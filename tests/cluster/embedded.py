"""The embedded API server in place of etcd and kube-apiserver, with the interface of `Cluster`.

It is started on the command line, and keeps its objects in a file, so that tests can kill and restart it. A restart has
the effect of an etcd compaction on clients: older versions are gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.run import ADMIN, API_SERVER, Cluster, die_with_parent

_NAMES = ("127.0.0.1", "::1", "kubernetes", "kubernetes.default.svc", "localhost")


class Embedded(Cluster):
    """`bayplan cluster up` in a separate process."""

    def start_etcd(self) -> None:
        """There is no etcd: the objects are in the API server's own file."""

    def compact(self) -> int:
        """A restart drops the history."""
        return 0

    def _prepare(self) -> None:
        super()._prepare()
        home = self._home
        home.mkdir(parents=True)
        pair = self.authority.server(*_NAMES)
        files = {
            "ca.crt": self.authority.certificate,
            "server.crt": pair.certificate,
            "server.key": pair.key,
            "names.json": json.dumps(_NAMES),
            "token": self.tokens[ADMIN] + "-of-bayplan",
        }
        for name, content in files.items():
            (home / name).write_text(content)

    def _api_server_flags(self) -> list[str]:
        return [
            "--nodes=0",
            "--no-scheduler",
            "--no-controllers",
            f"--port={self._port}",
            f"--data={self.folder / 'objects.db'}",
            "--data-sync=normal",  # as etcd has --unsafe-no-fsync
            f"--token-file={self.folder / 'tokens.csv'}",
            f"--client-ca={self.folder / 'ca.crt'}",
        ]

    def _spawn(self, name: str, arguments: Sequence[str], program_name: str) -> subprocess.Popen[bytes]:
        if name != API_SERVER:
            return super()._spawn(name, arguments, program_name)
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "bayplan", "cluster", "up", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "XDG_STATE_HOME": str(self.folder / "state")},
                preexec_fn=die_with_parent,
            )

    @property
    def _home(self) -> Path:
        return self.folder / "state" / "bayplan" / "clusters" / "bayplan"
